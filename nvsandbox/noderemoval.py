# SPDX-License-Identifier: Apache-2.0
"""Removes the nodes that should not be there, and nothing else.

What may be removed is decided by :func:`plan`: a character device or a link with a name and a number of NVIDIA's, which
a survey has found unwanted, and which nobody has open. :func:`carry_out` goes by folder descriptors and never follows a
link, compares each file with the one that was looked at, and sets nodes aside under another name before it looks for a
second time whether anybody has them open: from then on nobody can open them by their names, so that none can be opened
between that look and the removal. What has come into use meanwhile is put back, the same file.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nvsandbox import driverfacts, nodeundo, nodeusers
from nvsandbox.driverfacts import DriverFacts
from nvsandbox.hostnodes import Survey
from nvsandbox.nodenames import FOLDERS, Node, link_leads_to, why_kept
from nvsandbox.nodeundo import Journal

_ASIDE = ".nvsandbox-aside-"


@dataclass(frozen=True)
class Step:
    """One unwanted thing, and what is to become of it."""

    node: Node
    refusal: str | None = None
    """Why it stays; None if it is to be removed."""


@dataclass(frozen=True)
class Result:
    """What became of it."""

    path: str
    removed: bool
    what: str
    """In words: what was removed, or why it was not."""


def describe(node: Node) -> str:
    """``char 195:0, mode 0666, owner 0:0``, or ``link to ../nvidia0``."""
    if node.target is not None:
        return f"link to {node.target}"
    number = "" if node.number is None else f" {node.number[0]}:{node.number[1]}"
    return f"{node.kind}{number}, mode {node.mode:04o}, owner {node.uid}:{node.gid}"


def plan(survey: Survey, proc: str = "/proc", *, ignore_unseen: bool = False) -> list[Step]:
    """A step for each unwanted node or link of a survey.

    Args:
        survey: what was found.
        proc: where processes are looked up.
        ignore_unseen: whether to go on although some processes cannot be looked at, and may have the nodes open.
    """
    unwanted = [node for node in survey.nodes if node.unwanted]
    refusals = {node.path: why_kept(node, survey.driver) for node in unwanted}
    candidates = [node for node in unwanted if refusals[node.path] is None and node.kind == "char"]
    refusals.update(_in_use(survey, candidates, proc, ignore_unseen))
    steps = [Step(node, refusals[node.path]) for node in unwanted]
    kept = {node.path for node in survey.nodes} - {step.node.path for step in steps if step.refusal is None}
    return [_with_its_node(step, survey.dev, kept) for step in steps]


def _in_use(survey: Survey, nodes: Iterable[Node], proc: str, ignore_unseen: bool) -> dict[str, str]:
    """Path to why the node stays, for those that somebody has or may have open.

    Where some processes cannot be looked at, they may have a node open only if its number is a driver's: without one
    every attempt to open it fails, and a driver with an open node cannot go away.
    """
    dev = os.path.realpath(survey.dev)  # as the kernel names open files
    files = {node.identity[:2]: (os.path.join(dev, node.path), node.identity[2]) for node in nodes}
    served = set(survey.driver.majors.values())
    if not files:
        return {}
    users = nodeusers.find(files, proc)
    reasons = {}
    for node in nodes:
        of = users.of.get(node.identity[:2])
        if of:
            reasons[node.path] = f"it is open in {_some(of)}"
        elif users.unseen and not ignore_unseen and node.number is not None and node.number[0] in served:
            reasons[node.path] = f"it may be open: {_some(users.unseen)} (--ignore-unseen goes on all the same)"
    return reasons


def _some(items: list[str]) -> str:
    return ", ".join(items[:3]) + (f" and {len(items) - 3} more" if len(items) > 3 else "")


def _with_its_node(step: Step, dev: str, kept: set[str]) -> Step:
    """A link stays where its node stays, unless it is wrong itself."""
    if step.refusal is not None or not step.node.is_number_link:
        return step
    wrong = any(finding.unwanted and finding.id != "link.to-unwanted-node" for finding in step.node.findings)
    target = link_leads_to(step.node, dev)
    return Step(step.node, f"{target} stays") if target in kept and not wrong else step


# ---- doing it ----------------------------------------------------------------------------------------------------


class _Folders:
    """Descriptors of the /dev and the folders in it, none of which may be a link."""

    def __init__(self, dev: str, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._open = {"": self._keep(os.open(dev, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))}

    def _keep(self, fd: int) -> int:
        self._stack.callback(os.close, fd)
        return fd

    def of(self, path: str) -> tuple[int, str]:
        """The descriptor of the folder that `path` is in, and its name there."""
        folder, _, name = path.rpartition("/")
        if folder not in self._open:
            flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            self._open[folder] = self._keep(os.open(folder, flags, dir_fd=self._open[""]))
        return self._open[folder], name


def _identity(folder: int, name: str) -> tuple[int, int, int, int]:
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    return (status.st_dev, status.st_ino, status.st_rdev, stat.S_IFMT(status.st_mode))


_CHANGED = "it is another file than the one that was looked at: run the command again"


def carry_out(
    steps: Iterable[Step],
    survey: Survey,
    journal: Journal,
    proc: str = "/proc",
    *,
    ignore_unseen: bool = False,
) -> list[Result]:
    """Removes what the steps say, and tells of each what became of it. What fails does not stop the others.

    `journal` has every removal on disk before it is done. Raises OSError if that cannot be written, or if the folder
    cannot be opened; then what was set aside is back.
    """
    steps = list(steps)
    results = [Result(step.node.path, False, step.refusal) for step in steps if step.refusal is not None]
    nodes = [step.node for step in steps if step.refusal is None]
    with contextlib.ExitStack() as stack:
        folders = _Folders(survey.dev, stack)
        token = secrets.token_hex(4)
        aside = {node.path: f"{_ASIDE}{token}-{node.path.rpartition('/')[2]}" for node in nodes}
        for node in nodes:
            journal.removing(node, aside[node.path], nodeundo.selinux_context(survey.dev, node.path))
        journal.sync()
        reasons: dict[str, str] = {}
        astray: set[str] = set()
        waiting: dict[str, Node] = {}
        try:
            for node in nodes:
                failure = _set_aside(folders, node, aside[node.path])
                if failure is None:
                    waiting[node.path] = node
                else:
                    reasons[node.path] = failure
            devices = [node for node in waiting.values() if node.kind == "char"]
            reasons |= _in_use(survey, devices, proc, ignore_unseen)
            reasons |= _links_of(waiting.values(), set(reasons), survey.dev)
            if _driver_changed(survey.driver, proc):
                reasons |= dict.fromkeys(waiting, "the driver was loaded or unloaded meanwhile: run the command again")
            for node in list(waiting.values()):
                if node.path not in reasons:
                    failure = _unlink(folders, node, aside[node.path])
                    if failure is None:
                        del waiting[node.path]
                        continue
                    reasons[node.path] = failure
        finally:
            # What is to stay; and everything, after an exception such as Ctrl-C.
            for node in waiting.values():
                try:
                    _put_back(folders, node, aside[node.path])
                except OSError as error:
                    why = f"it is now called {aside[node.path]}, for {error.strerror}; --undo puts it back"
                    reasons[node.path] = f"{reasons.get(node.path, 'it stays')}; {why}"
                    astray.add(node.path)
        for node in nodes:
            reason = reasons.get(node.path)
            results.append(Result(node.path, reason is None, describe(node) if reason is None else reason))
            if reason is not None and node.path not in astray:
                journal.kept(node.path)
        results.extend(_remove_empty(folders, survey, nodes, journal))
        journal.sync()
    return results


def _driver_changed(before: DriverFacts, proc: str) -> bool:
    """Whether another driver, or none, is there than the one that the nodes were held against."""
    now = driverfacts.read(proc)
    return (now.loaded, now.majors) != (before.loaded, before.majors)


def _links_of(nodes: Iterable[Node], kept: set[str], dev: str) -> dict[str, str]:
    """Path to why it stays, for the links that lead to what is kept and are not wrong themselves."""
    steps = [_with_its_node(Step(node), dev, kept) for node in nodes]
    return {step.node.path: step.refusal for step in steps if step.refusal is not None}


def _set_aside(folders: _Folders, node: Node, aside: str) -> str | None:
    """Renames the node in its folder. None, or why not."""
    try:
        folder, name = folders.of(node.path)
        if _identity(folder, name) != node.identity:
            return _CHANGED
        os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=folder)
        if _identity(folder, aside) != node.identity:  # exchanged in between
            try:
                _rename_to_nothing(folder, aside, name)
            except OSError as error:  # not ours to remove
                return f"{_CHANGED}; that file is now called {aside}, for {error.strerror}"
            return _CHANGED
    except FileNotFoundError:
        return "it is gone already"
    except OSError as error:
        return _failure(error)
    return None


def _unlink(folders: _Folders, node: Node, aside: str) -> str | None:
    try:
        folder, _ = folders.of(node.path)
        os.unlink(aside, dir_fd=folder)
    except OSError as error:
        return _failure(error)
    return None


_HINTS = {
    errno.EPERM: " (immutable: lsattr -d shows that of the folder, chattr -i takes it off)",
    errno.EACCES: " (run it as root)",
    errno.EROFS: " (mounted read-only: run it on the host, or remount)",
    errno.EBUSY: " (something is mounted on it)",
}


def _failure(error: OSError) -> str:
    return f"it cannot be removed: {error.strerror}{_HINTS.get(error.errno or 0, '')}"


def _put_back(folders: _Folders, node: Node, aside: str) -> None:
    """The same file under its name again. Where somebody has made another one there meanwhile, that stays."""
    folder, name = folders.of(node.path)
    try:
        _rename_to_nothing(folder, aside, name)
    except FileExistsError:
        os.unlink(aside, dir_fd=folder)


_RENAME_NOREPLACE = 1


def _rename_to_nothing(folder: int, old: str, new: str) -> None:
    """Renames a file, whatever it is. Raises FileExistsError where there is one of the new name: that stays."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(folder, os.fsencode(old), folder, os.fsencode(new), _RENAME_NOREPLACE) == 0:
        return
    err = ctypes.get_errno()
    if err != errno.EINVAL:
        raise OSError(err, os.strerror(err))
    # A file system that cannot. A link does it too, but not for folders, nor for others' files without CAP_FOWNER.
    os.link(old, new, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    os.unlink(old, dir_fd=folder)


def _remove_empty(folders: _Folders, survey: Survey, nodes: list[Node], journal: Journal) -> Iterator[Result]:
    for name in FOLDERS:
        if not any(node.path.startswith(f"{name}/") for node in nodes):
            continue
        top, _ = folders.of(name)
        try:
            status = os.stat(name, dir_fd=top, follow_symlinks=False)
            journal.removing_folder(name, status, nodeundo.selinux_context(survey.dev, name))
            os.rmdir(name, dir_fd=top)
        except OSError:  # something is left in it
            journal.kept(name)
            continue
        yield Result(name, True, "the folder, which was empty")
