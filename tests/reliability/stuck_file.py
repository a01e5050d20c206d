# SPDX-License-Identifier: Apache-2.0
"""A file system with one file, ``stuck``, that can be opened, and whose readers never come back: ``stuck_file.py
FOLDER``. With ``open`` as a second argument not even who opens it comes back, with ``attributes`` nor who asks for its
size. With ``private`` it is a mount of a user's own (nobody's), into which not even root may look.

It speaks FUSE's own protocol over /dev/fuse. A request that it has taken and not answered is waited for in state D, in
which not even SIGKILL is heard; that is how a process hangs in a driver that does not return. Prints "ready" when the
folder is mounted; when its standard input ends it ends too, and the kernel lets the readers go.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import stat
import struct
import sys

LOOKUP, FORGET, GETATTR, OPEN, READ, RELEASE, FLUSH, INIT, INTERRUPT, BATCH_FORGET = 1, 2, 3, 14, 15, 18, 25, 26, 36, 42
ROOT, FILE = 1, 2


def attributes(node: int) -> bytes:
    mode = stat.S_IFDIR | 0o755 if node == ROOT else stat.S_IFREG | 0o444
    return struct.pack("<6Q10I", node, 4096, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def answer(opcode: int, node: int, body: bytes) -> bytes | int | None:
    """The body of a reply, an errno, or None for no reply."""
    if opcode == INIT:
        return struct.pack("<4I2H2I2H8I", 7, 31, 65536, 0, 12, 9, 65536, 1, 32, 0, *[0] * 8)
    if opcode == LOOKUP:
        if body.rstrip(b"\0") != b"stuck":
            return errno.ENOENT
        valid = 0 if sys.argv[2:] == ["attributes"] else 3600
        return struct.pack("<4Q2I", FILE, 0, 3600, valid, 0, 0) + attributes(FILE)
    if opcode == GETATTR and node == FILE and sys.argv[2:] == ["attributes"]:
        return None
    if opcode == GETATTR:
        return struct.pack("<Q2I", 3600, 0, 0) + attributes(node)
    if opcode == OPEN and sys.argv[2:] == ["open"]:
        return None
    if opcode == OPEN:
        return struct.pack("<Q2I", 1, 1, 0)  # FOPEN_DIRECT_IO: each read comes here
    if opcode in (RELEASE, FLUSH):
        return b""
    return None if opcode in (READ, FORGET, INTERRUPT, BATCH_FORGET) else errno.ENOSYS


def main(folder: str) -> None:
    fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    whose = "user_id=65534,group_id=65534" if sys.argv[2:] == ["private"] else "user_id=0,group_id=0,allow_other"
    data = f"fd={fd},rootmode=40000,{whose}".encode()
    if libc.mount(b"stuck", folder.encode(), b"fuse", ctypes.c_ulong(0x2 | 0x4), data) != 0:
        raise OSError(ctypes.get_errno(), "mount")
    print("ready", flush=True)
    while True:
        ready = select.select([fd, 0], [], [])[0]
        if 0 in ready:
            break
        try:
            request = os.read(fd, 1 << 20)
        except OSError:
            break
        _, opcode, unique, node = struct.unpack_from("<IIQQ", request)
        reply = answer(opcode, node, request[40:])
        if reply is not None:
            error, body = (-reply, b"") if isinstance(reply, int) else (0, reply)
            os.write(fd, struct.pack("<IiQ", 16 + len(body), error, unique) + body)
    libc.umount2(folder.encode(), 2)


if __name__ == "__main__":
    main(sys.argv[1])
