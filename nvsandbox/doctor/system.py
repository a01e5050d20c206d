# SPDX-License-Identifier: Apache-2.0
"""The kernel and the container that this process runs in."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from nvsandbox.doctor.findings import Finding
from nvsandbox.doctor.places import Places, read

# PROC_PID_INIT_INO of include/linux/proc_ns.h: the number of the first pid namespace, fixed since Linux 3.8.
_FIRST_PID_NAMESPACE = "pid:[4026531836]"

# What the worker does better with, by the kernel release that brought it.
_FEATURES = {
    "pidfd_open (the end of a worker is noticed at once)": (5, 3),
    "close_range (a start does not depend on how many descriptors are open)": (5, 9),
}

_ANY_MAJOR = re.compile(r"^[ac] (?:\*|195):", re.M)


def kernel(places: Places) -> Iterator[Finding]:
    """The kernel's release, and what it lacks."""
    release = (read(f"{places.proc}/sys/kernel/osrelease") or "").strip()
    match = re.match(r"(\d+)\.(\d+)", release)
    if match is None:
        raise ValueError(f"{places.proc}/sys/kernel/osrelease says {release!r}")
    version = (int(match[1]), int(match[2]))
    missing = [name for name, since in _FEATURES.items() if version < since]
    abi = places.landlock_abi
    facts = {"release": release, "landlock_abi": abi}
    if missing:
        yield Finding(
            "system.old-kernel",
            f"kernel {release} lacks {' and '.join(missing)}",
            "nothing need be done; Linux 5.9 or later has both",
            facts=facts,
        )
    else:
        yield Finding("system.kernel", f"kernel {release}, Landlock ABI {abi or 'none'}", facts=facts)
    if abi == 0:
        yield Finding(
            "system.no-landlock",
            "this kernel offers no Landlock, the second lock around the worker",
            "Linux 5.13 or later with landlock in its boot parameter lsm= has it; the sandbox does without",
        )
    if (read(f"{places.proc}/sys/vm/memfd_noexec") or "").strip() == "2":
        yield Finding(
            "system.memfd-noexec",
            "sysctl vm.memfd_noexec is 2: shared memory may be refused, and calls then take a socket, some "
            "microseconds slower",
            "set it to 1 or 0 if that matters",
        )


def container_kind(places: Places) -> str:
    """The kind of container that this process is in, "" for none that can be told."""
    kinds = []
    for path, kind in (("/run/.containerenv", "podman"), ("/.dockerenv", "docker")):
        if os.path.exists(places.inside(path)):
            kinds.append(kind)
    cgroups = read(f"{places.proc}/self/cgroup") or ""
    for pattern, kind in (
        ("libpod", "podman"),
        (r"docker[-/]", "docker"),
        ("crio", "cri-o"),
        ("cri-containerd|containerd", "containerd"),
        ("kubepods", "kubernetes"),
        (r"lxc", "lxc"),
    ):
        if re.search(pattern, cgroups):
            kinds.append(kind)
    if "KUBERNETES_SERVICE_HOST" in places.environment:
        kinds.append("kubernetes")
    if not kinds and places.environment.get("container"):
        kinds.append(places.environment["container"])
    return ", ".join(dict.fromkeys(kinds))


def container(places: Places) -> Iterator[Finding]:
    """Whether this is a container, and whose pid namespace it has."""
    kind = container_kind(places)
    if kind:
        yield Finding(
            "system.container",
            f"this process is in a container ({kind}): what follows is what the container sees",
            "run the doctor on the host too if nodes of the host are in question",
            facts={"kind": kind},
        )
    try:
        namespace = os.readlink(f"{places.proc}/self/ns/pid")
    except FileNotFoundError:
        return
    if namespace != _FIRST_PID_NAMESPACE:
        yield Finding(
            "system.pid-namespace",
            "this is not the first pid namespace: the pids that NVML lists may be the host's, and mean other processes "
            "here or none",
            "look processes up on the host, or run in its pid namespace (a pod: hostPID: true)",
            facts={"namespace": namespace},
        )


def _cgroup_paths(places: Places) -> dict[str, str]:
    """Controller to this process's cgroup; "" is version 2."""
    found = {}
    for line in (read(f"{places.proc}/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            found[controller] = path
    return found


def _in_cgroup(places: Places, folder: str, path: str, file: str) -> str | None:
    """A file of this process's cgroup. In a container the mount often begins at it."""
    base = f"{places.sys}/fs/cgroup{folder}"
    return next((text for at in (path, "") if (text := read(f"{base}{at.rstrip('/')}/{file}")) is not None), None)


def cgroups(places: Places) -> Iterator[Finding]:
    """What the cgroups let this process have of devices and processors."""
    paths = _cgroup_paths(places)
    devices = _in_cgroup(places, "/devices", paths["devices"], "devices.list") if "devices" in paths else None
    version = "2" if set(paths) == {""} else "1" if "" not in paths else "1 and 2 (hybrid)"
    if devices is not None and not _ANY_MAJOR.search(devices):
        yield Finding(
            "system.device-rules",
            "the device cgroup of this process has no rule for NVIDIA's nodes (character devices of major 195)",
            "give the container the GPUs, by its runtime's option or a device plugin",
            facts={"devices.list": devices.splitlines()},
        )
    elif paths:
        rules = "all allowed" if devices is None or "a *:*" in devices else "NVIDIA's allowed"
        told = rules if devices is not None else "of version 2: rules for devices cannot be read, only tried"
        yield Finding("system.cgroup", f"cgroups of version {version}; devices: {told}", facts={"version": version})
    if places.cpus == 1:
        yield Finding(
            "system.one-cpu",
            "this process may use one processor: calls do not spin for their answers and take some tens of "
            "microseconds more",
            "allow two or more if calls must be fast",
        )
    quota = _quota(places, paths)
    if quota is not None and quota < 1:
        yield Finding(
            "system.cpu-quota",
            f"the cgroup gives this process {quota:g} of a processor: calls may wait for its next period",
            "raise the limit of the container if calls must be fast",
            facts={"cpus": quota},
        )


def _quota(places: Places, paths: dict[str, str]) -> float | None:
    text = _in_cgroup(places, "", paths.get("", ""), "cpu.max")
    if text is not None:
        quota, _, period = text.strip().partition(" ")
    else:
        if "cpu" not in paths:
            return None
        quota = (_in_cgroup(places, "/cpu", paths["cpu"], "cpu.cfs_quota_us") or "-1").strip()
        period = (_in_cgroup(places, "/cpu", paths["cpu"], "cpu.cfs_period_us") or "100000").strip()
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None  # "max", or -1
    return int(quota) / int(period)
