# SPDX-License-Identifier: Apache-2.0
"""Where the values of fields come from: NVML's functions, described by the shapes of their answers, and one reading of
a GPU, in which each of them is called at most once however many fields it answers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pynvml

from nvsandbox.asking import U32, U64, Asker, decoded, failure_of, gpu_asker
from nvsandbox.structures import versioned
from nvsandbox.values import VALUE_TYPES, field_values

TEXT = ctypes.c_char
"""An answer that is a text: a buffer and its length are handed over."""
UINT = ctypes.c_uint
INT = ctypes.c_int
ULL = ctypes.c_ulonglong

_TEXT_BYTES = 96
_MARKERS = {ctypes.c_uint: U32, ctypes.c_ulonglong: U64}


@dataclass(frozen=True)
class Call:
    """A function of NVML: ``f(gpu, given…, answer…)``; where this driver lacks it, `older` is called."""

    function: str
    answer: tuple[type[Any], ...] = (UINT,)
    given: tuple[int, ...] = ()
    version: int = 0
    """Of the structures in the answer; 0 where they have none."""
    of_gpu: bool = True
    older: Call | None = None


@dataclass(frozen=True)
class Value:
    """One of NVML's field values."""

    id: int
    scope: int = 0


@dataclass(frozen=True)
class Length:
    """How many entries a list has."""

    function: str
    given: tuple[int, ...] = ()


@dataclass(frozen=True)
class Own:
    """What needs no question to this GPU: ``"index"``, ``"count"``, ``"timestamp"``."""

    name: str


Source = Call | Value | Length | Own


class Reading:
    """One GPU at one moment.

    Index and count as NVML has them. `values` are the field values that will be asked for: they are all read at once.
    What fails in a way that is not the field's own matter (a hang, the death of a worker, no handle at all) is told
    once, in `troubles`.
    """

    def __init__(self, nvml: Any, index: int, count: int, values: Collection[Value]) -> None:
        self.time = datetime.now()
        self.troubles: list[str] = []
        self._known: dict[Source, tuple[Any, ...] | pynvml.NVMLError] = {
            Own("index"): (index,),
            Own("count"): (count,),
            Own("timestamp"): (self.time,),
        }
        self._values = sorted(values, key=lambda value: (value.id, value.scope))
        self._lost: pynvml.NVMLError | None = None
        self.asker: Asker | None = None
        try:
            self.asker = gpu_asker(nvml, index, [])
        except pynvml.NVMLError_Uninitialized:
            raise
        except pynvml.NVMLError as error:
            self._give_up(error)

    def get(self, source: Source) -> tuple[Any, ...]:
        """The parts of an answer; None for those that NVML says it does not know. Raises NVMLError."""
        if source not in self._known:
            self._ask(source)
        answer = self._known[source]
        if isinstance(answer, pynvml.NVMLError):
            raise answer
        return answer

    def _ask(self, source: Source) -> None:
        if self.asker is None:
            assert self._lost is not None
            self._known[source] = self._lost
            return
        asker = self.asker
        try:
            if isinstance(source, Value):
                self._read_values(asker)
            elif isinstance(source, Length):
                given = map(ctypes.c_uint, source.given)
                entries = asker.attempt(lambda: asker.listed(source.function, ctypes.c_ulonglong, *given))
                self._known[source] = (len(entries),)
            elif isinstance(source, Call):
                self._known[source] = asker.attempt(*_ways(asker, source))
            else:
                raise ValueError(f"{source.name!r}: expected 'index', 'count' or 'timestamp'")
        except pynvml.NVMLError_Uninitialized:
            raise
        except pynvml.NVMLError as error:
            for failed in self._values if isinstance(source, Value) else [source]:
                self._known[failed] = error
            if asker.is_hopeless(error):
                self._give_up(error)
            elif not type(error).__name__.startswith("NVMLError"):
                self.troubles.append(failure_of("", error).message)

    def _give_up(self, error: pynvml.NVMLError) -> None:
        self._lost = error
        self.asker = None
        self.troubles.append(failure_of("gpu", error).message)

    def _read_values(self, asker: Asker) -> None:
        ids, scopes = [value.id for value in self._values], [value.scope for value in self._values]
        answers = asker.attempt(lambda: field_values(asker.nvml, asker.handle, ids, scopes))
        for value, answer in zip(self._values, answers, strict=True):
            known = answer.code == 0 and answer.type < len(VALUE_TYPES)
            self._known[value] = (answer.value if known else None,)
            if answer.code != 0:
                self._known[value] = pynvml.NVMLError(answer.code)


def _ways(asker: Asker, call: Call) -> list[Callable[[], tuple[Any, ...]]]:
    older = [] if call.older is None else _ways(asker, call.older)
    return [lambda: _answer(asker, call), *older]


def _answer(asker: Asker, call: Call) -> tuple[Any, ...]:
    parts: list[Any] = []
    pointers: list[Any] = []
    for kind in call.answer:
        if kind is TEXT:
            part: Any = (ctypes.c_char * _TEXT_BYTES)()
            pointers += [part, ctypes.c_uint(_TEXT_BYTES)]
        else:
            part = versioned(kind, call.version) if issubclass(kind, ctypes.Structure) else kind()
            pointers.append(ctypes.byref(part))
        parts.append(part)
    handle = [asker.handle] if call.of_gpu else []
    asker.call(call.function, *handle, *map(ctypes.c_uint, call.given), *pointers)
    return tuple(_plain(part) for part in parts)


def _plain(part: Any) -> Any:
    if isinstance(part, ctypes.Structure):
        return part
    if isinstance(part, ctypes.Array):
        return decoded(part.raw)
    return None if part.value == _MARKERS.get(type(part)) else part.value


def part_of(answer: tuple[Any, ...], part: int | str) -> Any:
    """A part of an answer by its place, or a member of the structure that the answer is; "" for all of it. None where
    NVML says that it does not know."""
    if part == "":
        return None if None in answer else answer
    if isinstance(part, int):
        return answer[part]
    structure = answer[0]
    value = getattr(structure, part, None)  # an older structure has less
    if value is None:
        return None
    if isinstance(value, bytes):
        # As a whole: ctypes ends texts at a NUL, but not where there is none.
        return decoded(value)
    if isinstance(value, ctypes.Array):
        return bytes(value)
    width = getattr(type(structure), part).size
    return None if width >= 4 and value == (1 << 8 * width) - 1 else value
