# SPDX-License-Identifier: Apache-2.0
"""The program is what the user started: everything of a process is as if nvsandbox had not been there."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from host import has_ended, processes
from waiting import until

from .conftest import COMMAND, HOW, Run, surroundings

OF_A_PROCESS = r"""
import json, os, resource, signal, sys
status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
print(json.dumps({
    "arguments": sys.argv[1:],
    "cwd": os.getcwd(),
    "umask": status["Umask"],
    "signals": {key: status[key] for key in ("SigBlk", "SigPnd", "ShdPnd")},
    "ignored": int(status["SigIgn"], 16) & ~(1 << 12 | 1 << 24),  # this Python's own: SIGPIPE, SIGXFSZ
    "limits": {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name[:7] == "RLIMIT_"},
    "nice": os.nice(0),
    "ids": [os.getpid() == int(os.environ["STARTED"]) if "STARTED" in os.environ else None, os.getppid(), os.getpgrp(), os.getsid(0)],
    "descriptors": sorted(os.listdir("/proc/self/fd")),
    "affinity": sorted(os.sched_getaffinity(0)),
    "name": open("/proc/self/comm").read(),
}))
"""  # noqa: E501


def odd() -> None:
    """A process that is not as most are."""
    os.umask(0o137)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGUSR1})
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_NOFILE, (77, 1000))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(3)


def answer(command: list[str], folder: Path, fd: int) -> Any:
    done = subprocess.run(
        [*command, sys.executable, "-c", OF_A_PROCESS, "a b", "", "--", "\udcff"],
        cwd=folder, pass_fds=[fd], preexec_fn=odd, env=surroundings(), capture_output=True, text=True,
        stdin=subprocess.DEVNULL, errors="surrogateescape", check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    import json

    return json.loads(done.stdout)


@pytest.mark.parametrize("how", [(), ("--user",), ("--guard",), ("--lockdown",)])
def test_everything_is_as_without(clean_host: None, tmp_path: Path, how: tuple[str, ...]) -> None:
    with open(os.devnull) as file:
        assert answer([COMMAND, "run", *how, "--"], tmp_path, file.fileno()) == answer([], tmp_path, file.fileno())


def test_with_a_parent_only_the_parent_differs(clean_host: None, tmp_path: Path) -> None:
    report = tmp_path / "report"
    with open(os.devnull) as file:
        inside = answer([COMMAND, "run", f"--report={report}", "--"], tmp_path, file.fileno())
        outside = answer([], tmp_path, file.fileno())
    assert inside["ids"].pop(1) != outside["ids"].pop(1)
    assert inside == outside
    assert "changed nothing" in report.read_text()


@pytest.mark.parametrize("how", HOW)
def test_the_environment_to_the_byte(run: Run, how: tuple[str, ...]) -> None:
    environment: dict[bytes, bytes] = {
        b"ODD": b"\xff\xfe=\n\x01", b"": b"x", b"EMPTY": b"", b"LC_ALL": b"C", b"PATH": os.environb[b"PATH"],
        b"LD_LIBRARY_PATH": b"/nowhere", b"LD_PRELOAD": b"", b"PYTHONCOERCECLOCALE": b"warn",
    }  # fmt: skip
    del environment[b""]
    done = run(*how, "--", "env", "-0", env=environment, text=None, errors=None)
    entries = sorted(name + b"=" + text for name, text in environment.items())
    assert sorted(done.stdout.rstrip(b"\0").split(b"\0")) == entries


@pytest.mark.parametrize("how", HOW)
def test_exit_status(run: Run, how: tuple[str, ...]) -> None:
    assert run(*how, "--", "sh", "-c", "exit 42").returncode == 42
    killed = run(*how, "--", "sh", "-c", "kill -9 $$").returncode
    assert killed == (128 + 9 if how == ("--report",) else -9)


def test_the_process_that_was_started_is_the_program(clean_host: None) -> None:
    process = subprocess.Popen(
        [COMMAND, "run", "--", sys.executable, "-c", "import os; print(os.getpid(), flush=True); input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=surroundings(),
    )  # fmt: skip
    assert process.stdout is not None
    assert int(process.stdout.readline()) == process.pid
    process.communicate("\n")
    assert process.returncode == 0


@pytest.mark.parametrize("how", [(), ("--report",)])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT, signal.SIGRTMIN + 3])
def test_signals_reach_it(clean_host: None, how: tuple[str, ...], number: int) -> None:
    """Those that are sent to the process that was started, whatever it is by now."""
    script = (
        f"import signal, sys, time\nsignal.signal({int(number)}, lambda *_: sys.exit(9))\nprint('ready', flush=True)\n"
    )
    process = subprocess.Popen(
        [COMMAND, "run", *how, "--", sys.executable, "-c", script + "while True: time.sleep(0.02)"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=surroundings(),
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.wait(20) == 9
    process.stdout.close()


def states_of(group: int) -> list[str]:
    """The states of the processes of a group."""
    found = []
    for pid in processes():
        with contextlib.suppress(OSError):
            state, _, its_group = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:3]
            found += [state] if int(its_group) == group else []
    return found


@pytest.mark.parametrize("how", [(), ("--report",)])
def test_stopped_and_continued_by_signals(clean_host: None, how: tuple[str, ...]) -> None:
    script = "import time\nwhile True: print('alive', flush=True); time.sleep(0.01)"
    process = subprocess.Popen(
        [COMMAND, "run", *how, "--", sys.executable, "-c", script],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=surroundings(),
        start_new_session=True, bufsize=0,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    # For the group, as a terminal would; SIGTSTP is ignored by the kernel in a group that no shell looks after.
    os.killpg(process.pid, signal.SIGSTOP)
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
    assert until(lambda: set(states_of(process.pid)) == {"T"}), "with a parent, that may have stopped before its child"
    os.set_blocking(process.stdout.fileno(), False)
    while process.stdout.read(65536):
        pass
    time.sleep(0.1)
    assert not process.stdout.read(65536), "it is not stopped"
    os.set_blocking(process.stdout.fileno(), True)
    os.killpg(process.pid, signal.SIGCONT)
    assert process.stdout.readline() == b"alive\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == (143 if how else -15)
    process.stdout.close()


def test_the_first_argument_stays_as_it_was_typed(run: Run) -> None:
    for name in ("cat", "/bin/cat", "../bin/cat"):
        done = run("--", name, "/proc/self/cmdline", cwd="/usr")
        assert done.stdout.split("\0")[0] == name


def test_options_of_the_program_are_its_own(run: Run) -> None:
    for arguments in (["echo", "--help", "--report"], ["--", "echo", "--help", "--report"]):
        assert run(*arguments, env={**surroundings(), "POSIXLY_CORRECT": "1"}).stdout != ""
    assert run("printf", "%s|", "--json", "--", "-x").stdout == "--json|--|-x|"


def test_a_mebibyte_of_arguments(run: Run) -> None:
    arguments = ["x" * 1023 + str(number % 10) for number in range(1024)]
    done = run("--", sys.executable, "-c", "import sys; print(len(''.join(sys.argv[1:])))", *arguments)
    assert done.stdout == f"{1 << 20}\n"


def test_too_many_arguments_cannot_be_run(clean_host: None) -> None:
    """What fits in when nvsandbox starts fits in when the program does."""
    done = subprocess.run(
        ["sh", "-c", f'ulimit -s 1024; exec {COMMAND} run -- echo "$(head -c 120000 /dev/zero | tr "\\0" x)" | wc -c'],
        capture_output=True, text=True, env={"PATH": os.environ["PATH"]}, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.stdout == "120001\n", done.stderr


@pytest.mark.parametrize("how", HOW)
def test_standard_streams_that_are_closed_stay_closed(clean_host: None, how: tuple[str, ...]) -> None:
    command = f"{COMMAND} run {' '.join(how)} -- ls /proc/self/fd"
    here = subprocess.run(["sh", "-c", "ls /proc/self/fd <&- 2>&-"], capture_output=True, text=True, check=False)
    inside = subprocess.run(
        ["sh", "-c", f"{command} <&- 2>&-"], capture_output=True, text=True, env=surroundings(), check=False
    )
    assert inside.stdout.split() == here.stdout.split() == ["0", "1"]  # 0 is the listing's own


@pytest.mark.parametrize("how", HOW)
def test_few_descriptors(run: Run, how: tuple[str, ...]) -> None:
    """As few as Python itself needs to get so far."""

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (9, 4096))

    done = run(*how, "--", "sh", "-c", "ulimit -n", preexec_fn=few)
    assert (done.returncode, done.stdout) == (0, "9\n")


def test_no_file_may_be_written(run: Run) -> None:
    def none() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    done = run("--", "sh", "-c", "ulimit -f", preexec_fn=none)
    assert (done.returncode, done.stdout) == (0, "0\n")


def test_its_death_follows_its_parents_if_that_was_asked_for(clean_host: None) -> None:
    """PR_SET_PDEATHSIG lasts over the way in."""
    code = (
        "import ctypes, os, subprocess, sys\n"
        "die = lambda: ctypes.CDLL(None).prctl(1, 9)\n"
        "child = subprocess.Popen(sys.argv[1:], preexec_fn=die, stdout=subprocess.PIPE)\n"
        "print(child.pid, child.stdout.readline().decode(), flush=True)\n"
        "os._exit(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, COMMAND, "run", "--", "sh", "-c", "echo ready; exec sleep 60"],
        capture_output=True, text=True, env=surroundings(), stdin=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    pid = int(done.stdout.split()[0])
    assert until(lambda: has_ended(pid))


def test_little_is_imported_for_it() -> None:
    """It is to start at once."""
    code = "import sys; from nvsandbox.cli import main; import nvsandbox.cli.run; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/", check=True)
    loaded = set(done.stdout.split())
    assert "nvsandbox.run" in loaded
    assert not loaded & {
        "pynvml",
        "rich",
        "pyroute2",
        "nvsandbox.session",
        "nvsandbox.cli.query",
        "nvsandbox.cli.audit",
    }
