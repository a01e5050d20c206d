# SPDX-License-Identifier: Apache-2.0
"""Blocks: what ``with nvml_isolated():`` and ``install()`` open, and how blocks with equal options share one."""

from __future__ import annotations

import atexit
import contextvars
import logging
import os
import types
from collections.abc import Callable
from typing import Any, Protocol, cast

from nvsandbox import _fast, aside, copies, inheriting, proof, threads
from nvsandbox import options as options_
from nvsandbox.bindings import Library, bind, draft
from nvsandbox.errors import SandboxClosed
from nvsandbox.forks import this_process
from nvsandbox.options import Options
from nvsandbox.routing import Route
from nvsandbox.session import NVMLSession, close
from nvsandbox.sharing import registry

_log = logging.getLogger("nvsandbox")


class _Block:
    """One entering of a block, and all that it holds. For a thread of our own: see aside.py."""

    def __init__(self) -> None:
        self.session: NVMLSession | None = None
        self.library: Library | None = None
        self.route: Route | None = None
        self.nvml: types.ModuleType | None = None

    def open(self, options: Options) -> None:
        if aside.finalizing():
            raise SandboxClosed("no sandbox can be opened any more: the interpreter is shutting down")
        try:
            copies.main()  # before anything is started: it says what cannot be bound
            with registry.lock:
                self.session = registry.sessions.get(options)
                if self.session is None:
                    self.session = registry.sessions[options] = NVMLSession(options)
                self.session.blocks.add(self)
            drafts: list[types.ModuleType] = []
            if self.session.keeper.worker is None:
                # Made while the worker starts: it takes half as long as that.
                self.session.keeper.meanwhile = lambda: drafts.append(draft())
                self.session._running()
            self.library = Library(self.session, self.session.link)
            self.nvml = bind(drafts[0] if drafts else draft(), self.library, self.session)
            self.route = Route(self.library)
            self.route.open()
        except BaseException:
            self.close()
            raise

    def prove(self) -> None:
        """Raises unless its calls come to the worker. In the thread that enters, which has a use for the channel."""
        assert self.nvml is not None
        assert self.library is not None
        assert self.session is not None
        try:
            proof.of_worker(self.nvml, self.library, self.session._check_answers)
        except Exception:
            aside.do(self.close)
            raise

    def close(self) -> None:
        """Gives back what it holds, whatever that is by now. Idempotent."""
        try:
            if self.route is not None:
                self.route.close()
            if self.library is not None:
                self.library._close()
        finally:
            self.leave()
            self.session = self.library = self.route = self.nvml = None  # in a context it may be remembered for longer

    def leave(self) -> None:
        """Leaves the session, and ends that if no other block is in it."""
        session = self.session
        if session is None:
            return
        with registry.lock:
            last = self in session.blocks and len(session.blocks) == 1
            session.blocks.discard(self)
            # Here and not in close(): a block that is entered now must not get a session that is about to be closed.
            if last:
                registry.forget(session)
        if last:
            session.close()


class NVML(Protocol):
    """What a block yields, for type checkers: the installed pynvml's names, untyped as they are, and ``session``."""

    @property
    def session(self) -> NVMLSession: ...
    def __getattr__(self, name: str) -> Any: ...


