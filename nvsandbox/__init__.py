# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's management library (NVML) in a worker process with a private ``/dev``.

See :class:`nvml_isolated`. Importing this package touches neither NVML nor the system.
"""

import importlib as _importlib
import logging as _logging
import sys as _sys
import types as _types
import typing as _typing

try:
    from nvsandbox._core import ffi as _ffi
    from nvsandbox._core import lib as _lib
except ModuleNotFoundError as _error:
    if _error.name != "nvsandbox._core":
        raise
    # Python puts the folder that it is started in first on sys.path, and with it, in a checkout, what is not built.
    raise ImportError(
        f"{__path__[0]} is nvsandbox's source folder, in which nothing is built: run `make setup` there, or start "
        f"Python in another folder"
    ) from None
# A library prints nothing unless its program wants to read it: without a handler Python would write warnings to stderr.
_logging.getLogger("nvsandbox").addHandler(_logging.NullHandler())

__version__: str = _ffi.string(_lib.nvs_core_version()).decode()

__all__ = [
    "CallFailed",
    "CallTimeout",
    "DeviceNode",
    "LibraryNotFound",
    "NVMLSession",
    "SandboxClosed",
    "SandboxError",
    "SandboxStartError",
    "SandboxUnavailable",
    "StaleHandle",
    "WatchEvent",
    "WatchKind",
    "WorkerDied",
    "install",
    "nvml_isolated",
    "watch",
]

if _typing.TYPE_CHECKING:
    from nvsandbox.blocks import install, nvml_isolated
    from nvsandbox.devnodes import DeviceNode
    from nvsandbox.errors import (
        CallFailed,
        CallTimeout,
        LibraryNotFound,
        SandboxClosed,
        SandboxError,
        SandboxStartError,
        SandboxUnavailable,
        StaleHandle,
        WorkerDied,
    )
    from nvsandbox.session import NVMLSession
    from nvsandbox.watch import WatchEvent, WatchKind, watch

# Where each name is. They are imported when they are first asked for: pynvml and what goes with it take longer than
# `nvsandbox run` may, which needs none of it.
_PLACES = {
    "install": "blocks",
    "nvml_isolated": "blocks",
    "DeviceNode": "devnodes",
    "NVMLSession": "session",
    "WatchEvent": "watch",
    "WatchKind": "watch",
    "watch": "watch",
    "CallFailed": "errors",
    "CallTimeout": "errors",
    "LibraryNotFound": "errors",
    "SandboxClosed": "errors",
    "SandboxError": "errors",
    "SandboxStartError": "errors",
    "SandboxUnavailable": "errors",
    "StaleHandle": "errors",
    "WorkerDied": "errors",
}


def __getattr__(name: str) -> _typing.Any:
    if name in _PLACES:
        value = getattr(_importlib.import_module(f"nvsandbox.{_PLACES[name]}"), name)
        globals()[name] = value
        return value
    if not name.startswith("_"):
        try:
            return _importlib.import_module(f"nvsandbox.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"nvsandbox.{name}":
                raise
    raise AttributeError(f"module 'nvsandbox' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(_types.ModuleType):
    def __setattr__(self, name: str, value: object) -> None:
        # Python binds a submodule to its name when it is imported; this name is the class's.
        if name == "watch" and isinstance(value, _types.ModuleType):
            value = value.watch
        super().__setattr__(name, value)


_sys.modules[__name__].__class__ = _Package
