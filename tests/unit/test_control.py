# SPDX-License-Identifier: Apache-2.0
"""The caller's end of the control connection, against a worker that says what no worker says."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nvsandbox._core import ffi, lib
from nvsandbox.control import Control
from nvsandbox.errors import SandboxStartError


class Process:
    """One that lives."""

    def ended(self) -> bool:
        return False

    def wait_ended(self, _: float) -> bool:
        return False


def opened(number: int) -> bytes:
    message = ffi.new("struct nvs_opened *")
    message.message.magic = lib.NVS_MAGIC
    message.message.type = lib.NVS_MSG_OPENED
    message.id = number
    return bytes(ffi.buffer(message))


Answer = Callable[[int], Iterator[int]]


@pytest.fixture
def channel(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Opens channels at a worker that answers each OPEN by the numbers that the test's generator makes of its own."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    answer: Answer = request.param
    theirs.settimeout(30)

    def play() -> None:
        message = ffi.new("struct nvs_open *")
        try:
            while data := theirs.recv(lib.NVS_MESSAGE_MAX):
                ffi.memmove(message, data, len(data))
                for number in answer(message.id):
                    theirs.send(opened(number))
        except OSError:
            pass  # the caller has had enough

    worker = threading.Thread(target=play)
    worker.start()
    control = Control(ours, Process())  # type: ignore[arg-type]
    file = os.open("/dev/null", os.O_RDONLY)
    yield lambda: control.open_channel(lib.NVS_CHANNEL_LANE, file, lib.NVS_LANE_SIZE, lambda: None)
    os.close(file)
    ours.close()
    theirs.shutdown(socket.SHUT_RDWR)
    worker.join()
    theirs.close()


def its_own(number: int) -> Iterator[int]:
    yield number


def others_for_ever(number: int) -> Iterator[int]:
    while True:
        yield number + 1


def the_last_again_and_again(number: int) -> Iterator[int]:
    yield max(number, 1)
    while number > 1:
        yield number - 1


def none(number: int) -> Iterator[int]:
    while True:
        yield 0


@pytest.mark.parametrize("channel", [its_own], indirect=True)
def test_its_own_answer(channel: Any) -> None:
    for _ in range(3):
        channel()


@pytest.mark.parametrize("channel", [others_for_ever, none], indirect=True)
def test_answers_to_what_nobody_asked(channel: Any) -> None:
    """They come faster than any wait ends, and must not keep the caller for ever."""
    with pytest.raises(SandboxStartError) as caught:
        channel()
    assert caught.value.errno == errno.EPROTO


@pytest.mark.parametrize("channel", [the_last_again_and_again], indirect=True)
def test_answers_that_were_given_before(channel: Any) -> None:
    channel()
    channel()
    with pytest.raises(SandboxStartError) as caught:
        channel()
    assert caught.value.errno == errno.EPROTO
