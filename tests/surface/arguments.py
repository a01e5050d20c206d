# SPDX-License-Identifier: Apache-2.0
"""Valid arguments for every function of the installed pynvml, from its signatures, sources and structures.

What cannot be read off pynvml itself stands in the tables below. A parameter for which nothing is known raises
Unknown, which fails the completeness test: that is how a new release of pynvml makes itself heard.
"""

from __future__ import annotations

import ctypes
import inspect
import random
import re
from collections.abc import Callable
from typing import Any, Protocol

import pynvml

from . import shapes

ROOM = 4
"""Elements in each array that a caller provides: more than the library ever says there are."""


class Unknown(Exception):
    """Nothing is known about a parameter."""


class Supply(Protocol):
    """Where handles come from, and whether structures are to be filled with rubbish or to be plausible."""

    plausible: bool

    def handle(self, kind: Any) -> Any:
        """A handle of this type."""


HANDLES = {
    "handle": "c_nvmlDevice_t",
    "device": "c_nvmlDevice_t",
    "migDevice": "c_nvmlDevice_t",
    "unit": "c_nvmlUnit_t",
    "eventSet": "c_nvmlEventSet_t",
    "setHandle": "c_nvmlSystemEventSet_t",
    "gpuInstance": "c_nvmlGpuInstance_t",
    "computeInstance": "c_nvmlComputeInstance_t",
    "gpmSample": "c_nvmlGpmSample_t",
}

# Parameters that are integers, and what is passed when a plausible value is wanted.
INTEGERS = {
    "apiType": 0, "c_ccMemSize": 0, "capability": 1, "clockType": 1, "color": 1, "computeInstanceId": 0,
    "counter": 0, "counterType": 0, "cpuNumber": 0, "cpuSetSize": 2, "enabled": 1, "encoderQueryType": 0,
    "encoder_capacity": 50, "engProfile": 0, "errorType": 0, "eventTypes": 8, "fan": 0, "fanControlPolicy": 0,
    "flags": 0, "freeze": 1, "gpuInstanceId": 1, "heterogeneous_mode": 1, "id": 0, "index": 0, "infoRomObject": 1,
    "isRestricted": 0, "l1threshold": 10, "level": 20, "limit": 300000, "link": 0, "locationType": 1,
    "maxGpuClockMHz": 1500, "maxGraphicsClockMHz": 1500, "maxMemClockMHz": 2000, "max_atk_adv": 1,
    "memoryClockMHz": 2619, "minGpuClockMHz": 300, "minMemClockMHz": 800, "mode": 0, "model": 0, "newState": 0,
    "nodeSetSize": 2, "offset": -15, "p2pIndex": 0, "perfPolicyType": 0, "pid": 1, "powerLimit": 300000,
    "powerScope": 0, "profile": 0, "profileId": 0, "pstate": 0, "reset": 0, "result": 3, "sampling_type": 0,
    "scope": 0, "sensor": 0, "sensorindex": 0, "sourceFilter": 0, "speed": 50, "state": 1, "temp": 80,
    "threshold": 0, "timeStamp": 0, "timeoutMs": 1, "timeoutms": 1, "type": 0, "vgpuInstance": 1, "vgpuTypeId": 11,
    "virtualization_mode": 0,
}  # fmt: skip

# Integers with which pynvml itself allocates, or from which it chooses a structure.
SMALL = {"cpuSetSize", "nodeSetSize", "eventDataSize"}

TEXTS = {
    "uuid": "GPU-00000000-1111-2222-3333-444444444444",
    "serial": "1234567890",
    "pciBusId": "00000000:01:00.0",
    "hostname": "node-17",
}

