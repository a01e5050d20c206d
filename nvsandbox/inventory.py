# SPDX-License-Identifier: Apache-2.0
"""Our own enumeration of GPUs: typed data with units, and no printing.

Works on the object that ``with nvml_isolated() as nvml`` yields, and on ``pynvml`` itself once NVML is initialised. A
failure never becomes data here: a value is what NVML said with success, or it is None. None alone means that this
GPU or driver does not have it (NVML's NotSupported, and its all-ones marker for "not available"); what failed for any
other reason is None and has an entry in ``errors``.

pynvml's wrappers are not used, for they decode what NVML wrote, and one byte of rubbish in a name would cost all that
follows it. So the functions are called by their pointers, with structures of our own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pynvml

from nvsandbox.errors import CallTimeout, StaleHandle, WorkerDied

__all__ = ["GPU", "Failure", "FieldValue", "MigDevice", "Process", "System", "field_values", "gpus", "system"]

_T = TypeVar("_T")
_U32 = (1 << 32) - 1
_U64 = (1 << 64) - 1

_TEXT = 96  # at least as long as every text that is asked for here
_LIST_TRIES = 8  # for a list that goes on growing between the question for its length and the one for its entries
_DEATHS = 2  # of workers, after which a GPU is given up


# ---- what comes out --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Failure:
    """Why something is missing."""

    field: str
    """The name of the attribute that is None because of this; of a GPU as a whole "gpu", of a MIG device "mig[3]"."""
    code: int
    """NVML's return code (of the kind that it stands for, where the sandbox itself failed)."""
    type: str
    """The exception's class: ``"NVMLError_GpuIsLost"``, ``"CallTimeout"``."""
    message: str


@dataclass(frozen=True)
class Process:
    """A process that uses a GPU."""

    pid: int
    """As NVML says it. In a container this may be a number of the host's, which is somebody else's here."""
    kind: str
    """``"compute"`` or ``"graphics"``."""
    used_memory_bytes: int | None
    gpu_instance_id: int | None
    compute_instance_id: int | None


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


@dataclass(frozen=True)
class FieldValue:
    """One of NVML's field values. `value` is None unless `code` is 0 and NVML had a value of a known type."""

    id: int
    code: int
    type: int
    value: int | float | None


# ---- asking ----------------------------------------------------------------------------------------------------


class _GivenUp(Exception):
    """This GPU's calls hang or kill the worker: nothing more is asked of it."""


def _failure(name: str, error: pynvml.NVMLError) -> Failure:
    # What became of the worker is of no interest here: the next GPU has another one.
    hung = isinstance(error, CallTimeout) and error.sent
    text = f"{error.call} did not return within {error.limit:g} s" if hung else str(error)
    return Failure(name, int(error.value), type(error).__name__, text)


class _Asker:
    """Asks one object (the system, a GPU, a MIG device) for one thing after another, each of which fails on its own."""

    def __init__(self, nvml: Any, errors: list[Failure], resolve: Callable[[], Any] | None = None) -> None:
        self.nvml = nvml
        self._errors = errors
        self._resolve = resolve
        self._deaths = 0
        self.handle: Any = resolve() if resolve is not None else None

    def call(self, function: str, *arguments: Any) -> None:
        """Raises what pynvml would."""
        code = self.nvml._nvmlGetFunctionPointer(function)(*arguments)
        if code != 0:
            raise pynvml.NVMLError(code)

    def ask(self, name: str, *ways: Callable[[], _T]) -> _T | None:
        """What the first of `ways` gives whose function this driver has; None if it fails."""
        try:
            for way in ways[:-1]:
                try:
                    return self._once(way)
                except (pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_ArgumentVersionMismatch):
                    continue  # an older driver: the next way is the older function
            return self._once(ways[-1])
        except pynvml.NVMLError_NotSupported:
            return None
        except pynvml.NVMLError_Uninitialized:
            raise  # not a matter of this field: no answer would come to any question
        except pynvml.NVMLError as error:
            self._errors.append(_failure(name, error))
            self._deaths += isinstance(error, WorkerDied)
            if isinstance(error, CallTimeout) or self._deaths >= _DEATHS:
                raise _GivenUp from error
            return None

    def _once(self, way: Callable[[], _T]) -> _T:
        try:
            return way()
        except StaleHandle:
            # The worker died in an earlier question, and the handle with it.
            if self._resolve is None:
                raise
            self.handle = self._resolve()
            return way()

    # -- the shapes of NVML's functions

    def u32(self, function: str, *between: Any) -> int | None:
        out = ctypes.c_uint()
        self.call(function, self.handle, *between, ctypes.byref(out))
        return _number(out.value, _U32)

    def text(self, function: str, *before: Any) -> str:
        out = (ctypes.c_char * _TEXT)()
        self.call(function, *before, out, ctypes.c_uint(_TEXT))
        return _decoded(out.raw)


