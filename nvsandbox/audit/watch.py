# SPDX-License-Identifier: Apache-2.0
"""Watches a real ``/dev`` while others run: fanotify says what changed and the pid of who did it, afterwards.

Who that was is read from ``/proc`` at once, or from what the process events connector has told before, for the process
may have ended. Watched is the whole file system that the folder is on, and no other that is mounted in it.

Source: fanotify(7). Names need Linux 5.9, and CAP_SYS_ADMIN.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass

from nvsandbox import tree
from nvsandbox.audit import connector
from nvsandbox.audit.attribution import difference
from nvsandbox.audit.processes import Ancestry, Process
from nvsandbox.tree import Entry

_REPORT_DFID_NAME, _UNLIMITED_QUEUE, _CLOEXEC, _NONBLOCK = 0x400 | 0x800, 0x10, 0x1, 0x2
_MARK_ADD, _MARK_FILESYSTEM = 0x1, 0x100
_ATTRIB, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x4, 0x40, 0x80, 0x100, 0x200
_OVERFLOW, _ON_FOLDER = 0x4000, 0x40000000
_INFO_DFID_NAME = 2
_EVENT = struct.Struct("=IBBHQii")  # fanotify_event_metadata
_AT_FDCWD = -100

_libc = ctypes.CDLL(None, use_errno=True)


class WatchError(Exception):
    """Watching is not possible here."""


@dataclass(frozen=True)
class Event:
    """Something that was seen."""

    seconds: float
    """Since the start."""
    path: str | None
    """Below the folder; None for what stands for no single thing."""
    what: str
    """``created``, ``removed``, ``changed``, ``replaced``; ``touched`` if it is as before by now; ``lost``."""
    before: Entry | None
    after: Entry | None
    by: tuple[Process, ...]
    """The process and those that it comes from; empty where nothing is known."""


class Watch:
    """What happens in a folder from now on. To be closed.

    Raises WatchError where it is not possible, OSError if the folder cannot be opened.
    """

    def __init__(self, folder: str = "/dev") -> None:
        self.notes: list[str] = []
        """What it does not see, in words."""
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            self._root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, self._root)
            self._stop = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            for fd in self._stop:
                stack.callback(os.close, fd)
            self._fd = self._mark(stack, folder)
            self._connector = self._connect(stack)
            found = tree.picture(self._root)
            self._stack = stack.pop_all()
        self._known = found
        self._handles: dict[bytes, str] = {}
        self._learn(found)
        self._ancestry = Ancestry(told=self._connector is not None)
        for name in os.listdir("/proc"):
            if name.isdecimal():
                self._ancestry.note(int(name))
        # To see processes before they end, on a busy machine too. It sleeps until something happens.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
        self._ended: set[int] = set()
        self._start = time.monotonic()
        for name in _mounts_below(folder):
            self.notes.append(f"{name} is a file system of its own and is not watched")

    @staticmethod
    def _mark(stack: contextlib.ExitStack, folder: str) -> int:
        flags = _REPORT_DFID_NAME | _UNLIMITED_QUEUE | _CLOEXEC | _NONBLOCK
        fd = _libc.fanotify_init(flags, os.O_RDONLY | os.O_CLOEXEC)
        if fd < 0:
            err = ctypes.get_errno()
            raise WatchError(f"fanotify is not available: {os.strerror(err)}{_HINTS.get(err, '')}")
        stack.callback(os.close, fd)
        mask = _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _ON_FOLDER
        where = os.fsencode(folder)
        if _libc.fanotify_mark(fd, _MARK_ADD | _MARK_FILESYSTEM, ctypes.c_uint64(mask), _AT_FDCWD, where) != 0:
            err = ctypes.get_errno()
            raise WatchError(f"{folder} cannot be watched: {os.strerror(err)}{_HINTS.get(err, '')}")
        return int(fd)

    def _connect(self, stack: contextlib.ExitStack) -> socket.socket | None:
        try:
            return stack.enter_context(connector.open_events())
        except OSError as error:
            self.notes.append(f"processes that end at once may stay unnamed: {error.strerror or error}")
            return None

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def stop(self) -> None:
        """Ends :meth:`events`, after what has happened until now. For signal handlers and other threads too."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._stop[1], b"0")

    def events(self, limit: float | None = None) -> Iterator[Event]:
        """What happens, until :meth:`stop` is called or for so many seconds."""
        end = None if limit is None else time.monotonic() + limit
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        poller.register(self._stop[0], select.POLLIN)
        if self._connector is not None:
            poller.register(self._connector, select.POLLIN)
        going_on = True
        while going_on:
            left = None if end is None else max(0.0, end - time.monotonic())
            ready = dict(poller.poll(None if left is None else left * 1000))
            # What is in the queue now is still told.
            going_on = bool(ready) and self._stop[0] not in ready
            yield from self._read()

    def _read(self) -> Iterator[Event]:
        """What has happened until now."""
        self._hear()
        try:
            for _ in range(64):  # and not for ever, where they come faster than they are told
                data = os.read(self._fd, 1 << 18)
                # After it, and not before: whoever did this has begun by now, and that is told.
                self._hear()
                yield from self._parse(data)
        except BlockingIOError:
            # Only now, when all that they did has been told of.
            for pid in self._ended:
                self._ancestry.forget(pid)
            self._ended.clear()

    def _hear(self) -> None:
        """Notes who begins, starts programs, and ends."""
        if self._connector is None:
            return
        for what, pid, parent in connector.events(self._connector):
            if what == "fork":
                self._ancestry.note_child(pid, parent)
                self._ended.discard(pid)  # that was another one's
            elif what == "exec":
                self._ancestry.note(pid)
            else:
                self._ended.add(pid)

    def _parse(self, data: bytes) -> Iterator[Event]:
        while len(data) >= _EVENT.size:
            length, _, _, head, mask, _, pid = _EVENT.unpack_from(data)
            if mask & _OVERFLOW:
                yield self._event(None, "lost", None, None, ())
            else:
                path = self._path(data[head:length])
                if path is not None:
                    yield self._judge(path, pid)
            data = data[length:]

    def _event(
        self, path: str | None, what: str, before: Entry | None, after: Entry | None, by: tuple[Process, ...]
    ) -> Event:
        return Event(time.monotonic() - self._start, path, what, before, after, by)

    def _judge(self, path: str, pid: int) -> Event:
        """What became of it. Of several events in one moment the first has all of it, and the others are touches."""
        by = self._ancestry.stack(pid) if pid > 0 else ()
        before, after = self._known.get(path), tree.entry(path, self._root)
        if before is None and after is not None and after.kind == tree.FOLDER:
            self._learn(tree.picture(self._root))  # before it can be gone, or under its new name
        if after is None:
            self._known.pop(path, None)
        else:
            self._known[path] = after
        return self._event(path, difference(before, after) or "touched", before, after, by)

    def _path(self, records: bytes) -> str | None:
        """The path below the folder that the records of an event name; None if it is elsewhere on the file system."""
        while len(records) >= 4:
            kind, length = records[0], struct.unpack_from("=H", records, 2)[0]
            if kind == _INFO_DFID_NAME:
                # fsid, then a file_handle: its length, its type, the handle; then the name
                size = struct.unpack_from("=I", records, 12)[0]
                name = os.fsdecode(records[20 + size : length].partition(b"\0")[0])
                folder = self._folder(records[12 : 20 + size])
                if folder is None:
                    return None
                return folder if name == "." else f"{folder}/{name}" if folder else name
            if length == 0:
                return None
            records = records[length:]
        return None

    def _folder(self, handle: bytes) -> str | None:
        """The folder that a struct file_handle stands for, also one that is gone by now."""
        if handle not in self._handles:
            self._learn(tree.picture(self._root))
        return self._handles.get(handle)

    def _learn(self, found: dict[str, Entry]) -> None:
        for path in tree.folders(self._root, found).values():
            handle = _handle_of(path or ".", self._root)
            if handle is not None:
                self._handles[handle] = path

    def rest(self) -> Iterator[Event]:
        """What has changed and was not told of: after a loss, say."""
        now = tree.picture(self._root)
        for path in sorted(self._known.keys() | now.keys()):
            before, after = self._known.get(path), now.get(path)
            what = difference(before, after)
            if what is not None:
                yield self._event(path, what, before, after, ())


def _handle_of(path: str, root: int) -> bytes | None:
    """The struct file_handle of a folder below `root`; None if it is gone."""
    room = 128  # MAX_HANDLE_SZ
    buffer = ctypes.create_string_buffer(struct.pack("=Ii", room, 0) + bytes(room))
    mount = ctypes.c_int()
    if _libc.name_to_handle_at(root, os.fsencode(path), buffer, ctypes.byref(mount), 0) != 0:
        return None
    size = struct.unpack_from("=I", buffer)[0]
    return buffer.raw[: 8 + size]


_HINTS = {
    1: ": it needs CAP_SYS_ADMIN; run it as root, on the host and not in a user namespace",
    22: ": it needs Linux 5.9 or later, and a file system that can be watched",
    19: ": the file system cannot be watched",
    95: ": the file system cannot be watched",
}


def _mounts_below(folder: str) -> list[str]:
    start = f"{os.path.realpath(folder).rstrip('/')}/"
    found: dict[str, None] = {}
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            target = line.split(" ")[4]
            if target.startswith(start):
                found[target] = None
    return list(found)
