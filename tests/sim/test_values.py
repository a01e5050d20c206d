# SPDX-License-Identifier: Apache-2.0
"""What the simulated GPUs say of themselves, and that it fits together."""

from __future__ import annotations

from typing import Any

import pytest

PROFILES = ["h100", "h200", "a100", "l40s", "t4", "b200", "gb200"]


@pytest.mark.parametrize("profile", PROFILES)
def test_readings_agree_with_each_other(sim: Any, profile: str) -> None:
    def readings(profile: str) -> None:
        from simhelp import error_of, gpu, use

        p = use(f"{profile}x8")
        assert p.nvmlDeviceGetCount() == 8
        identities = set()
        for index in range(8):
            device = gpu(index)
            assert p.nvmlDeviceGetIndex(device) == index
            bus_id, uuid = p.nvmlDeviceGetPciInfo(device).busId, p.nvmlDeviceGetUUID(device)
            serial = p.nvmlDeviceGetSerial(device)
            identities |= {bus_id, uuid, serial, p.nvmlDeviceGetMinorNumber(device)}
            for find, key in (
                (p.nvmlDeviceGetHandleByUUID, uuid),
                (p.nvmlDeviceGetHandleBySerial, serial),
                (p.nvmlDeviceGetHandleByPciBusId, bus_id),
            ):
                assert p.nvmlDeviceGetUUID(find(key.encode())) == uuid

            memory = p.nvmlDeviceGetMemoryInfo(device, version=p.nvmlMemory_v2)
            assert memory.total == memory.free + memory.used + memory.reserved
            older = p.nvmlDeviceGetMemoryInfo(device)
            assert (older.total, older.free, older.used) == (memory.total, memory.free, memory.used + memory.reserved)
            running = p.nvmlDeviceGetComputeRunningProcesses(device)
            assert 0 < sum(process.usedGpuMemory for process in running) <= memory.used
            assert p.nvmlDeviceGetGraphicsRunningProcesses(device) == []

            limit = p.nvmlDeviceGetPowerManagementLimit(device)
            least, most = p.nvmlDeviceGetPowerManagementLimitConstraints(device)
            assert least <= limit <= most
            assert 0 < p.nvmlDeviceGetPowerUsage(device) <= limit
            slowdown = p.nvmlDeviceGetTemperatureThreshold(device, p.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
            shutdown = p.nvmlDeviceGetTemperatureThreshold(device, p.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN)
            assert 20 < p.nvmlDeviceGetTemperature(device, p.NVML_TEMPERATURE_GPU) < slowdown < shutdown
            for kind in range(4):
                assert 0 < p.nvmlDeviceGetClockInfo(device, kind) <= p.nvmlDeviceGetMaxClockInfo(device, kind)
            rates = p.nvmlDeviceGetUtilizationRates(device)
            assert 0 <= rates.memory <= rates.gpu <= 100
            clocks = p.nvmlDeviceGetSupportedMemoryClocks(device)
            assert clocks[0] == p.nvmlDeviceGetMaxClockInfo(device, p.NVML_CLOCK_MEM)
            graphics = p.nvmlDeviceGetSupportedGraphicsClocks(device, clocks[0])
            assert graphics == sorted(graphics, reverse=True)
            assert graphics[0] == p.nvmlDeviceGetMaxClockInfo(device, p.NVML_CLOCK_GRAPHICS)
            assert error_of(p.nvmlDeviceGetFanSpeed, device) == p.NVML_ERROR_NOT_SUPPORTED
            assert p.nvmlDeviceGetNumFans(device) == 0
            samples = p.nvmlDeviceGetProcessUtilization(device, 0)
            assert sum(sample.smUtil for sample in samples) <= 100
        assert len(identities) == 4 * 8

    sim(readings, profile=profile)


def test_the_same_machine_is_found_again(sim: Any) -> None:
    def identities(seed: int) -> list[str]:
        from simhelp import gpu, use

        p = use(f"h100x4,seed={seed}")
        return [p.nvmlDeviceGetUUID(gpu(index)) for index in range(4)]

    assert sim(identities, seed=1) == sim(identities, seed=1)
    assert not set(sim(identities, seed=1)) & set(sim(identities, seed=2))


def test_energy_is_power_over_time(sim: Any) -> None:
    def measure() -> tuple[float, float, float]:
        import time

        from simhelp import gpu, use

        def read() -> tuple[float, float, float]:
            """Energy, and between which times it was read."""
            before = time.monotonic()
            energy = p.nvmlDeviceGetTotalEnergyConsumption(gpu())
            return energy, before, time.monotonic()

        p = use("h100")
        energy, begin, begun = read()
        powers = []
        for _ in range(20):
            powers.append(p.nvmlDeviceGetPowerUsage(gpu()))
            time.sleep(0.025)
        now, end, ended = read()
        return now - energy, min(powers) * (end - begun), max(powers) * (ended - begin)

    energy, least, most = sim(measure)
    assert 0.95 * least <= energy <= 1.05 * most


def test_the_energy_counter_never_falls(sim: Any) -> None:
    def change() -> list[int]:
        from simhelp import gpu, use

        p = use("h100")
        found = []
        for limit in (700000, 300000, 700000, 200000):
            p.nvmlDeviceSetPowerManagementLimit(gpu(), limit)
            assert p.nvmlDeviceGetPowerUsage(gpu()) <= limit
            found.append(p.nvmlDeviceGetTotalEnergyConsumption(gpu()))
        return found

    found = sim(change)
    assert found == sorted(found)


def test_load_moves(sim: Any) -> None:
    def watch() -> Any:
        from simhelp import gpu, use

        p = use("h100x2")
        _, samples = p.nvmlDeviceGetSamples(gpu(), p.NVML_GPU_UTILIZATION_SAMPLES, 0)
        return [(sample.timeStamp, sample.sampleValue.uiVal) for sample in samples]

    samples = sim(watch)
    assert len(samples) == 120
    assert samples == sorted(samples)
    assert len({load for _, load in samples}) > 2


def test_frozen_time(sim: Any) -> None:
    def twice() -> Any:
        import time

        from simhelp import gpu, use

        p = use("b200,frozen=1")
        found = []
        for _ in range(2):
            running = p.nvmlDeviceGetComputeRunningProcesses(gpu())
            readings = (p.nvmlDeviceGetPowerUsage(gpu()), p.nvmlDeviceGetTotalEnergyConsumption(gpu()))
            found.append((readings, [process.pid for process in running]))
            time.sleep(0.05)
        return found

    first, second = sim(twice)
    assert first == second
    assert sim(twice)[0] == first


def test_nvlink_and_fabric(sim: Any) -> None:
    def links(profile: str) -> Any:
        from simhelp import error_of, gpu, use

        p = use(f"{profile}x2")
        device = gpu()
        state = error_of(p.nvmlDeviceGetNvLinkState, device, 0)
        if state:
            return state
        count = sum(error_of(p.nvmlDeviceGetNvLinkState, device, link) == 0 for link in range(p.NVML_NVLINK_MAX_LINKS))
        assert p.nvmlDeviceGetNvLinkRemoteDeviceType(device, 0) == p.NVML_NVLINK_DEVICE_TYPE_SWITCH
        info = p.c_nvmlGpuFabricInfoV_t()
        info.version = p.nvmlGpuFabricInfo_v2
        fabric = error_of(p.nvmlDeviceGetGpuFabricInfoV, device, p.byref(info))
        return count, fabric or info.state

    assert sim(links, profile="h100") == (18, 3)
    assert sim(links, profile="a100") == (12, 3)  # here 3 is NOT_SUPPORTED, there COMPLETED
    assert sim(links, profile="t4") == 3


def test_topology(sim: Any) -> None:
    def levels() -> list[int]:
        from simhelp import gpu, use

        p = use("h100x8")
        assert len(p.nvmlDeviceGetTopologyNearestGpus(gpu(), p.NVML_TOPOLOGY_SYSTEM)) == 4
        assert list(p.nvmlDeviceGetCpuAffinity(gpu(0), 2)) == [2**64 - 1, 0]
        assert list(p.nvmlDeviceGetCpuAffinity(gpu(7), 2)) == [0, 2**64 - 1]
        return [p.nvmlDeviceGetTopologyCommonAncestor(gpu(), gpu(other)) for other in (1, 2, 4)]

    assert sim(levels) == [20, 40, 50]


def test_gpm(sim: Any) -> None:
    def measure() -> Any:
        import time

        from simhelp import error_of, gpu, use

        p = use("h100")
        assert p.nvmlGpmQueryDeviceSupport(gpu()).isSupportedDevice
        first, second = p.nvmlGpmSampleAlloc(), p.nvmlGpmSampleAlloc()
        p.nvmlGpmSampleGet(gpu(), first)
        time.sleep(0.05)
        p.nvmlGpmSampleGet(gpu(), second)
        get = p.c_nvmlGpmMetricsGet_t(
            version=p.NVML_GPM_METRICS_GET_VERSION, numMetrics=2, sample1=first, sample2=second
        )
        get.metrics[0].metricId = p.NVML_GPM_METRIC_SM_UTIL
        get.metrics[1].metricId = 499
        p.nvmlGpmMetricsGet(get)
        one = get.metrics[0]
        p.nvmlGpmSampleFree(first)
        gone = error_of(p.nvmlGpmSampleFree, first)
        return one.nvmlReturn, one.value, one.metricInfo.unit, get.metrics[1].nvmlReturn, gone

    code, value, unit, unknown, gone = sim(measure)
    assert (code, unit, unknown, gone) == (0, b"%", 3, 2)
    assert 0 < value <= 100


def test_field_values(sim: Any) -> None:
    def read() -> Any:
        from simhelp import gpu, use

        p = use("h100,frozen=1")
        ids = [p.NVML_FI_DEV_MEMORY_TEMP, p.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, p.NVML_FI_DEV_RETIRED_SBE,
               (p.NVML_FI_DEV_NVLINK_GET_STATE, 17), (p.NVML_FI_DEV_NVLINK_GET_STATE, 18)]  # fmt: skip
        values = p.nvmlDeviceGetFieldValues(gpu(), ids)
        assert values[1].value.ullVal == p.nvmlDeviceGetTotalEnergyConsumption(gpu())
        return [(value.nvmlReturn, value.valueType) for value in values]

    assert sim(read) == [(0, 1), (0, 3), (3, 1), (0, 1), (2, 1)]


@pytest.mark.parametrize(
    ("driver", "nvml", "cuda"), [("580.95.05", "13.580.95.05", 13000), ("535.261.03", "12.535.261.03", 12020)]
)
def test_driver_version(sim: Any, driver: str, nvml: str, cuda: int) -> None:
    def versions(driver: str) -> Any:
        from simhelp import use

        p = use(f"t4,driver={driver}")
        return p.nvmlSystemGetDriverVersion(), p.nvmlSystemGetNVMLVersion(), p.nvmlSystemGetCudaDriverVersion()

    assert sim(versions, driver=driver) == (driver, nvml, cuda)


@pytest.mark.parametrize("profile", ["h100", "gb200"])
def test_64_gpus_are_told_apart(sim: Any, profile: str) -> None:
    def identities(profile: str) -> None:
        from simhelp import gpu, use

        p = use(f"{profile}x64")
        assert p.nvmlDeviceGetCount() == 64
        bus_ids, uuids = set(), set()
        for index in range(64):
            device = gpu(index)
            assert p.nvmlDeviceGetMinorNumber(device) == p.nvmlDeviceGetIndex(device) == index
            pci = p.nvmlDeviceGetPciInfo(device)
            assert 0 < pci.bus < 256
            assert p.nvmlDeviceGetIndex(p.nvmlDeviceGetHandleByPciBusId(pci.busId.encode())) == index
            bus_ids.add(pci.busId)
            uuids.add(p.nvmlDeviceGetUUID(device))
        assert len(bus_ids) == len(uuids) == 64

    sim(identities, profile=profile)
