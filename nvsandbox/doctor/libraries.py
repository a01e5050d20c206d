# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's ``libnvidia-ml.so.1``: which files there are, what is wrong with them, and whether they fit the driver.

Files are read, never loaded: what a library does when it is loaded belongs into the sandbox.
"""

from __future__ import annotations

import glob
import os
import platform
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from nvsandbox import roots
from nvsandbox.doctor import driver
from nvsandbox.doctor.findings import Finding
from nvsandbox.doctor.places import Places, read

_MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine; elf(5)
_IN_NAME = re.compile(r"\.so\.([0-9]+(?:\.[0-9]+)+)$")
# The library has its own version as a string by itself.
_IN_FILE = re.compile(rb"\0([0-9]{3,4}\.[0-9]{2,3}(?:\.[0-9]{2})?)\0")
_SIZE_MAX = 64 << 20


@dataclass(frozen=True)
class File:
    """One that would be tried. ``problem`` is "" for a good one."""

    path: str
    real: str
    version: str | None
    problem: str = ""
    stub: bool = False


def _problem(head: bytes) -> str:
    """What is wrong with a file by its first bytes, as csrc/worker/library.c judges."""
    if head[:4] != b"\x7fELF" or len(head) < 20:
        return "is not a shared library (no ELF header)"
    if head[4] != 2:
        return "is a 32-bit library, this process is 64-bit"
    machine = struct.unpack_from("<H", head, 18)[0]
    wanted = _MACHINES.get(platform.machine())
    if wanted is not None and machine != wanted:
        return f"is for another processor (ELF machine {machine}, here {wanted})"
    return ""


def examine(path: str, real: str) -> File:
    """One file. `real` is where it is found, its links followed."""
    if "/stubs/" in real or "/stubs/" in path:
        return File(path, real, None, "is the CUDA toolkit's stub for linking", stub=True)
    try:
        if not os.path.isfile(real):
            return File(path, real, None, "is not a regular file")
        with open(real, "rb") as file:
            data = file.read(_SIZE_MAX)
    except OSError as error:
        return File(path, real, None, f"cannot be read: {error.strerror}")
    problem = _problem(data[:64])
    if problem:
        return File(path, real, None, problem)
    in_name, in_file = _IN_NAME.search(real), _IN_FILE.search(data)
    version = in_name[1] if in_name else in_file[1].decode() if in_file else None
    return File(path, real, version)


def _loader_folders(places: Places, path: str = "/etc/ld.so.conf", depth: int = 0) -> Iterator[str]:
    """The folders that /etc/ld.so.conf names, for the loader's own search; ldconfig(8)."""
    for line in (read(places.inside(path)) or "").splitlines():
        line = line.partition("#")[0].strip()
        if line.startswith("include ") and depth < 3:
            pattern = os.path.join(os.path.dirname(path), line.split(None, 1)[1])
            for found in sorted(glob.glob(places.inside(pattern))):
                yield from _loader_folders(places, found.removeprefix(places.inside("").rstrip("/")), depth + 1)
        elif line.startswith("/"):
            yield line


def found(places: Places) -> list[File]:
    """The files in the order in which they would be tried, each once."""
    if places.options.library is not None:
        path = places.options.library
        return [examine(path, os.path.realpath(path))] if os.path.lexists(path) else []
    files: dict[str, File] = {}
    in_root = [path for path in roots.library_candidates(places.driver_root)[0] if os.path.isabs(path)]
    # With a driver root of /, that has LD_LIBRARY_PATH's too, which are tried last.
    late = set(in_path(places))
    for path in in_root:
        if path not in late:
            files.setdefault(os.path.realpath(path), examine(path, path))
    if places.driver_root == places.root:
        for folder in _loader_folders(places):
            real = roots.resolve_in_root(places.root, f"{folder}/{roots.LIBRARY}")
            if real is not None:
                files.setdefault(real, examine(places.inside(f"{folder}/{roots.LIBRARY}"), real))
        for path in in_path(places):
            files.setdefault(os.path.realpath(path), examine(path, os.path.realpath(path)))
    return list(files.values())


