# SPDX-License-Identifier: Apache-2.0
"""How our own queries ask NVML: one question after another, each of which fails on its own.

pynvml's wrappers are not used, for they decode what NVML wrote, and one byte of rubbish in a name would cost all that
follows it. So the functions are called by their pointers, with structures of our own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pynvml

from nvsandbox.errors import CallTimeout, StaleHandle, WorkerDied
from nvsandbox.structures import Memory, Memory2, Pci, versioned

_T = TypeVar("_T")

U32 = (1 << 32) - 1
"""What NVML writes where a number of 32 bits is not available."""
U64 = (1 << 64) - 1

TEXT_BYTES = 96
"""At least as long as every text that is asked for here."""

_NAME_BYTES = 1024  # of a process

_LIST_TRIES = 8  # for a list that goes on growing between the question for its length and the one for its entries
_DEATHS = 2  # of workers, after which a GPU is given up


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


class GivenUp(Exception):
    """This GPU's calls hang or kill the worker: nothing more is asked of it."""


def failure_of(name: str, error: pynvml.NVMLError) -> Failure:
    """The note for an error."""
    # What became of the worker is of no interest here: the next GPU has another one.
    hung = isinstance(error, CallTimeout) and error.sent
    text = f"{error.call} did not return within {error.limit:g} s" if hung else str(error)
    return Failure(name, int(error.value), type(error).__name__, text)


class Asker:
    """Asks one object (the system, a GPU, a MIG device) for one thing after another, each of which fails on its own."""

    def __init__(self, nvml: Any, errors: list[Failure], resolve: Callable[[], Any] | None = None) -> None:
        self.nvml = nvml
        self.errors = errors
        self._resolve = resolve
        self._deaths = 0
        self.handle: Any = resolve() if resolve is not None else None

    def call(self, function: str, *arguments: Any) -> None:
        """Raises what pynvml would."""
        code = self.nvml._nvmlGetFunctionPointer(function)(*arguments)
        if code != 0:
            raise pynvml.NVMLError(code)

    def attempt(self, *ways: Callable[[], _T]) -> _T:
        """What the first of `ways` gives whose function this driver has, and supports on this GPU. Raises NVMLError."""
        unsupported: pynvml.NVMLError | None = None
        for way in ways[:-1]:
            try:
                return self._once(way)
            except pynvml.NVMLError_NotSupported as error:
                unsupported = error  # some GPUs support the older function alone
            except (pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_ArgumentVersionMismatch):
                continue  # an older driver: the next way is the older function
        try:
            return self._once(ways[-1])
        except pynvml.NVMLError_FunctionNotFound:
            if unsupported is not None:  # what the newer function said is about the GPU
                raise unsupported from None
            raise

    def ask(self, name: str, *ways: Callable[[], _T]) -> _T | None:
        """The same, or None: where it failed for another reason than NotSupported, with a note in the errors.

        Raises GivenUp where nothing more should be asked of this object.
        """
        try:
            return self.attempt(*ways)
        except pynvml.NVMLError_NotSupported:
            return None
        except pynvml.NVMLError_Uninitialized:
            raise  # not a matter of this field: no answer would come to any question
        except pynvml.NVMLError as error:
            self.errors.append(failure_of(name, error))
            if self.is_hopeless(error):
                raise GivenUp from error
            return None

    def is_hopeless(self, error: pynvml.NVMLError) -> bool:
        """Whether nothing more should be asked of this object after `error`, which is counted."""
        self._deaths += isinstance(error, WorkerDied)
        return isinstance(error, CallTimeout) or self._deaths >= _DEATHS

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
        return number(out.value, U32)

    def text(self, function: str, *before: Any) -> str:
        out = (ctypes.c_char * TEXT_BYTES)()
        self.call(function, *before, out, ctypes.c_uint(TEXT_BYTES))
        return decoded(out.raw)

    def text_of_pid(self, pid: int) -> str:
        """A process's name, which may be as long as a path."""
        out = (ctypes.c_char * _NAME_BYTES)()
        self.call("nvmlSystemGetProcessName", ctypes.c_uint(pid), out, ctypes.c_uint(_NAME_BYTES))
        return decoded(out.raw)

    def listed(self, function: str, entry: type[Any], *between: Any) -> list[Any]:
        """A list of which NVML tells the length first. It may grow meanwhile, so there is room for more than that."""
        count = ctypes.c_uint(0)
        try:
            self.call(function, self.handle, *between, ctypes.byref(count), None)
            return []
        except pynvml.NVMLError_InsufficientSize:
            pass
        for _ in range(_LIST_TRIES):
            room = count.value + count.value // 4 + 8
            entries = (entry * room)()
            count.value = room
            try:
                self.call(function, self.handle, *between, ctypes.byref(count), entries)
            except pynvml.NVMLError_InsufficientSize:
                continue
            return list(entries[: min(count.value, room)])
        raise pynvml.NVMLError(pynvml.NVML_ERROR_INSUFFICIENT_SIZE)


