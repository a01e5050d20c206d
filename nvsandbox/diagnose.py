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
    errno.EACCES: "its mode or owner forbids it to this user",
    errno.EIO: "the driver cannot reach the GPU: see the kernel log for XID errors",
}


def reason(err: int) -> str:
    """Why opening a node fails with this error number, and what to do."""
    return _REASONS.get(err, os.strerror(err))


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
        if major not in majors:
            err = errno.ENXIO
        else:
            try:
                os.close(os.open(f"/proc/{pid}/root{path}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
            except OSError as error:
                err = error.errno or errno.EIO
        if err:
            found.append(f"{path} cannot be opened ({errno.errorcode.get(err, err)}): {reason(err)}")
    return found
