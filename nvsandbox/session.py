# SPDX-License-Identifier: Apache-2.0
"""An open sandbox: its worker, the calls to it, and what is to happen when it is gone."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypedDict, TypeVar

import pynvml

from nvsandbox import _fast, aside, devnodes, diagnose, marshal, plans, threads
from nvsandbox import keeper as keeper_
from nvsandbox._core import lib
from nvsandbox.channels import Lane
from nvsandbox.ending import given_up
from nvsandbox.errors import (
    CallFailed,
    CallTimeout,
    SandboxClosed,
    SandboxError,
    StaleHandle,
    WorkerDied,
    nvml_error,
)
from nvsandbox.keeper import Keeper
from nvsandbox.latency import Latency, Recorder
from nvsandbox.options import Options
from nvsandbox.revival import Recipes
from nvsandbox.sharing import registry
from nvsandbox.weakly import Weakly
from nvsandbox.worker import LOOK_EVERY, Worker

_log = logging.getLogger("nvsandbox")
_T = TypeVar("_T")

_NVML_SUCCESS = 0
_NVML_ERROR_INVALID_ARGUMENT = 2
_NVML_ERROR_FUNCTION_NOT_FOUND = 13
_NVML_ERROR_MEMORY = 20
_NVML_ERROR_UNKNOWN = 999

# After these, NVML's memory behind the handles that they were given is gone.
_RETIRES = re.compile(r"(Free|Destroy)(_v[0-9]+)?$")

# These make what only their worker knows, until it is freed.
_MAKES_STATE = re.compile(r"(Create|Alloc)(_v[0-9]+)?$")

_HINT_SECONDS = 10.0

_LONGEST = 1e9
"""Seconds, some thirty years: what is longer is no deadline."""

_TRIES_UNSENT = 4
"""How many workers a call is brought to, when each is gone before it could be handed over."""


class _Deadline:
    """A deadline() block."""

    def __init__(self, session: NVMLSession, end: float) -> None:
        self.session: NVMLSession | None = session  # None after the block
        self.end = end


# Those that this thread or task is in, of whatever sessions; the innermost first.
_deadlines: contextvars.ContextVar[tuple[_Deadline, ...]] = contextvars.ContextVar("nvsandbox_deadlines", default=())


_sessions: Weakly[NVMLSession] = Weakly()
"""All that this process has, open or not: in a forked child each needs new locks."""


class Stats(TypedDict):
    """What :meth:`NVMLSession.stats` tells."""

    calls: int
    errors: int
    timeouts: int
    deaths: int
    restarts: int
    recycles: int
    abandoned: int
    latency: Latency


class NVMLSession:
    """An open sandbox: one worker process, shared by all blocks with equal options.

    Made by :func:`nvml_isolated`; not by hand. Its methods may be called from any thread.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.blocks: set[object] = set()
        """Those that are open in it."""
        # Reentrant, for signal handlers and finalizers call NVML too; and never held while something is waited for.
        self._counts_lock = threads.RLock()
        self._hint_lock = threads.RLock()
        self._counts = {"calls": 0, "errors": 0, "timeouts": 0, "deaths": 0}
        self._latency = Recorder()
        self._death_hooks: list[Callable[[WorkerDied], object]] = []
        self._restart_hooks: list[Callable[[NVMLSession], object]] = []
        self._recipes = Recipes()
        self._hint_text = ""
        self._hint_until = 0.0
        self.link = self._make_link()
        self.keeper = Keeper(options, self.link)
        self._last_death: WorkerDied | None = None
        _sessions.add(self)

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

    def dev_nodes(self) -> list[devnodes.DeviceNode]:
        """The NVIDIA device nodes that the worker sees in its ``/dev``, sorted by path.

        With ``isolation="guard"`` this is the ``/dev`` of the caller.
        """
        return devnodes.seen_by(self._running().pid)

    def stats(self) -> Stats:
        """Counts since the session began, in this process: ``calls``, ``errors`` (calls that NVML did not answer with
        success), ``timeouts``, ``deaths`` (of workers, that they hung included), ``restarts``, ``recycles``;
        ``abandoned``: how many worker processes there are now that even SIGKILL has not ended, with those of earlier
        sessions with equal options; and ``latency``: a histogram of how long the ``calls`` took, restarts that they
        waited for included. Of calls that are answered at once (within 4 microseconds) one in eight is timed, on
        average, and stands for those before it."""
        with self._counts_lock:
            calls, errors = self._counts["calls"], self._counts["errors"]
            if self.link is None:  # under the lock with which close() takes it away
                latency = self._latency.histogram()
            else:
                latency = self._latency.histogram(*self.link.latency())
                calls += self.link.calls
                errors += self.link.errors
            return {
                "calls": calls,
                "errors": errors,
                "timeouts": self._counts["timeouts"],
                "deaths": self._counts["deaths"],
                "restarts": self.keeper.counts["restarts"],
                "recycles": self.keeper.counts["recycles"],
                "abandoned": given_up(self.options),
                "latency": latency,
            }

    def _make_link(self) -> _fast.Link | None:
        """What the short way for calls asks this session; None where there is none."""
        if not plans.available or self.options.transport == "pipe":
            return None
        link = _fast.Link(self._fast_wait, self._fast_abandon, self._fast_learn, self.hint, _deadlines)
        after = self.options.recycle_after
        if after is not None:
            # Only the slow way looks whether the worker has served its time.
            link.look_every = min(after.calls or LOOK_EVERY, LOOK_EVERY)
        return link

    def _fast_wait(self, lane: Lane, name: str, waited: float) -> bool:
        """Ends the wait for the reply to a call of this thread, by raising, where there will be none. True where the
        request has not reached the worker, so that it can go to the next one."""
        error = self._fast_error(lane, name, waited)
        # It may have answered and then ended since the last look.
        if error is None or (not isinstance(error, CallTimeout) and lane.answered):
            return False
        if isinstance(error, WorkerDied) and not error.sent:
            return True
        raise error

    def _fast_error(self, lane: Lane, name: str, waited: float) -> SandboxError | None:
        worker = lane.worker
        if worker is None:
            if self.keeper.closed:
                return SandboxClosed(f"{name}: the sandbox was closed before this call was done")
            # Another thread has noticed its death before this one, and has already put a new one in its place.
            died = self._last_death
            how = (
                (None, None, "another thread has replaced it") if died is None else (died.signal, died.status, died.how)
            )
            return WorkerDied(name, *how, lane.taken)
        error = worker.fast_wait(name, waited, self.options.timeout)
        if isinstance(error, CallTimeout):
            self._count("timeouts")
        if isinstance(error, WorkerDied | CallTimeout):
            self._note_death(worker)
        return error

    def _fast_abandon(self, lane: Lane, broken: str | None = None) -> None:
        """Closes a lane on which a call has ended in the middle; `broken` names one whose reply was none."""
        worker = lane.worker
        if worker is not None:
            worker.abandon_lane(lane)
        else:
            lane.close()
        if broken is not None:
            if worker is None:
                raise WorkerDied(broken, None, None, "it broke the protocol")
            if worker.alive:
                worker.condemn("it broke the protocol: a reply of another kind than was asked for")
            self._note_death(worker)
            raise worker.death(broken)

    def _fast_learn(self, function: _fast.Function, arguments: tuple[Any, ...]) -> None:
        worker, link = self.keeper.worker, self.link  # once: close() takes it away meanwhile
        if worker is not None and link is not None and worker.serial == link.serial:
            name = function.__name__
            try:
                index = worker.function(name, None)
            except SandboxError:  # what this is about has its answer
                return
            if index is not None:
                plans.teach(function, worker.serial, index, arguments)

    @contextlib.contextmanager
    def deadline(self, seconds: float) -> Iterator[None]:
        """A block in which calls to this sandbox must be done within `seconds` from now, in place of ``timeout=``.

        A call that is not done by then raises CallTimeout, as does one that is made later, and one for which a new
        worker is not there by then; blocks may be nested, and the earliest deadline counts. It holds for this thread,
        or asyncio task, and what is started with its context.
        """
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
            raise ValueError(f"seconds={seconds!r}: expected a number of seconds, 0 or more")
        end = time.monotonic() + min(seconds, _LONGEST)  # an int may be more than a float can be
        outer = self._deadline()
        block = _Deadline(self, end if outer is None else min(end, outer))
        link = self.link
        try:
            _deadlines.set((block, *_open_deadlines()))
            # The short way does not know them.
            if link is not None:
                link.suspend(1)
            yield
        finally:
            block.session = None  # before any call, at which a signal handler may come
            _deadlines.set(_open_deadlines())
            if link is not None:
                link.suspend(-1)

    def _deadline(self) -> float | None:
        for block in _deadlines.get():
            if block.session is self:
                return block.end
        return None

    def on_death(self, hook: Callable[[WorkerDied], object]) -> Callable[[WorkerDied], object]:
        """Has `hook` called with a WorkerDied, once for each worker that dies or hangs, by the thread that meets it.

        What a hook raises is logged. Returns `hook`, so that this can be used as a decorator.
        """
        self._death_hooks.append(hook)
        return hook

    def on_restart(self, hook: Callable[[NVMLSession], object]) -> Callable[[NVMLSession], object]:
        """Has `hook` called with this session after each restart, by a thread that needed
        it. As :meth:`on_death`."""
        self._restart_hooks.append(hook)
        return hook

    def close(self) -> None:
        """Shuts NVML down and ends the worker, whoever else still uses the session. Idempotent;
        takes some seconds at most."""
        aside.do(lambda: close([self]))

    @property
    def closed(self) -> bool:
        """Whether it has been closed, by :meth:`close` or by the end of its last block: calls raise SandboxClosed."""
        return self.keeper.closed

    def __repr__(self) -> str:
        worker = self.keeper.worker
        closed = self.keeper.closed
        state = "closed" if closed else f"worker {worker.pid}, {worker.isolation}" if worker else "no worker"
        return f"<NVMLSession: {state}>"

    # ---- the worker

    def _running(self, name: str = "") -> Worker:
        """The worker, or a new one where it is gone, for a call of `name`.

        Raises WorkerDied where there may be no new one (yet), CallTimeout where it is not there by the deadline, and
        what starting one raises.
        """
        worker = self.keeper.current()
        if worker is None or not worker.alive:
            if worker is not None:
                self._note_death(worker)
            end = self._deadline()
            worker = self.keeper.running(None if end is None else max(0.0, end - time.monotonic()))
            if worker is None:
                raise CallTimeout(name or "the start of a worker", 0.0, False)
        # Not only by those that have waited for it: where all their deadlines had passed before it was there, it is the
        # next call's to tell. A new worker's first call comes here, for no plan of the short way is for it yet.
        while self.keeper.untold:
            try:
                pid = self.keeper.untold.pop(0)
            except IndexError:  # another thread tells it
                break
            _log.warning("a new NVML worker, %d, has taken the place of the old one", pid)
            self._run_hooks(self._restart_hooks, self)
        return worker

    def _note_death(self, worker: Worker) -> None:
        """Counts and tells of the end of a worker that was needed, once."""
        with self._counts_lock:
            if worker.noted or worker.process.closing or worker.recycled:
                return
            worker.noted = True
            self._count("deaths")
            self.keeper.restarts.died(worker.answered)
        death = worker.death("")
        if isinstance(death, WorkerDied):
            self._last_death = death
            _log.warning("%s", death)
            self._run_hooks(self._death_hooks, death)

    @staticmethod
    def _run_hooks(hooks: list[Any], argument: object) -> None:
        for hook in list(hooks):
            try:
                hook(argument)
            except Exception:
                _log.exception("the hook %r failed", hook)

    # ---- calls

    def has_function(self, name: str) -> bool:
        """Whether the loaded library has this symbol. Raises as :meth:`call` does."""
        with _as_nvml_errors(name):
            return self._looked_up(name, lambda worker, limit: worker.function(name, limit) is not None)

    def _check_answers(self) -> None:
        """Has the worker answer, without NVML. Raises as :meth:`call` does, and what starting a worker raises."""
        self._looked_up("nvmlSandboxProof", Worker.check_answers)

    def _looked_up(self, name: str, look_up: Callable[[Worker, float | None], _T]) -> _T:
        for _ in range(_TRIES_UNSENT):
            worker = self._running(name)
            try:
                return look_up(worker, self._limit(name, ()))
            except (WorkerDied, CallTimeout) as error:
                self._note_death(worker)
                # Looking a name up changes nothing: it can be done again.
                if isinstance(error, CallTimeout) or not self.options.restart:
                    raise
                last = error
        raise last

    def call(self, name: str, arguments: tuple[Any, ...], returns_string: bool = False) -> Any:
        """Calls a function of NVML in the worker with ctypes arguments, and gives what it returns: an int, or bytes
        or None.

        Raises NVML errors alone: CallTimeout, WorkerDied, StaleHandle, SandboxClosed, CallFailed, and where this
        process has no memory left pynvml.NVMLError_Memory.
        """
        with _as_nvml_errors(name):
            return self._call(name, arguments, returns_string)

    def _call(self, name: str, arguments: tuple[Any, ...], returns_string: bool) -> Any:
        began = time.monotonic_ns()
        for _ in range(_TRIES_UNSENT):
            try:
                worker = self._running(name)
                result = self._call_in(worker, name, arguments, returns_string, began)
            except WorkerDied as error:
                # A call that did not reach its worker can go to the next one. One that did is never repeated.
                if error.sent or not self.options.restart or self.keeper.restarts.wait() > 0:
                    raise
                last = error
                continue
            except CallTimeout:
                self._count("timeouts")
                raise
            if self.options.recycle_after is not None and worker.outlived(self.options.recycle_after):
                self.keeper.recycle(worker)
            return result
        raise last

    def _call_in(self, worker: Worker, name: str, arguments: tuple[Any, ...], returns_string: bool, began: int) -> Any:
        if not _MAKES_STATE.search(name):
            return self._call_there(worker, name, arguments, returns_string, began)
        result = None
        self.keeper.stateful.append(None)
        try:
            if self.keeper.worker is not worker:  # it is being recycled
                raise worker.unsent(name)
            result = self._call_there(worker, name, arguments, returns_string, began)
            return result
        finally:
            if result != _NVML_SUCCESS:
                self._one_less()

    def _one_less(self) -> None:
        with contextlib.suppress(IndexError):  # it went with its worker
            self.keeper.stateful.pop()

    def _call_there(
        self, worker: Worker, name: str, arguments: tuple[Any, ...], returns_string: bool, began: int
    ) -> Any:
        call = self._prepare(name, arguments, returns_string)
        with self._counts_lock:
            worker.calls += 1
        if worker.tokens:
            call.replace(worker.tokens)
        limit = self._limit(name, arguments)
        reply = self._send(worker, call, limit)
        if reply.status == lib.NVS_STATUS_STALE_HANDLE and self._recipes.revive(
            call.tokens(), worker.tokens, lambda name, arguments: self._ask(worker, name, arguments)
        ):
            # It was not carried out.
            call.replace(worker.tokens)
            reply = self._send(worker, call, limit)
        result = self._result(call, reply, returns_string, began)
        if result == _NVML_SUCCESS:
            if "Handle" in name and self.options.restart:
                try:
                    self._recipes.remember(name, arguments, lambda name, arguments: self._ask(worker, name, arguments))
                except (WorkerDied, CallTimeout):
                    call.undo()  # if it is made again, it is to another worker, which does not know this handle
                    raise
            elif call.flags & lib.NVS_CALL_RETIRES:
                self._one_less()
        return result

    @staticmethod
    def _prepare(name: str, arguments: tuple[Any, ...], returns_string: bool) -> marshal.Call:
        flags = lib.NVS_CALL_RETURNS_STRING if returns_string else 0
        if _RETIRES.search(name):
            flags |= lib.NVS_CALL_RETIRES
        return marshal.Call(name, arguments, flags)

    def _send(self, worker: Worker, call: marshal.Call, limit: float | None) -> marshal.Reply:
        try:
            index = worker.function(call.name, limit)
            if index is None:
                return marshal.Reply(lib.NVS_STATUS_NO_SYMBOL, 0, 0, memoryview(b""), b"")
            return worker.exchange(call.name, call.frame(index), limit)
        except (WorkerDied, CallTimeout):
            self._note_death(worker)
            raise

    def _ask(self, worker: Worker, name: str, arguments: tuple[Any, ...]) -> int:
        """A call for the sandbox's own purposes: not counted, and nothing more done about what goes wrong."""
        call = self._prepare(name, arguments, False)
        reply = self._send(worker, call, self._limit(name, ()))
        if reply.status != lib.NVS_STATUS_OK:
            return _NVML_ERROR_UNKNOWN
        call.accept(reply)
        return reply.result & 0xFFFFFFFF

    def _result(self, call: marshal.Call, reply: marshal.Reply, returns_string: bool, began: int) -> Any:
        status = reply.status
        if status == lib.NVS_STATUS_OK:
            call.accept(reply)
            if returns_string:
                self._count_call(began, False)
                return reply.string(reply.result - 1) if reply.result else None
            result = reply.result & 0xFFFFFFFF
            self._count_call(began, result != 0)
            return result - (1 << 32) if result >> 31 else result
        self._count_call(began, True)
        if status == lib.NVS_STATUS_STALE_HANDLE:
            raise StaleHandle(call.name)
        if status == lib.NVS_STATUS_NO_SYMBOL:
            return _NVML_ERROR_FUNCTION_NOT_FOUND
        if status == lib.NVS_STATUS_BAD_HANDLE:
            return _NVML_ERROR_INVALID_ARGUMENT
        if status in (lib.NVS_STATUS_NO_MEMORY, lib.NVS_STATUS_TOO_LARGE):
            return _NVML_ERROR_MEMORY
        raise SandboxError(f"{call.name}: the worker refused the call (status {status}); please report this")

    def _limit(self, name: str, arguments: tuple[Any, ...]) -> float | None:
        """The time limit of a call: what is left until the deadline, or else the session's, to which an event wait's
        own timeout is added. Raises CallTimeout where nothing is left."""
        end = self._deadline()
        if end is not None:
            left = end - time.monotonic()
            if left <= 0:
                raise CallTimeout(name, 0.0, False)
            return left
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
        with self._hint_lock:
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

    def _count(self, name: str) -> None:
        with self._counts_lock:
            self._counts[name] += 1

    def _count_call(self, began: int, failed: bool) -> None:
        taken = time.monotonic_ns() - began
        with self._counts_lock:
            self._counts["calls"] += 1
            self._counts["errors"] += failed
            self._latency.add(taken)

    def _count_anew(self) -> None:
        """In a forked child: what the parent did is not this process's."""
        self._counts = dict.fromkeys(self._counts, 0)
        self._latency.clear()
        link = self.link
        if link is not None:
            link.reset()


