# SPDX-License-Identifier: Apache-2.0
"""Any program in the sandbox: what ``nvsandbox run`` executes in its own place.

Its partner is csrc/run. The plan of csrc/protocol.h goes there in a sealed memory file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from nvsandbox import isolation as ladder
from nvsandbox import packets, roots, simulate, surroundings
from nvsandbox._core import ffi, lib
from nvsandbox.options import Options

PROGRAM = Path(__file__).parent / "nvsandbox-run"

EXIT_FAILED = 125
"""nvsandbox itself failed: wrong options, no sandbox. The three are as GNU env, timeout and nohup have them."""
EXIT_CANNOT_RUN = 126
EXIT_NOT_FOUND = 127

_MFD_NOEXEC_SEAL = 8  # Linux 6.3; asked for, since sysctl vm.memfd_noexec=2 refuses a file without it


class RunError(Exception):
    """The program was not started. ``exit_code`` is the status to end with."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True)
class Run:
    """A program to be run: the file, its arguments from argv[0] on, its environment, and how it is isolated."""

    file: bytes
    arguments: tuple[bytes, ...]
    environment: tuple[bytes, ...]
    options: Options
    lockdown: bool
    keep_propagation: bool
    simulation: str | None
    minors: tuple[int, ...] | None


def prepare(options: Options, command: Sequence[str], lockdown: bool = False, keep_propagation: bool = False) -> Run:
    """Looks up everything that can be looked up before the sandbox. With `keep_propagation` /dev alone is private: what
    the program mounts elsewhere reaches the host, and the other way round.

    Raises RunError, and ValueError for options that do not go together.
    """
    if keep_propagation:
        if lockdown:
            raise ValueError(
                "keep_propagation= and lockdown= are mutually exclusive: expected one, for lockdown refuses all mounts"
            )
        if options.isolation not in ("auto", "mount"):
            raise ValueError(
                f"keep_propagation= is for the step mount, the only one at which a program may mount: expected "
                f"isolation='auto' or 'mount', not {options.isolation!r}"
            )
        options = replace(options, isolation="mount")
    if options.isolation == "mount" and not ladder.has_sys_admin():
        raise RunError(ladder.REMEDIES["mount"])
    minors = _minors(options)
    simulation = options.simulate
    if simulation is not None and minors is not None:
        simulation = simulate.parse(simulation).with_minors(list(minors))
    environment = surroundings.environment(surroundings.initial(), options, simulation)
    arguments = tuple(os.fsencode(argument) for argument in command)
    tool = surroundings.driver_tool(options.driver_root, arguments[0])
    file = tool or find(arguments[0], surroundings.value(environment, b"PATH"))
    return Run(file, arguments, tuple(environment), options, lockdown, keep_propagation, simulation, minors)


def _minors(options: Options) -> tuple[int, ...] | None:
    if options.devices is None:
        return None
    minors = []
    for device in options.devices:
        minor = device if isinstance(device, int) else roots.device_minor(device)
        if minor is None:
            raise RunError(
                f"devices={device!r} is not listed by the driver in /proc/driver/nvidia/gpus; minor numbers (0 for "
                f"/dev/nvidia0) always work"
            )
        minors.append(minor)
    return tuple(minors)


def find(name: bytes, path: bytes | None) -> bytes:
    """The file that the shell would execute for `name`. `path` is PATH, None where that is not set.

    Raises RunError with 127 where there is none, and 126 where there is but it cannot be executed.
    """
    shown = repr(os.fsdecode(name))
    if b"/" in name:
        problem = _problem(name)
        if problem is not None:
            raise RunError(f"{shown} {problem[0]}", problem[1])
        return name
    if path is None:
        path = os.fsencode(os.confstr("CS_PATH") or "/bin:/usr/bin")
    worst = None
    # An empty element means the working folder, as ever.
    for folder in path.split(b":") if name else ():
        candidate = os.path.join(folder or b".", name)
        problem = _problem(candidate)
        if problem is None:
            return candidate
        if problem[1] == EXIT_CANNOT_RUN and worst is None:
            worst = f"{os.fsdecode(candidate)!r} {problem[0]}"
    if worst is not None:
        raise RunError(worst, EXIT_CANNOT_RUN)
    where = "PATH is empty" if path == b"" else f"looked in PATH: {os.fsdecode(path)}"
    raise RunError(f"{shown}: command not found ({where})", EXIT_NOT_FOUND)


def _problem(file: bytes) -> tuple[str, int] | None:
    try:
        os.stat(file)
    except (FileNotFoundError, NotADirectoryError):
        return "does not exist", EXIT_NOT_FOUND
    except OSError as error:
        return f"cannot be looked at: {error.strerror}", EXIT_CANNOT_RUN
    if os.path.isdir(file):
        return "is a folder, not a program", EXIT_CANNOT_RUN
    if not os.access(file, os.X_OK, effective_ids=True):
        return "is not executable", EXIT_CANNOT_RUN
    return None


def plan(run: Run, *, as_json: bool = False, report: int = -1) -> bytes:
    """The plan as csrc/run reads it. `report` is the descriptor of a socket to a parent, or -1."""
    # The step is the first of the ladder; the libraries do not matter, for the program finds its own.
    steps = ladder.steps(run.options.isolation)
    start = packets.start(run.options, steps[0], run.minors, run.simulation, [roots.LIBRARY])
    environment = b"".join(entry + b"\0" for entry in run.environment)
    header = ffi.new("struct nvs_run *")
    header.magic = lib.NVS_RUN_MAGIC
    header.flags = (
        (lib.NVS_RUN_LOCKDOWN if run.lockdown else 0)
        | (lib.NVS_RUN_KEEP_PROPAGATION if run.keep_propagation else 0)
        | (lib.NVS_RUN_JSON if as_json else 0)
        | (lib.NVS_RUN_DEBUG if packets.debugging() else 0)
    )
    header.steps = sum(1 << ladder.CODES[step] for step in steps)
    header.report = report
    header.start_len = len(start)
    header.environment_len = len(environment)
    return bytes(ffi.buffer(header)) + start + environment


def _sealed(content: bytes) -> int:
    """A memory file that nobody can change."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        fd = os.memfd_create("nvsandbox-plan", flags | _MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        fd = os.memfd_create("nvsandbox-plan", flags)
    _write(fd, content)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return fd


def _write(fd: int, content: bytes) -> None:
    """Also where RLIMIT_FSIZE, which is about files on disks, is lower than what a memory file needs."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits[1], limits[1]))
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def become(run: Run, *, as_json: bool = False, report: int = -1) -> NoReturn:
    """Executes the program in place of this process. Returns only by raising RunError."""
    try:
        fd = _sealed(plan(run, as_json=as_json, report=report))
        os.set_inheritable(fd, True)
    except OSError as error:
        raise RunError(f"cannot hand over what to run: {error.strerror}") from error
    # Python has these ignored, and what they were before it cannot tell.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(PROGRAM, [b"nvsandbox-run", str(fd).encode(), run.file, *run.arguments], {})
    except OSError as error:
        if error.errno == errno.E2BIG:
            raise RunError("the arguments are too long for the kernel", EXIT_CANNOT_RUN) from error
        raise RunError(f"{PROGRAM} cannot be executed: {error.strerror}; reinstall nvsandbox") from error
