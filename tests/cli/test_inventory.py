# SPDX-License-Identifier: Apache-2.0
"""What the inventory makes of an NVML that says odd things."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pynvml
import pytest

from nvsandbox import inventory, nvml_isolated

NOT_SUPPORTED, FUNCTION_NOT_FOUND, VERSION_MISMATCH, UNKNOWN = 3, 13, 25, 999


class FakeNvml:
    """Functions by name, as pynvml looks them up; any other says NOT_SUPPORTED."""

    def __init__(self, **functions: Callable[..., int]) -> None:
        self.functions = functions
        self.missing: set[str] = set()

    def _nvmlGetFunctionPointer(self, name: str) -> Callable[..., int]:
        if name in self.missing:
            raise pynvml.NVMLError(FUNCTION_NOT_FOUND)
        if name.startswith(("nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex")):
            return self.functions.get(name, self.one_gpu)
        return self.functions.get(name, lambda *arguments: NOT_SUPPORTED)

    @staticmethod
    def one_gpu(*arguments: Any) -> int:
        target = arguments[-1]._obj
        if isinstance(target, ctypes.c_uint):
            target.value = 1
        return 0


def gpu_of(nvml: FakeNvml, processes: bool = False) -> inventory.GPU:
    (gpu,) = inventory.gpus(nvml, processes=processes)
    return gpu


def test_mixed_field_values_each_by_its_own_code_and_type() -> None:
    ids = list(range(60, 130))
    with nvml_isolated(simulate="h100,fields=mixed") as nvml:
        answers = inventory.field_values(nvml, nvml.nvmlDeviceGetHandleByIndex(0), ids)
    assert [answer.id for answer in answers] == ids
    assert {answer.type for answer in answers if answer.code == 0} == set(range(7))
    assert {answer.code for answer in answers} == {0, NOT_SUPPORTED, UNKNOWN}
    for answer in answers:
        number = 100 + answer.id
        right = {0: number + 0.5, 4: -number, 5: -number}.get(answer.type, number)
        assert answer.value == (right if answer.code == 0 else None), answer


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        (0, b"\0\0\0\0\0\0\xf8\x7f", None),  # NaN
        (0, b"\0\0\0\0\0\0\xf0\x7f", None),  # infinity
        (1, b"\xff\xff\xff\xff\0\0\0\0", None),
        (1, b"\x2a\0\0\0\xff\xff\xff\xff", 42),
        (3, b"\xff" * 8, None),
        (4, b"\xff" * 8, -1),
        (5, b"\xff\xff\xff\xff\0\0\0\0", -1),
        (6, b"\x2a\0\xff\xff\xff\xff\xff\xff", 42),
        (7, b"\x2a\0\0\0\0\0\0\0", None),  # a type that nobody knows yet
    ],
)
def test_a_field_value_is_read_at_its_own_width(kind: int, raw: bytes, value: float | None) -> None:
    def values(handle: Any, count: Any, array: Any) -> int:
        for entry in array._obj:
            entry.code, entry.type = 0, kind
            ctypes.memmove(ctypes.addressof(entry.value), raw, 8)
        return 0

    gpu = gpu_of(FakeNvml(nvmlDeviceGetFieldValues=values))
    assert gpu.energy_millijoules == value
    assert [failure.type for failure in gpu.errors] == (["UnknownValueType"] * 2 if kind == 7 else [])


def test_any_other_error_is_null_with_a_reason() -> None:
    gpu = gpu_of(FakeNvml(nvmlDeviceGetPowerUsage=lambda *arguments: UNKNOWN))
    assert gpu.power_milliwatts is None
    assert [(failure.field, failure.code, failure.type) for failure in gpu.errors] == [
        ("power_milliwatts", UNKNOWN, "NVMLError_Unknown")
    ]


@pytest.mark.parametrize("code", [FUNCTION_NOT_FOUND, VERSION_MISMATCH])
def test_older_forms_are_asked_where_the_newer_are_not_known(code: int) -> None:
    def memory(handle: Any, info: Any) -> int:
        info._obj.total, info._obj.free, info._obj.used = 100, 40, 60
        return 0

    nvml = FakeNvml(nvmlDeviceGetMemoryInfo_v2=lambda *arguments: code, nvmlDeviceGetMemoryInfo=memory)
    gpu = gpu_of(nvml)
    assert (gpu.memory_total_bytes, gpu.memory_used_bytes, gpu.memory_reserved_bytes) == (100, 60, None)
    assert gpu.errors == []


def test_a_function_that_is_nowhere_is_an_error_of_its_field() -> None:
    nvml = FakeNvml()
    nvml.missing = {"nvmlDeviceGetMigMode"}
    gpu = gpu_of(nvml)
    assert (gpu.mig_enabled, gpu.mig_devices) == (None, None)
    assert [(failure.field, failure.type) for failure in gpu.errors] == [("mig_enabled", "NVMLError_FunctionNotFound")]


def test_half_a_process_list_is_none() -> None:
    nvml = FakeNvml(
        nvmlDeviceGetComputeRunningProcesses_v3=lambda *arguments: 0,
        nvmlDeviceGetGraphicsRunningProcesses_v3=lambda *arguments: UNKNOWN,
    )
    assert gpu_of(nvml, processes=True).processes is None
    del nvml.functions["nvmlDeviceGetGraphicsRunningProcesses_v3"]
    assert gpu_of(nvml, processes=True).processes == []


def test_without_initialisation_there_is_no_inventory() -> None:
    nvml = FakeNvml(nvmlDeviceGetName=lambda *arguments: 1)
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        inventory.gpus(nvml)


def test_plain_pynvml_in_a_block_will_do() -> None:
    with nvml_isolated(simulate="l40sx2"):
        pynvml.nvmlInit()
        try:
            assert [gpu.name for gpu in inventory.gpus(pynvml)] == ["NVIDIA L40S"] * 2
        finally:
            pynvml.nvmlShutdown()


def test_the_older_memory_query_where_the_newer_is_not_supported() -> None:
    """U3"""

    def first(handle: Any, out: Any) -> int:
        out._obj.total, out._obj.used, out._obj.free = 100, 30, 70
        return 0

    gpu = gpu_of(FakeNvml(nvmlDeviceGetMemoryInfo=first))  # the newer one says NOT_SUPPORTED
    figures = (gpu.memory_total_bytes, gpu.memory_used_bytes, gpu.memory_free_bytes, gpu.memory_reserved_bytes)
    assert figures == (100, 30, 70, None)
    assert gpu.errors == []


def test_memory_of_zero_bytes_is_no_figure() -> None:
    """U3"""
    gpu = gpu_of(FakeNvml(nvmlDeviceGetMemoryInfo_v2=lambda *arguments: 0))
    assert gpu.memory_total_bytes is None
    assert gpu.memory_used_bytes is None


@pytest.mark.parametrize(("said", "told"), [(10813861, None), (101, None), (100, 100), (0, 0)])
def test_over_a_hundred_is_no_percentage(said: int, told: int | None) -> None:
    """U3"""

    def rates(handle: Any, out: Any) -> int:
        out._obj.gpu, out._obj.memory = said, 7
        return 0

    gpu = gpu_of(FakeNvml(nvmlDeviceGetUtilizationRates=rates))
    assert (gpu.utilization_gpu_percent, gpu.utilization_memory_percent) == (told, 7)
