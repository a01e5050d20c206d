# SPDX-License-Identifier: Apache-2.0
"""Structures, arrays and sizes that nobody thought of: bytes out are the same function of bytes in on both ways.

Both ways are in one process here, since the echo library does nothing but compute.
"""

from __future__ import annotations

import ctypes
import random
from typing import Any

import pynvml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from . import shapes
from .describe import describe, differences
from .scenarios import received

_SCALARS = [
    ctypes.c_ubyte, ctypes.c_ushort, ctypes.c_uint, ctypes.c_int, ctypes.c_ulonglong, ctypes.c_double, ctypes.c_bool,
]  # fmt: skip

scalars = st.sampled_from(_SCALARS)


@st.composite
def _arrays(draw: Any, element: Any) -> Any:
    return draw(element) * draw(st.integers(1, 9))


@st.composite
def _structures(draw: Any, element: Any) -> Any:
    parts = draw(st.lists(element, min_size=1, max_size=6))
    base = draw(st.sampled_from([ctypes.Structure, pynvml._PrintableStructure]))
    return type("Drawn", (base,), {"_fields_": [(f"field{index}", part) for index, part in enumerate(parts)]})


_leaves = st.one_of(
    scalars,
    st.just(ctypes.c_char_p),
    st.sampled_from(shapes.handle_types()),
    scalars.map(ctypes.POINTER),
    st.integers(1, 300).map(lambda size: ctypes.c_char * size),
    st.integers(1, 300).map(lambda size: ctypes.c_ubyte * size),
)
types = st.recursive(
    _leaves,
    lambda inner: st.one_of(_structures(inner), _arrays(inner), _structures(inner).map(ctypes.POINTER)),
    max_leaves=12,
)


def _numbers(kind: Any) -> bool:
    return bool(issubclass(kind, shapes._Simple)) and kind not in (ctypes.c_char_p, ctypes.c_void_p)


def _value(kind: Any, rng: random.Random, handle: Any) -> Any:
    """An object of a type with anything in it."""
    made = kind()
    _put(made, rng, handle)
    return made


def _content(kind: Any, rng: random.Random, handle: Any) -> Any:
    """What to assign to a field or element of this type."""
    if shapes.is_opaque(kind):
        return handle(kind, rng)
    if kind is ctypes.c_char_p:
        return rng.choice([None, b"", b"text", rng.randbytes(40).replace(b"\0", b"0")])
    target = kind._type_
    if rng.random() < 0.2:
        return kind()
    if rng.random() < 0.3:
        return ctypes.pointer(_value(target, rng, handle))
    array = (target * rng.randrange(1, 6))()
    _put(array, rng, handle)
    return array


def _put(made: Any, rng: random.Random, handle: Any) -> None:
    kind = type(made)
    if issubclass(kind, ctypes.Structure):
        for name, part, offset in shapes.fields(kind):
            if issubclass(part, ctypes.Structure) or (issubclass(part, ctypes.Array) and not _numbers(part._type_)):
                _put(getattr(made, name), rng, handle)
            elif _numbers(part) or issubclass(part, ctypes.Array):
                content = rng.randbytes(ctypes.sizeof(part))
                ctypes.memmove(ctypes.addressof(made) + offset, content, len(content))
            else:
                setattr(made, name, _content(part, rng, handle))
    elif issubclass(kind, ctypes.Array) and not _numbers(kind._type_):
        for index in range(kind._length_):
            if issubclass(kind._type_, (ctypes.Structure, ctypes.Array)):
                _put(made[index], rng, handle)
            else:
                made[index] = _content(kind._type_, rng, handle)
    elif _numbers(kind) or issubclass(kind, ctypes.Array):
        content = rng.randbytes(ctypes.sizeof(kind))
        ctypes.memmove(ctypes.addressof(made), content, len(content))


class Way:
    """One way to the library: direct, or through the sandbox."""

    def __init__(self, pointer: Any) -> None:
        self.pointer = pointer

    def handle(self, kind: Any, rng: random.Random) -> Any:
        made = kind()
        if rng.random() < 0.8:
            self.pointer("nvmlEchoHandle")(shapes.handle_kind(kind), rng.randrange(8), ctypes.byref(made))
        return made

    def identify(self, handle: Any) -> Any:
        index = ctypes.c_int(-2)
        result = self.pointer("nvmlEchoIdentity")(shapes.handle_kind(type(handle)), handle, ctypes.byref(index))
        return index.value if result == 0 else f"error {result}"

    def call(self, kinds: list[Any], seed: int, garbage: bool) -> Any:
        """One call with a drawn object of each kind behind a pointer."""
        rng = random.Random(seed)
        objects = [made if _by_itself(made) else ctypes.byref(made) for made in self._made(kinds, rng)]
        tokens = " ".join(shapes.argument(value).token(False, False) for value in objects)
        mode = "garbage" if garbage else "final"
        self.pointer("nvmlEchoExpect")(f"nvmlDeviceGetName 0 {mode} {seed} {tokens}\n".encode())
        result = self.pointer("nvmlDeviceGetName")(*objects)
        note, digest = received(self.pointer)
        return {
            "result": result,
            "note": note,
            "digest": digest,
            "arguments": [describe(value, self.identify) for value in objects],
        }

    def _made(self, kinds: list[Any], rng: random.Random) -> list[Any]:
        return [
            _content(kind, rng, self.handle) if shapes.is_opaque(kind) else _holder(kind, rng, self.handle)
            for kind in kinds
        ]

    def bytes(self, content: bytes) -> Any:
        """nvmlEchoBytes() over a copy of these."""
        buffer = (ctypes.c_ubyte * len(content)).from_buffer_copy(content)
        result = self.pointer("nvmlEchoBytes")(buffer, ctypes.c_ulonglong(len(content)))
        return [result, bytes(buffer)]


def _by_itself(made: Any) -> bool:
    return shapes.is_opaque(type(made))


def _holder(kind: Any, rng: random.Random, handle: Any) -> Any:
    """Pointers and strings are put into a structure: a bare one would be an argument of its own."""
    if shapes.is_pointer_type(kind) or kind is ctypes.c_char_p:
        kind = type("Holder", (ctypes.Structure,), {"_fields_": [("only", kind)]})
    return _value(kind, rng, handle)


def run(direct: Way, sandboxed: Way, examples: int) -> None:
    """Raises with the smallest example that differs."""
    common = settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )

    @common
    @given(st.lists(types, min_size=1, max_size=5), st.integers(0, 1 << 30), st.booleans())
    def memory(kinds: list[Any], seed: int, garbage: bool) -> None:
        left = direct.call(kinds, seed, garbage)
        assert not left["note"], left["note"]
        found = differences(left, sandboxed.call(kinds, seed, garbage))
        assert not found, "\n".join(found[:10])

    @settings(common, max_examples=examples // 2)
    @given(st.integers(0, 300 << 10), st.integers(0, 1 << 30))
    def sizes(size: int, seed: int) -> None:
        content = random.Random(seed).randbytes(size)
        assert direct.bytes(content) == sandboxed.bytes(content), size

    memory()
    sizes()
    for size in (0, 1, 15, 16, 17, (1 << 20) - 8192, 1 << 20, (1 << 20) + 3, 3 << 20):
        content = random.Random(size).randbytes(size)
        assert direct.bytes(content) == sandboxed.bytes(content), size
