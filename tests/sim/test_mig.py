# SPDX-License-Identifier: Apache-2.0
"""Multi-Instance GPU."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize(
    ("description", "names"),
    [
        ("a100,mig=1g.5gb*7", ["1g.5gb"] * 7),
        ("h100,mig=1g.10gb*3+2g.20gb", ["2g.20gb", "1g.10gb", "1g.10gb", "1g.10gb"]),
        ("h100,mig=3g.40gb+4g.40gb", ["4g.40gb", "3g.40gb"]),
        ("h100,mig=1g.10gb+me+1g.20gb*2", ["1g.10gb+me", "1g.20gb", "1g.20gb"]),
        ("b200,mig=7g.180gb", ["7g.180gb"]),
        ("h200,mig=1g.18gb*7", ["1g.18gb"] * 7),
        ("gb200,mig=3g.93gb*2", ["3g.93gb", "3g.93gb"]),
    ],
)
def test_layouts(sim: Any, description: str, names: list[str]) -> None:
    def devices(description: str) -> list[str]:
        from simhelp import error_of, gpu, use

        p = use(description)
        physical = gpu()
        assert p.nvmlDeviceGetMigMode(physical) == [1, 1]
        found, uuids, memory = [], set(), 0
        for index in range(p.nvmlDeviceGetMaxMigDeviceCount(physical)):
            try:
                device = p.nvmlDeviceGetMigDeviceHandleByIndex(physical, index)
            except p.NVMLError_NotFound:
                break
            assert p.nvmlDeviceIsMigDeviceHandle(device)
            assert p.nvmlDeviceGetIndex(device) == index
            uuid = p.nvmlDeviceGetUUID(device)
            assert p.nvmlDeviceGetUUID(p.nvmlDeviceGetHandleByUUID(uuid.encode())) == uuid
            uuids.add(uuid)
            parent = p.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
            assert p.nvmlDeviceGetUUID(parent) == p.nvmlDeviceGetUUID(physical)
            info = p.nvmlDeviceGetMemoryInfo(device, version=p.nvmlMemory_v2)
            assert info.total == info.used + info.free + info.reserved
            attributes = p.nvmlDeviceGetAttributes_v2(device)
            assert attributes.memorySizeMB << 20 == info.total
            (process,) = p.nvmlDeviceGetComputeRunningProcesses(device)
            assert process.gpuInstanceId == p.nvmlDeviceGetGpuInstanceId(device)
            assert process.usedGpuMemory <= info.used
            memory += process.usedGpuMemory
            found.append(p.nvmlDeviceGetName(device).rpartition(" ")[2])
        assert len(uuids) == len(found)
        assert sum(one.usedGpuMemory for one in p.nvmlDeviceGetComputeRunningProcesses(physical)) == memory
        assert error_of(p.nvmlDeviceGetUtilizationRates, physical) == p.NVML_ERROR_NOT_SUPPORTED
        return found

    assert sim(devices, description=description) == names


def test_instances_come_and_go(sim: Any) -> None:
    def life() -> list[Any]:
        from simhelp import error_of, gpu, use

        p = use("h100")
        device = gpu()
        profile = p.nvmlDeviceGetGpuInstanceProfileInfo(device, p.NVML_GPU_INSTANCE_PROFILE_3_SLICE, version=2)
        found: list[Any] = [str(profile.name), profile.sliceCount]
        found.append(error_of(p.nvmlDeviceCreateGpuInstance, device, profile.id))  # MIG mode is off
        p.nvmlDeviceSetMigMode(device, 1)
        found.append(p.nvmlDeviceGetGpuInstanceRemainingCapacity(device, profile.id))
        instance = p.nvmlDeviceCreateGpuInstance(device, profile.id)
        found.append(p.nvmlDeviceGetGpuInstanceRemainingCapacity(device, profile.id))
        small = p.nvmlGpuInstanceCreateComputeInstance(instance, p.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE)
        large = p.nvmlGpuInstanceCreateComputeInstance(instance, p.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE)
        found.append(
            error_of(p.nvmlGpuInstanceCreateComputeInstance, instance, p.NVML_COMPUTE_INSTANCE_PROFILE_2_SLICE)
        )
        found += [p.nvmlDeviceGetName(p.nvmlDeviceGetMigDeviceHandleByIndex(device, index)) for index in (0, 1)]
        found.append(error_of(p.nvmlGpuInstanceDestroy, instance))  # in use
        p.nvmlComputeInstanceDestroy(small)
        p.nvmlComputeInstanceDestroy(large)
        p.nvmlGpuInstanceDestroy(instance)
        found.append(error_of(p.nvmlGpuInstanceGetInfo, instance))
        p.nvmlDeviceSetMigMode(device, 0)
        return [*found, p.nvmlDeviceGetMigMode(device)]

    name = "NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb"
    assert sim(life) == ["MIG 3g.40gb", 3, 3, 2, 1, 23, name, name, 19, 2, [0, 0]]


def test_placements(sim: Any) -> None:
    def place() -> list[Any]:
        import ctypes

        from simhelp import error_of, gpu, use

        p = use("a100,mig=7g.40gb")
        device = gpu()
        count = ctypes.c_uint(8)
        placements = (p.c_nvmlGpuInstancePlacement_t * 8)()
        p.nvmlDeviceGetGpuInstancePossiblePlacements(device, 9, placements, ctypes.byref(count))
        found: list[Any] = [(one.start, one.size) for one in placements[: count.value]]
        full = error_of(p.nvmlDeviceCreateGpuInstanceWithPlacement, device, 9, ctypes.byref(placements[0]))
        return [*found, full]

    assert sim(place) == [(0, 4), (4, 4), 23]


def test_placements_are_known_while_mig_is_off(sim: Any) -> None:
    """U14: NVIDIA's DRA driver asks for them to announce what it could make; a GPU that cannot do MIG has none."""

    def ask(description: str) -> list[Any]:
        import ctypes

        from simhelp import error_of, gpu, use

        p = use(description)
        device = gpu()
        count = ctypes.c_uint(8)
        placements = (p.c_nvmlGpuInstancePlacement_t * 8)()
        made = error_of(p.nvmlDeviceCreateGpuInstance, device, 9)
        try:
            p.nvmlDeviceGetGpuInstancePossiblePlacements(device, 9, placements, ctypes.byref(count))
        except p.NVMLError as error:
            return [error.value, made]
        return [[(one.start, one.size) for one in placements[: count.value]], made]

    assert sim(ask, description="h100") == [[(0, 4), (4, 4)], 3]
    assert sim(ask, description="t4") == [3, 3]
