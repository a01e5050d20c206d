# SPDX-License-Identifier: Apache-2.0
"""``--mig``: the tree of GPU instances, compute instances and MIG devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nvsandbox import mig
from nvsandbox.cli.listing import mib, text
from nvsandbox.cli.view import about, of_gpu, told
from nvsandbox.mig import ComputeInstance, GpuInstance, MigTree, Run


@dataclass
class Found:
    """The trees of all GPUs."""

    about: dict[str, Any]
    gpus: list[MigTree]


class Mig:
    """MIG on the GPUs with these indexes, or on all."""

    appends = False

    def __init__(self, indexes: Sequence[int] | None) -> None:
        self._indexes = indexes

    def read(self, nvml: Any) -> Found:
        return Found(about(nvml), mig.trees(nvml, indexes=self._indexes))

    def lines(self, data: Found) -> Iterable[str]:
        for tree in data.gpus:
            yield f"GPU {tree.index}: {text(tree.name)} ({text(tree.uuid)}): {_state(tree)}"
            yield from _branches([_gpu_instance(instance) for instance in tree.gpu_instances or ()])

    def styled(self, data: Found, console: Any) -> None:
        for line in self.lines(data):
            console.out(line, highlight=False)

    def problems(self, data: Found) -> Iterable[str]:
        for tree in data.gpus:
            devices = [
                (f"MIG device {tree.index}.{part.device.index}", part.device.errors)
                for instance in tree.gpu_instances or ()
                for part in instance.compute_instances
            ]
            yield from told([(f"GPU {tree.index}", of_gpu(tree.error, tree.errors)), *devices])

    def as_json(self, data: Found) -> dict[str, Any]:
        return {**data.about, "gpus": [asdict(tree) for tree in data.gpus]}


_Branch = tuple[str, list[Any]]


def _state(tree: MigTree) -> str:
    if tree.error is not None:
        return f"cannot be queried: {text(tree.error.message)}"
    if tree.mig_enabled is None:
        return "MIG N/A"
    state = "MIG on" if tree.mig_enabled else "MIG off"
    if tree.mig_pending not in (None, tree.mig_enabled):
        state += f", {'on' if tree.mig_pending else 'off'} after the next reset of the GPU"
    if tree.mig_enabled and tree.gpu_instances == []:
        state += ", no instances"
    return state


def _run(run: Run | None) -> str:
    return "" if run is None else f", slices {run.start} to {run.start + run.size - 1}"


def _gpu_instance(instance: GpuInstance) -> _Branch:
    memory = "" if instance.memory_total_bytes is None else f", {mib(instance.memory_total_bytes)} MiB"
    head = f"GPU instance {instance.id}: {text(instance.profile)}{memory}{_run(instance.placement)}"
    return head, [_compute_instance(part) for part in instance.compute_instances]


def _compute_instance(part: ComputeInstance) -> _Branch:
    device = part.device
    used = f"{mib(device.memory_used_bytes)} of {mib(device.memory_total_bytes)} MiB used"
    return (
        f"compute instance {part.id}: {text(part.profile)}{_run(part.placement)}",
        [(f"MIG device {device.index}: {text(device.uuid)}, {used}", [])],
    )


def _branches(branches: Sequence[_Branch], indent: str = "") -> Iterator[str]:
    for number, (head, below) in enumerate(branches):
        last = number == len(branches) - 1
        yield f"{indent}{'└─ ' if last else '├─ '}{head}"
        yield from _branches(below, indent + ("   " if last else "│  "))
