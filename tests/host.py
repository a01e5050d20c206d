# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the host: mount namespaces with a /dev that may be spoilt, and ways to look at it from outside.

:class:`Host` runs a function in a process of its own there, as another user or with system calls refused if need be.
This file is also the program that this process runs, and that process may not be able to read the tests: it stands
alone and uses nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import inspect
import json
import os
import pickle
import platform
import select
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NOBODY = 65534

_CHOSEN = os.environ.get("NVSANDBOX_TEST_NVML")
DRIVER = (
    Path(*Path(_CHOSEN).absolute().parts[:-6])
    if _CHOSEN
    else Path(__file__).resolve().parents[1] / ".cache" / "nvidia" / "root"
)
"""The root of NVIDIA's library and programs: where scripts/fetch-nvidia-nvml puts them, or that of the library that is
chosen, ROOT/usr/lib/MACHINE/nvidia/current/libnvidia-ml.so.1."""

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        err = ctypes.get_errno()
        raise OSError(err, f"{what}: {os.strerror(err)}")
    return result


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def require(condition: object, reason: str) -> None:
    """Skips the test where something that it needs is missing; in CI, where everything must be there, fails it."""
    import pytest

    if condition:
        return
    if in_ci():
        pytest.fail(f"needed in CI: {reason}", pytrace=False)
    pytest.skip(reason)


# ---- namespaces and mounts

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
MS_NOSUID, MS_NOEXEC, MS_BIND, MS_MOVE, MS_REC = 0x2, 0x8, 0x1000, 0x2000, 0x4000
MS_PRIVATE, MS_SLAVE, MS_SHARED = 1 << 18, 1 << 19, 1 << 20


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    fields = [text.encode() or None for text in (source, target, kind)]
    _check(_libc.mount(*fields, ctypes.c_ulong(flags), data.encode() or None), f"mount {source} on {target}")


def umount(target: str) -> None:
    _check(_libc.umount2(target.encode(), 2), f"umount {target}")


_BASE = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}


def play_host() -> None:
    """Gives this process a mount namespace of its own in which /dev is a tmpfs that looks like a host's: base nodes,
    pts, shm, and from the real one /dev/fuse and NVIDIA's nodes, if there are any."""
    old = os.open("/dev", os.O_PATH | os.O_DIRECTORY)
    unshare(CLONE_NEWNS)
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    folder = tempfile.mkdtemp(prefix="stand-in-")
    mount("devtmpfs", folder, "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=755")
    found = os.listdir(f"/proc/self/fd/{old}")
    for name in [*_BASE, *(name for name in found if name == "fuse" or name.startswith("nvidia"))]:
        _copy_node(f"/proc/self/fd/{old}/{name}", os.path.join(folder, name))
    for name, target in {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}.items():
        os.symlink(target, os.path.join(folder, name))
    for name in ("pts", "shm", "char"):
        os.mkdir(os.path.join(folder, name), 0o755)
    os.symlink("pts/ptmx", os.path.join(folder, "ptmx"))
    with contextlib.suppress(OSError):
        mount("devpts", os.path.join(folder, "pts"), "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666")
    mount("tmpfs", os.path.join(folder, "shm"), "tmpfs", MS_NOSUID, "mode=1777")
    mount(folder, "/dev", flags=MS_MOVE)
    os.rmdir(folder)
    os.close(old)


def _copy_node(source: str, target: str) -> None:
    try:
        status = os.stat(source)
    except OSError:
        return
    if stat.S_ISDIR(status.st_mode):
        os.mkdir(target)
        for name in os.listdir(source):
            _copy_node(f"{source}/{name}", f"{target}/{name}")
        return
    try:
        os.mknod(target, status.st_mode, status.st_rdev)
        os.chmod(target, stat.S_IMODE(status.st_mode))
    except OSError:  # a device cgroup, or no CAP_MKNOD
        with open(target, "w"):
            pass
        mount(source, target, flags=MS_BIND)


def can_play_host() -> bool:
    """Whether this process may make mount namespaces (asked of a child that tries)."""
    code = "import ctypes, os, sys; sys.exit(ctypes.CDLL(None).unshare(0x20000) != 0)"
    return subprocess.run([sys.executable, "-S", "-E", "-c", code], check=False).returncode == 0


def require_isolation(step: str) -> None:
    """Skips the test where this process may not have this isolation: `mount` takes a privilege, the others none."""
    require(step != "mount" or can_play_host(), "needs CAP_SYS_ADMIN, for isolation 'mount'")


# ---- looking from outside


