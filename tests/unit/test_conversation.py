# SPDX-License-Identifier: Apache-2.0
"""The control protocol as the caller has it: what a worker may say in each state, and what becomes of the rest."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvsandbox import launch
from nvsandbox._core import ffi, lib
from nvsandbox.conversation import BrokenProtocol, Conversation, State
from nvsandbox.errors import LibraryNotFound, SandboxStartError

TYPES = {
    lib.NVS_MSG_ISOLATED: "struct nvs_report",
    lib.NVS_MSG_READY: "struct nvs_report",
    lib.NVS_MSG_FAILED: "struct nvs_failed",
    lib.NVS_MSG_OPENED: "struct nvs_opened",
    lib.NVS_MSG_REFUSED: "struct nvs_opened",
}


def message(kind: int, step: int = 0, detail: bytes = b"", tried: bytes = b"") -> bytes:
    body = ffi.new(f"{TYPES[kind]} *")
    body.message.magic = lib.NVS_MAGIC
    body.message.type = kind
    if kind == lib.NVS_MSG_FAILED:
        body.error.step = step
        body.error.detail = detail
        body.tried = tried
    return bytes(ffi.buffer(body))


def in_state(state: State) -> Conversation:
    conversation = Conversation()
    conversation.state = state
    return conversation


def outcome(conversation: Conversation, data: bytes) -> str:
    try:
        conversation.take(data)
        return "taken"
    except BrokenProtocol:
        return "broken"
    except SandboxStartError as error:
        return f"failed: {error.step}"


def test_the_order_of_a_start() -> None:
    conversation = Conversation()
    assert outcome(conversation, message(lib.NVS_MSG_ISOLATED)) == "taken"
    conversation.went()
    assert outcome(conversation, message(lib.NVS_MSG_READY)) == "taken"
    assert conversation.state is State.SERVING
    assert outcome(conversation, message(lib.NVS_MSG_OPENED)) == "taken"
    assert outcome(conversation, message(lib.NVS_MSG_REFUSED)) == "taken"


LEGAL = {
    State.ISOLATING: {lib.NVS_MSG_ISOLATED},
    State.LOADING: {lib.NVS_MSG_READY},
    State.SERVING: {lib.NVS_MSG_OPENED, lib.NVS_MSG_REFUSED},
    State.BROKEN: set(),
}


@pytest.mark.parametrize(("state", "kind"), list(itertools.product(State, TYPES)))
def test_each_message_in_each_state(state: State, kind: int) -> None:
    """S5: what may not come is a broken protocol, after which nothing is taken any more."""
    if kind == lib.NVS_MSG_FAILED:
        return
    conversation = in_state(state)
    wanted = "taken" if kind in LEGAL[state] else "broken"
    assert outcome(conversation, message(kind)) == wanted
    if wanted == "broken":
        assert conversation.state is State.BROKEN
        assert all(outcome(conversation, message(other)) == "broken" for other in TYPES)


@pytest.mark.parametrize(("state", "step"), list(itertools.product(State, range(lib.NVS_STEP_COUNT + 2))))
def test_a_failure_of_each_step_in_each_state(state: State, step: int) -> None:
    """S5: once GO was sent no failure has the next step of the ladder tried, for none but NVML's own is taken."""
    found = outcome(in_state(state), message(lib.NVS_MSG_FAILED, step))
    of_nvml = step in (lib.NVS_STEP_LIBRARY, lib.NVS_STEP_INIT, lib.NVS_STEP_CHANNEL)
    before = lib.NVS_STEP_HELLO <= step < lib.NVS_STEP_VERIFY
    accepted = {State.ISOLATING: before, State.LOADING: of_nvml, State.SERVING: of_nvml, State.BROKEN: False}[state]
    assert found.startswith("failed: ") == accepted
    if state is not State.ISOLATING and accepted:
        assert found.removeprefix("failed: ") not in launch._ISOLATION_STEPS


def test_texts_of_a_worker_are_one_line_and_move_no_cursor() -> None:
    """U19: in exceptions they go to terminals and logs."""
    conversation = in_state(State.LOADING)
    with pytest.raises(LibraryNotFound) as caught:
        conversation.take(
            message(lib.NVS_MSG_FAILED, lib.NVS_STEP_LIBRARY, b"a\x1b[2J\nroot: all is well\xff", b"one\x1b\ntwo\r\n")
        )
    assert caught.value.detail == "a\ufffd[2J\ufffdroot: all is well\ufffd"
    assert caught.value.tried == ("one\ufffd", "two\ufffd")
    with pytest.raises(SandboxStartError) as other:
        in_state(State.LOADING).take(message(lib.NVS_MSG_FAILED, lib.NVS_STEP_INIT, b"\x9b31m\n"))
    assert str(other.value).isprintable()


MESSAGES = st.one_of(
    st.binary(max_size=200),
    st.sampled_from(sorted(TYPES)).map(message),
    st.tuples(st.integers(0, 40), st.binary(max_size=60)).map(
        lambda given: message(lib.NVS_MSG_FAILED, given[0], given[1])
    ),
    st.tuples(st.sampled_from(sorted(TYPES)), st.integers(0, 40_000)).map(lambda given: message(given[0])[: given[1]]),
)


@given(st.lists(MESSAGES, max_size=12), st.integers(0, 12))
def test_any_sequence(messages: list[bytes], go_after: int) -> None:
    """The fuzz target of the protocol: whatever comes, states only go forward, READY is never believed before GO, and
    no isolation step's failure after it."""
    order = list(State)
    conversation = Conversation()
    isolated = went = False
    for number, data in enumerate(messages):
        before = conversation.state
        if isolated and not went and number >= go_after and before is State.ISOLATING:
            conversation.went()
            went, before = True, State.LOADING
        found: Any = outcome(conversation, data)
        assert order.index(conversation.state) >= order.index(before)
        if found == "taken" and before is State.ISOLATING:
            isolated = True
        if conversation.state is State.SERVING:
            assert went
        if found.startswith("failed: ") and went:
            assert found.removeprefix("failed: ") not in launch._ISOLATION_STEPS
        if conversation.state is State.BROKEN:
            assert found == "broken"
