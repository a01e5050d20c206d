# SPDX-License-Identifier: Apache-2.0
"""Which processes have a file open or mapped, as far as ``/proc`` shows it.

A file is open where a descriptor leads to it, in whatever mount namespace, or where one was opened under its name and
number in our own mount namespace and the file has been replaced since. A process that holds the same device by another
node, such as a container by its own, does not use this one.

Not seen: descriptors on their way through a socket, and files that are registered with io_uring and closed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import stat
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_PF_KTHREAD = 0x00200000
_libc = ctypes.CDLL(None, use_errno=True)
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel's headers, fixed since Linux 3.8

Identity = tuple[int, int]
"""st_dev and st_ino."""


@dataclass
class Users:
    """Who has which file open."""

    of: dict[Identity, list[str]] = field(default_factory=dict)
    """File to processes: "1234 (nvidia-persiste)"."""
    unseen: list[str] = field(default_factory=list)
    """Processes that could not be looked at, and other reasons why somebody may have any of the files open."""


def find(files: Mapping[Identity, tuple[str, int]], proc: str = "/proc") -> Users:
    """Who has one of `files` open: st_dev and st_ino to path and st_rdev. This process is left out.

    Raises OSError if `proc` cannot be listed.
    """
    users = Users()
    by_name = {(path, rdev): identity for identity, (path, rdev) in files.items()}
    own_mounts = _link(f"{proc}/self/ns/mnt")
    own_pid = _link(f"{proc}/self")  # as this /proc has it, which may be another pid namespace's
    namespace = _link(f"{proc}/1/ns/pid")
    if namespace is None and own_pid == str(os.getpid()):
        namespace = _link(f"{proc}/self/ns/pid")
    if namespace not in (_INITIAL_PID_NAMESPACE, None):
        users.unseen.append("this pid namespace is not the host's, so the host's processes cannot be seen")
    elif not os.path.exists(f"{proc}/1"):
        users.unseen.append("other users' processes are hidden (hidepid), and CAP_SYS_PTRACE is missing to see them")
    for name in os.listdir(proc):
        if not name.isdecimal() or name == own_pid:
            continue
        base = f"{proc}/{name}"
        try:
            for identity in _of_process(base, files, by_name, own_mounts, numbers_are_ours=own_pid == str(os.getpid())):
                users.of.setdefault(identity, []).append(_label(base, name))
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        except OSError as error:
            if not _is_kernel_thread(base):
                users.unseen.append(f"process {_label(base, name)} cannot be looked at: {error.strerror}")
    return users


def _of_process(
    base: str,
    files: Mapping[Identity, tuple[str, int]],
    by_name: Mapping[tuple[str, int], Identity],
    own_mounts: str | None,
    *,
    numbers_are_ours: bool,
) -> set[Identity]:
    found = {*_by_descriptor(base, files, by_name, own_mounts), *_by_mapping(base, files)}
    pid = os.path.basename(base)
    for thread in _threads(base):
        # What /proc shows of a process is its first thread's. Another can have descriptors of its own (unshare), and
        # the first can have ended, which leaves it none and no memory, while others go on.
        if thread == pid or (numbers_are_ours and _share_descriptors(int(pid), int(thread))):
            continue
        try:
            at = f"{base}/task/{thread}"
            found |= {*_by_descriptor(at, files, by_name, own_mounts), *_by_mapping(at, files)}
        except (FileNotFoundError, ProcessLookupError):  # the thread has ended
            continue
    return found


def _threads(base: str) -> list[str]:
    try:
        return os.listdir(f"{base}/task")
    except OSError:  # it has ended, or this is no real /proc
        return []


_KCMP = {"x86_64": 312, "aarch64": 272}
_KCMP_FILES = 2


def _share_descriptors(one: int, other: int) -> bool:
    """Whether two threads have the same table. False also where the kernel does not say: then both are looked at."""
    number = _KCMP.get(platform.machine())
    return number is not None and _libc.syscall(number, one, other, _KCMP_FILES, 0, 0) == 0


def _by_descriptor(
    base: str,
    files: Mapping[Identity, tuple[str, int]],
    by_name: Mapping[tuple[str, int], Identity],
    own_mounts: str | None,
) -> Iterator[Identity]:
    own = None  # asked for when it matters
    for fd in os.listdir(f"{base}/fd"):
        path = f"{base}/fd/{fd}"
        try:
            target = os.readlink(path)
            if not target.startswith("/"):  # a socket, a pipe, …
                continue
            identity, mode, number = _file(path)
        except FileNotFoundError:
            continue
        if identity in files:
            yield identity
        elif stat.S_ISCHR(mode):
            named = by_name.get((target.removesuffix(" (deleted)"), number))
            if named is not None:
                own = _link(f"{base}/ns/mnt") if own is None else own
                if own == own_mounts:
                    yield named


_STATX = {"x86_64": 332, "aarch64": 291}
_AT_FDCWD, _AT_STATX_DONT_SYNC = -100, 0x4000
_STATUS = struct.Struct("=28xH2xQ88x4I112x")  # struct statx: mode, inode, then major and minor of rdev and of dev


def _file(path: str) -> tuple[Identity, int, int]:
    """The file that a path leads to, its st_mode and its st_rdev; nothing is opened. Raises OSError.

    Asked so that a network or FUSE file system answers from memory: processes have files of servers that are gone, for
    which stat() waits for ever, and of users' own FUSE mounts, of which not even root is told more than the device.
    So stat() is called only where there is no statx(): before Linux 4.11, or in a container whose filter does not know
    it, of which older ones say EPERM.
    """
    number = _STATX.get(platform.machine())
    buffer = ctypes.create_string_buffer(_STATUS.size)
    err = errno.ENOSYS
    if number is not None:
        name = os.fsencode(path)
        failed = _libc.syscall(ctypes.c_long(number), _AT_FDCWD, name, _AT_STATX_DONT_SYNC, 0, buffer)
        err = ctypes.get_errno() if failed else 0
    if err in (errno.ENOSYS, errno.EPERM):
        status = os.stat(path)
        return (status.st_dev, status.st_ino), status.st_mode, status.st_rdev
    if err:
        raise OSError(err, os.strerror(err), path)
    mode, inode, *numbers = _STATUS.unpack(buffer.raw)
    rdev, dev = os.makedev(*numbers[:2]), os.makedev(*numbers[2:])
    return (dev, inode), mode, rdev


def _by_mapping(base: str, files: Mapping[Identity, tuple[str, int]]) -> Iterator[Identity]:
    """From ``maps``: ``map_files`` has the same, but wants CAP_SYS_ADMIN, and a system call for each mapping."""
    with open(f"{base}/maps", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            # address, permissions, offset, device, inode, path
            fields = line.split(None, 5)
            if len(fields) < 5 or fields[4] == "0":
                continue
            major, _, minor = fields[3].partition(":")
            identity = (os.makedev(int(major, 16), int(minor, 16)), int(fields[4]))
            if identity in files:
                yield identity


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def _label(base: str, pid: str) -> str:
    try:
        with open(f"{base}/comm", encoding="utf-8", errors="replace") as file:
            return f"{pid} ({file.read().rstrip()})"
    except OSError:
        return pid


def _is_kernel_thread(base: str) -> bool:
    try:
        with open(f"{base}/stat", encoding="utf-8", errors="replace") as file:
            return bool(int(file.read().rpartition(")")[2].split()[6]) & _PF_KTHREAD)
    except (OSError, ValueError, IndexError):
        return False
