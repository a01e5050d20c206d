# SPDX-License-Identifier: Apache-2.0
"""A throwaway copy of ``/dev`` for this process and those that it starts.

This process gets a mount namespace of its own, so that it is for the command alone, which ends with it. What is mounted
in ``/dev`` (terminals, shared memory) is the real thing; everything else is copied to a tmpfs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat

_CLONE_NEWNS = 0x00020000
_MS_NOSUID, _MS_BIND, _MS_REC, _MS_SLAVE = 0x2, 0x1000, 0x4000, 1 << 19
_TMPFS_MAGIC = 0x01021994
_COPIED_MAX = 1 << 20

_libc = ctypes.CDLL(None, use_errno=True)


class StageError(Exception):
    """The copy could not be made."""


def _check(result: int, what: str, hint: str = "") -> None:
    if result != 0:
        err = ctypes.get_errno()
        raise StageError(f"{what}: {os.strerror(err)}{hint}")


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> int:
    result: int = _libc.mount(
        os.fsencode(source), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), data.encode()
    )
    return result


def enter() -> int:
    """Moves this process to a mount namespace with a copy of ``/dev``; a descriptor of the copy.

    Raises StageError, and then nothing of the machine's own has changed.
    """
    _check(
        _libc.unshare(_CLONE_NEWNS),
        "a mount namespace cannot be made",
        ": auditing a command needs CAP_SYS_ADMIN; run it as root. (A user namespace is no way round: in one, no "
        "program can create device nodes, so that there would be nothing to see.)",
    )
    # Before anything is mounted: in a shared tree the copy would cover the machine's own /dev. Slave, so that what is
    # mounted on the machine later still arrives.
    _check(_mount("none", "/", "", _MS_REC | _MS_SLAVE), "mounts cannot be kept from going out")
    old = os.open("/dev", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        mode = stat.S_IMODE(os.fstat(old).st_mode)
        inside = _mounted_in_dev()
        _check(_mount("tmpfs", "/dev", "tmpfs", _MS_NOSUID, f"mode={mode:o},size=64m,nr_inodes=65536"), "a tmpfs")
        new = os.open("/dev", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if os.fstat(new).st_dev == os.fstat(old).st_dev:
            raise StageError("mounting a tmpfs on /dev had no effect")
        source = f"/proc/self/fd/{old}"
        _copy_folder(source, "/dev", inside, "")
        for path in inside:
            _bind(f"{source}/{path}", f"/dev/{path}")
    finally:
        os.close(old)
    return new


def _mounted_in_dev() -> list[str]:
    """What is mounted in /dev, by path below it, outermost first, each once."""
    found: dict[str, None] = {}
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            target = line.split(" ")[4]
            for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
                target = target.replace(code, char)
            if target.startswith("/dev/"):
                found[target.removeprefix("/dev/")] = None
    # What is within another mount comes along with that.
    return [path for path in found if not any(path.startswith(f"{other}/") for other in found)]


def _bind(source: str, target: str) -> bool:
    """Shows `source` at `target`, with what is mounted in it. A place is made if need be."""
    if not os.path.lexists(target):
        with contextlib.suppress(OSError):
            os.mkdir(target) if os.path.isdir(source) else os.close(os.open(target, os.O_CREAT | os.O_EXCL, 0o600))
    return _mount(source, target, "", _MS_BIND | _MS_REC) == 0


def _copy_folder(source: str, target: str, inside: list[str], below: str) -> None:
    for name in os.listdir(source):
        path = f"{below}{name}"
        with contextlib.suppress(OSError):  # gone meanwhile, or not for this process
            _copy(f"{source}/{name}", f"{target}/{name}", inside, path)


def _copy(source: str, target: str, inside: list[str], path: str) -> None:
    status = os.lstat(source)
    kind = stat.S_IFMT(status.st_mode)
    mode = stat.S_IMODE(status.st_mode)
    if kind == stat.S_IFLNK:
        os.symlink(os.readlink(source), target)
    elif kind == stat.S_IFDIR:
        os.mkdir(target)
        if path not in inside:
            _copy_folder(source, target, inside, f"{path}/")
    elif path in inside or kind == stat.S_IFSOCK or not _make(source, target, status):
        _bind(source, target)
        return
    with contextlib.suppress(OSError):
        context = os.getxattr(source, "security.selinux", follow_symlinks=False)
        os.setxattr(target, "security.selinux", context, follow_symlinks=False)
    os.chown(target, status.st_uid, status.st_gid, follow_symlinks=False)
    if kind != stat.S_IFLNK:
        os.chmod(target, mode)


def _make(source: str, target: str, status: os.stat_result) -> bool:
    """Whether a device, FIFO or small file could be made; others are bound."""
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFREG:
        if status.st_size > _COPIED_MAX:
            return False
        with open(source, "rb") as old, open(target, "xb") as new:
            new.write(old.read(_COPIED_MAX))
        return True
    try:
        os.mknod(target, status.st_mode, status.st_rdev)
    except PermissionError:  # no CAP_MKNOD, or a device cgroup
        return False
    return True
