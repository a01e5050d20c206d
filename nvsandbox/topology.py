# SPDX-License-Identifier: Apache-2.0
"""How near GPUs are to each other, to network devices and to CPUs, in nvidia-smi's words.

Between GPUs NVML tells it. Between a GPU and a network device it is read off the PCI tree in sysfs: the network
devices are those that the kernel lists over netlink (pyroute2) and in /sys/class/infiniband.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml

from nvsandbox import pci
from nvsandbox.asking import Asker, Failure, GivenUp, ask_gpu, bus_id_ways, failure_of, gpu_count
from nvsandbox.errors import SandboxError

# NVML's levels (nvmlGpuTopologyLevel_t). Two GPUs on one board, level 0, have a single bridge between them.
_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_LINKS = 36  # more than any GPU has: 18
_TO_GPU, _TO_SWITCH = 0, 2  # nvmlIntNvLinkDeviceType_t
_LONG_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)
_PCI = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")

LEGEND = {
    "X": "the device itself",
    "SYS": "over PCIe and the link between NUMA nodes",
    "NODE": "over PCIe and the link between PCIe host bridges of one NUMA node",
    "PHB": "over PCIe and a PCIe host bridge (as a rule the CPU)",
    "PXB": "over several PCIe bridges, but no host bridge",
    "PIX": "over at most one PCIe bridge",
    "NV#": "over # NVLinks",
}


@dataclass
class Gpu:
    """A GPU and where it is."""

    index: int
    name: str | None = None
    uuid: str | None = None
    pci_bus_id: str | None = None
    cpu_affinity: str | None = None
    """The CPUs that are near: ``"0-23,48-71"``."""
    numa_affinity: str | None = None
    """The NUMA nodes that are near."""
    gpu_numa_node: int | None = None
    """The node that the GPU's own memory is, where it is one."""
    error: Failure | None = None
    errors: list[Failure] = field(default_factory=list)


@dataclass
class Nic:
    """A network device with a place on PCI."""

    pci_bus_id: str
    interfaces: list[str] = field(default_factory=list)
    """``eth0``, …: those in this network namespace."""
    infiniband: list[str] = field(default_factory=list)
    """``mlx5_0``, …"""
    numa_node: int | None = None

    @property
    def name(self) -> str:
        """The first of its names."""
        return [*self.infiniband, *self.interfaces][0]


@dataclass
class Topology:
    """`gpus_to_gpus[i][j]` and `gpus_to_nics[i][j]` are words of the legend, or None where there is no telling."""

    gpus: list[Gpu]
    nics: list[Nic]
    gpus_to_gpus: list[list[str | None]]
    gpus_to_nics: list[list[str | None]]
    errors: list[Failure] = field(default_factory=list)


Links = Callable[[], Iterable[tuple[str, str | None]]]


def topology(
    nvml: Any,
    *,
    indexes: Sequence[int] | None = None,
    here: bool = True,
    sysfs: str = "/sys",
    links: Links | None = None,
) -> Topology:
    """The topology of all GPUs that NVML counts, or of those with these indexes.

    `here` says whether the GPUs are this machine's, and not simulated ones, of which its PCI tree knows nothing.
    `sysfs` is where the kernel's view of devices is mounted, and `links` gives the network interfaces with the PCI
    addresses of their devices (:func:`network_links`). Raises NVMLError if not even the GPUs' number can be had.
    """
    chosen = range(gpu_count(nvml)) if indexes is None else indexes
    sides = [_side(nvml, index) for index in chosen]
    errors: list[Failure] = []
    nics = _nics(Path(sysfs), links or network_links, errors)
    paths = {nic.pci_bus_id: _pci_path(Path(sysfs), nic.pci_bus_id) for nic in nics}
    result = Topology([side.gpu for side in sides], nics, [], [], errors)
    for one in sides:
        result.gpus_to_gpus.append([_between(one, other) for other in sides])
        path = _pci_path(Path(sysfs), one.gpu.pci_bus_id) if here else None
        result.gpus_to_nics.append([distance(path, paths[nic.pci_bus_id], Path(sysfs)) for nic in nics])
    return result


