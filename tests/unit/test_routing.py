# SPDX-License-Identifier: Apache-2.0
"""Where plain pynvml calls go while blocks open and close, in one thread and in many. No process is needed for this: a
library that answers with its own number takes the place of NVML."""

from __future__ import annotations

import ctypes
import functools
import itertools
import random
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvsandbox.bindings import Library, namespace
from nvsandbox.routing import Route

UNINITIALIZED = pynvml.NVML_ERROR_UNINITIALIZED


def answer(number: int, name: str, arguments: tuple[Any, ...]) -> int:
    """What the library `number` does: a call to count devices gives its number."""
    if name == "nvmlDeviceGetCount_v2":
        arguments[0]._obj.value = number
    return 0


class Session:
    """As a Library sees one."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.inits = 0
        self.most_shutdowns = 0
        self.lock = threading.Lock()

    def has_function(self, name: str) -> bool:
        return name != "nvmlSystemGetDriverVersion"

    def hint(self) -> str:
        return ""

    def call(self, name: str, arguments: tuple[Any, ...], returns_string: bool) -> int:
        with self.lock:
            if name.startswith("nvmlInit"):
                self.inits += 1
            elif name == "nvmlShutdown":
                if self.inits == 0:
                    self.most_shutdowns += 1
                    return UNINITIALIZED
                self.inits -= 1
        return answer(self.number, name, arguments)


class Direct:
    """As ctypes.CDLL: functions as attributes."""

    def __init__(self, number: int) -> None:
        self._number = number
        vars(self)  # see nvsandbox/bindings.py

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("nvml"):
            raise AttributeError(name)
        function = self.__dict__[name] = lambda *arguments: answer(self._number, name, arguments)
        return function


@pytest.fixture
def direct() -> Iterator[Direct]:
    """pynvml with a library of its own, as after an nvmlInit before any block."""
    before = (pynvml.nvmlLib, pynvml._nvmlLib_refcount, pynvml._nvmlGetFunctionPointer_cache)
    library = Direct(1000)
    pynvml.nvmlLib = library
    pynvml._nvmlLib_refcount = 3
    pynvml._nvmlGetFunctionPointer_cache = {}
    yield library
    pynvml.nvmlLib, pynvml._nvmlLib_refcount, pynvml._nvmlGetFunctionPointer_cache = before


def route(number: int) -> Route:
    return Route(Library(Session(number)))


def test_the_last_opened_has_the_calls(direct: Direct) -> None:
    assert pynvml.nvmlDeviceGetCount() == 1000
    one, two = route(1), route(2)
    one.open()
    assert pynvml.nvmlDeviceGetCount() == 1
    two.open()
    assert pynvml.nvmlDeviceGetCount() == 2
    two.close()
    assert pynvml.nvmlDeviceGetCount() == 1
    one.close()
    assert pynvml.nvmlDeviceGetCount() == 1000
    assert pynvml.nvmlLib is direct


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
@pytest.mark.usefixtures("direct")
def test_closed_in_any_order(order: tuple[int, ...]) -> None:
    routes = [route(number) for number in range(3)]
    for each in routes:
        each.open()
    left = [0, 1, 2]
    for number in order:
        routes[number].close()
        routes[number].close()
        left.remove(number)
        assert pynvml.nvmlDeviceGetCount() == (left[-1] if left else 1000)
    assert pynvml._nvmlLib_refcount == 3


@given(st.lists(st.tuples(st.sampled_from(["open", "close", "init", "shutdown"]), st.integers(0, 3)), max_size=30))
@settings(max_examples=100, deadline=None)
def test_any_order_of_anything(steps: list[tuple[str, int]]) -> None:
    """Against a model: a list of open blocks, each with a count of its own, and below them direct use."""
    before = (pynvml.nvmlLib, pynvml._nvmlLib_refcount, pynvml._nvmlGetFunctionPointer_cache)
    pynvml.nvmlLib, pynvml._nvmlLib_refcount, pynvml._nvmlGetFunctionPointer_cache = Direct(1000), 0, {}
    routes: dict[int, Route] = {}
    opened: list[int] = []
    counts = {1000: 0}
    try:
        for step, number in steps:
            if step == "open" and number not in opened:
                routes[number] = route(number)
                routes[number].open()
                opened.append(number)
                counts[number] = 0
            elif step == "close" and number in opened:
                routes[number].close()
                opened.remove(number)
            now = opened[-1] if opened else 1000
            if step == "init":
                pynvml.nvmlInit()
                counts[now] += 1
            elif step == "shutdown":
                if now == 1000 or counts[now] > 0:
                    pynvml.nvmlShutdown()
                    counts[now] = max(0, counts[now] - 1)
                else:
                    with pytest.raises(pynvml.NVMLError_Uninitialized):
                        pynvml.nvmlShutdown()
            assert pynvml.nvmlDeviceGetCount() == now
            assert pynvml._nvmlLib_refcount == counts[now]
    finally:
        for number in opened:
            routes[number].close()
        assert pynvml.nvmlDeviceGetCount() == 1000
        assert pynvml._nvmlLib_refcount == counts[1000]
        pynvml.nvmlLib, pynvml._nvmlLib_refcount, pynvml._nvmlGetFunctionPointer_cache = before


def test_what_was_never_loaded_is_not_loaded() -> None:
    assert pynvml.nvmlLib is None
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()
    one = route(1)
    one.open()
    assert pynvml.nvmlDeviceGetCount() == 1
    one.close()
    assert pynvml.nvmlLib is None
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()


@pytest.mark.usefixtures("direct")
def test_a_symbol_that_the_sandbox_lacks_is_not_taken_from_elsewhere() -> None:
    pynvml.nvmlSystemGetDriverVersion()
    one = route(1)
    one.open()
    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        pynvml.nvmlSystemGetDriverVersion()
    assert pynvml.nvmlDeviceGetCount() == 1
    one.close()
    pynvml.nvmlSystemGetDriverVersion()


# ---- code that keeps, copies or wraps what pynvml has


@pytest.mark.usefixtures("direct")
def test_functions_that_were_imported_before() -> None:
    kept = pynvml.nvmlDeviceGetCount
    assert kept() == 1000
    one = route(1)
    one.open()
    assert kept() == 1
    one.close()
    assert kept() == 1000


@pytest.mark.usefixtures("direct")
def test_a_function_imported_in_the_block_does_not_outlive_it() -> None:
    one = route(1)
    one.open()
    kept = pynvml.nvmlDeviceGetCount
    assert kept() == 1
    one.close()
    assert kept() == 1000


@pytest.mark.usefixtures("direct")
def test_a_wrapped_pointer_getter(monkeypatch: pytest.MonkeyPatch) -> None:
    """gpustat puts its own in pynvml's place, which tries several versions of a symbol."""
    original = pynvml._nvmlGetFunctionPointer
    asked = []

    @functools.wraps(original)
    def wrapped(name: str) -> Any:
        asked.append(name)
        return original(name)

    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", wrapped)
    one = route(1)
    one.open()
    assert pynvml.nvmlDeviceGetCount() == 1
    nvml = namespace(one.library, None)
    assert nvml.nvmlDeviceGetCount() == 1
    one.close()
    assert pynvml.nvmlDeviceGetCount() == 1000
    assert asked


