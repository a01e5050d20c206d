# SPDX-License-Identifier: Apache-2.0
"""What a program cannot do at each step, tried from inside, and what it still can."""

from __future__ import annotations

import errno
import json
import platform
import subprocess
import sys
from typing import Any

import pytest

from .conftest import Run, surroundings

# Each of them: what it is called, and what raises or ends with another status than 0 where it is refused.
ATTEMPTS = r"""
import ctypes, errno, json, os, socket, subprocess, sys, threading

libc = ctypes.CDLL(None, use_errno=True)

def call(name, *arguments):
    result = getattr(libc, name)(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result

def number(which, *arguments):
    return call("syscall", which, *arguments)

def traced():
    child = os.fork()
    if child == 0:
        os._exit(0 if libc.ptrace(0, 0, 0, 0) == 0 else 1)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise OSError(errno.EPERM, "ptrace")

def new_namespace():
    child = os.fork()
    if child == 0:
        os._exit(libc.unshare(0x10000000) != 0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise OSError(errno.EPERM, "unshare")

def typed():
    import fcntl, pty, termios
    master, slave = pty.openpty()
    child = os.fork()
    if child == 0:
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        try:
            fcntl.ioctl(slave, termios.TIOCSTI, b"x")
        except OSError as error:
            os._exit(error.errno)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        raise OSError(status, "TIOCSTI")

def asked_for_vlan():
    # What is asked for is a module, 8021q, whatever the socket is.
    import fcntl
    with socket.socket(socket.AF_UNIX) as any_socket:
        fcntl.ioctl(any_socket, 0x8982, bytes(64))

def asked_for_discipline():
    import fcntl, pty, struct
    master, slave = pty.openpty()
    fcntl.ioctl(slave, 0x5423, struct.pack("i", 13))

def listening():
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    server.accept()[0].sendall(b"hello")
    assert client.recv(5) == b"hello"

def in_threads():
    found = []
    threads = [threading.Thread(target=found.append, args=(1,)) for _ in range(8)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert len(found) == 8

def files():
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(f"{folder}/a"); os.mkdir(f"{folder}/b")
        open(f"{folder}/a/file", "w").close()
        os.rename(f"{folder}/a/file", f"{folder}/b/file")
        os.symlink("file", f"{folder}/b/link"); os.mkfifo(f"{folder}/fifo"); os.chmod(f"{folder}/b/file", 0o600)
        sock = socket.socket(socket.AF_UNIX); sock.bind(f"{folder}/socket")

def shared():
    from multiprocessing import shared_memory
    memory = shared_memory.SharedMemory(create=True, size=100)
    memory.close(); memory.unlink()

def signalled():
    child = subprocess.Popen(["sleep", "60"])
    child.kill()
    assert child.wait() == -9

def node(path, kind, device):
    os.mknod(path, kind | 0o600, device)
    os.unlink(path)

CHAR, BLOCK = 0o020000, 0o060000
attempts = {
    "mount": lambda: call("mount", b"tmpfs", b"/mnt", b"tmpfs", 0, None),
    "unmount /dev": lambda: call("umount2", b"/dev", 2),
    "a new mount namespace": lambda: call("unshare", 0x20000),
    "a new user namespace": new_namespace,
    "trace": traced,
    "load a module": lambda: number({MODULE}, -1, b"", 0),
    "bpf": lambda: number({BPF}, 0, 0, 0),
    "io_uring": lambda: number(425, 1, 0),
    "type into a terminal": typed,
    "have 8021q loaded": asked_for_vlan,
    "have n_hdlc loaded": asked_for_discipline,
    "a socket of another family": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close(),
    "an Internet socket of a module's": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 136).close(),
    "a node of NVIDIA's": lambda: node("/dev/nvidia9", CHAR, os.makedev(195, 9)),
    "a node of another driver": lambda: node("/dev/other", CHAR, os.makedev(1, 1)),
    "a disk": lambda: node("/dev/disk", BLOCK, os.makedev(8, 0)),
    "a node elsewhere": lambda: node("/tmp/nvidia9", CHAR, os.makedev(195, 9)),
    "a folder in /dev": lambda: (os.mkdir("/dev/folder"), os.rmdir("/dev/folder")),
    "a link in /dev/char": lambda: (os.symlink("x", "/dev/char/195:9"), os.unlink("/dev/char/195:9")),
    "look into another process": lambda: os.stat(f"/proc/{os.environ['PEER']}/root/dev"),
    "listen and connect": listening,
    "threads": in_threads,
    "programs": lambda: subprocess.run(["true"], check=True),
    "files": files,
    "shared memory": shared,
    "signals": signalled,
}
found = {}
for name, attempt in attempts.items():
    try:
        attempt()
        found[name] = "yes"
    except OSError as error:
        # A refusal; anything else means that the kernel has got so far as to look at the arguments.
        refused = error.errno in (errno.EPERM, errno.EACCES, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT)
        found[name] = "no" if refused else "yes"
print(json.dumps(found))
"""

