# SPDX-License-Identifier: Apache-2.0
"""The exceptions of the sandbox itself.

What NVML returns is raised as pynvml raises it (``pynvml.NVMLError_NotSupported`` and so on). What goes wrong around it
is a :class:`SandboxError`. Those that a call can meet are NVML errors as well, so that code that handles
``NVMLError`` for each metric goes on working when the sandbox fails under it.

All of them can be pickled and hashed; pynvml's own exceptions define ``__eq__`` alone and cannot be hashed.
"""

from __future__ import annotations

import os
import signal
from errno import ENOENT, ETIMEDOUT
from typing import Any

import pynvml

if not isinstance(getattr(pynvml, "NVMLError_Uninitialized", None), type):
    raise ImportError(
        f"pynvml is {pynvml!r}, without NVML's exceptions, which nvsandbox's are based on: is it a test's mock, or "
        f"another package's? Import nvsandbox before it is put there, or pip install --force-reinstall nvidia-ml-py",
        name="pynvml",
    )

__all__ = [
    "CallFailed",
    "CallTimeout",
    "LibraryNotFound",
    "SandboxClosed",
    "SandboxError",
    "SandboxStartError",
    "SandboxUnavailable",
    "StaleHandle",
    "WorkerDied",
]

INITIALISATION = "initialisation"
"""The step of a start in which NVML itself is loaded and initialised, as csrc/steps.h names it."""


