# SPDX-License-Identifier: Apache-2.0
"""The parent that stays for ``nvsandbox run --report``: for the program's sake as little in the way as can be.

The program is in this process's group and session, so that what a terminal sends (Ctrl-C, Ctrl-Z, a new size) reaches
it by itself, and it may take the terminal as if it had been started without us. What is sent to this process alone is
passed on. When the program is stopped so are we, for the shell looks at us.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass

from nvsandbox import isolation as ladder
from nvsandbox import tree
from nvsandbox._core import ffi, lib
from nvsandbox.run import RunError

_KEYBOARD = {signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGWINCH}
_OURS = {signal.SIGTTIN, signal.SIGTTOU}  # blocked, so that a report from the background is written
_CANNOT = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}


@dataclass(frozen=True)
class Outcome:
    """How it went. `isolation` is None when the program never began; then `status` is nvsandbox-run's. `difference` is
    None where there was no private ``/dev``."""

    status: int
    signal: int | None
    isolation: str | None
    difference: tree.Difference | None


def watch(execute: Callable[[int], None]) -> Outcome:
    """Forks a process that calls `execute` with the descriptor of its end of a socket, and stays until that ends.

    Raises RunError where the process cannot be made.
    """
    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        raise RunError(f"no connection to the program: {error.strerror}") from error
    handled = signal.valid_signals() - _CANNOT - _FAULTS
    with ours:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*handled, signal.SIGCHLD})
        child_handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            pid = os.fork()
        except OSError as error:
            theirs.close()
            raise RunError(f"cannot make a process: {error.strerror}") from error
        if pid == 0:
            signal.signal(signal.SIGCHLD, child_handler)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            execute(theirs.fileno())
        theirs.close()
        return _stay(pid, ours, handled)


def _stay(pid: int, connection: socket.socket, handled: set[signal.Signals]) -> Outcome:
    isolation, folders = _ready(connection)
    try:
        before = tree.picture(folders[1]) if folders else None
        if isolation is not None:
            # It may have ended meanwhile, by a signal.
            with contextlib.suppress(OSError):
                connection.send(b"g")
        status = _wait(pid, handled)
        if not _was_executed(connection):
            isolation = None
        difference = None if before is None else tree.compare(before, tree.picture(folders[1]))
    finally:
        for fd in folders:
            os.close(fd)
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    return Outcome(128 + number if number else os.WEXITSTATUS(status), number, isolation, difference)


def _was_executed(connection: socket.socket) -> bool:
    """Asked at the end. The program does not have the connection, so that nothing is there to be read then."""
    try:
        return not connection.recv(1, socket.MSG_DONTWAIT)
    except OSError:
        return True


def _ready(connection: socket.socket) -> tuple[str | None, list[int]]:
    """The step of the ladder that the program runs at, and its mount namespace and ``/dev``, both open: as long as the
    first is, what is mounted in the other stays. None when the process ended before."""
    size = ffi.sizeof("struct nvs_run_ready")
    data, fds, _, _ = socket.recv_fds(connection, size, 2)
    if len(data) != size:
        return None, fds
    ready = ffi.from_buffer("struct nvs_run_ready *", data)
    steps = {code: name for name, code in ladder.CODES.items()}
    if ready.magic != lib.NVS_RUN_MAGIC or ready.isolation not in steps:
        return None, fds
    return steps[ready.isolation], fds if len(fds) == 2 else []


def _wait(pid: int, handled: set[signal.Signals]) -> int:
    """Until the process ends; its status as waitpid() has it."""
    while True:
        got = signal.sigwaitinfo({*handled, signal.SIGCHLD})
        number = got.si_signo
        if number == signal.SIGCHLD:
            while True:
                ended, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
                if ended == 0:
                    break
                if not os.WIFSTOPPED(status):
                    return status
                os.kill(os.getpid(), signal.SIGSTOP)
                # Continued, by somebody who may have meant us alone.
                os.kill(pid, signal.SIGCONT)
        elif number in _OURS or (number in _KEYBOARD and got.si_code > 0):
            continue  # the terminal has sent it to the program as well
        else:
            os.kill(pid, number)
