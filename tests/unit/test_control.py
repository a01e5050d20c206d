# SPDX-License-Identifier: Apache-2.0
"""The caller's end of the control connection, against a worker that says what no worker says."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nvsandbox._core import ffi, lib
from nvsandbox.control import Control
from nvsandbox.conversation import State
from nvsandbox.errors import SandboxStartError
from nvsandbox.owned import Owned


class Process:
    """One that lives."""

    def ended(self) -> bool:
        return False

    def wait_ended(self, _: float) -> bool:
        return False


def opened(number: int) -> bytes:
    """An answer: with a negative number, that channel is refused."""
    message = ffi.new("struct nvs_opened *")
    message.message.magic = lib.NVS_MAGIC
    message.message.type = lib.NVS_MSG_OPENED if number >= 0 else lib.NVS_MSG_REFUSED
    message.id = abs(number)
    if number < 0:
        message.error.step = lib.NVS_STEP_CHANNEL
        message.error.err = errno.EMFILE
        message.error.detail = b"no more of them"
    return bytes(ffi.buffer(message))


Answer = Callable[[int], Iterator[int]]


class Interrupted(Exception):
    """Out of a signal handler."""


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
    control = Control(Owned(ours.fileno()), Process())  # type: ignore[arg-type]
    control.conversation.state = State.SERVING
    file = os.open("/dev/null", os.O_RDONLY)

    def no_interruption() -> None:
        pass

    yield lambda wait=no_interruption: control.open_channel(lib.NVS_CHANNEL_LANE, file, lib.NVS_LANE_SIZE, wait)
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


def a_refusal(number: int) -> Iterator[int]:
    yield -number


@pytest.mark.parametrize("channel", [a_refusal], indirect=True)
def test_a_refusal(channel: Any) -> None:
    for _ in range(2):
        with pytest.raises(SandboxStartError, match="no more of them") as caught:
            channel()
        assert (caught.value.step, caught.value.errno) == ("channel", errno.EMFILE)


def the_first_late_and_refused(number: int) -> Iterator[int]:
    if number > 1:
        yield from (-1, number) if number == 2 else (number,)


@pytest.mark.parametrize("channel", [the_first_late_and_refused], indirect=True)
def test_the_refusal_of_an_open_that_was_given_up(channel: Any) -> None:
    """It is nothing to the one after it, which reads it before its own answer."""

    def interrupted() -> None:
        if looks and looks.pop():
            raise Interrupted

    looks = [True, False]  # not before it is sent
    with pytest.raises(Interrupted):
        channel(interrupted)
    channel()
    channel()


def both_at_the_second(number: int) -> Iterator[int]:
    if number == 2:
        yield from (1, 2)


def both_at_the_second_and_the_first_refused(number: int) -> Iterator[int]:
    if number == 2:
        yield from (-1, 2)


@pytest.mark.parametrize("channel", [both_at_the_second, both_at_the_second_and_the_first_refused], indirect=True)
def test_an_answer_that_a_signal_handlers_open_has_read(channel: Any, request: pytest.FixtureRequest) -> None:
    """It is that of the open which the handler interrupted, and which waits for no other."""

    def handler() -> None:
        if looks and looks.pop():
            channel()
            opened_in_it.append(True)

    opened_in_it: list[bool] = []
    looks = [True, False]  # not before it is sent
    refused = request.node.callspec.params["channel"] is not both_at_the_second
    with pytest.raises(SandboxStartError, match="no more of them") if refused else contextlib.nullcontext():
        channel(handler)
    assert opened_in_it


def refused_to_nobody(number: int) -> Iterator[int]:
    while True:
        yield -number - 1


@pytest.mark.parametrize("channel", [refused_to_nobody], indirect=True)
def test_refusals_of_what_nobody_asked(channel: Any) -> None:
    with pytest.raises(SandboxStartError) as caught:
        channel()
    assert caught.value.errno == errno.EPROTO
