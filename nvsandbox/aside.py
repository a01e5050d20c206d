# SPDX-License-Identifier: Apache-2.0
"""Work that no signal handler of the caller's interrupts.

Python runs signal handlers in the main thread, between any two steps of it, and what they raise (KeyboardInterrupt)
ends whatever was being done: a descriptor may be open by then that no variable holds yet. So what opens, hands over or
closes something runs in a thread of its own, and its caller only waits: an exception ends the waiting, not the work.
Blocking signals instead would not do: C's handler then runs in another thread, and Python's in the main thread all the
same. Starting a thread takes some 30 µs.

What is called in such a thread does its own work of this kind there, at once: a finalizer that the garbage collector
runs in it may leave a block, say, and finds the locks that the thread holds to be its own. No other thread holds one of
these while Python code of the caller's can run on top of it.

When the interpreter finalizes, after the last atexit callback, threads take no further step: neither those that there
are nor those that are started then. From there on work is done inline, and a lock or a task that another thread has is
not waited for.
"""

from __future__ import annotations

import copy
import os
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

from nvsandbox import threads
from nvsandbox.forks import this_process

_T = TypeVar("_T")

_SLICE = 0.1
"""Seconds between two looks whether anybody still does the work that is waited for."""

NO_THREAD = (RuntimeError, MemoryError)  # no more threads, or the interpreter's exit; no memory for one

finalizing: Callable[[], bool] = sys.is_finalizing
"""Whether the interpreter is past its atexit callbacks. Kept here, for ``sys`` itself is emptied then."""

_here: set[int] = set()  # the threads that are doing such work


def here() -> bool:
    """Whether this thread is one that does such work."""
    return threads.get_ident() in _here


def start(work: Callable[..., Any], *arguments: Any, new: bool = False) -> None:
    """Does something in a thread of its own, or here and now where no thread can be had. Also here if this is such a
    thread already, unless it is to be a `new` one."""
    if finalizing():
        run(work, *arguments)
        return
    if new or not here():
        try:
            threads.start_new_thread(run, (work, *arguments))
            return
        except NO_THREAD:
            pass
    work(*arguments)


def run(work: Callable[..., Any], *arguments: Any) -> None:
    """Does something as such work, in this thread."""
    mine = threads.get_ident()
    outer = mine in _here
    _here.add(mine)
    try:
        work(*arguments)
    finally:
        if not outer:
            _here.discard(mine)


class _Token:
    """Lives as long as the thread that has it: one may end before its first step, for want of memory."""


class Task(Generic[_T]):
    """Something that is done aside, and whose outcome any number of threads may wait for."""

    def __init__(self, work: Callable[[], _T]) -> None:
        self._work: Callable[[], _T] | None = work
        self._value: _T | None = None
        self._owner = this_process()
        self._waiting: list[Any] = []  # a lock for each: one for all would be lost with a waiter who is interrupted
        self._thread: weakref.ref[_Token] | None = None
        self._begun = threads.allocate_lock()  # taken by whoever runs it, or sees to it that nobody does
        self._raised = threads.allocate_lock()  # taken by whom the error itself is raised in
        self.error: BaseException | None = None
        self.done = False

    def start(self) -> None:
        """Has it done aside."""
        token = _Token()
        self._thread = weakref.ref(token)
        start(self.run, token)

    def run(self, token: _Token | None = None) -> None:
        """The work itself."""
        if not self._begun.acquire(blocking=False):
            return
        work, self._work = self._work, None
        assert work is not None
        try:
            self._value = work()
        except BaseException as error:
            self.error = error
        finally:
            work = None
            self.done = True
            # Who comes after this line finds it done; who came before is on the list.
            while self._waiting:
                self._waiting.pop().release()
            del self  # else the error and this frame refer to each other

    def end(self) -> bool:
        """Sees to it that it does not begin any more, or waits for it. Whether it was done."""
        return not self._begun.acquire(blocking=False) and self.wait() and self.error is None

    def wait(self, limit: float | None = None) -> bool:
        """Waits until it is done, at most `limit` seconds. Whether it is."""
        end = None if limit is None else time.monotonic() + limit
        mine = threads.allocate_lock()
        mine.acquire()
        self._waiting.append(mine)
        while not self.done:
            left = _SLICE if end is None else min(_SLICE, end - time.monotonic())
            if left <= 0 or this_process() != self._owner or finalizing():
                return False
            mine.acquire(timeout=left)
            # In this order, for a thread that does its work says so before it ends.
            thread = self._thread
            if thread is not None and thread() is None and not self.done:
                if self._begun.locked():
                    raise MemoryError
                self._thread = None  # from here on this one does it, and others wait for that
                self.run()
        return True

    def result(self) -> _T:
        """Waits for it. What it gives or raises; RuntimeError where nobody does it any more: in a forked child, and
        when the interpreter finalizes."""
        if not self.wait():
            if finalizing():
                raise RuntimeError("the interpreter is shutting down, and the thread that does this with it")
            raise RuntimeError("this process was forked in the middle of a wait for what only its parent does")
        try:
            if self.error is not None:
                raise self.error if self._raised.acquire(blocking=False) else _another(self.error)
            return cast(_T, self._value)
        finally:
            del self  # as above


def _another(error: BaseException) -> BaseException:
    """The same error for one more thread. An exception collects the frames, with what is in them, of each place that
    raises it, and callers add to it what they had called."""
    try:
        other = copy.copy(error)
    except Exception:  # a class whose constructor takes something else than its arguments
        return error
    other.__cause__, other.__context__ = error.__cause__, error.__context__
    other.__suppress_context__ = error.__suppress_context__
    return other


def do(work: Callable[[], _T]) -> _T:
    """Does it aside, and waits for it."""
    if here():
        return work()
    task = Task(work)
    task.start()
    return task.result()


def get(work: Callable[[], _T], dispose: Callable[[_T], object]) -> _T:
    """As :func:`do`, for something that has to be given back: by `dispose`, if the caller is interrupted before it
    has it."""
    if here():
        return work()
    task = Task(work)
    try:
        task.start()
        return task.result()
    except BaseException:
        if task.error is None:
            # A call in C, before which Python runs no signal handler.
            try:
                threads.start_new_thread(run, (_dispose, task, dispose))
            except NO_THREAD:
                _dispose(task, dispose)
        raise


def _dispose(task: Task[_T], dispose: Callable[[_T], object]) -> None:
    if task.end():
        dispose(task.result())


class Lock:
    """A reentrant lock for such work. When the interpreter finalizes it is no obstacle: a thread that has it then will
    never give it back, and is in nobody's way."""

    def __init__(self) -> None:
        self._lock = threads.RLock()
        self._lost = False

    def acquire(self, timeout: float = -1) -> bool:
        """Whether it was taken, within `timeout` seconds (-1: however long it takes)."""
        end = None if timeout < 0 else time.monotonic() + timeout
        while not self._lost:
            left = _SLICE if end is None else min(_SLICE, end - time.monotonic())
            if self._lock.acquire(timeout=max(0.0, left)):
                return True
            if finalizing():
                self._lost = True
            elif left <= 0:
                return False
        return True

    def release(self) -> None:
        if not self._lost:
            self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


def _after_fork_in_child() -> None:
    _here.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)

__all__ = ["NO_THREAD", "Lock", "Task", "do", "finalizing", "get", "here", "run", "start"]
