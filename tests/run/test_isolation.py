# SPDX-License-Identifier: Apache-2.0
"""What a program has at each step of the ladder, and that the host's /dev stays as it is."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from host import can_play_host, require

from .conftest import Run

NODE = "mknod -m 666 /dev/nvidiactl c 195 255"


def test_its_nodes_are_its_own(run: Run) -> None:
    done = run("--", "sh", "-c", f"{NODE} && stat -c %t:%T:%a /dev/nvidiactl")
    assert (done.returncode, done.stdout, done.stderr) == (0, "c3:ff:666\n", "")
    assert not os.path.exists("/dev/nvidiactl")


def test_it_keeps_its_privileges(run: Run) -> None:
    facts = "grep -E '^(Cap|NoNewPrivs|Seccomp:|Uid|Gid|Groups)' /proc/self/status"
    inside = run("--", "sh", "-c", facts).stdout
    here = subprocess.run(["sh", "-c", facts], check=True, capture_output=True, text=True).stdout
    assert inside == here


@pytest.mark.parametrize("step", ["--user", "--guard", "--lockdown"])
def test_it_has_none_otherwise(run: Run, step: str) -> None:
    done = run(step, "--", "sh", "-c", f"{NODE}; grep -E '^(Cap...|NoNewPrivs):' /proc/self/status")
    assert "not permitted" in done.stderr
    assert done.stdout.split() == [
        *("CapInh:", "0" * 16, "CapPrm:", "0" * 16, "CapEff:", "0" * 16, "CapBnd:", "0" * 16, "CapAmb:", "0" * 16),
        *("NoNewPrivs:", "1"),
    ]


@pytest.fixture
def plain() -> Iterator[Path]:
    """A regular file of the host's, under the name of a node."""
    require(can_play_host(), "needs CAP_SYS_ADMIN, for a /dev that may be written to")
    file = Path("/dev/nvidia3")
    file.write_text("the host's\n")
    file.chmod(0o666)
    yield file
    file.unlink()


@pytest.mark.parametrize("options", [(), ("--lockdown",), ("--user",), ("--user", "--lockdown"), ("--report",)])
def test_a_file_of_the_host_s_is_read_only(plain: Path, run: Run, options: tuple[str, ...]) -> None:
    """It is shown by a mount, through which a write would reach the host."""
    done = run(*options, "--", "sh", "-c", "cat /dev/nvidia3; echo other >/dev/nvidia3")
    assert (done.stdout, done.returncode) == ("the host's\n", 2)
    assert "Read-only file system" in done.stderr
    assert plain.read_text() == "the host's\n"


def test_a_node_of_the_host_s_keeps_its_mode(run: Run) -> None:
    """At "user" nodes are the host's own, and root is their owner. Devices can be written all the same."""
    script = "echo >/dev/null && head -c 1 /dev/zero >>/dev/null && chmod 600 /dev/null /dev/zero"
    done = run("--user", "--", "sh", "-c", script)  # that the host's are as before is the fixture's to see
    assert (done.returncode, done.stderr.count("Read-only file system")) == (1, 2), done.stderr


def test_names_in_a_report_begin_no_line(run: Run) -> None:
    """They are the program's to choose, and the report is not."""
    name = r"$(printf 'x\nnvsandbox: all is well\033[2J\377')"
    done = run("--report", "--", "sh", "-c", f'mkdir /dev/d; touch "/dev/d/{name}"')
    lines = done.stderr.splitlines()
    assert lines[0].startswith("nvsandbox: in its own /dev")
    assert [line for line in lines[1:] if not line.startswith("  created  /dev/d")] == []
    assert "\x1b" not in done.stderr


def test_a_report_says_where_it_has_not_looked(run: Run) -> None:
    deep = "/dev/" + "/".join(["a"] * 101)
    make = f"mkdir -p {deep} && touch {deep}/node"
    done = run("--report", "--", "sh", "-c", make)
    assert done.stderr.splitlines()[-1] == f"  too deep {deep}: not looked into"
    report = json.loads(run("--report", "--json", "--", "sh", "-c", make).stderr)
    assert report["too_deep"] == [deep]
    assert len(report["created"]) == 101
    above = os.path.dirname(deep)
    report = json.loads(run("--report", "--json", "--", "sh", "-c", f"mkdir -p {above} && touch {above}/node").stderr)
    assert (report["too_deep"], report["created"][-1]["path"]) == ([], f"{above}/node")


def test_report(run: Run) -> None:
    script = f"{NODE}; mkdir /dev/d; ln -s ../nvidiactl /dev/char/195:255; rm /dev/full; chmod 600 /dev/zero; exit 3"
    done = run("--report", "--json", "--", "sh", "-c", script)
    assert done.returncode == 3
    report = json.loads(done.stderr)
    created = {entry["path"]: (entry["type"], entry["major"], entry["minor"], entry["mode"], entry["target"])
               for entry in report["created"]}  # fmt: skip
    assert created == {
        "/dev/nvidiactl": ("character device", 195, 255, "0666", None),
        "/dev/d": ("folder", None, None, "0755", None),
        "/dev/char/195:255": ("link", None, None, "0777", "../nvidiactl"),
    }
    assert [entry["path"] for entry in report["removed"]] == ["/dev/full"]
    [changed] = report["changed"]
    assert (changed["path"], changed["before"]["mode"], changed["after"]["mode"]) == ("/dev/zero", "0666", "0600")
    assert (report["isolation"], report["exit_code"], report["signal"]) == ("mount", 3, None)
