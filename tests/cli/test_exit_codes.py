# SPDX-License-Identifier: Apache-2.0
"""Every exit status of every command, as the table in docs/cli.md has them."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from host import require

from nvsandbox.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


class Place:
    """Where commands run: the stand-in for the host, with folders that play a machine's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dev = folder / "dev"
        self.proc = folder / "proc"
        self.dev.mkdir()
        self.proc.mkdir()
        (self.proc / "devices").write_text("Character devices:\n  1 mem\n\nBlock devices:\n259 blkext\n")

    def start(self, *arguments: str, **more: object) -> subprocess.Popen[str]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("NVSANDBOX_", "NVIDIA_"))}
        return subprocess.Popen(
            [sys.executable, "-m", "nvsandbox", *arguments],
            cwd="/",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **more,  # type: ignore[call-overload]
        )

    def status(self, *arguments: str, **more: object) -> int:
        process = self.start(*arguments, **more)
        out, err = process.communicate(timeout=60)
        assert "Traceback" not in err, err
        for text in (out, err):
            if text.startswith('{"error"') or text.startswith('{\n  "error"'):
                assert json.loads(text)["error"]["exit_code"] == process.returncode
        return process.returncode

    def nodes(self, *arguments: str) -> int:
        none = str(self.folder / "no-cdi")
        return self.status("nodes", "--dev", str(self.dev), "--proc", str(self.proc), "--cdi-dir", none, *arguments)

    def node(self) -> None:
        os.mknod(self.dev / "nvidiactl", stat.S_IFCHR | 0o666, os.makedev(195, 255))

    def file(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    require(os.geteuid() == 0, "needs root, to make device nodes")
    return Place(tmp_path)


def watched(place: Place, number: signal.Signals) -> int:
    process = place.start("query", "--simulate", "h100", "--watch", "0.1", "--json")
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(number)
    process.communicate(timeout=60)
    return process.returncode


def unprivileged() -> None:
    """U16: root without its capabilities from the next exec on: another user may not be able to run this Python."""
    libc = ctypes.CDLL(None, use_errno=True)
    for number in range(int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1):
        if libc.prctl(24, number, 0, 0, 0) != 0:  # PR_CAPBSET_DROP
            raise OSError(ctypes.get_errno(), f"capability {number} cannot be given up")


CASES: dict[tuple[str, str], Callable[[Place], int | list[int]]] = {
    ("query", "0"): lambda place: place.status("query", "--simulate", "h100"),
    ("query", "1"): lambda place: place.status("query", "--library", "/nowhere/libnvidia-ml.so.1", "--json"),
    ("query", "2"): lambda place: [
        place.status("query", "--timeout", "soon"),
        place.status("query", "--query-gpu=nonsense", "--format=csv", "--simulate", "h100"),
        place.status("query", "--no-such-option"),
        place.status("query", "surplus"),
    ],
    ("query", "3"): lambda place: place.status(
        "query", "--simulate", "h100", "--isolation", "user", "--json", preexec_fn=no_user_namespaces
    ),
    ("query", "128+N"): lambda place: [
        watched(place, number) + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ],
    ("doctor", "0"): lambda place: place.status("doctor", "--simulate", "h100", "--json"),
    ("doctor", "1"): lambda place: place.status("doctor", "--json"),
    ("doctor", "2"): lambda place: place.status("doctor", "--wait", "-1"),
    ("doctor", "3"): lambda place: place.status("doctor", "--json", preexec_fn=no_proc),
    ("nodes", "0"): lambda place: place.nodes(),
    ("nodes", "1"): lambda place: (place.node(), [place.nodes("--json"), place.nodes("--clean")])[1],
    ("nodes", "2"): lambda place: place.nodes("--yes"),
    ("nodes", "3"): lambda place: [
        place.nodes("--undo", "/nowhere/file", "--json"),
        place.status("nodes", "--dev", "/nowhere"),
    ],
    ("run", "0"): lambda place: place.status("run", "--", "true"),
    ("run", "1"): lambda place: place.status("run", "--", "false"),
    ("run", "2"): lambda place: place.status("run", "--", "sh", "-c", "exit 2"),
    ("run", "3"): lambda place: place.status("run", "--report", "--", "sh", "-c", "exit 3"),
    ("run", "125"): lambda place: [
        place.status("run", "--json"),
        place.status("run", "--no-such-option", "--", "true"),
        place.status("run", "--isolation", "mount", "--json", "--", "true", preexec_fn=unprivileged),
    ],
    ("run", "126"): lambda place: place.status("run", "--json", "--", place.file("plain", "")),
    ("run", "127"): lambda place: place.status("run", "--json", "--", "no-such-program"),
    ("run", "128+N"): lambda place: place.status("run", "--report", "--", "sh", "-c", "kill -9 $$") - 128 - 9,
    ("audit", "0"): lambda place: place.status("audit", "--json", "--", "true"),
    ("audit", "1"): lambda place: place.status("audit", "--", "mknod", "/dev/nvidiactl", "c", "195", "255"),
    ("audit", "125"): lambda place: [
        place.status("audit"),
        place.status("audit", "--no-such-option"),
        place.status("audit", "--for", "long", "--", "true"),
        place.status("audit", "--json", "--", "true", preexec_fn=unprivileged),
    ],
    ("audit", "126"): lambda place: place.status("audit", "--json", "--", place.file("plain", "")),
    ("audit", "127"): lambda place: place.status("audit", "--json", "--", "no-such-program"),
    ("completion", "0"): lambda place: place.status("completion", "bash"),
    ("completion", "2"): lambda place: place.status("completion", "tcsh"),
}


def no_user_namespaces() -> None:
    import host

    host.refuse_user_namespaces()


def no_proc() -> None:
    import host

    host.unshare(host.CLONE_NEWNS)
    host.mount("none", "/", flags=host.MS_REC | host.MS_PRIVATE)
    host.mount("none", "/proc", "tmpfs")


def table() -> dict[tuple[str, str], str]:
    """What the page says of each command and status."""
    lines = PAGE.read_text().split("\n| | `query`", 1)[1].splitlines()
    commands = re.findall(r"`(\w+)`", "`query`" + lines[0])
    cells = {}
    for line in lines[2:]:
        if not line.startswith("|"):
            break
        status, *told = (cell.strip() for cell in line.strip("|").split(" | "))
        assert len(told) == len(commands), line
        cells |= {(command, status): text for command, text in zip(commands, told, strict=True)}
    return cells


def test_each_cell_of_the_table_has_a_case() -> None:
    assert {command for command, _ in table()} == set(main.commands)
    assert {cell for cell, text in table().items() if text != "-"} == set(CASES)


def test_the_manual_has_each_status() -> None:
    for (command, status), text in table().items():
        if text not in ("-", "the program's own") and status != "128+N":
            manual = (PAGE.parents[1] / "man" / f"nvsandbox-{command}.1").read_text()
            told = manual[manual.index(".SH EXIT STATUS") : manual.index(".SH EXAMPLES")]
            assert re.search(rf"\b{status}\b", told), f"{command}: {status}"


@pytest.mark.parametrize(("command", "status"), CASES, ids=lambda value: value)
def test_status(place: Place, command: str, status: str) -> None:
    found = CASES[command, status](place)
    expected = 0 if status == "128+N" else int(status)
    assert set(found if isinstance(found, list) else [found]) == {expected}
