# SPDX-License-Identifier: Apache-2.0
"""The things in a folder as they are at a moment, and in what two moments differ."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import Literal

What = Literal["created", "removed", "changed", "replaced"]

_KINDS = {
    stat.S_IFCHR: "char",
    stat.S_IFBLK: "block",
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFLNK: "link",
}


@dataclass(frozen=True)
class State:
    """One thing at one moment."""

    kind: str
    """``char``, ``block``, ``file``, ``folder``, ``fifo``, ``socket``, ``link``."""
    mode: int
    """Permission bits."""
    uid: int
    gid: int
    number: tuple[int, int] | None
    """Major and minor of a device."""
    target: str | None
    """What a link says."""
    inode: int

    def __str__(self) -> str:
        if self.target is not None:
            return f"link to {self.target}"
        number = "" if self.number is None else f" {self.number[0]}:{self.number[1]}"
        return f"{self.kind}{number}, mode {self.mode:04o}, owner {self.uid}:{self.gid}"


def state(path: str, dir_fd: int | None = None) -> State | None:
    """How `path` is now, links not followed; None if it does not exist."""
    try:
        status = os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
        target = os.readlink(path, dir_fd=dir_fd) if stat.S_ISLNK(status.st_mode) else None
    except OSError:
        return None
    kind = stat.S_IFMT(status.st_mode)
    device = kind in (stat.S_IFCHR, stat.S_IFBLK)
    return State(
        kind=_KINDS.get(kind, "unknown"),
        mode=stat.S_IMODE(status.st_mode),
        uid=status.st_uid,
        gid=status.st_gid,
        number=(os.major(status.st_rdev), os.minor(status.st_rdev)) if device else None,
        target=target,
        inode=status.st_ino,
    )


def difference(before: State | None, after: State | None) -> What | None:
    """What became of a thing between two moments; None if it is the same."""
    if before == after:
        return None
    if before is None:
        return "created"
    if after is None:
        return "removed"
    # Another inode: removed and made anew, or another file was renamed to its name.
    return "changed" if before.inode == after.inode and before.kind == after.kind else "replaced"


@dataclass(frozen=True)
class Snapshot:
    """All things below a folder, without what is mounted in it."""

    states: dict[str, State]
    """By path below the folder."""
    folders: dict[int, str]
    """Inode to path of the folder (an empty path) and the folders in it."""


def snapshot(root: str, dir_fd: int | None = None) -> Snapshot:
    """Takes one of the folder `root`.

    Raises OSError if it cannot be listed. Folders in it that cannot be are as good as empty.
    """
    top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        status = os.fstat(top)
        states: dict[str, State] = {}
        folders = {status.st_ino: ""}
        waiting = [""]
        while waiting:
            folder = waiting.pop()
            for name in _names(top, folder):
                path = f"{folder}/{name}" if folder else name
                now = state(path, top)
                if now is None:
                    continue
                states[path] = now
                if now.kind == "folder" and _device(top, path) == status.st_dev:
                    folders[now.inode] = path
                    waiting.append(path)
        return Snapshot(states, folders)
    finally:
        os.close(top)


def _names(top: int, folder: str) -> list[str]:
    if not folder:
        return os.listdir(top)
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
    except OSError:
        return []
    try:
        return os.listdir(fd)
    finally:
        os.close(fd)


def _device(top: int, path: str) -> int | None:
    try:
        return os.stat(path, dir_fd=top, follow_symlinks=False).st_dev
    except OSError:
        return None