ALWAYS = {"listen and connect", "threads", "programs", "files", "shared memory", "signals"}
LOADING = {"have 8021q loaded", "have n_hdlc loaded", "an Internet socket of a module's"}
OWN_DEV = {"a folder in /dev", "a link in /dev/char"}
CAN: dict[tuple[str, ...], set[str]] = {
    ("--lockdown",): ALWAYS | OWN_DEV,
    ("--lockdown", "--simulate", "t4"): ALWAYS | OWN_DEV | {"a node of NVIDIA's", "a node elsewhere"},
    ("--user",): ALWAYS | OWN_DEV | LOADING | {"trace"},
    ("--user", "--lockdown"): ALWAYS | OWN_DEV,
    ("--guard",): ALWAYS | LOADING | {"trace", "a new user namespace"},
    ("--guard", "--lockdown"): ALWAYS,
}
BEYOND = {"io_uring", "type into a terminal", "a new user namespace", "load a module", "bpf"}
"""What the kernel's own settings decide, without --lockdown."""


def answers(run: Run, *options: str) -> dict[str, Any]:
    # A process of root's that has no capabilities either, which is all that the kernel asks without Landlock.
    peer = subprocess.Popen(["setpriv", "--inh-caps=-all", "--bounding-set=-all", "sh", "-c", "echo; exec sleep 60"],
                            stdout=subprocess.PIPE)  # fmt: skip
    assert peer.stdout is not None
    peer.stdout.read(1)
    modules, bpf = {"x86_64": (313, 321), "aarch64": (273, 280)}[platform.machine()]
    code = ATTEMPTS.replace("{MODULE}", str(modules)).replace("{BPF}", str(bpf))
    done = run(*options, "--", sys.executable, "-c", code, env={**surroundings(), "PEER": str(peer.pid)})
    peer.kill()
    peer.wait()
    peer.stdout.close()
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("options", CAN)
def test_what_is_refused(run: Run, options: tuple[str, ...]) -> None:
    found = answers(run, *options)
    if "--lockdown" not in options:
        for name in BEYOND:
            found.pop(name)
    assert {name for name, answer in found.items() if answer == "yes"} == CAN[options] - (
        set() if "--lockdown" in options else BEYOND
    )


def test_what_works(run: Run) -> None:
    """At the step mount all of it does, which is also what shows that the attempts are attempts."""
    found = answers(run)
    assert {name for name, answer in found.items() if answer == "no"} <= {"type into a terminal", "io_uring"}


X32_MKNOD = 0x40000000 | 133
OTHER_WAY = f"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
assert libc.syscall({X32_MKNOD}, b"/dev/nvidia9", 0o020600, os.makedev(195, 9)) == -1
print(ctypes.get_errno())
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x32 is another way to make the calls of x86-64")
@pytest.mark.parametrize(
    "options", [("--guard",), ("--lockdown",), ("--simulate", "t4", "--devices", "0")], ids=" ".join
)
def test_no_node_is_made_the_other_way(run: Run, options: tuple[str, ...]) -> None:
    """A kernel may have a second table of calls, with numbers of its own. EPERM is the filter's, before the kernel
    looks whether it has one."""
    done = run(*options, "--", sys.executable, "-c", OTHER_WAY, env=surroundings())
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == errno.EPERM
