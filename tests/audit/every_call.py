# SPDX-License-Identifier: Apache-2.0
"""Makes each system call that is stopped at once, with an effect on something in /dev: a program for the audit.

Names are given in all the ways there are: absolute, relative to the working folder, relative to a descriptor, by
descriptor alone. It prints the names of the calls that the kernel has.
"""

import ctypes
import os
import stat
import sys

sys.path.insert(0, sys.argv[1])
calls = __import__("calls")

libc = ctypes.CDLL(None, use_errno=True)
FOLDER = b"/dev/every"
os.mkdir(FOLDER)
os.chdir("/dev/every")
DIR = os.open(FOLDER, os.O_RDONLY)


def path(name: str) -> bytes:
    """Relative, absolute, or a way around."""
    ways = (
        name.encode(),
        FOLDER + b"/" + name.encode(),
        b"../every/./" + name.encode(),
        b"/proc/self/cwd/" + name.encode(),
    )
    return ways[len(name) % len(ways)]


def file(name: str) -> None:
    with open(f"/dev/every/{name}", "w"):
        pass


def arguments(name: str) -> tuple[object, ...]:
    """What the call is made with, after what it needs has been made."""
    new, old = f"new-{name}", f"old-{name}"
    folder = -100 if len(name) % 2 else DIR
    dev = os.makedev(195, 0)
    if name in ("open", "creat", "mkdir", "mknod"):
        more = {"open": (os.O_CREAT | os.O_WRONLY, 0o600), "mknod": (stat.S_IFCHR | 0o600, dev)}
        return path(new), *more.get(name, (0o700,))
    if name in ("openat", "mkdirat", "mknodat"):
        more = {"openat": (os.O_CREAT | os.O_WRONLY, 0o600), "mknodat": (stat.S_IFCHR | 0o600, dev)}
        return folder, new.encode(), *more.get(name, (0o700,))
    if name == "openat2":
        how = ctypes.create_string_buffer(
            (os.O_CREAT | os.O_WRONLY).to_bytes(8, "little") + (0o600).to_bytes(8, "little") + bytes(8)
        )
        return folder, new.encode(), how, 24
    if name == "symlink":
        return b"target", path(new)
    if name == "symlinkat":
        return b"target", folder, new.encode()
    if name == "rmdir":
        os.mkdir(old)
        return (path(old),)
    file(old)
    if name in ("rename", "link"):
        return path(old), path(new)
    if name in ("renameat", "renameat2", "linkat"):
        return folder, old.encode(), folder, new.encode(), 0
    if name in ("fchmod", "fchown"):
        fd = os.open(old, os.O_RDONLY)
        return (fd, 0o640) if name == "fchmod" else (fd, 7, 8)
    if name in ("chmod", "chown", "lchown"):
        return (path(old), 0o640) if name == "chmod" else (path(old), 7, 8)
    if name in ("fchmodat", "fchmodat2"):
        return folder, old.encode(), 0o640, 0
    if name == "fchownat":
        return folder, old.encode(), 7, 8, 0
    if name == "unlink":
        return (path(old),)
    assert name == "unlinkat", name
    return folder, old.encode(), 0


for number, call in calls.calls().items():
    if call.starts:
        continue
    given = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments(call.name)]
    if libc.syscall(ctypes.c_long(number), *given) >= 0:
        print(call.name)
    elif ctypes.get_errno() != 38:  # ENOSYS
        raise OSError(ctypes.get_errno(), call.name)
