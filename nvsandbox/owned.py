# SPDX-License-Identifier: Apache-2.0
"""Descriptors of ours: each is known by what it refers to, and one that the program has closed, and whose number it has
given to a file of its own since, is neither used nor closed. See csrc/core/owned.c."""

from __future__ import annotations

import errno
import os
from typing import Any

from nvsandbox._core import ffi, lib
from nvsandbox.errors import SandboxStartError
from nvsandbox.native import own_error

STREAM: int = lib.SOCK_STREAM
PACKETS: int = lib.SOCK_SEQPACKET


class Owned:
    """A descriptor. Whoever has this object may close it."""

    def __init__(self, fd: int = -1) -> None:
        self._owned = ffi.new("struct nvs_owned *", {"fd": -1})
        if fd >= 0:
            lib.nvs_owned_take(self._owned, fd)

    @property
    def number(self) -> int:
        """-1 where it is closed, by us or by the program."""
        return int(self._owned.fd) if self.here else -1

    @property
    def here(self) -> bool:
        """Whether the number still stands for it."""
        return bool(lib.nvs_owned_here(self._owned))

    def close(self) -> None:
        """Idempotent."""
        lib.nvs_owned_close(self._owned)

    def shut(self) -> None:
        """Nothing more is sent: the other end sees the end of the connection."""
        lib.nvs_owned_shut(self._owned)

    def send(self, data: Any, timeout: float, passed: int = -1) -> int:
        """How many bytes were sent: at most ``len(data)``. Raises TimeoutError and other OSErrors; EBADF where it is
        ours no more."""
        sent = ffi.new("size_t *")
        _check(
            lib.nvs_owned_send(self._owned, ffi.from_buffer(data), len(data), passed, _milliseconds(timeout), sent),
            "sending to the worker",
        )
        return int(sent[0])

    def receive_into(self, buffer: Any, timeout: float) -> int:
        """How many bytes have come: 0 at the end of the connection. Raises as :meth:`send`."""
        got = ffi.new("size_t *")
        _check(
            lib.nvs_owned_receive(self._owned, ffi.from_buffer(buffer), len(buffer), _milliseconds(timeout), got),
            "receiving from the worker",
        )
        return int(got[0])


def _milliseconds(seconds: float) -> int:
    return max(0, min(int(seconds * 1000 + 0.999), 1 << 30))


def _check(number: int, doing: str) -> None:
    if number:
        raise OSError(number, f"{doing}: {os.strerror(number)}")


def pair(kind: int, step: str) -> tuple[Owned, Owned]:
    """Two sockets that are connected, each close-on-exec. Raises SandboxStartError of this `step`."""
    ours, theirs = Owned(), Owned()
    number = lib.nvs_owned_pair(kind, ours._owned, theirs._owned)
    if number:
        raise own_error(SandboxStartError(step, number, "", "cannot make a pair of sockets"))
    return ours, theirs


LOST = errno.EBADF
"""The errno of a descriptor that is ours no more."""

__all__ = ["LOST", "PACKETS", "STREAM", "Owned", "pair"]
