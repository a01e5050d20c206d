# SPDX-License-Identifier: Apache-2.0
"""A worker's process: its start, and its end as the kernel tells it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from nvsandbox import threads
from nvsandbox._core import ffi, lib
from nvsandbox.errors import SandboxClosed, WorkerDied
from nvsandbox.forks import this_process
from nvsandbox.native import own_error, start_error
from nvsandbox.owned import Owned

PROGRAM = Path(__file__).parent / "nvsandbox-worker"


def _environment(simulated: str | None) -> list[bytes]:
    """The worker's environment: the caller's, less what would have the loader put other code into it."""
    kept = []
    for name, value in os.environb.items():
        # LD_LIBRARY_PATH is looked through last (roots.py): the CUDA toolkit's stub library often stands in it.
        if name.startswith((b"LD_", b"NVSANDBOX_SIM")) or name == b"LC_ALL":
            continue
        kept.append(name + b"=" + value)
    kept.append(b"LC_ALL=C")  # what a library reads or writes as text is the same for every caller
    if simulated is not None:
        kept.append(b"NVSANDBOX_SIM=" + simulated.encode())
    return kept


class Process:
    """A worker's process, from :meth:`spawn` on. No locks: a signal handler of the caller's may come here at any time.

    Where the kernel has all of pidfds (Linux 5.4, and no filter of a container's that refuses some), signals and waits
    go by one, which stands for this process and no other. By its number alone, signals are sent as long as it has not
    been reaped here, for until then the number is its own; but a program that reaps all its children (``os.wait()``, an
    ignored SIGCHLD) may have done it before us."""

    def __init__(self) -> None:
        self.owner = this_process()
        self.pid = 0
        self.why = ""  # it is ended, if it is we who end it
        self.closing = False
        """Whether it is ended because its sandbox is closed, and not for a fault of its own."""
        self._death: tuple[int | None, int | None] | None = None  # signal, status
        self._pidfd: Owned | None = None
        self._kill_pipe: Owned | None = None
        self.out_of_reach = False
        """Whether this process may not send it signals: it has dropped the privileges with which it started it."""
        self._reaped = threads.allocate_lock()  # taken by the thread that reaps it
        self._reaping_over = False
        self._released = False
        self._closed = threads.allocate_lock()

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
            self.pid = int(pid[0])  # whatever else goes wrong
        if result != 0:
            raise own_error(start_error(error))
        pidfd = self._open_pidfd()
        self._pidfd = None if pidfd is None else Owned(pidfd)

    def _open_pidfd(self) -> int | None:
        try:
            pidfd = os.pidfd_open(self.pid)
        except (OSError, AttributeError):
            return None
        try:
            # They came one by one: signals with Linux 5.1, descriptors with 5.3, waits with 5.4. A wait that is refused
            # looks like a worker that has ended.
            signal.pidfd_send_signal(pidfd, 0)
            os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except (ProcessLookupError, ChildProcessError):
            pass  # it has ended, and a program that reaps all its children came first
        except (OSError, AttributeError):  # nor does each Python know all of them
            os.close(pidfd)
            return None
        return pidfd

    def open_kill_pipe(self) -> int:
        """The worker's end of a pipe, for the caller to hand over and close. A byte in it has the kernel send the
        worker SIGKILL in the worker's own name (csrc/worker/main.c), for which this process needs no privilege. -1
        where there can be none, such as without ``/proc``.

        Both ends read and write: then neither the worker's end nor ours is the last, whose closing would count as a
        byte, and writing never raises SIGPIPE. Ours does not block, whatever a library does with the other."""
        ends: list[int] = []
        try:
            ends += os.pipe()
            path = f"/proc/self/fd/{ends[0]}"
            theirs = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                self._kill_pipe = Owned(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
            except OSError:
                os.close(theirs)
                raise
            return theirs
        except OSError:
            return -1
        finally:
            for end in ends:
                os.close(end)

    def ended(self) -> bool:
        """Whether it has ended; its status is taken the first time that it has."""
        if self._death is not None:
            return True
        if this_process() != self.owner:
            return False
        try:
            # The status first and the reaping after it: an exception from a signal handler in between loses nothing.
            status = os.waitid(*self._identity(), os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except OSError:  # reaped by somebody else; or by another thread, which has noted it before
            death: tuple[int | None, int | None] = (None, None)
        else:
            if status is None:
                return False
            by_signal = status.si_code != os.CLD_EXITED
            death = (status.si_status, None) if by_signal else (None, status.si_status)
        if self._death is None:
            self._death = death
        # Once, for by then the number may be that of another child.
        if self._reaped.acquire(blocking=False):
            with contextlib.suppress(OSError):
                os.waitid(*self._identity(), os.WEXITED | os.WNOHANG)
            self._reaping_over = True
            if self._released:
                self._close()
        return True

    @property
    def pidfd(self) -> int:
        """-1 where there is none, or where the program has closed it."""
        pidfd = self._pidfd
        return -1 if pidfd is None else pidfd.number

    def _identity(self) -> tuple[int, int]:
        """For waitid()."""
        pidfd = self.pidfd
        return (os.P_PID, self.pid) if pidfd < 0 else (os.P_PIDFD, pidfd)

    def death(self, name: str) -> WorkerDied | SandboxClosed:
        """How it ended, while `name` was called."""
        if self.closing:
            return SandboxClosed(f"{name}: the sandbox was closed before this call was done")
        if self._death is None:
            return WorkerDied(name, None, None, self.why or "it is being ended")
        return WorkerDied(name, *self._death, self.why)

    def wait_ended(self, limit: float) -> bool:
        """Waits until it has ended, at most `limit` seconds. Whether it has."""
        return not wait_all([self], limit)

    def send(self, number: int) -> None:
        """Sends it a signal, if it is still there. For the thread that ends it, which also releases it."""
        if self.ended():
            return
        try:
            pidfd = self.pidfd
            if pidfd >= 0:
                signal.pidfd_send_signal(pidfd, number)
            else:
                os.kill(self.pid, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            self.out_of_reach = True
            pipe = -1 if self._kill_pipe is None else self._kill_pipe.number
            if number == signal.SIGKILL and pipe >= 0:
                with contextlib.suppress(OSError):
                    os.write(pipe, b"\0")

    def release(self) -> None:
        """Gives up what it takes to follow the process: at once, or as soon as the thread that reaps it has done so,
        which other threads that know of the end already may be ahead of."""
        self._released = True
        if self._reaping_over or this_process() != self.owner:
            self._close()

    def _close(self) -> None:
        if self._closed.acquire(blocking=False):  # once, whoever comes first
            descriptors = self._pidfd, self._kill_pipe
            self._pidfd = self._kill_pipe = None
            for descriptor in descriptors:
                if descriptor is not None:
                    descriptor.close()


def wait_all(processes: Iterable[Process], limit: float) -> list[Process]:
    """Waits until all have ended, at most `limit` seconds. Those that have not."""
    end = time.monotonic() + limit
    while True:
        left = [process for process in processes if not process.ended()]
        seconds = end - time.monotonic()
        if not left or seconds <= 0:
            return left
        numbers = [process.pidfd for process in left]
        pause = 0.1 if min(numbers) >= 0 else 0.005
        lib.nvs_await_any(numbers, len(numbers), max(1, int(min(seconds, pause) * 1000)))
        processes = left