# Structures that a parameter's or function's name does not lead to; the pair's first is a function or "*".
STRUCTURES = {
    ("*", "pciInfo"): "nvmlPciInfo_t",
    ("*", "vgpuMetadata"): "c_nvmlVgpuMetadata_t",
    ("*", "pgpuMetadata"): "c_nvmlVgpuPgpuMetadata_t",
    ("*", "supported"): "c_nvmlVgpuVersion_t",
    ("*", "current"): "c_nvmlVgpuVersion_t",
    ("*", "c_vgpus"): "c_nvmlVgpuTypeIdInfo_v1_t",
    ("*", "c_vgpu_instance_info"): "c_nvmlActiveVgpuInstanceInfo_v1_t",
    ("*", "c_vgpu_sched_state_info"): "c_nvmlVgpuSchedulerStateInfo_v1_t",
    ("*", "c_vgpu_sched_log_info"): "c_nvmlVgpuSchedulerLogInfo_v1_t",
    ("*", "c_vgpu_sched_state_info_v2"): "c_nvmlVgpuSchedulerStateInfo_v2_t",
    ("*", "c_vgpu_sched_log_info_v2"): "c_nvmlVgpuSchedulerLogInfo_v2_t",
    ("*", "c_vgpu_placements"): "c_nvmlVgpuCreatablePlacementInfo_v1_t",
    ("*", "sched_state_v2"): "c_nvmlVgpuSchedulerState_v2_t",
    ("nvmlDeviceSetVgpuSchedulerState", "sched_state"): "c_nvmlVgpuSchedulerSetState_t",
    ("nvmlGpuInstanceSetVgpuSchedulerState", "sched_state"): "c_nvmlVgpuSchedulerState_v1_t",
    ("nvmlDeviceReadWritePRM_v1", "c_info"): "c_nvmlPRMTLV_v1_t",
    ("nvmlDeviceReadPRMCounters_v1", "c_info"): "c_nvmlPRMCounterList_v1_t",
    ("nvmlEventSetRegisterGpuOperationalEvents_v1", "config"): "c_nvmlGpuOperationalEventConfig_v1_t",
    ("nvmlDeviceCreateGpuInstanceWithPlacement", "placement"): "c_nvmlGpuInstancePlacement_t",
    ("nvmlGpuInstanceCreateComputeInstanceWithPlacement", "placement"): "c_nvmlComputeInstancePlacement_t",
    ("nvmlDeviceGetPowerMizerMode_v1", "info"): "c_nvmlDevicePowerMizerModes_v1_t",
    ("nvmlDeviceSetPowerMizerMode_v1", "info"): "c_nvmlDevicePowerMizerModes_v1_t",
    ("nvmlDeviceGetClockOffsets", "info"): "c_nvmlClockOffset_t",
    ("nvmlDeviceSetClockOffsets", "info"): "c_nvmlClockOffset_t",
    ("nvmlDeviceGetNvLinkInfo", "info"): "c_nvmlNvLinkInfo_v2_t",
    ("nvmlDeviceGetRemappedRows_v2", "info"): "c_nvmlRemappedRowsInfo_v2_t",
    ("nvmlDeviceGetGpuFabricInfoV", "gpuFabricInfo"): "c_nvmlGpuFabricInfo_v3_t",
    ("nvmlDeviceGetGpuFabricInfo", "gpuFabricInfo"): "c_nvmlGpuFabricInfo_t",
    ("nvmlDeviceGetSramEccErrorStatus", "status"): "c_nvmlEccSramErrorStatus_v1_t",
    ("nvmlDeviceGetBankRemapperStatus_v1", "status"): "c_nvmlEccBankRemapperStatus_v1_t",
    ("nvmlDeviceGetCapabilities", "caps"): "c_nvmlDeviceCapabilities_v1_t",
    ("*", "profilesInfo"): "c_nvmlWorkloadPowerProfileProfilesInfo_v1_t",
    ("*", "currentProfiles"): "c_nvmlWorkloadPowerProfileCurrentProfiles_v1_t",
    ("*", "requestedProfiles"): "c_nvmlWorkloadPowerProfileRequestedProfiles_v1_t",
    ("*", "getBwMode"): "c_nvmlNvlinkGetBwMode_v1_t",
    ("*", "setBwMode"): "c_nvmlNvlinkSetBwMode_v1_t",
    ("*", "setBwModeAsync"): "c_nvmlNvlinkSetBwModeAsync_v1_t",
    ("nvmlDevicePowerSmoothingActivatePresetProfile", "profile"): "c_nvmlPowerSmoothingProfile_v1_t",
    ("nvmlDevicePowerSmoothingUpdatePresetProfileParam", "profile"): "c_nvmlPowerSmoothingProfile_v1_t",
    ("nvmlDevicePowerSmoothingSetState", "state"): "c_nvmlPowerSmoothingState_v1_t",
    ("*", "counts"): "c_nvmlEccSramUniqueUncorrectedErrorCounts_v1_t",
    ("nvmlDevicePerfMetricsGetSamples_v1", "samples"): "c_nvmlPerfMetricsSamples_v1_t",
}

# References that pynvml hands on as they are: what is behind them.
REFERENCES: dict[tuple[str, str], Callable[[], Any]] = {
    ("nvmlDeviceGetGpuInstancePossiblePlacements", "placementsRef"): lambda: (
        pynvml.c_nvmlGpuInstancePlacement_t * ROOM
    )(),
    ("nvmlGpuInstanceGetComputeInstancePossiblePlacements", "placementsRef"): lambda: (
        pynvml.c_nvmlComputeInstancePlacement_t * ROOM
    )(),
    ("*", "gpuInstancesRef"): lambda: (pynvml.c_nvmlGpuInstance_t * ROOM)(),
    ("*", "computeInstancesRef"): lambda: (pynvml.c_nvmlComputeInstance_t * ROOM)(),
    ("*", "countRef"): lambda: ctypes.byref(ctypes.c_uint(ROOM)),
}

