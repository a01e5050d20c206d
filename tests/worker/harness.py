# SPDX-License-Identifier: Apache-2.0
"""Plays the caller of a worker, in a throwaway mount namespace that plays the host.

Nothing here knows the package's own client half: the messages are packed by hand from csrc/protocol.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import os
import pickle
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

MAGIC = 0x3153564E
START, ISOLATED, GO, READY, FAILED, OPEN, OPENED, REFUSED, STOP = range(1, 10)
MOUNT, USER, GUARD = 1, 2, 3
PRIVILEGED, SIMULATED, VERBOSE, DEVICES = 1, 2, 4, 8
STEPS = ["none", "spawn", "hello", "descriptors", "user_ns", "id_map", "mount_ns", "propagation", "dev_root"]
STEPS += ["dev_tmpfs", "dev_base", "dev_nvidia", "params", "caps", "no_new_privs", "landlock", "seccomp", "check"]
STEPS += ["verify", "library", "init", "channel", "working_dir"]

START_LAYOUT = "=III32sIIIIII256I"
REPORT_LAYOUT = f"@III32sIiQQQQIIIiQ{len(STEPS)}Q4096s"
FAILED_LAYOUT = "@IIIi4096s512s32768s"
OPEN_LAYOUT = "@IIIIQ"
OPENED_LAYOUT = "@IIIIIi4096s512s"

TMPFS_MAGIC = 0x01021994
CAP_SYS_ADMIN, CAP_MKNOD = 1 << 21, 1 << 27

_libc = ctypes.CDLL(None, use_errno=True)
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE, MS_SHARED = 1, 32, 4096, 16384, 1 << 18, 1 << 20
CLONE_NEWNS = 0x20000


def _check(rc: int, what: str) -> None:
    if rc != 0:
        err = ctypes.get_errno()
        raise OSError(err, f"{what}: {os.strerror(err)}")


def mount(source: str | None, target: str, kind: str | None = None, flags: int = 0, data: str | None = None) -> None:
    args = (x.encode() if x is not None else None for x in (source, target, kind))
    _check(_libc.mount(*args, ctypes.c_ulong(flags), data.encode() if data else None), f"mount {target}")


@dataclasses.dataclass
class Message:
    kind: int
    data: bytes

    @property
    def report(self) -> dict[str, Any]:
        assert self.kind in (ISOLATED, READY), self.describe()
        v = struct.unpack(REPORT_LAYOUT, self.data)
        names = "magic type protocol build isolation pid mount_ns dev_fs_magic caps_effective caps_bounding "
        names += "no_new_privs seccomp_mode nodes init_result began_ns"
        fields = dict(zip(names.split(), v[:15], strict=True))
        fields["steps"] = dict(zip(STEPS, v[15 : 15 + len(STEPS)], strict=True))
        fields["library"] = v[-1].split(b"\0")[0].decode()
        return fields

    @property
    def failure(self) -> tuple[str, int, str, str, str]:
        """step, errno, path, detail, tried"""
        assert self.kind == FAILED, self.kind
        v = struct.unpack(FAILED_LAYOUT, self.data)
        return (STEPS[v[2]], v[3], *(x.split(b"\0")[0].decode() for x in v[4:]))  # type: ignore[return-value]

    def describe(self) -> str:
        return f"FAILED {self.failure}" if self.kind == FAILED else f"message {self.kind}, {len(self.data)} bytes"


def pack_start(
    isolation: int,
    *,
    flags: int = 0,
    dev_root: str = "/dev",
    simulator: str = "",
    libraries: Sequence[str] = ("libnvidia-ml.so.1",),
    minors: Sequence[int] = (),
    **changed: Any,
) -> bytes:
    strings = b"".join(s.encode() + b"\0" for s in ("/", dev_root, simulator, *libraries))
    fields: dict[str, Any] = {
        "magic": MAGIC,
        "type": START,
        "protocol": 1,
        "build": worker_version() if "build" not in changed else b"",
        "isolation": isolation,
        "flags": flags,
        "devices_count": len(minors),
        "libraries_count": len(libraries),
        "strings_len": len(strings),
        "spinning_max": 1,
    }
    strings = changed.pop("strings", strings)
    fields.update(changed)
    return struct.pack(START_LAYOUT, *fields.values(), *minors, *([0] * (256 - len(minors)))) + strings


def worker_path() -> Path:
    """The one that NVSANDBOX_TEST_WORKER names, else that of the installed package (the source tree has none)."""
    named = os.environ.get("NVSANDBOX_TEST_WORKER")
    for path in [named] if named else [os.path.join(p, "nvsandbox", "nvsandbox-worker") for p in sys.path]:
        if os.path.isfile(path):
            return Path(path)
    raise FileNotFoundError(f"no worker at {named}" if named else "no installed nvsandbox with a worker")


@functools.cache
def worker_version() -> bytes:
    """Found out before a test becomes another user, who may not be able to read where the worker is (U16)."""
    done = subprocess.run([worker_path(), "--version"], capture_output=True, check=True)
    return done.stdout.split()[1]


class Worker:
    """A worker and the caller's end of its control socket."""

    def __init__(self, program: str, *, env: dict[str, str] | None = None) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control = ours
        ours.settimeout(30)
        read_end, write_end = os.pipe()
        self.output = read_end
        actions = [
            (os.POSIX_SPAWN_DUP2, theirs.fileno(), 1000),
            (os.POSIX_SPAWN_DUP2, write_end, 1001),
            (os.POSIX_SPAWN_DUP2, 1000, 3),
            (os.POSIX_SPAWN_DUP2, 1001, 2),
            (os.POSIX_SPAWN_DUP2, 1001, 1),
        ]
        self.pid = os.posix_spawn(program, [program], {**os.environ, **(env or {})}, file_actions=actions)
        theirs.close()
        os.close(write_end)

    def send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        socket.send_fds(self.control, [data], list(fds)) if fds else self.control.send(data)

    def say(self, kind: int) -> None:
        self.send(struct.pack("@II", MAGIC, kind))

    def receive(self) -> Message | None:
        data = self.control.recv(65536)
        return Message(struct.unpack_from("@II", data)[1], data) if data else None

    def ask(self, data: bytes, fds: Sequence[int] = ()) -> Message:
        self.send(data, fds)
        answer = self.receive()
        assert answer is not None, "the worker ended without an answer"
        return answer

    def until_it_minds_signals(self) -> None:
        """Before that SIGTERM ends it as it ends every program."""
        deadline = time.monotonic() + 30
        blocked = 0
        while not blocked & 1 << (signal.SIGTERM - 1) and time.monotonic() < deadline:
            with open(f"/proc/{self.pid}/status") as file:
                blocked = next(int(line.split()[1], 16) for line in file if line.startswith("SigBlk:"))

    def ready(self, start: bytes) -> Message:
        answer = self.ask(start)
        assert answer.kind == ISOLATED, answer.describe()
        answer = self.ask(struct.pack("@II", MAGIC, GO))
        assert answer.kind == READY, answer.describe()
        return answer

    def open(self, kind: int, fd: int, size: int = 0, number: int = 1) -> Message:
        return self.ask(struct.pack(OPEN_LAYOUT, MAGIC, OPEN, kind, number, size), [fd])

    def wait(self, limit: float = 15) -> int:
        """The exit status; negative for a signal."""
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.005)
        raise AssertionError(f"the worker still runs after {limit} s")

    def text(self) -> str:
        """What it printed. After its end, or this waits for it."""
        with os.fdopen(self.output, "rb", closefd=False) as file:
            return file.read().decode(errors="replace")

    def close(self) -> None:
        self.control.close()
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.output)


