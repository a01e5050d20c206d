# SPDX-License-Identifier: Apache-2.0
"""A worker's control connection: messages as in csrc/protocol.h, and what is wrong with them."""

from __future__ import annotations

import contextlib
import errno
import math
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from nvsandbox._core import ffi, lib
from nvsandbox.channels import SLICE_NS
from nvsandbox.errors import LibraryNotFound, SandboxStartError
from nvsandbox.native import start_error, text
from nvsandbox.process import PROGRAM, Process

START_LIMIT = 60.0
"""Seconds that a start may take. With eight GPUs and no persistence mode NVML's initialisation takes over ten."""

_ANSWERS = (lib.NVS_MSG_OPENED, lib.NVS_MSG_REFUSED)


class Control:
    """The caller's end of the connection to the worker in `process`."""

    def __init__(self, connection: socket.socket, process: Process) -> None:
        self.socket = connection
        self.process = process
        # Reentrant: a signal handler of the caller's may run, and call NVML, while its thread holds it.
        self.lock = threading.RLock()
        self._asked: dict[int, list[SandboxStartError]] = {}  # opens without an answer, and where a refusal goes
        self._next_id = 0

    def send(self, message: bytes, fd: int | None = None) -> None:
        try:
            if fd is None:
                self.socket.send(message)
            else:
                socket.send_fds(self.socket, [message], [fd])
        except OSError as error:
            if not self.process.wait_ended(1.0):
                raise SandboxStartError("control", error.errno or 0, "", "sending to the worker") from error
            # Its own last words tell more than our EPIPE: the reading of the answer finds them.

    def receive(
        self,
        expected: tuple[int, ...],
        deadline: float,
        doing: str,
        wait: Callable[[], object],
        pause: float = 0.1,
        step: str = "start",
    ) -> Any:
        """The worker's next message, which is of one of the `expected` types. Raises what a FAILED says, and past the
        deadline a SandboxStartError of this `step`. `wait` is called every `pause` seconds and may raise; where it
        returns something true, no message is waited for: None."""
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise SandboxStartError(
                    step,
                    errno.ETIMEDOUT,
                    "",
                    f"the worker was still {doing} after {START_LIMIT:g} s, the limit of a start",
                )
            self.socket.settimeout(min(left, pause))
            try:
                message = self.socket.recv(lib.NVS_MESSAGE_MAX)
                break
            except TimeoutError:
                if not self.process.ended():
                    if wait():
                        return None
                    continue
                # Something that this process has forked, and that we were not told of, holds the other end.
                message = self._last_words()
                break
            except ConnectionResetError:
                message = b""
                break
        if not message:
            self.process.wait_ended(1.0)
            raise self.process.death(doing)
        kinds = {
            lib.NVS_MSG_ISOLATED: "struct nvs_report",
            lib.NVS_MSG_READY: "struct nvs_report",
            lib.NVS_MSG_FAILED: "struct nvs_failed",
            lib.NVS_MSG_OPENED: "struct nvs_opened",
            lib.NVS_MSG_REFUSED: "struct nvs_opened",
        }
        head = ffi.new("struct nvs_message *")
        ffi.memmove(head, message, min(len(message), ffi.sizeof("struct nvs_message")))
        kind = kinds.get(head.type) if head.magic == lib.NVS_MAGIC else None
        if kind is None or len(message) != ffi.sizeof(kind):
            raise SandboxStartError(
                "hello", errno.EPROTO, str(PROGRAM), f"a message of {len(message)} bytes that this build does not know"
            )
        body = ffi.new(f"{kind} *")
        ffi.memmove(body, message, len(message))
        if head.type == lib.NVS_MSG_FAILED:
            raise self._failed(body)
        if head.type not in expected:
            wanted = " or ".join(str(number) for number in expected)
            raise SandboxStartError(
                "hello", errno.EPROTO, str(PROGRAM), f"message {head.type} where {wanted} was expected"
            )
        return body

    def _last_words(self) -> bytes:
        with contextlib.suppress(OSError):
            return self.socket.recv(lib.NVS_MESSAGE_MAX, socket.MSG_DONTWAIT)
        return b""

    def _failed(self, body: Any) -> SandboxStartError:
        if body.error.step != lib.NVS_STEP_LIBRARY:
            return start_error(body.error)
        tried = tuple(line for line in text(body.tried).split("\n") if line)
        return LibraryNotFound(int(body.error.err), text(body.error.path), text(body.error.detail), tried)

    def open_channel(self, kind: int, fd: int, size: int, wait: Callable[[], None]) -> None:
        """Sends the worker's end of a channel. Raises SandboxStartError if the worker refuses it, WorkerDied if it is
        gone, and what `wait` raises, which is called between waits."""
        while not self.lock.acquire(timeout=SLICE_NS / 1e9):
            wait()
        try:
            wait()
            self._next_id += 1
            mine = self._next_id
            message = ffi.new("struct nvs_open *")
            message.message.magic = lib.NVS_MAGIC
            message.message.type = lib.NVS_MSG_OPEN
            message.kind = kind
            message.id = mine
            message.size = size
            refusal: list[SandboxStartError] = []
            self._asked[mine] = refusal  # first: an open in a signal handler may read the answer
            self.send(bytes(ffi.buffer(message)), fd)

            def no_more() -> bool:
                wait()
                return mine not in self._asked

            # The answers come in order, but not always to who waits: an interrupted open leaves one behind, and
            # an open in a signal handler takes the one of the open that it interrupted, refusals included. Each comes
            # once, so that a worker that goes on answering does not keep us here.
            while mine in self._asked:
                answer = self.receive(_ANSWERS, math.inf, "opening a channel", no_more, SLICE_NS / 1e9)
                if answer is None:
                    break
                asked = self._asked.pop(answer.id, None)
                if asked is None:
                    raise SandboxStartError(
                        "channel",
                        errno.EPROTO,
                        str(PROGRAM),
                        f"the worker answers for channel {answer.id}, which is not asked for",
                    )
                if answer.message.type == lib.NVS_MSG_REFUSED:
                    asked.append(start_error(answer.error))
            if refusal:
                raise refusal[0]
        finally:
            self.lock.release()
