# SPDX-License-Identifier: Apache-2.0
"""What is done in threads of its own is done once, also where a thread comes to nothing."""

from __future__ import annotations

import _thread
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import nvsandbox
from nvsandbox import aside


def _lost(function: Callable[..., Any], arguments: tuple[Any, ...]) -> int:
    """As `_thread.start_new_thread` where memory ends before the thread's first line: nothing but a message tells."""
    return _START(lambda: None, ())


_START = _thread.start_new_thread


def test_a_thread_that_never_came_to_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_thread, "start_new_thread", _lost)
    done = []
    assert aside.do(lambda: done.append(1) or "result") == "result"
    with pytest.raises(ZeroDivisionError):
        aside.do(lambda: 1 // 0)
    assert aside.get(lambda: done.append(2) or "held", lambda held: None) == "held"
    assert done == [1, 2]


def test_two_wait_for_a_thread_that_never_came_to_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them does it, and the other waits for that one."""
    monkeypatch.setattr(_thread, "start_new_thread", _lost)
    task = aside.Task(lambda: time.sleep(0.5) or "result")
    task.start()
    monkeypatch.undo()
    with ThreadPoolExecutor(2) as pool:
        assert [each.result() for each in [pool.submit(task.result) for _ in range(2)]] == ["result"] * 2


def test_a_thread_that_comes_late_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(function: Callable[..., Any], arguments: tuple[Any, ...]) -> int:
        def body() -> None:
            time.sleep(0.3)
            function(*arguments)

        return _START(body, ())

    monkeypatch.setattr(_thread, "start_new_thread", late)
    done: list[int] = []
    aside.do(lambda: done.append(_thread.get_ident()))
    assert len(done) == 1
    assert done[0] != _thread.get_ident()


def test_each_waiter_gets_an_error_of_its_own() -> None:
    """One for all would collect the frames of all of them."""

    def work() -> None:
        raise nvsandbox.WorkerDied("", 9, None, "it was ended", False)

    task = aside.Task(work)
    task.start()
    errors = []
    for _ in range(3):
        with pytest.raises(nvsandbox.WorkerDied, match="it was ended") as caught:
            task.result()
        errors.append(caught.value)
    assert len({id(error) for error in errors}) == 3
    assert [error.signal for error in errors] == [9, 9, 9]
    assert max(len(traceback.extract_tb(error.__traceback__)) for error in errors) <= 4
