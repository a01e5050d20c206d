# SPDX-License-Identifier: Apache-2.0
"""A worker's process as the kernel tells of it, with pidfds and without."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from host import has_ended

from nvsandbox import WorkerDied, nvml_isolated
from nvsandbox.owned import Owned
from nvsandbox.process import Process, wait_all

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[bytes]]]:
    both = [subprocess.Popen(SLEEP) for _ in range(2)]
    yield both
    for child in both:
        child.kill()
        child.wait()


def test_a_number_that_was_given_to_another_process_is_not_hit(children: list[subprocess.Popen[bytes]]) -> None:
    ours, other = children
    process = Process()
    process.pid = other.pid  # as if it were ours', used again
    process._pidfd = Owned(os.pidfd_open(ours.pid))
    assert not process.ended()
    process.send(signal.SIGTERM)
    assert wait_all([process], 10) == []
    process.send(signal.SIGKILL)
    assert not has_ended(other.pid)
    death = process.death("nvmlInit")
    assert isinstance(death, WorkerDied)
    assert death.signal == signal.SIGTERM
    process.release()
    assert not has_ended(other.pid)


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def as_before_linux_6_9(number: int, pid: int) -> Owned:
    """A pidfd whose inode is that of all pidfds and eventfds."""
    owned = Owned(number)
    owned._owned.pid = pid
    return owned


def test_a_pidfd_is_closed_where_its_process_was_reaped(children: list[subprocess.Popen[bytes]]) -> None:
    """S8: where pidfds have no inodes of their own, the kernel does not say any more whose it was."""
    ours = children[0]
    number = os.pidfd_open(ours.pid)
    owned = as_before_linux_6_9(number, ours.pid)
    ours.kill()
    ours.wait()
    owned.close()
    assert not is_open(number)


def test_a_pidfd_is_closed_where_no_descriptor_is_left(children: list[subprocess.Popen[bytes]]) -> None:
    """S8: what it refers to cannot be looked up then."""
    number = os.pidfd_open(children[0].pid)
    owned = as_before_linux_6_9(number, children[0].pid)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        owned.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not is_open(number)


def test_another_process_is_not_taken_for_it(children: list[subprocess.Popen[bytes]]) -> None:
    """S8: nor is anything else that has the same inode on such a kernel."""
    ours, other = children
    for number in (os.pidfd_open(other.pid), os.eventfd(0)):
        owned = as_before_linux_6_9(number, ours.pid)
        owned.close()
        assert is_open(number)
        os.close(number)


REFUSED: list[tuple[object, str, int]] = [
    (os, "pidfd_open", errno.ENOSYS),
    (os, "waitid", errno.EINVAL),  # Linux 5.3
    (signal, "pidfd_send_signal", errno.EPERM),
]


@pytest.mark.parametrize(("module", "name", "number"), REFUSED, ids=[name for _, name, _ in REFUSED])
@pytest.mark.parametrize("restart", [True, False])
def test_without_pidfds(monkeypatch: pytest.MonkeyPatch, restart: bool, module: object, name: str, number: int) -> None:
    original = getattr(module, name)

    def refuse(first: int, *others: int) -> object:
        if name == "waitid" and first == os.P_PID:
            return original(first, *others)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(module, name, refuse)
    with nvml_isolated(simulate="t4", restart=restart) as nvml:
        pid = nvml.session.pid
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        if restart:
            assert nvml.nvmlDeviceGetCount() == 1
        else:
            with pytest.raises(WorkerDied) as caught:
                nvml.nvmlDeviceGetCount()
            assert caught.value.signal == signal.SIGKILL
        assert has_ended(pid)


@pytest.mark.parametrize(("module", "name"), [(os, "pidfd_open"), (os, "P_PIDFD"), (signal, "pidfd_send_signal")])
def test_a_python_that_knows_but_some_of_pidfds(monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> None:
    """Which it does is a matter of the headers that it was built with."""
    monkeypatch.delattr(module, name)
    with nvml_isolated(simulate="t4") as nvml:
        assert nvml.nvmlDeviceGetCount() == 1
        pid = nvml.session.pid
    assert has_ended(pid)


def test_one_that_others_have_reaped() -> None:
    with nvml_isolated(simulate="t4", restart=False) as nvml:
        pid = nvml.session.pid
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with pytest.raises(WorkerDied, match="another part of this program reaped it"):
            nvml.nvmlDeviceGetCount()


def test_released_by_one_thread_while_another_reaps(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process()
    process.pid = os.posix_spawn("/bin/true", ["true"], {})
    descriptor = os.pidfd_open(process.pid)
    process._pidfd = Owned(descriptor)
    waitid = os.waitid

    def meanwhile(kind: int, number: int, options: int) -> object:
        if not options & os.WNOWAIT:
            assert process.ended()  # so says it to the other thread, which has nothing more to wait for
            process.release()
        return waitid(kind, number, options)

    monkeypatch.setattr(os, "waitid", meanwhile)
    assert wait_all([process], 10) == []
    monkeypatch.undo()
    with pytest.raises(ChildProcessError):
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