def _rebuild(cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    # Not cls(*args): the constructors take what they make their message from, and NVMLError's __new__ takes a code.
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class SandboxError(Exception):
    """Root of the sandbox's own exceptions."""

    __module__ = "nvsandbox"

    def __reduce__(self) -> Any:
        return _rebuild, (type(self), self.args, dict(self.__dict__))

    def __str__(self) -> str:
        # NVMLError.__str__ looks its code up, over NVML if need be; ours say what they were given.
        return str(self.args[0]) if self.args else type(self).__name__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


class SandboxUnavailable(SandboxError):
    """No isolation of the kind that was asked for is possible here. The message names what is missing and what to do.

    ``attempts`` has, for each step of the isolation ladder that was tried, its name and why it failed.
    """

    __module__ = "nvsandbox"

    def __init__(self, message: str, attempts: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.attempts = attempts


class SandboxStartError(SandboxError):
    """The worker could not be started.

    ``step`` is the step of the start-up that failed, ``path`` the file that it was about ("" where none), ``errno`` the
    error number (0 where none applies) and ``detail`` the rest.
    """

    __module__ = "nvsandbox"

    def __init__(self, step: str, errno: int = 0, path: str = "", detail: str = "") -> None:
        reason = f": {os.strerror(errno)} (errno {errno})" if errno else ""
        text = detail or "failed"
        if not text.startswith((f"{step} ", f"{step}=")):  # "devices: devices=…" says nothing more
            text = f"{step}: {text}"
        super().__init__(f"{text}{f' [{path}]' if path else ''}{reason}")
        self.step = step
        self.errno = errno
        self.path = path
        self.detail = detail


class LibraryNotFound(SandboxStartError, pynvml.NVMLError_LibraryNotFound):  # type: ignore[misc]
    """There is no usable ``libnvidia-ml.so.1``. ``tried`` has each path, or name for the
    loader, that was tried and what was wrong with it.

    Also a ``pynvml.NVMLError_LibraryNotFound``.
    """

    __module__ = "nvsandbox"

    def __init__(self, errno: int, path: str, detail: str, tried: tuple[str, ...]) -> None:
        super().__init__("library", errno, path, detail)
        self.tried = tried
        text = f"no usable libnvidia-ml.so.1: {detail or 'none was found'}"
        if errno == ENOENT:
            text += f"{' ' if text.endswith('?') else '; '}simulated GPUs need none: simulate='h100x8'"
            if os.environ.get("NVSANDBOX_SIM") and not os.environ.get("NVSANDBOX_SIMULATE"):
                text += " (NVSANDBOX_SIM is for the simulator alone: what chooses it is NVSANDBOX_SIMULATE)"
        looked = "".join(f"\n  {line}" for line in tried)
        self.args = (text + (f"; tried:{looked}" if tried else ""),)


class SandboxClosed(SandboxError, pynvml.NVMLError_Uninitialized):  # type: ignore[misc]
    """The ``with`` block of this sandbox has ended, or its session was closed. Also an ``NVMLError_Uninitialized``."""

    __module__ = "nvsandbox"


class WorkerDied(SandboxError, pynvml.NVMLError_Unknown):  # type: ignore[misc]
    """The worker process ended while it was needed. Also an ``NVMLError_Unknown``.

    ``signal`` is the number of the signal that ended it, or None; ``status`` its exit status, or None (both None:
    somebody else reaped it), ``how`` says it in words; ``call`` the function that was running, or ""; ``sent``
    whether the call may have reached the worker, and may thus have been carried out.
    """

    __module__ = "nvsandbox"

    # Positional arguments only: pynvml's __new__ takes no others.
    def __init__(
        self, call: str, signal_number: int | None, status: int | None, why: str = "", sent: bool = True
    ) -> None:
        if why:
            how = why
        elif signal_number is not None:
            try:
                how = f"it was ended by {signal.Signals(signal_number).name}"
            except ValueError:
                how = f"it was ended by signal {signal_number}"
        elif status is not None:
            how = f"it exited with status {status}"
        else:
            how = "how it ended is unknown, since another part of this program reaped it"
        super().__init__(f"the NVML worker process is gone{f' (in {call})' if call else ''}: {how}")
        self.call = call
        self.how = how
        self.signal = signal_number
        self.status = status
        self.sent = sent


class CallTimeout(SandboxError, pynvml.NVMLError_Timeout):  # type: ignore[misc]
    """NVML did not answer in time. Also an ``NVMLError_Timeout``.

    ``call`` is the function, ``limit`` the limit in seconds that it ran past; ``sent`` is False for a call that was not
    made, since its deadline had passed before.
    """

    __module__ = "nvsandbox"

    def __init__(self, call: str, limit: float, sent: bool = True) -> None:
        super().__init__(
            f"{call} did not return within {limit:g} s; its worker process is being ended"
            if sent
            else f"{call} was not made: its deadline had passed"
        )
        self.call = call
        self.limit = limit
        self.sent = sent


class CallFailed(SandboxError, pynvml.NVMLError_Unknown):  # type: ignore[misc]
    """The sandbox could not bring the call to a worker: no new one could be started, or this process has no
    descriptors or memory left for it. Also an ``NVMLError_Unknown``.

    ``call`` is the function, which was not carried out; ``__cause__`` the SandboxError behind it.
    """

    __module__ = "nvsandbox"

    def __init__(self, call: str, cause: SandboxError) -> None:
        super().__init__(f"{call} was not made: {cause}")
        self.call = call


class StaleHandle(SandboxError, pynvml.NVMLError_InvalidArgument):  # type: ignore[misc]
    """A handle of a worker that is gone, of another sandbox, or of something that was freed.

    Also an ``NVMLError_InvalidArgument``. ``call`` is the function that was given it; it was not carried out.
    """

    __module__ = "nvsandbox"

    def __init__(self, call: str) -> None:
        super().__init__(
            f"{call}: this handle is not of the worker that runs now, or what it stood for was freed; get a new one "
            f"(handles do not outlive their sandbox)"
        )
        self.call = call


def is_hang(error: BaseException) -> bool:
    """Whether NVML did not answer in time, to a call or when it was initialised."""
    if isinstance(error, SandboxStartError):
        return (error.step, error.errno) == (INITIALISATION, ETIMEDOUT)
    return isinstance(error, CallTimeout)


def nvml_error(code: int, hint: str) -> Exception:
    """pynvml's exception for `code` with `hint` added to its text: same class name, a subclass of pynvml's class."""
    base = type(pynvml.NVMLError(code))
    text = str(base(code))

    def new(cls: type, *args: object) -> Any:
        return pynvml.NVMLError.__new__(cls, code)

    cls = type(
        base.__name__,
        (base,),
        {
            "__module__": base.__module__,
            "__new__": new,
            "__str__": lambda self: f"{text} ({hint})" if hint else text,
            "__hash__": lambda self: hash(code),
            "__reduce__": lambda self: (nvml_error, (code, hint)),
        },
    )
    error: Exception = cls(code)
    return error
