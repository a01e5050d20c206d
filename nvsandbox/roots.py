# SPDX-License-Identifier: Apache-2.0
"""Where things are under a driver root: NVIDIA's library, and the device nodes.

The driver root is the folder whose tree holds the driver's user-space files: ``/`` where the driver is installed on
the host, ``/run/nvidia/driver`` where NVIDIA's GPU operator runs it in a container. The dev root is the folder whose
``dev`` holds its device nodes. Both terms are those of NVIDIA's container toolkit and DRA driver.
"""

from __future__ import annotations

import os
import platform
import stat

from nvsandbox import pci

LIBRARY = "libnvidia-ml.so.1"

_TRIPLETS = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}
_LINKS_MAX = 40  # as the kernel's own limit


def _folders() -> list[str]:
    """The folders that hold NVIDIA's library, best first, by who puts it there."""
    triplet = _TRIPLETS.get(platform.machine(), f"{platform.machine()}-linux-gnu")
    return [
        f"usr/lib/{triplet}",  # Debian, Ubuntu, and NVIDIA's driver containers on those
        f"usr/lib/{triplet}/nvidia/current",  # Debian's alternatives
        "usr/lib64",  # Fedora, RHEL, SUSE, and driver containers on those
        "usr/lib64/nvidia",
        "usr/lib",  # Arch
        "usr/lib/nvidia",
        f"lib/{triplet}",
        "lib64",
        "lib",
        "usr/lib/wsl/lib",  # Windows' driver in WSL2
        "home/kubernetes/bin/nvidia/lib64",  # GKE's Container-Optimized OS
        "usr/local/nvidia/lib64",  # the same, as containers see it
        "usr/local/nvidia/lib",
        "opt/nvidia/lib64",
        "run/opengl-driver/lib",  # NixOS
        f"usr/local/lib/{triplet}",
        "usr/local/lib64",
        "usr/local/lib",
    ]


def resolve_in_root(root: str, path: str) -> str | None:
    """`path` below `root` with its symbolic links followed as if `root` were ``/``; None if it does not exist.

    A driver container's links are absolute (Debian's alternatives are), and mean its own tree, not the host's.
    """
    if os.path.realpath(root) == "/":
        real = os.path.join("/", path)
        return os.path.realpath(real) if os.path.exists(real) else None
    waiting = _parts(path)
    done: list[str] = []
    links = 0
    while waiting:
        part = waiting.pop(0)
        if part == "..":
            done = done[:-1]
            continue
        here = os.path.join(root, *done, part)
        try:
            mode = os.lstat(here).st_mode
        except OSError:
            return None
        if not stat.S_ISLNK(mode):
            done.append(part)
            continue
        links += 1
        if links > _LINKS_MAX:
            return None
        target = os.readlink(here)
        if target.startswith("/"):
            done = []
        waiting[:0] = _parts(target)
    return os.path.join(root, *done)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def has_another_libc(folder: str) -> bool:
    """Whether the folder holds a C library that is not this system's: programs of this one that found it first would
    crash."""
    libc = os.path.join(folder, "libc.so.6")
    if not os.path.exists(libc):
        return False
    ours = (os.path.join("/", place, "libc.so.6") for place in _folders())
    return not any(os.path.exists(path) and os.path.samefile(path, libc) for path in ours)


def installed(root: str) -> list[str]:
    """What ``libnvidia-ml.so.1`` is in this root, best first, by the files' own names, which end in the version."""
    found = (resolve_in_root(root, f"{folder}/{LIBRARY}") for folder in _folders())
    return list(dict.fromkeys(path for path in found if path is not None))


def library_candidates(driver_root: str) -> tuple[list[str], list[str]]:
    """Where ``libnvidia-ml.so.1`` is, best first, and every place that was looked at.

    The driver root comes first and LD_LIBRARY_PATH last: the CUDA toolkit's stub, which fails every call, is often
    put first there. The worker itself skips stubs, and checks each file before it loads it.
    """
    found: list[str] = []
    looked: list[str] = []
    for folder in _folders():
        path = os.path.join(driver_root, folder, LIBRARY)
        looked.append(path)
        real = resolve_in_root(driver_root, f"{folder}/{LIBRARY}")
        if real is not None and real not in found:
            found.append(real)
    if os.path.realpath(driver_root) == "/":
        found.append(LIBRARY)  # the loader's cache
        looked.append(f"{LIBRARY} (the loader's own search)")
        for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
            if folder.startswith("/"):
                path = os.path.join(folder, LIBRARY)
                looked.append(path)
                if os.path.exists(path) and path not in found:
                    found.append(path)
    return found, looked


def _has_nodes(folder: str) -> bool:
    try:
        return any(name.startswith("nvidia") for name in os.listdir(folder))
    except OSError:
        return False


def dev_folder(driver_root: str, dev_root: str | None) -> str:
    """The folder with the NVIDIA nodes to show in the private ``/dev``.

    `dev_root` is a root with a ``dev`` in it, or such a folder itself. Without one it is the driver root, if that has
    nodes of its own (a driver container's has), else the host's ``/dev``.
    """
    if dev_root is not None:
        inside = os.path.join(dev_root, "dev")
        return inside if os.path.isdir(inside) else dev_root
    inside = os.path.join(driver_root, "dev")
    return inside if _has_nodes(inside) else "/dev"


def device_minor(name: str) -> int | None:
    """The minor number of the GPU whose UUID or PCI bus id is `name`, from the driver's ``/proc``; None if it is not
    there.

    Source: ``/proc/driver/nvidia/gpus/*/information`` of NVIDIA's kernel driver.
    """
    base = "/proc/driver/nvidia/gpus"
    try:
        entries = os.listdir(base)
    except OSError:
        return None
    wanted = name.lower()
    wanted_bus = pci.address(name)
    for entry in entries:
        facts: dict[str, str] = {}
        try:
            with open(os.path.join(base, entry, "information"), encoding="utf-8", errors="replace") as file:
                for line in file:
                    key, _, value = line.partition(":")
                    facts[key.strip()] = value.strip()
        except OSError:
            continue
        bus = pci.address(facts.get("Bus Location", entry))
        if wanted == facts.get("GPU UUID", "").lower() or (bus is not None and bus == wanted_bus):
            try:
                return int(facts["Device Minor"])
            except (KeyError, ValueError):
                return None
    return None
