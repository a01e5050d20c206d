# SPDX-License-Identifier: Apache-2.0
"""What the C core and the system say, in Python's terms."""

from __future__ import annotations

import errno
from typing import Any

from nvsandbox._core import ffi, lib
from nvsandbox.errors import SandboxStartError


def printable(value: str) -> str:
    """One line for a terminal or a log: whoever chose it, nothing in it moves the cursor or begins another line."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in value)


def text(chars: Any) -> str:
    """A C string, for people: a worker may have written it. What is no UTF-8, or cannot be printed, is U+FFFD."""
    value: bytes = ffi.string(chars)
    return printable(value.decode("utf-8", "replace"))


def lines(chars: Any) -> list[str]:
    """A C string of several lines, likewise."""
    value: bytes = ffi.string(chars)
    return [printable(line) for line in value.decode("utf-8", "replace").split("\n") if line]


def start_error(error: Any) -> SandboxStartError:
    step = text(lib.nvs_core_step_name(error.step))
    return SandboxStartError(step, int(error.err), text(error.path), text(error.detail))


def own_error(error: SandboxStartError) -> SandboxStartError:
    """An error of this process, not of the worker, with what to do about it."""
    if error.errno != errno.EMFILE:
        return error
    remedy = "raise this process's limit of descriptors (ulimit -n), or see what holds so many open"
    return SandboxStartError(error.step, error.errno, error.path, f"{error.detail}; {remedy}")
