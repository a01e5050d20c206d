# SPDX-License-Identifier: Apache-2.0
"""Where in a ctypes type handles, pointers and strings lie, against a plain walk over every field and element."""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvsandbox.marshal import Layout, Run, array_layout, handle_kind, layout_of


class Opaque(ctypes.Structure):
    pass


class Other(ctypes.Structure):
    pass


HANDLE, OTHER = ctypes.POINTER(Opaque), ctypes.POINTER(Other)
NUMBERS = [ctypes.c_uint, ctypes.c_ulonglong, ctypes.c_ubyte, ctypes.c_short, ctypes.c_double, ctypes.c_char * 5]
POINTERS = [ctypes.POINTER(ctypes.c_uint), ctypes.c_void_p]
LEAVES = [*NUMBERS, HANDLE, OTHER, *POINTERS, ctypes.c_char_p]


def walk(ctype: Any, offset: int = 0) -> list[tuple[str, int]]:
    """Every place, one by one."""
    if ctype is HANDLE or ctype is OTHER:
        return [(f"handle {handle_kind(ctype)}", offset)]
    if ctype in POINTERS:
        return [("pointer", offset)]
    if ctype is ctypes.c_char_p:
        return [("string", offset)]
    if issubclass(ctype, ctypes.Array):
        size = ctypes.sizeof(ctype._type_)
        return [place for index in range(ctype._length_) for place in walk(ctype._type_, offset + index * size)]
    if issubclass(ctype, ctypes.Structure | ctypes.Union):
        found = []
        for base in ctype.__mro__:
            for entry in base.__dict__.get("_fields_", ()):
                found += walk(entry[1], offset + getattr(ctype, entry[0]).offset)
        return found
    return []


def places(layout: Layout) -> list[tuple[str, int]]:
    found = [(f"handle {kind}", place) for run, kind in layout.handles for place in run.places()]
    found += [("pointer", place) for run, _ in layout.pointers for place in run.places()]
    found += [("string", place) for run in layout.strings for place in run.places()]
    return found


def structure(parts: tuple[Any, list[Any], list[Any], bool]) -> Any:
    kind, inherited, own, packed = parts

    def fields(prefix: str, types: list[Any]) -> list[tuple[str, Any]]:
        return [(f"{prefix}{index}", part) for index, part in enumerate(types)]

    base = type("Base", (kind,), {"_pack_": 4 if packed else 8, "_fields_": fields("b", inherited)})
    return type("Made", (base,), {"_pack_": 4 if packed else 8, "_fields_": fields("f", own)})


def extend(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    arrays = st.tuples(children, st.integers(0, 5)).map(lambda pair: pair[0] * pair[1])
    members = st.lists(children, max_size=4)
    structures = st.tuples(st.just(ctypes.Structure), members, members, st.booleans()).map(structure)
    return st.one_of(arrays, structures)


TYPES = st.recursive(st.sampled_from(LEAVES), extend, max_leaves=12)


@given(TYPES)
@settings(max_examples=300, deadline=None)
def test_every_place_is_found_once(ctype: Any) -> None:
    assert sorted(places(layout_of(ctype))) == sorted(walk(ctype))


@given(TYPES, st.integers(0, 6))
@settings(max_examples=100, deadline=None)
def test_elements_in_a_row(ctype: Any, count: int) -> None:
    assert sorted(places(array_layout(ctype, count))) == sorted(walk(ctype * count))


def test_of_every_structure_of_pynvml() -> None:
    checked = 0
    for name, ctype in vars(pynvml).items():
        if not (isinstance(ctype, type) and issubclass(ctype, ctypes.Structure | ctypes.Union)):
            continue
        if not getattr(ctype, "_fields_", ()):  # an opaque one, or a base class
            continue
        found = places(layout_of(ctype))
        assert len(found) == len(set(found)), name
        assert all(0 <= place <= ctypes.sizeof(ctype) - 8 for _, place in found), name
        checked += 1
    assert checked > 50


@pytest.mark.parametrize(
    ("name", "handles", "pointers", "strings"),
    [
        ("c_nvmlEventData_t", [0], [], []),
        ("c_nvmlMemory_t", [], [], []),
        ("nvmlPciInfo_t", [], [], []),
    ],
)
def test_of_known_ones(name: str, handles: list[int], pointers: list[int], strings: list[int]) -> None:
    layout = layout_of(getattr(pynvml, name))
    assert [run.offset for run, _ in layout.handles] == handles
    assert [run.offset for run, _ in layout.pointers] == pointers
    assert [run.offset for run in layout.strings] == strings
    assert layout.plain == (not (handles or pointers or strings))


def test_an_array_of_structures_is_one_run() -> None:
    """A list of 5000 records must not make a frame of 5000 relocations."""

    class Record(ctypes.Structure):
        _fields_ = [("number", ctypes.c_uint), ("device", HANDLE)]

    assert array_layout(Record, 5000).handles == ((Run(8, 5000, 16), handle_kind(HANDLE)),)


def test_kinds_are_told_apart_by_name() -> None:
    assert handle_kind(HANDLE) != handle_kind(OTHER)
    assert handle_kind(HANDLE) == handle_kind(HANDLE)
    assert 1 <= handle_kind(pynvml.c_nvmlDevice_t) <= 255
