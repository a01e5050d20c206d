# SPDX-License-Identifier: Apache-2.0
"""``--watch``: its times, its ends, and what a terminal looks like meanwhile and afterwards."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest
from waiting import inside, until, workers_of

from nvsandbox.cli import interrupts, watching

COMMAND = [sys.executable, "-m", "nvsandbox", "query", "--simulate"]


def start(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": "/", **options}
    return subprocess.Popen([*COMMAND, *arguments], **options)


def finished(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], cwd="/", capture_output=True, text=True, timeout=60)


# ---- what is written


def test_each_state_has_its_time() -> None:
    done = finished("t4x2", "--watch", "0.2", "--count", "3")
    assert (done.returncode, done.stderr) == (0, "")
    states = done.stdout.rstrip("\n").split("\n\n20")
    assert len(states) == 3
    assert re.match(r"2\d{3}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d{4}\ndriver ", done.stdout)
    assert done.stdout.count("2 GPUs, ") == 3


def test_json_is_one_object_a_line_and_the_times_do_not_drift() -> None:
    done = finished("h100,latency_us=10000", "--watch", "1", "--count", "4", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    states = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(states) == 4
    times = [datetime.fromisoformat(state["timestamp"]).timestamp() for state in states]
    assert [state["gpus"][0]["index"] for state in states] == [0] * 4
    # Each query takes a good 0.3 s, which would add up.
    for number, at in enumerate(times):
        assert at - times[0] >= number - 0.3
    late = [at - times[0] - number for number, at in enumerate(times)]
    assert min(late[2:]) < 0.5, late


def test_times_that_passed_meanwhile_are_left_out() -> None:
    begin = time.monotonic()
    done = finished("h100,latency_us=15000", "-lms", "100", "--count", "3", "--json")
    times = [datetime.fromisoformat(json.loads(line)["timestamp"]).timestamp() for line in done.stdout.splitlines()]
    assert all(later - earlier > 0.1 for earlier, later in pairwise(times))
    assert time.monotonic() - begin < 30


def test_the_header_comes_once() -> None:
    done = finished("t4x2", "--query-gpu=index,name", "--format=csv", "-lms", "50", "--count", "3")
    assert done.stdout.splitlines() == ["index, name", *["0, Tesla T4", "1, Tesla T4"] * 3]


def test_without_a_number_it_is_nvidia_smis_5_seconds() -> None:
    assert finished("t4", "-l", "--count", "1", "--query-gpu=index", "--format=csv,noheader").stdout == "0\n"
    assert finished("t4", "-l5", "--count", "1", "--query-gpu=index", "--format=csv,noheader").stdout == "0\n"


@pytest.mark.parametrize("view", [["--processes"], ["--mig"], ["--topology"]])
def test_every_view_can_be_watched(view: list[str]) -> None:
    done = finished("a100,mig=1g.5gb", *view, "--watch", "0.05", "--count", "2", "--json")
    assert len(done.stdout.splitlines()) == 2
    assert all(json.loads(line)["gpus"][0]["index"] == 0 for line in done.stdout.splitlines())


# ---- what goes wrong


def test_one_session_and_deaths_do_not_end_it() -> None:
    """Every query kills the worker once: the same problem is told once, and the rest goes on."""
    done = finished("h100,crash=nvmlDeviceGetPowerUsage", "--watch", "0.1", "--count", "3")
    assert done.returncode == 0
    assert done.stdout.count("partial") == 3
    assert len(done.stderr.splitlines()) == 1
    assert "nvmlDeviceGetPowerUsage" in done.stderr


def test_where_nothing_can_be_read_it_goes_on() -> None:
    arguments = ("h100,crash=nvmlDeviceGetCount", "--watch", "0.1", "--count", "2")
    done = finished(*arguments)
    assert done.returncode == 0
    assert done.stderr.startswith("nvsandbox: ")
    states = [json.loads(line) for line in finished(*arguments, "--json").stdout.splitlines()]
    assert [state["error"]["type"] for state in states] == ["WorkerDied"] * 2


def test_where_no_worker_may_be_started_any_more_it_goes_on_too() -> None:
    """After 20 restarts within a minute the session waits; meanwhile each query says so, and it is told once."""
    done = finished("h100x4,crash=nvmlDeviceGetPowerUsage", "-lms", "50", "--count", "12", "--json")
    assert done.returncode == 0
    states = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(states) == 12
    assert len(states[0]["gpus"]) == 4
    assert "restarts within" in states[-1]["error"]["message"]
    assert done.stderr.count("restarts within") == 1


def test_without_a_sandbox_it_ends_at_once() -> None:
    done = finished("h100,crash=nvmlInit", "--watch", "0.1", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["error"]["exit_code"] == 1
    assert len(done.stdout.splitlines()) == 1


# ---- how it ends


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=str)
def test_signals_end_it_quietly(number: int) -> None:
    process = start("h100", "--watch", "60", "--json")
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (-number, "", "")


def test_a_signal_during_a_call_that_hangs() -> None:
    process = start("h100,hang=nvmlDeviceGetPowerUsage", "--watch", "60", "--timeout", "25")
    assert until(lambda: [inside(worker) for worker in workers_of(process.pid)] == [1])
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=40)
    assert (process.returncode, err) == (-signal.SIGINT, "")
    assert time.monotonic() - begin < 20  # and not the limit of the call


@pytest.mark.parametrize("form", [["--json"], [], ["--query-gpu=name", "--format=csv"]], ids=str)
def test_it_ends_when_nobody_reads(form: list[str]) -> None:
    process = start("h100", "--watch", "0.05", *form)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=30) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()


# ---- on a terminal


class Terminal:
    """The program on a terminal of its own; `read` gives what it wrote until `text` came."""

    def __init__(self, leader: int, process: subprocess.Popen[bytes]) -> None:
        self.leader = leader
        self.process = process
        self.all = ""

    def until(self, text: str) -> str:
        """What is written up to and with `text`."""
        new = ""
        while text not in new:
            ready, _, _ = select.select([self.leader], [], [], 30)
            assert ready, f"{text!r} did not come: {new!r}"
            try:
                new += os.read(self.leader, 65536).decode(errors="replace")
            except OSError as error:
                raise AssertionError(f"{text!r} did not come: {new!r}") from error
        self.all += new
        return new

    def rest(self) -> str:
        new = b""
        try:
            while chunk := os.read(self.leader, 65536):
                new += chunk
        except OSError:  # EIO: the other end is closed
            pass
        self.all += new.decode(errors="replace")
        return new.decode(errors="replace")

    def size(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.leader, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


@contextmanager
def on_terminal(*arguments: str, rows: int = 50, columns: int = 100) -> Iterator[Terminal]:
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=follower, stdout=follower, stderr=follower, cwd="/", start_new_session=True,
        env={**env, "TERM": "xterm"}, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(follower)
    try:
        yield Terminal(leader, process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        with suppress(OSError):  # closed by the test
            os.close(leader)


FULL, NORMAL = "\x1b[?1049h", "\x1b[?1049l"


def test_in_place_and_the_terminal_is_restored() -> None:
    with on_terminal("t4x2", "--watch", "0.2") as terminal:
        before = termios.tcgetattr(terminal.leader)
        first = terminal.until("\x1b[J")
        assert first.startswith(FULL)
        assert "Tesla T4" in first
        second = terminal.until("\x1b[J")
        assert second.lstrip().startswith("\x1b[H")
        os.write(terminal.leader, b"\x03")
        last = terminal.until(NORMAL) + terminal.rest()
        assert terminal.process.wait(timeout=30) == -signal.SIGINT
        assert termios.tcgetattr(terminal.leader) == before
    assert "\x1b[?25h" in last
    assert "\x1b[?7h" in last
    assert terminal.all.count("\x1b[?25l") == terminal.all.count("\x1b[?25h") == 1
    after = last[last.index(NORMAL) :]
    assert "Tesla T4" in after  # the last state stays
    assert "\x1b[H" not in after


def test_it_follows_the_size_of_the_terminal() -> None:
    with on_terminal("h100x8", "--watch", "60", rows=12, columns=100) as terminal:
        first = terminal.until("\x1b[J")
        assert re.search(r"… \d+ more lines", first)
        assert first.count("\r\n") == 11
        terminal.size(60, 200)
        second = terminal.until("\x1b[J")
        assert "more lines" not in second
        assert "GPU  NODE" in second  # a line for each GPU: it is wide enough now
        os.write(terminal.leader, b"\x03")
        terminal.rest()
        assert terminal.process.wait(timeout=30) == -signal.SIGINT


def test_a_terminal_that_goes_away_ends_it() -> None:
    with on_terminal("t4", "--watch", "0.1") as terminal:
        terminal.until("\x1b[J")
        os.close(terminal.leader)
        assert terminal.process.wait(timeout=30) == -signal.SIGHUP


def test_problems_are_on_the_screen() -> None:
    with on_terminal("h100x2,lost=1", "--watch", "0.1", "--count", "2") as terminal:
        terminal.rest()
        assert terminal.process.wait(timeout=30) == 0
    assert "GPU 1: cannot be queried: GPU is lost" in terminal.all


def test_csv_on_a_terminal_is_lines() -> None:
    with on_terminal("t4", "--query-gpu=name", "--format=csv", "-lms", "50", "--count", "2") as terminal:
        assert terminal.rest().replace("\r", "") == "name\nTesla T4\nTesla T4\n"


def test_a_signal_that_another_thread_gets_ends_the_wait() -> None:
    """The kernel may give a signal to any thread, or just before the wait begins. Neither interrupts the wait."""
    with watching._Signals() as signals:
        thread = threading.Timer(0.2, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGWINCH))
        thread.start()
        assert signals.resized_within(20)
        thread.join()
        assert not signals.resized_within(0)
        thread = threading.Timer(0.2, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM))
        thread.start()
        with pytest.raises(interrupts.BySignal) as ended:
            signals.resized_within(20)
        thread.join()
    assert ended.value.code == 143
