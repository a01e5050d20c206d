# SPDX-License-Identifier: Apache-2.0
"""Sandboxes: what ``with nvml_isolated():`` opens, shares and closes."""

from __future__ import annotations

import atexit
import logging
import os
import re
import stat
import threading
import time
import types
from typing import Any

import pynvml

from nvsandbox import diagnose, marshal
from nvsandbox import isolation as ladder
from nvsandbox import options as options_
from nvsandbox._core import lib
from nvsandbox.bindings import Library, namespace
from nvsandbox.errors import (
    CallTimeout,
    LibraryNotFound,
    SandboxClosed,
    SandboxError,
    SandboxStartError,
    SandboxUnavailable,
    StaleHandle,
    nvml_error,
)
from nvsandbox.options import Options
from nvsandbox.revival import Recipes
from nvsandbox.routing import Route
from nvsandbox.worker import Worker

_log = logging.getLogger("nvsandbox")

_NVML_SUCCESS = 0
_NVML_ERROR_INVALID_ARGUMENT = 2
_NVML_ERROR_DRIVER_NOT_LOADED = 9
_NVML_ERROR_FUNCTION_NOT_FOUND = 13
_NVML_ERROR_MEMORY = 20
_NVML_ERROR_UNKNOWN = 999

# A failure at one of these means that this isolation is not possible here; at another, that no isolation would help.
_ISOLATION_STEPS = frozenset(
    {
        "user namespace",
        "id map",
        "mount namespace",
        "propagation",
        "tmpfs on /dev",
        "base nodes",
        "NVIDIA nodes",
        "driver parameters",
        "capabilities",
        "no_new_privs",
        "seccomp",
        "self check",
        "verification",
    }
)

# After these, NVML's memory behind the handles that they were given is gone.
_RETIRES = re.compile(r"(Free|Destroy)(_v[0-9]+)?$")

_HINT_SECONDS = 10.0

_NVIDIA_FOLDERS = ("", "nvidia-caps", "nvidia-caps-imex-channels")


class DeviceNode(str):
    """A node in the private ``/dev``: its path, with ``major``, ``minor`` and ``mode`` (permission bits) as
    attributes."""

    major: int
    minor: int
    mode: int

    def __new__(cls, path: str, status: os.stat_result) -> DeviceNode:
        node = super().__new__(cls, path)
        node.major = os.major(status.st_rdev)
        node.minor = os.minor(status.st_rdev)
        node.mode = stat.S_IMODE(status.st_mode)
        return node

    def __reduce__(self) -> Any:
        return _node, (str(self), self.major, self.minor, self.mode)


def _node(path: str, major: int, minor: int, mode: int) -> DeviceNode:
    """For pickle."""
    node = str.__new__(DeviceNode, path)
    node.major, node.minor, node.mode = major, minor, mode
    return node


