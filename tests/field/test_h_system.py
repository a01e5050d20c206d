# SPDX-License-Identifier: Apache-2.0
"""H: what the system around NVML does: helpers that run, modules that load, refusals, other systems."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from host import NOBODY, Host

from nvsandbox import simulate

# ---- H1, H2: no helper runs, no module loads, no node of an absent driver is opened


def with_fake_helpers() -> None:
    """nvidia-modprobe and modprobe write down that they were called. /usr/bin is covered by a folder of links, so that
    the machine's own stays as it is."""
    import os
    from pathlib import Path

    import host

    folder = Path("/mnt")
    host.mount("helpers", str(folder), "tmpfs")
    (folder / "log").touch()
    (folder / "log").chmod(0o666)
    script = f'#!/bin/sh\necho "$0 $*" >>{folder}/log\n'
    for name, program in (("bin", "nvidia-modprobe"), ("sbin", "modprobe")):
        original = folder / name
        original.mkdir()
        host.mount(f"/usr/{name}", str(original), flags=host.MS_BIND)
        host.mount("none", f"/usr/{name}", "tmpfs", 0, "mode=755")
        for entry in os.listdir(original):
            if entry != program:
                os.symlink(original / entry, f"/usr/{name}/{entry}")
        fake = Path(f"/usr/{name}/{program}")
        fake.write_text(script)
        os.chown(fake, 0, 0)
        fake.chmod(0o4755)
    os.environ["HELPER_LOG"] = str(folder / "log")


def direct(library: str) -> dict[str, Any]:
    import ctypes
    import os
    from pathlib import Path

    log = Path(os.environ["HELPER_LOG"])
    code = ctypes.CDLL(library).nvmlInit_v2()
    return {"code": code, "log": log.read_text()}


def sandboxed(library: str, steps: list[str]) -> dict[str, Any]:
    import os
    import time
    from pathlib import Path

    import host

    import nvsandbox

    log = Path(os.environ["HELPER_LOG"])
    opened: list[str] = []

    def note(name: str, number: int, arguments: tuple[int, ...], pid: int) -> int:
        path = host.text_at(pid, arguments[1])
        if path.startswith("/dev/nvidia") and os.path.lexists(f"/proc/{pid}/root{path}"):
            opened.append(path)
        return 0

    host.attempt(lambda: nvsandbox.nvml_isolated(library=library).__enter__())  # what is imported late is imported now
    if os.getuid() == 0:
        host.Supervisor(("openat",), note)
    raised, quickest = [], []
    for step in steps:
        seconds = []
        for _ in range(3):
            begin = time.monotonic()
            raised.append(
                host.attempt(lambda step=step: nvsandbox.nvml_isolated(library=library, isolation=step).__enter__())
            )
            seconds.append(time.monotonic() - begin)
        quickest.append(min(seconds))
    return {
        "raised": {outcome["type"] for outcome in raised},
        "log": log.read_text(),
        "seconds": max(quickest),
        "opened": opened,
    }


@pytest.mark.real
def test_h1_no_helper_is_run(host_with_nobody: Host, real_library: str) -> None:
    """Used directly by an unprivileged user, NVIDIA's library runs its setuid helper, which loads modules and makes
    nodes. (For root it makes them itself.)"""
    before = host_with_nobody.run(direct, setup=with_fake_helpers, uid=NOBODY, library=real_library)
    assert before["code"] == 9
    assert "/usr/bin/nvidia-modprobe" in before["log"]
    found = host_with_nobody.run(
        sandboxed, setup=with_fake_helpers, uid=NOBODY, library=real_library, steps=["user", "guard"]
    )
    assert found["raised"] == {"NVMLError_DriverNotLoaded"}
    assert found["log"] == ""


@pytest.mark.real
def test_h1_no_helper_is_run_for_root(host: Host, real_library: str) -> None:
    found = host.run(sandboxed, setup=with_fake_helpers, library=real_library, steps=["mount", "user", "guard"])
    assert found["raised"] == {"NVMLError_DriverNotLoaded"}
    assert found["log"] == ""


def with_nodes_of_an_absent_driver() -> None:
    import os
    from pathlib import Path

    import host

    for name, minor in (("nvidiactl", 255), ("nvidia0", 0)):
        os.mknod(f"/dev/{name}", 0o20666, os.makedev(195, minor))
    folder = Path("/mnt")
    host.mount("log", str(folder), "tmpfs")
    (folder / "log").touch()
    os.environ["HELPER_LOG"] = str(folder / "log")


@pytest.mark.real
def test_h2_nodes_that_nothing_serves_are_not_opened(host: Host, real_library: str) -> None:
    """A GPU that is bound to vfio keeps its node, and each open floods the kernel log or has it look for a module. The
    private /dev does not show it; the answer comes at once."""
    found = host.run(sandboxed, setup=with_nodes_of_an_absent_driver, library=real_library, steps=["mount", "user"])
    assert found["raised"] == {"NVMLError_DriverNotLoaded"}
    assert found["opened"] == []
    assert found["seconds"] < 2


