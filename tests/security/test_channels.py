# SPDX-License-Identifier: Apache-2.0
"""Nobody else gets at what passes between a caller and its worker: it has no name, nothing listens, and other users'
processes are refused."""

from __future__ import annotations

from typing import Any

import pytest
from host import NOBODY, Host

SHRINK_GROW_SEAL = 0x2 | 0x4 | 0x1
SEAL_EXEC = 0x20  # of memory that is no program, where the kernel has it: Linux 6.3


def look(isolation: str) -> dict[str, Any]:
    """The descriptors of a session with both kinds of channels, in the caller and in the worker."""
    import contextlib
    import fcntl
    import os

    import nvsandbox

    def sockets() -> dict[str, tuple[bool, str]]:
        """Unix sockets of this network namespace: inode to (listens, name)."""
        with open("/proc/net/unix") as file:
            lines = [line.split() for line in file.readlines()[1:]]
        return {line[6]: (int(line[3], 16) & 0x10000 != 0, " ".join(line[7:])) for line in lines}

    def descriptors(pid: int) -> dict[int, str]:
        found = {}
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                found[int(name)] = os.readlink(f"/proc/{pid}/fd/{name}")
        return found

    before = descriptors(os.getpid())
    with (
        nvsandbox.nvml_isolated(simulate="h100x1", isolation=isolation, transport="shm") as first,
        nvsandbox.nvml_isolated(simulate="h100x1", isolation=isolation, transport="pipe") as second,
    ):
        assert first.nvmlDeviceGetCount() == second.nvmlDeviceGetCount() == 1
        own = {n: target for n, target in descriptors(os.getpid()).items() if n not in before}
        # The descriptor is closed once the worker has it; the mapping is what is left.
        with open("/proc/self/maps") as file:
            maps = [line.split() for line in file if "/memfd:nvsandbox-lane" in line]
        seals, resized = [], []
        for fields in maps:
            lane = os.open(f"/proc/self/map_files/{fields[0]}", os.O_RDWR)
            seals.append(fcntl.fcntl(lane, fcntl.F_GET_SEALS))
            for size in (0, 1 << 30):
                with contextlib.suppress(PermissionError):
                    os.ftruncate(lane, size)
                    resized.append(size)
            os.close(lane)
        return {
            "caller": own,
            "workers": [descriptors(first.session.pid), descriptors(second.session.pid)],
            "sockets": sockets(),
            "seals": seals,
            "inheritable": [n for n in own if os.get_inheritable(n)],
            "resized": resized,
            "shm": [name for name in os.listdir("/dev/shm") if "nv" in name],
        }


@pytest.mark.parametrize("isolation", ["mount", "user", "guard"])
def test_nothing_has_a_name_and_nothing_listens(host: Host, isolation: str) -> None:
    found = host.run(look, isolation=isolation)
    everywhere = [target for fds in (found["caller"], *found["workers"]) for target in fds.values()]
    kinds = ("socket:[", "anon_inode:", "/memfd:nvsandbox-lane (deleted)", "/dev/null", "pipe:[", "/dev/nvidia")
    assert all(target.startswith(kinds) for target in everywhere), everywhere
    inodes = {target[8:-1] for target in everywhere if target.startswith("socket:[")}
    assert inodes, "the control connection is a socket"
    for inode in inodes:
        assert inode in found["sockets"], "a socket that is not a Unix socket"
        assert found["sockets"][inode] == (False, ""), "(listens, name)"
    assert found["shm"] == []
    assert found["inheritable"] == []


@pytest.mark.parametrize("isolation", ["mount", "user", "guard"])
def test_a_lane_cannot_be_resized(host: Host, isolation: str) -> None:
    """Or one side could make the other die of SIGBUS."""
    found = host.run(look, isolation=isolation)
    assert [seals & ~SEAL_EXEC for seals in found["seals"]] == [SHRINK_GROW_SEAL]
    assert found["resized"] == []


def break_in(isolation: str, stranger: int) -> dict[str, Any]:
    """What a process of another user gets of a session: attempts that did not end with EPERM or EACCES."""
    import ctypes
    import json
    import os

    import nvsandbox

    def attempts(pid: int) -> list[str]:
        got = []

        def attempt(name: str, path: str, flags: int = os.O_RDONLY) -> None:
            try:
                os.close(os.open(path, flags | os.O_NONBLOCK))
                got.append(name)
            except (PermissionError, FileNotFoundError):
                pass
            except OSError as error:
                got.append(f"{name}: {error}")

        for name in ("mem", "maps", "environ", "root/", "cwd/", "exe", "ns/mnt", "syscall", "stack", "auxv"):
            attempt(name, f"/proc/{pid}/{name}")
        for name in ("fd", "map_files", "fdinfo"):
            try:
                os.listdir(f"/proc/{pid}/{name}")
                got.append(name)
            except PermissionError:
                pass
        for n in range(64):
            for flags in (os.O_RDONLY, os.O_RDWR):
                attempt(f"fd/{n}", f"/proc/{pid}/fd/{n}", flags)
        libc = ctypes.CDLL(None, use_errno=True)
        handle = os.pidfd_open(pid)
        for n in range(64):
            if libc.syscall(438, handle, n, 0) >= 0:  # pidfd_getfd
                got.append(f"pidfd_getfd {n}")
        if libc.ptrace(0x4206, pid, None, None) == 0:  # PTRACE_SEIZE
            got.append("ptrace")
        try:
            os.kill(pid, 0)
            got.append("kill")
        except PermissionError:
            pass
        return got

    with nvsandbox.nvml_isolated(simulate="h100x1", isolation=isolation) as nvml:
        nvml.nvmlDeviceGetCount()
        targets = {"caller": os.getpid(), "worker": nvml.session.pid}
        readable = attempts(nvml.session.pid) if stranger == os.getuid() else []
        results, end = os.pipe()
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setresgid(stranger, stranger, stranger)
            os.setresuid(stranger, stranger, stranger)
            try:
                with os.fdopen(end, "w") as file:
                    json.dump({name: attempts(pid) for name, pid in targets.items()}, file)
            finally:
                os._exit(0)
        os.close(end)
        with os.fdopen(results) as file:
            found: dict[str, Any] = json.load(file)
        os.waitpid(child, 0)
        return {**found, "own": readable}


@pytest.mark.parametrize("isolation", ["mount", "user", "guard"])
def test_another_user_gets_nothing(host: Host, isolation: str) -> None:
    found = host.run(break_in, isolation=isolation, stranger=NOBODY)
    assert found["caller"] == []
    assert found["worker"] == []


def test_the_attempts_would_be_seen_to_work(host: Host) -> None:
    """Root, with all its capabilities, gets in."""
    found = host.run(break_in, isolation="mount", stranger=0)
    assert {"mem", "fd", "fd/0", "pidfd_getfd 3", "kill"} <= set(found["own"])
