# SPDX-License-Identifier: Apache-2.0
"""The nodes of a /dev held against what the driver says."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from nvsandbox import driverfacts, hostnodes

if TYPE_CHECKING:
    from .conftest import Machine


def survey(machine: Machine) -> hostnodes.Survey:
    return hostnodes.survey(str(machine.dev), str(machine.proc), others=[str(machine.driver_dev)])


def found(machine: Machine) -> dict[str, list[str]]:
    """Path to the ids of what is the matter."""
    return {node.path: [finding.id for finding in node.findings] for node in survey(machine).nodes}


def test_a_host_with_its_driver_is_in_order(machine: Machine) -> None:
    machine.driver(0, 1)
    machine.usual_nodes(0, 1)
    machine.node("nvidia-modeset", 195, 254, link=True)
    machine.node("nvidia-uvm", 511, 0, link=True)
    machine.node("nvidia-uvm-tools", 511, 1, link=True)
    machine.capability("mig/config", 1, 0o400)
    machine.node("nvidia-caps/nvidia-cap1", 510, 1, mode=0o400, link=True)
    report = survey(machine)
    assert (report.placement, report.dev_root, report.missing) == ("host", None, ())
    assert [node.path for node in report.nodes if node.findings] == []
    order = [
        "nvidia0",
        "nvidia1",
        "nvidia-caps/nvidia-cap1",
        "nvidia-modeset",
        "nvidia-uvm",
        "nvidia-uvm-tools",
        "nvidiactl",
    ]
    assert [node.path for node in report.nodes][:7] == order
    assert len(report.nodes) == 14
    assert report.driver.version == "550.54.15"


def test_without_a_driver_every_node_is_a_left_over(machine: Machine) -> None:
    machine.usual_nodes(0)
    assert found(machine) == {
        "nvidia0": ["node.no-driver"],
        "nvidiactl": ["node.no-driver"],
        "char/195:0": ["link.to-unwanted-node"],
        "char/195:255": ["link.to-unwanted-node"],
    }
    assert all(node.unwanted for node in survey(machine).nodes)


def test_a_driver_in_a_container_makes_the_hosts_nodes_copies(machine: Machine) -> None:
    machine.container_driver(0)
    machine.usual_nodes(0)
    report = survey(machine)
    assert (report.placement, report.dev_root) == ("container", str(machine.driver_dev))
    assert found(machine)["nvidia0"] == ["node.driver-in-container"]
    assert all(node.unwanted for node in report.nodes)


def installed(machine: Machine, version: str) -> None:
    """NVML in the tree that the /dev is in."""
    folder = machine.folder / "usr" / "lib64"
    folder.mkdir(parents=True)
    (folder / f"libnvidia-ml.so.{version}").write_text("")
    (folder / "libnvidia-ml.so.1").symlink_to(f"libnvidia-ml.so.{version}")


def test_what_a_container_left_makes_no_copies_of_a_host_drivers_nodes(machine: Machine) -> None:
    """They would be removed under a driver that needs them."""
    machine.container_driver(0)
    machine.usual_nodes(0)
    installed(machine, "550.54.15")
    report = survey(machine)
    assert (report.placement, report.dev_root) == ("host", None)
    assert not any(node.unwanted for node in report.nodes)
    assert report.doubt is not None
    assert "libnvidia-ml.so.550.54.15 is the loaded driver's" in report.doubt
    assert f"--dev-root {machine.driver_dev}" in report.doubt
    # Whoever says it knows it.
    told = hostnodes.survey(str(machine.dev), str(machine.proc), dev_root=str(machine.driver_dev))
    assert (told.placement, told.doubt) == ("container", None)


def test_libraries_of_another_version_are_not_the_loaded_drivers(machine: Machine) -> None:
    machine.container_driver(0)
    machine.usual_nodes(0)
    installed(machine, "535.261.03")
    report = survey(machine)
    assert (report.placement, report.doubt) == ("container", None)


def test_links_to_the_nodes_of_a_driver_in_a_container_are_in_order(machine: Machine) -> None:
    machine.container_driver(0)
    (machine.dev / "char" / "195:0").symlink_to(machine.driver_dev / "nvidia0")
    assert found(machine) == {"char/195:0": []}


def test_the_same_dev_under_another_name_is_no_container(machine: Machine) -> None:
    machine.driver(0)
    machine.usual_nodes(0)
    machine.driver_dev.rmdir()
    machine.driver_dev.symlink_to(machine.dev)
    assert survey(machine).placement == "host"


@pytest.mark.parametrize(
    ("name", "major", "minor", "words"),
    [
        ("nvidia0", 195, 1, "it is 195:1 and should be 195:0"),
        ("nvidiactl", 195, 0, "should be 195:255"),
        ("nvidia-uvm", 509, 0, "it is 509:0 and should be 511:0"),
        ("nvidia-uvm", 13, 0, "13 is input's"),
        ("nvidia-caps/nvidia-cap1", 510, 2, "should be 510:1"),
    ],
)
def test_wrong_numbers(machine: Machine, name: str, major: int, minor: int, words: str) -> None:
    machine.driver(0, 1)
    machine.node(name, major, minor)
    [node] = survey(machine).nodes
    [finding] = [finding for finding in node.findings if finding.id == "node.wrong-number"]
    assert words in finding.what
    assert node.unwanted


def test_what_is_of_another_driver_is_not_nvidias(machine: Machine) -> None:
    machine.driver(0)
    machine.node("nvidia0", 1, 3)  # a copy of /dev/null
    machine.node("nvidia-uvm", 509, 0)  # a number that nobody has
    report = survey(machine)
    assert {node.path: hostnodes.is_nvidias(node, report.driver) for node in report.nodes} == {
        "nvidia-uvm": True,
        "nvidia0": False,
    }


def test_modes_and_owners(machine: Machine) -> None:
    machine.driver(0)
    machine.node("nvidiactl", 195, 255, mode=0o600, link=True)
    os.chown(machine.node("nvidia0", 195, 0, link=True), 12, 34)
    machine.capability("mig/monitor", 2, 0o444)
    machine.node("nvidia-caps/nvidia-cap2", 510, 2, mode=0o400, link=True)
    findings = {node.path: node.findings for node in survey(machine).nodes if node.findings}
    assert {path: [finding.id for finding in of] for path, of in findings.items()} == {
        "nvidiactl": ["node.wrong-mode"],
        "nvidia0": ["node.wrong-owner"],
        "nvidia-caps/nvidia-cap2": ["node.wrong-mode"],
    }
    assert findings["nvidiactl"][0].what == "its mode is 0600, the driver wants 0666"
    assert "12:34" in findings["nvidia0"][0].what
    assert not any(node.unwanted for node in survey(machine).nodes)


def test_modes_are_the_administrators_where_the_driver_may_not_set_them(machine: Machine) -> None:
    machine.driver(0, params="ModifyDeviceFiles: 0\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n")
    machine.node("nvidia0", 195, 0, mode=0o600, link=True)
    report = survey(machine)
    assert [node.findings for node in report.nodes] == [(), ()]
    assert [(finding.id, finding.severity) for finding in report.missing] == [("node.missing", "warning")]


def test_a_node_whose_gpu_is_gone(machine: Machine) -> None:
    machine.driver(0)
    machine.usual_nodes(0, 3)
    assert found(machine)["nvidia3"] == ["node.no-gpu"]
    assert found(machine)["nvidia0"] == []
    # It is the host's, which uses it again when the GPU is back.
    assert not any(node.unwanted for node in survey(machine).nodes)


def test_a_node_whose_module_is_not_loaded(machine: Machine) -> None:
    machine.driver(0, majors={"nvidia": 195})
    machine.node("nvidia-uvm", 511, 0)
    assert found(machine) == {"nvidia-uvm": ["node.no-module"]}
    assert not any(node.unwanted for node in survey(machine).nodes)


def test_links_out_of_a_dev_that_is_mounted_elsewhere(machine: Machine) -> None:
    """As a container sees the host's: their ends count from the root that is mounted there, and what is not mounted
    cannot be judged."""
    machine.container_driver(0)
    machine.node("nvidia0", 195, 0, dev=str(machine.driver_dev.parent))
    char = machine.dev / "char"
    (char / "195:0").symlink_to("/run/driver/nvidia0")
    (char / "195:1").symlink_to("/run/driver/nvidia0")
    (char / "195:2").symlink_to("/elsewhere/dev/nvidia2")
    assert found(machine) == {"char/195:0": [], "char/195:1": ["link.stale"], "char/195:2": []}


def test_odd_things_in_a_nodes_place(machine: Machine) -> None:
    machine.driver(0)
    (machine.dev / "nvidia0").mkdir()
    os.mkfifo(machine.dev / "nvidiactl")
    (machine.dev / "nvidia-uvm").symlink_to("nowhere")
    (machine.dev / "nvidia-modeset").write_text("")
    (machine.dev / "nvidia-caps").symlink_to("/tmp")
    (machine.dev / "char" / "195:0").write_text("")
    report = survey(machine)
    assert {node.path: (node.kind, [finding.id for finding in node.findings]) for node in report.nodes} == {
        "nvidia0": ("folder", ["node.wrong-type"]),
        "nvidiactl": ("fifo", ["node.wrong-type"]),
        "nvidia-uvm": ("link", ["node.wrong-type"]),
        "nvidia-modeset": ("file", ["node.wrong-type"]),
        "nvidia-caps": ("link", ["node.wrong-type"]),
        "char/195:0": ("file", ["link.wrong-type"]),
    }
    assert not any(hostnodes.is_nvidias(node, report.driver) for node in report.nodes)


def test_links_by_number(machine: Machine) -> None:
    machine.driver(0, 1)
    machine.usual_nodes(0, 1, link=False)
    char = machine.dev / "char"
    (char / "195:0").symlink_to("../nvidia1")
    (char / "195:1").symlink_to("../nvidia7")
    (char / "195:255").symlink_to("../nvidiactl")
    (char / "509:0").symlink_to("../nvidia-uvm")
    (char / "1:3").symlink_to("../null")
    (char / "195:9").symlink_to("../..")
    assert {path: ids for path, ids in found(machine).items() if path.startswith("char/")} == {
        "char/195:0": ["link.stale"],
        "char/195:1": ["link.dangling"],
        "char/195:9": ["link.dangling"],
        "char/195:255": [],
        "char/509:0": ["link.dangling"],
    }


def test_what_is_not_there(machine: Machine) -> None:
    machine.driver(0)
    machine.node("nvidia0", 195, 0)
    assert [(finding.id, finding.what) for finding in survey(machine).missing] == [
        ("node.missing", f"{machine.dev}/nvidiactl does not exist"),
        ("link.missing", f"{machine.dev}/char/195:0 for nvidia0 does not exist"),
    ]


def test_names_that_nobody_knows_are_listed_and_left(machine: Machine) -> None:
    machine.driver(0)
    machine.node("nvidia-of-tomorrow", 195, 7)
    machine.node("nvidia0x", 195, 7)
    (machine.dev / os.fsdecode(b"nvidia-\xff\n")).write_text("")
    report = survey(machine)
    assert {finding.id for node in report.nodes for finding in node.findings} == {"node.unknown-name"}
    assert len(report.nodes) == 3
    assert not any(hostnodes.is_nvidias(node, report.driver) for node in report.nodes)


def test_thousands_of_channels(machine: Machine) -> None:
    machine.driver(0, majors={"nvidia": 195, "nvidia-caps-imex-channels": 508})
    for minor in range(2048):
        machine.node(f"nvidia-caps-imex-channels/channel{minor}", 508, minor, link=True)
    report = survey(machine)
    assert len(report.nodes) == 4096
    assert not any(node.findings for node in report.nodes)


def test_a_proc_without_devices_is_an_error(machine: Machine) -> None:
    (machine.proc / "devices").unlink()
    with pytest.raises(FileNotFoundError):
        survey(machine)


def test_what_cannot_be_read_is_said(machine: Machine) -> None:
    machine.driver(0)
    params = machine.proc / "driver" / "nvidia" / "params"
    params.unlink()
    params.mkdir()
    facts = driverfacts.read(str(machine.proc))
    assert facts.mode is None
    assert facts.unread == (f"{params}: Is a directory",)
