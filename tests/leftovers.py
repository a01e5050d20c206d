# SPDX-License-Identifier: Apache-2.0
"""What a test may leave behind: a picture of it before, and what a later one has in excess."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import host

MARK = "NVML_TEST_RUN"
"""An environment variable that the workers of this test run inherit, so that one is found that has lost its parent."""

_NAMESPACE_AT_FIRST = os.readlink("/proc/self/ns/mnt")


def _processes() -> dict[str, str]:
    found = {}
    mark = f"{MARK}={os.environ.get(MARK)}".encode()
    marked = f"{MARK}=".encode()
    own_session = os.getsid(0)
    for pid, (name, parent) in host.processes().items():
        if parent == os.getpid():
            found[f"process {pid}"] = f"{name}, a child"
        elif name.startswith("nvsandbox-work"):
            try:
                environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                session = os.getsid(pid)
            except OSError:
                continue
            others = any(line.startswith(marked) for line in environment)  # another run's, in the same session
            if mark in environment or (session == own_session and not others):
                found[f"process {pid}"] = f"{name}, of parent {parent}"
    return found


def _threads() -> dict[str, str]:
    found = {}
    for name in os.listdir("/proc/self/task"):
        try:
            found[f"thread {name}"] = Path(f"/proc/self/task/{name}/comm").read_text().strip()
        except OSError:
            continue
    return found


def _volatile(path: str) -> bool:
    """Terminals and shared memory that other programs on this machine make and remove."""
    return path.startswith(("/dev/pts/", "/dev/shm/")) and "nvsandbox" not in path


def _files() -> dict[str, str]:
    """In the folder for temporary files, which is this run's own (conftest.py)."""
    folder = tempfile.gettempdir()
    return {f"file {os.path.join(folder, name)}": "" for name in os.listdir(folder)}


def _is_private() -> bool:
    """Whether the mounts and /dev are this run's own (conftest.py), and not those of the whole machine."""
    return os.readlink("/proc/self/ns/mnt") != _NAMESPACE_AT_FIRST


def _mounts() -> dict[str, str]:
    """Of the machine's, on which others mount as well, those that this user has (with FUSE a user can)."""
    private, mine = _is_private(), f"user_id={os.getuid()},"
    return {f"mount {line}": "" for line in host.mounts() if private or mine in line}


def _nodes() -> dict[str, Any]:
    """In the machine's /dev, which others change as well, those of this user."""
    found = host.listing("/dev", skip=_volatile)
    private, uid = _is_private(), os.getuid()
    return {f"node {path}": facts for path, facts in found.items() if private or facts[2][0] == uid}


def _pynvml() -> dict[str, str]:
    """Where plain pynvml calls go."""
    module = sys.modules.get("pynvml")
    library = None if module is None else module.nvmlLib
    return {"pynvml.nvmlLib": "none" if library is None else f"{library!r} at {id(library):#x}"}


@dataclass(frozen=True)
class Snapshot:
    """One picture. `things` come and go; `state` must stay as it is."""

    things: dict[str, Any]
    state: dict[str, Any]

    @classmethod
    def take(cls) -> Snapshot:
        things: dict[str, Any] = {}
        things.update(_processes())
        things.update(_threads())
        things.update({f"descriptor {fd}": target for fd, target in host.descriptors().items()})
        things.update(_mounts())
        things.update({f"mapping {line}": "" for line in host.memfd_mappings()})
        things.update(_files())
        things.update(_nodes())
        state: dict[str, Any] = {}
        state.update(host.privileges())
        state.update({f"namespace {name}": identity for name, identity in host.namespaces().items()})
        state.update(_pynvml())
        state["working directory"] = os.getcwd()
        return cls(things, state)

    def left_by(self, later: Snapshot) -> list[str]:
        """What `later` has and this has not, line by line; and nodes and mounts that are gone."""
        left = [f"{name} ({facts})" for name, facts in later.things.items() if self.things.get(name) != facts]
        left += [
            f"{name} is gone"
            for name in self.things
            if name not in later.things and name.startswith(("node ", "mount "))
        ]
        left += [
            f"{name} was {before}, is {later.state.get(name)}"
            for name, before in self.state.items()
            if later.state.get(name) != before
        ]
        return left
