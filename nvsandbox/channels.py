# SPDX-License-Identifier: Apache-2.0
"""Channels: what a thread's calls travel on to its worker, shared memory or a socket; see csrc/protocol.h."""

from __future__ import annotations

import contextlib
import mmap
import sys
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nvsandbox import _fast, marshal, threads
from nvsandbox._core import ffi, lib
from nvsandbox.errors import SandboxClosed, SandboxError, WorkerDied
from nvsandbox.forks import this_process
from nvsandbox.native import own_error, start_error
from nvsandbox.owned import STREAM, pair

if TYPE_CHECKING:
    from nvsandbox.worker import Worker

SLICE_NS = 20_000_000
"""How long a wait goes before it looks whether the worker still lives."""

LONG_NS = 100_000_000
"""The same for one that takes longer than that: meanwhile C looks (csrc/core/wait.c), which costs less and holds up
nobody. A signal ends the wait, but for one that the kernel gives to another thread, since this one blocks it."""


class Lane:
    """A thread's shared memory channel.

    Whoever holds it (:meth:`enter`) uses it, so that nobody unmaps the memory under an exchange.
    """

    # For one whose making was interrupted
    _lane: Any = None
    _closed = False
    _fetching = False  # what a call has returned
    _link: _fast.Link | None = None

    def __init__(self, worker: Worker, wait: Callable[[], None]) -> None:
        self._process = this_process()
        self._closed = False
        self._link = worker.link
        self._worker = weakref.ref(worker)
        self._end = worker.end
        # All memory first: what fails from here on is undone.
        self._capacity: int = lib.NVS_LANE_FRAME
        # Pages of its own, of which only those that replies have reached cost memory. A bytearray's may come from the
        # heap, and are then cleared all at once, a megabyte for each thread.
        try:
            self._reply = mmap.mmap(-1, self._capacity, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as short:
            raise MemoryError(f"no room for replies of up to {self._capacity} bytes") from short
        self._reply_c = ffi.from_buffer(self._reply)
        self._length = ffi.new("uint32_t *")
        error = ffi.new("struct nvs_error *")
        fd = ffi.new("int32_t *")
        spinning_max = lib.nvs_looking_max() if self._link is None else self._link.looking_max
        lane = lib.nvs_lane_new(spinning_max > 0, fd, error)
        if not lane:
            raise own_error(start_error(error))
        self._lane = lane
        self.enter()
        try:
            worker.open_channel(lib.NVS_CHANNEL_LANE, fd[0], lib.NVS_LANE_SIZE, wait)
        except BaseException:
            self.close()
            raise
        lib.nvs_lane_sent(lane)

    def exchange(self, frame: bytearray, wait: Callable[[], None], until: float | None = None) -> memoryview | None:
        """The reply to `frame`, or None where that is too large for a lane. `wait` is called between waits and may
        raise, which it is also asked for soon after `until`, by time.monotonic()."""
        if len(frame) > self._capacity:
            return None
        reply = self._exchange(frame, wait, until)
        total = marshal.kept_length(reply)
        return reply if not total else self._fetch(total, wait, until)

    def _fetch(self, total: int, wait: Callable[[], None], until: float | None) -> memoryview:
        """A reply of `total` bytes that the worker keeps, piece by piece, for the function has run and is not called
        again."""
        if not self._capacity < total <= lib.NVS_FRAME_MAX:
            raise marshal.BrokenReply(f"a kept reply of {total} bytes")
        kept = bytearray()
        self._fetching = True
        while len(kept) < total:
            part = marshal.parse_reply(self._exchange(marshal.fetch_frame(len(kept)), wait, until))
            if part.status != lib.NVS_STATUS_OK or not 0 < len(part.data) <= total - len(kept):
                raise marshal.BrokenReply(f"status {part.status} and {len(part.data)} bytes of a kept reply")
            kept += part.data
        self._fetching = False  # else this lane is given up, and remains one whose call has been taken
        return memoryview(kept)

    def _exchange(self, frame: bytearray, wait: Callable[[], None], until: float | None) -> memoryview:
        status = lib.nvs_lane_call(
            self._lane,
            ffi.from_buffer(frame),
            len(frame),
            _slice(SLICE_NS, until),
            self._reply_c,
            self._capacity,
            self._length,
        )
        while status == lib.NVS_WAIT_PENDING:
            gone: SandboxError | None = None
            try:
                wait()
                wait_ns = _slice(LONG_NS, until)
            except (WorkerDied, SandboxClosed) as error:
                wait_ns, gone = 0, error  # it may have answered and then ended since the last look
            status = lib.nvs_lane_wait_on(self._lane, self._end, wait_ns, self._reply_c, self._capacity, self._length)
            if gone is not None and status == lib.NVS_WAIT_PENDING:
                raise gone
        if status != lib.NVS_WAIT_DONE:
            raise marshal.BrokenReply("a reply that is larger than its lane")
        # A copy: by the time that it is read, a call of a signal handler or a finalizer may have been answered here.
        return memoryview(self._reply[: self._length[0]])

    def enter(self) -> bool:
        """Whether this lane is the caller's until :meth:`leave`. Not if it is in use, or closed."""
        lane = self._lane
        return lane is not None and bool(lib.nvs_lane_enter(lane))

    def leave(self) -> None:
        """Ends what :meth:`enter` began."""
        if not self._closed:
            lib.nvs_lane_leave(self._lane)

    @property
    def in_use(self) -> bool:
        """Whether somebody has entered."""
        return not self._closed and bool(lib.nvs_lane_busy(self._lane))

    @property
    def answered(self) -> bool:
        """Whether the reply to what was sent last is there. For whoever has entered."""
        return not self._closed and bool(lib.nvs_lane_answered(self._lane))

    @property
    def taken(self) -> bool:
        """Whether the worker has begun with what was sent last. For whoever has entered."""
        return self._closed or self._fetching or bool(lib.nvs_lane_taken(self._lane))

    @property
    def waits(self) -> dict[str, int]:
        """How this thread has waited for replies, after the first few microseconds: ``sleeps``, ``looks``, and of those
        ``futile`` and ``hopeless`` ones; see csrc/core/core.h."""
        found = ffi.new("struct nvs_waits *")
        if not self._closed:
            lib.nvs_lane_waits(self._lane, found)
        return {name: int(getattr(found, name)) for name in ("sleeps", "looks", "futile", "hopeless")}

    @property
    def worker(self) -> Worker | None:
        """The worker at the other end, as long as anybody knows it."""
        return self._worker()

    @property
    def address(self) -> int:
        """Of the C side's struct, for the short way."""
        return int(ffi.cast("uintptr_t", self._lane))

    def close(self) -> None:
        """For whoever has entered the lane, or knows that nobody has."""
        if not self._closed:
            forked = this_process() != self._process
            self._closed = True
            # What a signal handler raises in between goes on as from any finally block.
            try:
                if self._link is not None:
                    self._link.invalidate()  # first: threads remember where the lane is
            finally:
                lib.nvs_lane_close(self._lane, forked)

    def __del__(self) -> None:
        # Not before: another thread may stand in enter(), with a reference to this. But the garbage collector may come
        # here before it comes to the holder, which then finds no lane.
        if self._lane is None:
            return
        forked = this_process() != self._process
        try:
            self.close()
            if self._link is not None:
                # Again: in a forked child one may be closed under a call, which then attaches it.
                self._link.invalidate()
        finally:
            lane, self._lane = self._lane, None
            lib.nvs_lane_free(lane, forked)


def _slice(longest_ns: int, until: float | None) -> int:
    """How long to wait at once, where that is over at `until`: a bit longer than that, so that it is over then."""
    if until is None:
        return longest_ns
    return min(longest_ns, max(0, int((until - time.monotonic()) * 1e9)) + 100_000)


class Pipe:
    """A thread's socket channel: any size, and some tens of microseconds slower."""

    def __init__(self, worker: Worker, wait: Callable[[], None]) -> None:
        self._busy = threads.allocate_lock()
        self.enter()
        self._worker = weakref.proxy(worker)
        self._socket, theirs = pair(STREAM, "channel")
        try:
            worker.open_channel(lib.NVS_CHANNEL_PIPE, theirs.number, 0, wait)
        except BaseException:
            self._socket.close()
            raise
        finally:
            theirs.close()

    taken = True  # nobody knows

    @property
    def in_use(self) -> bool:
        """Whether somebody has entered."""
        return bool(self._busy.locked())

    def enter(self) -> bool:
        """Whether this channel is the caller's until :meth:`leave`. Not if it is in use."""
        return bool(self._busy.acquire(blocking=False))

    def leave(self) -> None:
        """Ends what :meth:`enter` began."""
        self._busy.release()

    def exchange(self, frame: bytearray, wait: Callable[[], None], until: float | None = None) -> memoryview:
        self._next_look = time.monotonic() + SLICE_NS / 1e9
        # One sendall() would lose count of what was sent when it times out, so piece by piece.
        out = memoryview(len(frame).to_bytes(4, sys.byteorder) + frame)
        while out:
            try:
                count = self._socket.send(out, SLICE_NS / 1e9)
            except (TimeoutError, InterruptedError):
                wait()
                continue
            except OSError as error:
                self._gone(wait, error)
                continue
            out = out[count:]
            self._look(wait)
        size = int.from_bytes(self._receive(4, wait), sys.byteorder)
        if size > lib.NVS_FRAME_MAX:
            raise marshal.BrokenReply(f"a reply of {size} bytes")
        return memoryview(self._receive(size, wait))

    def _receive(self, size: int, wait: Callable[[], None]) -> bytearray:
        buffer = bytearray(size)
        rest = memoryview(buffer)
        while rest:
            try:
                count = self._socket.receive_into(rest, SLICE_NS / 1e9)
            except (TimeoutError, InterruptedError):
                wait()
                continue
            except OSError as error:
                self._gone(wait, error)
                continue
            if count == 0:
                self._gone(wait, None)
            rest = rest[count:]
            if rest:
                self._look(wait)
        return buffer

    def _look(self, wait: Callable[[], None]) -> None:
        """Calls `wait` now and then also where no wait ends in vain: for a worker that always takes or gives a bit."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + SLICE_NS / 1e9
            wait()

    def _gone(self, wait: Callable[[], None], error: OSError | None) -> None:
        # The socket closes a moment before the process can be reaped, and only then is its status known.
        self._worker.wait_ended(1.0)
        wait()
        raise marshal.BrokenReply("the worker closed a channel") from error

    def close(self) -> None:
        self._socket.close()


class Channels(threads.local):  # type: ignore[misc]
    """Each thread's own channels. They are closed when the thread ends, for its locals end with it."""

    # Not set by __init__, which runs in each thread: a finalizer that comes there finds a half-made object.
    lane: Holder | None = None
    pipe: Holder | None = None


class Holder:
    """Closes a channel when nothing holds it any more."""

    def __init__(self, worker: Worker, channel: Lane | Pipe) -> None:
        self.channel = channel
        self._worker = weakref.ref(worker)

    def close(self) -> None:
        worker = self._worker()
        # In a forked child the locals of all other threads end at once, and one of them may hold the worker's lock.
        if worker is not None and worker.owner == this_process():
            worker.forget(self.channel)
        # Not under a thread that is in it: where another ends the sandbox in the middle of a call, which then has the
        # last reference; and at the interpreter's exit, where the locals of daemon threads end before they do.
        if self.channel.enter():
            self.channel.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()