def device_of(asker: Asker, function: str, parent: tuple[Any, ...], index: int) -> Any:
    """The handle that `function` gives for an index."""
    out = pynvml.c_nvmlDevice_t()
    asker.call(function, *parent, ctypes.c_uint(index), ctypes.byref(out))
    return out


def gpu_asker(nvml: Any, index: int, errors: list[Failure]) -> Asker:
    """Asks the GPU with this index. Raises NVMLError if there is no handle."""
    plain = Asker(nvml, errors)

    def resolve() -> Any:
        try:
            return device_of(plain, "nvmlDeviceGetHandleByIndex_v2", (), index)
        except pynvml.NVMLError_FunctionNotFound:
            return device_of(plain, "nvmlDeviceGetHandleByIndex", (), index)

    return Asker(nvml, errors, resolve)


class OfGpu(Protocol):
    """What is told of a GPU, and why something is missing."""

    error: Failure | None
    """The GPU could not be asked, or not to the end."""
    errors: list[Failure]


def ask_gpu(nvml: Any, index: int, found: OfGpu, fill: Callable[[Asker], object]) -> None:
    """Has `fill` ask the GPU with this index for what goes into `found`, whose error says why where it cannot be asked
    or has to be given up. Raises NVMLError_Uninitialized, which is about all of them."""
    try:
        asker = gpu_asker(nvml, index, found.errors)
    except pynvml.NVMLError_Uninitialized:
        raise
    except pynvml.NVMLError as error:
        found.error = failure_of("gpu", error)
        return
    try:
        fill(asker)
    except GivenUp as given_up:
        found.error = failure_of("gpu", given_up.__cause__)


def gpu_count(nvml: Any) -> int:
    """How many GPUs NVML counts. Raises NVMLError."""
    count = ctypes.c_uint()
    asker = Asker(nvml, [])
    try:
        asker.call("nvmlDeviceGetCount_v2", ctypes.byref(count))
    except pynvml.NVMLError_FunctionNotFound:
        asker.call("nvmlDeviceGetCount", ctypes.byref(count))
    return count.value


def number(value: int, marker: int) -> int | None:
    """`value`, or None where it is the marker for "not available"."""
    return None if value == marker else value


def percent(value: int) -> int | None:
    """`value`, or None where it is no percentage: the marker for "not available", or garbage."""
    return value if value <= 100 else None


def decoded(raw: bytes) -> str:
    """The text up to a NUL; what is not UTF-8 becomes U+FFFD."""
    return raw.split(b"\0", 1)[0].decode("utf-8", "replace")


class HasMemory(Protocol):
    """What has these four figures, of a whole or of a part of a GPU."""

    memory_total_bytes: int | None
    memory_used_bytes: int | None
    memory_free_bytes: int | None
    memory_reserved_bytes: int | None


def memory_into(asker: Asker, into: HasMemory) -> None:
    """Asks for memory and writes it down."""

    def second() -> tuple[int, int, int, int]:
        info = versioned(Memory2, 2)
        asker.call("nvmlDeviceGetMemoryInfo_v2", asker.handle, ctypes.byref(info))
        return info.total, info.used, info.free, info.reserved

    def first() -> tuple[int, int, int, int]:
        info = Memory()
        asker.call("nvmlDeviceGetMemoryInfo", asker.handle, ctypes.byref(info))
        return info.total, info.used, info.free, U64

    answer = asker.ask("memory", second, first)
    if answer is not None and answer[0] != 0:  # nothing has no memory: a total of 0 is no figure
        total, used, free, reserved = (number(value, U64) for value in answer)
        into.memory_total_bytes, into.memory_used_bytes = total, used
        into.memory_free_bytes, into.memory_reserved_bytes = free, reserved


def bus_id_ways(asker: Asker, function: str = "nvmlDeviceGetPciInfo", *between: Any) -> list[Callable[[], str]]:
    """For :meth:`Asker.ask`: a PCI bus id, ``"00000000:07:00.0"``: the GPU's, or what `function` says."""

    def way(suffix: str) -> Callable[[], str]:
        def ask() -> str:
            info = Pci()
            asker.call(function + suffix, asker.handle, *between, ctypes.byref(info))
            # 15 characters hold a bus id of the older form, and not its longer form, of which they would be the start.
            return decoded(info.bus_id if suffix == newest else info.bus_id_legacy)

        return ask

    newest = "_v3" if function == "nvmlDeviceGetPciInfo" else "_v2"
    return [way(suffix) for suffix in dict.fromkeys((newest, "_v2", ""))]