def in_path(places: Places) -> list[str]:
    """The libraries that LD_LIBRARY_PATH leads to."""
    folders = places.environment.get("LD_LIBRARY_PATH", "").split(":")
    paths = [places.inside(f"{folder}/{roots.LIBRARY}") for folder in folders if folder.startswith("/")]
    return [path for path in paths if os.path.exists(path)]


def _alternatives(file: File, places: Places) -> str:
    """Whether a file is reached through a distribution's alternatives, as a piece of a sentence."""
    folder = os.path.join(places.driver_root, "etc/alternatives")
    by_them = places.options.library is None and os.path.isdir(folder) and "/nvidia/current" in file.real
    return ", by the distribution's alternatives" if by_them else ""


def libraries(places: Places) -> Iterator[Finding]:
    """What there is of libraries, and whether the one that will be loaded fits the kernel driver."""
    files = found(places)
    good = [file for file in files if not file.problem]
    yield from _stubs(places)
    for file in files:
        if file.problem and not file.stub:
            yield Finding(
                "library.unusable",
                f"{file.path} {file.problem}: it is skipped",
                "repair or remove it (which package has it: dpkg -S, rpm -qf)",
                about=file.path,
            )
    if not good:
        yield Finding(
            "library.not-found",
            f"there is no usable {roots.LIBRARY} "
            + (
                f"at --library {places.options.library}"
                if places.options.library is not None
                else f"under the driver root {places.options.driver_root}"
            ),
            _how_to_find(places),
        )
        return
    first = good[0]
    yield Finding(
        "library.found",
        f"{first.path}, version {first.version or 'unknown'}{_alternatives(first, places)}",
        about=first.path,
        facts={"path": first.path, "version": first.version, "others": [file.path for file in good[1:]]},
    )
    others = [file for file in good[1:] if file.version is not None and file.version != first.version]
    if others and first.version is not None:
        yield Finding(
            "library.several",
            f"libraries of other versions lie beside {first.version}: "
            + ", ".join(f"{file.path} ({file.version})" for file in others),
            f"remove what is left of old drivers, or name the right one: --library {first.path}",
        )
    yield from _mismatch(places, first)


def _how_to_find(places: Places) -> str:
    others = driver.other_roots(places)
    if others and places.options.library is None:
        return f"--driver-root {others[0]}, where there is a driver"
    return (
        "install NVIDIA's driver (its package with libnvidia-ml), or say where it is with --driver-root or --library; "
        "in containers the runtime brings it when NVIDIA_DRIVER_CAPABILITIES has utility"
    )


def _stubs(places: Places) -> Iterator[Finding]:
    stubs = [path for path in in_path(places) if "/stubs/" in path or "/stubs/" in os.path.realpath(path)]
    if stubs:
        yield Finding(
            "library.stub",
            f"LD_LIBRARY_PATH leads to the CUDA toolkit's stub {stubs[0]}: other programs load it, and it fails every "
            "call",
            "take the stubs folder out of LD_LIBRARY_PATH; nvsandbox skips it",
            about=stubs[0],
        )


def _mismatch(places: Places, file: File) -> Iterator[Finding]:
    kernel = driver.kernel_version(places)
    if kernel is not None and file.version is not None and kernel != file.version:
        yield Finding(
            "library.mismatch",
            f"{file.path} is of version {file.version}, the loaded kernel driver of {kernel}: NVML refuses that "
            "(Driver/library version mismatch, error 18)",
            "restart the machine, or unload and load the driver after an update (rmmod nvidia_uvm nvidia_drm "
            "nvidia_modeset nvidia; modprobe nvidia); in a container use the libraries of the host's driver",
            about=file.path,
            facts={"library": file.version, "kernel": kernel},
        )