# ---- GPUs --------------------------------------------------------------------------------------------------------


@dataclass
class _Side:
    gpu: Gpu
    asker: Asker | None = None
    to_gpus: dict[str, int] = field(default_factory=dict)  # NVLinks, by the PCI bus id at their other end
    to_switches: int = 0


def _side(nvml: Any, index: int) -> _Side:
    gpu = Gpu(index)
    side = _Side(gpu)

    def fill(asker: Asker) -> None:
        gpu.name = asker.ask("name", lambda: asker.text("nvmlDeviceGetName", asker.handle))
        gpu.uuid = asker.ask("uuid", lambda: asker.text("nvmlDeviceGetUUID", asker.handle))
        gpu.pci_bus_id = asker.ask("pci_bus_id", *bus_id_ways(asker))
        gpu.cpu_affinity = asker.ask("cpu_affinity", lambda: _mask(asker, "nvmlDeviceGetCpuAffinity", _cpu_longs()))
        gpu.numa_affinity = asker.ask("numa_affinity", lambda: _mask(asker, "nvmlDeviceGetMemoryAffinity", 16, 0))
        gpu.gpu_numa_node = asker.ask("gpu_numa_node", lambda: asker.u32("nvmlDeviceGetNumaNodeId"))
        _nvlinks(asker, side)
        side.asker = asker

    ask_gpu(nvml, index, gpu, fill)
    return side


def _mask(asker: Asker, function: str, longs: int, *scope: int) -> str | None:
    mask = (ctypes.c_ulong * longs)()
    asker.call(function, asker.handle, ctypes.c_uint(longs), mask, *map(ctypes.c_uint, scope))
    return ranges(n * _LONG_BITS + bit for n, part in enumerate(mask) for bit in range(_LONG_BITS) if part >> bit & 1)


