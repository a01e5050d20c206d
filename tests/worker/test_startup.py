# SPDX-License-Identifier: Apache-2.0
"""The worker's start-up from outside: what it answers, what it leaves, and what its library can do there."""

from __future__ import annotations

import errno
import os
import re
import resource
import signal
import socket
import stat
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from . import harness as h
from .harness import DEVICES, GUARD, MOUNT, SIMULATED, USER, VERBOSE, Lab

RunInLab = Callable[[Callable[[Lab], Any]], Any]

NAMES = {MOUNT: "mount", USER: "user", GUARD: "guard"}
LADDER = [(MOUNT, 0), (USER, 65534), (USER, 0), (GUARD, 0), (GUARD, 65534)]
DRIVER = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n235 nvidia-caps\n510 nvidia-uvm\n\nBlock devices:\n"


def ladder_id(value: object) -> str:
    return f"{NAMES[value[0]]}-{value[1]}" if isinstance(value, tuple) else str(value)


def probe_lines(text: str) -> dict[str, str]:
    return dict(
        line.split(" ", 1) for line in text.splitlines() if " " in line and not line.startswith(("dev ", "fd "))
    )


def dev_lines(text: str) -> dict[str, list[str]]:
    """path: mode, owner, number, link target"""
    found = (line.split(" ", 5)[1:] for line in text.splitlines() if line.startswith("dev "))
    return {path.removeprefix("/dev/"): rest for path, *rest in found}


def run_probe(lab: Lab, isolation: int, **start: Any) -> tuple[dict[str, Any], str]:
    """A whole life of a worker with the probe: READY's report and what the probe printed."""
    with lab.worker(PROBE="1") as worker:
        flags = start.pop("flags", 0) | VERBOSE
        ready = worker.ready(h.pack_start(isolation, flags=flags, libraries=[lab.probe], **start))
        worker.say(h.STOP)
        assert worker.wait() == 0
        return ready.report, worker.text()


# ---- the ladder ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rung", LADDER, ids=ladder_id)
def test_ladder(lab: RunInLab, rung: tuple[int, int]) -> None:
    isolation, uid = rung

    def body(lab: Lab) -> None:
        lab.become(uid)
        before = lab.snapshot()
        ours = os.stat("/proc/self/ns/mnt").st_ino
        start = time.monotonic_ns()
        with lab.worker(PROBE="1") as worker:
            isolated = worker.ask(h.pack_start(isolation, flags=VERBOSE, libraries=[lab.probe]))
            took = time.monotonic_ns() - start
            report = isolated.report
            theirs = os.stat(f"/proc/{worker.pid}/ns/mnt").st_ino
            assert report["pid"] == worker.pid
            assert report["isolation"] == isolation
            assert report["mount_ns"] == theirs
            assert (theirs != ours) == (isolation != GUARD)
            assert os.stat(f"/proc/{worker.pid}/ns/pid").st_ino == os.stat("/proc/self/ns/pid").st_ino
            assert (report["caps_effective"], report["no_new_privs"], report["seccomp_mode"]) == (0, 1, 2)
            if uid == 0:
                assert report["caps_bounding"] == 0
            status = Path(f"/proc/{worker.pid}/status").read_text()
            assert re.search(r"^NoNewPrivs:\s1$", status, re.M)
            assert re.search(rf"^Uid:\s{uid}\s{uid}\s{uid}\s{uid}$", status, re.M)
            assert os.getsid(worker.pid) == worker.pid
            for step in ("hello", "descriptors", "caps", "no_new_privs", "seccomp", "check"):
                assert report["steps"][step] > 0
            assert start < report["began_ns"] < start + took - sum(report["steps"].values())
            assert (report["steps"]["user_ns"] > 0) == (isolation == USER)
            assert (report["steps"]["dev_tmpfs"] > 0) == (isolation != GUARD)
            assert lab.snapshot() == before
            ready = worker.ask(struct.pack("@II", h.MAGIC, h.GO)).report
            assert ready["library"] == lab.probe
            worker.say(h.STOP)
            assert worker.wait() == 0
            text = worker.text()
        assert lab.snapshot() == before

        tried = probe_lines(text)
        for name in ("nvidia0", "nvidiactl", "cap", "null", "disk", "nvidia-block"):
            assert tried[name] == "EPERM", (name, text)
        for name in (
            *("mount", "umount", "unshare", "chroot", "inet", "netlink", "ptrace", "io_uring", "bpf"),
            *("mount_setattr", "tiocsti", "clone-newuser", "execve", "fork"),
        ):
            assert tried[name] == "EPERM", (name, text)
        assert tried["clone3"] == "ENOSYS"
        for name in ("unix", "thread", "open-null", "open-urandom", "shutdown"):
            assert tried[name] == "0", (name, text)
        if os.uname().machine == "x86_64":
            assert tried["i386-getpid"] in ("EPERM", "ENOSYS")
            assert tried["x32-getpid"] in ("EPERM", "ENOSYS")
        assert tried["core"] in ("0", "1")
        if isolation == GUARD:  # the host's /dev is in reach: no name is made at all
            assert tried["fifo"] == tried["write-dev"] == tried["write-shm"] == "EPERM"
        if isolation != GUARD:
            assert tried["openpt"] == tried["write-shm"] == "0"
            dev = dev_lines(text)
            assert set(dev) == {
                *("null", "zero", "full", "random", "urandom", "tty", "fd", "stdin", "stdout", "stderr"),
                *("ptmx", "pts", "pts/ptmx", "shm", "char"),
            }
            assert dev["null"][0] == "20666"
            assert dev["ptmx"][3] == "pts/ptmx"
        opened = [line for line in text.splitlines() if line.startswith("fd ")]
        assert len([line for line in opened if int(line.split()[1]) > 3]) <= 4, opened

    lab(body)


