# SPDX-License-Identifier: Apache-2.0
"""One worker process: its start, calls to it, and its end. Its partner is csrc/worker/main.c."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import math
import os
import time
from collections.abc import Callable

from nvsandbox import _fast, aside, control, ending, handshake, marshal, threads
from nvsandbox._core import ffi, lib
from nvsandbox.channels import Channels, Holder, Lane, Pipe
from nvsandbox.control import Control
from nvsandbox.conversation import BrokenProtocol
from nvsandbox.errors import (
    INITIALISATION,
    CallTimeout,
    SandboxClosed,
    SandboxError,
    SandboxStartError,
    WorkerDied,
)
from nvsandbox.forks import this_process
from nvsandbox.native import text
from nvsandbox.options import Options, Recycle
from nvsandbox.owned import PACKETS, pair
from nvsandbox.process import Process

_log = logging.getLogger("nvsandbox")

_OUT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)  # passes, and a socket needs as much

ISOLATING = "isolating itself"
"""What a worker does until it has proved its isolation, as errors name it."""
LOADING = "loading and initialising NVML"
"""And after that, until it is ready."""

LOOK_EVERY = 64
"""Calls from one look at the worker's memory to the next."""

_serials = itertools.count(1)


_all: set[Worker] = set()
"""The workers of this process whose ends are not over."""

_fork_lock = threads.RLock()
"""Held while a forked child would inherit what nobody there knows of: the worker's end of a new control connection (so
that its death would go unseen here), or ours (so that it would outlive us)."""


