# SPDX-License-Identifier: Apache-2.0
"""The environment variables of a program in the sandbox: where it finds NVIDIA's library and tools."""

from __future__ import annotations

import os

from nvsandbox import roots, simulate
from nvsandbox.options import Options

_TOOL_FOLDERS = (
    "usr/bin",
    "usr/lib/nvidia/current",  # Debian's alternatives
    "bin",
    "usr/local/nvidia/bin",  # as containers on GKE see it
    "home/kubernetes/bin/nvidia/bin",  # GKE's Container-Optimized OS
    "opt/nvidia/bin",
    "run/current-system/sw/bin",  # NixOS
    "usr/lib/wsl/lib",  # Windows' driver in WSL2
    "usr/local/bin",
)


def initial() -> list[bytes]:
    """The environment that this process was started with, to the byte.

    Not ``os.environb``: Python adds LC_CTYPE to it in the C locale (PEP 538), and loses entries that are there twice
    or have no ``=``.
    """
    try:
        with open("/proc/self/environ", "rb") as file:
            return file.read().split(b"\0")[:-1]
    except OSError:
        return [name + b"=" + text for name, text in os.environb.items()]


def value(environment: list[bytes], name: bytes) -> bytes | None:
    """The variable's value as getenv() finds it, None where it is not set."""
    return next((entry[len(name) + 1 :] for entry in environment if entry.startswith(name + b"=")), None)


def _set(environment: list[bytes], name: bytes, text: bytes) -> None:
    entry = name + b"=" + text
    for index, present in enumerate(environment):
        if present.startswith(name + b"="):
            environment[index] = entry
            return
    environment.append(entry)


def _put_first(environment: list[bytes], name: bytes, item: str, separator: bytes = b":") -> None:
    present = value(environment, name)
    _set(environment, name, os.fsencode(item) + (separator + present if present else b""))


def environment(present: list[bytes], options: Options, simulation: str | None) -> list[bytes]:
    """`present` and what the program needs to find the library that the options ask for.

    Raises ValueError for one whose path no variable can hold.
    """
    # What a parent's install() left to its children: this program is in a sandbox already.
    changed = [entry for entry in present if not entry.startswith(b"NVSANDBOX_INSTALL=")]
    library = _library(options)
    if library is not None:
        folder, name = os.path.split(library)
        # What separates paths in them: the dynamic loader knows no quotes. It would look elsewhere, and not say so.
        if name == roots.LIBRARY and not roots.has_another_libc(folder) and not set(folder) & set(":;"):
            _put_first(changed, b"LD_LIBRARY_PATH", folder)
        elif not set(library) & set(": "):
            # Another system's C library lies beside it, which programs of this one would load, and crash; or it has
            # another name than programs look for. A library that is loaded already is found by the name inside it.
            _put_first(changed, b"LD_PRELOAD", library)
        else:
            raise ValueError(
                f"the program cannot be told of {library!r}: no variable of the dynamic loader can hold such a path "
                "(LD_LIBRARY_PATH none with : or ;, LD_PRELOAD none with : or a blank); name it by a link elsewhere"
            )
    if simulation is not None:
        # The one is for whoever loads the simulator, the other for programs that use nvsandbox, whose workers start
        # without LD_LIBRARY_PATH.
        _set(changed, b"NVSANDBOX_SIM", simulation.encode())
        _set(changed, b"NVSANDBOX_SIMULATE", simulation.encode())
        if value(changed, b"NVSANDBOX_LIBRARY"):
            _set(changed, b"NVSANDBOX_LIBRARY", b"")  # --simulate has overruled it, and the two are mutually exclusive
    tools = None if options.driver_root == "/" else _tool(options.driver_root, "nvidia-smi")
    if tools is not None:
        folder = os.path.dirname(tools)
        if os.path.exists(os.path.join(folder, "sh")) or os.path.exists(os.path.join(folder, "env")):
            # Another system's programs are in it too: last, so that they take the place of none of this one's.
            path = value(changed, b"PATH")
            _set(changed, b"PATH", (path + b":" if path else b"") + os.fsencode(folder))
        else:
            _put_first(changed, b"PATH", folder)
    return changed


def _library(options: Options) -> str | None:
    """The library that the program is to find first, None where it finds the right one by itself."""
    if options.simulate is not None:
        return str(simulate.parse(options.simulate).library)
    if options.library is not None:
        return options.library
    if os.path.realpath(options.driver_root) == "/":
        return None
    found, _ = roots.library_candidates(options.driver_root)
    if not found:
        return None
    # By the name that programs look for, which alternatives may have given to a link beside the real file.
    beside = os.path.join(os.path.dirname(found[0]), roots.LIBRARY)
    return beside if os.path.exists(beside) else found[0]


def _tool(driver_root: str, name: str) -> str | None:
    for folder in _TOOL_FOLDERS:
        found = roots.resolve_in_root(driver_root, f"{folder}/{name}")
        if found is not None and os.access(found, os.X_OK) and not os.path.isdir(found):
            return found
    return None


def driver_tool(driver_root: str, name: bytes) -> bytes | None:
    """NVIDIA's own program of that name under a driver root that is not this system's, or None."""
    if driver_root == "/" or not name.startswith(b"nvidia-") or b"/" in name:
        return None
    found = _tool(driver_root, os.fsdecode(name))
    return None if found is None else os.fsencode(found)
