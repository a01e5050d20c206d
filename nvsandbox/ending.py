# SPDX-License-Identifier: Apache-2.0
"""The end of a worker: asked to, then SIGTERM, then SIGKILL; and those that outlive even that."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from nvsandbox.options import Options
from nvsandbox.process import wait_all

if TYPE_CHECKING:
    from nvsandbox.worker import Worker

_log = logging.getLogger("nvsandbox")

DRAIN_LIMIT = 2.0  # for calls that are under way when the sandbox is closed; a bit less than in csrc/worker/main.c
STOP_LIMIT = 3.0  # from STOP to SIGTERM
TERM_LIMIT = 3.0  # from SIGTERM to SIGKILL
KILL_LIMIT = 1.0  # a process in state D outlives SIGKILL: it is given up


def limit() -> float:
    """Seconds that an end takes at most."""
    return STOP_LIMIT + TERM_LIMIT + 2 * KILL_LIMIT


_given_up: set[Worker] = set()  # kept, so that they are reaped when they end after all


def given_up(options: Options) -> int:
    """How many workers with these options there are now that even SIGKILL has not ended, whatever session was
    theirs."""
    for worker in list(_given_up):
        if worker.process.ended():
            _given_up.discard(worker)
            worker.released()
    return sum(worker.options == options for worker in list(_given_up))


def end(workers: Iterable[Worker], grace: bool = True) -> None:
    """Ends workers, side by side; no longer than :func:`limit`. Those that another thread ends are waited for.

    With `grace` calls that are under way have a moment to come back with their results; new ones are refused.
    """
    latest = time.monotonic() + limit()
    workers = list(workers)
    ours = {worker.process: worker for worker in workers if worker.begin_end(grace)}
    for worker in ours.values():
        if grace:
            worker.control.stop()
        else:
            worker.control.shut()
    # Killing a user of NVML outright has been seen to wedge GPUs, so SIGKILL comes last.
    left = wait_all(ours, STOP_LIMIT if grace else 0.2)
    for number, seconds in ((signal.SIGTERM, TERM_LIMIT), (signal.SIGKILL, KILL_LIMIT)):
        for process in left:
            process.send(number)
        left = wait_all(left, seconds)
    for process, worker in ours.items():
        if process in left:
            worker.abandoned = True
            _given_up.add(worker)
            why = (
                "this process has dropped the privileges for it"
                if process.out_of_reach
                else "a driver call does not return"
            )
            _log.error("the NVML worker %d cannot be ended (%s); it is given up", worker.pid, why)
        _release(worker)
    for worker in workers:
        if worker.process not in ours:
            worker.finished.wait(max(0.0, latest - time.monotonic()))


def _release(worker: Worker) -> None:
    """Closes what the caller has of it."""
    control = worker.control
    # Not under the hands of a thread that is opening a channel. It lets go soon: the worker's end is closed.
    locked = control.lock.acquire(timeout=KILL_LIMIT)
    control.close()
    if locked:
        control.lock.release()
    if not worker.abandoned:
        worker.released()
    for channel in worker.take_channels():
        # A busy one is closed by the thread that is in it, which sees that we are stopping.
        if channel.enter():
            with contextlib.suppress(Exception):
                channel.close()
    worker.finished.set()


os.register_at_fork(after_in_child=_given_up.clear)