def landlock_version() -> int:
    """0 or less: the kernel has none."""
    return int(_libc.syscall(444, None, ctypes.c_size_t(0), 1))


class _Compare(ctypes.Structure):
    _fields_ = (("arg", ctypes.c_uint), ("op", ctypes.c_int), ("mask", ctypes.c_uint64), ("value", ctypes.c_uint64))


def refuse(call: str, err: int, *args: tuple[int, int]) -> None:
    """From here on this process and its children get the errno for the system call (0: it does nothing and says that
    all is well), with these values of these arguments. It stands for an LSM or a container's seccomp profile."""
    lib = ctypes.CDLL("libseccomp.so.2")
    lib.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(lib.seccomp_init(0x7FFF0000))
    array = (_Compare * max(len(args), 1))(*(_Compare(arg, 4, value, 0) for arg, value in args))
    number = lib.seccomp_syscall_resolve_name(call.encode())
    assert lib.seccomp_attr_set(context, 2, 0x7FFF0000) == 0  # other architectures' calls are the worker's to refuse
    assert lib.seccomp_attr_set(context, 3, 0) == 0  # no_new_privs stays as it is
    assert lib.seccomp_rule_add_array(context, 0x00050000 | err, number, len(args), array) == 0
    assert lib.seccomp_load(context) == 0


