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
# Freezing a counter frees nothing, and nvmlDeviceIsMigDeviceHandle gives no handle.
_ORDINARY = re.compile(
    r"(?!nvmlInit|nvmlShutdown|.*(Get\w*Handle|EventSetWait|Create|Alloc|Free(?!ze)|Destroy))nvml[A-Za-z0-9_]+"
)


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
    references: list[tuple[Any, int, Any, int]] = []
    for item in objects[3:7]:
        for offset in (0, 8, 32):
            reference = ctypes.byref(item, offset)
            references.append((reference, ctypes.addressof(item) + offset, item, type(reference).__basicsize__))
    return _fast.calibrate(instances, references)


available = calibrate()


def teach(function: _fast.Function, serial: int, index: int, arguments: tuple[Any, ...]) -> None:
    """Has `function` go the short way for calls like this one to the worker `serial`, where its number is `index`."""
    described = [_describe(argument) for argument in arguments]
    kinds = [entry for entry in described if entry is not None]
    if len(kinds) != len(arguments):
        return
    # Only now: the marshaller reads what pointers point to, and the call has filled the structures that hold them.
    call = marshal.Call(function.__name__, arguments)
    # One memory behind two arguments is one segment.
    if sum(kind in (_BYREF, _MEMORY) for kind, *_ in kinds) != call.segments:
        return
    frame = call.frame(index)
    if len(frame) > lib.NVS_LANE_FRAME:
        return
    function.learn(
        serial,
        bytes(frame[: len(frame) - call.data_len]),
        call.data_len,
        tuple(
            (kind, type_, target, size, offset if kind in (_BYREF, _MEMORY) else 0, signed)
            for (kind, type_, target, size, signed), (_, _, offset) in zip(kinds, call.arguments, strict=True)
        ),
    )


def _plain(ctype: Any) -> bool:
    """Whether nothing but handles in a type's memory needs translation."""
    layout = marshal.layout_of(ctype)
    return not layout.pointers and not layout.strings


def _enlarged(thing: Any) -> bool:
    """Whether it has more memory than its type says, by ctypes.resize(): others of its type have not."""
    return ctypes.sizeof(thing) != ctypes.sizeof(type(thing))


def _describe(argument: Any) -> tuple[int, type, type | None, int, bool] | None:
    """Kind, type, type of what it refers to, size, whether it is signed; None if it has to go by the marshaller."""
    kind = type(argument)
    if argument is None:
        return _NONE, kind, None, 0, False
    if kind is int and not marshal.is_token(argument):
        return _INT, kind, None, 0, False
    if kind is marshal.ByrefType:
        target = argument._obj
        if ctypes.cast(argument, ctypes.c_void_p).value != ctypes.addressof(target):  # byref(target, offset)
            return None
        if not _plain(type(target)) or _enlarged(target):
            return None
        return _BYREF, kind, type(target), ctypes.sizeof(target), False
    if isinstance(argument, marshal.SimpleType | ctypes.Array) and _enlarged(argument):
        return None
    if isinstance(argument, ctypes.Array):
        return (_MEMORY, kind, None, ctypes.sizeof(argument), False) if _plain(kind) else None
    if isinstance(argument, marshal.PointerType) and marshal.is_opaque(kind):
        return _HANDLE, kind, None, 8, False
    if (
        kind.__base__ is marshal.SimpleType
        and argument._type_ in "bBhHiIlLqQ"
        and not marshal.is_token(argument.value & 0xFFFFFFFFFFFFFFFF)
    ):
        return _SCALAR, kind, None, ctypes.sizeof(argument), argument._type_ in "bhilq"
    return None
