# SPDX-License-Identifier: Apache-2.0
"""``--topology``: on stand-ins for the PCI tree, on simulated GPUs, and on this machine's network."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest
from click.testing import CliRunner

from nvsandbox import nvml_isolated
from nvsandbox.cli import main
from nvsandbox.cli.topology_view import Found, Matrix
from nvsandbox.errors import SandboxError
from nvsandbox.topology import Topology, distance, network_links, normal, ranges, topology

SWITCH = "pci0000:10/0000:10:01.0/0000:11:00.0"  # a root port and a switch's upstream port


class Sysfs:
    """A PCI tree and what hangs on it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("bus/pci/devices", "class/net", "class/infiniband", "devices/system/node/node0"):
            (root / folder).mkdir(parents=True)
        (root / "devices/system/node/node1").mkdir()

    def device(self, path: str, node: int = -1) -> Path:
        """A PCI device by its path from the host bridge, with the bridges above it."""
        device = self.root / "devices" / path
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{node}\n")
        os.symlink(device, self.root / "bus/pci/devices" / device.name)
        return device

    def interface(self, kind: str, name: str, device: Path) -> None:
        folder = self.root / "class" / kind / name
        folder.mkdir()
        os.symlink(device, folder / "device")

    def word(self, one: Path, other: Path) -> str | None:
        return distance(one, other, self.root)


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path / "sys")


def test_distances(sysfs: Sysfs) -> None:
    gpu = sysfs.device(f"{SWITCH}/0000:12:00.0/0000:13:00.0", 0)
    same_switch = sysfs.device(f"{SWITCH}/0000:12:01.0/0000:14:00.0", 0)
    switch_below = sysfs.device(f"{SWITCH}/0000:12:02.0/0000:15:00.0/0000:16:00.0/0000:17:00.0", 0)
    other_port = sysfs.device("pci0000:10/0000:10:02.0/0000:20:00.0", 0)
    on_the_bridge = sysfs.device("pci0000:10/0000:10:1f.0", 0)
    other_bridge = sysfs.device("pci0000:30/0000:30:01.0/0000:31:00.0", 0)
    other_socket = sysfs.device("pci0000:80/0000:80:01.0/0000:81:00.0", 1)
    nowhere = sysfs.device("pci0000:90/0000:90:01.0/0000:91:00.0")
    words = {
        gpu: "X", same_switch: "PIX", switch_below: "PXB", other_port: "PHB", on_the_bridge: "PHB",
        other_bridge: "NODE", other_socket: "SYS", nowhere: "SYS",
    }  # fmt: skip
    for device, word in words.items():
        assert sysfs.word(gpu, device) == word, device.name
        assert sysfs.word(device, gpu) == word, device.name
    assert distance(None, gpu, sysfs.root) is None


def test_without_numa_another_bridge_is_in_the_same_node(sysfs: Sysfs) -> None:
    one = sysfs.device("pci0000:30/0000:30:01.0/0000:31:00.0")
    other = sysfs.device("pci0000:80/0000:80:01.0/0000:81:00.0")
    assert sysfs.word(one, other) == "SYS"
    (sysfs.root / "devices/system/node/node1").rmdir()
    assert sysfs.word(one, other) == "NODE"


@pytest.mark.parametrize(
    ("bus_id", "address"),
    [
        ("00000000:10:00.0", "0000:10:00.0"),
        ("0000:AF:00.0", "0000:af:00.0"),
        ("00010000:3B:00.0", "10000:3b:00.0"),
        ("07:00.0", "0000:07:00.0"),
    ],
)
def test_addresses_as_sysfs_writes_them(bus_id: str, address: str) -> None:
    assert normal(bus_id) == address


def test_ranges() -> None:
    assert ranges([]) is None
    assert ranges([3, 0, 1, 2, 8, 10, 11]) == "0-3,8,10-11"


def look(sysfs: Sysfs, links: Callable[[], Any], description: str = "l40sx2") -> Topology:
    with nvml_isolated(simulate=description) as nvml:
        return topology(nvml, sysfs=str(sysfs.root), links=links)


def test_network_devices_and_gpus(sysfs: Sysfs) -> None:
    """The simulated GPUs have the addresses 0000:10:00.0 and 0000:18:00.0."""
    sysfs.device("pci0000:0e/0000:0e:01.0/0000:0f:00.0/0000:0f:01.0/0000:10:00.0", 0)
    sysfs.device("pci0000:16/0000:16:01.0/0000:18:00.0", 1)
    both = sysfs.device("pci0000:0e/0000:0e:01.0/0000:0f:00.0/0000:0f:02.0/0000:12:00.0", 0)
    virtio = sysfs.device("pci0000:00/0000:00:03.0", 0) / "virtio2"
    virtio.mkdir()
    sysfs.interface("infiniband", "mlx5_0", both)
    sysfs.interface("net", "eth0", virtio)
    (sysfs.root / "class/net/lo").mkdir()
    found = look(
        sysfs,
        lambda: [("lo", None), ("eth0", "virtio2"), ("ens1", "0000:12:00.0"), ("gone0", "0000:77:00.0"), ("br0", None)],
    )
    assert found.errors == []
    near = [(nic.pci_bus_id, nic.infiniband, nic.interfaces, nic.numa_node, nic.name) for nic in found.nics]
    assert near == [
        ("0000:00:03.0", [], ["eth0"], 0, "eth0"),
        ("0000:12:00.0", ["mlx5_0"], ["ens1"], 0, "mlx5_0"),
    ]
    assert found.gpus_to_nics == [["NODE", "PIX"], ["SYS", "SYS"]]


