# SPDX-License-Identifier: Apache-2.0
"""A picture of a ``/dev``, and what two of them differ in."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from dataclasses import dataclass, field

FOLDER = "folder"
_DEPTH_MAX = 100
"""Folders in each other; each takes a descriptor, and a program can make any number of them."""
_KINDS = {
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
    stat.S_IFDIR: FOLDER,
    stat.S_IFLNK: "link",
    stat.S_IFREG: "file",
    stat.S_IFIFO: "FIFO",
    stat.S_IFSOCK: "socket",
}


@dataclass(frozen=True)
class Entry:
    """What a name stands for. `major` and `minor` are a device's, `target` is a link's; else None."""

    kind: str
    mode: int
    uid: int
    gid: int
    major: int | None
    minor: int | None
    target: str | None
    inode: int

    @property
    def permissions(self) -> str:
        """As ``chmod`` takes them: ``0666``."""
        return f"{self.mode:04o}"

    def facts(self) -> dict[str, object]:
        """For programs; the inode is of no use to them."""
        return {
            "type": self.kind,
            "mode": self.permissions,
            "uid": self.uid,
            "gid": self.gid,
            "major": self.major,
            "minor": self.minor,
            "target": self.target,
        }

    def words(self) -> str:
        """For people: ``character device 195:255, mode 0666, root:root``."""
        what = self.kind
        if self.major is not None:
            what += f" {self.major}:{self.minor}"
        if self.target is not None:
            return f"{what} to {self.target}"
        return f"{what}, mode {self.permissions}, {_user(self.uid)}:{_group(self.gid)}"


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def picture(folder: int) -> dict[str, Entry]:
    """All that is below an open folder: relative path to entry. What is mounted on a folder in it is not looked into:
    terminals and shared memory are others'."""
    found: dict[str, Entry] = {}
    _look(folder, "", os.fstat(folder).st_dev, found)
    return found


def entry(path: str, folder: int) -> Entry | None:
    """What `path` below an open folder stands for, links not followed; None if it is not there."""
    try:
        status = os.stat(path, dir_fd=folder, follow_symlinks=False)
        target = os.readlink(path, dir_fd=folder) if stat.S_ISLNK(status.st_mode) else None
    except OSError:
        return None
    is_node = stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)
    return Entry(
        _KINDS.get(stat.S_IFMT(status.st_mode), "unknown"),
        stat.S_IMODE(status.st_mode),
        status.st_uid,
        status.st_gid,
        os.major(status.st_rdev) if is_node else None,
        os.minor(status.st_rdev) if is_node else None,
        target,
        status.st_ino,
    )


def _is_too_deep(path: str) -> bool:
    return path.count("/") >= _DEPTH_MAX


def _look(folder: int, prefix: str, device: int, found: dict[str, Entry]) -> None:
    for name in os.listdir(folder):
        now = entry(name, folder)
        if now is None:  # gone meanwhile
            continue
        found[prefix + name] = now
        if now.kind != FOLDER or _is_too_deep(prefix + name):
            continue
        try:
            inside = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        except OSError:
            continue
        try:
            if os.fstat(inside).st_dev == device:
                _look(inside, f"{prefix}{name}/", device, found)
        finally:
            os.close(inside)


def folders(folder: int, found: dict[str, Entry]) -> dict[int, str]:
    """Inode to path of an open folder (an empty path) and of those in its picture, without what is mounted in it, and
    without those that are not looked into."""
    status = os.fstat(folder)
    known = {status.st_ino: ""}
    for path, now in found.items():
        if now.kind == FOLDER and not _is_too_deep(path):
            try:
                if os.stat(path, dir_fd=folder, follow_symlinks=False).st_dev == status.st_dev:
                    known[now.inode] = path
            except OSError:
                continue
    return known


@dataclass
class Difference:
    """What came, what went, and what is different under the same name (before, after), by path; and the folders that
    lie too deep for a picture to have what is in them."""

    created: dict[str, Entry] = field(default_factory=dict)
    removed: dict[str, Entry] = field(default_factory=dict)
    changed: dict[str, tuple[Entry, Entry]] = field(default_factory=dict)
    too_deep: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.created or self.removed or self.changed or self.too_deep)


def compare(before: dict[str, Entry], after: dict[str, Entry]) -> Difference:
    """A name that was taken away and made again, which only its inode shows, counts as changed."""
    difference = Difference()
    difference.too_deep = [path for path, now in after.items() if now.kind == FOLDER and _is_too_deep(path)]
    for path in sorted({*before, *after}):
        old, new = before.get(path), after.get(path)
        if old is None and new is not None:
            difference.created[path] = new
        elif old is not None and new is None:
            difference.removed[path] = old
        elif old is not None and new is not None and old != new:
            difference.changed[path] = (old, new)
    return difference
