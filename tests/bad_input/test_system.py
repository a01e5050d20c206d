# SPDX-License-Identifier: Apache-2.0
"""Systems that lack something: it works all the same, or says what is missing; and nothing is left behind."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest
from host import NOBODY, Host

STEPS = ["mount", "user", "guard"]


def count(steps: list[str]) -> list[dict[str, Any]]:
    """Runs there: how many GPUs a sandbox at each step counts, or how it fails."""
    from host import attempt, nothing_left

    from nvsandbox import nvml_isolated

    def opened(step: str) -> tuple[int, str]:
        with nvml_isolated(simulate="h100x8", isolation=step) as nvml:
            return nvml.nvmlDeviceGetCount(), nvml.session.isolation

    with nothing_left():
        return [attempt(lambda step=step: opened(step)) for step in steps]


def works(*steps: str) -> list[dict[str, Any]]:
    return [{"mro": [], "result": (8, step)} for step in steps]


# ---- /dev


def no_shm() -> None:
    import os

    import host

    host.umount("/dev/shm")
    os.rmdir("/dev/shm")


def no_null() -> None:
    import os

    os.unlink("/dev/null")


def null_is_a_file() -> None:
    import os
    import pathlib

    os.unlink("/dev/null")
    pathlib.Path("/dev/null").write_text("what root wrote to it\n")


def empty_dev() -> None:
    import host

    host.mount("none", "/dev", "tmpfs")


def read_only_dev() -> None:
    import host

    host.mount("none", "/dev", "tmpfs")
    host.mount("none", "/dev", "", 0x20 | 0x1)  # remount, read-only


@pytest.mark.parametrize("setup", [no_shm, no_null, null_is_a_file, empty_dev, read_only_dev])
def test_poor_dev(host: Host, setup: Callable[[], None]) -> None:
    assert host.run(count, setup=setup, steps=STEPS) == works(*STEPS)


# ---- file systems


def read_only_root() -> None:
    """Everything but /dev and /proc."""
    import contextlib

    import host

    for line in host.mounts():
        target = line.split()[4].replace("\\040", " ")
        if not target.startswith(("/dev", "/proc")):
            with contextlib.suppress(OSError):
                host.mount("none", target, "", 0x20 | 0x1000 | 0x1)  # remount, bind, read-only


def test_read_only_root(host: Host) -> None:
    def inside(steps: list[str]) -> Any:
        import tempfile

        from host import attempt

        from nvsandbox import nvml_isolated

        def write() -> None:
            open(tempfile.gettempdir() + "/nvsandbox-probe", "w").close()

        def opened(step: str) -> tuple[int, str]:
            with nvml_isolated(simulate="h100x8", isolation=step) as nvml:
                return nvml.nvmlDeviceGetCount(), nvml.session.isolation

        return attempt(write)["mro"], [attempt(lambda step=step: opened(step)) for step in steps]

    read_only, found = host.run(inside, setup=read_only_root, steps=[*STEPS, "auto"])
    assert "OSError" in read_only
    assert found == works(*STEPS, "mount")


def hidden_pids() -> None:
    import host

    host.mount("proc", "/proc", "proc", 0, "hidepid=2")


def test_hidepid(host: Host) -> None:
    assert host.run(count, setup=hidden_pids, steps=[*STEPS, "auto"]) == works(*STEPS, "mount")


def test_hidepid_as_nobody(host_with_nobody: Host) -> None:
    found = host_with_nobody.run(count, setup=hidden_pids, uid=NOBODY, steps=["user", "guard", "auto"])
    assert found == works("user", "guard", "user")


def no_proc() -> None:
    import host

    host.mount("none", "/proc", "tmpfs")


def test_no_proc(host: Host) -> None:
    """Isolation that cannot be proved is not trusted: an error for what was asked for, never a weaker step for it."""

    def inside(steps: list[str]) -> list[dict[str, Any]]:
        import os

        from host import attempt, listing

        from nvsandbox import nvml_isolated

        def opened(step: str) -> tuple[int, str]:
            with nvml_isolated(simulate="h100x8", isolation=step) as nvml:
                return nvml.nvmlDeviceGetCount(), nvml.session.isolation

        before = listing("/dev")
        found = [attempt(lambda step=step: opened(step)) for step in steps]
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            assert listing("/dev") == before
            return found
        raise AssertionError("a child is left")

    *found, guard, auto = host.run(inside, setup=no_proc, steps=[*STEPS, "auto"])
    assert [guard, auto] == works("guard", "guard")
    for step, refused in zip(STEPS, found, strict=False):
        assert refused["type"] == "SandboxUnavailable"
        assert "/proc" in refused["text"]
        assert f"isolation={step!r} is not possible here" in refused["text"]


# ---- limits


@pytest.mark.parametrize("transport", ["shm", "pipe"])
def test_few_descriptors_left(host: Host, transport: str) -> None:
    """With each number of descriptors left from none to twelve it works or fails cleanly; with twelve it works."""

    def inside(transport: str) -> list[Any]:
        import os
        import resource

        from host import attempt, descriptors, nothing_left

        from nvsandbox import nvml_isolated

        def opened() -> int:
            with nvml_isolated(simulate="h100x8", transport=transport) as nvml:
                return nvml.nvmlDeviceGetCount()

        opened()  # what is imported late is imported now
        found = []
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        with nothing_left():
            for left in range(13):
                highest = max(descriptors())
                fillers = [os.dup(0)]
                while fillers[-1] < highest:  # so that nothing is free below the limit but `left`
                    fillers.append(os.dup(0))
                resource.setrlimit(resource.RLIMIT_NOFILE, (max(highest, fillers[-1]) + 1 + left, limits[1]))
                found.append(attempt(opened))
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
                for fd in fillers:
                    os.close(fd)
            assert opened() == 8
        return found

    found = host.run(inside, transport=transport)
    for left, result in enumerate(found):
        if "result" in result:
            assert result["result"] == 8
            continue
        assert "SandboxStartError" in result["mro"], (left, result)
        assert result["errno"] == errno.EMFILE, (left, result)
        assert "Too many open files" in result["text"], (left, result)
        assert "ulimit -n" in result["text"], (left, result)
    assert "text" in found[0]
    assert found[-1] == {"mro": [], "result": 8}


def test_little_memory(host: Host) -> None:
    """RLIMIT_AS, which the worker inherits: it works, or says that memory is short."""

    def inside() -> list[Any]:
        import resource
        from pathlib import Path

        from host import attempt, nothing_left

        from nvsandbox import nvml_isolated

        def opened() -> int:
            with nvml_isolated(simulate="h100x8") as nvml:
                return nvml.nvmlDeviceGetCount()

        opened()
        found = []
        limits = resource.getrlimit(resource.RLIMIT_AS)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        with nothing_left():
            for more in (*range(0, 4096, 256), 4096, 8192, 16384, 65536, 262144):
                resource.setrlimit(resource.RLIMIT_AS, (size + more * 1024, limits[1]))
                result = attempt(opened)
                resource.setrlimit(resource.RLIMIT_AS, limits)
                found.append(result)
        return found

    found = host.run(inside)
    for result in found:
        if "result" not in result:
            short = "MemoryError" in result["mro"] or result.get("errno") == errno.ENOMEM
            assert short, result
    assert found[-1] == {"mro": [], "result": 8}


@pytest.mark.parametrize("more", [0, 1, 2, 8])
def test_few_processes_left(host_with_nobody: Host, more: int) -> None:
    """RLIMIT_NPROC, which root is exempt from. `more` processes or threads may be made."""

    def inside(more: int) -> dict[str, Any]:
        import contextlib
        import os
        import resource

        from host import attempt, nothing_left, processes

        from nvsandbox import nvml_isolated

        def opened() -> int:
            with nvml_isolated(simulate="h100x8") as nvml:
                return nvml.nvmlDeviceGetCount()

        now = 0
        for pid in processes():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{pid}").st_uid == os.getuid():
                    now += len(os.listdir(f"/proc/{pid}/task"))
        with nothing_left():
            resource.setrlimit(resource.RLIMIT_NPROC, (now + more, now + more))
            return attempt(opened)

    found = host_with_nobody.run(inside, uid=NOBODY, more=more)
    if more == 8:
        assert found == {"mro": [], "result": 8}
    elif "result" not in found:
        assert "SandboxError" in found["mro"]
        assert found["errno"] == errno.EAGAIN, found
        assert "Resource temporarily unavailable" in found["text"]


def test_no_shared_memory(host: Host) -> None:
    """RLIMIT_FSIZE bounds shared memory files too. auto then takes the pipe; shm, which was asked for, is an error."""

    def inside() -> list[Any]:
        import resource

        from host import attempt, nothing_left

        from nvsandbox import nvml_isolated

        def opened(transport: str) -> int:
            with nvml_isolated(simulate="h100x8", transport=transport) as nvml:
                assert nvml.nvmlDeviceGetCount() == nvml.nvmlDeviceGetCount()
                return nvml.nvmlDeviceGetCount()

        found = []
        with nothing_left():
            limits = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
            for transport in ("auto", "pipe", "shm"):
                found.append(attempt(lambda transport=transport: opened(transport)))
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        return found

    auto, pipe, shm = host.run(inside)
    assert auto == pipe == {"mro": [], "result": 8}
    assert (shm["type"], shm["step"], shm["errno"]) == ("SandboxStartError", "channel", errno.EFBIG)


# ---- the process


def test_working_directory_is_gone(host: Host) -> None:
    def inside(steps: list[str]) -> Any:
        import os
        import tempfile

        from host import attempt

        from nvsandbox import nvml_isolated

        folder = tempfile.mkdtemp()
        os.chdir(folder)
        os.rmdir(folder)

        def opened(step: str) -> tuple[int, str]:
            with nvml_isolated(simulate="h100x8", isolation=step) as nvml:
                return nvml.nvmlDeviceGetCount(), nvml.session.isolation

        def relative() -> Any:
            return nvml_isolated(library="libnvidia-ml.so.1").__enter__()

        return [attempt(lambda step=step: opened(step)) for step in steps], attempt(relative)

    opened, relative = host.run(inside, steps=STEPS)
    assert opened == works(*STEPS)
    assert relative["type"] == "ValueError"
    assert "library='libnvidia-ml.so.1': expected a path" in relative["text"]
    assert "the working directory is gone" in relative["text"]


@pytest.mark.parametrize("closed", [[0], [1], [2], [0, 1], [1, 2], [0, 1, 2]], ids=str)
def test_standard_descriptors_closed(host: Host, closed: list[int]) -> None:
    """What we open takes their numbers, and must not be taken for a standard stream by the worker, nor be lost."""

    def inside(closed: list[int], steps: list[str]) -> list[Any]:
        import os

        from host import nothing_left

        from nvsandbox import nvml_isolated

        kept = os.dup(2)
        for fd in closed:
            os.close(fd)
        found = []
        with nothing_left():
            for step in steps:
                for transport in ("shm", "pipe"):
                    with nvml_isolated(simulate="h100x8", isolation=step, transport=transport) as nvml:
                        found.append(nvml.nvmlDeviceGetCount())
        found += [fd for fd in closed if os.path.exists(f"/proc/self/fd/{fd}")]
        os.dup2(kept, 2)
        return found

    assert host.run(inside, closed=closed, steps=STEPS) == [8] * 6


ODD = {
    "empty": "",
    "loader": "LD_PRELOAD=/nonexistent.so LD_LIBRARY_PATH=:::/nonexistent LD_AUDIT=x LD_BIND_NOW=1",
    "locale": "LC_ALL=xx_YY.nonsense LANG=C LANGUAGE=tlh",
    "places": "TMPDIR=/nonexistent HOME=/nonexistent XDG_RUNTIME_DIR=/nonexistent PATH=/nonexistent",
    "malloc": "MALLOC_PERTURB_=165 MALLOC_ARENA_MAX=1 GLIBC_TUNABLES=glibc.malloc.check=3",
    "cuda": "CUDA_VISIBLE_DEVICES=none NVIDIA_VISIBLE_DEVICES=void NVSANDBOX_SIM=nonsense",
}


@pytest.mark.parametrize("case", ODD)
def test_odd_environment(host: Host, case: str) -> None:
    def inside(variables: str, steps: list[str]) -> Any:
        import os

        from host import nothing_left

        from nvsandbox import nvml_isolated

        os.environ.clear()
        os.environ.update(dict(pair.split("=", 1) for pair in variables.split()))
        os.environb[b"NOT_UTF8"] = b"\xf8\xff"
        found = []
        with nothing_left():
            for step in steps:
                with nvml_isolated(simulate="h100x8", isolation=step) as nvml:
                    found.append(nvml.nvmlDeviceGetCount())
        return found

    assert host.run(inside, variables=ODD[case], steps=STEPS) == [8, 8, 8]


# ---- privileges


def without_sys_admin() -> None:
    import ctypes

    ctypes.CDLL(None).prctl(24, 21, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_SYS_ADMIN: gone with the next exec


def test_without_cap_sys_admin(host: Host) -> None:
    mount, *others = host.run(count, setup=without_sys_admin, steps=[*STEPS, "auto"])
    assert mount["type"] == "SandboxUnavailable"
    assert "isolation='mount' needs CAP_SYS_ADMIN, which this process does not have" in mount["text"]
    assert "run as root, add SYS_ADMIN to the container's capabilities, or use isolation='auto'" in mount["text"]
    assert mount["attempts"] == (("mount", "no CAP_SYS_ADMIN"),)
    assert others == works("user", "guard", "user")


def test_mount_as_nobody(host_with_nobody: Host) -> None:
    mount, *others = host_with_nobody.run(count, uid=NOBODY, steps=[*STEPS, "auto"])
    assert mount["type"] == "SandboxUnavailable"
    assert "CAP_SYS_ADMIN" in mount["text"]
    assert others == works("user", "guard", "user")


@pytest.mark.parametrize("how", ["refused", "none left"])
def test_user_namespaces_refused(host_with_nobody: Host, how: str) -> None:
    user, *others = host_with_nobody.run(count, uid=NOBODY, user_namespaces=how, steps=["user", "guard", "auto"])
    assert user["type"] == "SandboxUnavailable"
    assert user["text"].startswith("isolation='user' is not possible here: user: user namespace: ")
    assert [step for step, _ in user["attempts"]] == ["user"]
    assert others == works("guard", "guard")