def listing(root: str = "/dev", skip: Callable[[str], bool] = lambda path: False) -> dict[str, tuple[Any, ...]]:
    """All that is below `root`: path to (mode, rdev, owner, device, inode, link target)."""
    found: dict[str, tuple[Any, ...]] = {}
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError:
            continue
        for entry in entries:
            if skip(entry.path):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
                target = os.readlink(entry.path) if entry.is_symlink() else ""
            except FileNotFoundError:
                continue
            rdev = (os.major(status.st_rdev), os.minor(status.st_rdev))
            found[entry.path] = (
                oct(status.st_mode),
                rdev,
                (status.st_uid, status.st_gid),
                status.st_dev,
                status.st_ino,
                target,
            )
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
    return found


def mounts(pid: int | str = "self") -> list[str]:
    """The mount table of a process, line by line."""
    return Path(f"/proc/{pid}/mountinfo").read_text().splitlines()


def mount_at(target: str, pid: int | str = "self") -> tuple[str, list[str]] | None:
    """File system type, and propagation fields, of what is mounted last at `target`."""
    found = None
    for line in mounts(pid):
        left, _, right = line.partition(" - ")
        fields = left.split()
        if fields[4] == target:
            found = (right.split()[0], fields[6:])
    return found


def status_of(pid: int | str = "self") -> dict[str, str]:
    """The lines of /proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def privileges(pid: int | str = "self") -> dict[str, str]:
    """Capabilities, seccomp and the like of a process."""
    status = status_of(pid)
    keys = ("Uid", "Gid", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Umask")
    return {key: status[key] for key in keys}


def namespaces(pid: int | str = "self") -> dict[str, str]:
    """Name to identity of each of a process's namespaces."""
    folder = f"/proc/{pid}/ns"
    return {name: os.readlink(f"{folder}/{name}") for name in os.listdir(folder)}


def descriptors(pid: int | str = "self") -> dict[int, str]:
    """A process's open descriptors and what they refer to."""
    found = {}
    with os.scandir(f"/proc/{pid}/fd") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                found[int(entry.name)] = os.readlink(entry.path)
    # The scan's own descriptor is closed by now.
    return {fd: target for fd, target in found.items() if pid != "self" or _is_open(fd)}


def _is_open(fd: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_GETFD)
    except OSError:
        return False
    return True


def processes() -> dict[int, tuple[str, int]]:
    """All processes: pid to (name, parent's pid)."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                text = file.read()
        except OSError:
            continue
        command, _, rest = text.partition("(")[2].rpartition(")")
        found[int(name)] = (command, int(rest.split()[1]))
    return found


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or is an orphan's remains that init has yet to take; one that we did not reap is
    not."""
    try:
        status = status_of(pid)
    except OSError:
        return True
    return status["State"].startswith("Z") and int(status["PPid"]) != os.getpid()


def state_of_process() -> dict[str, Any]:
    """What a session must leave as it was in its caller, but for threads."""
    return {
        "privileges": privileges(),
        "namespaces": namespaces(),
        "mounts": mounts(),
        "descriptors": descriptors(),
        "children": sorted(pid for pid, (_, parent) in processes().items() if parent == os.getpid()),
        "cwd": os.getcwd(),
        "memfds": memfd_mappings(),
    }