@pytest.mark.usefixtures("direct")
def test_a_module_of_copies() -> None:
    """nvitop's libnvml has pynvml's names, some of them wrapped, in a module of its own."""
    copies = types.ModuleType("copies")
    vars(copies).update({name: value for name, value in vars(pynvml).items() if not name.startswith("__")})
    assert copies.nvmlDeviceGetCount() == 1000
    one = route(1)
    one.open()
    assert copies.nvmlDeviceGetCount() == 1
    one.close()
    assert copies.nvmlDeviceGetCount() == 1000


@pytest.mark.usefixtures("direct")
def test_a_replaced_function_is_seen_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound API has pynvml's own function where somebody has replaced it by a wrapper."""
    original = pynvml.nvmlDeviceGetCount

    @functools.wraps(original)
    def wrapped() -> int:
        return original() + 1

    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", wrapped)
    nvml = namespace(Library(Session(5)), None)
    assert nvml.nvmlDeviceGetCount() == 5
    assert pynvml.nvmlDeviceGetCount() == 1001


# ---- threads


@pytest.mark.usefixtures("direct")
def test_blocks_come_and_go_while_others_call() -> None:
    """No KeyError, no IndexError, and every answer is of a library that was open at some time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    end = time.monotonic() + 1.0
    wrong: list[BaseException] = []
    answers: set[int] = set()

    def opener(number: int) -> None:
        rng = random.Random(number)
        while time.monotonic() < end:
            one = route(number)
            one.open()
            if rng.random() < 0.5:
                time.sleep(0)
            one.close()

    def caller() -> None:
        try:
            while time.monotonic() < end:
                answers.add(pynvml.nvmlDeviceGetCount())
                pynvml.nvmlDeviceGetHandleByIndex(0)
                pynvml.nvmlSystemGetNVMLVersion()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=opener, args=(number,)) for number in (1, 2)]
    threads += [threading.Thread(target=caller) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(before)
    assert wrong == []
    assert answers <= {1, 2, 1000}
    assert pynvml.nvmlDeviceGetCount() == 1000


def test_a_block_that_ends_between_two_steps_of_a_call() -> None:
    """pynvml stores what it found and reads it again; when the block has ended in between and there is no other
    library, the answer is that NVML is not initialised."""
    one = route(1)
    one.open()
    cache = pynvml._nvmlGetFunctionPointer_cache
    cache["nvmlDeviceGetCount_v2"] = pynvml.nvmlLib.nvmlDeviceGetCount_v2
    one.close()
    assert "nvmlDeviceGetCount_v2" not in cache
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        cache["nvmlDeviceGetCount_v2"]


# ---- counts of initialisation


def test_a_shutdown_too_many_is_uninitialized() -> None:
    session = Session(1)
    nvml = namespace(Library(session), None)
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        nvml.nvmlShutdown()
    nvml.nvmlInit()
    nvml.nvmlInitWithFlags(0)
    assert session.inits == 2
    nvml.nvmlShutdown()
    nvml.nvmlShutdown()
    for _ in range(3):
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            nvml.nvmlShutdown()
    assert (session.inits, session.most_shutdowns) == (0, 0)


def test_one_users_shutdown_takes_nothing_from_another() -> None:
    session = Session(1)
    one, two = namespace(Library(session), None), namespace(Library(session), None)
    one.nvmlInit()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        two.nvmlShutdown()
    assert session.inits == 1


@given(
    st.lists(
        st.lists(st.tuples(st.booleans(), st.integers(0, 1)), max_size=20),
        min_size=2,
        max_size=4,
    )
)
@settings(max_examples=60, deadline=None)
def test_counts_in_threads(plans: list[list[tuple[bool, int]]]) -> None:
    """Any orders of init and shutdown in threads, of two users of one session: what reaches the session is balanced,
    whoever succeeded was counted, and the end gives back what is left."""
    session = Session(1)
    libraries = [Library(session), Library(session)]
    users = [namespace(library, None) for library in libraries]
    done = [[0, 0], [0, 0]]
    lock = threading.Lock()
    barrier = threading.Barrier(len(plans))
    wrong: list[BaseException] = []

    def run(plan: list[tuple[bool, int]]) -> None:
        barrier.wait()
        for init, user in plan:
            try:
                users[user].nvmlInit() if init else users[user].nvmlShutdown()
            except pynvml.NVMLError_Uninitialized:
                if init:
                    wrong.append(AssertionError("nvmlInit"))
                continue
            except BaseException as error:
                wrong.append(error)
                continue
            with lock:
                done[user][0 if init else 1] += 1

    threads = [threading.Thread(target=run, args=(plan,)) for plan in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert session.most_shutdowns == 0
    for library, (inits, shutdowns) in zip(libraries, done, strict=True):
        assert len(library._inits) == inits - shutdowns >= 0
    assert session.inits == sum(inits - shutdowns for inits, shutdowns in done)
    for library in libraries:
        library._close()
        library._close()
    assert (session.inits, session.most_shutdowns) == (0, 0)


# ---- the bound API


def test_it_is_the_whole_of_pynvml() -> None:
    nvml = namespace(Library(Session(1)), "session")
    missing = [name for name in vars(pynvml) if not hasattr(nvml, name)]
    assert missing == []
    for name, value in vars(pynvml).items():
        bound = getattr(nvml, name)
        if isinstance(value, types.FunctionType) and name.startswith("nvml"):
            assert bound is not value
            assert bound.__doc__ == value.__doc__
            assert bound.__qualname__ == value.__qualname__
        elif isinstance(value, type) or name.startswith("NVML_"):
            assert bound is value, "classes, exceptions and constants are pynvml's own"
    assert nvml.session == "session"
    assert nvml.__name__ == "nvsandbox.nvml"


def test_the_bound_api_leaves_pynvml_alone() -> None:
    before = dict(vars(pynvml))
    nvml = namespace(Library(Session(7)), None)
    nvml.nvmlInit()
    assert nvml.nvmlDeviceGetCount() == 7
    nvml.nvmlShutdown()
    assert vars(pynvml) == before


def test_no_function_of_pynvml_is_left_unbound() -> None:
    """Closures of its decorators too: no function that is reached from the bound API has pynvml's globals."""
    nvml = namespace(Library(Session(1)), None)
    seen: set[int] = set()

    def reached(function: types.FunctionType) -> None:
        if id(function) in seen:
            return
        seen.add(id(function))
        assert function.__globals__ is not vars(pynvml), function
        for cell in function.__closure__ or ():
            if isinstance(cell.cell_contents, types.FunctionType):
                reached(cell.cell_contents)

    for name, value in vars(nvml).items():
        if isinstance(value, types.FunctionType) and name.startswith(("nvml", "_nvml")):
            reached(value)
    assert len(seen) > 300