def _cpu_longs() -> int:
    """Enough for each CPU that this kernel could have, and for a simulated server's."""
    return max((os.cpu_count() or 1) // _LONG_BITS + 1, 32)


def ranges(numbers: Iterable[int]) -> str | None:
    """``"0-3,8"`` for 0, 1, 2, 3, 8; None for none."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs) or None


def _nvlinks(asker: Asker, side: _Side) -> None:
    for link in range(_LINKS):
        number = ctypes.c_uint(link)
        try:
            active = asker.attempt(lambda number=number: asker.u32("nvmlDeviceGetNvLinkState", number))  # type: ignore[misc]
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
            return  # no more links
        except pynvml.NVMLError as error:
            side.gpu.errors.append(failure_of("nvlinks", error))
            if asker.is_hopeless(error):
                raise GivenUp from error
            return
        if not active:
            continue
        kind = asker.ask("nvlinks", lambda number=number: asker.u32("nvmlDeviceGetNvLinkRemoteDeviceType", number))  # type: ignore[misc]
        if kind == _TO_SWITCH:
            side.to_switches += 1
        elif kind == _TO_GPU:
            other = asker.ask("nvlinks", *bus_id_ways(asker, "nvmlDeviceGetNvLinkRemotePciInfo", number))
            if other is not None:
                key = normal(other)
                side.to_gpus[key] = side.to_gpus.get(key, 0) + 1


def _between(one: _Side, other: _Side) -> str | None:
    if one is other:
        return "X"
    if one.asker is None or other.asker is None:
        return None
    links = one.to_gpus.get(normal(other.gpu.pci_bus_id or ""), 0) or min(one.to_switches, other.to_switches)
    if links:
        return f"NV{links}"
    left, right = one.asker, other.asker
    try:
        level = left.ask(
            f"gpu[{other.gpu.index}]",
            lambda: left.u32("nvmlDeviceGetTopologyCommonAncestor", right.handle),
        )
    except GivenUp:
        return None
    return None if level is None else _LEVELS.get(level)


# ---- network devices ---------------------------------------------------------------------------------------------


def network_links() -> list[tuple[str, str | None]]:
    """The network interfaces of this network namespace, each with the PCI address of its device, or None.

    The kernel says the device since 5.14 (IFLA_PARENT_DEV_NAME); sysfs is asked otherwise. Raises SandboxError without
    pyroute2, and OSError.
    """
    try:
        from pyroute2 import IPRoute  # only here: it takes a while to import
    except ImportError as error:
        raise SandboxError(f"network devices need pyroute2, which cannot be imported: {error}") from error
    with IPRoute() as route:
        return [(link.get_attr("IFLA_IFNAME"), link.get_attr("IFLA_PARENT_DEV_NAME")) for link in route.get_links()]


def _nics(sysfs: Path, links: Links, errors: list[Failure]) -> list[Nic]:
    found: dict[str, Nic] = {}

    def at(device: Path | str) -> Nic | None:
        address = os.path.basename(os.path.realpath(device))
        if not _PCI.fullmatch(address) or not (sysfs / "bus/pci/devices" / address).exists():
            return None
        return found.setdefault(address, Nic(address, numa_node=_numa_node(sysfs / "bus/pci/devices" / address)))

    try:
        interfaces = list(links())
    except (OSError, SandboxError) as error:
        code = getattr(error, "errno", None) or 0
        errors.append(Failure("network devices", code, type(error).__name__, str(error)))
        interfaces = []
    for name, address in interfaces:
        # A parent on another bus, such as virtio, is itself a child of a PCI device.
        if address is not None and _PCI.fullmatch(address):
            where: Path | None = sysfs / "bus/pci/devices" / address
        else:
            where = _pci_parent(sysfs / "class/net" / name / "device")
        nic = at(where) if where else None
        if nic is not None:
            nic.interfaces.append(name)
    for folder in sorted((sysfs / "class/infiniband").glob("*")):
        where = _pci_parent(folder / "device")
        nic = at(where) if where else None
        if nic is not None:
            nic.infiniband.append(folder.name)
    return sorted(found.values(), key=lambda nic: nic.pci_bus_id)


def _pci_parent(device: Path) -> Path | None:
    """The PCI device that `device` is or belongs to: a virtio interface is a child of one."""
    path = Path(os.path.realpath(device))
    return next((each for each in (path, *path.parents) if _PCI.fullmatch(each.name)), None)


def normal(bus_id: str) -> str:
    """A PCI address as sysfs writes it: ``0000:07:00.0``. NVML's has eight digits of domain, old ones none."""
    return pci.address(bus_id) or bus_id.lower()


def _pci_path(sysfs: Path, bus_id: str | None) -> Path | None:
    """Where a device is in the tree of buses; None where this machine has none of that address (simulated GPUs)."""
    if bus_id is None:
        return None
    link = sysfs / "bus/pci/devices" / normal(bus_id)
    return Path(os.path.realpath(link)) if link.exists() else None


def distance(one: Path | None, other: Path | None, sysfs: Path) -> str | None:
    """The word for two devices of the PCI tree, by the bridges between them."""
    if one is None or other is None:
        return None
    if one == other:
        return "X"
    left, right = _bridges(one), _bridges(other)
    shared = 0
    while shared < min(len(left), len(right)) and left[shared] == right[shared]:
        shared += 1
    if shared == 0:
        nodes = _numa_node(one), _numa_node(other)
        return "NODE" if nodes[0] == nodes[1] and (nodes[0] is not None or _single_node(sysfs)) else "SYS"
    if shared == 1:
        return "PHB"
    # A switch is a bridge up and a bridge down for each port: a port for each of the two devices is still one switch.
    return "PIX" if len(left) - shared <= 1 and len(right) - shared <= 1 else "PXB"


def _bridges(device: Path) -> list[str]:
    """The host bridge (``pci0000:80``) and the bridges below it that lead to a device."""
    names = device.parent.parts
    host = next((n for n, name in enumerate(names) if re.fullmatch(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", name)), len(names))
    return list(names[host:])


def _numa_node(device: Path) -> int | None:
    try:
        node = int((device / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _single_node(sysfs: Path) -> bool:
    return len(list((sysfs / "devices/system/node").glob("node[0-9]*"))) <= 1
