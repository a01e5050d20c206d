# SPDX-License-Identifier: Apache-2.0
"""Who a process is, and which processes it comes from."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

_DEPTH_MAX = 64


@dataclass(frozen=True)
class Process:
    """A process as ``/proc`` has it. What could not be read is None or empty."""

    pid: int
    name: str | None
    """Its short name, comm: at most 15 bytes, and whatever the process has made of it."""
    exe: str | None
    """The program's file."""
    cmdline: tuple[str, ...]
    uid: int | None
    """Effective user."""

    def __str__(self) -> str:
        return f"{self.name or 'unknown'}[{self.pid}]" if self.pid else "…"


@dataclass(frozen=True)
class Look:
    """A process at a moment."""

    process: Process
    parent: int
    """Its parent's pid; 0 if it is not known."""
    started: str
    """When it began, in the kernel's ticks: with the pid, it is this process and no other."""

    @property
    def alive(self) -> bool:
        return self.process.name is not None


def look(pid: int) -> Look:
    """The process that `pid` belongs to; a thread's id does as well."""
    facts: dict[str, str] = {}
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            for line in file:
                key, _, value = line.partition(":")
                facts[key] = value.strip()
    except OSError:
        return Look(Process(pid, None, None, (), None), 0, "")
    group = _number(facts.get("Tgid")) or pid
    uids = facts.get("Uid", "").split()
    name = facts.get("Name") if group == pid else _read(f"/proc/{group}/comm").rstrip("\n") or None
    process = Process(
        pid=group,
        name=name,
        exe=_link(f"/proc/{group}/exe"),
        cmdline=tuple(_read(f"/proc/{group}/cmdline").rstrip("\0").split("\0")),
        uid=_number(uids[1]) if len(uids) > 1 else None,
    )
    fields = _read(f"/proc/{group}/stat").rpartition(")")[2].split()
    return Look(process, _number(facts.get("PPid")) or 0, fields[19] if len(fields) > 19 else "")


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65536)
    except OSError:
        return ""


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


class Ancestry:
    """Stacks of processes, which remember those that were seen alive: a daemon's parent is gone when it acts.

    Args:
        top: where stacks end.
        told: whether somebody calls :meth:`note`, :meth:`note_child` and :meth:`forget` for every process, so that what
            is remembered need not be looked at again.
    """

    def __init__(self, top: int | None = None, *, told: bool = False) -> None:
        self._top = top
        self._told = told
        self._seen: dict[int, Look] = {}
        self._expected: set[int] = set()
        # A program's processes whose parents have ended become this process's own.
        self._above = (0,) if top is None else (0, os.getpid())

    def note(self, pid: int) -> None:
        """Remembers who this is now: when it has started a program."""
        now = look(pid)
        if now.alive:
            self._seen[now.process.pid] = self._with_first_parent(now)
        elif pid in self._seen and pid not in self._expected:
            # It has ended, and what was known of it was another program.
            self._seen[pid] = replace(self._seen[pid], process=now.process)
        self._expected.discard(pid)

    def expect(self, pid: int, path: str) -> None:
        """Remembers the program that a process is about to start, in case that it ends before it is looked at."""
        now = look(pid)
        if now.alive:
            pid = now.process.pid
            process = replace(now.process, name=os.path.basename(path)[:15], exe=path, cmdline=())
            self._seen[pid] = replace(self._with_first_parent(now), process=process)
            self._expected.add(pid)

    def note_child(self, pid: int, parent: int) -> None:
        """Remembers a new process, which runs its parent's program and may end before it can be looked at."""
        old = self._seen.get(parent)
        process = Process(pid, None, None, (), None) if old is None else replace(old.process, pid=pid)
        self._seen[pid] = Look(process, parent, "")

    def forget(self, pid: int) -> None:
        """It has ended."""
        self._seen.pop(pid, None)

    def _with_first_parent(self, now: Look) -> Look:
        """Of a process whose parent has ended, and that another one has taken over, the parent that it had."""
        old = self._seen.get(now.process.pid)
        same = old is not None and old.parent > 0 and old.started in (now.started, "")
        return replace(now, parent=old.parent) if old is not None and same else now

    def _find(self, pid: int) -> Look:
        old = self._seen.get(pid)
        if self._told and old is not None and old.alive:
            return old
        now = look(pid)
        return self._with_first_parent(now) if now.alive else old or now

    def stack(self, pid: int) -> tuple[Process, ...]:
        """The process, its parent, and so on up to the one at the top, or as far as can be seen. What is missing
        before the top is :data:`GAP`."""
        at = self._find(pid)
        found = [at.process]
        while at.process.pid != self._top and len(found) < _DEPTH_MAX:
            at = self._find(at.parent) if at.parent not in self._above else _NOBODY
            if not at.alive and at.parent == 0:
                if self._top is not None:
                    found += [GAP, self._find(self._top).process]
                break
            found.append(at.process)
        return tuple(found)


GAP = Process(0, None, None, (), None)
"""Stands for processes that had ended before anything was known of them."""
_NOBODY = Look(GAP, 0, "")
