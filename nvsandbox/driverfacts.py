# SPDX-License-Identifier: Apache-2.0
"""What the kernel and NVIDIA's kernel driver say about device nodes: the truth that those in a ``/dev`` are held to.

Everything comes from a ``/proc``, the real one or a stand-in. Nothing is opened but text files, and no module is loaded
by looking.

Sources: Documentation/admin-guide/devices.txt of the Linux kernel (195 is NVIDIA's, 234 to 254 and 384 to 511 are given
out dynamically) and the files that NVIDIA's kernel driver shows below ``/proc/driver/nvidia``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

NVIDIA_MAJOR = 195
_DYNAMIC_MAJORS = (range(234, 255), range(384, 512))


@dataclass(frozen=True)
class Capability:
    """A capability node as the driver describes it: ``nvidia-caps/nvidia-capN``."""

    minor: int
    path: str
    """Which capability, below ``/proc/driver/nvidia/capabilities``: ``mig/config``, ``gpu0/mig/gi1/access``, …"""
    mode: int | None
    """Permission bits that its node should have; None where the driver does not say."""


@dataclass(frozen=True)
class DriverFacts:
    """What a ``/proc`` says of NVIDIA's driver."""

    loaded: bool
    version: str | None = None
    """As ``/proc/driver/nvidia/version`` has it: 550.54.15."""
    majors: dict[str, int] = field(default_factory=dict)
    """NVIDIA's character devices, from ``/proc/devices``: name to major."""
    other_majors: dict[int, str] = field(default_factory=dict)
    """Everybody else's: major to name."""
    modify_device_files: bool | None = None
    """Whether the driver's user-space half may make nodes and set their modes; None where that is not said."""
    mode: int | None = None
    """Permission bits of nvidiactl and the GPUs' nodes."""
    uid: int | None = None
    gid: int | None = None
    gpus: dict[int, str] = field(default_factory=dict)
    """The GPUs that the driver has: minor number to PCI bus id."""
    gpus_complete: bool = False
    """Whether `gpus` holds all of the machine's. A container may be shown some of them alone."""
    capabilities: dict[int, Capability] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    """What could not be read, each with why."""

    def is_nvidias(self, major: int) -> bool:
        """Whether this is a major number of NVIDIA's."""
        return major == NVIDIA_MAJOR or major in self.majors.values()

    def may_be_nvidias(self, major: int) -> bool:
        """Whether this is a major of NVIDIA's, or one that is given out dynamically and that nobody has now, so that
        it may have been NVIDIA's before the module was unloaded or loaded again."""
        if self.is_nvidias(major):
            return True
        return major not in self.other_majors and any(major in block for block in _DYNAMIC_MAJORS)


def read(proc: str = "/proc") -> DriverFacts:
    """What `proc` says.

    Raises OSError if its ``devices`` cannot be read: without that nothing can be judged.
    """
    unread: list[str] = []
    majors, others = _majors(Path(proc, "devices").read_text(encoding="utf-8", errors="replace"))
    base = Path(proc, "driver", "nvidia")
    version = _text(base / "version", unread)
    params = _pairs(_text(base / "params", unread))
    gpus = _gpus(base / "gpus", unread)
    modify = _number(params.get("ModifyDeviceFiles"))
    return DriverFacts(
        loaded=version is not None or bool(majors),
        version=_version(version),
        majors=majors,
        other_majors=others,
        modify_device_files=None if modify is None else modify != 0,
        mode=_number(params.get("DeviceFileMode")),
        uid=_number(params.get("DeviceFileUID")),
        gid=_number(params.get("DeviceFileGID")),
        gpus=gpus,
        gpus_complete=_same_file_system(proc, base / "gpus"),
        capabilities=_capabilities(base / "capabilities", unread),
        unread=tuple(unread),
    )


def _text(path: Path, unread: list[str]) -> str | None:
    """A file's text, or None if there is none; another failure is noted."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        unread.append(f"{path}: {error.strerror}")
        return None


def _entries(path: Path, unread: list[str]) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        unread.append(f"{path}: {error.strerror}")
        return []


def _pairs(text: str | None) -> dict[str, str]:
    """Lines of ``key: value``."""
    pairs = (line.partition(":") for line in (text or "").splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _version(text: str | None) -> str | None:
    """550.54.15 from ``NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar …``."""
    for word in (text or "").partition("\n")[0].split():
        parts = word.split(".")
        if len(parts) >= 2 and all(part.isascii() and part.isdigit() for part in parts):
            return word
    return None


def _majors(text: str) -> tuple[dict[str, int], dict[int, str]]:
    """NVIDIA's and everybody else's character devices."""
    nvidias: dict[str, int] = {}
    others: dict[int, str] = {}
    for line in text.partition("Block devices:")[0].splitlines():
        number, _, name = line.strip().partition(" ")
        if not (number.isascii() and number.isdigit()):
            continue
        if name.startswith("nvidia") or name == "gdrdrv":
            nvidias[name] = int(number)
        else:
            others[int(number)] = name
    return nvidias, others


def _gpus(base: Path, unread: list[str]) -> dict[int, str]:
    found = {}
    for bus in _entries(base, unread):
        minor = _number(_pairs(_text(base / bus / "information", unread)).get("Device Minor"))
        if minor is not None:
            found[minor] = bus
    return found


def _same_file_system(proc: str, folder: Path) -> bool:
    """Container runtimes cover the list of GPUs with a mount that has the container's own alone."""
    try:
        return os.stat(folder).st_dev == os.stat(proc).st_dev
    except OSError:
        return False


def _capabilities(base: Path, unread: list[str]) -> dict[int, Capability]:
    found = {}
    for folder, _, files in os.walk(base, onerror=lambda error: _note(error, unread)):
        for name in files:
            path = Path(folder, name)
            pairs = _pairs(_text(path, unread))
            minor = _number(pairs.get("DeviceFileMinor"))
            if minor is not None:
                label = str(path.relative_to(base))
                found[minor] = Capability(minor, label, _number(pairs.get("DeviceFileMode")))
    return found


def _note(error: OSError, unread: list[str]) -> None:
    if not isinstance(error, FileNotFoundError):
        unread.append(f"{error.filename}: {error.strerror}")
