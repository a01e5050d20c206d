# SPDX-License-Identifier: Apache-2.0
"""Which functions of NVML never go the short way, and why: all others must, from the second call of its kind on."""

from __future__ import annotations

_LIFE = "initialisations are counted (nvsandbox/bindings.py)"
_GIVES = "gives a handle, which is noted so that it can outlive its worker (nvsandbox/revival.py)"
_STATE = "makes or ends state in the worker, which is counted (nvsandbox/session.py)"
_WAITS = "has a time limit of its own (nvsandbox/session.py)"
_POINTERS = "a structure with a pointer in it"
_STRINGS = "a structure with a C string in it"
_POINTER = "pynvml passes pointer(), where for others it passes byref()"
_TEXT = "returns text, not an error code"

MARSHALLED = {
    "nvmlInit": _LIFE,
    "nvmlInit_v2": _LIFE,
    "nvmlInitWithFlags": _LIFE,
    "nvmlShutdown": _LIFE,
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": _GIVES,
    "nvmlDeviceGetHandleByIndex_v2": _GIVES,
    "nvmlDeviceGetHandleByPciBusId_v2": _GIVES,
    "nvmlDeviceGetHandleBySerial": _GIVES,
    "nvmlDeviceGetHandleByUUID": _GIVES,
    "nvmlDeviceGetHandleByUUIDV": _GIVES,
    "nvmlDeviceGetMigDeviceHandleByIndex": _GIVES,
    "nvmlUnitGetHandleByIndex": _GIVES,
    "nvmlComputeInstanceDestroy": _STATE,
    "nvmlDeviceCreateGpuInstance": _STATE,
    "nvmlDeviceCreateGpuInstanceWithPlacement": _STATE,
    "nvmlEventSetCreate": _STATE,
    "nvmlEventSetFree": _STATE,
    "nvmlGpmSampleAlloc": _STATE,
    "nvmlGpmSampleFree": _STATE,
    "nvmlGpuInstanceCreateComputeInstance": _STATE,
    "nvmlGpuInstanceCreateComputeInstanceWithPlacement": _STATE,
    "nvmlGpuInstanceDestroy": _STATE,
    "nvmlSystemEventSetCreate": _STATE,
    "nvmlSystemEventSetFree": _STATE,
    "nvmlEventSetWait": _WAITS,
    "nvmlEventSetWait_v2": _WAITS,
    "nvmlEventSetWait_v3": _WAITS,
    "nvmlSystemEventSetWait": _WAITS,
    "nvmlDeviceGetNvLinkTelemetrySamples_v1": _POINTERS,
    "nvmlDeviceGetProcessesUtilizationInfo": _POINTERS,
    "nvmlDeviceGetRunningProcessDetailList": _POINTERS,
    "nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts": _POINTERS,
    "nvmlDeviceGetVgpuInstancesUtilizationInfo": _POINTERS,
    "nvmlDeviceGetVgpuProcessesUtilizationInfo": _POINTERS,
    "nvmlDeviceGetVgpuTypeCreatablePlacements": _POINTERS,
    "nvmlDeviceGetVgpuTypeSupportedPlacements": _POINTERS,
    "nvmlDeviceReadPRMCounters_v1": _POINTERS,
    "nvmlEventSetGetContextData_v1": _POINTERS,
    "nvmlGpuInstanceGetActiveVgpus": _POINTERS,
    "nvmlGpuInstanceGetCreatableVgpus": _POINTERS,
    "nvmlGpuInstanceGetVgpuTypeCreatablePlacements": _POINTERS,
    "nvmlSystemGetCPER_v1": _POINTERS,
    "nvmlDeviceGetMemoryLimits_v1": _STRINGS,
    "nvmlDeviceSetMemoryLimits_v1": _STRINGS,
    "nvmlGpmMetricsGet": _STRINGS,
    "nvmlDeviceDiscoverGpus": _POINTER,
    "nvmlDeviceModifyDrainState": _POINTER,
    "nvmlDeviceQueryDrainState": _POINTER,
    "nvmlDeviceRemoveGpu": _POINTER,
    "nvmlErrorString": _TEXT,
}