def memfd_mappings() -> list[str]:
    """What of shared memory files is mapped."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:" in line]


class Watch:
    """inotify on a folder and those below it: what came, went or changed, even if it is as before by now."""

    _EVENTS = 0x4 | 0x40 | 0x80 | 0x100 | 0x200  # attrib, moved from, moved to, create, delete

    def __init__(self, root: str = "/dev") -> None:
        self._fd = _check(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify_init1")
        self._folders: dict[int, str] = {}
        self.seen: list[str] = []
        self._add(root)
        for folder, names, _ in os.walk(root):
            for name in names:
                self._add(os.path.join(folder, name))

    def _add(self, folder: str) -> None:
        if folder.startswith("/dev/pts"):
            return
        number = _libc.inotify_add_watch(self._fd, folder.encode(), self._EVENTS | 0x02000000)  # don't follow
        if number >= 0:
            self._folders[number] = folder

    def events(self) -> list[str]:
        """Paths of what has happened since the last call."""
        found: list[str] = []
        while True:
            try:
                data = os.read(self._fd, 65536)
            except BlockingIOError:
                return found
            while data:
                number, mask, _, length = struct.unpack_from("iIII", data)
                name = data[16 : 16 + length].rstrip(b"\0").decode(errors="replace")
                data = data[16 + length :]
                path = os.path.join(self._folders.get(number, "?"), name)
                found.append(path)
                if mask & 0x40000100 == 0x40000100:  # a new folder
                    self._add(path)

    def close(self) -> None:
        os.close(self._fd)


@contextlib.contextmanager
def watching(root: str = "/dev") -> Iterator[Watch]:
    """A watch on a folder, which is closed at the end and then has what happened in ``seen``."""
    watch = Watch(root)
    try:
        yield watch
        watch.seen = watch.events()
    finally:
        watch.close()


def outcome(error: BaseException) -> dict[str, Any]:
    """An exception, in builtins."""
    return {
        "type": type(error).__name__,
        "mro": [cls.__name__ for cls in type(error).__mro__],
        "text": str(error),
        **{key: value for key, value in vars(error).items() if not key.startswith("_")},
    }


def attempt(action: Callable[[], Any]) -> dict[str, Any]:
    """What `action` does: its exception as :func:`outcome` has it, or {"mro": [], "result": what it returns}."""
    try:
        return {"mro": [], "result": action()}
    except Exception as error:
        return outcome(error)


@contextlib.contextmanager
def nothing_left(grace: float = 5.0) -> Iterator[None]:
    """Fails if the block leaves anything behind in /dev or in this process, or changes anything there."""
    before: dict[str, Any] = {}

    def look() -> dict[str, Any]:
        threads = sorted(thread.name for thread in threading.enumerate())
        return {**state_of_process(), "threads": threads, "/dev": listing("/dev")}

    before = look()
    yield
    end = time.monotonic() + grace
    while (after := look()) != before and time.monotonic() < end:
        time.sleep(0.05)
    changed = {key: (before[key], after[key]) for key in before if before[key] != after[key]}
    if changed:
        raise AssertionError(f"left behind or changed (before, after): {changed}")


# ---- system calls refused

_NUMBERS = {
    "x86_64": {
        "mount": 165,
        "unshare": 272,
        "openat": 257,
        "clone": 56,
        "mknodat": 259,
        "seccomp": 317,
        "statx": 332,
        "memfd_create": 319,
        "close_range": 436,
        "signalfd4": 289,
        "prlimit64": 302,
        "prctl": 157,
        "capset": 126,
        "landlock_create_ruleset": 444,
        "landlock_restrict_self": 446,
        "eventfd2": 290,
        "getrandom": 318,
        "umask": 95,
        "chdir": 80,
        "pidfd_open": 434,
        "pidfd_send_signal": 424,
        "clone3": 435,
        "setsid": 112,
        "socketpair": 53,
        "dup2": 33,
        "dup3": 292,
        "statfs": 137,
        "symlinkat": 266,
    },
    "aarch64": {
        "mount": 40,
        "unshare": 97,
        "openat": 56,
        "clone": 220,
        "mknodat": 33,
        "seccomp": 277,
        "statx": 291,
        "memfd_create": 279,
        "close_range": 436,
        "signalfd4": 74,
        "prlimit64": 261,
        "prctl": 167,
        "capset": 91,
        "landlock_create_ruleset": 444,
        "landlock_restrict_self": 446,
        "eventfd2": 19,
        "getrandom": 278,
        "umask": 166,
        "chdir": 49,
        "pidfd_open": 434,
        "pidfd_send_signal": 424,
        "clone3": 435,
        "setsid": 157,
        "socketpair": 199,
        "dup3": 24,
        "statfs": 43,
        "symlinkat": 36,
    },
}
_RET_ALLOW, _RET_ERRNO, _RET_USER_NOTIF = 0x7FFF0000, 0x00050000, 0x7FC00000


def syscall_number(name: str) -> int:
    return _NUMBERS[platform.machine()][name]


def _filter(rules: list[tuple[str, int | None, int, int]], flags: int = 0) -> int:
    """Installs a seccomp filter of (system call, argument or None, mask that it is tested with, action)."""
    code: list[tuple[int, int, int, int]] = []
    for name, argument, mask, action in rules:
        code += [(0x20, 0, 0, 0), (0x15, 0, 1 if argument is None else 3, syscall_number(name))]
        if argument is not None:
            code += [(0x20, 0, 0, 16 + 8 * argument), (0x45, 0, 1, mask)]
        code += [(0x06, 0, 0, action)]
    code += [(0x06, 0, 0, _RET_ALLOW)]
    text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *entry) for entry in code))
    program = struct.pack("HxxxxxxQ", len(code), ctypes.addressof(text))
    holder = ctypes.create_string_buffer(program)
    result: int = _libc.syscall(
        ctypes.c_long(syscall_number("seccomp")),
        ctypes.c_ulong(1),
        ctypes.c_ulong(flags),
        ctypes.c_void_p(ctypes.addressof(holder)),
    )
    return _check(result, "seccomp")


def refuse_user_namespaces() -> None:
    """As a container's seccomp profile does. For this process and its children, for good."""
    _filter([(name, 0, CLONE_NEWUSER, _RET_ERRNO | errno.EPERM) for name in ("unshare", "clone")])


