# SPDX-License-Identifier: Apache-2.0
"""The fixture that looks for leftovers sees each kind of them."""

from __future__ import annotations

import mmap
import os
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import host as stand_in
import leftovers
import pynvml
import pytest
from host import Host, require
from host import processes as host_processes
from leftovers import MARK, Snapshot


@contextmanager
def child() -> Iterator[str]:
    with subprocess.Popen(["sleep", "100"]) as process:
        yield f"process {process.pid}"
        process.kill()


@contextmanager
def zombie() -> Iterator[str]:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        yield f"process {process.pid}"


@contextmanager
def thread() -> Iterator[str]:
    end = threading.Event()
    worker = threading.Thread(target=end.wait)
    worker.start()
    yield f"thread {worker.native_id}"
    end.set()
    worker.join()


@contextmanager
def descriptor() -> Iterator[str]:
    fd = os.open("/", os.O_RDONLY)
    yield f"descriptor {fd} (/)"
    os.close(fd)


@contextmanager
def memory_file() -> Iterator[str]:
    fd = os.memfd_create("left")
    os.ftruncate(fd, 4096)
    memory = mmap.mmap(fd, 4096)
    os.close(fd)
    yield "memfd:left"
    memory.close()


@contextmanager
def temporary_file() -> Iterator[str]:
    path = Path(tempfile.gettempdir()) / "left"
    path.touch()
    yield f"file {path}"
    path.unlink()


@contextmanager
def node() -> Iterator[str]:
    require(stand_in.can_play_host(), "needs CAP_SYS_ADMIN")
    os.mknod("/dev/nvidiactl", 0o666 | stat.S_IFCHR, os.makedev(195, 255))
    yield "node /dev/nvidiactl"
    os.unlink("/dev/nvidiactl")


@contextmanager
def other_node() -> Iterator[str]:
    require(stand_in.can_play_host(), "needs CAP_SYS_ADMIN")
    os.chmod("/dev/full", 0o600)
    yield "node /dev/full"
    os.chmod("/dev/full", 0o666)


@contextmanager
def mount() -> Iterator[str]:
    require(stand_in.can_play_host(), "needs CAP_SYS_ADMIN")
    stand_in.mount("left", "/dev/shm", "tmpfs")
    yield "mount "
    stand_in.umount("/dev/shm")


@contextmanager
def routing() -> Iterator[str]:
    before = pynvml.nvmlLib
    pynvml.nvmlLib = object()
    yield "pynvml.nvmlLib"
    pynvml.nvmlLib = before


@contextmanager
def folder() -> Iterator[str]:
    before = os.getcwd()
    os.chdir("/usr")
    yield "working directory"
    os.chdir(before)


@pytest.mark.parametrize(
    "leave",
    [child, zombie, thread, descriptor, memory_file, temporary_file, node, other_node, mount, routing, folder],
    ids=lambda leave: leave.__name__,
)
def test_is_seen(leave: object) -> None:
    before = Snapshot.take()
    assert before.left_by(Snapshot.take()) == []
    with leave() as wanted:  # type: ignore[operator]
        left = before.left_by(Snapshot.take())
    assert any(line.startswith(wanted) or wanted in line for line in left), left


def test_on_the_machine_itself_only_what_is_this_users_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """R1: an ordinary user's tests see the machine's mounts and /dev, which others change meanwhile."""
    monkeypatch.setattr(leftovers, "_is_private", lambda: False)
    before = Snapshot.take()
    table, nodes = stand_in.mounts(), stand_in.listing("/dev", skip=leftovers._volatile)
    others = {"/dev/nvidia-other": ("0o20666", (195, 0), (os.getuid() + 1, 0), 1, 1, "")}
    monkeypatch.setattr(stand_in, "listing", lambda root, skip=None: {**nodes, **others})
    monkeypatch.setattr(stand_in, "mounts", lambda: [*table, "99 1 0:99 / /mnt rw - tmpfs other rw"])
    assert before.left_by(Snapshot.take()) == []

    mine = {"/dev/nvidia-mine": ("0o100644", (0, 0), (os.getuid(), 0), 1, 2, "")}
    fuse = f"98 1 0:98 / /mnt rw - fuse mine rw,user_id={os.getuid()},group_id=0"
    monkeypatch.setattr(stand_in, "listing", lambda root, skip=None: {**nodes, **mine})
    monkeypatch.setattr(stand_in, "mounts", lambda: [*table, fuse])
    left = before.left_by(Snapshot.take())
    assert [line.split()[0:2] for line in left] == [["mount", "98"], ["node", "/dev/nvidia-mine"]]


def test_orphaned_worker_is_seen(readable_folder: Path) -> None:
    """One whose parent was killed, so that it is nobody's child."""
    program = readable_folder / "nvsandbox-worker"
    program.write_bytes(Path("/bin/sleep").read_bytes())
    program.chmod(0o755)
    before = Snapshot.take()
    text = subprocess.run(
        ["setsid", "-f", "sh", "-c", f"{program} 100 >/dev/null 2>&1 & echo $!"], check=True, capture_output=True
    ).stdout
    pid = int(text)
    try:
        assert any(line.startswith(f"process {pid} ") for line in before.left_by(Snapshot.take()))
    finally:
        os.kill(pid, 9)


def test_what_another_run_does_is_not_this_ones(readable_folder: Path) -> None:
    """Files in /tmp, and a worker in the same session that has another run's mark."""
    program = readable_folder / "nvsandbox-worker"
    program.write_bytes(Path("/bin/sleep").read_bytes())
    program.chmod(0o755)
    before = Snapshot.take()
    text = subprocess.run(
        ["sh", "-c", f"{program} 100 >/dev/null 2>&1 & echo $!"], check=True, capture_output=True,
        env={**os.environ, MARK: "0"},
    ).stdout  # fmt: skip
    path = Path(f"/tmp/nvsandbox-of-another-{os.getpid()}")
    path.touch()
    try:
        assert host_processes()[int(text)][1] != os.getpid()
        assert before.left_by(Snapshot.take()) == []
    finally:
        os.kill(int(text), 9)
        path.unlink()


def test_one_look_is_quick() -> None:
    """It is made twice for each test. Of this thread's CPU time: how long it waits for a CPU is not its own doing."""
    start = time.thread_time()
    for _ in range(10):
        Snapshot.take()
    assert (time.thread_time() - start) / 10 < 0.1


def changed_privileges() -> list[str]:
    import ctypes

    import host

    before = host.privileges()
    ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    after = host.privileges()
    return [key for key in before if before[key] != after[key]]


def test_privileges_are_compared(host: Host) -> None:
    assert host.run(changed_privileges) == ["NoNewPrivs"]
