# SPDX-License-Identifier: Apache-2.0
"""Runs a program in a throwaway copy of ``/dev`` and writes down who changes what in it.

A seccomp filter stops the program, and all that it starts, at each call that changes a name. While it waits, ``/proc``
says who it is and what the call is about; then the call goes on as if nothing had been (the kernel does it, not this
process). A program could exchange the path in its memory just then, which would hide who it was, but not what was done:
that is found by comparing.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from nvsandbox import tree
from nvsandbox.audit import calls, connector, stage
from nvsandbox.audit.attribution import Attribution, Change
from nvsandbox.audit.calls import AT_FDCWD, Argument, Call
from nvsandbox.audit.processes import Ancestry

_RECEIVE, _SEND, _IS_VALID = 0xC0502100, 0xC0182101, 0x40082102  # SECCOMP_IOCTL_NOTIF_*
_CONTINUE = 1  # SECCOMP_USER_NOTIF_FLAG_CONTINUE, since Linux 5.5
_PR_SET_CHILD_SUBREAPER = 36
_PATH_MAX = 4096
_GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL: NVIDIA's programs that are cut off have been seen to wedge GPUs."""


class AuditError(Exception):
    """The audit could not be made. `status` is the exit status that says so: 125, or as shells have it 126 and 127."""

    def __init__(self, message: str, status: int = 125) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Outcome:
    """How it went."""

    changes: list[Change]
    status: int
    """The program's exit status, negative for a signal."""
    seconds: float
    timed_out: bool
    """Whether it was ended because the time was over."""


def run(command: Sequence[str], *, limit: float | None = None, stdout_to_stderr: bool = False) -> Outcome:
    """Runs `command` in a copy of ``/dev`` that this process moves to for the rest of its life.

    Args:
        command: the program and its arguments.
        limit: seconds after which it is ended; None for no limit.
        stdout_to_stderr: whether what it prints goes to standard error.

    Raises AuditError.
    """
    try:
        root = stage.enter()
    except stage.StageError as error:
        raise AuditError(str(error)) from error
    # So that what the program leaves behind when it ends is still found, and can be ended.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = tree.picture(root)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, root)
        pid, listener, failure = _start(command, stdout_to_stderr)
        stack.callback(os.close, listener)
        stack.callback(failure.close)
        news = None
        with contextlib.suppress(OSError):  # without it, the parents of daemons are unknown
            news = stack.enter_context(connector.open_events())
        outcome = _Supervisor(root, before, listener, pid, news).serve(limit)
        err = failure.recv(16)
    if err:
        code = int(err)
        missing = code in (errno.ENOENT, errno.ENOTDIR)
        raise AuditError(f"{command[0]} cannot be run: {os.strerror(code)}", 127 if missing else 126)
    return outcome