def test_privileged_keeps_sys_admin(lab: RunInLab) -> None:
    def body(lab: Lab) -> int:
        with lab.worker() as worker:
            return worker.ask(h.pack_start(MOUNT, flags=h.PRIVILEGED, libraries=[lab.probe])).report["caps_effective"]

    assert lab(body) == h.CAP_SYS_ADMIN


def test_output_is_silenced_by_default(lab: RunInLab) -> None:
    def body(lab: Lab) -> str:
        with lab.worker(PROBE="1") as worker:
            worker.ready(h.pack_start(MOUNT, libraries=[lab.probe]))
            worker.say(h.STOP)
            assert worker.wait() == 0
            return worker.text()

    assert lab(body) == ""


def test_simulator_is_told_by_environment(lab: RunInLab) -> None:
    text = lab(lambda lab: run_probe(lab, MOUNT, flags=SIMULATED, simulator="h100x8")[1])
    assert probe_lines(text)["sim"] == "h100x8"


# ---- the private /dev ---------------------------------------------------------------------------------


def make_driver_dev(lab: Lab, root: str) -> None:
    for minor in (0, 1, 7):
        lab.node(f"{root}/nvidia{minor}", 195, minor)
        lab.link(f"{root}/char/195:{minor}", f"../nvidia{minor}")
    lab.node(f"{root}/nvidiactl", 195, 255)
    lab.link(f"{root}/char/195:255", "/dev/nvidiactl")
    lab.link(f"{root}/char/1:3", "../null")
    lab.link(f"{root}/char/195:9", "../nvidia9")
    lab.node(f"{root}/nvidia-uvm", 510, 0)
    lab.node(f"{root}/nvidia-caps/nvidia-cap1", 235, 1, 0o400)
    lab.node(f"{root}/nvidia-caps/nvidia-cap2", 235, 2, 0o444)
    lab.node(f"{root}/nvidia5", 1, 1)  # memory under a GPU's name
    lab.node(f"{root}/nvidiafoo", 195, 3)
    lab.node(f"{root}/nvidia-alias", 195, 4)
    lab.node(f"{root}/sda-like", 8, 0)
    os.mkfifo(f"{root}/nvidia6")
    os.chown(f"{root}/nvidia7", 0, 44)


SHOWN = {
    *("nvidia0", "nvidia1", "nvidia7", "nvidiactl", "nvidia-uvm"),
    *("nvidia-caps", "nvidia-caps/nvidia-cap1", "nvidia-caps/nvidia-cap2"),
    *("char/195:0", "char/195:1", "char/195:7", "char/195:255"),
}


