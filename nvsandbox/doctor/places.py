# SPDX-License-Identifier: Apache-2.0
"""Where the doctor looks. All of its checks read through a :class:`Places`, so that stand-in trees can be examined."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from nvsandbox import copies, roots
from nvsandbox.errors import SandboxUnavailable
from nvsandbox.options import Options

_LANDLOCK_CREATE_RULESET = 444  # on all architectures
_LANDLOCK_VERSION = 1

_TEXT_MAX = 1 << 20


def _landlock_abi() -> int:
    """The version of Landlock that this kernel offers this process, 0 for none. Source: landlock_create_ruleset(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(
        ctypes.c_long(_LANDLOCK_CREATE_RULESET),
        ctypes.c_void_p(None),
        ctypes.c_size_t(0),
        ctypes.c_uint32(_LANDLOCK_VERSION),
    )
    return max(0, int(version))


def _unbound() -> str:
    """Why calls of this process's pynvml cannot be sent to a sandbox; "" if they can."""
    try:
        copies.found()
    except SandboxUnavailable as error:
        return str(error)
    return ""


def _distributions() -> dict[str, str]:
    """The installed Python packages that matter here, name to version."""
    found = {}
    for name in ("nvsandbox", "nvidia-ml-py", "pynvml", "python-prctl", "pyroute2"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@dataclass(frozen=True)
class Places:
    """The trees that are examined, and what cannot be read off files."""

    options: Options = field(default_factory=Options)
    root: str = "/"
    proc: str = "/proc"
    sys: str = "/sys"
    dev: str = "/dev"
    package: str = str(Path(__file__).parent.parent)
    environment: Mapping[str, str] = field(default_factory=dict)
    distributions: Mapping[str, str] = field(default_factory=dict)
    unbound: str = ""
    cpus: int = 1
    landlock_abi: int = 0
    live: bool = False
    """Whether these are this process's own, so that something can be tried and not only read."""

    @classmethod
    def here(cls, options: Options) -> Places:
        """This machine, as this process sees it."""
        return cls(
            options=options,
            environment=dict(os.environ),
            distributions=_distributions(),
            unbound=_unbound(),
            cpus=len(os.sched_getaffinity(0)),
            landlock_abi=_landlock_abi(),
            live=True,
        )

    def inside(self, path: str) -> str:
        """An absolute path of the examined system, as this process reaches it."""
        return path if self.root == "/" else self.root.rstrip("/") + path

    @property
    def driver_root(self) -> str:
        """The driver root, as this process reaches it."""
        return self.inside(self.options.driver_root) if self.options.driver_root != "/" else self.root

    @property
    def dev_folder(self) -> str:
        """The folder whose NVIDIA nodes a sandbox would be given."""
        if self.options.dev_root is None and self.driver_root == self.root:
            return self.dev
        folder = roots.dev_folder(self.driver_root, self.options.dev_root)
        return self.dev if folder == "/dev" else folder


def read(path: str) -> str | None:
    """The text of a file, None where there is none. Raises OSError where it is there and cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_TEXT_MAX)
    except (FileNotFoundError, NotADirectoryError):
        return None


def fields(text: str | None) -> dict[str, str]:
    """The lines ``name: value`` of a text."""
    pairs = (line.partition(":") for line in (text or "").splitlines())
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def names(folder: str) -> list[str]:
    """What is in a folder, sorted; nothing where there is no such folder."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
