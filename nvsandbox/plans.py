# SPDX-License-Identifier: Apache-2.0
"""Plans: what a call with arguments of certain types looks like in a frame, for the short way in csrc/fast/fast.c.

A plan is made from a call that the marshaller has already carried, and says the same as its frame. Not every call has
one: structures with pointers or C strings in them, bytes, and what a caller's own classes make of themselves stay with
the marshaller.
"""

from __future__ import annotations

import ctypes
import re
from typing import Any

from nvsandbox import _fast, marshal
from nvsandbox._core import ffi, lib

_NONE, _INT, _SCALAR, _HANDLE, _BYREF, _MEMORY = range(6)

# Others are counted, noted, or have a time limit of their own: see session.py and bindings.py.
_ORDINARY = re.compile(r"(?!nvmlInit|nvmlShutdown|.*(Handle|EventSetWait|Create|Alloc|Free|Destroy))nvml[A-Za-z0-9_]+")


def eligible(name: str) -> bool:
    """Whether calls of this function are nothing but calls."""
    return _ORDINARY.fullmatch(name) is not None


class _Probe(ctypes.Structure):
    _fields_ = (("a", ctypes.c_uint), ("b", ctypes.c_ulonglong * 9))


def calibrate() -> bool:
    """Finds where this Python's ctypes objects have their memory. False: there is no short way here."""
    if _fast.version != ffi.string(lib.nvs_core_version()).decode():
        return False
    objects: list[Any] = [
        ctypes.c_uint(1),
        ctypes.c_ulonglong(2),
        ctypes.c_char(b"3"),
        _Probe(),
        _Probe().b,
        (ctypes.c_uint * 100)(),
        ctypes.create_string_buffer(96),
        ctypes.pointer(ctypes.c_uint(4)),
        (_Probe * 3)()[1],
    ]
    instances = [(item, ctypes.addressof(item), type(item).__basicsize__) for item in objects]
    references = []
    for item in objects[3:7]:
        for offset in (0, 8, 32):
            reference = ctypes.byref(item, offset)
            references.append((reference, ctypes.addressof(item) + offset, item, type(reference).__basicsize__))
    return _fast.calibrate(instances, references)


available = calibrate()


def teach(function: _fast.Function, serial: int, index: int, arguments: tuple[Any, ...]) -> None:
    """Has `function` go the short way for calls like this one to the worker `serial`, where its number is `index`."""
    call = marshal.Call(function.__name__, arguments)
    if not call.plain_memory:
        return
    spec: list[tuple[int, type, type | None, int, int, bool]] = []
    for argument, (kind, _, value) in zip(arguments, call.arguments, strict=True):
        described = _describe(argument, kind == lib.NVS_ARG_DATA, value)
        if described is None:
            return
        spec.append(described)
    # One memory behind two arguments is one segment.
    if sum(entry[0] in (_BYREF, _MEMORY) for entry in spec) != call.segments:
        return
    frame = call.frame(index)
    if len(frame) > lib.NVS_LANE_FRAME:
        return
    function.learn(serial, bytes(frame[: len(frame) - call.data_len]), call.data_len, tuple(spec))


def _describe(argument: Any, in_data: bool, offset: int) -> tuple[int, type, type | None, int, int, bool] | None:
    kind = type(argument)
    if argument is None:
        return _NONE, kind, None, 0, 0, False
    if kind is int:
        return _INT, kind, None, 0, 0, False
    if kind is marshal.ByrefType:
        target = argument._obj
        return _BYREF, kind, type(target), ctypes.sizeof(target), offset, False
    if isinstance(argument, ctypes.Array) and in_data:
        return _MEMORY, kind, None, ctypes.sizeof(argument), offset, False
    if isinstance(argument, marshal.PointerType) and marshal.is_opaque(kind):
        return _HANDLE, kind, None, 8, 0, False
    if kind.__base__ is marshal.SimpleType and argument._type_ in "bBhHiIlLqQ":
        return _SCALAR, kind, None, ctypes.sizeof(argument), 0, argument._type_ in "bhilq"
    return None