class _as_nvml_errors:  # noqa: N801 - reads as the statement that it is
    """A block in which what the sandbox raises for the call of `name` becomes an NVML error, if it is none."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        # Such as: no descriptor is left for a channel, or a new worker cannot be started.
        if isinstance(error, SandboxError) and not isinstance(error, pynvml.NVMLError):
            raise CallFailed(self._name, error) from error
        if isinstance(error, MemoryError):  # nobody can say how far the call came
            raise nvml_error(_NVML_ERROR_MEMORY, f"{self._name}: this process has no memory for the call") from error


def _open_deadlines() -> tuple[_Deadline, ...]:
    return tuple(block for block in _deadlines.get() if block.session is not None)


def close(sessions: Iterable[NVMLSession]) -> None:
    """Closes them side by side: it takes no longer than for one."""
    sessions = list(sessions)
    for session in sessions:
        registry.forget(session)
    keeper_.close(session.keeper for session in sessions)
    for session in sessions:
        # The link refers to the session: without it both go when nobody has them any more.
        session.keeper.link = None
        with session._counts_lock:
            link, session.link = session.link, None
            if link is not None:
                session._counts["calls"] += link.calls
                session._counts["errors"] += link.errors
                session._latency.add_all(*link.latency())


def _after_fork_in_child() -> None:
    # Locks may be held by threads that do not exist here.
    for session in _sessions:
        session._counts_lock = threads.RLock()
        session._hint_lock = threads.RLock()
        session._recipes.after_fork()
        session._count_anew()
        session.keeper.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)

__all__ = ["NVMLSession", "close"]
