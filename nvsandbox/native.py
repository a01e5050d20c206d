# SPDX-License-Identifier: Apache-2.0
"""What the C core and the system say, in Python's terms."""

from __future__ import annotations

import errno
import socket
from typing import Any

from nvsandbox._core import ffi, lib
from nvsandbox.errors import SandboxStartError


def text(chars: Any) -> str:
    value: bytes = ffi.string(chars)
    return value.decode("utf-8", "replace")


def start_error(error: Any) -> SandboxStartError:
    step = text(lib.nvs_core_step_name(error.step))
    return SandboxStartError(step, int(error.err), text(error.path), text(error.detail))


def own_error(error: SandboxStartError) -> SandboxStartError:
    """An error of this process, not of the worker, with what to do about it."""
    if error.errno != errno.EMFILE:
        return error
    remedy = "raise this process's limit of descriptors (ulimit -n), or see what holds so many open"
    return SandboxStartError(error.step, error.errno, error.path, f"{error.detail}; {remedy}")


def socketpair(kind: socket.SocketKind, step: str) -> tuple[socket.socket, socket.socket]:
    try:
        return socket.socketpair(socket.AF_UNIX, kind)
    except OSError as error:
        raise own_error(SandboxStartError(step, error.errno or 0, "", "cannot make a pair of sockets")) from error