class Worker:
    """A running worker process.

    Raises, from the constructor: SandboxStartError, LibraryNotFound.
    """

    def __init__(
        self,
        options: Options,
        isolation: str,
        go_on: Callable[[], None] = lambda: None,
        link: _fast.Link | None = None,
    ) -> None:
        self.link = link
        self.serial = next(_serials)
        self.options = options
        self.isolation = isolation
        self.process = Process()
        self.init_result = 0
        self.library = ""
        self.began_ns = 0
        """When its program began, by ``time.monotonic_ns()``."""
        self.step_ns: dict[str, int] = {}
        """How many nanoseconds each of its steps took, in their order."""
        self.tokens: dict[int, int] = {}
        """What stands here for handles of earlier workers of the session."""
        self._functions: dict[str, int | None] = {}
        self._channels = Channels()
        self._open: set[Lane | Pipe] = set()
        self._use_lanes = options.transport != "pipe"
        # No lock guards this and what follows: each change is one step, for a signal handler may come between any two.
        self._inside: set[object] = set()  # a token for each call that is under way
        self.calls = 0  # that the marshaller made; under the session's lock of counts
        self._link_calls = 0 if link is None else link.calls
        self._next_look = LOOK_EVERY
        self.answered = False
        """Whether it has ever answered."""
        self.noted = False
        """Whether its death was counted."""
        self.recycled = False
        self.abandoned = False
        """Whether even SIGKILL has not ended it."""
        self.end = ffi.new("struct nvs_end *", [-1, 0])
        """What those who wait for answers look out for."""
        self._condemned = False  # nobody waits for its answers
        self._ender = threads.allocate_lock()  # whoever gets this ends it
        self._drain_until = 0.0  # until then calls that are under way may go on, although it is stopping
        self.finished = threads.Event()  # its end is over, whether it has ended or not
        minors = handshake.device_minors(options)
        description = handshake.simulated(options, minors)

        if isolation == "guard" and options.devices is not None and options.simulate is None:
            raise SandboxStartError(
                "NVIDIA nodes",
                0,
                "/dev",
                "devices= hides nodes, for which the sandbox needs a /dev of its own; with isolation 'guard' NVML sees "
                "the host's: leave devices= out, or make isolation 'mount' or 'user' possible",
            )
        _abandon_inherited(self.owner)
        with _fork_lock:
            ours, theirs = pair(PACKETS, "spawn")
            self.control = Control(ours, self.process)
            try:
                try:
                    self.process.spawn(description, theirs.number)
                finally:
                    theirs.close()
                self.end.pidfd = self.process.pidfd
            except BaseException:
                ours.close()
                if self.pid:
                    self.stop(grace=False)
                raise
            _all.add(self)
        try:
            self._start(minors, description, go_on)
        except BaseException as error:
            # What a half-started worker died of is the better message, if it sent none.
            self.stop(grace=not isinstance(error, SandboxStartError) or error.errno != errno.ETIMEDOUT)
            raise

    def _start(self, minors: list[int] | None, description: str | None, go_on: Callable[[], None]) -> None:
        """The order of messages, as in csrc/protocol.h. What `go_on` raises, which is called now and then, ends it."""
        deadline = time.monotonic() + control.START_LIMIT
        message = handshake.start_message(self.options, self.isolation, minors, description)
        with _fork_lock:
            theirs = self.process.open_kill_pipe()
            try:
                self.control.send(message, theirs)
            finally:
                if theirs >= 0:
                    os.close(theirs)
        go_on()  # once in any case: what the caller has to do meanwhile is done by it
        report = self.control.receive(deadline, ISOLATING, go_on)
        handshake.check_version(report)
        handshake.verify(report, self.pid, self.isolation)
        self._load(deadline, go_on)

    def _load(self, deadline: float, go_on: Callable[[], None]) -> None:
        """What follows the proof: only now the worker touches NVML. The doctor's trials leave it out."""
        self.control.go()
        report = self.control.receive(deadline, LOADING, go_on, step=INITIALISATION)
        self.init_result = int(report.init_result)
        self.library = text(report.library)
        self.began_ns = int(report.began_ns)
        self.step_ns = {
            text(lib.nvs_core_step_name(step)): int(report.step_ns[step])
            for step in range(1, lib.NVS_STEP_COUNT)
            if report.step_ns[step]
        }

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def owner(self) -> tuple[int, int]:
        """The process that started it."""
        return self.process.owner

    # ---- calls

    def _channel(self, kind: str, wait: Callable[[], None]) -> tuple[Lane | Pipe, bool]:
        """This thread's channel of a kind, entered, and whether it is for one call only."""
        make = Lane if kind == "lane" else Pipe
        holder: Holder | None = getattr(self._channels, kind)
        if holder is not None and holder.channel.enter():
            return holder.channel, False
        channel: Lane | Pipe = aside.get(lambda: make(self, wait), lambda unused: unused.close())
        self._open.add(channel)
        if holder is not None:
            # A signal handler or a finalizer calls NVML while the call that it interrupted has this thread's channel.
            return channel, True
        setattr(self._channels, kind, Holder(self, channel))
        return channel, False

    def forget(self, channel: Lane | Pipe) -> None:
        """Takes a channel off the list of those to close at the end."""
        # If the end has the channel on its list by now, it is closed twice, which is harmless.
        self._open.discard(channel)

    def _on_channel(
        self,
        kind: str,
        held: tuple[Lane | Pipe, bool],
        frame: bytearray,
        wait: Callable[[], None],
        until: float | None,
    ) -> memoryview | None:
        channel, once = held
        kept = False
        try:
            reply = channel.exchange(frame, wait, until)
            kept = not once and not self._stopping
            if kept and self.link is not None and isinstance(channel, Lane):
                # While nobody else can close it: from here on this thread's calls can go the short way.
                self.link.attach(self.serial, channel.address, channel)
            return reply
        except WorkerDied as error:
            error.sent = channel.taken
            raise
        finally:
            if kept:
                channel.leave()
            else:
                # Ended in the middle: what was asked on it is answered to nobody.
                self._close(kind, channel)

    def fast_wait(self, name: str, waited: float, limit: float | None) -> SandboxError | None:
        """As the `wait` of an exchange, for this thread's call on the fast path: why it ends, None if it does not.

        Not by raising: what is raised in here may be a signal handler's, about a call of its own.
        """
        if self._is_gone():
            error = self.death(name)
            if isinstance(error, WorkerDied):
                holder = self._channels.lane
                error.sent = holder is None or holder.channel.taken
            return error
        if limit is not None and waited > limit:
            self.condemn(f"{name} did not return in time")
            return CallTimeout(name, limit)
        return None

    def abandon_lane(self, lane: Lane) -> None:
        """Closes a lane on which this thread's call has ended in the middle. For whoever has entered it."""
        self._close("lane", lane)

    def _close(self, kind: str, channel: Lane | Pipe) -> None:
        self.forget(channel)
        channel.close()
        holder: Holder | None = getattr(self._channels, kind)
        if holder is not None and holder.channel is channel:
            setattr(self._channels, kind, None)

    def exchange(self, name: str, frame: bytearray, limit: float | None) -> marshal.Reply:
        """The reply to one frame.

        Raises CallTimeout past `limit` seconds and WorkerDied when the worker ends; its `sent` tells whether the frame
        may have reached the worker. An exception from a signal handler (KeyboardInterrupt) gives the channel up, so
        that the late answer never meets another question.
        """
        start = time.monotonic()
        until = None if limit is None else start + limit
        sent = False

        def wait() -> None:
            self._check_alive(name)
            if limit is not None and time.monotonic() - start > limit:
                raise CallTimeout(name, limit)

        token = object()
        try:
            self._inside.add(token)  # before the look: see _finish()
            if self._stopping:
                raise self.unsent(name)
            reply = None
            held = self._lane_if_possible(wait)
            if held is not None:
                sent = len(frame) <= lib.NVS_LANE_FRAME
                reply = self._on_channel("lane", held, frame, wait, until)
            if reply is None:
                held = self._channel("pipe", wait)
                sent = True
                reply = self._on_channel("pipe", held, frame, wait, until)
                if reply is None:
                    raise marshal.BrokenReply("no reply")
            parsed = marshal.parse_reply(reply)
            self.answered = True
            return parsed
        except CallTimeout:
            self.condemn(f"{name} did not return in time")
            raise
        except marshal.BrokenReply as error:
            if not self.process.ended():
                self.condemn(f"it broke the protocol: {error}")
            raise self.death(name) from error
        except WorkerDied as error:
            if sent and error.sent:
                raise
            raise self.unsent(name) from error
        finally:
            self._inside.discard(token)

    def _lane_if_possible(self, wait: Callable[[], None]) -> tuple[Lane | Pipe, bool] | None:
        """This thread's lane, as _channel() gives it; None where calls go over sockets."""
        if not self._use_lanes:
            return None
        try:
            return self._channel("lane", wait)
        except SandboxStartError as error:
            # No memfd_create (an outer seccomp profile), or RLIMIT_FSIZE: sockets do, some microseconds slower.
            if self.options.transport != "auto" or error.errno in _OUT_OF:
                raise
            self._use_lanes = False
            _log.info("shared memory is not possible here, so calls go over a socket: %s", error)
            return None

    def unsent(self, name: str) -> WorkerDied | SandboxClosed:
        """The error for a call that has not reached it."""
        death = self.death(name)
        if isinstance(death, WorkerDied):
            death.sent = False
        return death

    def function(self, name: str, limit: float | None) -> int | None:
        """The index of a symbol of the library, None if the library lacks it."""
        try:
            return self._functions[name]
        except KeyError:
            pass
        index: int | None = None
        if len(name) < lib.NVS_NAME_MAX and name.isascii() and name.isidentifier() and name.startswith("nvml"):
            reply = self.exchange(name, marshal.resolve_frame(name), limit)
            if reply.status == lib.NVS_STATUS_OK:
                index = reply.result
            elif reply.status != lib.NVS_STATUS_NO_SYMBOL:
                raise SandboxError(f"looking up {name}: status {reply.status}")
        self._functions[name] = index
        return index

    def check_answers(self, limit: float | None) -> None:
        """Has it say that the library lacks a symbol that none has: what nobody remembers, and needs no NVML."""
        name = f"nvmlSandboxProof_{time.monotonic_ns():x}_{next(_serials)}"
        reply = self.exchange(name, marshal.resolve_frame(name), limit)
        if reply.status != lib.NVS_STATUS_NO_SYMBOL:
            raise SandboxError(f"looking up {name}: status {reply.status}")

    # ---- life and death

    @property
    def _stopping(self) -> bool:
        """Whether there are to be no more calls: it is ending, or about to."""
        return bool(self.end.stopping)

    @property
    def alive(self) -> bool:
        """Whether calls can be made."""
        return not self._stopping and not self.process.ended()

    def _is_gone(self) -> bool:
        """Whether no reply comes any more."""
        if self.end.pidfd != self.process.pidfd:  # the program has closed it
            self.end.pidfd = self.process.pidfd
        return self.process.ended() or (self._stopping and time.monotonic() >= self._drain_until)

    def _check_alive(self, name: str) -> None:
        if self._is_gone():
            raise self.death(name)

    def death(self, name: str) -> WorkerDied | SandboxClosed:
        """How the worker ended, while `name` was called."""
        return self.process.death(name)

    def wait_ended(self, limit: float) -> bool:
        """Waits until the process has ended, at most `limit` seconds. Whether it has."""
        return self.process.wait_ended(limit)

    def open_channel(self, kind: int, fd: int, size: int, wait: Callable[[], None]) -> None:
        """Sends the worker's end of a channel; see :meth:`Control.open_channel`. Whoever breaks the protocol is
        condemned, which is a death."""
        try:
            self.control.open_channel(kind, fd, size, wait)
        except BrokenProtocol as error:
            self.condemn(f"it broke the protocol: {error.detail}")
            raise self.unsent("") from error

    def take_channels(self) -> set[Lane | Pipe]:
        """Those that are open, for who closes them."""
        taken = set()
        while self._open:
            with contextlib.suppress(KeyError):  # forget() may take some off
                taken.add(self._open.pop())
        return taken

    def condemn(self, why: str) -> None:
        """Ends a worker that is of no more use, off the caller's path."""
        if self._stopping:
            return
        self._condemned = True
        self.process.why = why
        _log.warning("ending the NVML worker %d: %s", self.pid, why)
        aside.start(ending.end, [self], new=True)
        self.end.stopping = 1  # not only when that thread comes to it
        self._unlink()

    def begin_end(self, grace: bool) -> bool:
        """No more calls to this worker, from here on; those under way may go on for a moment with `grace`. Whether it
        is for the caller to end it: for one caller only."""
        if not self._ender.acquire(blocking=False):
            return False
        if grace and not self._condemned:
            self._drain_until = time.monotonic() + ending.DRAIN_LIMIT
        self.end.stopping = 1
        self._unlink()
        return True

    def finish(self) -> None:
        """Ends a worker that has been replaced, off the caller's path, as soon as no call is in it any more."""
        aside.start(self._finish, new=True)

    def _finish(self) -> None:
        self._drain_until = math.inf
        self.recycled = True
        self.process.why = "it was recycled"
        self.end.stopping = 1
        self._unlink()
        while (self._inside or self._lanes_in_use()) and not self._ender.locked() and not self.process.ended():
            threads.sleep(0.02)
        ending.end([self])

    def _lanes_in_use(self) -> bool:
        """Whether calls that went the short way are under way."""
        # Looked at, not entered: the end may come at this moment, and leaves alone what is in use.
        return any(channel.in_use for channel in list(self._open))

    def served_on(self) -> None:
        """Counts its calls anew."""
        self.calls = 0
        self._link_calls = 0 if self.link is None else self.link.calls

    def outlived(self, after: Recycle) -> bool:
        """Whether this worker has served its time."""
        calls = self.calls
        if self.link is not None:
            calls += self.link.calls - self._link_calls
        if after.calls is not None:
            return calls >= after.calls
        if calls < self._next_look or after.memory_bytes is None:
            return False
        self._next_look = calls + LOOK_EVERY
        try:
            with open(f"/proc/{self.pid}/statm", encoding="ascii") as file:
                pages = int(file.read().split()[1])
        except (OSError, ValueError, IndexError):
            return False
        return pages * os.sysconf("SC_PAGE_SIZE") >= after.memory_bytes

    def stop(self, grace: bool = True) -> None:
        """Ends the worker, as :func:`ending.end`. Idempotent; bounded in time."""
        aside.do(lambda: ending.end([self], grace))

    def released(self) -> None:
        """It holds nothing of this process any more."""
        self.process.release()
        _all.discard(self)

    def _unlink(self) -> None:
        """No more calls go the short way to this worker."""
        if self.link is not None and self.link.serial == self.serial:
            self.link.serial = 0

    def abandon(self) -> None:
        """In a forked child: closes what it inherited. The worker is the parent's, and is left alone."""
        self._drain_until = 0.0  # a call that a signal handler has forked in has nothing to wait for
        self.end.stopping = 1
        self._unlink()
        self.process.why = "it belongs to the process that this one was forked from"
        self.control.close()
        self.process.release()
        for channel in self.take_channels():
            with contextlib.suppress(Exception):
                channel.close()


def _abandon_inherited(owner: tuple[int, int]) -> None:
    for worker in list(_all):
        if worker.owner != owner:
            worker.abandon()
            _all.discard(worker)


def _after_fork_in_child() -> None:
    try:
        _fork_lock.release()
    except RuntimeError:
        # C code has forked, and told Python only afterwards (uWSGI): another thread may have held it. As Python's own
        # modules do; another lock would not be the one that the hooks below have.
        _fork_lock._at_fork_reinit()
    _abandon_inherited(this_process())


os.register_at_fork(
    before=_fork_lock.acquire,  # and no Python function, in which a signal handler could run
    after_in_parent=_fork_lock.release,
    after_in_child=_after_fork_in_child,
)
