# SPDX-License-Identifier: Apache-2.0
"""One worker process: its start, the proof that it is isolated, calls to it, and its end.

The order of messages is that of csrc/protocol.h; the partner of this file is csrc/worker/main.c.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import math
import os
import select
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvsandbox import _fast, marshal, roots, simulate
from nvsandbox import isolation as ladder
from nvsandbox._core import ffi, lib
from nvsandbox.channels import SLICE_NS, Channels, Holder, Lane, Pipe
from nvsandbox.errors import (
    CallTimeout,
    LibraryNotFound,
    SandboxClosed,
    SandboxError,
    SandboxStartError,
    WorkerDied,
)
from nvsandbox.native import own_error, socketpair, start_error, text
from nvsandbox.options import Options, Recycle

_log = logging.getLogger("nvsandbox")

PROGRAM = Path(__file__).parent / "nvsandbox-worker"

START_LIMIT = 60.0
"""Seconds that a start may take. With eight GPUs and no persistence mode NVML's initialisation takes over ten."""

_DRAIN_LIMIT = 2.0  # for calls that are under way when the sandbox is closed, as in csrc/worker/main.c
_STOP_LIMIT = 3.0  # from STOP to SIGTERM
_TERM_LIMIT = 3.0  # from SIGTERM to SIGKILL
_KILL_LIMIT = 1.0  # a process in state D outlives SIGKILL: it is given up

_OUT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)  # passes, and a socket needs as much

LOOK_EVERY = 64
"""Calls from one look at the worker's memory to the next."""

_serials = itertools.count(1)

_TOO_LARGE = int(lib.NVS_STATUS_TOO_LARGE).to_bytes(4, sys.byteorder)


def _environment(simulated: str | None) -> list[bytes]:
    """The worker's environment: the caller's, less what would have the loader put other code into it."""
    kept = []
    for name, value in os.environb.items():
        # LD_LIBRARY_PATH is looked through last (roots.py): the CUDA toolkit's stub library often stands in it.
        if name.startswith((b"LD_", b"NVSANDBOX_SIM")):
            continue
        kept.append(name + b"=" + value)
    if simulated is not None:
        kept.append(b"NVSANDBOX_SIM=" + simulated.encode())
    return kept


_all: weakref.WeakSet[Worker] = weakref.WeakSet()
"""The workers of this process, from before they are started until they are forgotten."""

_fork_lock = threading.RLock()
"""Held while a forked child would inherit what nobody there knows of: the worker's end of a new control connection (so
that its death would go unseen here), or ours (so that it would outlive us)."""

_given_up: list[Worker] = []  # kept, so that they are reaped when they end after all
_given_up_lock = threading.Lock()


