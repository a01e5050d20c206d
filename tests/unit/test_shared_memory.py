# SPDX-License-Identifier: Apache-2.0
"""Arguments that share memory are one memory to the function, in whichever order and by whichever types they come.
The judge is ctypes: the same function is called directly with the same kind of objects."""

from __future__ import annotations

import ctypes
import itertools
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from host import require

from nvsandbox import nvml_isolated

# Writes through each pointer, so that what the others see of it shows in `sum`. `size` bytes are the caller's.
SOURCE = r"""
#include <stddef.h>
int nvmlInitWithFlags (unsigned flags) { (void)flags; return 0; }
int nvmlInit_v2 (void) { return 0; }
int nvmlShutdown (void) { return 0; }
int nvmlDeviceTestShared (unsigned char *a, unsigned a_size, unsigned char *b, unsigned b_size, unsigned *sum)
{
    unsigned found = 0;
    for (unsigned i = 0; i < a_size; i++) a[i] = (unsigned char)(a[i] * 3 + 1);
    for (unsigned i = 0; i < b_size; i++) found = found * 31 + b[i];
    for (unsigned i = 0; i < b_size; i++) b[i] = (unsigned char)(b[i] * 5 + 2);
    for (unsigned i = 0; i < a_size; i++) found = found * 31 + a[i];
    *sum = found;
    return 0;
}
struct node { struct node *next; unsigned value; };
int nvmlDeviceTestLinked (unsigned *value, struct node *node)
{
    *value += 7;
    node->value *= 2;
    if (node->next) node->next->value += 1;
    return 0;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc") or ""
    require(compiler, "needs a C compiler")
    path: Path = tmp_path_factory.mktemp("shared") / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)], input=SOURCE, text=True, check=True)
    return str(path)


class Inner(ctypes.Structure):
    _fields_ = [("a", ctypes.c_uint), ("b", ctypes.c_ubyte * 12)]


class Outer(ctypes.Structure):
    _fields_ = [("head", ctypes.c_uint), ("inner", Inner), ("tail", ctypes.c_ubyte * 16)]


def whole(outer: Any) -> tuple[Any, int]:
    return ctypes.byref(outer), ctypes.sizeof(outer)


def field(outer: Any) -> tuple[Any, int]:
    return ctypes.byref(outer.inner), ctypes.sizeof(Inner)


def array_field(outer: Any) -> tuple[Any, int]:
    return outer.inner.b, 12


def by_offset(outer: Any) -> tuple[Any, int]:
    return ctypes.byref(outer, 8), ctypes.sizeof(outer) - 8


def by_pointer(outer: Any) -> tuple[Any, int]:
    view = (ctypes.c_ubyte * 32).from_buffer(outer, 4)  # the pointer keeps it, which is how its size is known
    return ctypes.cast(view, ctypes.POINTER(ctypes.c_ubyte)), 32


def window(outer: Any) -> tuple[Any, int]:
    """Neither contains the other where this is passed with `field`."""
    view = (ctypes.c_ubyte * 14).from_buffer(outer, 12)
    return ctypes.byref(view), 14


WAYS: list[Callable[[Any], tuple[Any, int]]] = [whole, field, array_field, by_offset, by_pointer, window]


@pytest.mark.parametrize("transport", ["shm", "pipe"])
def test_every_two_ways_to_pass_parts_of_one_object(library: str, transport: str) -> None:
    """Defect 6: an interior pointer that comes before what contains it loses no write."""
    direct = ctypes.CDLL(library).nvmlDeviceTestShared

    def outcome(function: Any, ways: tuple[Callable[[Any], tuple[Any, int]], ...]) -> tuple[int, bytes, int]:
        outer = Outer.from_buffer(bytearray(range(ctypes.sizeof(Outer))))
        total = ctypes.c_uint()
        arguments: list[Any] = []
        for way in ways:
            pointer, size = way(outer)
            arguments += [pointer, ctypes.c_uint(size)]
        result = function(*arguments, ctypes.byref(total))
        return result, bytes(outer), total.value

    with nvml_isolated(library=library, transport=transport) as nvml:
        function = nvml._nvmlGetFunctionPointer("nvmlDeviceTestShared")
        for ways in itertools.product(WAYS, repeat=2):
            expected = outcome(direct, ways)
            for _ in range(3):  # the third goes by a plan, if there is one
                assert outcome(function, ways) == expected, [way.__name__ for way in ways]


def test_a_plan_is_not_for_what_overlaps(library: str) -> None:
    """Defect 6: the types are the same, and only the addresses tell."""
    direct = ctypes.CDLL(library).nvmlDeviceTestShared

    def outcome(function: Any, one: Any, other: Any) -> tuple[bytes, bytes, int]:
        total = ctypes.c_uint()
        assert (
            function(ctypes.byref(one), ctypes.c_uint(8), ctypes.byref(other), ctypes.c_uint(8), ctypes.byref(total))
            == 0
        )
        return bytes(one), bytes(other), total.value

    def pair(distance: int) -> tuple[Any, Any]:
        memory = bytearray(range(64))
        eight = ctypes.c_ubyte * 8
        return eight.from_buffer(memory, 16), eight.from_buffer(memory, 16 + distance)

    with nvml_isolated(library=library) as nvml:
        function = nvml._nvmlGetFunctionPointer("nvmlDeviceTestShared")
        for distance in (*[8] * 4, 7, 4, 1, 0, -1, -4, -7, -8):
            assert outcome(function, *pair(distance)) == outcome(direct, *pair(distance)), distance


class Node(ctypes.Structure):
    pass


Node._fields_ = [("next", ctypes.POINTER(Node)), ("value", ctypes.c_uint)]


def test_structures_that_point_to_each_other(library: str) -> None:
    """Defect 6: also where the interior pointer comes first, and a structure is in its own list."""
    direct = ctypes.CDLL(library).nvmlDeviceTestLinked

    def outcome(function: Any, to_itself: bool) -> tuple[int, ...]:
        first, second = Node(value=5), Node(value=9)
        first.next = ctypes.pointer(first if to_itself else second)
        second.next = ctypes.pointer(first)
        value = ctypes.c_uint.from_buffer(first, Node.value.offset)
        assert function(ctypes.byref(value), ctypes.byref(first)) == 0
        return value.value, first.value, second.value

    with nvml_isolated(library=library) as nvml:
        function = nvml._nvmlGetFunctionPointer("nvmlDeviceTestLinked")
        for to_itself in (False, True):
            for _ in range(3):
                assert outcome(function, to_itself) == outcome(direct, to_itself)
