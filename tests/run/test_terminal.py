# SPDX-License-Identifier: Apache-2.0
"""At a terminal the program is as if nothing were between: names, sizes, Ctrl-C, Ctrl-Z, hanging up."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from host import Host

from .conftest import COMMAND, HOW, Terminal

MakeTerminal = Callable[..., Terminal]


@pytest.mark.parametrize("how", HOW)
def test_the_terminal_has_its_name_and_size(terminal: MakeTerminal, how: tuple[str, ...]) -> None:
    script = "tty; stty size; echo here >/dev/tty"
    at = terminal(COMMAND, "run", *how, "--", "sh", "-c", script, rows=31, columns=97)
    at.expect(rf"{at.name}\r\n31 97\r\nhere\r\n")
    assert at.wait() == 0


@pytest.mark.parametrize("how", HOW)
def test_ctrl_c_reaches_the_program_once(terminal: MakeTerminal, how: tuple[str, ...]) -> None:
    script = (
        "import signal, sys\nsignal.signal(2, lambda *_: print('caught', flush=True))\nprint('ready', flush=True)\n"
    )
    script += "for line in sys.stdin:\n    sys.exit(7)"
    at = terminal(COMMAND, "run", *how, "--", sys.executable, "-c", script)
    at.expect("ready")
    at.type("\x03")
    at.expect("caught")
    at.type("\n")
    assert at.wait() == 7
    assert at.shown.count("caught") == 1


def test_ctrl_c_ends_what_does_not_catch_it(terminal: MakeTerminal) -> None:
    """And --report tells of it as the shell does."""
    for how, status in (((), -2), (("--report",), 130)):
        at = terminal(COMMAND, "run", *how, "--", "sh", "-c", "echo ready; exec sleep 60")
        at.expect("ready")
        at.type("\x03")
        assert at.wait() == status


@pytest.mark.parametrize("how", HOW)
def test_the_window_changes(terminal: MakeTerminal, how: tuple[str, ...]) -> None:
    # It wakes up now and then: a signal just before it waits would only be seen after that.
    script = """
import os, select, signal
signal.signal(28, lambda *_: print(os.get_terminal_size(), flush=True))
print("ready", flush=True)
while not select.select([0], [], [], 0.1)[0]:
    pass