@pytest.mark.parametrize("root", ["/dev", "driver/dev"])
@pytest.mark.parametrize("rung", [(MOUNT, 0), (USER, 0), (USER, 65534)], ids=ladder_id)
def test_nvidia_nodes(lab: RunInLab, rung: tuple[int, int], root: str) -> None:
    isolation, uid = rung

    def body(lab: Lab) -> None:
        where = root if root.startswith("/") else str(lab.folder / root)
        make_driver_dev(lab, where)
        lab.become(uid)
        before = lab.snapshot()
        report, text = run_probe(lab, isolation, flags=SIMULATED, dev_root=where)
        assert lab.snapshot() == before
        dev = dev_lines(text)
        assert {name for name in dev if "nvidia" in name or name.startswith("char/")} == SHOWN
        assert report["nodes"] == 7
        owner = "0:0" if uid == 0 else "65534:65534"  # root is not mapped there
        assert dev["nvidia0"][:3] == ["20666", owner, "195:0"]
        if isolation == MOUNT:
            assert dev["nvidia7"][1] == "0:44"
        assert dev["nvidia-caps/nvidia-cap1"][0] == "20400"
        assert dev["char/195:255"][3] == "../nvidiactl"
        tried = probe_lines(text)
        if isolation == MOUNT:
            assert report["caps_effective"] == h.CAP_MKNOD
            assert report["caps_bounding"] == h.CAP_MKNOD
            for name in ("nvidia0", "nvidia7", "nvidiactl", "cap", "cap-high-minor", "fifo", "write-dev"):
                assert tried[name] == "0", name
        else:
            assert tried["nvidia0"] == "EPERM"
            assert tried["fifo"] == tried["write-dev"] == "EROFS"
        for name in ("null", "disk", "nvidia-block"):
            assert tried[name] == "EPERM"

    lab(body)


@pytest.mark.parametrize("isolation", [MOUNT, USER])
def test_devices_filter(lab: RunInLab, isolation: int) -> None:
    def body(lab: Lab) -> None:
        make_driver_dev(lab, "/dev")
        _, text = run_probe(lab, isolation, flags=SIMULATED | DEVICES, minors=[7])
        dev = dev_lines(text)
        hidden = {"nvidia0", "nvidia1", "char/195:0", "char/195:1"}
        assert {name for name in dev if "nvidia" in name or name.startswith("char/")} == SHOWN - hidden
        tried = probe_lines(text)
        expected = "0" if isolation == MOUNT else "EPERM"
        assert [tried[n] for n in ("nvidia7", "nvidiactl", "cap")] == [expected] * 3
        assert tried["nvidia0"] == "EPERM"

    lab(body)


@pytest.mark.parametrize("rung", [(MOUNT, 0), (USER, 65534)], ids=ladder_id)
def test_without_a_driver_its_nodes_are_no_trap(lab: RunInLab, rung: tuple[int, int]) -> None:
    """To open a node whose driver is not loaded would make the kernel start modprobe."""

    def body(lab: Lab) -> None:
        make_driver_dev(lab, "/dev")
        lab.become(rung[1])
        report, text = run_probe(lab, rung[0])
        assert report["nodes"] == 0
        assert not [name for name in dev_lines(text) if "nvidia" in name]
        assert probe_lines(text)["nvidiactl"] == "EPERM"

    lab(body)


@pytest.mark.parametrize("rung", [(MOUNT, 0), (USER, 65534)], ids=ladder_id)
def test_majors_of_the_loaded_driver(lab: RunInLab, rung: tuple[int, int]) -> None:
    isolation, uid = rung

    def body(lab: Lab) -> None:
        make_driver_dev(lab, "/dev")
        lab.node("/dev/nvidia-caps-imex-channels/channel0", 236, 0)  # of a driver that is not registered
        lab.cover("/proc/devices", DRIVER)
        h.mount("tmpfs", "/proc/driver", "tmpfs", data="mode=0755")
        os.mkdir("/proc/driver/nvidia")
        original = "ResmanDebugLevel: 1\nModifyDeviceFiles: 1\nDeviceFileMode: 438\n"
        Path("/proc/driver/nvidia/params").write_text(original)
        os.chmod("/proc/driver/nvidia/params", 0o444)
        lab.become(uid)
        before = lab.snapshot()
        report, text = run_probe(lab, isolation)
        assert lab.snapshot() == before
        assert Path("/proc/driver/nvidia/params").read_text() == original
        assert report["nodes"] == 7
        assert "nvidia-caps-imex-channels/channel0" not in dev_lines(text)
        assert ".params" not in dev_lines(text)
        tried = probe_lines(text)
        assert tried["params"] == ("1" if isolation == MOUNT else "0")
        assert tried["cap"] == ("0" if isolation == MOUNT else "EPERM")

    lab(body)