class NVMLSession:
    """An open sandbox: one worker process, shared by all blocks with equal options.

    Made by :func:`nvml_isolated`; not by hand. Its methods may be called from any thread.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self._lock = threading.RLock()
        self._closed = False
        self._users = 0
        self._counts = {"calls": 0, "errors": 0, "timeouts": 0, "deaths": 0, "restarts": 0}
        self._ending: list[Worker] = []  # given up, and not known to have ended yet
        self._recipes = Recipes()
        self._hint_text = ""
        self._hint_until = 0.0
        self._worker: Worker | None = self._start()

    # ---- what users see

    @property
    def pid(self) -> int:
        """Process id of the worker. Where the worker is gone a new one is started first, as for all but :meth:`stats`
        and :meth:`close`; SandboxClosed after the end."""
        return self._running().pid

    @property
    def isolation(self) -> str:
        """The step of the isolation ladder that this sandbox runs at: ``"mount"``, ``"user"`` or ``"guard"``."""
        return self._running().isolation

    @property
    def library(self) -> str:
        """Path of the ``libnvidia-ml.so.1`` that the worker has loaded."""
        return self._running().library

    def dev_nodes(self) -> list[DeviceNode]:
        """The NVIDIA device nodes that the worker sees in its ``/dev``, sorted by path.

        With ``isolation="guard"`` this is the ``/dev`` of the caller.
        """
        pid = self._running().pid
        found = []
        for folder in _NVIDIA_FOLDERS:
            inside = os.path.join("/dev", folder) if folder else "/dev"
            outside = f"/proc/{pid}/root{inside}"
            try:
                names = os.listdir(outside)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise SandboxError(f"cannot list the worker's {inside}: {error.strerror} ({outside})") from error
            for name in names:
                status = os.lstat(os.path.join(outside, name))
                ours = folder or name.startswith("nvidia")  # channel0 is in a folder of NVIDIA's
                if ours and (stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)):
                    found.append(DeviceNode(os.path.join(inside, name), status))
        return sorted(found)

    def stats(self) -> dict[str, int]:
        """Counts since the session began: ``calls``, ``errors`` (calls that NVML did not answer with success),
        ``timeouts``, ``deaths`` (of workers that were needed) and ``restarts``."""
        with self._lock:
            return dict(self._counts)

    def close(self) -> None:
        """Shuts NVML down and ends the worker, whoever else still uses the session. Idempotent;
        takes some seconds at most."""
        with _registry_lock:
            if _registry.get(self.options) is self:
                del _registry[self.options]
        with self._lock:
            self._closed = True
            worker, self._worker = self._worker, None
        if worker is not None and worker.alive:
            worker.closing = True
        for ending in (*self._ending, worker):
            if ending is not None and ending.owner == os.getpid():
                ending.stop()

    def __repr__(self) -> str:
        worker = self._worker
        state = "closed" if self._closed else f"worker {worker.pid}, {worker.isolation}" if worker else "no worker"
        return f"<NVMLSession: {state}>"

    # ---- the worker

    def _start(self) -> Worker:
        options = self.options
        if options.isolation == "mount" and not ladder.has_sys_admin():
            raise SandboxUnavailable(ladder.REMEDIES["mount"], (("mount", "no CAP_SYS_ADMIN"),))
        attempts: list[tuple[str, str]] = []
        for step in ladder.steps(options.isolation):
            try:
                worker = Worker(options, step)
            except LibraryNotFound:
                raise
            except SandboxStartError as error:
                if error.step not in _ISOLATION_STEPS:
                    raise
                attempts.append((step, str(error)))
                _log.info("isolation %r is not possible here: %s", step, error)
                cause = error
                continue
            if worker.init_result != _NVML_SUCCESS:
                worker.stop()
                raise nvml_error(worker.init_result, self._hint(worker))
            return worker
        tried = "; ".join(f"{step}: {reason}" for step, reason in attempts)
        raise SandboxUnavailable(
            f"isolation={options.isolation!r} is not possible here: {tried}", tuple(attempts)
        ) from cause

    @staticmethod
    def _hint(worker: Worker) -> str:
        hint = f"nvmlInit in {worker.library}, isolation {worker.isolation!r}"
        if worker.init_result == _NVML_ERROR_DRIVER_NOT_LOADED:
            hint += (
                "; the driver is not loaded, or its nodes cannot be used: see nvidia in /proc/devices, and the dev root"
            )
        return hint

    def _running(self) -> Worker:
        """The worker, or a new one where it is gone."""
        worker = self._worker
        if worker is not None and worker.alive and worker.owner == os.getpid():
            return worker
        with self._lock:
            if self._closed:
                raise SandboxClosed("this sandbox is closed; open a new one with nvml_isolated()")
            worker = self._worker
            if worker is not None and worker.owner != os.getpid():
                worker = None  # the parent's; a process that was forked from it gets its own
            elif worker is not None:
                if worker.alive:
                    return worker
                self._counts["deaths"] += 1
                self._retire(worker)
                if not self.options.restart:
                    raise worker.death("")
                self._counts["restarts"] += 1
                _log.warning("the NVML worker is gone (%s); starting a new one", worker.death(""))
            self._worker = self._start()
            return self._worker

    def _retire(self, worker: Worker) -> None:
        """Takes leave of a worker that is gone, or that hangs: then its end goes on without us waiting for it."""
        self._ending = [ending for ending in self._ending if not ending.wait_ended(0)]
        if worker.wait_ended(0):
            worker.stop()
        else:
            self._ending.append(worker)

    # ---- calls

    def has_function(self, name: str) -> bool:
        """Whether the loaded library has this symbol. Raises as :meth:`call` does."""
        return self._running().function(name, self.options.timeout) is not None

    def call(self, name: str, arguments: tuple[Any, ...], returns_string: bool = False) -> Any:
        """Calls a function of NVML in the worker with ctypes arguments, and gives what it returns: an int, or bytes
        or None.

        Raises CallTimeout, WorkerDied, StaleHandle, SandboxClosed.
        """
        worker = self._running()
        call = self._prepare(name, arguments, returns_string)
        if worker.tokens:
            call.replace(worker.tokens)
        limit = self._limit(name, arguments)
        try:
            reply = self._send(worker, call, limit)
            if reply.status == lib.NVS_STATUS_STALE_HANDLE and self._recipes.revive(
                call.tokens(), worker.tokens, lambda name, arguments: self._ask(worker, name, arguments)
            ):
                # It was not carried out.
                call.replace(worker.tokens)
                reply = self._send(worker, call, limit)
        except CallTimeout:
            self._count("timeouts")
            raise
        result = self._result(call, reply, returns_string)
        if result == _NVML_SUCCESS and "Handle" in name and self.options.restart:
            self._recipes.remember(name, arguments, lambda name, arguments: self._ask(worker, name, arguments))
        return result

    @staticmethod
    def _prepare(name: str, arguments: tuple[Any, ...], returns_string: bool) -> marshal.Call:
        flags = lib.NVS_CALL_RETURNS_STRING if returns_string else 0
        if _RETIRES.search(name):
            flags |= lib.NVS_CALL_RETIRES
        return marshal.Call(name, arguments, flags)

    @staticmethod
    def _send(worker: Worker, call: marshal.Call, limit: float | None) -> marshal.Reply:
        index = worker.function(call.name, limit)
        if index is None:
            return marshal.Reply(lib.NVS_STATUS_NO_SYMBOL, 0, 0, memoryview(b""), b"")
        return worker.exchange(call.name, call.frame(index), limit)

    def _ask(self, worker: Worker, name: str, arguments: tuple[Any, ...]) -> int:
        """A call for the sandbox's own purposes: not counted, and nothing more done about what goes wrong."""
        call = self._prepare(name, arguments, False)
        reply = self._send(worker, call, self.options.timeout)
        if reply.status != lib.NVS_STATUS_OK:
            return _NVML_ERROR_UNKNOWN
        call.accept(reply)
        return reply.result & 0xFFFFFFFF

    def _result(self, call: marshal.Call, reply: marshal.Reply, returns_string: bool) -> Any:
        status = reply.status
        if status == lib.NVS_STATUS_OK:
            call.accept(reply)
            if returns_string:
                self._count("calls")
                return reply.string(reply.result - 1) if reply.result else None
            result = reply.result & 0xFFFFFFFF
            self._count("calls", "errors" if result else None)
            return result - (1 << 32) if result >> 31 else result
        self._count("calls", "errors")
        if status == lib.NVS_STATUS_STALE_HANDLE:
            raise StaleHandle(call.name)
        if status == lib.NVS_STATUS_NO_SYMBOL:
            return _NVML_ERROR_FUNCTION_NOT_FOUND
        if status == lib.NVS_STATUS_BAD_HANDLE:
            return _NVML_ERROR_INVALID_ARGUMENT
        if status == lib.NVS_STATUS_NO_MEMORY:
            return _NVML_ERROR_MEMORY
        raise SandboxError(f"{call.name}: the worker refused the call (status {status}); please report this")

    def _limit(self, name: str, arguments: tuple[Any, ...]) -> float | None:
        """The time limit of a call. An event wait's own timeout is added to the session's."""
        limit = self.options.timeout
        if limit is None or "EventSetWait" not in name:
            return limit
        return limit + marshal.wait_milliseconds(arguments) / 1000

    def hint(self) -> str:
        """Why NVML may have said Unknown Error: which node of this sandbox cannot be opened, and why; "" if all can.

        Looked up at most every ten seconds, for a failing monitor asks often. Also logged.
        """
        if self.options.simulate is not None:  # no driver, so that there is nothing to open
            return ""
        with self._lock:
            now = time.monotonic()
            if now >= self._hint_until:
                self._hint_until = now + _HINT_SECONDS
                try:
                    pid = self._running().pid
                    nodes = [(str(node), node.major) for node in self.dev_nodes() if "/nvidia-caps" not in node]
                    self._hint_text = "; ".join(diagnose.unusable_nodes(pid, nodes))
                except (SandboxError, OSError, pynvml.NVMLError):
                    self._hint_text = ""
                if self._hint_text:
                    _log.warning("NVML says Unknown Error: %s", self._hint_text)
            return self._hint_text

    def _count(self, *names: str | None) -> None:
        with self._lock:
            for name in names:
                if name is not None:
                    self._counts[name] += 1