# ---- H6


@pytest.mark.parametrize("asked", ["user", "auto"])
def test_h6_no_silent_step_down(host_with_nobody: Host, asked: str) -> None:
    """An LSM lets the user namespace be made and refuses the mount in it. tests/ladder refuses each call in turn."""

    def inside(asked: str) -> dict[str, Any]:
        import host

        import nvsandbox

        with nvsandbox.nvml_isolated(simulate="t4", isolation="guard"):
            pass
        host.Supervisor(("mount",), lambda name, number, arguments, pid: 13)
        table = host.mounts()

        def opened() -> str:
            with nvsandbox.nvml_isolated(simulate="t4", isolation=asked) as nvml:
                return nvml.session.isolation

        with host.nothing_left():
            found = host.attempt(opened)
        assert host.mounts() == table
        return found

    found = host_with_nobody.run(inside, asked=asked)
    if asked == "auto":
        assert found == {"mro": [], "result": "guard"}
    else:
        assert found["type"] == "SandboxUnavailable"
        assert "Permission denied" in found["text"]


# ---- H7


def with_wsl() -> None:
    """WSL2's device, as the kernel of WSL2 registers it."""
    import os
    from pathlib import Path

    import host

    os.mknod("/dev/dxg", 0o20666, os.makedev(10, 63))
    folder = Path("/mnt")
    host.mount("misc", str(folder), "tmpfs")
    (folder / "misc").write_text(Path("/proc/misc").read_text() + " 63 dxg\n")
    host.mount(str(folder / "misc"), "/proc/misc", flags=host.MS_BIND)


def test_h7_wsl(host: Host, compile_library: Callable[..., Path]) -> None:
    """The device is /dev/dxg and the library is under /usr/lib/wsl/lib."""
    library = compile_library(UNKNOWN, "wsl/usr/lib/wsl/lib")

    def inside(root: str, steps: list[str]) -> list[Any]:
        import os
        import stat

        import nvsandbox

        found = []
        for step in steps:
            with nvsandbox.nvml_isolated(driver_root=root, isolation=step) as nvml:
                status = os.stat(f"/proc/{nvml.session.pid}/root/dev/dxg")
                found.append((nvml.session.library, stat.S_ISCHR(status.st_mode), status.st_rdev == os.makedev(10, 63)))
        return found

    root = library.parents[4]
    found = host.run(inside, setup=with_wsl, root=str(root), steps=["mount", "user", "guard"])
    assert found == [(str(library), True, True)] * 3


# ---- H9

UNKNOWN = """
#include <fcntl.h>
#include <unistd.h>
int nvmlInitWithFlags (unsigned flags) { return flags == 12345 ? 2 : 0; }
int nvmlShutdown (void) { return 0; }
/* As the driver's: what cannot open its node says 999 and no more. */
int nvmlDeviceGetCount_v2 (unsigned *count)
{
    int fd = open ("/dev/nvidia0", O_RDWR | O_CLOEXEC);

    if (fd < 0)
        return 999;
    (void)close (fd);
    *count = 1;
    return 0;
}
int nvmlSystemGetNVMLVersion (char *out, unsigned size) { return size == 0 && out ? 2 : 999; }
"""


def with_stand_in_driver() -> None:
    """Nodes that can be opened without NVIDIA's driver: with /dev/ptmx's number, under its names."""
    import os
    from pathlib import Path

    import host

    os.mknod("/dev/nvidiactl", 0o20666, os.makedev(5, 2))
    os.mknod("/dev/nvidia0", 0o20666, os.makedev(5, 2))
    folder = Path("/mnt")
    host.mount("devices", str(folder), "tmpfs")
    (folder / "devices").write_text("Character devices:\n  5 nvidia\n\nBlock devices:\n")
    host.mount(str(folder / "devices"), "/proc/devices", flags=host.MS_BIND)


def lose_the_node(library: str, isolation: str) -> dict[str, Any]:
    import logging
    import os
    import subprocess

    import host
    import pynvml

    import nvsandbox

    os.setsid()  # no terminal
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("nvsandbox").addHandler(handler)
    with nvsandbox.nvml_isolated(library=library, isolation=isolation) as nvml:
        found: dict[str, Any] = {"count": nvml.nvmlDeviceGetCount()}
        found["unrelated"] = host.attempt(nvml.nvmlSystemGetNVMLVersion)  # 999, and every node can be opened
        # With /dev/tty's number, which without a terminal is ENXIO, as that of a GPU that is gone.
        subprocess.run(
            ["nsenter", f"--mount=/proc/{nvml.session.pid}/ns/mnt", "sh", "-c",
             "rm /dev/nvidia0 && mknod -m 666 /dev/nvidia0 c 5 0"], check=True)  # fmt: skip
        nvml.session._hint_until = 0.0  # it is looked up at most every ten seconds
        found["lost"] = [host.attempt(nvml.nvmlDeviceGetCount) for _ in range(3)]
        found["plain"] = host.attempt(pynvml.nvmlDeviceGetCount)
    found["said"] = said
    return found