# Parameters that have a default in newer releases, which says what they are, and in older ones have none.
OUTPUTS = {
    "moduleId": "c_uint", "minSpeed": "c_uint", "maxSpeed": "c_uint", "isEnabled": "c_uint", "defaultMode": "c_uint",
    "minClockMHz": "c_uint", "maxClockMHz": "c_uint", "minOffset": "c_int", "maxOffset": "c_int",
    "c_clkMonInfo": "nvmlClkMonStatus_t", "c_dynamicpstatesinfo": "c_nvmlGpuDynamicPstatesInfo_t",
    "c_thermalsettings": "c_nvmlGpuThermalSettings_t",
}  # fmt: skip

_LISTS = {"gpuInstancesRef", "computeInstancesRef", "placementsRef"}


def functions() -> dict[str, Any]:
    """Every function of pynvml whose name is one of NVML's."""
    return {
        name: value for name, value in vars(pynvml).items() if name.startswith("nvml") and inspect.isfunction(value)
    }


def _core(name: str) -> str:
    return re.sub(r"_v\d+|_t$|^(c_)?nvml", "", name).lower()


def _version(name: str) -> int:
    found = re.search(r"_v(\d+)", name)
    return int(found.group(1)) if found else 0


def structure(function: str, parameter: str) -> Any:
    """The structure that a parameter takes, or None."""
    for key in ((function, parameter), ("*", parameter)):
        if key in STRUCTURES:
            name = STRUCTURES[key]
            # An older pynvml knows an older version of it.
            names = [name, *(re.sub(r"_v\d+_t$", f"_v{older}_t", name) for older in range(_version(name) - 1, 0, -1))]
            for name in names:
                if hasattr(pynvml, name):
                    return getattr(pynvml, name)
    wanted = _core(function)
    half = re.sub(r"^(device|system|gpuinstance)?", "", wanted)
    bare = re.sub(r"^(get|set)?", "", half)
    found = [
        (_version(name) == _version(function), _version(name), name)
        for name, kind in vars(pynvml).items()
        if inspect.isclass(kind)
        and issubclass(kind, (ctypes.Structure, ctypes.Union))
        and hasattr(kind, "_fields_")
        and _core(name) in (wanted, half, bare, "device" + bare, "system" + bare)
    ]
    return getattr(pynvml, max(found)[2]) if found else None


def version_of(kind: Any) -> int:
    """The number that a structure's `version` field must hold."""
    name = re.sub(r"_t$|^c_", "", kind.__name__)
    for candidate in (name, name + "_v1", name.removeprefix("nvml"), name.removeprefix("nvml") + "_v1"):
        value = getattr(pynvml, candidate, None)
        if isinstance(value, int):
            return value
    return ctypes.sizeof(kind) | max(1, _version(kind.__name__)) << 24


def make(kind: Any) -> Any:
    """A zeroed structure. Some constructors of pynvml always raise, so that they are left out."""
    return kind.__new__(kind)


def fill(target: Any, supply: Supply, rng: random.Random) -> Any:
    """Gives each field of a structure a value: a plausible one or any at all, as the supply says."""
    kind = type(target)
    names = [name for name, _, _ in shapes.fields(kind)]
    for name, part, offset in shapes.fields(kind):
        at = ctypes.addressof(target) + offset
        if name == "version":
            setattr(target, name, version_of(kind))
        elif shapes.is_opaque(part):
            setattr(target, name, supply.handle(part))
        elif shapes.is_pointer_type(part):
            pointee = part._type_
            array = (pointee * ROOM)()
            for i in range(ROOM):
                if issubclass(pointee, ctypes.Structure):
                    fill(array[i], supply, rng)
                elif not supply.plausible:
                    array[i] = rng.getrandbits(8 * ctypes.sizeof(pointee))
            if issubclass(pointee, ctypes.Structure):
                # What elements keep alive, the array does not know by itself.
                array._kept = [array[i] for i in range(ROOM)]
            setattr(target, name, array)
        elif part is ctypes.c_void_p:
            setattr(target, name, ctypes.cast((ctypes.c_ubyte * 64)(), ctypes.c_void_p))
        elif part is ctypes.c_char_p:
            setattr(target, name, rng.choice([None, b"", b"name-space"]))
        elif issubclass(part, ctypes.Structure):
            fill(getattr(target, name), supply, rng)
        elif issubclass(part, ctypes.Array) and issubclass(part._type_, (ctypes.Structure, ctypes._Pointer)):
            for element in getattr(target, name):
                fill(element, supply, rng)
        elif not supply.plausible:
            size = ctypes.sizeof(part)
            text = part._type_ is ctypes.c_char if issubclass(part, ctypes.Array) else False
            content = bytes(rng.randrange(33, 127) for _ in range(size)) if text else rng.randbytes(size)
            ctypes.memmove(at, content, size)
    for name, part, _ in shapes.fields(kind):
        pointers = any(shapes.is_pointer_type(p) or p is ctypes.c_void_p for _, p, _ in shapes.fields(kind))
        if pointers and name in names and issubclass(part, shapes._Simple) and shapes._COUNTS.search(name):
            setattr(target, name, 64 if "bytes" in name.lower() or hasattr(kind, "data") else ROOM)
    return target


