# SPDX-License-Identifier: Apache-2.0
"""What was removed, in a file from which it can be put back.

The file has an object in JSON on each line. The first says what it is; each other one is a removal, written before it
is done, or says that something was kept in the end. Every line is checked before it is acted on as if an enemy had
written it: only names and numbers of NVIDIA's, only below the ``/dev`` that is given, and never over something that
exists.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nvsandbox import driverfacts
from nvsandbox.driverfacts import DriverFacts
from nvsandbox.nodenames import FOLDERS, NUMBER_LINK, Node, expected, name_in_dev

_FORMAT = "nvsandbox nodes removed"
_VERSION = 1
_SIZE_MAX = 64 << 20
_XATTR = "security.selinux"


def default_path(environment: dict[str, str] | None = None) -> str:
    """A new file's path: in /var/lib/nvsandbox for root, else in the user's state folder (XDG_STATE_HOME)."""
    variables = dict(os.environ) if environment is None else environment
    if os.geteuid() == 0:
        folder = "/var/lib/nvsandbox"
    else:
        state = variables.get("XDG_STATE_HOME") or os.path.join(variables.get("HOME", "/tmp"), ".local", "state")
        folder = os.path.join(state, "nvsandbox")
    return os.path.join(folder, f"nodes-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}.jsonl")


def selinux_context(dev: str, path: str) -> str | None:
    """The file's SELinux context; None where there is none."""
    try:
        return os.getxattr(os.path.join(dev, path), _XATTR, follow_symlinks=False).rstrip(b"\0").decode()
    except (OSError, UnicodeDecodeError):
        return None


