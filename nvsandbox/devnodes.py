# SPDX-License-Identifier: Apache-2.0
"""The NVIDIA device nodes that a worker sees in its ``/dev``."""

from __future__ import annotations

import os
import stat
from typing import Any

from nvsandbox.errors import SandboxError

_NVIDIA_FOLDERS = ("", "nvidia-caps", "nvidia-caps-imex-channels")


class DeviceNode(str):
    """A node in the private ``/dev``: its path, with ``major``, ``minor`` and ``mode`` (permission bits) as
    attributes."""

    major: int
    minor: int
    mode: int

    def __new__(cls, path: str, status: os.stat_result) -> DeviceNode:
        node = super().__new__(cls, path)
        node.major = os.major(status.st_rdev)
        node.minor = os.minor(status.st_rdev)
        node.mode = stat.S_IMODE(status.st_mode)
        return node

    def __reduce__(self) -> Any:
        return _node, (str(self), self.major, self.minor, self.mode)


def _node(path: str, major: int, minor: int, mode: int) -> DeviceNode:
    """For pickle."""
    node = str.__new__(DeviceNode, path)
    node.major, node.minor, node.mode = major, minor, mode
    return node


def seen_by(pid: int) -> list[DeviceNode]:
    """Those in the ``/dev`` of the process `pid`, sorted by path. Raises SandboxError if it cannot be listed."""
    # A node may go, or come, in the middle of it.
    found = []
    for folder in _NVIDIA_FOLDERS:
        inside = os.path.join("/dev", folder) if folder else "/dev"
        outside = f"/proc/{pid}/root{inside}"
        try:
            names = os.listdir(outside)
        except OSError as error:
            if folder and isinstance(error, FileNotFoundError | NotADirectoryError):
                continue
            raise _cannot_list(inside, outside, error) from error
        for name in names:
            try:
                status = os.lstat(os.path.join(outside, name))
            except FileNotFoundError:
                continue
            except OSError as error:
                raise _cannot_list(inside, outside, error) from error
            ours = folder or name.startswith("nvidia")  # channel0 is in a folder of NVIDIA's
            if ours and (stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)):
                found.append(DeviceNode(os.path.join(inside, name), status))
    return sorted(found)


def _cannot_list(inside: str, outside: str, error: OSError) -> SandboxError:
    return SandboxError(f"cannot list the worker's {inside}: {error.strerror} ({error.filename or outside})")