def _integer(name: str, plain: int, supply: Supply, rng: random.Random) -> int:
    if supply.plausible or name in SMALL:
        return plain
    return rng.choice([0, 1, 2, 3, 7, 255, 0x7FFFFFFF, 0xFFFFFFFF, -1, rng.getrandbits(32)])


def value(function: str, parameter: inspect.Parameter, supply: Supply, rng: random.Random) -> Any:
    """One valid argument."""
    name = parameter.name
    source = inspect.getsource(getattr(pynvml, function))
    bare = re.sub(r"[12]$", "", name)
    if bare in HANDLES:
        kind = HANDLES[bare]
        if bare == "device" and function.startswith("nvmlGpuInstance"):
            kind = "c_nvmlGpuInstance_t"
        return supply.handle(getattr(pynvml, kind))
    for key in ((function, name), ("*", name)):
        if key in REFERENCES:
            if name in _LISTS and rng.random() < 0.25:
                return None
            return REFERENCES[key]()
    if function == "nvmlDeviceGetGspFirmwareVersion" and name == "version":
        return ctypes.create_string_buffer(pynvml.NVML_GSP_FIRMWARE_VERSION_BUF_SIZE)
    if name == "version":
        return _version_argument(function, parameter, source)
    if name == "uuid" and "type" in inspect.signature(getattr(pynvml, function)).parameters:
        return TEXTS["uuid"]
    if name == "type" and function == "nvmlDeviceGetHandleByUUIDV":
        return pynvml.NVML_UUID_TYPE_ASCII
    if name in TEXTS:
        return TEXTS[name]
    if name == "fieldIds":
        return rng.choice([[1, 2, 82], [(138, 0), (139, 1)], [pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON], []])
    if name == "c_nonce":
        return [rng.randrange(256) for _ in range(32)]
    if name == "eventData":
        return (pynvml.c_nvmlSystemEventData_v1_t * ROOM)()
    if name == "eventDataSize":
        return ROOM
    if name == "nvmlErrorCode":
        return rng.choice([1, 3, 6, 12, 999, 4711])
    if name in ("struct", "model"):
        if function == "nvmlStructToFriendlyObject":
            return fill(make(pynvml.c_nvmlProcessInfo_t), supply, rng)
        if function == "nvmlFriendlyObjectToStruct":
            return make(pynvml.c_nvmlUnitInfo_t)
    if name == "obj":
        return pynvml.nvmlFriendlyObject(dict.fromkeys(["name", "id", "serial", "firmwareVersion"], "text"))
    if parameter.default is not parameter.empty and isinstance(parameter.default, shapes._Simple):
        return ctypes.byref(type(parameter.default)(0))
    if parameter.default is not parameter.empty and isinstance(parameter.default, ctypes.Structure):
        return ctypes.byref(type(parameter.default)())
    if name in OUTPUTS:
        return ctypes.byref(getattr(pynvml, OUTPUTS[name])())
    if name in INTEGERS and (function, name) not in STRUCTURES:
        return _integer(name, INTEGERS[name], supply, rng)
    kind = structure(function, name)
    if kind is not None:
        target = fill(make(kind), supply, rng)
        by_value = re.search(rf"(byref|pointer)\({name}\)|\b{name}\.\w", source)
        return target if by_value else ctypes.byref(target)
    raise Unknown(f"{function}: parameter {name}: add it to the tables of {__name__}")


def _version_argument(function: str, parameter: inspect.Parameter, source: str) -> int:
    compared = re.search(r"version [!=]= (\w+)", source)
    if compared:
        return int(getattr(pynvml, compared.group(1), 0) or 0) if not compared.group(1).isdigit() else 1
    built = re.search(r"(c_nvml\w+)\(\)\s*\n\s*\w+\.version = version", source)
    if built:
        return version_of(getattr(pynvml, built.group(1)))
    if isinstance(parameter.default, int):
        return parameter.default
    raise Unknown(f"{function}: which version?")


def arguments(function: str, optional: bool, supply: Supply, rng: random.Random) -> list[Any] | None:
    """Valid arguments, with or without those that have a default. None where there are no such to leave out."""
    parameters = list(inspect.signature(getattr(pynvml, function)).parameters.values())
    required = [parameter for parameter in parameters if parameter.default is parameter.empty]
    if optional and len(required) == len(parameters):
        return None
    return [value(function, parameter, supply, rng) for parameter in (parameters if optional else required)]
