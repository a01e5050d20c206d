# SPDX-License-Identifier: Apache-2.0
"""A call's limit holds over a pipe, too, whose other end takes and gives a little at a time, but never stops."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nvsandbox.channels import Pipe

LARGE = 32 << 20


class Worker:
    """Takes a channel."""

    theirs: socket.socket

    def open_channel(self, kind: int, fd: int, size: int, wait: Callable[[], None]) -> None:
        self.theirs = socket.socket(fileno=os.dup(fd))

    def wait_ended(self, limit: float) -> bool:
        return False


def drip(theirs: socket.socket) -> None:
    """Announces a large reply, and sends a little of it every millisecond."""
    theirs.recv(1 << 16)
    theirs.send(LARGE.to_bytes(4, "little"))
    while theirs.send(b"x", socket.MSG_NOSIGNAL):
        time.sleep(0.001)


def sip(theirs: socket.socket) -> None:
    """Takes a little of a large request every millisecond: as much as keeps the sender going."""
    while theirs.recv(1 << 16):
        time.sleep(0.001)


@pytest.fixture
def pipe(request: pytest.FixtureRequest) -> Iterator[Any]:
    def play() -> None:
        with contextlib.suppress(OSError):  # the caller has had enough
            request.param(worker.theirs)

    worker = Worker()
    made = Pipe(worker, lambda: None)  # type: ignore[arg-type]
    thread = threading.Thread(target=play)
    thread.start()
    yield made
    made.close()
    thread.join()
    worker.theirs.close()


class Over(Exception):
    pass


@pytest.mark.parametrize(("pipe", "size"), [(drip, 64), (sip, LARGE)], indirect=["pipe"])
def test_the_limit_is_looked_at(pipe: Any, size: int) -> None:
    end = time.monotonic() + 0.1

    def wait() -> None:
        if time.monotonic() > end:
            raise Over

    with pytest.raises(Over):
        pipe.exchange(bytearray(size), wait)
    assert time.monotonic() < end + 10  # all of it would take hours