def given_up(options: Options) -> int:
    """How many workers with these options there are now that even SIGKILL has not ended, whatever session was
    theirs."""
    with _given_up_lock:
        _given_up[:] = [worker for worker in _given_up if not worker.wait_ended(0)]
        return sum(worker.options == options for worker in _given_up)


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
        self._go_on = go_on  # called now and then during the start; what it raises ends that
        self.owner = os.getpid()
        self.init_result = 0
        self.library = ""
        self.step_ns: dict[str, int] = {}
        self.tokens: dict[int, int] = {}
        """What stands here for handles of earlier workers of the session."""
        self._functions: dict[str, int | None] = {}
        self._channels = Channels()
        self._open: set[Lane | Pipe] = set()
        # Reentrant: a signal handler of the caller's may run, and call NVML, while its thread holds one of them.
        self._control_lock = threading.RLock()
        self._state_lock = threading.RLock()
        self._answered: set[int] = set()
        self._use_lanes = options.transport != "pipe"
        self._death: tuple[int | None, int | None, str] | None = None
        self._inside = 0  # calls that are under way
        self.calls = 0  # that the marshaller made
        self._link_calls = 0 if link is None else link.calls
        self._next_look = LOOK_EVERY
        self.answered = False
        """Whether it has ever answered."""
        self.noted = False
        """Whether its death was counted."""
        self.condemned = False
        self.recycled = False
        self.abandoned = False
        """Whether even SIGKILL has not ended it."""
        self._stopping = False
        self._drain_until = 0.0  # until then calls that are under way may go on, although it is stopping
        self._finished = threading.Event()  # its end is over, whether it has ended or not
        self._next_id = 0
        self._minors = self._device_minors()
        self._simulation = self._simulated()

        if isolation == "guard" and options.devices is not None and options.simulate is None:
            raise SandboxStartError(
                "NVIDIA nodes",
                0,
                "/dev",
                "devices= hides nodes, for which the sandbox needs a /dev of its own; with isolation 'guard' NVML sees "
                "the host's: leave devices= out, or make isolation 'mount' or 'user' possible",
            )
        self._pidfd: int | None = None
        self.pid = 0
        with _fork_lock:
            ours, theirs = socketpair(socket.SOCK_SEQPACKET, "spawn")
            self._control = ours
            try:
                with theirs:
                    self.pid = self._spawn(theirs.fileno())
            except BaseException:
                ours.close()
                if self.pid:
                    self.stop(grace=False)
                raise
            self._pidfd = self._open_pidfd()
            _all.add(self)
        try:
            self._start()
        except BaseException as error:
            # What a half-started worker died of is the better message, if it sent none.
            self.stop(grace=not isinstance(error, SandboxStartError) or error.step != "start")
            raise

    # ---- start

    def _spawn(self, control: int) -> int:
        environment = _environment(self._simulation)
        keep = [ffi.new("char[]", entry) for entry in environment]
        envp = ffi.new("char *[]", [*keep, ffi.NULL])
        pid = ffi.new("int32_t *")
        error = ffi.new("struct nvs_error *")
        try:
            result = lib.nvs_spawn(os.fsencode(PROGRAM), envp, control, pid, error)
        finally:
            self.pid = int(pid[0])  # there is one even if Ctrl-C came meanwhile
        if result != 0:
            raise own_error(start_error(error))
        return int(pid[0])

    def _open_pidfd(self) -> int | None:
        try:
            return os.pidfd_open(self.pid)
        except (OSError, AttributeError):  # Linux before 5.3, or refused by a container's seccomp profile
            return None

    def _start(self) -> None:
        deadline = time.monotonic() + START_LIMIT
        self._send(self._start_message())
        report = self._receive(lib.NVS_MSG_ISOLATED, deadline, "isolating itself")
        self._check_version(report)
        self._verify(report)
        self._send(bytes(ffi.buffer(ffi.new("struct nvs_message *", [lib.NVS_MAGIC, lib.NVS_MSG_GO]))))
        report = self._receive(lib.NVS_MSG_READY, deadline, "loading and initialising NVML")
        self.init_result = int(report.init_result)
        self.library = text(report.library)
        self.step_ns = {
            text(lib.nvs_core_step_name(step)): int(report.step_ns[step])
            for step in range(1, lib.NVS_STEP_COUNT)
            if report.step_ns[step]
        }

    def _libraries(self) -> list[str]:
        options = self.options
        if options.simulate is not None:
            return [str(simulate.parse(options.simulate).library)]
        if options.library is not None:
            return [options.library]
        found, looked = roots.library_candidates(options.driver_root)
        if not found:
            raise LibraryNotFound(
                errno.ENOENT,
                options.driver_root,
                f"none was found under driver_root={options.driver_root!r}; is NVIDIA's driver installed there?",
                tuple(f"{path}: does not exist" for path in looked),
            )
        return found

    def _device_minors(self) -> list[int] | None:
        options = self.options
        if options.devices is None:
            return None
        minors = []
        for device in options.devices:
            if isinstance(device, int):
                minors.append(device)
                continue
            minor = roots.device_minor(device)
            if minor is None:
                raise SandboxStartError(
                    "devices",
                    errno.ENODEV,
                    "/proc/driver/nvidia/gpus",
                    f"devices={device!r} is not listed by the driver; minor numbers (0 for /dev/nvidia0) always work",
                )
            minors.append(minor)
        return minors

    def _simulated(self) -> str | None:
        """The simulator's description, less the GPUs that ``devices`` hides."""
        options = self.options
        if options.simulate is None or self._minors is None:
            return options.simulate
        try:
            return simulate.parse(options.simulate).with_minors(self._minors)
        except ValueError as error:
            raise SandboxStartError("devices", errno.ENODEV, "", f"devices={list(self._minors)}: {error}") from None

    def _start_message(self) -> bytes:
        options = self.options
        libraries = self._libraries()
        minors = self._minors
        strings = b"".join(
            os.fsencode(piece) + b"\0"
            for piece in (
                options.driver_root,
                roots.dev_folder(options.driver_root, options.dev_root),
                self._simulation or "",
                *libraries,
            )
        )
        start = ffi.new("struct nvs_start *")
        start.message.magic = lib.NVS_MAGIC
        start.message.type = lib.NVS_MSG_START
        start.protocol = lib.NVS_PROTOCOL_VERSION
        start.build = ffi.string(lib.nvs_core_version())
        start.isolation = ladder.CODES[self.isolation]
        start.flags = (
            (lib.NVS_START_PRIVILEGED if options.privileged else 0)
            | (lib.NVS_START_SIMULATED if options.simulate is not None else 0)
            | (lib.NVS_START_VERBOSE if os.environ.get("NVSANDBOX_DEBUG", "0") not in ("", "0") else 0)
            | (lib.NVS_START_DEVICES if minors is not None else 0)
        )
        start.devices_count = len(minors or ())
        for index, minor in enumerate(minors or ()):
            start.device_minors[index] = minor
        start.libraries_count = len(libraries)
        start.strings_len = len(strings)
        return bytes(ffi.buffer(start)) + strings

    def _check_version(self, report: Any) -> None:
        # The worker compares too. Each side does, for the other may be the one that is too old to.
        ours, theirs = text(lib.nvs_core_version()), text(report.build)
        if theirs != ours or report.protocol != lib.NVS_PROTOCOL_VERSION:
            raise SandboxStartError(
                "hello",
                errno.EPROTO,
                str(PROGRAM),
                f"the worker is of version {theirs} (protocol {report.protocol}), its caller of version {ours} "
                f"(protocol {lib.NVS_PROTOCOL_VERSION}): files of two installations are mixed, so reinstall nvsandbox",
            )

    def _verify(self, report: Any) -> None:
        """The parent's own proof of the isolation, from the kernel and not from the worker: another mount namespace
        than ours, a tmpfs on its /dev, no_new_privs and seccomp."""
        status = self._status()
        # Without a /proc that knows the worker there is its word alone, which is enough for guard and no more.
        own_proc = status.get("PPid") == str(os.getpid())
        if self.isolation != "guard":
            self._verify_namespace(own_proc)
        if (
            report.seccomp_mode != 2
            or report.no_new_privs != 1
            or (own_proc and (status.get("NoNewPrivs", "1"), status.get("Seccomp", "2")) != ("1", "2"))
        ):
            raise SandboxStartError("verification", 0, "", "the worker runs without seccomp or no_new_privs")

    def _verify_namespace(self, own_proc: bool) -> None:
        try:
            theirs = os.stat(f"/proc/{self.pid}/ns/mnt")
            ours = os.stat("/proc/self/ns/mnt")
            type_ = self._dev_type()
        except OSError as error:
            raise SandboxStartError(
                "verification",
                error.errno or 0,
                error.filename or "",
                "cannot see whether the worker is isolated; /proc must be mounted",
            ) from error
        if not own_proc:
            raise SandboxStartError(
                "verification",
                0,
                f"/proc/{self.pid}",
                "this is another process than the worker: /proc is of another pid namespace than this process; mount "
                "one of its own",
            )
        if (theirs.st_ino, theirs.st_dev) == (ours.st_ino, ours.st_dev):
            raise SandboxStartError(
                "verification", 0, f"/proc/{self.pid}/ns/mnt", "the worker is in this process's mount namespace"
            )
        if type_ != "tmpfs":
            raise SandboxStartError(
                "verification", 0, f"/proc/{self.pid}/mountinfo", f"the worker's /dev is {type_}, not a tmpfs"
            )

    def _status(self) -> dict[str, str]:
        """What the kernel says of the worker; nothing without ``/proc``."""
        try:
            with open(f"/proc/{self.pid}/status", encoding="ascii", errors="replace") as file:
                return {key: value.strip() for key, _, value in (line.partition(":") for line in file)}
        except OSError:
            return {}

    def _dev_type(self) -> str:
        """What is mounted last on the worker's /dev."""
        type_ = "not a mount of its own"
        with open(f"/proc/{self.pid}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                fields, _, rest = line.partition(" - ")
                if fields.split(" ")[4] == "/dev":
                    type_ = rest.split(" ", 1)[0]
        return type_

    # ---- control messages

    def _send(self, message: bytes, fd: int | None = None) -> None:
        try:
            if fd is None:
                self._control.send(message)
            else:
                socket.send_fds(self._control, [message], [fd])
        except OSError as error:
            if not self.wait_ended(1.0):
                raise SandboxStartError("control", error.errno or 0, "", "sending to the worker") from error
            # Its own last words tell more than our EPIPE: the reading of the answer finds them.

    def _receive(self, expected: int, deadline: float, doing: str, wait: Callable[[], None] | None = None) -> Any:
        """The worker's next message, which is a report or an `expected` one of another kind. `wait` is called between
        waits and may raise."""
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise SandboxStartError(
                    "start",
                    errno.ETIMEDOUT,
                    "",
                    f"the worker was still {doing} after {START_LIMIT:g} s, the limit of a start",
                )
            self._control.settimeout(min(left, 0.1 if wait is None else SLICE_NS / 1e9))
            try:
                message = self._control.recv(lib.NVS_MESSAGE_MAX)
                break
            except TimeoutError:
                if not self._reap():
                    (wait or self._go_on)()
                    continue
                # Something that this process has forked, and that we were not told of, holds the other end.
                message = self._last_words()
                break
            except ConnectionResetError:
                message = b""
                break
        if not message:
            self.wait_ended(1.0)
            raise self.death(doing)
        kinds = {
            lib.NVS_MSG_ISOLATED: "struct nvs_report",
            lib.NVS_MSG_READY: "struct nvs_report",
            lib.NVS_MSG_FAILED: "struct nvs_failed",
            lib.NVS_MSG_OPENED: "struct nvs_opened",
            lib.NVS_MSG_REFUSED: "struct nvs_opened",
        }
        head = ffi.new("struct nvs_message *")
        ffi.memmove(head, message, min(len(message), ffi.sizeof("struct nvs_message")))
        kind = kinds.get(head.type) if head.magic == lib.NVS_MAGIC else None
        if kind is None or len(message) != ffi.sizeof(kind):
            raise SandboxStartError(
                "hello", errno.EPROTO, str(PROGRAM), f"a message of {len(message)} bytes that this build does not know"
            )
        body = ffi.new(f"{kind} *")
        ffi.memmove(body, message, len(message))
        if head.type == lib.NVS_MSG_FAILED:
            raise self._failed(body)
        if head.type == lib.NVS_MSG_REFUSED:
            raise start_error(body.error)
        if head.type != expected:
            raise SandboxStartError(
                "hello", errno.EPROTO, str(PROGRAM), f"message {head.type} where {expected} was expected"
            )
        return body

    def _last_words(self) -> bytes:
        with contextlib.suppress(OSError):
            return self._control.recv(lib.NVS_MESSAGE_MAX, socket.MSG_DONTWAIT)
        return b""

    def _failed(self, body: Any) -> SandboxStartError:
        if body.error.step != lib.NVS_STEP_LIBRARY:
            return start_error(body.error)
        tried = tuple(line for line in text(body.tried).split("\n") if line)
        return LibraryNotFound(int(body.error.err), text(body.error.path), text(body.error.detail), tried)

    def open_channel(self, kind: int, fd: int, size: int, wait: Callable[[], None]) -> None:
        """Sends the worker's end of a channel. Raises SandboxStartError if the worker refuses it, WorkerDied if it is
        gone, and what `wait` raises, which is called between waits."""
        while not self._control_lock.acquire(timeout=SLICE_NS / 1e9):
            wait()
        try:
            self._check_alive("opening a channel")
            self._next_id += 1
            mine = self._next_id
            message = ffi.new("struct nvs_open *")
            message.message.magic = lib.NVS_MAGIC
            message.message.type = lib.NVS_MSG_OPEN
            message.kind = kind
            message.id = mine
            message.size = size
            self._send(bytes(ffi.buffer(message)), fd)
            # The answers come in order, but not always to who waits: an interrupted open leaves one behind, and
            # an open in a signal handler takes the one of the open that it interrupted.
            while mine not in self._answered:
                self._answered.add(int(self._receive(lib.NVS_MSG_OPENED, math.inf, "opening a channel", wait).id))
            self._answered.discard(mine)
        finally:
            self._control_lock.release()

    # ---- calls

    def _channel(self, kind: str, wait: Callable[[], None]) -> tuple[Lane | Pipe, bool]:
        """This thread's channel of a kind, entered, and whether it is for one call only."""
        make = Lane if kind == "lane" else Pipe
        holder: Holder | None = getattr(self._channels, kind)
        if holder is not None and holder.channel.enter():
            return holder.channel, False
        channel = make(self, wait)
        with self._state_lock:
            self._open.add(channel)
        if holder is not None:
            # A signal handler or a finalizer calls NVML while the call that it interrupted has this thread's channel.
            return channel, True
        setattr(self._channels, kind, Holder(self, channel))
        return channel, False

    def forget(self, channel: Lane | Pipe) -> None:
        """Takes a channel off the list of those to close at the end."""
        # Without the lock, for this is called at the interpreter's exit too, when a daemon thread may have ended with
        # it. One step for Python; if the end has the channel on its list by now, it is closed twice, which is harmless.
        self._open.discard(channel)

    def _on_channel(
        self, kind: str, held: tuple[Lane | Pipe, bool], frame: bytearray, wait: Callable[[], None]
    ) -> memoryview | None:
        channel, once = held
        kept = False
        try:
            reply = channel.exchange(frame, wait)
            kept = not once and not self._stopping
            if kept and self.link is not None and isinstance(channel, Lane):
                # While nobody else can close it: from here on this thread's calls can go the short way.
                self.link.attach(channel.address, channel)
            return reply
        except WorkerDied as error:
            error.sent = channel.taken
            raise
        finally:
            if kept:
                channel.leave()
            else:
                # Ended in the middle: what was asked on it is answered to nobody.
                self.forget(channel)
                channel.close()
                holder: Holder | None = getattr(self._channels, kind)
                if holder is not None and holder.channel is channel:
                    setattr(self._channels, kind, None)

    def fast_wait(self, name: str, waited: float, limit: float | None) -> None:
        """As the `wait` of an exchange, for this thread's call that goes the short way."""
        try:
            self._check_alive(name)
        except WorkerDied as error:
            holder = self._channels.lane
            error.sent = holder is None or holder.channel.taken
            raise
        if limit is not None and waited > limit:
            self.condemn(f"{name} did not return in time")
            raise CallTimeout(name, limit)

    def abandon_lane(self) -> None:
        """Closes this thread's lane, on which a call has ended in the middle."""
        holder = self._channels.lane
        if holder is not None:
            self._channels.lane = None
            holder.close()

    def exchange(self, name: str, frame: bytearray, limit: float | None) -> marshal.Reply:
        """The reply to one frame.

        Raises CallTimeout past `limit` seconds and WorkerDied when the worker ends; its `sent` tells whether the frame
        may have reached the worker. An exception from a signal handler (KeyboardInterrupt) gives the channel up, so
        that the late answer never meets another question.
        """
        start = time.monotonic()
        sent = False

        def wait() -> None:
            self._check_alive(name)
            if limit is not None and time.monotonic() - start > limit:
                raise CallTimeout(name, limit)

        with self._state_lock:
            if self._stopping:
                raise self._unsent(name)
            self._inside += 1
        try:
            reply = None
            held = self._lane_if_possible(wait)
            if held is not None:
                sent = len(frame) <= lib.NVS_LANE_FRAME
                reply = self._on_channel("lane", held, frame, wait)
                if reply is not None and reply[:4] == _TOO_LARGE:
                    reply = None
            if reply is None:
                held = self._channel("pipe", wait)
                sent = True
                reply = self._on_channel("pipe", held, frame, wait)
                if reply is None:
                    raise marshal.BrokenReply("no reply")
            parsed = marshal.parse_reply(reply)
            self.answered = True
            return parsed
        except CallTimeout:
            self.condemn(f"{name} did not return in time")
            raise
        except marshal.BrokenReply as error:
            if not self._reap():
                self.condemn(f"it broke the protocol: {error}")
            raise self.death(name) from error
        except WorkerDied as error:
            if sent and error.sent:
                raise
            raise self._unsent(name) from error
        finally:
            with self._state_lock:
                self._inside -= 1

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

    def _unsent(self, name: str) -> WorkerDied | SandboxClosed:
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

    # ---- life and death

    def _reap(self) -> bool:
        """Whether the process has ended; its status is taken the first time that it has."""
        with self._state_lock:
            if self._death is not None:
                return True
            if os.getpid() != self.owner:
                return False
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                self._death = (None, None, "")
                return True
            if pid == 0:
                return False
            if os.WIFSIGNALED(status):
                self._death = (os.WTERMSIG(status), None, "")
            else:
                self._death = (None, os.WEXITSTATUS(status), "")
            return True

    @property
    def alive(self) -> bool:
        """Whether calls can be made."""
        return not self._stopping and not self._reap()

    def _check_alive(self, name: str) -> None:
        if self._reap() or (self._stopping and time.monotonic() >= self._drain_until):
            raise self.death(name)

    def death(self, name: str) -> WorkerDied | SandboxClosed:
        """How the worker ended, while `name` was called."""
        if self.closing:
            return SandboxClosed(f"{name}: the sandbox was closed by another thread before this call was done")
        signal_number, status, why = self._death or (None, None, self._why or "it is being ended")
        return WorkerDied(name, signal_number, status, self._why or why)

    _why = ""
    closing = False
    """Whether it is ended because its sandbox is closed, and not for a fault of its own."""

    def wait_ended(self, limit: float) -> bool:
        """Waits until the process has ended, at most `limit` seconds. Whether it has."""
        end = time.monotonic() + limit
        while not self._reap():
            left = end - time.monotonic()
            if left <= 0:
                return False
            pidfd = self._pidfd
            if pidfd is not None:
                poller = select.poll()
                poller.register(pidfd, select.POLLIN)
                poller.poll(max(1, int(min(left, 0.1) * 1000)))
            else:
                time.sleep(min(left, 0.005))
        return True

    def condemn(self, why: str) -> None:
        """Ends a worker that is of no more use, off the caller's path."""
        with self._state_lock:
            if self._stopping:
                return
            self._stopping = True
            self._unlink()
            self.condemned = True
            self._why = why
        _log.warning("ending the NVML worker %d: %s", self.pid, why)
        self._end_aside()

    def _end_aside(self) -> None:
        try:
            threading.Thread(target=self._end, name=f"nvsandbox-end-{self.pid}", daemon=True).start()
        except RuntimeError:  # no more threads, or the interpreter's exit: then it takes our time
            self._end()

    def finish(self) -> None:
        """Ends a worker that has been replaced, off the caller's path, as soon as no call is in it any more."""
        # Without a thread it is left for the session's end.
        with contextlib.suppress(RuntimeError):
            threading.Thread(target=self._finish, name=f"nvsandbox-finish-{self.pid}", daemon=True).start()

    def _finish(self) -> None:
        self._unlink()
        while True:
            with self._state_lock:
                if self._stopping:
                    return
                if self._inside == 0 and not self._lanes_in_use():
                    self._stopping = True
                    self._why = "it was recycled"
                    self.recycled = True
                    break
            time.sleep(0.02)
        self._end()

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
        """Ends the worker: asked to, then SIGTERM, then SIGKILL. Idempotent; bounded in time.

        With `grace` calls that are under way have a moment to come back with their results; new ones are refused.
        """
        with self._state_lock:
            first = not self._stopping
            if first and grace:
                self._drain_until = time.monotonic() + _DRAIN_LIMIT
            self._stopping = True
            self._unlink()
        if first:
            try:
                self._end(grace)
            except BaseException:  # Ctrl-C: nobody comes back to it
                self._end_aside()
                raise
        else:
            self._finished.wait(_STOP_LIMIT + _TERM_LIMIT + 2 * _KILL_LIMIT)

    def stop_aside(self) -> None:
        """As :meth:`stop`, without waiting for it."""
        with self._state_lock:
            if self._stopping:
                return
            self._stopping = True
        self._end_aside()

    def _end(self, grace: bool = True) -> None:
        with self._state_lock:
            channels, self._open = self._open, set()
        if grace:
            message = ffi.new("struct nvs_message *", [lib.NVS_MAGIC, lib.NVS_MSG_STOP])
            with contextlib.suppress(OSError):  # also where an end that was interrupted is gone through once more
                self._control.settimeout(0.1)
                self._control.send(bytes(ffi.buffer(message)))
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        # Killing a user of NVML outright has been seen to wedge GPUs, so SIGKILL comes last.
        ended = (
            self.wait_ended(_STOP_LIMIT if grace else 0.2)
            or (self._signal(signal.SIGTERM) and self.wait_ended(_TERM_LIMIT))
            or (self._signal(signal.SIGKILL) and self.wait_ended(_KILL_LIMIT))
        )
        if not ended:
            self.abandoned = True
            with _given_up_lock:
                _given_up.append(self)
            _log.error("the NVML worker %d cannot be ended (a driver call does not return); it is given up", self.pid)
        # Not under the hands of a thread that is opening a channel. It lets go soon: the worker's end is closed.
        locked = self._control_lock.acquire(timeout=_KILL_LIMIT)
        self._control.close()
        pidfd, self._pidfd = self._pidfd, None
        if pidfd is not None:
            os.close(pidfd)
        if locked:
            self._control_lock.release()
        for channel in list(channels):  # forget() may still take some off
            # A busy one is closed by the thread that is in it, which sees that we are stopping.
            if channel.enter():
                with contextlib.suppress(Exception):
                    channel.close()
        self._finished.set()

    def _unlink(self) -> None:
        """No more calls go the short way to this worker."""
        if self.link is not None and self.link.serial == self.serial:
            self.link.serial = 0

    def abandon(self) -> None:
        """In a forked child: closes what it inherited. The worker is the parent's, and is left alone."""
        self._stopping = True
        self._unlink()
        self._why = "it belongs to the process that this one was forked from"
        self._control.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        channels, self._open = self._open, set()
        for channel in channels:
            with contextlib.suppress(Exception):
                channel.close()

    def _signal(self, number: int) -> bool:
        # Not reaped yet, so that the number is still this process's.
        with self._state_lock:
            if self._death is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, number)
        return True


def _after_fork_in_child() -> None:
    global _given_up_lock
    _fork_lock.release()
    _given_up_lock = threading.Lock()
    _given_up.clear()
    for worker in list(_all):
        worker.abandon()
    _all.clear()


os.register_at_fork(
    before=lambda: _fork_lock.acquire(),
    after_in_parent=lambda: _fork_lock.release(),
    after_in_child=_after_fork_in_child,
)
