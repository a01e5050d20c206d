# SPDX-License-Identifier: Apache-2.0
"""What is asked of NVML, and its answers as builtins."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

NVML_MEMORY_V2 = 0x02000028
FIELDS = list(range(1, 51))


def _same(value: Any) -> Any:
    return value


def _memory(value: Any) -> Any:
    return (value.total, value.reserved, value.free, value.used)


def _processes(value: Any) -> Any:
    return tuple([(process.pid, process.usedGpuMemory) for process in value])


def _fields(value: Any) -> Any:
    return tuple([(field.fieldId, field.value.ullVal if field.nvmlReturn == 0 else None) for field in value])


@dataclass(frozen=True)
class Workload:
    """One pynvml function with its arguments after the handle, and how its result becomes builtins (which pipes and
    proxies carry at the least cost)."""

    title: str
    function: str
    arguments: tuple[Any, ...] = ()
    plain: Callable[[Any], Any] = _same


WORKLOADS = {
    "temperature": Workload("temperature", "nvmlDeviceGetTemperature", (0,)),
    "name": Workload("name (string)", "nvmlDeviceGetName"),
    "memory": Workload("memory (structure)", "nvmlDeviceGetMemoryInfo", (NVML_MEMORY_V2,), _memory),
    "processes": Workload("100 processes (two calls)", "nvmlDeviceGetComputeRunningProcesses", plain=_processes),
    "fields": Workload("50 field values", "nvmlDeviceGetFieldValues", (FIELDS,), _fields),
}


def general(value: Any) -> Any:
    """Any result of pynvml's as builtins; slower than those above."""
    if isinstance(value, ctypes.Structure | ctypes.Union):
        return tuple([general(getattr(value, field[0])) for field in value._fields_])
    if isinstance(value, list | tuple | ctypes.Array):
        return tuple([general(item) for item in value])
    if isinstance(value, ctypes._SimpleCData):
        return value.value
    if isinstance(value, int | float | str | bytes | None.__class__):
        return value
    return tuple([general(item) for item in vars(value).values()])


# What an exporter asks of each GPU in each scrape, as the Prometheus exporters do: about 60 calls.
SCRAPE: list[tuple[str, tuple[Any, ...]]] = [
    ("nvmlDeviceGetName", ()),
    ("nvmlDeviceGetUUID", ()),
    ("nvmlDeviceGetSerial", ()),
    ("nvmlDeviceGetBrand", ()),
    ("nvmlDeviceGetIndex", ()),
    ("nvmlDeviceGetMinorNumber", ()),
    ("nvmlDeviceGetBoardPartNumber", ()),
    ("nvmlDeviceGetVbiosVersion", ()),
    ("nvmlDeviceGetInforomImageVersion", ()),
    ("nvmlDeviceGetPciInfo", ()),
    ("nvmlDeviceGetCudaComputeCapability", ()),
    ("nvmlDeviceGetPersistenceMode", ()),
    ("nvmlDeviceGetComputeMode", ()),
    ("nvmlDeviceGetDisplayMode", ()),
    ("nvmlDeviceGetDisplayActive", ()),
    ("nvmlDeviceGetMigMode", ()),
    ("nvmlDeviceGetUtilizationRates", ()),
    ("nvmlDeviceGetEncoderUtilization", ()),
    ("nvmlDeviceGetDecoderUtilization", ()),
    ("nvmlDeviceGetMemoryInfo", (NVML_MEMORY_V2,)),
    ("nvmlDeviceGetBAR1MemoryInfo", ()),
    ("nvmlDeviceGetTemperature", (0,)),
    ("nvmlDeviceGetTemperatureThreshold", (0,)),
    ("nvmlDeviceGetTemperatureThreshold", (1,)),
    ("nvmlDeviceGetFanSpeed", ()),
    ("nvmlDeviceGetPerformanceState", ()),
    ("nvmlDeviceGetPowerUsage", ()),
    ("nvmlDeviceGetPowerManagementLimit", ()),
    ("nvmlDeviceGetPowerManagementDefaultLimit", ()),
    ("nvmlDeviceGetPowerManagementLimitConstraints", ()),
    ("nvmlDeviceGetEnforcedPowerLimit", ()),
    ("nvmlDeviceGetTotalEnergyConsumption", ()),
    *[(f"nvmlDeviceGet{kind}ClockInfo", (clock,)) for kind in ("", "Max") for clock in range(4)],
    ("nvmlDeviceGetCurrentClocksThrottleReasons", ()),
    ("nvmlDeviceGetMaxPcieLinkGeneration", ()),
    ("nvmlDeviceGetMaxPcieLinkWidth", ()),
    ("nvmlDeviceGetCurrPcieLinkGeneration", ()),
    ("nvmlDeviceGetCurrPcieLinkWidth", ()),
    ("nvmlDeviceGetPcieThroughput", (0,)),
    ("nvmlDeviceGetPcieThroughput", (1,)),
    ("nvmlDeviceGetPcieReplayCounter", ()),
    ("nvmlDeviceGetEccMode", ()),
    *[("nvmlDeviceGetTotalEccErrors", (kind, counter)) for kind in (0, 1) for counter in (0, 1)],
    ("nvmlDeviceGetRemappedRows", ()),
    *[("nvmlDeviceGetNvLinkState", (link,)) for link in range(4)],
    ("nvmlDeviceGetComputeRunningProcesses", ()),
    ("nvmlDeviceGetGraphicsRunningProcesses", ()),
    ("nvmlDeviceGetFieldValues", (FIELDS[:12],)),
]