@pytest.mark.parametrize("isolation", [MOUNT, USER])
def test_many_imex_channels_are_quick(lab: RunInLab, isolation: int) -> None:
    def body(lab: Lab) -> tuple[int, int]:
        for minor in range(2048):
            lab.node(f"/dev/nvidia-caps-imex-channels/channel{minor}", 236, minor)
        with lab.worker() as worker:
            report = worker.ask(h.pack_start(isolation, flags=SIMULATED, libraries=[lab.probe])).report
            shown = os.listdir(f"/proc/{worker.pid}/root/dev/nvidia-caps-imex-channels")
            assert len(shown) == report["nodes"]
            return report["nodes"], report["steps"]["dev_nvidia"]

    nodes, took = lab(body)
    assert nodes == 2048
    assert took < 1_000_000_000


def test_stand_ins_and_poor_hosts(lab: RunInLab) -> None:
    """Regular files for nodes (WSL's dxg too), no pts, no shm, hardly a node in /dev, read-only root."""

    def body(lab: Lab) -> None:
        root = lab.folder / "dev"
        root.mkdir()
        (root / "dxg").write_text("")
        (root / "nvidia0").write_text("")
        for name in ("zero", "full", "random", "urandom", "tty"):
            os.unlink(f"/dev/{name}")
        h.mount(None, "/", flags=h.MS_REMOUNT | h.MS_BIND | h.MS_RDONLY)
        for isolation in (MOUNT, USER):
            report, text = run_probe(lab, isolation, dev_root=str(root))
            assert report["nodes"] == 2
            assert dev_lines(text)["dxg"][0].startswith("100")
            assert ("zero" in dev_lines(text)) == (isolation == MOUNT)

    lab(body)


def test_no_dev_null(lab: RunInLab) -> None:
    def body(lab: Lab) -> None:
        os.unlink("/dev/null")
        Path("/dev/null").write_text("a file that somebody left")
        with lab.worker() as worker:
            worker.ready(h.pack_start(GUARD, libraries=[lab.probe]))
            worker.say(h.STOP)
            assert worker.wait() == 0
        assert Path("/dev/null").read_text() == "a file that somebody left"

    lab(body)


# ---- failing steps ------------------------------------------------------------------------------------


def failure_of(lab: Lab, start: bytes, **env: str) -> tuple[str, int, str, str, str]:
    with lab.worker(**env) as worker:
        answer = worker.ask(start)
        assert answer.kind == h.FAILED, answer.kind
        assert worker.receive() is None
        assert worker.wait() == 1
        return answer.failure


def test_dev_root_that_does_not_exist(lab: RunInLab) -> None:
    step, err, path, detail, _ = lab(lambda lab: failure_of(lab, h.pack_start(MOUNT, dev_root="/nonexistent/dev")))
    assert (step, err, path) == ("dev_root", errno.ENOENT, "/nonexistent/dev")
    assert "does not exist" in detail


def test_dev_root_that_is_a_file(lab: RunInLab) -> None:
    step, err, *_ = lab(lambda lab: failure_of(lab, h.pack_start(MOUNT, dev_root="/proc/version")))
    assert (step, err) == ("dev_root", errno.ENOTDIR)


def test_mount_without_privilege(lab: RunInLab) -> None:
    def body(lab: Lab) -> Any:
        lab.become(65534)
        return failure_of(lab, h.pack_start(MOUNT))

    step, err, _, detail, _ = lab(body)
    assert (step, err) == ("mount_ns", errno.EPERM)
    assert "CAP_SYS_ADMIN" in detail