def test_h9_unknown_error_says_which_node(host: Host, compile_library: Callable[..., Path]) -> None:
    """The device cgroup drops the GPU in mid-run; NVML says Unknown Error for ever, and no more."""
    library = str(compile_library(UNKNOWN))
    found = host.run(lose_the_node, setup=with_stand_in_driver, library=library, isolation="mount")
    assert found["count"] == 1
    assert found["unrelated"]["text"] == "Unknown Error"
    for lost in found["lost"]:
        assert lost["type"] == "NVMLError_Unknown"
        assert lost["text"].startswith(
            "Unknown Error (/dev/nvidia0 cannot be opened (ENXIO): no loaded driver serves it"
        )
        assert "nvidiactl" not in lost["text"]
    assert found["plain"]["type"] == "NVMLError_Unknown"
    assert [line for line in found["said"] if "/dev/nvidia0 cannot be opened (ENXIO)" in line]
    assert len(found["said"]) == 1  # not for each call: a failing monitor asks often


def test_h9_simulated_gpus_have_no_nodes_to_open() -> None:
    import pynvml

    from nvsandbox import nvml_isolated

    with nvml_isolated(simulate="h100,wait999=1") as nvml:
        events = nvml.nvmlEventSetCreate()
        with pytest.raises(pynvml.NVMLError_Unknown, match=r"^Unknown Error$"):
            nvml.nvmlEventSetWait_v2(events, 10)
        nvml.nvmlEventSetFree(events)
    assert os.path.exists(simulate.parse("t4").library)


# ---- U2

INIT = """
#include <fcntl.h>
#include <unistd.h>
static int open_node (void)
{
    int fd = open ("/dev/nvidiactl", O_RDWR | O_CLOEXEC | O_NOCTTY);

    if (fd < 0)
        return CODE;
    (void)close (fd);
    return 0;
}
int nvmlInitWithFlags (unsigned flags) { (void)flags; return open_node (); }
int nvmlInit_v2 (void) { return open_node (); }
int nvmlShutdown (void) { return 0; }
"""


def start_with_nodes(library: str, isolation: str, kind: str) -> str:
    """What the start's error says, where NVML cannot open its node for one reason or another."""
    import os
    from pathlib import Path

    import host
    import pynvml

    import nvsandbox

    os.setsid()  # no terminal: /dev/tty is ENXIO
    dev_root = Path("/mnt/root/dev")
    dev_root.mkdir(parents=True)
    if kind == "nodev":
        host.mount("nodev", str(dev_root), "tmpfs", 0x4)
    if kind != "none":
        os.mknod(dev_root / "nvidiactl", 0o20666, os.makedev(5, 0 if kind == "ENXIO" else 2))
        os.chmod(dev_root / "nvidiactl", 0o600 if kind == "mode" else 0o666)
    uid = 65534 if kind == "mode" else 0
    if uid:
        os.chown("/mnt/root", uid, uid)
        os.setresuid(uid, uid, uid)
    try:
        with nvsandbox.nvml_isolated(library=library, isolation=isolation, dev_root="/mnt/root"):
            return "started"
    except pynvml.NVMLError as error:
        return f"{error.value}: {error}"


@pytest.mark.parametrize("code", [4, 9, 999])
@pytest.mark.parametrize(
    ("kind", "isolation", "told"),
    [
        ("none", "mount", "there is no /dev/nvidiactl for it: /mnt/root/dev has none"),
        ("ENXIO", "mount", "/dev/nvidiactl cannot be opened (ENXIO): no loaded driver serves it"),
        ("nodev", "user", "/dev/nvidiactl cannot be opened (EACCES): its file system is mounted with nodev"),
        ("mode", "user", "/dev/nvidiactl cannot be opened (EACCES): its mode or owner forbids it to this user"),
    ],
)
def test_u2_a_start_says_why_the_node_cannot_be_opened(
    host_with_nobody: Host, compile_library: Callable[..., Path], code: int, kind: str, isolation: str, told: str
) -> None:
    """U2: each cause has its own text, for each of NVML's three codes; it was "Unknown Error" for all of them."""
    library = host_with_nobody.readable(compile_library(INIT.replace("CODE", str(code))))
    found = host_with_nobody.run(
        start_with_nodes, setup=with_stand_in_driver, library=library, isolation=isolation, kind=kind
    )
    assert found.startswith(f"{code}: ")
    assert told in found