"""
    at = terminal(COMMAND, "run", *how, "--", sys.executable, "-c", script)
    at.expect("ready")
    at.resize(50, 123)
    at.expect(r"columns=123, lines=50")
    at.type("\n")
    assert at.wait() == 0


@pytest.mark.parametrize("how", HOW)
def test_stopped_and_continued_by_the_shell(terminal: MakeTerminal, how: tuple[str, ...]) -> None:
    shell = terminal("bash", "--norc", "--noprofile", "-i")
    shell.expect(r"\$ ")
    options = " ".join(how)
    shell.type(f"{COMMAND} run {options} -- sh -c 'echo rea''dy; read a; echo got:$a; exit 9'\n")
    shell.expect(r"ready\r\n")
    shell.type("\x1a")
    shell.expect("Stopped")
    shell.expect(r"\$ ")
    shell.type("jobs\n")
    shell.expect(r"\[1\].*Stopped")
    shell.type("fg\n")
    shell.expect(r"exit 9'\r\n")
    shell.type("hello\n")
    shell.expect("got:hello")
    shell.expect(r"\$ ")
    shell.type("echo status:$?; stty -a | grep -o ' icanon'; exit\n")
    shell.expect(r"status:9\r\n icanon")
    shell.wait()


@pytest.mark.parametrize("how", HOW)
def test_a_shell_in_it_has_job_control(terminal: MakeTerminal, how: tuple[str, ...]) -> None:
    shell = terminal(COMMAND, "run", *how, "--", "bash", "--norc", "--noprofile", "-i")
    shell.expect(r"\$ ")
    shell.type("sh -c 'echo rea''dy; read a; echo got:$a'\n")
    shell.expect(r"ready\r\n")
    shell.type("\x1a")
    shell.expect("Stopped")
    shell.type("fg\n")
    shell.type("hello\n")
    shell.expect("got:hello")
    shell.type("exit 5\n")
    assert shell.wait() == 5
    assert "no job control" not in shell.shown


@pytest.mark.parametrize("how", HOW)
def test_a_terminal_that_goes_away(terminal: MakeTerminal, tmp_path: Path, how: tuple[str, ...]) -> None:
    mark = tmp_path / "hangup"
    at = terminal(
        COMMAND, "run", *how, "--", "sh", "-c",
        f"trap 'echo caught >{mark}; exit 3' HUP; echo ready; while :; do sleep 0.05; done",
    )  # fmt: skip
    at.expect("ready")
    at.hang_up()
    assert at.process.wait(20) == 3
    assert mark.read_text() == "caught\n"


@pytest.mark.parametrize("how", HOW)
def test_new_terminals_can_be_made(terminal: MakeTerminal, how: tuple[str, ...]) -> None:
    code = "import os, pty; master, slave = pty.openpty(); print('new', os.ttyname(slave)); os.write(master, b'x')"
    at = terminal(COMMAND, "run", *how, "--", sys.executable, "-c", code)
    at.expect(r"new /dev/pts/\d+")
    assert at.wait() == 0


def node_for_new_terminals() -> None:
    """As systemd has it: the multiplexer is /dev/ptmx, and nobody may use the one in pts."""
    import os
    import stat

    os.unlink("/dev/ptmx")
    os.mknod("/dev/ptmx", 0o666 | stat.S_IFCHR, os.makedev(5, 2))
    os.chmod("/dev/ptmx", 0o666)
    os.chmod("/dev/pts/ptmx", 0)


def new_terminal(command: str, options: list[str]) -> Any:
    import subprocess
    import sys

    code = "import os, pty; master, slave = pty.openpty(); print(os.ttyname(slave))"
    done = subprocess.run(
        [command, "run", *options, "--", sys.executable, "-c", code], capture_output=True, text=True, stdin=-3
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("options", [[], ["--lockdown"], ["--user"], ["--guard"]])
def test_where_the_multiplexer_is_a_node(host: Host, options: list[str]) -> None:
    status, shown, errors = host.run(new_terminal, setup=node_for_new_terminals, command=COMMAND, options=options)
    assert (status, errors) == (0, "")
    assert shown.startswith("/dev/pts/")


def console(command: str) -> Any:
    """A container engine's console: a terminal of the host's that is at /dev/console alone."""
    import os
    import pty
    import subprocess

    import host

    master, slave = pty.openpty()
    name = os.ttyname(slave)
    with open("/dev/console", "w"):
        pass
    host.mount(name, "/dev/console", flags=host.MS_BIND)
    done = subprocess.run(
        [command, "run", "--", "sh", "-c", "stat -c %t:%T /dev/console; test -c /dev/console && echo there"],
        stdin=slave, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    without = subprocess.run([command, "run", "--", "test", "-e", "/dev/console"], stdin=subprocess.DEVNULL)
    os.close(master)
    os.close(slave)
    return done.stdout, without.returncode


def test_the_console_is_there_if_it_is_the_terminal(host: Host) -> None:
    shown, without = host.run(console, command=COMMAND)
    assert shown.endswith("there\n")
    assert without == 1


# ---- a program of a whole screen


def test_nvitop(terminal: MakeTerminal) -> None:
    """Draws, follows a new size, ends on q, and leaves the terminal as it was."""
    nvitop = str(Path(sys.executable).parent / "nvitop")
    at = terminal(COMMAND, "run", "--simulate", "h100x8", "--", nvitop, "--interval", "1", rows=60, columns=100)
    at.expect(r"\x1b\[\?1049h")
    at.expect("W / 700W")
    at.resize(50, 140)
    at.expect(r"\x1b\[\d+;13\dH|\x1b\[13\dG|[═─]{101}")  # beyond the old width
    at.type("q")
    assert at.wait() == 0
    assert "\x1b[?1049l" in at.shown
    assert at.restored
