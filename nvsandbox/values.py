# SPDX-License-Identifier: Apache-2.0
"""NVML's field values (``NVML_FI_…``): many numbers in one call, each with a return code and a type of its own."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pynvml

from nvsandbox.asking import U32, U64


@dataclass(frozen=True)
class FieldValue:
    """One of NVML's field values. `value` is None unless `code` is 0 and NVML had a value of a known type."""

    id: int
    code: int
    type: int
    value: int | float | None


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
VALUE_TYPES: tuple[tuple[str, int | None], ...] = (
    ("double", None),
    ("uint", U32),
    ("ulong", (1 << 8 * ctypes.sizeof(ctypes.c_ulong)) - 1),
    ("ulonglong", U64),
    ("longlong", None),
    ("int", None),
    ("ushort", (1 << 16) - 1),
)


def field_values(nvml: Any, handle: Any, ids: Sequence[int], scopes: Sequence[int] | None = None) -> list[FieldValue]:
    """NVML's field values with these ids (``NVML_FI_…``) of a device, in their order. Some have scopes: a link's
    number, or what a power reading is of (``NVML_POWER_SCOPE_…``).

    Each has a return code and a type of its own, and both count: where the code is not success, what stands in the
    value is left from something else. Raises NVMLError if there are none at all.
    """
    pairs = zip(ids, scopes or [0] * len(ids), strict=True)
    values = (_FieldValue * len(ids))(*(_FieldValue(id=id_, scope=scope) for id_, scope in pairs))
    code = nvml._nvmlGetFunctionPointer("nvmlDeviceGetFieldValues")(
        handle, ctypes.c_int(len(ids)), ctypes.byref(values)
    )
    if code != 0:
        raise pynvml.NVMLError(code)
    answers = []
    for id_, entry in zip(ids, values, strict=True):
        value: int | float | None = None
        if entry.code == 0 and entry.type < len(VALUE_TYPES):
            member, marker = VALUE_TYPES[entry.type]
            value = getattr(entry.value, member)
            # NaN is no reading either, nor does JSON know it.
            if value == marker or value != value or value in (float("inf"), float("-inf")):
                value = None
        answers.append(FieldValue(id_, entry.code, entry.type, value))
    return answers