# ---- sharing ---------------------------------------------------------------------------------------------------

_registry_lock = threading.RLock()
_registry: dict[Options, NVMLSession] = {}
_starting: dict[Options, threading.Lock] = {}


def _acquire(options: Options) -> NVMLSession:
    with _registry_lock:
        starting = _starting.setdefault(options, threading.Lock())
    # A start may take a minute: blocks with other options do not wait for it.
    with starting:
        with _registry_lock:
            session = _registry.get(options)
            if session is not None:
                session._users += 1
                return session
        session = NVMLSession(options)
        with _registry_lock:
            session._users = 1
            _registry[options] = session
        return session


def _release(session: NVMLSession) -> None:
    with _registry_lock:
        session._users -= 1
        last = session._users <= 0
        if last:
            _starting.pop(session.options, None)
    if last:
        session.close()


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
    restart: whether a call starts a new worker when the old one is gone.
    transport: ``"shm"``, ``"pipe"``, or ``"auto"``.
    simulate: description of simulated GPUs, such as ``"h100x8"``, instead of a driver.

    Raises TypeError or ValueError at once for wrong options. On entering: SandboxUnavailable, SandboxStartError,
    LibraryNotFound (also a ``pynvml.NVMLError_LibraryNotFound``), or the ``pynvml.NVMLError`` that nvmlInit returned.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options_.make(options)
        self._open: list[tuple[NVMLSession, Library, Route]] = []

    def __enter__(self) -> Any:
        session = _acquire(self._options)
        try:
            library = Library(session)
            nvml: types.ModuleType = namespace(library, session)
            route = Route(library)
            route.open()
        except BaseException:
            _release(session)
            raise
        self._open.append((session, library, route))
        return nvml

    def __exit__(self, *exc: object) -> None:
        session, library, route = self._open.pop()
        try:
            route.close()
            library._close()
        finally:
            _release(session)


_installed: dict[Options, Any] = {}


def install(**options: Any) -> Any:
    """As :class:`nvml_isolated`, for the rest of this process's life; returns what ``with`` would yield.

    A second call with equal options returns the same. Raises what making and entering :class:`nvml_isolated` raises.
    """
    block = nvml_isolated(**options)
    with _registry_lock:
        if block._options not in _installed:
            _installed[block._options] = block.__enter__()
        return _installed[block._options]


def _close_all() -> None:
    with _registry_lock:
        sessions = list(_registry.values())
    for session in sessions:
        try:
            session.close()
        except Exception:
            _log.exception("closing %r", session)


def _after_fork_in_child() -> None:
    # Locks may be held by threads that do not exist here.
    global _registry_lock
    _registry_lock = threading.RLock()
    _starting.clear()
    for session in list(_registry.values()):
        session._lock = threading.RLock()
        worker = session._worker
        if worker is not None:
            worker.abandon()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork_in_child)

__all__ = ["DeviceNode", "NVMLSession", "install", "nvml_isolated"]