def test_user_namespaces_at_their_limit(lab: RunInLab) -> None:
    """In a user namespace of our own the limit is ours to set."""

    def body(lab: Lab) -> Any:
        assert h._libc.unshare(0x10000000) == 0
        Path("/proc/self/uid_map").write_text("0 0 1")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/gid_map").write_text("0 0 1")
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
        return failure_of(lab, h.pack_start(USER))

    step, err, _, detail, _ = lab(body)
    assert (step, err) == ("user_ns", errno.ENOSPC)
    assert "max_user_namespaces" in detail


def test_in_a_user_namespace_nodes_are_bound(lab: RunInLab) -> None:
    """`mount` where CAP_SYS_ADMIN and CAP_MKNOD are those of a rootless container: mknod is refused all the same."""

    def body(lab: Lab) -> None:
        make_driver_dev(lab, "/dev")
        assert h._libc.unshare(0x10000000 | h.CLONE_NEWNS) == 0
        Path("/proc/self/uid_map").write_text("0 0 1")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/gid_map").write_text("0 0 1")
        before = lab.snapshot()
        report, text = run_probe(lab, MOUNT, flags=SIMULATED)
        assert lab.snapshot() == before
        assert report["nodes"] == 7
        assert probe_lines(text)["open-null"] == "0"
        assert dev_lines(text)["nvidia0"][2] == "195:0"

    lab(body)


@pytest.mark.parametrize("isolation", [MOUNT, USER])
def test_shared_root_is_cut_before_anything_is_mounted(lab: RunInLab, isolation: int) -> None:
    def body(lab: Lab) -> None:
        h.mount(None, "/", flags=h.MS_REC | h.MS_SHARED)
        before = lab.snapshot()
        assert " shared:" in before[1]
        with lab.worker() as worker:
            worker.ready(h.pack_start(isolation, libraries=[lab.probe]))
            assert lab.snapshot() == before
            assert " shared:" not in Path(f"/proc/{worker.pid}/mountinfo").read_text()
        assert lab.snapshot() == before

    lab(body)


def test_root_that_is_no_mount_point(lab: RunInLab) -> None:
    """In a chroot the propagation of the mount below cannot be cut: nothing may be mounted then."""

    def body(lab: Lab) -> Any:
        h.mount(None, "/", flags=h.MS_REC | h.MS_SHARED)
        root = lab.folder / "chroot"
        for name in ("proc", "dev", "lib", "lib64", "usr", "etc"):
            (root / name).mkdir(parents=True)
            if Path("/", name).is_dir():
                h.mount(f"/{name}", str(root / name), flags=h.MS_BIND)
        os.link(lab.program, root / "worker")
        before = lab.snapshot()
        start = h.pack_start(MOUNT)
        os.chroot(root)
        os.chdir("/")
        lab.program = "/worker"
        failure = failure_of(lab, start)
        assert Path("/proc/self/mountinfo").read_text().count("tmpfs /dev") == 0
        assert os.path.exists("/dev/null")
        assert [e[0] for e in before[0]] == [e[0] for e in lab.snapshot()[0]]
        return failure

    step, err, _, detail, _ = lab(body)
    assert (step, err) == ("propagation", errno.EINVAL)
    assert "guard" in detail


def test_without_proc_nothing_is_mounted(lab: RunInLab) -> None:
    def body(lab: Lab) -> Any:
        version = h.worker_version()
        h.mount("tmpfs", "/proc", "tmpfs")
        return failure_of(lab, h.pack_start(MOUNT, build=version))

    step, err, path, detail, _ = lab(body)
    assert (step, err, path) == ("mount_ns", errno.ENOENT, "/proc/self/ns/mnt")
    assert "/proc" in detail


MS_SLAVE_REC = h.MS_REC | 1 << 19
TMPFS_FLAGS = 2 | 8  # nosuid, noexec: the private /dev and its devpts

