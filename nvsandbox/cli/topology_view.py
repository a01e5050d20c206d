# SPDX-License-Identifier: Apache-2.0
"""``--topology``: how near GPUs, network devices and CPUs are to each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nvsandbox.cli.listing import NA, aligned, text
from nvsandbox.cli.view import about, of_gpu, told
from nvsandbox.topology import LEGEND, Topology, topology


@dataclass
class Found:
    """The topology of a machine."""

    about: dict[str, Any]
    topology: Topology


class Matrix:
    """The topology of the GPUs with these indexes, or of all."""

    appends = False

    def __init__(self, indexes: Sequence[int] | None) -> None:
        self._indexes = indexes

    def read(self, nvml: Any) -> Found:
        origin = about(nvml)
        return Found(origin, topology(nvml, indexes=self._indexes, here=origin["simulate"] is None))

    def lines(self, data: Found) -> Iterable[str]:
        found = data.topology
        rows = [
            [
                "",
                *(f"GPU{gpu.index}" for gpu in found.gpus),
                *(f"NIC{number}" for number in range(len(found.nics))),
                "CPU AFFINITY",
                "NUMA AFFINITY",
                "GPU NUMA ID",
            ]
        ]
        for gpu, to_gpus, to_nics in zip(found.gpus, found.gpus_to_gpus, found.gpus_to_nics, strict=True):
            near = [text(gpu.cpu_affinity), text(gpu.numa_affinity), text(gpu.gpu_numa_node)]
            rows.append([f"GPU{gpu.index}", *(cell or NA for cell in (*to_gpus, *to_nics)), *near])
        yield from aligned(rows)
        if found.nics:
            yield ""
        for number, nic in enumerate(found.nics):
            node = "" if nic.numa_node is None else f", NUMA node {nic.numa_node}"
            yield f"NIC{number}: {text(', '.join([*nic.infiniband, *nic.interfaces]))} at {nic.pci_bus_id}{node}"
        yield ""
        yield from aligned(list(LEGEND.items()))

    def styled(self, data: Found, console: Any) -> None:
        for line in self.lines(data):
            console.out(line, highlight=False)

    def problems(self, data: Found) -> Iterable[str]:
        found = data.topology
        yield from told((f"GPU {gpu.index}", of_gpu(gpu.error, gpu.errors)) for gpu in found.gpus)
        yield from told([("this machine", found.errors)])
        if data.about["simulate"] is not None and found.nics:
            yield "how near simulated GPUs are to this machine's network devices is N/A: they have no place on its PCI"

    def as_json(self, data: Found) -> dict[str, Any]:
        found = data.topology
        return {
            **data.about,
            "gpus": [asdict(gpu) for gpu in found.gpus],
            "nics": [asdict(nic) for nic in found.nics],
            "gpus_to_gpus": found.gpus_to_gpus,
            "gpus_to_nics": found.gpus_to_nics,
            "errors": [asdict(failure) for failure in found.errors],
        }
