# SPDX-License-Identifier: Apache-2.0
"""Handles in whatever ctypes can hold them: what works over NVIDIA's library itself works in the sandbox."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pynvml
import pytest

import nvsandbox
from nvsandbox import nvml_isolated

VOID = ctypes.c_void_p


@pytest.fixture(scope="module", params=["shm", "pipe"])
def nvml(request: pytest.FixtureRequest) -> Iterator[Any]:
    with nvml_isolated(simulate="h100x2", transport=request.param) as nvml:
        yield nvml


def by_byref(get: Callable[[Any], int]) -> Any:
    handle = VOID()
    assert get(ctypes.byref(handle)) == 0
    return handle


def by_pointer(get: Callable[[Any], int]) -> Any:
    handle = VOID()
    assert get(ctypes.pointer(handle)) == 0
    return handle


def by_array(get: Callable[[Any], int]) -> Any:
    array = (VOID * 3)()
    assert get(array) == 0
    assert array[1] is array[2] is None
    return VOID(array[0])


def by_offset(get: Callable[[Any], int]) -> Any:
    array = (VOID * 3)()
    assert get(ctypes.byref(array, 0)) == 0
    return VOID(array[0])


def by_cast(get: Callable[[Any], int]) -> Any:
    handle = pynvml.c_nvmlDevice_t()
    assert get(ctypes.cast(ctypes.pointer(handle), VOID)) == 0
    return handle


def by_typed_cast(get: Callable[[Any], int]) -> Any:
    handle = VOID()
    assert get(ctypes.cast(ctypes.byref(handle), ctypes.POINTER(pynvml.c_nvmlDevice_t))) == 0
    return handle


def by_pointer_to_void_pointer(get: Callable[[Any], int]) -> Any:
    handles = (VOID * 2)()
    assert get(ctypes.cast(handles, ctypes.POINTER(VOID))) == 0
    return VOID(handles[0])


def by_its_own_type(get: Callable[[Any], int]) -> Any:
    handle = pynvml.c_nvmlDevice_t()
    assert get(ctypes.byref(handle)) == 0
    return handle


OUT = [
    by_byref,
    by_pointer,
    by_array,
    by_offset,
    by_cast,
    by_typed_cast,
    by_pointer_to_void_pointer,
    by_its_own_type,
]


def number(handle: Any) -> int:
    value = ctypes.cast(handle, VOID).value
    assert value is not None
    return value


IN: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda handle: handle,
    "c_void_p": lambda handle: VOID(number(handle)),
    "c_size_t": lambda handle: ctypes.c_size_t(number(handle)),
    "c_ulong": lambda handle: ctypes.c_ulong(number(handle)),
    "c_longlong": lambda handle: ctypes.c_longlong(number(handle)),
    "pynvml's type": lambda handle: ctypes.cast(number(handle), pynvml.c_nvmlDevice_t),
    "cast": lambda handle: ctypes.cast(handle, VOID),
    "a number": number,
}


@pytest.mark.parametrize("given", OUT, ids=lambda given: given.__name__)
def test_every_way_in_for_every_way_out(nvml: Any, given: Callable[[Callable[[Any], int]], Any]) -> None:
    """T9: a void pointer to which NVML writes a handle stayed None, with a return code of success."""
    get = nvml._nvmlGetFunctionPointer("nvmlDeviceGetHandleByIndex_v2")
    ask = nvml._nvmlGetFunctionPointer("nvmlDeviceGetMinorNumber")
    handle = given(lambda out: int(get(ctypes.c_uint(1), out)))
    for name, way in IN.items():
        for _ in range(3):  # the short way learns from the first
            minor = ctypes.c_uint(99)
            assert ask(way(handle), ctypes.byref(minor)) == 0, name
            assert minor.value == 1, name


def test_what_no_object_owns_is_an_error(nvml: Any) -> None:
    """T9: cast() keeps nothing of byref(): nobody knows how much memory is there."""
    get = nvml._nvmlGetFunctionPointer("nvmlDeviceGetHandleByIndex_v2")
    handle = pynvml.c_nvmlDevice_t()
    with pytest.raises(TypeError, match="memory of unknown size: pass the object itself"):
        get(ctypes.c_uint(1), ctypes.cast(ctypes.byref(handle), VOID))
    assert not handle


def test_argtypes_of_the_callers_own(nvml: Any) -> None:
    get = nvml._nvmlGetFunctionPointer("nvmlDeviceGetHandleByIndex_v2")
    ask = nvml._nvmlGetFunctionPointer("nvmlDeviceGetMinorNumber")
    ask.argtypes = [VOID, ctypes.POINTER(ctypes.c_uint)]
    try:
        handle, minor = VOID(), ctypes.c_uint(99)
        assert get(ctypes.c_uint(1), ctypes.byref(handle)) == 0
        assert ask(handle.value, ctypes.byref(minor)) == 0
        assert minor.value == 1
    finally:
        ask.argtypes = None


def test_a_void_pointer_to_the_callers_memory(nvml: Any) -> None:
    """It is no handle, and goes on pointing to bytes."""
    ask = nvml._nvmlGetFunctionPointer("nvmlSystemGetDriverVersion")
    text = ctypes.create_string_buffer(80)
    assert ask(ctypes.cast(text, VOID), ctypes.c_uint(80)) == 0
    assert text.value.decode() == nvml.nvmlSystemGetDriverVersion()


def test_a_handle_that_was_freed_is_stale_in_every_form(nvml: Any) -> None:
    """T9: the same object has a token of its kind, and one without."""
    make = nvml._nvmlGetFunctionPointer("nvmlEventSetCreate")
    free = nvml._nvmlGetFunctionPointer("nvmlEventSetFree")
    first = VOID()
    assert make(ctypes.byref(first)) == 0
    assert free(first) == 0
    with pytest.raises(nvsandbox.StaleHandle):
        free(first)
    with pytest.raises(nvsandbox.StaleHandle):
        free(ctypes.cast(first, pynvml.c_nvmlEventSet_t))


def test_one_of_another_worker_is_stale() -> None:
    with nvml_isolated(simulate="h100x2") as nvml:
        get = nvml._nvmlGetFunctionPointer("nvmlEventSetCreate")
        handle = VOID()
        assert get(ctypes.byref(handle)) == 0
    with nvml_isolated(simulate="h100x2") as nvml:
        free = nvml._nvmlGetFunctionPointer("nvmlEventSetFree")
        for way in ("as it is", "c_void_p", "c_size_t", "a number"):
            with pytest.raises(nvsandbox.StaleHandle):
                free(IN[way](handle))
