# SPDX-License-Identifier: Apache-2.0
"""The processes that use a GPU, as NVML lists them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nvsandbox.asking import U32, U64, Asker, GivenUp, number
from nvsandbox.structures import Process1, Process2

COMPUTE_AND_GRAPHICS = ("compute", "graphics")
ALL_KINDS = (*COMPUTE_AND_GRAPHICS, "mps")

_FUNCTIONS = {"compute": "Compute", "graphics": "Graphics", "mps": "MPSCompute"}

# PROC_PID_INIT_INO of the kernel (include/linux/proc_ns.h): a fixed number since namespaces have numbers, Linux 3.8.
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"


@dataclass(frozen=True)
class Process:
    """A process that uses a GPU."""

    pid: int
    """As NVML says it. In a container this may be a number of the host's, which is somebody else's here."""
    kind: str
    """``"compute"``, ``"graphics"`` or ``"mps"``."""
    used_memory_bytes: int | None
    gpu_instance_id: int | None
    compute_instance_id: int | None


def running(asker: Asker, kinds: Sequence[str]) -> list[Process] | None:
    """The processes of these kinds, one list after the other; a process may be in several of them.

    None where one list could not be read, for part of them would look like all: the reason is among the asker's errors.
    None as well where the GPU has none of these lists. Raises GivenUp as :meth:`Asker.ask` does.
    """
    failures = len(asker.errors)
    lists = [_of(asker, kind) for kind in kinds]
    if len(asker.errors) != failures or all(some is None for some in lists):
        return None
    return [process for some in lists for process in some or ()]


def _of(asker: Asker, kind: str) -> list[Process] | None:
    function = f"nvmlDeviceGet{_FUNCTIONS[kind]}RunningProcesses"

    def way(suffix: str, entry: type[Any]) -> list[Process]:
        return [
            Process(
                item.pid,
                kind,
                number(item.memory, U64),
                number(getattr(item, "gi", U32), U32),
                number(getattr(item, "ci", U32), U32),
            )
            for item in asker.listed(function + suffix, entry)
        ]

    return asker.ask(
        f"processes.{kind}",
        lambda: way("_v3", Process2),
        lambda: way("_v2", Process2),
        lambda: way("", Process1),
    )


@dataclass(frozen=True)
class Client:
    """A process, once for each instance that it uses, with all that it does there."""

    pid: int
    type: str
    """As nvidia-smi writes it: ``C``, ``G``, ``C+G``, and ``M+C`` for a client of MPS."""
    name: str | None
    """The path of its program as NVML has it, or None where it has none or where pids may be somebody else's."""
    used_memory_bytes: int | None
    gpu_instance_id: int | None
    compute_instance_id: int | None


def clients(processes: Sequence[Process], names: Names) -> list[Client]:
    """Processes that are in several lists as one."""
    together: dict[tuple[int, int | None, int | None], list[Process]] = {}
    for process in processes:
        key = (process.pid, process.gpu_instance_id, process.compute_instance_id)
        together.setdefault(key, []).append(process)
    return [
        Client(pid, _type({each.kind for each in some}), names.of(pid), _most(some), gi, ci)
        for (pid, gi, ci), some in together.items()
    ]


def _type(kinds: set[str]) -> str:
    if "mps" in kinds:
        return "M+C"
    return "+".join(letter for kind, letter in (("compute", "C"), ("graphics", "G")) if kind in kinds)


def _most(some: Sequence[Process]) -> int | None:
    """Each list has all the memory of the process, so that it is not their sum."""
    known = [process.used_memory_bytes for process in some if process.used_memory_bytes is not None]
    return max(known, default=None)


class Names:
    """Names of processes by their pids.

    NVML's pids are those of the initial pid namespace. In another one the same number is another process, whose name
    would be a wrong answer: there all names are None.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._known: dict[int, str | None] = {}
        self.usable = in_initial_pid_namespace()

    def of(self, pid: int) -> str | None:
        """The name of a process, or None."""
        if not self.usable:
            return None
        if pid not in self._known:
            asker = Asker(self._nvml, [])
            try:
                self._known[pid] = asker.ask("name", lambda: asker.text_of_pid(pid)) or None
            except GivenUp:
                self._known[pid] = None
        return self._known[pid]


def in_initial_pid_namespace() -> bool:
    """Whether this process is where NVML's pids mean what they say."""
    try:
        return os.readlink("/proc/self/ns/pid") == _INITIAL_PID_NAMESPACE
    except OSError:
        return False
