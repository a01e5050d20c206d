# SPDX-License-Identifier: Apache-2.0
"""``--processes``: who uses the GPUs, and how much of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from nvsandbox.asking import Asker, Failure, ask_gpu, gpu_count
from nvsandbox.cli.listing import NA, aligned, mib, text
from nvsandbox.cli.selected import NO_NAMES
from nvsandbox.cli.view import about, of_gpu, told
from nvsandbox.processes import ALL_KINDS, Client, Names, clients, running


@dataclass
class GpuProcesses:
    """The processes of one GPU; None where there is no telling."""

    index: int
    uuid: str | None = None
    processes: list[Client] | None = None
    error: Failure | None = None
    errors: list[Failure] = field(default_factory=list)


@dataclass
class Found:
    """The processes of all GPUs."""

    about: dict[str, Any]
    names_are_known: bool
    gpus: list[GpuProcesses]


class Processes:
    """The processes of the GPUs with these indexes, or of all."""

    appends = False

    def __init__(self, indexes: Sequence[int] | None) -> None:
        self._indexes = indexes

    def read(self, nvml: Any) -> Found:
        origin = about(nvml)
        names = Names(nvml)
        chosen = range(gpu_count(nvml)) if self._indexes is None else self._indexes
        return Found(origin, names.usable, [_of_gpu(nvml, index, names) for index in chosen])

    def lines(self, data: Found) -> Iterable[str]:
        rows = [("GPU", "GI", "CI", "PID", "TYPE", "MEMORY MiB", "NAME")]
        for gpu in data.gpus:
            for process in gpu.processes or ():
                rows.append(
                    (
                        str(gpu.index),
                        text(process.gpu_instance_id),
                        text(process.compute_instance_id),
                        str(process.pid),
                        process.type,
                        mib(process.used_memory_bytes),
                        text(process.name),
                    )
                )
            if gpu.processes is None:
                rows.append((str(gpu.index), NA, NA, NA, NA, NA, NA))
        yield from aligned(rows)
        if len(rows) == 1:
            yield "No running processes found"

    def styled(self, data: Found, console: Any) -> None:
        for line in self.lines(data):
            console.out(line, highlight=False)

    def problems(self, data: Found) -> Iterable[str]:
        yield from told((f"GPU {gpu.index}", of_gpu(gpu.error, gpu.errors)) for gpu in data.gpus)
        if not data.names_are_known and any(gpu.processes for gpu in data.gpus):
            yield NO_NAMES

    def as_json(self, data: Found) -> dict[str, Any]:
        return {**data.about, "names_are_known": data.names_are_known, "gpus": [asdict(gpu) for gpu in data.gpus]}


def _of_gpu(nvml: Any, index: int, names: Names) -> GpuProcesses:
    gpu = GpuProcesses(index)

    def fill(asker: Asker) -> None:
        gpu.uuid = asker.ask("uuid", lambda: asker.text("nvmlDeviceGetUUID", asker.handle))
        processes = running(asker, ALL_KINDS)
        gpu.processes = None if processes is None else clients(processes, names)

    ask_gpu(nvml, index, gpu, fill)
    return gpu