REFUSALS = {
    "unshare of a user namespace": (USER, "unshare", errno.EPERM, [(0, 0x10000000)], "user_ns", "userns"),
    "too many user namespaces": (USER, "unshare", errno.ENOSPC, [(0, 0x10000000)], "user_ns", "max_user"),
    "unshare of a mount namespace": (MOUNT, "unshare", errno.EPERM, [], "mount_ns", "seccomp"),
    "the same after the user namespace": (USER, "unshare", errno.EPERM, [(0, h.CLONE_NEWNS)], "mount_ns", "seccomp"),
    "a mount namespace that is a lie": (MOUNT, "unshare", 0, [], "mount_ns", "no effect"),
    "propagation": (MOUNT, "mount", errno.EACCES, [(3, MS_SLAVE_REC)], "propagation", "AppArmor"),
    "propagation that is a lie": (MOUNT, "mount", 0, [(3, MS_SLAVE_REC)], "propagation", "still shared"),
    "tmpfs": (MOUNT, "mount", errno.EACCES, [(3, TMPFS_FLAGS)], "dev_tmpfs", "AppArmor"),
    "tmpfs for a user": (USER, "mount", errno.EPERM, [(3, TMPFS_FLAGS)], "dev_tmpfs", "AppArmor"),
    "tmpfs that is a lie": (MOUNT, "mount", 0, [(3, TMPFS_FLAGS)], "dev_tmpfs", "no effect"),
    "read-only": (USER, "mount", errno.EPERM, [(3, 2 | 8 | 1 | 32 | 4096)], "params", "read-only"),
    "capset": (GUARD, "capset", errno.EPERM, [], "caps", "capabilities"),
    "capset that is a lie": (GUARD, "capset", 0, [], "check", "capabilities"),
    "no_new_privs": (GUARD, "prctl", errno.EINVAL, [(0, 38)], "no_new_privs", "no_new_privs"),
    "no_new_privs that is a lie": (GUARD, "prctl", 0, [(0, 38)], "landlock|seccomp", "cannot"),  # which need it
    "Landlock": (GUARD, "landlock_restrict_self", errno.EPERM, [], "landlock", "Landlock"),
    "Landlock that is a lie": (MOUNT, "landlock_restrict_self", 0, [], "check", "Landlock"),
    "seccomp": (GUARD, "seccomp", errno.ENOSYS, [], "seccomp", "CONFIG_SECCOMP_FILTER"),
    "seccomp that is a lie": (MOUNT, "seccomp", 0, [], "check", "not refused"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refused_step(lab: RunInLab, name: str) -> None:
    """A step that is refused, or that something answers without doing it, is the last one. Nothing reaches the host."""
    isolation, call, err, args, expected, words = REFUSALS[name]
    if name.startswith("Landlock") and h.landlock_version() < 1:
        pytest.skip("this kernel has no Landlock")

    def body(lab: Lab) -> Any:
        h.mount(None, "/", flags=h.MS_REC | h.MS_SHARED)
        before = lab.snapshot()
        start = h.pack_start(isolation)
        h.refuse(call, err, *args)
        failure = failure_of(lab, start)
        assert lab.snapshot() == before
        return failure

    step, got, _, detail, _ = lab(body)
    assert step in expected.split("|"), detail
    assert words in detail
    if err:
        assert got == err


@pytest.mark.parametrize("refused", ["mknod", "devpts"])
def test_what_has_another_way(lab: RunInLab, refused: str) -> None:
    """A device cgroup refuses mknod, an LSM a devpts: then nodes are bound, terminals are the old ones, or none."""

    def body(lab: Lab) -> None:
        make_driver_dev(lab, "/dev")
        if refused == "mknod":
            h.refuse("mknodat", errno.EPERM, (3, os.makedev(195, 0)))
            h.refuse("mknodat", errno.EPERM, (3, os.makedev(1, 3)))
        before = lab.snapshot()
        report, text = run_probe(lab, MOUNT, flags=SIMULATED)
        assert lab.snapshot() == before
        assert report["nodes"] == 7
        assert dev_lines(text)["nvidia0"][2] == "195:0"
        assert probe_lines(text)["open-null"] == "0"

    lab(body)


def test_library_that_does_not_exist(lab: RunInLab) -> None:
    def body(lab: Lab) -> Any:
        with lab.worker() as worker:
            assert worker.ask(h.pack_start(GUARD, libraries=["/nonexistent/a.so", "/nonexistent/b.so"])).report
            answer = worker.ask(struct.pack("@II", h.MAGIC, h.GO))
            assert worker.wait() == 1
            return answer.failure

    step, _, _, _, tried = lab(body)
    assert step == "library"
    assert "/nonexistent/a.so: " in tried
    assert "/nonexistent/b.so: " in tried


# ---- the control connection ---------------------------------------------------------------------------

WRONG_STARTS: dict[str, tuple[Callable[[], bytes], str]] = {
    "short": (lambda: struct.pack("@I", h.MAGIC), "no header"),
    "magic": (lambda: h.pack_start(GUARD, magic=1), "starts with"),
    "type": (lambda: h.pack_start(GUARD, type=h.GO), "type 3"),
    "protocol": (lambda: h.pack_start(GUARD, protocol=2), "protocol 2"),
    "build": (lambda: h.pack_start(GUARD, build=b"9.9"), "version 9.9"),
    "unterminated build": (lambda: h.pack_start(GUARD, build=b"9" * 32), "version 999"),
    "cut": (lambda: h.pack_start(GUARD)[:100], "100 bytes"),
    "header only": (lambda: struct.pack("@II", h.MAGIC, h.START), "8 bytes"),
    "isolation 0": (lambda: h.pack_start(0), "isolation 0"),
    "isolation 4": (lambda: h.pack_start(4), "isolation 4"),
    "flags": (lambda: h.pack_start(GUARD, flags=0x100), "0x100"),
    "devices": (lambda: h.pack_start(GUARD, devices_count=257), "257"),
    "no libraries": (lambda: h.pack_start(GUARD, libraries=[]), "0 libraries"),
    "libraries": (lambda: h.pack_start(GUARD, libraries_count=2**32 - 1), "libraries"),
    "libraries off by one": (lambda: h.pack_start(GUARD, libraries_count=2), "5 strings"),
    "strings_len": (lambda: h.pack_start(GUARD, strings_len=2**32 - 1), "4294967295"),
    "no strings": (lambda: h.pack_start(GUARD, strings=b"", strings_len=0), "NUL"),
    "no NUL": (lambda: h.pack_start(GUARD, strings=b"/\0/dev\0\0lib", strings_len=11), "NUL"),
    "relative dev root": (lambda: h.pack_start(MOUNT, dev_root="dev"), "absolute"),
}


@pytest.mark.parametrize("name", WRONG_STARTS)
def test_wrong_start(lab: RunInLab, name: str) -> None:
    make, words = WRONG_STARTS[name]
    step, _, _, detail, _ = lab(lambda lab: failure_of(lab, make()))
    assert step == "hello"
    assert words in detail


@pytest.mark.parametrize("how", ["close", "stop", "term"])
@pytest.mark.parametrize("stage", ["connected", "isolated", "ready"])
def test_end_at_each_stage(lab: RunInLab, stage: str, how: str) -> None:
    def body(lab: Lab) -> tuple[int, str]:
        with lab.worker() as worker:
            start = h.pack_start(MOUNT, flags=VERBOSE, libraries=[lab.probe])
            if stage == "isolated":
                assert worker.ask(start).report
            elif stage == "ready":
                worker.ready(start)
            else:
                worker.until_it_minds_signals()
            if how == "close":
                worker.control.close()
            elif how == "stop":
                worker.say(h.STOP)
            else:
                os.kill(worker.pid, signal.SIGTERM)
            return worker.wait(), worker.text()

    status, text = lab(body)
    assert status == 0
    assert ("shutdown 0" in text) == (stage == "ready")


def test_interrupt_is_ignored(lab: RunInLab) -> None:
    def body(lab: Lab) -> None:
        with lab.worker() as worker:
            worker.ready(h.pack_start(MOUNT, libraries=[lab.probe]))
            os.kill(worker.pid, signal.SIGINT)
            time.sleep(0.05)
            worker.say(h.STOP)
            assert worker.wait() == 0

    lab(body)


def test_wrong_packet_after_ready(lab: RunInLab) -> None:
    def body(lab: Lab) -> Any:
        with lab.worker() as worker:
            worker.ready(h.pack_start(MOUNT, libraries=[lab.probe]))
            answer = worker.ask(struct.pack("@II", h.MAGIC, 77))
            assert worker.wait() == 1
            return answer.failure

    step, _, _, detail, _ = lab(body)
    assert step == "channel"
    assert "77" in detail


def test_open(lab: RunInLab) -> None:
    def body(lab: Lab) -> None:
        with lab.worker() as worker:
            worker.ready(h.pack_start(MOUNT, libraries=[lab.probe]))
            ours, theirs = socket.socketpair()
            answer = worker.open(2, theirs.fileno(), number=5)
            assert (answer.kind, struct.unpack(h.OPENED_LAYOUT, answer.data)[2]) == (h.OPENED, 5)
            answer = worker.open(9, theirs.fileno(), number=6)
            assert (answer.kind, struct.unpack(h.OPENED_LAYOUT, answer.data)[2]) == (h.REFUSED, 6)
            theirs.close()
            for _ in range(50):  # descriptors that nobody asked for do not pile up
                worker.open(9, ours.fileno())
            held = len(os.listdir(f"/proc/{worker.pid}/fd"))
            assert held < 15
            worker.send(struct.pack(h.OPEN_LAYOUT, h.MAGIC, h.OPEN, 2, 7, 0), [ours.fileno()] * 2)
            answer = worker.receive()
            assert answer is not None
            assert answer.kind == h.FAILED
            assert worker.wait() == 1

    lab(body)


def test_caller_dies_while_the_library_hangs(lab: RunInLab) -> None:
    def body(lab: Lab) -> int:
        with lab.worker(PROBE_SLEEP="60") as worker:
            assert worker.ask(h.pack_start(MOUNT, libraries=[lab.probe])).report
            worker.say(h.GO)
            time.sleep(0.2)
            worker.control.close()
            return worker.wait(25)

    assert lab(body) == 1


def test_shutdown_that_hangs(lab: RunInLab) -> None:
    def body(lab: Lab) -> int:
        with lab.worker(PROBE_SHUTDOWN_SLEEP="1") as worker:
            worker.ready(h.pack_start(MOUNT, libraries=[lab.probe]))
            worker.say(h.STOP)
            return worker.wait(25)

    assert lab(body) == -signal.SIGALRM


@pytest.mark.parametrize("way", ["close_range", "listing", "one by one"])
def test_descriptors_used_up(lab: RunInLab, way: str) -> None:
    """The caller holds all that its limit allows, and more above it, and is not careful with close-on-exec."""

    def body(lab: Lab) -> None:
        isolation = MOUNT if way != "one by one" else GUARD  # the others refuse to start without /proc
        start = h.pack_start(isolation, libraries=[lab.probe])
        proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
        for number in (*range(100, 1020), 3000):
            os.dup2(0, number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096))
        if way != "close_range":
            h.refuse("close_range", errno.ENOSYS)
        if way == "one by one":
            h.mount("nothing", "/proc", "tmpfs")
        with lab.worker() as worker:
            assert worker.ask(start).kind == h.ISOLATED
            folder = os.open(f"{worker.pid}/fd", os.O_RDONLY | os.O_DIRECTORY, dir_fd=proc)
            opened = {int(name) for name in os.listdir(folder)}
            # Nothing three times, control, signals, and for a moment or longer what tells of the end of nvmlInit
            assert {0, 1, 2, 3, 4} <= opened <= {0, 1, 2, 3, 4, 5}

    lab(body)


def test_hidden_processes(lab: RunInLab) -> None:
    """/proc with hidepid shows a process of another user's nothing, but itself everything."""

    def body(lab: Lab) -> None:
        h.mount("proc", "/proc", "proc", data="hidepid=2")
        lab.become(65534)
        for isolation in (USER, GUARD):
            run_probe(lab, isolation)

    lab(body)


def test_by_hand(lab: RunInLab) -> None:
    def body(lab: Lab) -> tuple[int, str]:
        done = subprocess.run([lab.program], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        return done.returncode, done.stderr

    status, text = lab(body)
    assert status == 2
    assert "not by hand" in text


def test_version() -> None:
    done = subprocess.run([h.worker_path(), "--version"], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"nvsandbox-worker \d+\.\d+\.\d+\S* \(protocol 1\)\n", done.stdout)


def test_worker_is_not_setuid() -> None:
    assert not h.worker_path().stat().st_mode & (stat.S_ISUID | stat.S_ISGID)
