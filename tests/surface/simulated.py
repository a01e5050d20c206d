# SPDX-License-Identifier: Apache-2.0
"""A side against the simulated driver: plausible arguments, handles got as a program gets them."""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml

from . import arguments
from .paths import Paths
from .side import opened, outcome, seeded

CHOICES = ["first", "last", "mig"]
"""Which device a case is about: the first GPU, the last one, or a MIG device of the first."""


class SimulatedSupply:
    """Handles from the API itself. Where there is none of a kind, NULL."""

    plausible = True

    def __init__(self, api: Any) -> None:
        self._api = api
        self.choice = "first"

    def _gpu(self) -> Any:
        last = self._api.nvmlDeviceGetCount() - 1
        return self._api.nvmlDeviceGetHandleByIndex(last if self.choice == "last" else 0)

    def _gpu_instance(self) -> Any:
        found = (pynvml.c_nvmlGpuInstance_t * 8)()
        for profile in range(8):
            count = ctypes.c_uint(8)
            try:
                self._api.nvmlDeviceGetGpuInstances(self._gpu(), profile, found, ctypes.byref(count))
            except pynvml.NVMLError:
                continue
            if count.value:
                return found[0]
        return pynvml.c_nvmlGpuInstance_t()

    def _compute_instance(self) -> Any:
        instance = self._gpu_instance()
        found = (pynvml.c_nvmlComputeInstance_t * 8)()
        for profile in range(8):
            count = ctypes.c_uint(8)
            try:
                self._api.nvmlGpuInstanceGetComputeInstances(instance, profile, found, ctypes.byref(count))
            except pynvml.NVMLError:
                continue
            if count.value:
                return found[0]
        return pynvml.c_nvmlComputeInstance_t()

    def handle(self, kind: Any) -> Any:
        """A handle of this type."""
        api = self._api
        makers = {
            "struct_c_nvmlDevice_t": lambda: (
                api.nvmlDeviceGetMigDeviceHandleByIndex(self._gpu(), 0) if self.choice == "mig" else self._gpu()
            ),
            "struct_c_nvmlEventSet_t": api.nvmlEventSetCreate,
            "struct_c_nvmlSystemEventSet_t": lambda: api.nvmlSystemEventSetCreate(
                pynvml.nvmlSystemEventSetCreateRequest_v1
            ),
            "struct_c_nvmlGpmSample_t": api.nvmlGpmSampleAlloc,
            "struct_c_nvmlGpuInstance_t": self._gpu_instance,
            "struct_c_nvmlComputeInstance_t": self._compute_instance,
            "struct_c_nvmlUnit_t": lambda: api.nvmlUnitGetHandleByIndex(0),
        }
        try:
            return makers[kind._type_.__name__]()
        except pynvml.NVMLError:
            return kind()

    def identify(self, handle: Any) -> Any:
        """What a handle stands for, in words that are the same in two processes."""
        if not handle:
            return None
        api, name = self._api, type(handle)._type_.__name__
        try:
            if name == "struct_c_nvmlDevice_t":
                return api.nvmlDeviceGetUUID(handle)
            if name == "struct_c_nvmlGpuInstance_t":
                return api.nvmlGpuInstanceGetInfo(handle).id
            if name == "struct_c_nvmlComputeInstance_t":
                return api.nvmlComputeInstanceGetInfo(handle).id
        except pynvml.NVMLError as error:
            return str(error)
        return "a handle"


def run(cases: list[dict[str, Any]], mode: str, options: dict[str, str]) -> list[Any]:
    """Every case against the simulated driver."""
    found: list[Any] = []
    with opened(mode, options) as (api, _):
        supply = SimulatedSupply(api)
        paths = Paths(api.session) if mode == "shm" else None
        for case in cases:
            supply.choice = case["choice"]
            rng = seeded({**case, "seed": case["choice"]})
            given = arguments.arguments(case["function"], case["optional"], supply, rng)
            if given is None:
                found.append(None)
                continue
            function = getattr(api, case["function"])
            one = outcome(paths.counted(function) if paths else function, given, supply.identify)
            one["paths"] = paths.found if paths else None
            found.append(one)
    return found
