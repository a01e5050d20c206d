# SPDX-License-Identifier: Apache-2.0
"""Our own enumeration of GPUs: typed data with units, and no printing.

Works on the object that ``with nvml_isolated() as nvml`` yields, and on ``pynvml`` itself once NVML is initialised. A
failure never becomes data here: a value is what NVML said with success, or it is None. None alone means that this
GPU or driver does not have it (NVML's NotSupported, and its all-ones marker for "not available"); what failed for any
other reason is None and has an entry in ``errors``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pynvml

from nvsandbox.asking import (
    Asker,
    Failure,
    GivenUp,
    ask_gpu,
    bus_id_ways,
    failure_of,
    gpu_count,
    memory_into,
    percent,
)
from nvsandbox.mig import MigDevice, devices_of, mig_enabled
from nvsandbox.processes import COMPUTE_AND_GRAPHICS, Process, running
from nvsandbox.structures import Temperature, Utilization, versioned
from nvsandbox.values import VALUE_TYPES, FieldValue, field_values

__all__ = ["GPU", "Failure", "FieldValue", "MigDevice", "Process", "System", "field_values", "gpus", "system"]

# ---- what comes out --------------------------------------------------------------------------------------------


@dataclass
class GPU:
    """One GPU. Three numberings are about: NVML's index, the minor number of its node, and CUDA's order (not here)."""

    index: int
    minor_number: int | None = None
    """N of ``/dev/nvidiaN``."""
    name: str | None = None
    """Bytes that are not UTF-8 are U+FFFD in it, here and in the other texts."""
    uuid: str | None = None
    pci_bus_id: str | None = None
    memory_total_bytes: int | None = None
    memory_used_bytes: int | None = None
    """Includes what is reserved where ``memory_reserved_bytes`` is None: old drivers do not tell them apart."""
    memory_free_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    utilization_gpu_percent: int | None = None
    utilization_memory_percent: int | None = None
    temperature_celsius: int | None = None
    temperature_memory_celsius: int | float | None = None
    power_milliwatts: int | None = None
    power_limit_milliwatts: int | None = None
    """The limit in force (``enforced.power.limit`` of nvidia-smi)."""
    energy_millijoules: int | float | None = None
    """Since the driver was loaded."""
    mig_enabled: bool | None = None
    """None where the GPU has no MIG."""
    mig_devices: list[MigDevice] | None = None
    """None where there is no telling; empty where MIG is off or none was made."""
    processes: list[Process] | None = None
    """None unless they were asked for. One process may be here as a compute and as a graphics process."""
    error: Failure | None = None
    """Set where this GPU as a whole cannot be queried; what was learned before that stays."""
    errors: list[Failure] = field(default_factory=list)


@dataclass
class System:
    """The driver as a whole."""

    driver_version: str | None = None
    nvml_version: str | None = None
    cuda_version: str | None = None
    """The newest CUDA that the driver can run, ``"13.0"``."""
    errors: list[Failure] = field(default_factory=list)


# ---- what is asked -----------------------------------------------------------------------------------------------


def _utilization(asker: Asker) -> tuple[int | None, int | None]:
    rates = Utilization()
    asker.call("nvmlDeviceGetUtilizationRates", asker.handle, ctypes.byref(rates))
    return percent(rates.gpu), percent(rates.memory)


def _temperature(asker: Asker) -> int:
    reading = versioned(Temperature, 1)
    asker.call("nvmlDeviceGetTemperatureV", asker.handle, ctypes.byref(reading))
    return int(reading.temperature)


def _from_field_values(asker: Asker, gpu: GPU) -> None:
    names = {
        pynvml.NVML_FI_DEV_MEMORY_TEMP: "temperature_memory_celsius",
        pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION: "energy_millijoules",
    }
    answers = asker.ask("field values", lambda: field_values(asker.nvml, asker.handle, list(names)))
    for answer in answers or ():
        if answer.code == 0 and answer.type >= len(VALUE_TYPES):
            gpu.errors.append(
                Failure(names[answer.id], 0, "UnknownValueType", f"a value of the new type {answer.type}")
            )
        elif answer.code == 0:
            setattr(gpu, names[answer.id], answer.value)
        elif answer.code != pynvml.NVML_ERROR_NOT_SUPPORTED:
            gpu.errors.append(failure_of(names[answer.id], pynvml.NVMLError(answer.code)))


def _fill(asker: Asker, gpu: GPU, processes: bool) -> None:
    gpu.minor_number = asker.ask("minor_number", lambda: asker.u32("nvmlDeviceGetMinorNumber"))
    gpu.name = asker.ask("name", lambda: asker.text("nvmlDeviceGetName", asker.handle))
    gpu.uuid = asker.ask("uuid", lambda: asker.text("nvmlDeviceGetUUID", asker.handle))
    gpu.pci_bus_id = asker.ask("pci_bus_id", *bus_id_ways(asker))
    memory_into(asker, gpu)
    rates = asker.ask("utilization", lambda: _utilization(asker))
    if rates is not None:
        gpu.utilization_gpu_percent, gpu.utilization_memory_percent = rates
    gpu.temperature_celsius = asker.ask(
        "temperature_celsius",
        lambda: _temperature(asker),
        lambda: asker.u32("nvmlDeviceGetTemperature", ctypes.c_uint(0)),
    )
    gpu.power_milliwatts = asker.ask("power_milliwatts", lambda: asker.u32("nvmlDeviceGetPowerUsage"))
    gpu.power_limit_milliwatts = asker.ask(
        "power_limit_milliwatts", lambda: asker.u32("nvmlDeviceGetEnforcedPowerLimit")
    )
    _from_field_values(asker, gpu)
    gpu.mig_enabled = asker.ask("mig_enabled", lambda: mig_enabled(asker))
    if gpu.mig_enabled is not None:
        gpu.mig_devices = devices_of(asker, gpu.errors) if gpu.mig_enabled else []
    if processes:
        gpu.processes = running(asker, COMPUTE_AND_GRAPHICS)


def _gpu(nvml: Any, index: int, processes: bool) -> GPU:
    gpu = GPU(index)
    ask_gpu(nvml, index, gpu, lambda asker: _fill(asker, gpu, processes))
    return gpu


def gpus(nvml: Any, *, processes: bool = False, indexes: Sequence[int] | None = None) -> list[GPU]:
    """All GPUs that NVML counts, in the order of its indexes; one that cannot be queried is among them with its error.
    With `indexes` only those, in their order.

    Raises NVMLError if not even their number can be had.
    """
    chosen = range(gpu_count(nvml)) if indexes is None else indexes
    return [_gpu(nvml, index, processes) for index in chosen]


def system(nvml: Any) -> System:
    """The driver's versions."""
    found = System()
    asker = Asker(nvml, found.errors)

    def cuda(function: str) -> str:
        version = ctypes.c_int()
        asker.call(function, ctypes.byref(version))
        return f"{version.value // 1000}.{version.value % 1000 // 10}"

    try:
        found.driver_version = asker.ask("driver_version", lambda: asker.text("nvmlSystemGetDriverVersion"))
        found.nvml_version = asker.ask("nvml_version", lambda: asker.text("nvmlSystemGetNVMLVersion"))
        found.cuda_version = asker.ask(
            "cuda_version",
            lambda: cuda("nvmlSystemGetCudaDriverVersion_v2"),
            lambda: cuda("nvmlSystemGetCudaDriverVersion"),
        )
    except GivenUp:
        pass  # it stands in the errors
    return found
