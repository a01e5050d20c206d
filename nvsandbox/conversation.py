# SPDX-License-Identifier: Apache-2.0
"""What a worker may say, and when: the control protocol of csrc/protocol.h as a state machine.

Until its isolation is proved a worker is this package's own code, and what it says of a step that failed decides
whether the next step of the ladder is tried. From GO on it runs a library's code, and whatever comes may be that
library's: NVML's own failures, and answers to what was asked, are taken. Everything else is a broken protocol, which
condemns the worker and decides nothing.
"""

from __future__ import annotations

import enum
import errno
from typing import Any

from nvsandbox._core import ffi, lib
from nvsandbox.errors import LibraryNotFound, SandboxStartError
from nvsandbox.native import lines, start_error, text
from nvsandbox.process import PROGRAM


class State(enum.Enum):
    """Of the conversation, by what comes next."""

    ISOLATING = enum.auto()
    """START was sent: ISOLATED, or what failed."""
    LOADING = enum.auto()
    """GO was sent: READY, or why NVML could not be loaded or initialised."""
    SERVING = enum.auto()
    """READY has come: answers to OPENs that were sent, and FAILED as last words."""
    BROKEN = enum.auto()
    """Something else has come. Nothing is read any more."""


_BODIES = {
    lib.NVS_MSG_ISOLATED: "struct nvs_report",
    lib.NVS_MSG_READY: "struct nvs_report",
    lib.NVS_MSG_FAILED: "struct nvs_failed",
    lib.NVS_MSG_OPENED: "struct nvs_opened",
    lib.NVS_MSG_REFUSED: "struct nvs_opened",
}
_LEGAL = {
    State.ISOLATING: {lib.NVS_MSG_ISOLATED, lib.NVS_MSG_FAILED},
    State.LOADING: {lib.NVS_MSG_READY, lib.NVS_MSG_FAILED},
    State.SERVING: {lib.NVS_MSG_OPENED, lib.NVS_MSG_REFUSED, lib.NVS_MSG_FAILED},
    State.BROKEN: set(),
}
_BEFORE_GO = set(range(lib.NVS_STEP_HELLO, lib.NVS_STEP_VERIFY))
_OF_NVML = {lib.NVS_STEP_LIBRARY, lib.NVS_STEP_INIT, lib.NVS_STEP_CHANNEL}
_FAILURES = {State.ISOLATING: _BEFORE_GO, State.LOADING: _OF_NVML, State.SERVING: _OF_NVML}
"""The steps of which a FAILED may speak."""

_AFTER = {lib.NVS_MSG_ISOLATED: State.ISOLATING, lib.NVS_MSG_READY: State.SERVING}


class BrokenProtocol(SandboxStartError):
    """The worker said what no worker says."""

    __module__ = "nvsandbox"

    def __init__(self, what: str) -> None:
        super().__init__("hello", errno.EPROTO, str(PROGRAM), what)


class Conversation:
    """What has been said so far, and so what may come."""

    def __init__(self) -> None:
        self.state = State.ISOLATING

    def went(self) -> None:
        """GO is being sent: the caller has proved the isolation for itself."""
        if self.state is not State.ISOLATING:
            raise AssertionError(f"GO in state {self.state.name}")
        self.state = State.LOADING

    def broken(self, what: str) -> BrokenProtocol:
        """Nothing of this worker is believed any more."""
        self.state = State.BROKEN
        return BrokenProtocol(what)

    def take(self, message: bytes | memoryview) -> Any:
        """The body of a message. Raises what a FAILED says, and BrokenProtocol for what may not come now."""
        head = ffi.new("struct nvs_message *")
        ffi.memmove(head, message, min(len(message), ffi.sizeof("struct nvs_message")))
        kind = _BODIES.get(head.type) if head.magic == lib.NVS_MAGIC else None
        if kind is None or len(message) != ffi.sizeof(kind):
            raise self.broken(f"a message of {len(message)} bytes that this build does not know")
        if head.type not in _LEGAL[self.state]:
            raise self.broken(f"message {head.type} while {self.state.name.lower()}, where it may not come")
        body = ffi.new(f"{kind} *")
        ffi.memmove(body, message, len(message))
        if head.type == lib.NVS_MSG_FAILED:
            if body.error.step not in _FAILURES[self.state]:
                step = text(lib.nvs_core_step_name(body.error.step))
                raise self.broken(f"a failure of the step {step!r} while {self.state.name.lower()}, when that is over")
            raise _failed(body)
        self.state = _AFTER.get(head.type, self.state)
        return body


def _failed(body: Any) -> SandboxStartError:
    if body.error.step != lib.NVS_STEP_LIBRARY:
        return start_error(body.error)
    return LibraryNotFound(
        int(body.error.err), text(body.error.path), text(body.error.detail), tuple(lines(body.tried))
    )


__all__ = ["BrokenProtocol", "Conversation", "State"]
