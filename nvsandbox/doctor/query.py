# SPDX-License-Identifier: Apache-2.0
"""NVML itself, asked in the sandbox: what all the other checks are about."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pynvml

from nvsandbox.blocks import nvml_isolated
from nvsandbox.doctor import driver
from nvsandbox.doctor.findings import Finding
from nvsandbox.doctor.places import Places
from nvsandbox.errors import LibraryNotFound, SandboxError, SandboxUnavailable, WorkerDied, is_hang


@dataclass
class _Answer:
    """What a thread has found so far."""

    isolation: str = ""
    library: str = ""
    version: str = ""
    names: dict[int, str] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    error: BaseException | None = None


def _ask(options: dict[str, Any], answer: _Answer) -> None:
    try:
        with nvml_isolated(**options) as nvml:
            answer.isolation, answer.library = nvml.session.isolation, nvml.session.library
            answer.version = str(nvml.nvmlSystemGetDriverVersion())
            for index in range(nvml.nvmlDeviceGetCount()):
                try:
                    name = nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(index))
                    answer.names[index] = name if isinstance(name, str) else name.decode("utf-8", "replace")
                except UnicodeDecodeError:  # garbage in a name; the GPU answers
                    answer.names[index] = "?"
                except pynvml.NVMLError as error:
                    answer.failed[index] = str(error)
    except Exception as error:
        answer.error = error


def query(places: Places, wait: float, *, enough: bool = False) -> Iterator[Finding]:
    """Asks NVML in a sandbox for its GPUs, and waits at most `wait` seconds for the answers. `enough`: that this is
    what it may take here, and not a guess of ours."""
    simulated = places.options.simulate is not None
    if not places.live:
        return
    if simulated:
        yield Finding(
            "query.simulated",
            f"the GPUs are simulated ({places.options.simulate}): driver, library and nodes were left out",
            "without --simulate, and NVSANDBOX_SIMULATE in the environment, they are examined",
        )
    if not simulated and not (driver.registered(places) or driver.is_wsl(places)):
        # Not for the answer alone: NVML would have the kernel look for a module.
        yield Finding("query.skipped", "NVML was not asked, for no driver is loaded", "see driver.not-loaded")
        return
    answer = _Answer()
    options = replace(places.options, timeout=min(places.options.timeout or wait, wait), restart=False)
    given = {key: value for key, value in vars(options).items() if value is not None}
    # Not waited for beyond the limit: an nvmlInit may hang in the driver. The worker ends with this process.
    thread = threading.Thread(target=_ask, args=(given, answer), name="nvsandbox-doctor", daemon=True)
    thread.start()
    thread.join(wait)
    if thread.is_alive():
        yield Finding(
            "query.hung" if enough else "query.slow",
            f"NVML has not answered within {wait:g} s",
            ("a longer --wait" if enough else "--wait 60 to wait longer, past which it is an error")
            + "; without persistence mode the start takes seconds for each GPU (nvidia-smi -pm 1); else see the kernel "
            "log for XID errors (dmesg | grep -i xid)",
        )
        return
    yield from _judge(answer)


def _judge(answer: _Answer) -> Iterator[Finding]:
    if answer.error is not None:
        yield Finding(
            "query.failed",
            f"NVML cannot be asked in the sandbox: {_line(answer.error)}",
            _remedy(answer.error),
            facts={"type": type(answer.error).__name__},
        )
        return
    for index, message in answer.failed.items():
        yield Finding(
            "query.gpu-failed",
            f"GPU {index} cannot be queried: {message}",
            "see the kernel log for XID errors of it; the others can be used",
            about=str(index),
        )
    count = len(answer.names)
    kinds = ", ".join(sorted(set(answer.names.values())))
    yield Finding(
        "query.works",
        f"NVML of driver {answer.version} answers for {count} GPU{'s' * (count != 1)}"
        + (f" ({kinds})" if kinds else "")
        + f", isolation '{answer.isolation}'",
        facts={
            "isolation": answer.isolation,
            "library": answer.library,
            "gpus": count,
            "driver_version": answer.version,
        },
    )


def _line(error: BaseException) -> str:
    """The first line of an error, or its type where it has no words, as MemoryError has none."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def _remedy(error: BaseException) -> str:
    if isinstance(error, SandboxUnavailable):
        return "see isolation.none"
    if isinstance(error, LibraryNotFound):
        return "see library.not-found"
    if isinstance(error, pynvml.NVMLError) and not isinstance(error, SandboxError):
        code = int(error.value)
        return {
            9: "see the findings about the driver and the nodes; with a driver in a container, --driver-root",
            18: "see library.mismatch",
            999: "see nodes.cannot-open: as a rule a node cannot be opened",
        }.get(code, "see the kernel log (dmesg | grep -i nvrm)")
    if isinstance(error, WorkerDied):
        return (
            "see the kernel log (dmesg | grep -iE 'xid|nvrm|segfault|oom'); if it was a crash and comes again, report "
            "it to NVIDIA (nvidia-bug-report.sh)"
        )
    if is_hang(error):
        return "see the kernel log for XID errors (dmesg | grep -i xid); a GPU that hangs needs a reset or a reboot"
    return "NVSANDBOX_DEBUG=1 nvsandbox query shows how far it comes; docs/troubleshooting.md has causes"