class Journal:
    """The file as it is written. It must not exist; its folder is made."""

    def __init__(self, path: str, dev: str) -> None:
        folder = os.path.dirname(os.path.abspath(path))
        os.makedirs(folder, mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self.path = path
        self._file = os.fdopen(os.open(path, flags, 0o600), "w", encoding="ascii")
        try:
            self._write({"format": _FORMAT, "version": _VERSION, "dev": dev, "time": int(time.time())})
            self.sync()
            self._sync_folder(folder)
        except BaseException:
            self._file.close()
            raise

    @staticmethod
    def _sync_folder(folder: str) -> None:
        """So that the file's name is on disk as well."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")

    def removing(self, node: Node, aside: str, selinux: str | None) -> None:
        """Notes a node or link, with the name under which it is for the moment between."""
        device = node.number is not None
        self._write(
            {
                "remove": node.path,
                "kind": node.kind,
                "number": list(node.number) if node.number is not None else None,
                "mode": node.mode if device else None,
                "uid": node.uid,
                "gid": node.gid,
                "target": node.target,
                "selinux": selinux,
                "aside": aside,
            }
        )

    def removing_folder(self, name: str, status: os.stat_result, selinux: str | None) -> None:
        """Notes a folder, and that on disk."""
        facts = {"mode": stat.S_IMODE(status.st_mode), "uid": status.st_uid, "gid": status.st_gid, "selinux": selinux}
        self._write({"remove": name, "kind": "folder", **facts})
        self.sync()

    def kept(self, path: str) -> None:
        """Notes that it was not removed in the end."""
        self._write({"kept": path})

    def sync(self) -> None:
        """Returns when all of it is on disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


# ---- putting back ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Entry:
    path: str
    kind: str
    number: tuple[int, int] | None
    mode: int
    uid: int
    gid: int
    target: str | None
    selinux: str | None
    aside: str | None


@dataclass(frozen=True)
class Restored:
    """What became of a line."""

    path: str
    done: bool
    what: str


def restore(path: str, dev: str = "/dev", proc: str = "/proc") -> Iterator[Restored]:
    """Puts back what the file at `path` says was removed from `dev`, the last removal first.

    Raises OSError if the file, `dev` or ``proc/devices`` cannot be read, ValueError if it is no such file.
    """
    entries, bad = _entries(path, driverfacts.read(proc))
    yield from bad
    top = os.open(dev, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for entry in reversed(entries):
            try:
                yield Restored(entry.path, True, _restore(top, entry))
            except FileExistsError:
                yield Restored(entry.path, False, "something is there now, and stays as it is")
            except OSError as error:
                yield Restored(entry.path, False, f"it cannot be made: {error.strerror}")
    finally:
        os.close(top)


def _entries(path: str, driver: DriverFacts) -> tuple[list[_Entry], list[Restored]]:
    # Not to wait for a FIFO's writer, nor to become a terminal's owner
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ValueError(f"{path} is not a regular file: expected one that nvsandbox nodes --clean has written")
    with open(fd, "rb") as file:
        data = file.read(_SIZE_MAX + 1)
    if len(data) > _SIZE_MAX:
        raise ValueError(f"{path} is larger than {_SIZE_MAX >> 20} MiB, which no file of nvsandbox nodes --clean is")
    head, *lines = data.split(b"\n")
    try:
        header = json.loads(head)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or header.get("format") != _FORMAT or header.get("version") != _VERSION:
        raise ValueError(f"{path} is no file of nvsandbox nodes --clean: its first line does not say so")
    entries: dict[str, _Entry] = {}
    bad = []
    for number, line in enumerate(lines, 2):
        if not line.strip():
            continue
        try:
            said = json.loads(line)
            if isinstance(said, dict) and set(said) == {"kept"}:
                entries.pop(str(said["kept"]), None)
                continue
            entry = _checked(said, driver)
        except (ValueError, RecursionError) as error:
            bad.append(Restored(f"line {number}", False, f"it is not acted on: {error}"))
            continue
        entries[entry.path] = entry
    return list(entries.values()), bad


def _checked(said: Any, driver: DriverFacts) -> _Entry:
    """The line as an entry. Raises ValueError if anything in it is not as it was written here."""
    if not isinstance(said, dict):
        raise ValueError("an object was expected")
    path, kind = _string(said, "remove"), _string(said, "kind")
    limits = {"mode": 0o777, "uid": (1 << 32) - 2, "gid": (1 << 32) - 2}
    mode, uid, gid = (_integer(said, key, limit) for key, limit in limits.items())
    target, number = said.get("target"), said.get("number")
    selinux, aside = said.get("selinux"), said.get("aside")
    for key, value in (("target", target), ("selinux", selinux), ("aside", aside)):
        if value is not None and not (isinstance(value, str) and value.isprintable()):
            raise ValueError(f"{key} is {value!r}, and text was expected")
    if aside is not None and ("/" in aside or not aside.startswith(".nvsandbox-aside-")):
        raise ValueError(f"aside is {aside!r}, which is no name that nodes are set aside under")
    pair = None
    if kind == "char":
        pair = _number(path, number, driver)
    elif kind == "link":
        match = NUMBER_LINK.fullmatch(path.removeprefix("char/"))
        if not path.startswith("char/") or match is None or not driver.may_be_nvidias(int(match[1])):
            raise ValueError(f"{path!r} is no link by a number of NVIDIA's")
        if target is None or expected(name_in_dev(target)) is None:
            raise ValueError(f"{path} would lead to {target!r}, which is no node of NVIDIA's")
    elif kind != "folder" or path not in FOLDERS:
        raise ValueError(f"{path!r} is no {kind} of NVIDIA's")
    return _Entry(path, kind, pair, mode, uid, gid, target, selinux, aside)


def _string(said: dict[str, Any], key: str) -> str:
    value = said.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{key} is {value!r}, and text was expected")
    return value


def _integer(said: dict[str, Any], key: str, limit: int) -> int:
    value = said.get(key)
    if value is None and key == "mode":  # a link has none
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= limit:
        raise ValueError(f"{key} is {value!r}, and a number from 0 to {limit} was expected")
    return value


def _number(path: str, number: Any, driver: DriverFacts) -> tuple[int, int]:
    if expected(path) is None:
        raise ValueError(f"{path!r} is no name of a node of NVIDIA's")
    match number:
        case [int(major), int(minor)] if 0 <= major < 1 << 12 and 0 <= minor < 1 << 20:
            pass
        case _:
            raise ValueError(f"number is {number!r}, and [major, minor] was expected")
    if not driver.may_be_nvidias(major):
        raise ValueError(f"{path} would be {major}:{minor}, which is {driver.other_majors.get(major, 'no number')}'s")
    return major, minor


def _restore(top: int, entry: _Entry) -> str:
    """Makes one, and says how. Raises OSError."""
    folder, _, name = entry.path.rpartition("/")
    with contextlib.ExitStack() as stack:
        parent = top
        if folder:
            if folder in FOLDERS or folder == "char":
                with contextlib.suppress(FileExistsError), _modes_as_given():
                    os.mkdir(folder, 0o755, dir_fd=top)
            flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            parent = os.open(folder, flags, dir_fd=top)
            stack.callback(os.close, parent)
        if entry.aside is not None and _is_set_aside(parent, entry):
            os.link(entry.aside, name, src_dir_fd=parent, dst_dir_fd=parent, follow_symlinks=False)
            os.unlink(entry.aside, dir_fd=parent)
            return "it had been set aside only, and is itself again"
        made = _make(parent, name, entry)
        try:
            os.chown(name, entry.uid, entry.gid, dir_fd=parent, follow_symlinks=False)
            if entry.selinux is not None:
                at = f"/proc/self/fd/{parent}/{name}"
                os.setxattr(at, _XATTR, entry.selinux.encode() + b"\0", follow_symlinks=False)
        except OSError:
            (os.rmdir if entry.kind == "folder" else os.unlink)(name, dir_fd=parent)
            raise
        return made


def _is_set_aside(parent: int, entry: _Entry) -> bool:
    """Whether a removal was cut short, so that the node is still there under the other name."""
    assert entry.aside is not None
    try:
        status = os.stat(entry.aside, dir_fd=parent, follow_symlinks=False)
    except OSError:
        return False
    if entry.kind == "link":
        return stat.S_ISLNK(status.st_mode)
    return stat.S_ISCHR(status.st_mode) and (os.major(status.st_rdev), os.minor(status.st_rdev)) == entry.number


def _make(parent: int, name: str, entry: _Entry) -> str:
    if entry.kind == "link":
        assert entry.target is not None
        os.symlink(entry.target, name, dir_fd=parent)
        return f"link to {entry.target}"
    with _modes_as_given():
        if entry.kind == "folder":
            os.mkdir(name, entry.mode, dir_fd=parent)
            return f"folder, mode {entry.mode:04o}, owner {entry.uid}:{entry.gid}"
        assert entry.number is not None
        os.mknod(name, stat.S_IFCHR | entry.mode, os.makedev(*entry.number), dir_fd=parent)
        return f"char {entry.number[0]}:{entry.number[1]}, mode {entry.mode:04o}, owner {entry.uid}:{entry.gid}"


@contextlib.contextmanager
def _modes_as_given() -> Iterator[None]:
    """At once and in full, for a chmod afterwards could be led to another file."""
    old = os.umask(0)
    try:
        yield
    finally:
        os.umask(old)