def refuse(name: str, err: int) -> None:
    """A system call, always by the same errno. For this process and its children, for good."""
    _filter([(name, None, 0, _RET_ERRNO | err)])


class Supervisor:
    """Decides, by user notification, on every one of some system calls of the processes that this thread starts from
    now
    on: `decide(name, number of the call from 1, arguments, pid)` returns an errno, or 0 to let it pass."""

    def __init__(self, names: tuple[str, ...], decide: Callable[[str, int, tuple[int, ...], int], int]) -> None:
        self._decide = decide
        self._names = {syscall_number(name): name for name in names}
        self._counts = dict.fromkeys(names, 0)
        self.seen: list[tuple[str, tuple[int, ...]]] = []
        self._filtered = threading.Event()
        # Before the filter, which a later thread would inherit.
        threading.Thread(target=self._serve, daemon=True).start()
        self._fd = _filter([(name, None, 0, _RET_USER_NOTIF) for name in names], flags=1 << 3)
        self._filtered.set()

    def _serve(self) -> None:
        self._filtered.wait()
        poller = select.poll()
        poller.register(self._fd, select.POLLIN)
        while True:
            poller.poll()
            request = bytearray(80)
            try:
                fcntl.ioctl(self._fd, 0xC0502100, request)
            except OSError:
                continue
            fields = struct.unpack("QIIiIQ6Q", request)
            name, arguments = self._names[fields[3]], fields[6:]
            self._counts[name] += 1
            self.seen.append((name, arguments))
            err = self._decide(name, self._counts[name], arguments, fields[1])
            answer = struct.pack("QqiI", fields[0], 0, *self._answer(err))
            with contextlib.suppress(OSError):
                fcntl.ioctl(self._fd, 0xC0182101, bytearray(answer))

    def _answer(self, err: int) -> tuple[int, int]:
        """Error and flags: 1 lets the call pass."""
        return -err, 0 if err else 1