def test_gpus_that_are_not_in_the_tree(sysfs: Sysfs) -> None:
    sysfs.device("pci0000:00/0000:00:03.0")
    found = look(sysfs, lambda: [("eth0", "0000:00:03.0")])
    assert found.gpus_to_nics == [[None], [None]]


@pytest.mark.parametrize("error", [OSError(93, "no netlink"), SandboxError("no pyroute2")])
def test_without_network_interfaces_there_is_the_rest(sysfs: Sysfs, error: Exception) -> None:
    sysfs.interface("infiniband", "mlx5_0", sysfs.device("pci0000:00/0000:00:03.0"))

    def links() -> Any:
        raise error

    found = look(sysfs, links)
    assert [nic.name for nic in found.nics] == ["mlx5_0"]
    assert [(failure.field, failure.type) for failure in found.errors] == [("network devices", type(error).__name__)]


def test_this_machines_interfaces() -> None:
    names = [name for name, _ in network_links()]
    assert sorted(names) == sorted(os.listdir("/sys/class/net"))


# ---- between GPUs


def test_simulated_gpus() -> None:
    with nvml_isolated(simulate="h100x2") as nvml:
        assert topology(nvml, here=False).gpus_to_gpus == [["X", "NV18"], ["NV18", "X"]]
    with nvml_isolated(simulate="l40sx4") as nvml:
        found = topology(nvml, here=False)
    assert found.gpus_to_gpus[0] == ["X", "PXB", "SYS", "SYS"]
    assert [(gpu.cpu_affinity, gpu.numa_affinity) for gpu in found.gpus] == [("0-63", "0")] * 2 + [("64-127", "1")] * 2
    with nvml_isolated(simulate="gb200x2") as nvml:
        assert [gpu.gpu_numa_node for gpu in topology(nvml, here=False).gpus] == [2, 10]


class Linked:
    """Two of three GPUs have three links to each other, of which one is down; the third has none."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml

    def _nvmlGetFunctionPointer(self, name: str) -> Any:
        return getattr(self, name, None) or self._nvml._nvmlGetFunctionPointer(name)

    def _index(self, handle: Any) -> int:
        return int(self._nvml.nvmlDeviceGetIndex(handle))

    def nvmlDeviceGetNvLinkState(self, handle: Any, link: Any, out: Any) -> int:
        if self._index(handle) == 2:
            return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
        if link.value > 2:
            return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        out._obj.value = link.value != 1
        return 0

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: Any, link: Any, out: Any) -> int:
        out._obj.value = 0
        return 0

    def nvmlDeviceGetNvLinkRemotePciInfo_v2(self, handle: Any, link: Any, out: Any) -> int:
        other = self._nvml.nvmlDeviceGetHandleByIndex(1 - self._index(handle))
        bus_id = self._nvml.nvmlDeviceGetPciInfo(other).busId.encode()
        ctypes.memmove(ctypes.addressof(out._obj) + 36, bus_id, len(bus_id))
        return 0


def test_links_from_gpu_to_gpu_are_counted() -> None:
    with nvml_isolated(simulate="l40sx3") as nvml:
        found = topology(Linked(nvml), here=False)
    assert found.gpus_to_gpus == [["X", "NV2", "SYS"], ["NV2", "X", "SYS"], ["SYS", "SYS", "X"]]


def test_a_lost_gpu_is_near_to_nothing() -> None:
    with nvml_isolated(simulate="l40sx3,lost=1") as nvml:
        found = topology(nvml, here=False)
    assert [gpu.error and gpu.error.code for gpu in found.gpus] == [None, 15, None]
    assert found.gpus_to_gpus == [["X", None, "SYS"], [None, "X", None], ["SYS", None, "X"]]


def test_simulated_gpus_are_near_to_each_other_alone(sysfs: Sysfs) -> None:
    sysfs.device("pci0000:00/0000:00:03.0")
    found = look(sysfs, lambda: [("eth0", "0000:00:03.0")])
    assert list(Matrix(None).problems(Found({"simulate": "l40sx2"}, found))) == [
        "how near simulated GPUs are to this machine's network devices is N/A: they have no place on its PCI"
    ]
    assert list(Matrix(None).problems(Found({"simulate": None}, found))) == []


def test_the_command() -> None:
    def run(*arguments: str) -> Any:
        return CliRunner().invoke(main, ["query", "--simulate", "h100x2,lost=1", "--topology", *arguments])

    result = run()
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split()[:2] == ["GPU0", "GPU1"]
    assert lines[1].split()[:3] == ["GPU0", "X", "N/A"]
    assert "GPU 1: cannot be queried: GPU is lost" in result.stderr
    report = json.loads(run("--json").stdout)
    assert report["gpus_to_gpus"][0] == ["X", None]
    assert [nic["pci_bus_id"] for nic in report["nics"]] == sorted(nic["pci_bus_id"] for nic in report["nics"])