def _number(value: int, marker: int) -> int | None:
    return None if value == marker else value


def _decoded(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace")


# ---- structures, by the layouts of NVML's ABI --------------------------------------------------------------------


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Memory2(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Pci(ctypes.Structure):
    # Before version 3 the structure had four reserved words where `bus_id` is.
    _fields_ = (
        ("bus_id_legacy", ctypes.c_char * 16),
        ("numbers", ctypes.c_uint * 5),
        ("bus_id", ctypes.c_char * 32),
    )


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Temperature(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint), ("sensor", ctypes.c_uint), ("temperature", ctypes.c_int))


class _Process1(ctypes.Structure):
    _fields_ = (("pid", ctypes.c_uint), ("memory", ctypes.c_ulonglong))


class _Process2(ctypes.Structure):
    _fields_ = (*_Process1._fields_, ("gi", ctypes.c_uint), ("ci", ctypes.c_uint))


class _Value(ctypes.Union):
    _fields_ = (
        ("double", ctypes.c_double),
        ("uint", ctypes.c_uint),
        ("ulong", ctypes.c_ulong),
        ("ulonglong", ctypes.c_ulonglong),
        ("longlong", ctypes.c_longlong),
        ("int", ctypes.c_int),
        ("ushort", ctypes.c_ushort),
    )


class _FieldValue(ctypes.Structure):
    _fields_ = (
        ("id", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("type", ctypes.c_uint),
        ("code", ctypes.c_int),
        ("value", _Value),
    )


# By valueType: which member of the union holds it, and what in it means that there is none.
_VALUE_TYPES: tuple[tuple[str, int | None], ...] = (
    ("double", None),
    ("uint", _U32),
    ("ulong", (1 << 8 * ctypes.sizeof(ctypes.c_ulong)) - 1),
    ("ulonglong", _U64),
    ("longlong", None),
    ("int", None),
    ("ushort", (1 << 16) - 1),
)

_VERSION = 24  # where a structure's version number starts in its `version`


# ---- what is asked -----------------------------------------------------------------------------------------------


def _memory(asker: _Asker, into: GPU | MigDevice) -> None:
    def second() -> tuple[int, int, int, int]:
        info = _Memory2(version=ctypes.sizeof(_Memory2) | 2 << _VERSION)
        asker.call("nvmlDeviceGetMemoryInfo_v2", asker.handle, ctypes.byref(info))
        return info.total, info.used, info.free, info.reserved

    def first() -> tuple[int, int, int, int]:
        info = _Memory()
        asker.call("nvmlDeviceGetMemoryInfo", asker.handle, ctypes.byref(info))
        return info.total, info.used, info.free, _U64

    answer = asker.ask("memory", second, first)
    if answer is not None:
        total, used, free, reserved = (_number(value, _U64) for value in answer)
        into.memory_total_bytes, into.memory_used_bytes = total, used
        into.memory_free_bytes, into.memory_reserved_bytes = free, reserved


def _bus_id(asker: _Asker, function: str) -> str:
    info = _Pci()
    asker.call(function, asker.handle, ctypes.byref(info))
    # 15 characters hold a bus id of the older form, and not its longer form, of which they would be the beginning.
    return _decoded(info.bus_id if function.endswith("_v3") else info.bus_id_legacy)


def _utilization(asker: _Asker) -> tuple[int | None, int | None]:
    rates = _Utilization()
    asker.call("nvmlDeviceGetUtilizationRates", asker.handle, ctypes.byref(rates))
    return _number(rates.gpu, _U32), _number(rates.memory, _U32)


def _temperature(asker: _Asker) -> int:
    reading = _Temperature(version=ctypes.sizeof(_Temperature) | 1 << _VERSION, sensor=0)
    asker.call("nvmlDeviceGetTemperatureV", asker.handle, ctypes.byref(reading))
    return int(reading.temperature)


def _mig_mode(asker: _Asker) -> bool | None:
    current, pending = ctypes.c_uint(), ctypes.c_uint()
    asker.call("nvmlDeviceGetMigMode", asker.handle, ctypes.byref(current), ctypes.byref(pending))
    return None if current.value == _U32 else current.value == 1


def _handle(nvml: Any, asker: _Asker, function: str, parent: tuple[Any, ...], index: int) -> Any:
    out = pynvml.c_nvmlDevice_t()
    asker.call(function, *parent, ctypes.c_uint(index), ctypes.byref(out))
    return out


def _mig_device(gpu: _Asker, index: int, errors: list[Failure]) -> MigDevice | None:
    def resolve() -> Any:
        return gpu._once(
            lambda: _handle(gpu.nvml, gpu, "nvmlDeviceGetMigDeviceHandleByIndex", (gpu.handle,), index),
        )

    device = MigDevice(index)
    try:
        asker = _Asker(gpu.nvml, device.errors, resolve)
    except (pynvml.NVMLError_NotFound, pynvml.NVMLError_InvalidArgument):
        return None  # places for instances that were not made
    except pynvml.NVMLError as error:
        errors.append(_failure(f"mig[{index}]", error))
        if isinstance(error, CallTimeout):
            raise _GivenUp from error
        return None
    device.name = asker.ask("name", lambda: asker.text("nvmlDeviceGetName", asker.handle))
    device.uuid = asker.ask("uuid", lambda: asker.text("nvmlDeviceGetUUID", asker.handle))
    device.gpu_instance_id = asker.ask("gpu_instance_id", lambda: asker.u32("nvmlDeviceGetGpuInstanceId"))
    device.compute_instance_id = asker.ask("compute_instance_id", lambda: asker.u32("nvmlDeviceGetComputeInstanceId"))
    _memory(asker, device)
    return device


def _mig(asker: _Asker, gpu: GPU) -> None:
    gpu.mig_enabled = asker.ask("mig_enabled", lambda: _mig_mode(asker))
    if gpu.mig_enabled is not True:
        gpu.mig_devices = [] if gpu.mig_enabled is False else None
        return
    places = asker.ask("mig_devices", lambda: asker.u32("nvmlDeviceGetMaxMigDeviceCount"))
    if places is None:
        return
    gpu.mig_devices = []
    for index in range(places):
        device = _mig_device(asker, index, gpu.errors)
        if device is not None:
            gpu.mig_devices.append(device)


def _list(asker: _Asker, function: str, entry: type[ctypes.Structure]) -> list[Any]:
    """A list of which NVML tells the length first. It may grow meanwhile, so there is room for more than was said."""
    count = ctypes.c_uint(0)
    try:
        asker.call(function, asker.handle, ctypes.byref(count), None)
        return []
    except pynvml.NVMLError_InsufficientSize:
        pass
    for _ in range(_LIST_TRIES):
        room = count.value + count.value // 4 + 8
        entries = (entry * room)()
        count.value = room
        try:
            asker.call(function, asker.handle, ctypes.byref(count), entries)
        except pynvml.NVMLError_InsufficientSize:
            continue
        return list(entries[: min(count.value, room)])
    raise pynvml.NVMLError(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)


def _processes(asker: _Asker, kind: str) -> list[Process] | None:
    function = f"nvmlDeviceGet{kind.capitalize()}RunningProcesses"

    def way(suffix: str, entry: type[ctypes.Structure]) -> list[Process]:
        return [
            Process(
                item.pid,
                kind,
                _number(item.memory, _U64),
                _number(getattr(item, "gi", _U32), _U32),
                _number(getattr(item, "ci", _U32), _U32),
            )
            for item in _list(asker, function + suffix, entry)
        ]

    return asker.ask(
        f"processes.{kind}",
        lambda: way("_v3", _Process2),
        lambda: way("_v2", _Process2),
        lambda: way("", _Process1),
    )


def field_values(nvml: Any, handle: Any, ids: Sequence[int]) -> list[FieldValue]:
    """NVML's field values with these ids (``NVML_FI_…``) of a device, in their order.

    Each has a return code and a type of its own, and both count: where the code is not success, what stands in the
    value is left from something else. Raises NVMLError if there are none at all.
    """
    values = (_FieldValue * len(ids))(*(_FieldValue(id=id_) for id_ in ids))
    code = nvml._nvmlGetFunctionPointer("nvmlDeviceGetFieldValues")(
        handle, ctypes.c_int(len(ids)), ctypes.byref(values)
    )
    if code != 0:
        raise pynvml.NVMLError(code)
    answers = []
    for id_, entry in zip(ids, values, strict=True):
        value: int | float | None = None
        if entry.code == 0 and entry.type < len(_VALUE_TYPES):
            member, marker = _VALUE_TYPES[entry.type]
            value = getattr(entry.value, member)
            # NaN is no reading either, nor does JSON know it.
            if value == marker or value != value or value in (float("inf"), float("-inf")):
                value = None
        answers.append(FieldValue(id_, entry.code, entry.type, value))
    return answers


def _from_field_values(asker: _Asker, gpu: GPU) -> None:
    names = {
        pynvml.NVML_FI_DEV_MEMORY_TEMP: "temperature_memory_celsius",
        pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION: "energy_millijoules",
    }
    answers = asker.ask("field values", lambda: field_values(asker.nvml, asker.handle, list(names)))
    for answer in answers or ():
        if answer.code == 0 and answer.type >= len(_VALUE_TYPES):
            gpu.errors.append(
                Failure(names[answer.id], 0, "UnknownValueType", f"a value of the new type {answer.type}")
            )
        elif answer.code == 0:
            setattr(gpu, names[answer.id], answer.value)
        elif answer.code != pynvml.NVML_ERROR_NOT_SUPPORTED:
            gpu.errors.append(_failure(names[answer.id], pynvml.NVMLError(answer.code)))


def _fill(asker: _Asker, gpu: GPU, processes: bool) -> None:
    gpu.minor_number = asker.ask("minor_number", lambda: asker.u32("nvmlDeviceGetMinorNumber"))
    gpu.name = asker.ask("name", lambda: asker.text("nvmlDeviceGetName", asker.handle))
    gpu.uuid = asker.ask("uuid", lambda: asker.text("nvmlDeviceGetUUID", asker.handle))
    gpu.pci_bus_id = asker.ask(
        "pci_bus_id",
        lambda: _bus_id(asker, "nvmlDeviceGetPciInfo_v3"),
        lambda: _bus_id(asker, "nvmlDeviceGetPciInfo_v2"),
        lambda: _bus_id(asker, "nvmlDeviceGetPciInfo"),
    )
    _memory(asker, gpu)
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
    _mig(asker, gpu)
    if processes:
        failures = len(gpu.errors)
        lists = [_processes(asker, kind) for kind in ("compute", "graphics")]
        # Half a list would look like a whole one. A GPU that knows no graphics processes has none.
        if len(gpu.errors) == failures and lists != [None, None]:
            gpu.processes = [process for some in lists for process in some or ()]


def _gpu(nvml: Any, index: int, processes: bool) -> GPU:
    gpu = GPU(index)
    plain = _Asker(nvml, gpu.errors)

    def resolve() -> Any:
        try:
            return _handle(nvml, plain, "nvmlDeviceGetHandleByIndex_v2", (), index)
        except pynvml.NVMLError_FunctionNotFound:
            return _handle(nvml, plain, "nvmlDeviceGetHandleByIndex", (), index)

    try:
        asker = _Asker(nvml, gpu.errors, resolve)
    except pynvml.NVMLError_Uninitialized:
        raise
    except pynvml.NVMLError as error:
        gpu.error = _failure("gpu", error)
        return gpu
    try:
        _fill(asker, gpu, processes)
    except _GivenUp as given_up:
        gpu.error = _failure("gpu", given_up.__cause__)
    return gpu


def gpus(nvml: Any, *, processes: bool = False) -> list[GPU]:
    """All GPUs that NVML counts, in the order of its indexes; one that cannot be queried is among them with its error.

    Raises NVMLError if not even their number can be had.
    """
    count = ctypes.c_uint()
    asker = _Asker(nvml, [])
    try:
        asker.call("nvmlDeviceGetCount_v2", ctypes.byref(count))
    except pynvml.NVMLError_FunctionNotFound:
        asker.call("nvmlDeviceGetCount", ctypes.byref(count))
    return [_gpu(nvml, index, processes) for index in range(count.value)]


def system(nvml: Any) -> System:
    """The driver's versions."""
    found = System()
    asker = _Asker(nvml, found.errors)

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
    except _GivenUp:
        pass  # it stands in the errors
    return found