class nvml_isolated(_fast.Block):  # noqa: N801 - used as a function
    """A block in which NVML runs in a sandbox::

        with nvml_isolated() as nvml:
            print(nvml.nvmlDeviceGetCount())

    Yields the whole pynvml API, bound to the sandbox; ``nvml.session`` is the :class:`NVMLSession`. While the block
    is open, plain ``pynvml`` calls go to the sandbox too, in every thread of this process and in third-party code.
    NVML is initialised when the block is entered and shut down when it is left. Blocks with equal options share one
    worker.

    All options are keyword-only; the environment gives defaults (``NVSANDBOX_TIMEOUT`` for ``timeout`` and so on).

    driver_root: root of the tree that holds the driver's libraries (default ``/``, or ``NVIDIA_DRIVER_ROOT``).
    dev_root: root whose ``dev`` holds the NVIDIA nodes (default: the driver root, if it has nodes, else ``/``).
    library: path of ``libnvidia-ml.so.1`` (default: searched for under the driver root).
    isolation: ``"mount"``, ``"user"``, ``"guard"``, or ``"auto"`` for the first of these that works here.
    devices: the GPUs to show: device minor numbers (0 for ``/dev/nvidia0``), node names, UUIDs, PCI bus ids; None for
    all. Not possible with ``"guard"``, where NVML sees the host's ``/dev``.
    privileged: keep CAP_SYS_ADMIN in the worker, which NVML's setters need. Of no effect with ``"user"``.
    timeout: seconds that a call may take; None for no limit. An event wait's own timeout is added. A start has its own
    limit of 60 seconds.
    restart: whether a call starts a new worker when the old one is gone; a number says how many times in a minute
    (True: 20).
    recycle_after: calls (a number) or resident memory (such as ``"256MiB"``) after which the worker is replaced.
    transport: ``"shm"``, ``"pipe"``, or ``"auto"``.
    simulate: description of simulated GPUs, such as ``"h100x8"``, instead of a driver.

    Raises TypeError or ValueError at once for wrong options. On entering: SandboxUnavailable, SandboxStartError,
    LibraryNotFound (also a ``pynvml.NVMLError_LibraryNotFound``), or the ``pynvml.NVMLError`` that nvmlInit returned.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options_.make(options)
        self._open: list[_Block] = []

    def __enter__(self) -> NVML:
        block = _Block()
        opening = aside.Task(lambda: block.open(self._options))
        try:
            opening.start()
            opening.result()
            block.prove()
            self._open.append(block)
            _entered.set((*_still_entered(), (self, block)))
            return cast(NVML, block.nvml)
        except BaseException:
            # Also a signal handler's, which Python runs at calls and jumps back: none comes after the last call above,
            # and none before the one below.
            if opening.error is None:
                try:
                    threads.start_new_thread(aside.run, (self._undo, block, opening))
                except aside.NO_THREAD:
                    self._undo(block, opening)
            raise

    def _undo(self, block: _Block, opening: aside.Task[None]) -> None:
        """After an entering that its caller does not wait for any more."""
        if block in self._open:
            self._open.remove(block)
        block.leave()  # which ends the start if nobody else waits for it
        opening.end()
        block.close()

    # __exit__ is in C, where no signal handler comes in before it has started a thread that does _leave(); then it does
    # _left() itself.

    def _leave(self, outcome: list[BaseException], done: Any) -> None:
        """Leaves the block that was entered last: here, or if it was entered elsewhere, of all."""
        try:
            last = self._last()
            if last is not None:  # leaving once more is fine
                aside.run(last.close)
        except BaseException as error:
            outcome.append(error)
        finally:
            done.release()

    def _left(self, outcome: list[BaseException], done: Any, thread: Callable[[], object]) -> None:
        owner = this_process()
        while not done.acquire(timeout=0.1):
            if this_process() != owner:  # a forked child, in which there is no such thread
                return
            if thread() is None and not outcome and done.locked():
                self._leave(outcome, done)  # the thread has ended before its first step, for want of memory
        _entered.set(_still_entered())
        if outcome:
            raise outcome.pop()

    def _last(self) -> _Block | None:
        for owner, block in reversed(_entered.get()):  # in the context of who leaves it
            if owner is self and block in self._open:
                self._open.remove(block)
                return block
        try:
            return self._open.pop()
        except IndexError:
            return None


# The blocks that this thread or task has entered: one object may be used by many at a time. One variable for all
# objects, for a context never forgets a variable.
_entered: contextvars.ContextVar[tuple[tuple[nvml_isolated, _Block], ...]] = contextvars.ContextVar(
    "nvsandbox_entered", default=()
)


def _still_entered() -> tuple[tuple[nvml_isolated, _Block], ...]:
    return tuple(one for one in _entered.get() if one[1] in one[0]._open)


_installed: dict[Options, tuple[nvml_isolated, NVML]] = {}
_install_lock = threads.RLock()  # held during a start, as the registry's must not be: who starts needs that


def install(*, inherit: bool | None = None, **options: Any) -> NVML:
    """As :class:`nvml_isolated`, for the rest of this process's life; returns what ``with`` would yield.

    A second call with equal options returns the same; after its session was closed (``nvml.session.close()``, which
    lets the driver go) it opens a new one. Raises what making and entering :class:`nvml_isolated` raises.

    inherit: whether Python programs that this process starts from now on do the same when they import pynvml, in
    workers of their own (default: yes, or ``NVSANDBOX_INHERIT``).
    """
    follow = inheriting.wanted(inherit)
    block = nvml_isolated(**options)
    with _install_lock:
        if block._options in _installed and _installed[block._options][1].session.closed:
            closed, _ = _installed.pop(block._options)
            closed.__exit__(None, None, None)  # else plain pynvml calls would still go there
        if block._options not in _installed:
            try:
                _installed[block._options] = (block, block.__enter__())
            except BaseException:
                # A signal handler's may come when it is entered.
                if block._open and block._options not in _installed:
                    block.__exit__(None, None, None)
                raise
        inheriting.leave(block._options, follow)
        return _installed[block._options][1]


def _close_all() -> None:
    with registry.lock:
        sessions = list(registry.sessions.values())
    try:
        close(sessions)
    except Exception:
        _log.exception("closing %r", sessions)


def _after_fork_in_child() -> None:
    # Locks may be held by threads that do not exist here.
    global _install_lock
    _install_lock = threads.RLock()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork_in_child)

__all__ = ["NVML", "install", "nvml_isolated"]
