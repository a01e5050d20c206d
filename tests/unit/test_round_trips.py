# SPDX-License-Identifier: Apache-2.0
"""Any ctypes object through the marshaller and back, against a walk over every field and element: a worker that changes
nothing changes nothing, and one that writes anything it likes over all of the data changes no pointer of the caller's
and nothing outside of the object."""

from __future__ import annotations

import ctypes
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvsandbox import marshal

from . import test_layouts as layouts
from .test_replies import reply

NUMBERS = st.sampled_from(layouts.NUMBERS)


class Bits(ctypes.Structure):
    _fields_ = [("a", ctypes.c_uint, 3), ("b", ctypes.c_uint, 13), ("c", ctypes.c_ulonglong, 40)]


def union(parts: list[Any]) -> Any:
    return type("Drawn", (ctypes.Union,), {"_fields_": [(f"u{index}", part) for index, part in enumerate(parts)]})


plain = st.recursive(
    st.one_of(NUMBERS, st.just(Bits)),
    lambda inner: st.one_of(
        layouts.extend(inner),
        st.lists(inner, min_size=1, max_size=4).map(union),
    ),
    max_leaves=6,
)
leaves = st.one_of(st.sampled_from(layouts.LEAVES), plain, plain.map(ctypes.POINTER))
TYPES = st.recursive(leaves, layouts.extend, max_leaves=12)


def is_pointer(kind: Any) -> bool:
    return issubclass(kind, marshal.PointerType) and not marshal.is_opaque(kind)


def places(kind: Any, at: int = 0) -> list[tuple[str, int, Any]]:
    """What of a type's memory is no plain data: (what, where, type)."""
    if issubclass(kind, ctypes.c_char_p):
        return [("string", at, kind)]
    if issubclass(kind, ctypes.c_void_p) or is_pointer(kind):
        return [("pointer", at, kind)]
    if issubclass(kind, ctypes.Array):
        size = ctypes.sizeof(kind._type_)
        return [place for index in range(kind._length_) for place in places(kind._type_, at + index * size)]
    if issubclass(kind, ctypes.Structure):
        fields = [entry for base in kind.__mro__ for entry in base.__dict__.get("_fields_", ())]
        return [place for name, part, *_ in fields for place in places(part, at + getattr(kind, name).offset)]
    return []


def pointers_in(made: Any) -> list[tuple[str, int, Any]]:
    """The same of an object, less each ``c_void_p`` that is NULL: NVML may write a handle there."""
    content = bytes(made)
    return [
        (what, at, kind)
        for what, at, kind in places(type(made))
        if not (issubclass(kind, ctypes.c_void_p) and content[at : at + 8] == bytes(8))
    ]


def fill(made: Any, rng: random.Random) -> list[Any]:
    """Any bytes for what is plain, and what there is for pointers to point to: objects of the right type, which are
    returned, and stay where they are."""
    kept: list[Any] = []
    content = bytearray(rng.randbytes(ctypes.sizeof(made)))
    for what, at, kind in places(type(made)):
        value = 0
        if what == "string" and rng.random() < 0.7:
            kept.append(ctypes.create_string_buffer(rng.randbytes(9).replace(b"\0", b"0")))
            value = ctypes.addressof(kept[-1])
        elif what == "pointer" and rng.random() < 0.7:
            target = (ctypes.c_ubyte * rng.randrange(1, 40) if kind is ctypes.c_void_p else kind._type_)()
            kept += [target, *fill(target, rng)]
            value = ctypes.addressof(target)
        content[at : at + 8] = value.to_bytes(8, "little")
    ctypes.memmove(ctypes.addressof(made), bytes(content), len(content))
    return kept


class Walls:
    """Memory for an object of a type, between bytes that must stay."""

    SIZE = 64

    def __init__(self, kind: Any) -> None:
        self.size = ctypes.sizeof(kind)
        self.memory = (ctypes.c_ubyte * (self.size + 2 * self.SIZE))(*[0xA5] * (self.size + 2 * self.SIZE))
        self.object = kind.from_buffer(self.memory, self.SIZE)

    def stand(self) -> bool:
        around = bytes(self.memory)
        return around[: self.SIZE] + around[self.SIZE + self.size :] == b"\xa5" * (2 * self.SIZE)


def data_of(call: marshal.Call) -> bytes:
    frame = bytes(call.frame(1))
    return frame[len(frame) - call.data_len :]


@given(TYPES, st.integers(0, 1 << 30))
@settings(max_examples=200, deadline=None)
def test_what_the_worker_leaves_alone_stays(kind: Any, seed: int) -> None:
    rng = random.Random(seed)
    walls = Walls(kind)
    kept = fill(walls.object, rng)
    before = [bytes(walls.memory), *map(bytes, kept)]
    call = marshal.Call("nvmlTest", (ctypes.byref(walls.object),))
    call.accept(marshal.parse_reply(reply(data_of(call))))
    assert [bytes(walls.memory), *map(bytes, kept)] == before


@given(TYPES, st.integers(0, 1 << 30))
@settings(max_examples=200, deadline=None)
def test_what_the_worker_writes_is_data_and_no_pointer(kind: Any, seed: int) -> None:
    rng = random.Random(seed)
    walls = Walls(kind)
    kept = fill(walls.object, rng)
    before = bytes(walls.object)
    call = marshal.Call("nvmlTest", (ctypes.byref(walls.object),))
    sent = data_of(call)
    back = bytearray(rng.randbytes(len(sent)))
    special = pointers_in(walls.object)
    pieces = [(item, pointers_in(item)) for item in (walls.object, *kept)]
    for segment in call._segments:  # strings must be what was sent, or the reply is none
        for at, _, value in segment.strings:
            back[segment.offset + at : segment.offset + at + 8] = value.to_bytes(8, "little")
    pointers = {
        (index, at): bytes(item)[at : at + 8] for index, (item, where) in enumerate(pieces) for _, at, _ in where
    }
    call.accept(marshal.parse_reply(reply(bytes(back))))
    assert walls.stand()
    for (index, at), value in pointers.items():
        assert bytes(pieces[index][0])[at : at + 8] == value
    expected = bytearray(back[: len(before)])
    for _, at, _ in special:
        expected[at : at + 8] = before[at : at + 8]
    assert bytes(walls.object) == bytes(expected)


class Number(ctypes.Union):
    _fields_ = [("value", ctypes.c_ulonglong), ("pointer", ctypes.POINTER(ctypes.c_uint))]


class Name(ctypes.Union):
    _fields_ = [("value", ctypes.c_ulonglong), ("name", ctypes.c_char_p)]


class Device(ctypes.Union):
    _fields_ = [("value", ctypes.c_ulonglong), ("device", layouts.HANDLE)]


@pytest.mark.parametrize("kind", [Number, Name, Device])
def test_a_union_with_a_pointer_is_refused(kind: Any) -> None:
    """It may hold a number just as well, and to follow that would end the caller's process."""
    holder = type("Holder", (ctypes.Structure,), {"_fields_": [("n", ctypes.c_int), ("either", kind * 2)]})
    with pytest.raises(TypeError, match=f"{kind.__name__}: a union with pointers"):
        marshal.Call("nvmlTest", (ctypes.byref(holder(n=1)),))
