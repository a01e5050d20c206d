# SPDX-License-Identifier: Apache-2.0
"""What the worker has of its caller's surroundings, and what it does where system calls are refused."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path
from typing import Any

import pytest
from host import Host, require

from nvsandbox import nvml_isolated


def test_u1_the_limit_of_descriptors_is_lowered() -> None:
    """U1: libraries size tables by it; with 2^30 one took 8 GiB."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    require(hard > 16384, "needs a hard limit of more than 16384 descriptors (ulimit -Hn)")
    try:
        for chosen in (hard, 1024):
            resource.setrlimit(resource.RLIMIT_NOFILE, (chosen, hard))
            with nvml_isolated(simulate="t4") as nvml:
                theirs = resource.prlimit(nvml.session.pid, resource.RLIMIT_NOFILE)
                assert theirs == (min(chosen, 16384), 16384)
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (chosen, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_u1_the_locale_is_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """U1: a library that calls setlocale() read and wrote numbers as the caller's country does."""
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    with nvml_isolated(simulate="t4") as nvml:
        environment = Path(f"/proc/{nvml.session.pid}/environ").read_bytes().split(b"\0")
    assert [entry for entry in environment if entry.startswith(b"LC_ALL=")] == [b"LC_ALL=C"]


def noexec_kernel() -> list[int]:
    """A session where memfd_create refuses what does not say that it is not executable; then where the flag is not
    known."""
    import errno

    import host

    import nvsandbox

    with nvsandbox.nvml_isolated(simulate="t4"):
        pass
    known = [True]
    host.Supervisor(
        ("memfd_create",), lambda name, number, arguments, pid: errno.EINVAL * (bool(arguments[1] & 8) != known[0])
    )
    found = []
    for each in (True, False):
        known[0] = each
        with nvsandbox.nvml_isolated(simulate="t4", transport="shm") as nvml:
            found.append(nvml.nvmlDeviceGetCount())
    return found


def test_u22_memfd_noexec(host: Host) -> None:
    """U22: vm.memfd_noexec=2 gives EINVAL on Linux 6.3 to 6.5 without MFD_NOEXEC_SEAL, and older kernels with it."""
    assert host.run(noexec_kernel) == [1, 1]


def refused_call(call: str, err: int) -> dict[str, Any]:
    import host

    import nvsandbox

    with nvsandbox.nvml_isolated(simulate="t4"):
        pass
    host.refuse(call, err)

    def session() -> list[Any]:
        with nvsandbox.nvml_isolated(simulate="t4") as nvml:
            return [nvml.session.isolation, nvml.nvmlDeviceGetCount()]

    return host.attempt(session)


START = [
    *("close_range", "signalfd4", "prlimit64", "unshare", "mount", "mknodat", "prctl", "seccomp", "capset"),
    *("landlock_create_ruleset", "landlock_restrict_self", "memfd_create", "eventfd2", "getrandom", "umask", "chdir"),
    *("pidfd_open", "pidfd_send_signal", "clone3", "setsid", "socketpair", "dup2", "dup3", "statfs", "symlinkat"),
]


@pytest.mark.parametrize("err", [errno.EPERM, errno.ENOSYS, errno.EACCES], ids=errno.errorcode.get)
@pytest.mark.parametrize("call", START)
def test_u22_each_call_of_a_start_refused(host: Host, call: str, err: int) -> None:
    """U22: it works without, or an error says what is refused; not "it exited with status 1"."""
    found = host.run(refused_call, call=call, err=err)
    if not found["mro"]:
        assert found["result"][1] == 1
        return
    assert "SandboxError" in found["mro"], found
    assert os.strerror(err) in found["text"], found
    assert "WorkerDied" not in found["mro"], found
    if call in ("signalfd4", "clone3"):
        assert call in found["text"]
