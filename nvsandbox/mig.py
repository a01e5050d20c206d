# SPDX-License-Identifier: Apache-2.0
"""Multi-Instance GPU: the devices of a GPU, and the tree of GPU instances and compute instances that they are from.

Devices can be read by everybody. Where instances lie on the GPU, and instances without devices, NVML tells to root and
to whoever was given its monitoring capability; for others the tree is made from the devices alone.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pynvml

from nvsandbox.asking import (
    U32,
    Asker,
    Failure,
    GivenUp,
    ask_gpu,
    decoded,
    device_of,
    failure_of,
    gpu_count,
    memory_into,
)
from nvsandbox.errors import CallTimeout
from nvsandbox.structures import GpuProfile, versioned

_PROFILES = 64  # more than NVML counts: it ends the enumeration
_MIB = 1 << 20


@dataclass
class MigDevice:
    """A MIG device (a compute instance) of a GPU. ``nvidia-smi -L`` lists them too."""

    index: int
    name: str | None = None
    uuid: str | None = None
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    errors: list[Failure] = field(default_factory=list)


@dataclass
class ComputeInstance:
    """A part of a GPU instance. There is one MIG device for each."""

    id: int
    profile: str | None
    """``"1g.10gb"``, ``"1c.3g.40gb"``."""
    device: MigDevice
    profile_id: int | None = None
    placement: Run | None = None


@dataclass
class GpuInstance:
    """A part of a GPU, with memory of its own."""

    id: int
    profile: str | None = None
    """``"3g.40gb"``."""
    profile_id: int | None = None
    placement: Run | None = None
    memory_total_bytes: int | None = None
    compute_instances: list[ComputeInstance] = field(default_factory=list)


@dataclass(frozen=True)
class Run:
    """The run of slices that an instance takes: memory slices of the GPU, compute slices of the GPU instance."""

    start: int
    size: int


@dataclass
class MigTree:
    """MIG on one GPU."""

    index: int
    name: str | None = None
    uuid: str | None = None
    mig_enabled: bool | None = None
    """None where the GPU has no MIG."""
    mig_pending: bool | None = None
    """What it will be after the next reset of the GPU."""
    gpu_instances: list[GpuInstance] | None = None
    """None where there is no telling; empty where MIG is off or none was made."""
    error: Failure | None = None
    """Set where this GPU as a whole cannot be queried."""
    errors: list[Failure] = field(default_factory=list)


def _modes(asker: Asker) -> tuple[bool | None, bool | None]:
    modes = ctypes.c_uint(), ctypes.c_uint()
    asker.call("nvmlDeviceGetMigMode", asker.handle, *map(ctypes.byref, modes))
    current, pending = (None if mode.value == U32 else mode.value == 1 for mode in modes)
    return current, pending


def mig_enabled(asker: Asker) -> bool | None:
    """For :meth:`Asker.ask`: whether MIG is on."""
    return _modes(asker)[0]


def devices_of(asker: Asker, errors: list[Failure]) -> list[MigDevice] | None:
    """The MIG devices of a GPU, in the order of their indexes. None where there is no telling; why is in `errors`.

    Raises GivenUp as :meth:`Asker.ask` does.
    """
    places = asker.ask("mig_devices", lambda: asker.u32("nvmlDeviceGetMaxMigDeviceCount"))
    if places is None:
        return None
    devices = (_mig_device(asker, index, errors) for index in range(places))
    return [device for device in devices if device is not None]


def _mig_device(gpu: Asker, index: int, errors: list[Failure]) -> MigDevice | None:
    def resolve() -> Any:
        return gpu.attempt(
            lambda: device_of(gpu, "nvmlDeviceGetMigDeviceHandleByIndex", (gpu.handle,), index),
        )

    device = MigDevice(index)
    try:
        asker = Asker(gpu.nvml, device.errors, resolve)
    except (pynvml.NVMLError_NotFound, pynvml.NVMLError_InvalidArgument):
        return None  # places for instances that were not made
    except pynvml.NVMLError as error:
        errors.append(failure_of(f"mig[{index}]", error))
        if isinstance(error, CallTimeout):
            raise GivenUp from error
        return None
    device.name = asker.ask("name", lambda: asker.text("nvmlDeviceGetName", asker.handle))
    device.uuid = asker.ask("uuid", lambda: asker.text("nvmlDeviceGetUUID", asker.handle))
    device.gpu_instance_id = asker.ask("gpu_instance_id", lambda: asker.u32("nvmlDeviceGetGpuInstanceId"))
    device.compute_instance_id = asker.ask("compute_instance_id", lambda: asker.u32("nvmlDeviceGetComputeInstanceId"))
    memory_into(asker, device)
    return device


# ---- the tree ----------------------------------------------------------------------------------------------------


def trees(nvml: Any, *, indexes: Sequence[int] | None = None) -> list[MigTree]:
    """MIG on all GPUs that NVML counts, or on those with these indexes.

    Raises NVMLError if not even their number can be had.
    """
    chosen = range(gpu_count(nvml)) if indexes is None else indexes
    return [_tree(nvml, index) for index in chosen]


def _tree(nvml: Any, index: int) -> MigTree:
    tree = MigTree(index)
    ask_gpu(nvml, index, tree, lambda asker: _fill(asker, tree))
    return tree


def _fill(asker: Asker, tree: MigTree) -> None:
    tree.name = asker.ask("name", lambda: asker.text("nvmlDeviceGetName", asker.handle))
    tree.uuid = asker.ask("uuid", lambda: asker.text("nvmlDeviceGetUUID", asker.handle))
    modes = asker.ask("mig_enabled", lambda: _modes(asker))
    if modes is None:
        return
    tree.mig_enabled, tree.mig_pending = modes
    if not tree.mig_enabled:
        tree.gpu_instances = []
        return
    devices = devices_of(asker, tree.errors)
    if devices is None:
        return
    instances: dict[int, GpuInstance] = {}
    handles: dict[int, Any] = {}
    # None of it is worth more than a note where it may not be read: the devices are what matters.
    asker.ask("gpu_instances", lambda: _gpu_instances(asker, instances, handles))
    for device in devices:
        if device.gpu_instance_id is None or device.compute_instance_id is None:
            continue  # why is among its errors, and it is lost from the tree: it has no place there
        profile = _profile(device.name)
        instance = instances.setdefault(device.gpu_instance_id, GpuInstance(device.gpu_instance_id))
        # 1c.3g.40gb is a part of 3g.40gb
        instance.profile = instance.profile or (profile and profile.split("c.")[-1])
        part = ComputeInstance(device.compute_instance_id, profile, device)
        instance.compute_instances.append(part)
        if instance.id in handles:
            place = f"compute_instance[{instance.id}.{part.id}]"
            asker.ask(place, partial(_place, asker, handles[instance.id], part))
    tree.errors += [failure for device in devices for failure in device.errors if failure.field.endswith("_id")]
    tree.gpu_instances = [instances[id_] for id_ in sorted(instances)]
    for instance in tree.gpu_instances:
        instance.compute_instances.sort(key=lambda part: part.id)


def _profile(name: str | None) -> str | None:
    """The profile in the name of a device, ``NVIDIA A100-SXM4-40GB MIG 1g.5gb``, or of a profile, ``MIG 1g.5gb``."""
    _, found, profile = (name or "").rpartition("MIG ")
    return profile if found else None


def _gpu_instances(asker: Asker, instances: dict[int, GpuInstance], handles: dict[int, Any]) -> None:
    for number in range(_PROFILES):
        profile = versioned(GpuProfile, 2)
        try:
            asker.call(
                "nvmlDeviceGetGpuInstanceProfileInfoV", asker.handle, ctypes.c_uint(number), ctypes.byref(profile)
            )
        except pynvml.NVMLError_NotSupported:
            continue
        except pynvml.NVMLError_InvalidArgument:
            return
        for handle in _of_profile(asker, profile):
            info = pynvml.c_nvmlGpuInstanceInfo_t()
            asker.call("nvmlGpuInstanceGetInfo", handle, ctypes.byref(info))
            instances[info.id] = GpuInstance(
                info.id,
                _profile(decoded(profile.name)),
                info.profileId,
                Run(info.placement.start, info.placement.size),
                profile.memory_mib * _MIB,
            )
            handles[info.id] = handle


def _of_profile(asker: Asker, profile: GpuProfile) -> list[Any]:
    room = max(profile.instances, 8)  # a GPU has eight slices
    found = (pynvml.c_nvmlGpuInstance_t * room)()
    count = ctypes.c_uint(room)
    asker.call("nvmlDeviceGetGpuInstances", asker.handle, ctypes.c_uint(profile.id), found, ctypes.byref(count))
    return list(found[: min(count.value, room)])


def _place(asker: Asker, gpu_instance: Any, part: ComputeInstance) -> None:
    handle = pynvml.c_nvmlComputeInstance_t()
    asker.call("nvmlGpuInstanceGetComputeInstanceById", gpu_instance, ctypes.c_uint(part.id), ctypes.byref(handle))
    info = pynvml.c_nvmlComputeInstanceInfo_t()
    asker.call("nvmlComputeInstanceGetInfo_v2", handle, ctypes.byref(info))
    part.profile_id = info.profileId
    part.placement = Run(info.placement.start, info.placement.size)
