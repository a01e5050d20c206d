# SPDX-License-Identifier: Apache-2.0
"""Each finding, brought about in a machine that is healthy but for one thing."""

from __future__ import annotations

import errno
import os
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from nvsandbox import doctor
from nvsandbox.doctor import CATALOGUE, nodes
from nvsandbox.doctor.findings import PAGE
from nvsandbox.errors import SandboxError

from . import driver_cases
from .cases import CASES, found_in

ROOT = Path(__file__).resolve().parents[2]
assert driver_cases  # imported for what it adds to CASES


def test_a_healthy_machine_has_nothing_bad(machine: Any) -> None:
    machine.changed["distributions"] = {"python-prctl": "1", "pyroute2": "1"}
    found = found_in(machine)
    assert {finding.severity for finding in found} == {"ok"}, found
    ids = {finding.id for finding in found}
    assert ids >= {"driver.loaded", "gpu.all-driven", "library.found", "nodes.clean", "package.whole", "system.kernel"}


@pytest.mark.parametrize("id_", CATALOGUE)
def test_each_finding_can_be_brought_about(id_: str, machine: Any) -> None:
    returned = CASES[id_](machine)
    found = found_in(machine) if returned is None else returned
    mine = [finding for finding in found if finding.id == id_]
    assert mine, found
    for finding in mine:
        assert finding.what
        assert "\n" not in finding.what + finding.do
        assert finding.severity == CATALOGUE[id_]
        assert finding.do or finding.severity not in ("warning", "error"), "nothing is said of what to do"
        assert set(finding.as_json()) == {"id", "severity", "about", "what", "do", "facts", "documentation"}


def test_an_error_without_words_is_told_by_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    from nvsandbox.doctor import Places, query
    from nvsandbox.options import Options

    def fails(**options: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(query, "nvml_isolated", fails)
    places = Places(options=Options(simulate="h100"), live=True)
    [_, failed] = doctor.carry_out("NVML", lambda: query.query(places, 60))
    assert (failed.id, failed.what) == ("query.failed", "NVML cannot be asked in the sandbox: MemoryError")


def test_each_finding_has_its_case_and_its_section() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    assert dict(re.findall(r"^### (\S+)\n\n\*(\w+)\.\*", text, re.M)) == CATALOGUE
    assert set(CASES) == set(CATALOGUE)


def test_what_explains_most_is_what_to_do_first(machine: Any) -> None:
    machine.no_driver()
    machine.no_library()
    machine.node("dev/nvidiactl", 195, 255)
    report = doctor.examine(machine.places())
    assert report.severity == "error"
    said = [line.partition(":")[0] for line in report.verdict.first]
    assert said == ["driver.not-loaded", "nodes.unwanted"]


def test_only_what_can_be_removed_is_said_to_be(machine: Any) -> None:
    machine.no_driver()
    machine.node("dev/nvidiactl", 195, 255)
    machine.link("dev/char/195:255", "../nvidiactl")
    [finding] = [finding for finding in found_in(machine) if finding.id == "nodes.unwanted"]
    assert finding.what.startswith("1 node and 1 link of NVIDIA's should not be in ")
    assert finding.do.endswith("; nvsandbox nodes --clean removes them")
    machine.link("dev/char/195:7", "../gone")
    [finding] = [finding for finding in found_in(machine) if finding.id == "nodes.unwanted"]
    assert finding.what.startswith("1 node and 2 links of NVIDIA's")
    assert finding.do.endswith("; nvsandbox nodes --clean removes all but 1 of them")


def test_a_container_may_have_some_of_the_gpus(machine: Any) -> None:
    """The driver lists all of them there, and forbids NVML to make the others' nodes."""
    machine.file("proc/driver/nvidia/params", "ModifyDeviceFiles: 0\n")
    machine.gpu("0000:66:00.0", 1)
    machine.node("dev/nvidiactl", 195, 255)
    machine.node("dev/nvidia1", 195, 1)
    assert "nodes.wrong" in {finding.id for finding in found_in(machine)}
    machine.changed["environment"] = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert "nodes.wrong" not in {finding.id for finding in found_in(machine)}


def test_no_node_is_opened_without_a_driver(machine: Any) -> None:
    """The kernel would run modprobe."""
    machine.no_driver()
    machine.node("dev/nvidiactl", 195, 255)
    assert not list(nodes.openable(machine.places(live=True)))


def test_opening_says_which_error(tmp_path: Path) -> None:
    """Of a socket it is ENXIO, as of a node that no driver serves."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        (tmp_path / "file").touch()
        paths = [str(tmp_path / name) for name in ("socket", "file", "none")]
        results, hung = nodes.try_to_open(paths)
    assert results == dict(zip(paths, (errno.ENXIO, 0, errno.ENOENT), strict=True))
    assert hung is None


@pytest.mark.parametrize(
    ("spoilt", "unexamined"),
    [
        ("proc/devices", True),
        ("proc/driver", True),
        ("sys/bus", True),
        ("dev", True),
        ("proc/self/cgroup", True),
        ("usr", False),
    ],
)
def test_what_cannot_be_read_is_a_finding(machine: Any, spoilt: str, unexamined: bool) -> None:
    """A link to itself takes its place, which not even root can read."""
    os.rename(machine.folder / spoilt, machine.folder / "away")
    machine.link(spoilt, os.path.basename(spoilt))
    found = found_in(machine)
    ids = {finding.id for finding in found}
    assert ids >= {"system.kernel", "package.whole"}
    assert ("doctor.unexamined" in ids) == unexamined
    assert unexamined or "library.not-found" in ids


def test_without_proc_nothing_is_said(machine: Any) -> None:
    os.rename(machine.folder / "proc", machine.folder / "away")
    with pytest.raises(SandboxError, match="without /proc"):
        doctor.examine(machine.places())
