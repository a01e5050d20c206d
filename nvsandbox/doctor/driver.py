# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's kernel driver: whether it is there, where its tree is, and what it would have created."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from nvsandbox import driverfacts, roots
from nvsandbox.doctor.findings import Finding
from nvsandbox.doctor.places import Places, names, read

# Where drivers in containers, and distributions that are for containers, have their trees.
_OTHER_ROOTS = (
    "/run/nvidia/driver",  # NVIDIA's GPU operator
    "/home/kubernetes/bin/nvidia",  # GKE's Container-Optimized OS
    "/opt/nvidia",  # Talos, Bottlerocket and others
    "/usr/local/nvidia",
    "/host",  # the host, as many debugging pods mount it
    "/driver-root",  # the same of NVIDIA's DRA driver
)


def kernel_version(places: Places) -> str | None:
    """The version of the loaded kernel driver, None without one.

    Source: ``/proc/driver/nvidia/version`` and ``/sys/module/nvidia/version``.
    """
    version = driverfacts.read(places.proc).version
    return version or (read(f"{places.sys}/module/nvidia/version") or "").strip() or None


def registered(places: Places) -> bool:
    """Whether a driver serves NVIDIA's character devices: without one opening a node makes the kernel run modprobe."""
    return bool(driverfacts.read(places.proc).majors)


def is_wsl(places: Places) -> bool:
    """Whether this is Windows' Subsystem for Linux, where ``/dev/dxg`` takes the place of NVIDIA's nodes."""
    release = (read(f"{places.proc}/sys/kernel/osrelease") or "").lower()
    return "microsoft" in release or os.path.exists(f"{places.dev}/dxg")


def loaded(places: Places) -> Iterator[Finding]:
    """Whether the driver is loaded and works."""
    if is_wsl(places):
        dxg = os.path.exists(f"{places.dev}/dxg")
        yield Finding(
            "driver.wsl",
            "this is WSL: Windows has the driver, and NVML reaches it by /dev/dxg"
            + ("" if dxg else ", which is missing"),
            "" if dxg else "install NVIDIA's driver in Windows, and start WSL 2 (wsl --set-version DISTRIBUTION 2)",
            facts={"dxg": dxg},
        )
        return
    version = kernel_version(places)
    state = (read(f"{places.sys}/module/nvidia/initstate") or "").strip()
    if version is None and not state:
        # What it says of nouveau is in gpus.py, by the GPU that it holds.
        yield Finding(
            "driver.not-loaded",
            "NVIDIA's kernel driver is not loaded: it is neither in /proc/driver/nvidia nor in /sys/module",
            "install the driver, or load it (modprobe nvidia); simulated GPUs need none (--simulate h100x8)",
        )
        return
    if state not in ("", "live") or not registered(places):
        problem = f"its module is {state}" if state not in ("", "live") else "it is not in /proc/devices"
        yield Finding(
            "driver.not-live",
            f"NVIDIA's kernel driver {version or ''} is there and does not serve GPUs: {problem}",
            "see the kernel log (dmesg | grep -i nvrm); no GPU that it supports is a common reason",
            facts={"version": version, "initstate": state},
        )
        return
    text = read(f"{places.proc}/driver/nvidia/version") or ""
    kind = "open" if "Open Kernel Module" in text else "proprietary" if text else "of unknown kind"
    yield Finding(
        "driver.loaded",
        f"kernel driver {version}, {kind}",
        facts={"version": version, "open": kind == "open"},
    )


def node_makers(places: Places) -> Iterator[Finding]:
    """What would create nodes outside a sandbox: NVML itself, and its setuid helper."""
    if driverfacts.read(places.proc).modify_device_files:
        yield Finding(
            "driver.creates-nodes",
            "ModifyDeviceFiles is 1: outside a sandbox NVML creates and changes nodes in /dev",
            "query GPUs in the sandbox; NVreg_ModifyDeviceFiles=0 as a module parameter forbids it for everybody",
        )
    helper = "/usr/bin/nvidia-modprobe"
    for root in dict.fromkeys((places.root, places.driver_root)):
        try:
            mode = os.stat(root.rstrip("/") + helper).st_mode
        except OSError:
            continue
        if stat.S_ISREG(mode) and mode & stat.S_ISUID:
            yield Finding(
                "driver.setuid-modprobe",
                f"{root.rstrip('/') + helper} is setuid root: with it NVML makes nodes and loads modules for any user",
                "query GPUs in the sandbox, where no_new_privs makes it inert; chmod u-s if nothing needs it",
                about=root.rstrip("/") + helper,
            )


def other_roots(places: Places) -> list[str]:
    """Trees, other than the driver root, that have the driver's library or its nodes."""
    found = []
    for path in _OTHER_ROOTS:
        tree = places.inside(path)
        if os.path.realpath(tree) == os.path.realpath(places.driver_root) or not os.path.isdir(tree):
            continue
        if roots.library_candidates(tree)[0] or any(name.startswith("nvidia") for name in names(f"{tree}/dev")):
            found.append(path)
    return found


def where(places: Places) -> Iterator[Finding]:
    """Whether a driver lies elsewhere than it is looked for."""
    has_library = places.options.library is not None or any(
        os.path.isabs(path) for path in roots.library_candidates(places.driver_root)[0]
    )
    for path in other_roots(places):
        do = f"--driver-root {path}, or NVIDIA_DRIVER_ROOT={path}"
        if has_library:
            yield Finding(
                "driver.in-container",
                f"there is a driver's tree under {path} as well",
                f"{do}, if that is the driver that is loaded",
                about=path,
            )
        else:
            yield Finding(
                "driver.other-root",
                f"the driver root {places.options.driver_root} has no library, and there is a driver under {path}",
                do,
                about=path,
            )


def fabric_manager(places: Places) -> Iterator[Finding]:
    """NVSwitches without the service that sets them up: CUDA then fails with error 802, while NVML answers."""
    switches = names(f"{places.proc}/driver/nvidia-nvswitch/devices")
    if not switches:
        return
    running = any(
        _name(f"{places.proc}/{pid}").startswith("nv-fabricmanage") for pid in names(places.proc) if pid.isdigit()
    )
    if not running and not container_hides_processes(places):
        yield Finding(
            "driver.fabric-manager",
            f"there are {len(switches)} NVSwitches and no nv-fabricmanager runs",
            "start it, in the release of the driver (systemctl start nvidia-fabricmanager); NVML works without, CUDA "
            "does not",
        )


def _name(process: str) -> str:
    """A process's short name; "" for one that has ended meanwhile, or may not be looked at."""
    try:
        return read(f"{process}/comm") or ""
    except OSError:
        return ""


def container_hides_processes(places: Places) -> bool:
    """Whether the host's processes cannot be seen."""
    try:
        return os.readlink(f"{places.proc}/self/ns/pid") != "pid:[4026531836]"
    except OSError:
        return False
