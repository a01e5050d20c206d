# SPDX-License-Identifier: Apache-2.0
"""Blocks: what ``with nvml_isolated():`` and ``install()`` open, and how blocks with equal options share one."""

from __future__ import annotations

import atexit
import contextvars
import logging
import os
import threading
import types
from collections.abc import Callable
from typing import Any, Protocol, cast

from nvsandbox import options as options_
from nvsandbox.bindings import Library, bind, draft
from nvsandbox.options import Options
from nvsandbox.routing import Route
from nvsandbox.session import NVMLSession
from nvsandbox.sharing import registry

_log = logging.getLogger("nvsandbox")


def _acquire(options: Options, meanwhile: Callable[[], None]) -> NVMLSession:
    """The session with these options, or a new one. `meanwhile` is called while its worker starts."""
    with registry.lock:
        starting = registry.starting.setdefault(options, threading.Lock())
    # A start may take a minute: blocks with other options do not wait for it.
    with starting:
        with registry.lock:
            session = registry.sessions.get(options)
            if session is not None:
                session._users += 1
                return session
        session = NVMLSession(options, meanwhile)
        with registry.lock:
            session._users = 1
            registry.sessions[options] = session
        return session


def _release(session: NVMLSession) -> None:
    with registry.lock:
        session._users -= 1
        last = session._users <= 0
        # Here and not in close(): a block that is entered now must not get a session that is about to be closed.
        if last and registry.sessions.get(session.options) is session:
            del registry.sessions[session.options]
    if last:
        session.close()


class NVML(Protocol):
    """What a block yields, for type checkers: the installed pynvml's names, untyped as they are, and ``session``."""

    @property
    def session(self) -> NVMLSession: ...
    def __getattr__(self, name: str) -> Any: ...


class nvml_isolated:  # noqa: N801 - used as a function
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
        self._open: list[tuple[NVMLSession, Library, Route]] = []

    def __enter__(self) -> NVML:
        # Made while the worker starts: it takes half as long as that.
        drafts: list[types.ModuleType] = []
        session = _acquire(self._options, lambda: drafts.append(draft()))
        try:
            library = Library(session, session.link)
            nvml = bind(drafts[0] if drafts else draft(), library, session)
            route = Route(library)
            route.open()
        except BaseException:
            _release(session)
            raise
        block = session, library, route
        self._open.append(block)
        _entered.set((*(one for one in _entered.get() if one[1] in one[0]._open), (self, block)))
        return cast(NVML, nvml)

    def __exit__(self, *exc: object) -> None:
        session, library, route = self._leave()
        try:
            try:
                route.close()
            finally:
                library._close()
        finally:
            _release(session)

    def _leave(self) -> tuple[NVMLSession, Library, Route]:
        """The block that is left: the last that was entered here, or if it was entered elsewhere, the last of all."""
        for one in reversed(_entered.get()):
            owner, block = one
            if owner is self and block in self._open:
                self._open.remove(block)
                _entered.set(tuple(other for other in _entered.get() if other is not one))
                return block
        return self._open.pop()


# The blocks that this thread or task has entered: one object may be used by many at a time. One variable for all
# objects, for a context never forgets a variable.
_entered: contextvars.ContextVar[tuple[tuple[nvml_isolated, tuple[NVMLSession, Library, Route]], ...]] = (
    contextvars.ContextVar("nvsandbox_entered", default=())
)


_installed: dict[Options, NVML] = {}
_install_lock = threading.RLock()  # held during a start, as the registry's must not be: who starts needs that


def install(**options: Any) -> NVML:
    """As :class:`nvml_isolated`, for the rest of this process's life; returns what ``with`` would yield.

    A second call with equal options returns the same. Raises what making and entering :class:`nvml_isolated` raises.
    """
    block = nvml_isolated(**options)
    with _install_lock:
        if block._options not in _installed:
            _installed[block._options] = block.__enter__()
        return _installed[block._options]


def _close_all() -> None:
    with registry.lock:
        sessions = list(registry.sessions.values())
    for session in sessions:
        try:
            session.close()
        except Exception:
            _log.exception("closing %r", session)


def _after_fork_in_child() -> None:
    # Locks may be held by threads that do not exist here.
    global _install_lock
    _install_lock = threading.RLock()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork_in_child)

__all__ = ["NVML", "install", "nvml_isolated"]
