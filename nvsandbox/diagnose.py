# SPDX-License-Identifier: Apache-2.0
"""Why NVML may say Unknown Error: device nodes that it cannot open.

A container runtime that re-applies its device cgroup (systemd does on a daemon-reload) takes the GPU away from running
containers; NVML then answers every call with Unknown Error and says no more.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

_REASONS = {
    errno.EPERM: "the device cgroup of this container forbids it: give the container the device again, or restart it",
    errno.ENXIO: "no loaded driver serves it: is the nvidia module loaded, and is this GPU still there?",
    errno.ENODEV: "the driver has no such GPU (any more)",
    errno.EACCES: "its mode or owner forbids it to this user: join its group, or see DeviceFileMode and DeviceFileGID "
    "in /proc/driver/nvidia/params",
    errno.EIO: "the driver cannot reach the GPU: see the kernel log for XID errors",
}


def reason(err: int, path: str = "") -> str:
    """Why opening a node fails with this error number, and what to do. `path` is the node as this process finds it: it
    tells a mount without devices from a mode."""
    if err == errno.EACCES and path and _without_devices(path):
        return "its file system is mounted with nodev, so that no device in it can be opened: mount it without"
    return _REASONS.get(err, os.strerror(err))


def _without_devices(path: str) -> bool:
    try:
        return bool(os.statvfs(path).f_flag & os.ST_NODEV)
    except OSError:
        return False


def _registered_majors() -> set[int]:
    """The majors of NVIDIA's character devices, from ``/proc/devices``."""
    majors = set()
    try:
        with open("/proc/devices", encoding="ascii", errors="replace") as file:
            for line in file:
                number, _, name = line.strip().partition(" ")
                if line.startswith("Block"):
                    break
                if number.isdigit() and name.startswith("nvidia"):
                    majors.add(int(number))
    except OSError:
        pass
    return majors


def unusable_nodes(pid: int, nodes: Iterable[tuple[str, int]]) -> list[str]:
    """A sentence for each of the worker's `nodes` (path, major number) that cannot be opened.

    A node whose major nothing serves is not opened: the kernel would run modprobe for it.
    """
    majors = _registered_majors()
    found = []
    for path, major in nodes:
        err = 0
        outside = f"/proc/{pid}/root{path}"
        if major not in majors:
            err = errno.ENXIO
        else:
            try:
                os.close(os.open(outside, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
            except OSError as error:
                err = error.errno or errno.EIO
        if err:
            found.append(f"{path} cannot be opened ({errno.errorcode.get(err, err)}): {reason(err, outside)}")
    return found


def unusable_start(pid: int, nodes: Iterable[tuple[str, int]], dev_root: str) -> str:
    """Why NVML could not be initialised in the worker `pid`, as far as its `nodes` tell; "" if they do not."""
    nodes = list(nodes)
    if not _registered_majors():
        return "no driver of NVIDIA's is loaded (/proc/devices has none)"
    if not any(path == "/dev/nvidiactl" for path, _ in nodes):
        return (
            f"there is no /dev/nvidiactl for it: {dev_root} has none; give this container the GPU's nodes, or say with "
            f"dev_root= (NVSANDBOX_DEV_ROOT) where they are"
        )
    return "; ".join(unusable_nodes(pid, nodes))
