# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's management library (NVML) in a worker process with a private ``/dev``.

See :class:`nvml_isolated`. Importing this package touches neither NVML nor the system.
"""

import logging as _logging

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