def test_use_after_the_end() -> None:
    library = Library(Session(1))
    nvml = namespace(library, None)
    nvml.nvmlInit()
    function = nvml._nvmlGetFunctionPointer("nvmlDeviceGetCount_v2")
    library._close()
    for use in (nvml.nvmlDeviceGetCount, nvml.nvmlInit, nvml.nvmlShutdown, function):
        with pytest.raises(pynvml.NVMLError_Uninitialized, match="block that this belongs to has ended"):
            use()


def test_a_function_is_like_one_of_ctypes() -> None:
    library = Library(Session(3))
    function = library.nvmlDeviceGetCount_v2
    assert function is library.nvmlDeviceGetCount_v2 is library["nvmlDeviceGetCount_v2"]
    assert function.__name__ == "nvmlDeviceGetCount_v2"
    count = ctypes.c_uint()
    assert function(ctypes.byref(count)) == 0
    assert count.value == 3
    function.errcheck = lambda result, called, arguments: (result, called is function, len(arguments))
    assert function(ctypes.byref(count)) == (0, True, 1)
    function.errcheck = None
    function.argtypes = [ctypes.POINTER(ctypes.c_uint), ctypes.c_int]
    with pytest.raises(TypeError, match=r"this function takes at least 2 arguments \(1 given\)"):
        function(ctypes.byref(count))
    with pytest.raises(AttributeError, match="nvmlSystemGetDriverVersion"):
        _ = library.nvmlSystemGetDriverVersion
    with pytest.raises(AttributeError, match="printf"):
        _ = library.printf
