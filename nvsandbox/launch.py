# SPDX-License-Identifier: Apache-2.0
"""Starting a worker, down the isolation ladder."""

from __future__ import annotations

import logging
import resource
import signal
from collections.abc import Callable

from nvsandbox import _fast, devnodes, diagnose, roots
from nvsandbox import isolation as ladder
from nvsandbox.errors import (
    LibraryNotFound,
    SandboxError,
    SandboxStartError,
    SandboxUnavailable,
    WorkerDied,
    nvml_error,
)
from nvsandbox.options import Options
from nvsandbox.worker import ISOLATING, Worker

_log = logging.getLogger("nvsandbox")

_STACK_LOW = 128 << 10
"""Bytes of stack below which a program may not even start; 16 KiB are seen to be too few and 64 KiB to do."""

_NVML_SUCCESS = 0
_NVML_ERROR_DRIVER_NOT_LOADED = 9
_OF_NODES = frozenset({4, _NVML_ERROR_DRIVER_NOT_LOADED, 999})
"""What nvmlInit returns where it cannot open a node: no permission, driver not loaded, unknown."""

# A failure at one of these means that this isolation is not possible here; at another, that no isolation would help.
_ISOLATION_STEPS = frozenset(
    {
        "user namespace",
        "id map",
        "mount namespace",
        "propagation",
        "tmpfs on /dev",
        "base nodes",
        "NVIDIA nodes",
        "driver parameters",
        "capabilities",
        "no_new_privs",
        "Landlock",
        "seccomp",
        "self check",
        "verification",
    }
)


def start(options: Options, go_on: Callable[[], None], link: _fast.Link | None) -> Worker:
    """A worker at the first step of the ladder that works. `go_on` is called now and then meanwhile, and ends the start
    by raising.

    Raises SandboxUnavailable, SandboxStartError, LibraryNotFound, or the ``pynvml.NVMLError`` that nvmlInit returned.
    """
    if options.isolation == "mount" and not ladder.has_sys_admin():
        raise SandboxUnavailable(ladder.REMEDIES["mount"], (("mount", "no CAP_SYS_ADMIN"),))
    attempts: list[tuple[str, str]] = []
    cause: SandboxError | None = None
    for step in ladder.steps(options.isolation):
        try:
            worker = Worker(options, step, go_on, link)
        except LibraryNotFound:
            raise
        except SandboxStartError as error:
            if error.step not in _ISOLATION_STEPS:
                raise
            attempts.append((step, str(error)))
            _log.info("isolation %r is not possible here: %s", step, error)
            cause = error
            continue
        except WorkerDied as error:
            name_limits(error)
            # A filter around this process kills for a system call of this step; the next may do without it.
            if error.signal != signal.SIGSYS or options.isolation != "auto" or error.call != ISOLATING:
                raise
            attempts.append((step, f"{error}, by a seccomp filter of this process's for a system call that it needs"))
            _log.info("isolation %r is not possible here: %s", step, attempts[-1][1])
            cause = error
            continue
        if worker.init_result != _NVML_SUCCESS:
            hint = _hint(worker)  # as long as its /dev is there
            worker.stop()
            raise nvml_error(worker.init_result, hint)
        return worker
    tried = "; ".join(f"{step}: {reason}" for step, reason in attempts)
    raise SandboxUnavailable(
        f"isolation={options.isolation!r} is not possible here: {tried}", tuple(attempts)
    ) from cause


def name_limits(error: WorkerDied) -> None:
    """Adds to an error what may be behind it: too small a stack for the program's own start."""
    soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    if error.signal in (signal.SIGSEGV, signal.SIGKILL, signal.SIGBUS) and 0 <= soft < _STACK_LOW:
        error.args = (
            f"{error}; the limit of the stack is {soft} bytes (RLIMIT_STACK, ulimit -s), and a program needs some "
            f"{_STACK_LOW >> 10} KiB: raise it",
        )


def _hint(worker: Worker) -> str:
    hint = f"nvmlInit in {worker.library}, isolation {worker.isolation!r}"
    if worker.options.simulate is None and worker.init_result in _OF_NODES:
        dev_root = roots.dev_folder(worker.options.driver_root, worker.options.dev_root)
        try:
            nodes = [(str(node), node.major) for node in devnodes.seen_by(worker.pid) if "/nvidia-caps" not in node]
            why = diagnose.unusable_start(worker.pid, nodes, dev_root)
        except SandboxError:
            why = ""
        if why:
            return f"{hint}; {why}"
    if worker.init_result == _NVML_ERROR_DRIVER_NOT_LOADED:
        hint += "; the driver is not loaded, or its nodes cannot be used: see nvidia in /proc/devices, and the dev root"
    return hint
