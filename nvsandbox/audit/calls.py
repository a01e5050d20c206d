# SPDX-License-Identifier: Apache-2.0
"""The system calls that change names, and the seccomp filter that stops at them.

Source of the numbers: the kernel's tables for x86-64 and arm64 (``asm/unistd.h``). A 32-bit program's calls have other
numbers and are let through, as are those that io_uring makes: what they do is found by comparing before and after.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from dataclasses import dataclass

AT_FDCWD = -100
_O_CREAT = 0o100


@dataclass(frozen=True)
class Argument:
    """Where a call says what it is about."""

    path: int | None
    """The argument that points to the path; None if a descriptor alone says it."""
    folder: int | None = None
    """The argument with the folder's descriptor (without a path: the file's)."""
    follows: bool = False
    """Whether a link at the end is followed."""


@dataclass(frozen=True)
class Call:
    """A system call that is stopped at."""

    name: str
    arguments: tuple[Argument, ...]
    flags: int | None = None
    """The argument that must have O_CREAT for the call to be of interest."""
    starts: bool = False
    """Whether it starts a program: that changes nothing, and says who comes from whom."""


def _at(path: int, folder: int, follows: bool = False) -> Argument:
    return Argument(path, folder, follows)


_X86 = {
    2: Call("open", (Argument(0),), flags=1),
    59: Call("execve", (Argument(0),), starts=True),
    82: Call("rename", (Argument(0), Argument(1))),
    83: Call("mkdir", (Argument(0),)),
    84: Call("rmdir", (Argument(0),)),
    85: Call("creat", (Argument(0),)),
    86: Call("link", (Argument(1),)),
    87: Call("unlink", (Argument(0),)),
    88: Call("symlink", (Argument(1),)),
    90: Call("chmod", (Argument(0, follows=True),)),
    91: Call("fchmod", (Argument(None, 0),)),
    92: Call("chown", (Argument(0, follows=True),)),
    93: Call("fchown", (Argument(None, 0),)),
    94: Call("lchown", (Argument(0),)),
    133: Call("mknod", (Argument(0),)),
    257: Call("openat", (_at(1, 0),), flags=2),
    258: Call("mkdirat", (_at(1, 0),)),
    259: Call("mknodat", (_at(1, 0),)),
    260: Call("fchownat", (_at(1, 0, True),)),
    263: Call("unlinkat", (_at(1, 0),)),
    264: Call("renameat", (_at(1, 0), _at(3, 2))),
    265: Call("linkat", (_at(3, 2),)),
    266: Call("symlinkat", (_at(2, 1),)),
    268: Call("fchmodat", (_at(1, 0, True),)),
    316: Call("renameat2", (_at(1, 0), _at(3, 2))),
    322: Call("execveat", (_at(1, 0),), starts=True),
    437: Call("openat2", (_at(1, 0),)),
    452: Call("fchmodat2", (_at(1, 0, True),)),
}
_ARM = {
    33: Call("mknodat", (_at(1, 0),)),
    34: Call("mkdirat", (_at(1, 0),)),
    35: Call("unlinkat", (_at(1, 0),)),
    36: Call("symlinkat", (_at(2, 1),)),
    37: Call("linkat", (_at(3, 2),)),
    38: Call("renameat", (_at(1, 0), _at(3, 2))),
    52: Call("fchmod", (Argument(None, 0),)),
    53: Call("fchmodat", (_at(1, 0, True),)),
    54: Call("fchownat", (_at(1, 0, True),)),
    55: Call("fchown", (Argument(None, 0),)),
    56: Call("openat", (_at(1, 0),), flags=2),
    221: Call("execve", (Argument(0),), starts=True),
    276: Call("renameat2", (_at(1, 0), _at(3, 2))),
    281: Call("execveat", (_at(1, 0),), starts=True),
    437: Call("openat2", (_at(1, 0),)),
    452: Call("fchmodat2", (_at(1, 0, True),)),
}
# AUDIT_ARCH of linux/audit.h, the calls, the number of seccomp(2)
_MACHINES = {"x86_64": (0xC000003E, _X86, 317), "aarch64": (0xC00000B7, _ARM, 277)}

_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_JMP|JSET|K, BPF_RET|K
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
_SET_MODE_FILTER = 1
_NEW_LISTENER, _WAIT_KILLABLE = 1 << 3, 1 << 5


def calls() -> dict[int, Call]:
    """Number to call, on this machine."""
    return _MACHINES[platform.machine()][1]


def program() -> bytes:
    """The filter, as the kernel's struct sock_filter, one after the other."""
    arch, table, _ = _MACHINES[platform.machine()]
    lines: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, 4),  # seccomp_data.arch
        (_EQUAL, 1, 0, arch),
        (_RETURN, 0, 0, _ALLOW),
        (_LOAD, 0, 0, 0),  # seccomp_data.nr
    ]
    for number, call in table.items():
        if call.flags is None:
            lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _NOTIFY)]
        else:
            # The low half of the argument: both machines are little-endian.
            low = 16 + 8 * call.flags
            lines += [
                (_EQUAL, 0, 4, number),
                (_LOAD, 0, 0, low),
                (_ANY_BIT, 0, 1, _O_CREAT),
                (_RETURN, 0, 0, _NOTIFY),
                (_RETURN, 0, 0, _ALLOW),
            ]
    lines.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("HBBI", *line) for line in lines)


def install() -> int:
    """Filters this process and those that it starts from now on; the descriptor that notifications are read from.

    Without no_new_privs, so that setuid helpers keep working as they do elsewhere; that needs CAP_SYS_ADMIN. Raises
    OSError.
    """
    text = program()
    buffer = ctypes.create_string_buffer(text, len(text))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(text) // 8, ctypes.addressof(buffer)))
    libc = ctypes.CDLL(None, use_errno=True)
    number = _MACHINES[platform.machine()][2]
    # Before Linux 5.19 a signal breaks off the wait for an answer, and the call is notified again.
    for flags in (_NEW_LISTENER | _WAIT_KILLABLE, _NEW_LISTENER):
        fd: int = libc.syscall(
            ctypes.c_long(number),
            ctypes.c_ulong(_SET_MODE_FILTER),
            ctypes.c_ulong(flags),
            ctypes.c_void_p(ctypes.addressof(header)),
        )
        if fd >= 0:
            return fd
    err = ctypes.get_errno()
    raise OSError(err, os.strerror(err))
