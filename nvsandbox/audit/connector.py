# SPDX-License-Identifier: Apache-2.0
"""News of processes that begin, start another program or end, from the kernel's process events connector.

So that a short-lived process is known by name when fanotify tells of what it did. It needs CAP_NET_ADMIN, the machine's
own network and pid namespaces, and a kernel with CONFIG_PROC_EVENTS.

Source: ``linux/connector.h`` and ``linux/cn_proc.h``.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from typing import Literal

_NETLINK_CONNECTOR = 11
_IDX_PROC = _VAL_PROC = 1
_NLMSG_DONE = 3
_SO_RCVBUFFORCE = 33
_LISTEN = 1
_FORK, _EXEC, _EXIT = 0x00000001, 0x00000002, 0x80000000
_HEADER = struct.Struct("=IHHII")  # nlmsghdr
_MESSAGE = struct.Struct("=IIIIHH")  # cn_msg
# proc_event: what, cpu, timestamp_ns; then thread and process: of exec and exit its own, of fork the parent's
_EVENT = struct.Struct("=IIQii")
_CHILD = struct.Struct("=ii")


def open_events() -> socket.socket:
    """A socket on which :func:`events` hears them. Raises OSError where they are not available."""
    if os.readlink("/proc/self/ns/pid") != "pid:[4026531836]":  # PROC_PID_INIT_INO
        raise OSError(0, "this is not the machine's own pid namespace")
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _NETLINK_CONNECTOR)
    try:
        with contextlib.suppress(OSError):  # some thousand events instead of some hundred
            sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, 8 << 20)
        sock.bind((0, _IDX_PROC))
        body = _MESSAGE.pack(_IDX_PROC, _VAL_PROC, 0, 0, 4, 0) + struct.pack("=I", _LISTEN)
        sock.send(_HEADER.pack(_HEADER.size + len(body), _NLMSG_DONE, 0, 0, os.getpid()) + body)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def events(sock: socket.socket) -> Iterator[tuple[Literal["fork", "exec", "exit"], int, int]]:
    """What has happened since the last time: what, the process's pid, and of a new one its parent's, else 0. Some may
    be lost when it is too much."""
    while True:
        try:
            data = sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:  # ENOBUFS: lost
            continue
        start = _HEADER.size + _MESSAGE.size
        if len(data) < start + _EVENT.size + _CHILD.size:
            continue
        what, _, _, thread, process = _EVENT.unpack_from(data, start)
        if what == _FORK:
            child_thread, child = _CHILD.unpack_from(data, start + _EVENT.size)
            if child_thread == child:
                yield "fork", child, process
        elif what == _EXEC:
            yield "exec", process, 0
        elif what == _EXIT and thread == process:
            yield "exit", process, 0
