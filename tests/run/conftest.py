# SPDX-License-Identifier: Apache-2.0
"""The command, run as users run it: by its script, on the stand-in for the host."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import host as stand_in
import pytest
from host import require

import nvsandbox

COMMAND = str(Path(sys.executable).parent / "nvsandbox")
PROGRAM = str(Path(nvsandbox.__file__).parent / "nvsandbox-run")

Run = Callable[..., "subprocess.CompletedProcess[str]"]

HOW = [(), ("--report",), ("--user",), ("--guard",), ("--lockdown",)]
"""Options with which a program behaves as it would without nvsandbox."""


def surroundings() -> dict[str, str]:
    """This process's environment without options of nvsandbox's."""
    return {name: text for name, text in os.environ.items() if not name.startswith("NVSANDBOX_")}


@pytest.fixture
def clean_host() -> Iterator[None]:
    """Fails the test when the host's /dev is not as before."""
    require(stand_in.can_play_host(), "needs CAP_SYS_ADMIN, to make mount namespaces")
    before = stand_in.listing()
    yield
    after = stand_in.listing()
    terminals = {path for path in {*before, *after} if path.startswith("/dev/pts/")}
    for path in terminals:
        before.pop(path, None), after.pop(path, None)
    assert after == before, "the program has changed the host's /dev"


@pytest.fixture
def run(clean_host: None) -> Run:
    """`nvsandbox run` with the arguments that are given. The host's /dev must be as before."""

    def start(*arguments: str | bytes, **options: Any) -> subprocess.CompletedProcess[str]:
        options = {
            "env": surroundings(), "stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 60,
            "errors": "surrogateescape", **options,
        }  # fmt: skip
        return subprocess.run([COMMAND, "run", *arguments], check=False, **options)

    return start


class Terminal:
    """A program that a terminal of its own controls: what is typed, and what it shows."""

    def __init__(self, arguments: list[str], rows: int = 24, columns: int = 80, **environment: str) -> None:
        self._master, slave = pty.openpty()
        self.name = os.ttyname(slave)
        self._settings = termios.tcgetattr(slave)
        self.slave = slave
        self.resize(rows, columns)
        self.shown = ""
        self._seen = 0
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *arguments],
            stdin=slave, stdout=slave, stderr=slave, close_fds=True,
            env={**surroundings(), "TERM": "xterm-256color", "PS1": "$ ", **environment},
        )  # fmt: skip

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    @property
    def restored(self) -> bool:
        """Whether the terminal's settings are those of the beginning."""
        return termios.tcgetattr(self.slave) == self._settings

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def read(self, timeout: float = 0.0) -> bool:
        if not select.select([self._master], [], [], timeout)[0]:
            return False
        try:
            self.shown += os.read(self._master, 65536).decode("utf-8", "replace")
        except OSError:
            return False
        return True

    def expect(self, pattern: str, timeout: float = 15.0) -> re.Match[str]:
        """Waits until what is shown, after what was expected before, has the pattern."""
        end = time.monotonic() + timeout
        while True:
            found = re.compile(pattern).search(self.shown, self._seen)
            if found:
                self._seen = found.end()
                return found
            if time.monotonic() > end:
                raise AssertionError(f"{pattern!r} was not shown, but: {self.shown[self._seen :][-2000:]!r}")
            self.read(0.1)

    def wait(self, timeout: float = 15.0) -> int:
        """The exit status."""
        end = time.monotonic() + timeout
        while self.process.poll() is None:
            self.read(0.02)
            if time.monotonic() > end:
                raise AssertionError(f"the program does not end; it has shown {self.shown[self._seen :]!r}")
        while self.read():
            pass
        return self.process.returncode

    def hang_up(self) -> None:
        """The terminal goes away."""
        os.close(self.slave)
        os.close(self._master)
        self._master = self.slave = -1

    def close(self) -> None:
        if self._master >= 0:
            self.hang_up()
        if self.process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(2)
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def terminal(clean_host: None) -> Iterator[Callable[..., Terminal]]:
    """Makes terminals, which are closed at the end."""
    opened: list[Terminal] = []

    def make(*arguments: str, **options: Any) -> Terminal:
        opened.append(Terminal(list(arguments), **options))
        return opened[-1]

    yield make
    for each in opened:
        each.close()
