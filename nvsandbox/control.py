# SPDX-License-Identifier: Apache-2.0
"""A worker's control connection: what is sent and received. What may come, and when, is conversation.py's."""

from __future__ import annotations

import contextlib
import errno
import math
import time
from collections.abc import Callable
from typing import Any

from nvsandbox import threads
from nvsandbox._core import ffi, lib
from nvsandbox.channels import SLICE_NS
from nvsandbox.conversation import BrokenProtocol, Conversation
from nvsandbox.errors import SandboxStartError
from nvsandbox.native import start_error
from nvsandbox.owned import LOST, Owned
from nvsandbox.process import Process

START_LIMIT = 60.0
"""Seconds that a start may take. With eight GPUs and no persistence mode NVML's initialisation takes over ten."""

_PACKETS = {
    errno.EBADMSG: "a packet of no bytes",
    errno.EMSGSIZE: f"a message of more than {lib.NVS_MESSAGE_MAX} bytes, that this build does not know",
}
_SEND_LIMIT = 1.0  # a worker reads what it is sent at once: these are a few packets
_END_LIMIT = 0.2  # from the end of a connection to the end of the process that had it


class Control:
    """The caller's end of the connection to the worker in `process`."""

    def __init__(self, connection: Owned, process: Process) -> None:
        self.connection = connection
        self.process = process
        self.conversation = Conversation()
        # Reentrant: a signal handler of the caller's may run, and call NVML, while its thread holds it.
        self.lock = threads.RLock()
        self._asked: dict[int, list[SandboxStartError]] = {}  # opens without an answer, and where a refusal goes
        self._next_id = 0

    def send(self, message: bytes, fd: int = -1) -> None:
        try:
            self.connection.send(message, _SEND_LIMIT, fd)
        except OSError as error:
            if error.errno == LOST:
                raise self._lost() from error
            if not self.process.wait_ended(_END_LIMIT):
                raise SandboxStartError("control", error.errno or 0, "", "sending to the worker") from error
            # Its own last words tell more than our EPIPE: the reading of the answer finds them.

    def go(self) -> None:
        """Has the worker load NVML. From here on its word decides nothing."""
        self.conversation.went()
        self.send(bytes(ffi.buffer(ffi.new("struct nvs_message *", [lib.NVS_MAGIC, lib.NVS_MSG_GO]))))

    def stop(self) -> None:
        """Asks the worker to end: by STOP, and by the end of the connection."""
        message = ffi.new("struct nvs_message *", [lib.NVS_MAGIC, lib.NVS_MSG_STOP])
        with contextlib.suppress(OSError):
            self.connection.send(bytes(ffi.buffer(message)), 0.1)
        self.shut()

    def shut(self) -> None:
        """The worker sees the end of the connection."""
        self.connection.shut()

    def close(self) -> None:
        """Gives the descriptor back. Idempotent."""
        self.connection.close()

    def receive(
        self,
        deadline: float,
        doing: str,
        wait: Callable[[], object],
        pause: float = 0.1,
        step: str = "start",
    ) -> Any:
        """The worker's next message. Raises what a FAILED says, BrokenProtocol, WorkerDied, and past the deadline a
        SandboxStartError of this `step`. `wait` is called every `pause` seconds and may raise; where it returns
        something true, no message is waited for: None."""
        buffer = bytearray(lib.NVS_MESSAGE_MAX)
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise SandboxStartError(
                    step,
                    errno.ETIMEDOUT,
                    "",
                    f"the worker was still {doing} after {START_LIMIT:g} s, the limit of a start",
                )
            try:
                length = self.connection.receive_into(buffer, min(left, pause))
                break
            except TimeoutError:
                if not self.process.ended():
                    if wait():
                        return None
                    continue
                # Something that this process has forked, and that we were not told of, holds the other end.
                length = self._last_words(buffer)
                break
            except ConnectionResetError:
                # It left something unread, such as a START that it did not come to. What it had said is still there.
                length = self._last_words(buffer)
                break
            except InterruptedError:
                continue
            except OSError as error:
                if error.errno == LOST:
                    raise self._lost() from error
                what = _PACKETS.get(error.errno or 0, f"nothing that can be read: {error.strerror}")
                raise self.conversation.broken(what) from error
        if length == 0:
            if not self.process.wait_ended(_END_LIMIT):
                raise self.conversation.broken("it closed its control connection and goes on")
            raise self.process.death(doing)
        return self.conversation.take(memoryview(buffer)[:length])

    def _lost(self) -> BrokenProtocol:
        return self.conversation.broken("another part of this program has closed its control connection")

    def _last_words(self, buffer: bytearray) -> int:
        try:
            return self.connection.receive_into(buffer, 0)
        except OSError:
            return 0

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
                answer = self.receive(math.inf, "opening a channel", no_more, SLICE_NS / 1e9)
                if answer is None:
                    break
                asked = self._asked.pop(answer.id, None)
                if asked is None:
                    raise self.conversation.broken(f"an answer for channel {answer.id}, which is not asked for")
                if answer.message.type == lib.NVS_MSG_REFUSED:
                    asked.append(start_error(answer.error))
            if refusal:
                raise refusal[0]
        finally:
            self.lock.release()
