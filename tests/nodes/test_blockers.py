# SPDX-License-Identifier: Apache-2.0
"""Which nodes make cri-o refuse privileged containers, and for which CDI device or device plugin."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nvsandbox import blockers, hostnodes

if TYPE_CHECKING:
    from .conftest import Machine

SPEC = """\
cdiVersion: 0.5.0
kind: nvidia.com/gpu
containerEdits:
  deviceNodes:
  - path: /dev/nvidiactl
    hostPath: /run/driver/dev/nvidiactl
devices:
- name: "0"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
      hostPath: /run/driver/dev/nvidia0
- name: "1"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia1
"""


def look(machine: Machine, *directories: Path) -> tuple[dict[str, str], list[str]]:
    """Path to the words of the finding, and what was not read."""
    survey = hostnodes.survey(str(machine.dev), str(machine.proc), others=[str(machine.driver_dev)])
    survey, unread = blockers.add(survey, map(str, directories))
    found = {node.path: f.what for node in survey.nodes for f in node.findings if f.id == blockers.ID}
    return found, unread


def severities(machine: Machine, *directories: Path) -> set[str]:
    survey = hostnodes.survey(str(machine.dev), str(machine.proc), others=[str(machine.driver_dev)])
    survey, _ = blockers.add(survey, map(str, directories))
    return {f.severity for node in survey.nodes for f in node.findings if f.id == blockers.ID}


def test_a_cdi_device_is_named(machine: Machine, tmp_path: Path) -> None:
    machine.usual_nodes(0, 1)
    (tmp_path / "nvidia.yaml").write_text(SPEC)
    found, unread = look(machine, tmp_path, tmp_path / "none")
    assert unread == []
    assert set(found) == {"nvidiactl", "nvidia0"}  # nvidia1 is the host's own
    file = tmp_path / "nvidia.yaml"
    words = f"CDI device nvidia.com/gpu=0 in {file} hands out /run/driver/dev/nvidia0 as /dev/nvidia0"
    assert words in found["nvidia0"]
    assert "CDI device nvidia.com/gpu in" in found["nvidiactl"]


def test_json_specs_and_things_that_are_not_nodes(machine: Machine, tmp_path: Path) -> None:
    (machine.dev / "nvidia0").mkdir()
    (machine.dev / "nvidia1").symlink_to("nowhere")  # exists for nobody who follows links
    nodes = [{"path": f"/dev/nvidia{i}", "hostPath": f"/root/dev/nvidia{i}"} for i in (0, 1, 2)]
    spec = {"cdiVersion": "0.6.0", "kind": "k8s.gpu.nvidia.com/claim",
            "devices": [{"name": "gpu-1", "containerEdits": {"deviceNodes": nodes}}]}  # fmt: skip
    (tmp_path / "claim.json").write_text(json.dumps(spec))
    found, _ = look(machine, tmp_path)
    assert set(found) == {"nvidia0"}
    assert "k8s.gpu.nvidia.com/claim=gpu-1" in found["nvidia0"]


def test_a_device_plugin_is_named_where_the_driver_is_in_a_container(machine: Machine) -> None:
    machine.container_driver(0)
    machine.usual_nodes(0)
    machine.node("nvidia-uvm", 511, 0)  # which the driver's container does not have
    found, _ = look(machine)
    assert set(found) == {"nvidiactl", "nvidia0"}
    words = f"if a device plugin hands out {machine.driver_dev}/nvidia0 as /dev/nvidia0, which was not looked for"
    assert words in found["nvidia0"]


def test_what_was_not_looked_for_is_no_error(machine: Machine, tmp_path: Path) -> None:
    """Neither cri-o nor a device plugin is; a CDI spec is read."""
    machine.container_driver(0)
    machine.usual_nodes(0)
    assert severities(machine) == {"warning"}
    found, _ = look(machine)
    assert all(words.startswith("where cri-o runs the containers, ") for words in found.values())
    (tmp_path / "nvidia.yaml").write_text(SPEC)
    assert severities(machine, tmp_path) == {"error"}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.json", "{", "Expecting property name"),
        ("a.yaml", "kind: [", "while parsing"),
        ("a.yaml", "just text", "an object with a kind was expected"),
        ("a.yaml", "- 1", "an object with a kind was expected"),
        ("a.json", '{"kind": "a/b", "devices": ' + "[" * 5000 + "]" * 5000 + "}", "recursion"),
        ("a.json", "\xff\xfe\x00", "codec"),
    ],
)
def test_specs_that_cannot_be_read_are_said(
    machine: Machine, tmp_path: Path, name: str, content: str, words: str
) -> None:
    machine.usual_nodes(0)
    (tmp_path / name).write_bytes(content.encode("latin-1"))
    (tmp_path / "b.yaml").write_text(SPEC)
    found, unread = look(machine, tmp_path)
    assert len(unread) == 1
    assert unread[0].startswith(f"{tmp_path}/{name}: ")
    assert words in unread[0]
    assert "nvidia0" in found


ODD_NODES = [None, 3, {}, {"path": 4}, {"path": "/dev/nvidia0", "hostPath": 7}]


@pytest.mark.parametrize("edits", [None, [], "x", {"deviceNodes": {}}, {"deviceNodes": ODD_NODES}])
def test_odd_specs_are_no_trouble(machine: Machine, tmp_path: Path, edits: Any) -> None:
    machine.usual_nodes(0)
    spec = {"kind": "a/b", "containerEdits": edits, "devices": [{"name": "0", "containerEdits": edits}, None]}
    (tmp_path / "a.json").write_text(json.dumps(spec))
    assert look(machine, tmp_path) == ({}, [])


BOMB = """\
kind: nvidia.com/gpu
node: &node {path: /dev/nvidia0, hostPath: /elsewhere}
nodes: &nodes [%s]
device: &device {name: "0", containerEdits: {deviceNodes: *nodes}}
devices: [%s]
"""
BOMB %= (", ".join(["*node"] * 30_000), ", ".join(["*device"] * 30_000))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BOMB, "more than 100000 device nodes"),
        ("- " * 1_000_000, "x.yaml"),
        ("[" * 1_000_000, "x.yaml"),
        ("&all [*all]", "x.yaml"),
        ("#" * (5 << 20), "larger than 4 MiB"),
    ],
    ids=["aliases", "deep", "deep-flow", "in-itself", "large"],
)
def test_a_spec_that_is_an_attack_is_said(machine: Machine, tmp_path: Path, text: str, words: str) -> None:
    machine.usual_nodes(0)
    (tmp_path / "x.yaml").write_text(text)
    _, (problem,) = look(machine, tmp_path)
    assert words in problem
    assert len(problem) < 1000


ODD_VALUES = ["!!timestamp soon", "!!int ''", "!!bool maybe", ":".join(["1"] * 300) + ".5", "null"]


@pytest.mark.parametrize("value", ODD_VALUES)
def test_values_that_are_not_what_they_say_are_text(machine: Machine, tmp_path: Path, value: str) -> None:
    machine.usual_nodes(0)
    node = "{path: /dev/nvidia0, hostPath: /elsewhere}"
    text = f"kind: nvidia.com/gpu\nother: {value}\ncontainerEdits:\n  deviceNodes: [{node}]\n"
    (tmp_path / "x.yaml").write_text(text)
    found, unread = look(machine, tmp_path)
    assert set(found) == {"nvidia0"}
    assert unread == []


@pytest.mark.parametrize("nothing", ["null", "~", "", "''"])
def test_no_host_path_is_the_same_path(machine: Machine, tmp_path: Path, nothing: str) -> None:
    machine.usual_nodes(0)
    text = f"kind: x\ncontainerEdits:\n  deviceNodes:\n  - path: /dev/nvidia0\n    hostPath: {nothing}\n"
    (tmp_path / "x.yaml").write_text(text)
    assert look(machine, tmp_path) == ({}, [])


def test_what_is_no_file_is_not_opened(machine: Machine, tmp_path: Path) -> None:
    """A FIFO would be waited for, and a device node can load a module."""
    machine.usual_nodes(0)
    os.mkfifo(tmp_path / "a.json")
    (tmp_path / "b.json").symlink_to(machine.dev / "nvidiactl")
    _, unread = look(machine, tmp_path)
    assert [problem.partition(": ")[2] for problem in unread] == ["a CDI spec is a file, and this is none"] * 2