def text_at(pid: int, address: int) -> str:
    """A string in the memory of another process."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
        file.seek(address)
        return file.read(256).partition(b"\0")[0].decode(errors="replace")


def _no_more_user_namespaces() -> None:
    """Goes into a user namespace, all users mapped to themselves, in which no more of them may be made."""
    ready, done = os.pipe(), os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(ready[1])
        os.read(ready[0], 1)
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{parent}/{name}").write_text("0 0 65536\n")
        os._exit(0)
    unshare(CLONE_NEWUSER)
    os.close(ready[1])
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
        raise OSError("the user map cannot be written")
    for fd in (ready[0], *done):
        os.close(fd)
    Path("/proc/sys/user/max_user_namespaces").write_text("0\n")


# ---- the process on the stand-in


class Host:
    """Runs functions in processes of their own, on a throwaway stand-in for the host.

    `folder` can be read by every user and holds what those processes need.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copy(__file__, folder / "host.py")
        self._nobody: list[str] | None = None

    def readable(self, path: str | os.PathLike[str]) -> str:
        """A copy of a file that every user can read."""
        target = self.folder / "files" / str(abs(hash(os.fspath(path)))) / Path(path).name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
        return str(target)

    def python_for_nobody(self) -> list[str]:
        """A command that runs Python with this package as an unprivileged user, who may not be able to read the
        interpreter or the environment that the tests run in; empty if there is none."""
        if self._nobody is None:
            self._nobody = []
            copied = self._copy_packages
            for command in self._candidates():
                packages = [] if command == [sys.executable] else [f"PYTHONPATH={copied()}"]
                trial = ["env", *packages, *command]
                code = (
                    "import nvsandbox, sys; open(nvsandbox.process.PROGRAM, 'rb'); sys.exit(nvsandbox.session is None)"
                )
                tried = subprocess.run([*trial, "-c", code], check=False, capture_output=True, cwd="/", user=NOBODY,
                                       group=NOBODY, extra_groups=[])  # fmt: skip
                if tried.returncode == 0:
                    self._nobody = trial
                    break
        return self._nobody

    @staticmethod
    def _candidates() -> Iterator[list[str]]:
        for path in (sys.executable, getattr(sys, "_base_executable", ""), "/usr/bin/python3"):
            if path and os.path.exists(path):
                yield [path]

    def _copy_packages(self) -> Path:
        import importlib.util

        target = self.folder / "packages"
        if target.exists():
            return target
        target.mkdir()
        for name in ("nvsandbox", "nvsandbox_command", "pynvml", "cffi", "_cffi_backend", "pycparser", "click", "rich",
                     "pygments", "markdown_it", "mdurl"):  # fmt: skip
            spec = importlib.util.find_spec(name)
            if spec is None or spec.origin is None:
                continue
            origin = Path(spec.origin)
            if origin.name == "__init__.py":
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(origin.parent, target / name, ignore=ignored)
            else:
                shutil.copy(origin, target)
        return target

    def run(
        self,
        function: Callable[..., Any],
        *,
        setup: Callable[[], None] | None = None,
        uid: int | None = None,
        user_namespaces: str = "as here",
        shared_root: bool = False,
        env: dict[str, str] | None = None,
        timeout: float = 60,
        **arguments: Any,
    ) -> Any:
        """What `function(**arguments)` returns, in builtins.

        Both functions stand alone: they travel as source text and import what they use, this module as ``host``.
        `setup` runs first, as root. `user_namespaces` may be "refused" (by seccomp) or "none left"
        (by sysctl). With `shared_root` mounts on the stand-in are shared, as systemd makes them.
        """
        python = [sys.executable] if uid is None else self.python_for_nobody()
        if not python:
            raise AssertionError("no Python that an unprivileged user can run")
        results, end = os.pipe()
        spec = {
            "setup": textwrap.dedent(inspect.getsource(setup)) if setup else "",
            "setup_name": setup.__name__ if setup else "",
            "function": textwrap.dedent(inspect.getsource(function)),
            "name": function.__name__,
            "arguments": arguments,
            "uid": uid,
            "user_namespaces": user_namespaces,
            "shared_root": shared_root,
            "result_fd": end,
            "python": python,
        }
        program = str(self.folder / "host.py")
        command = [sys.executable, "-S", "-E", program, "enter", json.dumps(spec)]
        with open(results, "rb") as reader:
            with tempfile.TemporaryFile() as log:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[end],
                    cwd="/",
                    env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **(env or {})},
                )
                os.close(end)
                data = b""
                try:
                    deadline = time.monotonic() + timeout
                    while select.select([reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
                        piece = os.read(reader.fileno(), 1 << 20)
                        if not piece:
                            break
                        data += piece
                    status = process.wait(max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    status = None
                finally:
                    if process.poll() is None:
                        process.kill()
                        process.wait()
                log.seek(0)
                text = log.read().decode(errors="replace")
        if status != 0 or not data:
            raise AssertionError(f"{function.__name__} on the stand-in ended with {status}:\n{text}")
        return pickle.loads(data)


def _enter(spec: dict[str, Any]) -> None:
    play_host()
    if spec["setup"]:
        sys.modules["host"] = sys.modules["__main__"]
        scope: dict[str, Any] = {}
        exec(spec["setup"], scope)
        scope[spec["setup_name"]]()
    if spec["shared_root"]:
        mount("none", "/", flags=MS_REC | MS_SHARED)
    if spec["user_namespaces"] == "refused":
        refuse_user_namespaces()
    elif spec["user_namespaces"] == "none left":
        _no_more_user_namespaces()
    if spec["uid"] is not None:
        os.setgroups([])
        os.setresgid(spec["uid"], spec["uid"], spec["uid"])
        os.setresuid(spec["uid"], spec["uid"], spec["uid"])
    # Another program, so that what /proc shows of the process belongs to its user.
    os.execvp(spec["python"][0], [*spec["python"], __file__, "call", sys.argv[2]])


def _call(spec: dict[str, Any]) -> None:
    os.set_inheritable(spec["result_fd"], False)
    sys.path.pop(0)  # this file's folder
    sys.modules["host"] = sys.modules["__main__"]
    scope: dict[str, Any] = {}
    exec(compile(spec["function"], spec["name"], "exec"), scope)
    result = scope[spec["name"]](**spec["arguments"])
    data = pickle.dumps(result)
    with open(spec["result_fd"], "wb") as file:
        file.write(data)


if __name__ == "__main__":
    try:
        {"enter": _enter, "call": _call}[sys.argv[1]](json.loads(sys.argv[2]))
    except Exception:
        traceback.print_exc()
        sys.exit(1)
