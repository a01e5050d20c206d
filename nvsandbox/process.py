# SPDX-License-Identifier: Apache-2.0
"""A worker's process: its start, and its end as the kernel tells it."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from pathlib import Path

from nvsandbox._core import ffi, lib
from nvsandbox.errors import SandboxClosed, WorkerDied
from nvsandbox.native import own_error, start_error

PROGRAM = Path(__file__).parent / "nvsandbox-worker"


def _environment(simulated: str | None) -> list[bytes]:
    """The worker's environment: the caller's, less what would have the loader put other code into it."""
    kept = []
    for name, value in os.environb.items():
        # LD_LIBRARY_PATH is looked through last (roots.py): the CUDA toolkit's stub library often stands in it.
        if name.startswith((b"LD_", b"NVSANDBOX_SIM")):
            continue
        kept.append(name + b"=" + value)
    if simulated is not None:
        kept.append(b"NVSANDBOX_SIM=" + simulated.encode())
    return kept


class Process:
    """A worker's process, from :meth:`spawn` on."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.pid = 0
        self.why = ""  # it is ended, if it is we who end it
        self.closing = False
        """Whether it is ended because its sandbox is closed, and not for a fault of its own."""
        self._lock = threading.RLock()  # reentrant, for a signal handler of the caller's may come here too
        self._death: tuple[int | None, int | None] | None = None  # signal, status
        self._pidfd: int | None = None

    def spawn(self, simulated: str | None, control: int) -> None:
        """Starts the program, with the descriptor `control` as its control connection. Raises SandboxStartError."""
        environment = _environment(simulated)
        keep = [ffi.new("char[]", entry) for entry in environment]
        envp = ffi.new("char *[]", [*keep, ffi.NULL])
        pid = ffi.new("int32_t *")
        error = ffi.new("struct nvs_error *")
        try:
            result = lib.nvs_spawn(os.fsencode(PROGRAM), envp, control, pid, error)
        finally:
            self.pid = int(pid[0])  # there is one even if Ctrl-C came meanwhile
        if result != 0:
            raise own_error(start_error(error))
        self._pidfd = self._open_pidfd()

    def _open_pidfd(self) -> int | None:
        try:
            return os.pidfd_open(self.pid)
        except (OSError, AttributeError):  # Linux before 5.3, or refused by a container's seccomp profile
            return None

    def ended(self) -> bool:
        """Whether it has ended; its status is taken the first time that it has."""
        with self._lock:
            if self._death is not None:
                return True
            if os.getpid() != self.owner:
                return False
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                self._death = (None, None)
                return True
            if pid == 0:
                return False
            if os.WIFSIGNALED(status):
                self._death = (os.WTERMSIG(status), None)
            else:
                self._death = (None, os.WEXITSTATUS(status))
            return True

    def death(self, name: str) -> WorkerDied | SandboxClosed:
        """How it ended, while `name` was called."""
        if self.closing:
            return SandboxClosed(f"{name}: the sandbox was closed by another thread before this call was done")
        if self._death is None:
            return WorkerDied(name, None, None, self.why or "it is being ended")
        return WorkerDied(name, *self._death, self.why)

    def wait_ended(self, limit: float) -> bool:
        """Waits until the it has ended, at most `limit` seconds. Whether it has."""
        end = time.monotonic() + limit
        while not self.ended():
            left = end - time.monotonic()
            if left <= 0:
                return False
            pidfd = self._pidfd
            if pidfd is not None:
                poller = select.poll()
                poller.register(pidfd, select.POLLIN)
                poller.poll(max(1, int(min(left, 0.1) * 1000)))
            else:
                time.sleep(min(left, 0.005))
        return True

    def send(self, number: int) -> bool:
        """Sends it a signal, if it is still there. True."""
        # Not reaped yet, so that the number is still this process's.
        with self._lock:
            if self._death is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, number)
        return True

    def release(self) -> None:
        """Gives up what it takes to follow the process."""
        pidfd, self._pidfd = self._pidfd, None
        if pidfd is not None:
            os.close(pidfd)