@dataclasses.dataclass
class Lab:
    """What a test's body gets, in the throwaway namespace."""

    folder: Path
    program: str
    probe: str

    @contextlib.contextmanager
    def worker(self, **env: str) -> Iterator[Worker]:
        worker = Worker(self.program, env=env)
        try:
            yield worker
        finally:
            worker.close()

    def become(self, uid: int) -> None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)

    def node(self, path: str, major: int, minor: int, mode: int = 0o666) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        os.mknod(path, stat.S_IFCHR | mode, os.makedev(major, minor))
        os.chmod(path, mode)

    def link(self, path: str, target: str) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        os.symlink(target, path)

    def cover(self, path: str, text: str) -> None:
        """Another text for a file of /proc."""
        copy = self.folder / path.strip("/").replace("/", "-")
        copy.write_text(text)
        mount(str(copy), path, flags=MS_BIND)

    def snapshot(self) -> tuple[list[tuple[object, ...]], str]:
        """The host's /dev and mount table, to be compared."""
        entries: list[tuple[object, ...]] = []
        for folder, folders, files in os.walk("/dev"):
            for name in (*folders, *files):
                path = os.path.join(folder, name)
                st = os.lstat(path)
                target = os.readlink(path) if stat.S_ISLNK(st.st_mode) else ""
                entries.append((path, st.st_mode, st.st_uid, st.st_gid, st.st_rdev, st.st_ino, target))
        return sorted(entries, key=str), Path("/proc/self/mountinfo").read_text()


def _play_host(folder: Path, program: Path, probe: Path) -> Lab:
    _check(_libc.unshare(CLONE_NEWNS), "unshare")
    mount(None, "/", flags=MS_REC | MS_PRIVATE)
    mount("tmpfs", "/dev", "tmpfs", data="mode=0755")
    for name, major, minor in (
        ("null", 1, 3),
        ("zero", 1, 5),
        ("full", 1, 7),
        ("random", 1, 8),
        ("urandom", 1, 9),
        ("tty", 5, 0),
    ):
        os.mknod(f"/dev/{name}", stat.S_IFCHR | 0o666, os.makedev(major, minor))
        os.chmod(f"/dev/{name}", 0o666)
    mount("tmpfs", str(folder), "tmpfs", data="mode=0755")
    copies = []
    for source in (program, probe):
        copies.append(shutil.copy(source, folder))
        os.chmod(copies[-1], 0o755)
    return Lab(folder, *copies)


def in_lab(folder: Path, program: Path, probe: Path, body: Callable[[Lab], Any]) -> Any:
    """Runs the body in a child with a mount namespace and a /dev of its own; gives back what it returns."""
    worker_version()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read_end)
            try:
                outcome = (True, body(_play_host(folder, program, probe)))
            except BaseException:
                outcome = (False, traceback.format_exc())
            with os.fdopen(write_end, "wb") as file:
                pickle.dump(outcome, file)
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as file:
        data = file.read()
    os.waitpid(child, 0)
    good, value = pickle.loads(data)
    assert good, value
    return value
