# SPDX-License-Identifier: Apache-2.0
"""The end of a worker: asked to, then SIGTERM, then SIGKILL; and those that outlive even that."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
from typing import TYPE_CHECKING

from nvsandbox._core import ffi, lib
from nvsandbox.options import Options

if TYPE_CHECKING:
    from nvsandbox.worker import Worker

_log = logging.getLogger("nvsandbox")

DRAIN_LIMIT = 2.0  # for calls that are under way when the sandbox is closed, as in csrc/worker/main.c
STOP_LIMIT = 3.0  # from STOP to SIGTERM
TERM_LIMIT = 3.0  # from SIGTERM to SIGKILL
KILL_LIMIT = 1.0  # a process in state D outlives SIGKILL: it is given up

_given_up: list[Worker] = []  # kept, so that they are reaped when they end after all
_given_up_lock = threading.Lock()


def given_up(options: Options) -> int:
    """How many workers with these options there are now that even SIGKILL has not ended, whatever session was
    theirs."""
    with _given_up_lock:
        _given_up[:] = [worker for worker in _given_up if not worker.wait_ended(0)]
        return sum(worker.options == options for worker in _given_up)


def end(worker: Worker, grace: bool = True) -> None:
    """Ends a worker that is marked as stopping; bounded in time."""
    process, control = worker.process, worker.control
    channels = worker.take_channels()
    if grace:
        message = ffi.new("struct nvs_message *", [lib.NVS_MAGIC, lib.NVS_MSG_STOP])
        with contextlib.suppress(OSError):  # also where an end that was interrupted is gone through once more
            control.socket.settimeout(0.1)
            control.socket.send(bytes(ffi.buffer(message)))
    with contextlib.suppress(OSError):
        control.socket.shutdown(socket.SHUT_WR)
    # Killing a user of NVML outright has been seen to wedge GPUs, so SIGKILL comes last.
    ended = (
        process.wait_ended(STOP_LIMIT if grace else 0.2)
        or (process.send(signal.SIGTERM) and process.wait_ended(TERM_LIMIT))
        or (process.send(signal.SIGKILL) and process.wait_ended(KILL_LIMIT))
    )
    if not ended:
        worker.abandoned = True
        with _given_up_lock:
            _given_up.append(worker)
        _log.error("the NVML worker %d cannot be ended (a driver call does not return); it is given up", worker.pid)
    # Not under the hands of a thread that is opening a channel. It lets go soon: the worker's end is closed.
    locked = control.lock.acquire(timeout=KILL_LIMIT)
    control.socket.close()
    process.release()
    if locked:
        control.lock.release()
    for channel in list(channels):  # forget() may still take some off
        # A busy one is closed by the thread that is in it, which sees that we are stopping.
        if channel.enter():
            with contextlib.suppress(Exception):
                channel.close()
    worker.finished.set()


def _after_fork_in_child() -> None:
    global _given_up_lock
    _given_up_lock = threading.Lock()
    _given_up.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
