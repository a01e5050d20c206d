# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's management library (NVML) in a worker process with a private ``/dev``.

See :class:`nvml_isolated`. Importing this package touches neither NVML nor the system.
"""

from nvsandbox._core import ffi as _ffi
from nvsandbox._core import lib as _lib
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
from nvsandbox.session import DeviceNode, NVMLSession, install, nvml_isolated
from nvsandbox.watch import WatchEvent, WatchKind, watch

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
