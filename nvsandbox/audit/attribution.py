# SPDX-License-Identifier: Apache-2.0
"""Finds out for each change of a folder's things which system call of which process it was.

Of each call it is known before it runs that somebody is about to make it, and never afterwards whether it worked. So
the things that it names are looked at before it runs, at the next call that names them, and at the end: what is then
another than before is the doing of the last call in between that can have such an effect. What changed without one is
nobody's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from nvsandbox.audit.processes import Process
from nvsandbox.tree import Entry

What = Literal["created", "removed", "changed", "replaced"]

_MKNOD, _MKDIR, _LINK = ("mknod", "mknodat"), ("mkdir", "mkdirat"), ("link", "linkat", "symlink", "symlinkat")
_OPEN, _RENAME = ("open", "openat", "openat2", "creat"), ("rename", "renameat", "renameat2")
_CHMOD, _CHOWN = ("chmod", "fchmod", "fchmodat", "fchmodat2"), ("chown", "lchown", "fchown", "fchownat")
_EFFECTS: dict[What, tuple[str, ...]] = {
    "created": (*_MKNOD, *_MKDIR, *_LINK, *_OPEN, *_RENAME),
    "removed": ("unlink", "unlinkat", "rmdir", *_RENAME),
    "changed": (*_CHMOD, *_CHOWN),
    "replaced": (*_RENAME, *_MKNOD, *_MKDIR, *_LINK, *_OPEN),
}
_KEPT = 16
"""Calls for one path that are remembered until it changes."""


def difference(before: Entry | None, after: Entry | None) -> What | None:
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
class Change:
    """Something that became of one thing."""

    seconds: float
    """When it was announced, else when it was noticed, since the start."""
    path: str
    """Below the folder."""
    what: What
    before: Entry | None
    after: Entry | None
    call: str | None
    """The system call; None if it is not known."""
    by: tuple[Process, ...]
    """The process that made it, its parent, and so on; empty if it is not known."""


@dataclass(frozen=True)
class _Attempt:
    call: str
    by: tuple[Process, ...]
    thread: int
    time: float


class Attribution:
    """What has become of the things in a folder, as calls are announced.

    Args:
        before: how they were.
        look: how one of them is now.
    """

    def __init__(self, before: dict[str, Entry], look: Callable[[str], Entry | None]) -> None:
        self._known: dict[str, Entry] = dict(before)
        self._look = look
        self._attempts: dict[str, list[_Attempt]] = {}
        self._start = time.monotonic()
        self.changes: list[Change] = []

    def announce(self, path: str, call: str, thread: int, by: tuple[Process, ...]) -> None:
        """A thread is about to make this call, and waits until this returns."""
        self._settle(path)
        waiting = self._attempts.setdefault(path, [])
        # What this thread did before is over.
        waiting[:] = [attempt for attempt in waiting[-_KEPT:] if attempt.thread != thread]
        waiting.append(_Attempt(call, by, thread, time.monotonic()))

    def settle(self) -> None:
        """Looks at everything that somebody was about to change."""
        for path in list(self._attempts):
            self._settle(path)

    def finish(self, after: dict[str, Entry]) -> None:
        """All have ended: compares everything."""
        self.settle()
        for path in sorted(self._known.keys() | after.keys()):
            self._settle(path)
        self.changes.sort(key=lambda change: change.seconds)

    def _settle(self, path: str) -> None:
        before, after = self._known.get(path), self._look(path)
        what = difference(before, after)
        if what is None:
            return
        if after is None:
            del self._known[path]
        else:
            self._known[path] = after
        attempt = self._culprit(path, what)
        if attempt is None:
            self.changes.append(Change(time.monotonic() - self._start, path, what, before, after, None, ()))
        else:
            seconds = attempt.time - self._start
            self.changes.append(Change(seconds, path, what, before, after, attempt.call, attempt.by))

    def _culprit(self, path: str, what: What) -> _Attempt | None:
        waiting = self._attempts.get(path, [])
        for attempt in reversed(waiting):
            if attempt.call in _EFFECTS[what]:
                return attempt
        # What is in a folder that was renamed goes with it.
        folder, _, _ = path.rpartition("/")
        while folder:
            for attempt in reversed(self._attempts.get(folder, [])):
                if attempt.call.startswith("rename"):
                    return attempt
            folder, _, _ = folder.rpartition("/")
        return None