def _start(command: Sequence[str], stdout_to_stderr: bool) -> tuple[int, int, socket.socket]:
    """Starts the program under the filter: its pid, the descriptor of the notifications, and the socket on which the
    errno comes if it cannot be run."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        # The exceptions of this half end here: it is a copy of a process that has other things to do.
        status = 125
        try:
            ours.close()
            _become(command, theirs, stdout_to_stderr)
        except OSError as error:
            with contextlib.suppress(OSError):
                theirs.send(str(error.errno or errno.EIO).encode())
        finally:
            os._exit(status)
    theirs.close()
    message, descriptors, _, _ = socket.recv_fds(ours, 16, 1)
    if not descriptors:
        os.waitpid(pid, 0)
        ours.close()
        code = int(message or b"0")
        hint = {
            errno.EACCES: "it needs CAP_SYS_ADMIN",
            errno.EBUSY: "it runs under another such audit, or in a container whose runtime has a filter of that kind",
            errno.EINVAL: "it needs Linux 5.5 or later",
        }.get(code, "")
        raise AuditError(f"the filter cannot be installed: {os.strerror(code)}{': ' if hint else ''}{hint}")
    return pid, descriptors[0], ours


def _become(command: Sequence[str], theirs: socket.socket, stdout_to_stderr: bool) -> None:
    # Those that Python ignores, and those that are handled here; what the caller ignored, as nohup does, stays so.
    for number in (signal.SIGPIPE, signal.SIGXFSZ, *_not_ignored()):
        signal.signal(number, signal.SIG_DFL)
    if stdout_to_stderr:
        os.dup2(2, 1)
    listener = calls.install()
    socket.send_fds(theirs, [b"0"], [listener])
    os.close(listener)
    os.execvp(command[0], list(command))


class _Supervisor:
    def __init__(
        self, root: int, before: dict[str, tree.Entry], listener: int, pid: int, news: socket.socket | None
    ) -> None:
        self._root = root
        self._device = os.fstat(root).st_dev
        self._folders = tree.folders(root, before)
        self._listener = listener
        self._pid = pid
        self._calls = calls.calls()
        self._news = news
        self._ancestry = Ancestry(top=pid)
        self._ancestry.note(pid)
        self._ours = {pid}
        self._attribution = Attribution(before, lambda path: tree.entry(path, root))
        self._status: int | None = None
        self._asked_to_end = False

    # ---- the loop

    def serve(self, limit: float | None) -> Outcome:
        """Answers until nobody is left whom the filter stops."""
        start = time.monotonic()
        end = None if limit is None else start + limit
        timed_out = False
        kill_at: float | None = None
        old = {number: signal.signal(number, self._signalled) for number in _not_ignored()}
        try:
            poller = select.poll()
            poller.register(self._listener, select.POLLIN)
            settled = start
            told = False
            while True:
                event = dict(poller.poll(200)).get(self._listener, 0)
                self._reap()
                if event & select.POLLIN:
                    self._answer()
                elif event and self._status is not None:  # POLLHUP: nobody is left
                    break
                now = time.monotonic()
                if now - settled >= 0.2:
                    settled = now
                    self._attribution.settle()
                if kill_at is None and ((end is not None and now >= end) or self._asked_to_end):
                    timed_out = not self._asked_to_end
                    self._end(signal.SIGTERM)
                    kill_at = now + _GRACE
                elif kill_at is not None and now >= kill_at:
                    self._end(signal.SIGKILL)
                    kill_at = now + 1
                if self._status is not None and not told and kill_at is None and not event:
                    told = True
                    _say("the command has ended; what it has left running is watched on (Ctrl-C ends it)")
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)
        self._attribution.finish(tree.picture(self._root))
        return Outcome(self._attribution.changes, self._status or 0, time.monotonic() - start, timed_out)

    def _signalled(self, number: int, frame: object) -> None:
        """Ctrl-C reaches the program as well, which does with it what it likes; other signals are passed on."""
        if self._status is not None:
            self._asked_to_end = True
        elif number not in (signal.SIGINT, signal.SIGQUIT):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._pid:
                self._status = os.waitstatus_to_exitcode(status)

    def _end(self, number: signal.Signals) -> None:
        """Sends a signal to the program and all that come from it."""
        for pid in _descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def _hear(self) -> None:
        """Notes the program's new processes. The kernel tells of one before it runs."""
        for what, pid, parent in () if self._news is None else connector.events(self._news):
            if what == "fork" and parent in self._ours:
                self._ours.add(pid)
                self._ancestry.note_child(pid, parent)
            elif what == "exec" and pid in self._ours:
                self._ancestry.note(pid)

    # ---- one call

    def _answer(self) -> None:
        request = bytearray(80)
        try:
            fcntl.ioctl(self._listener, _RECEIVE, request)
        except OSError:  # it has ended, or a signal has come
            return
        identity, thread, _, number, _, _, *arguments = struct.unpack("QIIiIQ6Q", request)
        try:
            call = self._calls.get(number)
            if call is not None:
                self._consider(call, thread, arguments, identity)
        finally:
            # Whatever happens here, nobody is left waiting.
            with contextlib.suppress(OSError):
                fcntl.ioctl(self._listener, _SEND, bytearray(struct.pack("QqiI", identity, 0, 0, _CONTINUE)))

    def _consider(self, call: Call, thread: int, arguments: list[int], identity: int) -> None:
        self._hear()
        if call.starts:
            with contextlib.suppress(OSError):
                [program] = call.arguments
                self._ancestry.expect(thread, _string(thread, arguments[program.path or 0]))
            return
        paths = [self._path(thread, argument, arguments) for argument in call.arguments]
        if all(path is None for path in paths):
            return
        by = self._ancestry.stack(thread)
        try:
            # All of this was read of the thread that waits, and not of one that has got its number since.
            fcntl.ioctl(self._listener, _IS_VALID, bytearray(struct.pack("Q", identity)))
        except OSError:
            return
        for path in paths:
            if path is not None:
                self._attribution.announce(path, call.name, thread, by)

    def _path(self, thread: int, argument: Argument, arguments: list[int]) -> str | None:
        """What the call is about, below the copy of /dev; None if that is elsewhere or cannot be found out."""
        base = f"/proc/{thread}"
        folder = None
        if argument.folder is not None:
            folder = ctypes.c_int(arguments[argument.folder] & 0xFFFFFFFF).value
        try:
            text = "" if argument.path is None else _string(thread, arguments[argument.path])
            if not text:
                return self._of_file(f"{base}/fd/{folder}")
            start = f"{base}/cwd" if folder in (None, AT_FDCWD) else f"{base}/fd/{folder}"
            if text.startswith("/"):
                start = f"{base}/root"
                for own in ("/proc/self/", "/proc/thread-self/"):
                    if text.startswith(own):
                        start, text = f"{base}/", text.removeprefix(own)
            elif "/dev" not in os.readlink(start) and "dev" not in text:
                return None
            # Going to every folder that a program creates a file in would wait for each network file system.
            if start.endswith("/root") and "dev" not in text:
                return None
            return self._in_folder(f"{start}/{text.rstrip('/')}", argument.follows)
        except (OSError, ValueError):
            return None

    def _of_file(self, path: str) -> str | None:
        status = os.stat(path)
        if status.st_dev != self._device:
            return None
        found = tree.picture(self._root)
        return next((path for path, entry in found.items() if entry.inode == status.st_ino), None)

    def _in_folder(self, path: str, follows: bool) -> str | None:
        if follows and os.path.islink(path):
            return self._of_file(path)
        parent, _, name = path.rpartition("/")
        status = os.stat(f"{parent}/")
        if status.st_dev != self._device or name in ("", ".", ".."):
            return None
        if status.st_ino not in self._folders:
            self._folders = tree.folders(self._root, tree.picture(self._root))
        folder = self._folders.get(status.st_ino)
        if folder is None:  # gone, though somebody is still in it, or too deep
            return None
        return f"{folder}/{name}" if folder else name


_FORWARDED = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)


def _not_ignored() -> list[signal.Signals]:
    return [number for number in _FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"nvsandbox: {text}\n".encode())


def _string(thread: int, address: int) -> str:
    """A path in the memory of a thread."""
    fd = os.open(f"/proc/{thread}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.pread(fd, _PATH_MAX, address)
    finally:
        os.close(fd)
    return os.fsdecode(data.partition(b"\0")[0])


def _descendants(top: int) -> list[int]:
    """All processes that come from this one, which is not among them."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    waiting = [top]
    while waiting:
        for pid in children.get(waiting.pop(), []):
            found.append(pid)
            waiting.append(pid)
    return found
