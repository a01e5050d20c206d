# SPDX-License-Identifier: Apache-2.0
"""Waiting for what a test needs to have happened, in place of a pause that is long enough on most machines.

The limits are for what never comes, and so are far beyond what a busy machine needs."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import host

_T = TypeVar("_T")

LIMIT = 30.0


def until(condition: Callable[[], _T], limit: float = LIMIT) -> _T:
    """What `condition` gives as soon as that is true, or after `limit` seconds whatever it gives then."""
    end = time.monotonic() + limit
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.01)
    return found


def prompt(attempt: Callable[[], float], limit: float, tries: int = 5) -> None:
    """The quickest of some attempts, each of which gives its seconds, is within `limit`, and no more are made than that
    takes: where the machine is busy one may be late, where the product is slow all are."""
    took: list[float] = []
    while not took or (min(took) >= limit and len(took) < tries):
        took.append(attempt())
    assert min(took) < limit, f"{[round(seconds, 3) for seconds in took]} s, allowed are {limit} s for one of them"


def kill(pid: int) -> None:
    """SIGKILL, and back when that has happened: a process that has been sent one may still run for a moment, and until
    it has ended nobody can know."""
    pidfd = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        assert select.select([pidfd], [], [], LIMIT)[0], f"process {pid} outlives SIGKILL"
    finally:
        os.close(pidfd)


def stop(pid: int) -> None:
    """SIGSTOP to a child, and back when all of its threads have stopped."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)


def forked(action: Callable[[], object]) -> int:
    """A forked child that does this: its process id. Its exit status is 0 if that raised nothing."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            action()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid


def workers_of(pid: int) -> list[int]:
    """The workers that a process has started."""
    return [
        child
        for child, (name, parent) in host.processes().items()
        if parent == pid and name.startswith("nvsandbox-work")
    ]


def inside(pid: int) -> int:
    """How many threads of a worker are in a call that hangs or takes its time (``hang=`` and ``latency_us=``)."""
    sleeping = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            sleeping += "nanosleep" in (task / "wchan").read_text()
    return sleeping


def signal_when_inside(pid: int, number: int = signal.SIGALRM) -> threading.Thread:
    """Sends this process a signal as soon as a call is under way in a worker; the thread that does it, which ends by
    itself. A timer could end before the call begins."""

    def send() -> None:
        until_inside(pid)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def until_inside(pid: int, number: int = 1) -> None:
    """Waits until so many calls are under way in a worker."""
    assert until(lambda: inside(pid) >= number), f"{inside(pid)} calls are under way in worker {pid}, not {number}"
