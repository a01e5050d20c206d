# SPDX-License-Identifier: Apache-2.0
"""What comes between two steps of a call (a signal handler, a finalizer, another thread) finds nothing that it could
spoil, and spoils nothing. Each test has it come at one place, at which otherwise it does once in thousands of calls."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pynvml
import pytest
from waiting import forked, until, until_inside

from nvsandbox import _fast, marshal, nvml_isolated, plans
from nvsandbox.channels import Lane
from nvsandbox.errors import SandboxError
from nvsandbox.keeper import Keeper
from nvsandbox.session import NVMLSession
from nvsandbox.worker import Worker

short = pytest.mark.skipif(not plans.available, reason="this Python's ctypes objects are not laid out as expected")


@pytest.fixture
def handled() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Has SIGUSR1 handled by a function."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda action: signal.signal(signal.SIGUSR1, lambda number, frame: action()) and None
    signal.signal(signal.SIGUSR1, before)


def once_before(patch: pytest.MonkeyPatch, owner: type, name: str, action: Callable[[], object], after: bool) -> None:
    """Has `action` done before or after the next call of a method, and the method as it was from then on."""
    original = getattr(owner, name)

    def method(self: Any, *arguments: Any) -> Any:
        setattr(owner, name, original)
        if not after:
            action()
        found = original(self, *arguments)
        if after:
            action()
        return found

    patch.setattr(owner, name, method)


def token(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


@pytest.mark.parametrize("transport", ["shm", "pipe"])
def test_a_handlers_call_between_a_reply_and_its_use(
    transport: str, handled: Callable[[Callable[[], object]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had the outer call give the handle of the GPU that the handler had asked for."""
    with nvml_isolated(simulate="t4x2", transport=transport) as nvml:
        first, second = (token(nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(2))
        assert first != second
        inner: list[int | None] = []
        handled(lambda: inner.append(token(nvml.nvmlDeviceGetHandleByIndex(1))))
        parse = marshal.parse_reply

        def interrupted(reply: memoryview) -> marshal.Reply:
            marshal.parse_reply = parse
            signal.raise_signal(signal.SIGUSR1)
            return parse(reply)

        monkeypatch.setattr(marshal, "parse_reply", interrupted)
        assert token(nvml.nvmlDeviceGetHandleByIndex(0)) == first
        assert inner == [second]


@pytest.mark.parametrize("earlier", [0, 1], ids=["a thread's first call", "a later one"])
@pytest.mark.parametrize("transport", ["shm", "pipe"])
def test_another_call_at_every_step_of_one(transport: str, earlier: int) -> None:
    """As of a finalizer or a signal handler: at the beginning and the end of each function that a call goes through."""
    with nvml_isolated(simulate="t4x2", transport=transport) as nvml:
        right = [token(nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(2)]
        steps = 0
        while True:
            found: list[int | None] = []
            left = steps

            def step(frame: object, event: str, argument: object) -> None:
                nonlocal left
                left -= 1
                if left == -1:
                    found.append(token(nvml.nvmlDeviceGetHandleByIndex(1)))  # noqa: B023 - done within this turn

            def thread() -> None:
                for _ in range(earlier):
                    nvml.nvmlDeviceGetHandleByIndex(0)
                sys.setprofile(step)
                try:
                    outer = nvml.nvmlDeviceGetHandleByIndex(0)
                finally:
                    sys.setprofile(None)
                found.append(token(outer))  # noqa: B023

            caller = threading.Thread(target=thread)
            caller.start()
            caller.join()
            if len(found) == 1:
                break
            assert found == [right[1], right[0]], f"at step {steps}"
            steps += 1
        assert steps > 50


@short
def test_a_lane_is_used_for_the_worker_at_its_other_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker is replaced while a call is in it, and its lane lives on for a moment: the calls after that one went
    there, with the numbers that functions have in the next one."""
    with nvml_isolated(simulate="t4x2", recycle_after=1_000_000) as nvml:
        # In this worker the count has the number that the driver's version has in the next one.
        wanted = [nvml.nvmlDeviceGetCount(), nvml.nvmlSystemGetCudaDriverVersion()]
        keeper = nvml.session.keeper
        before = keeper.worker
        held: list[Worker] = []
        monkeypatch.setattr(Worker, "finish", lambda worker: held.append(worker))

        def replaced() -> None:
            keeper._recycle(before)
            teacher = threading.Thread(target=lambda: [nvml.nvmlSystemGetCudaDriverVersion() for _ in range(3)])
            teacher.start()
            teacher.join()

        once_before(monkeypatch, Lane, "exchange", replaced, after=True)
        nvml.nvmlDeviceGetHandleByIndex(0)
        monkeypatch.undo()
        assert held == [before]
        assert keeper.worker is not before
        calls = nvml.session.link.calls
        for _ in range(3):
            assert nvml.nvmlSystemGetCudaDriverVersion() == wanted[1]
            assert nvml.nvmlDeviceGetCount() == wanted[0]
        assert nvml.session.link.calls > calls  # the short way, to the new one
        before.finish()


PLACES = {
    "before the request": (Lane, "exchange", False, "nvmlDeviceGetHandleByIndex"),
    "after the reply": (Lane, "exchange", True, "nvmlDeviceGetHandleByIndex"),
    "after the look of a call that waits": (NVMLSession, "_fast_error", True, "nvmlDeviceGetCount"),
    "before the look of a call that waits": (NVMLSession, "_fast_error", False, "nvmlDeviceGetCount"),
    "after the look of a call that the marshaller waits for": (Worker, "_is_gone", True, "nvmlUnitGetCount"),
    "before a worker is looked for": (Keeper, "current", False, "nvmlDeviceGetHandleByIndex"),
}


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("place", PLACES)
def test_a_handler_that_forks_in_the_middle_of_a_call(place: str, listed: bool) -> None:
    """Both processes come back from it. The child has no worker, and what it had of its parent's is gone: its call
    raises, or has a new one. It had been a SIGSEGV. A lane is not listed yet when it is made, and no more when
    its worker ends."""
    owner, name, after, function = PLACES[place]

    def parent() -> None:
        with pytest.MonkeyPatch.context() as patch, nvml_isolated(simulate="t4,latency_us=60000") as nvml:
            arguments = (0,) if function == "nvmlDeviceGetHandleByIndex" else ()
            call = getattr(nvml, function)
            for _ in range(2):
                right = call(*arguments)
            children: list[int] = []

            def fork(number: int, frame: object) -> None:
                if not listed:
                    nvml.session.keeper.worker.take_channels()
                children.append(os.fork())

            signal.signal(signal.SIGUSR1, fork)
            once_before(patch, owner, name, lambda: signal.raise_signal(signal.SIGUSR1), after)
            try:
                found = call(*arguments)
                assert children == [0] or type(found) is type(right)
            except SandboxError:
                assert children == [0], "in the parent"
            if children == [0]:
                os._exit(0)
            assert len(children) == 1
            assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0

    assert os.waitstatus_to_exitcode(os.waitpid(forked(parent), 0)[1]) == 0


@pytest.mark.parametrize("function", ["nvmlDeviceGetCount", "nvmlUnitGetCount"], ids=["short", "marshalled"])
def test_a_handler_that_forks_in_a_call_to_a_worker_that_is_being_recycled(function: str) -> None:
    """Such a worker lets calls end, however long they take; the child waited for an answer that cannot come, without a
    pause, and without a time limit for ever."""

    def parent() -> None:
        with nvml_isolated(simulate="t4,latency_us=300000", timeout=None) as nvml:
            call = getattr(nvml, function)
            if function == "nvmlDeviceGetCount":
                call()
            worker = nvml.session.keeper.worker
            children: list[int] = []

            def fork(number: int, frame: object) -> None:
                children.append(os.fork())
                if children == [0]:
                    signal.alarm(10)

            def meanwhile() -> None:
                until_inside(worker.pid)
                worker.finish()
                until(lambda: worker.recycled)
                os.kill(os.getpid(), signal.SIGUSR1)

            signal.signal(signal.SIGUSR1, fork)
            thread = threading.Thread(target=meanwhile)
            thread.start()
            try:
                call()
                assert children != [0], "a call that only the parent's worker answers"
            except SandboxError:
                assert children == [0], "in the parent"
            if children == [0]:
                os._exit(0)
            thread.join()
            assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0

    assert os.waitstatus_to_exitcode(os.waitpid(forked(parent), 0)[1]) == 0


def test_an_exception_out_of_a_handler_while_a_lane_is_closed() -> None:
    """It comes through, and the lane is closed all the same: its memory and the worker's thread for it had stayed."""

    class Interrupted:
        def invalidate(self) -> None:
            raise KeyboardInterrupt

    with nvml_isolated(simulate="t4") as nvml:
        nvml.nvmlDeviceGetCount()
        worker = nvml.session.keeper.worker
        tasks = f"/proc/{worker.pid}/task"
        before = len(os.listdir(tasks))
        lane = worker._channels.lane.channel
        link, lane._link = lane._link, Interrupted()
        assert lane.enter()
        with pytest.raises(KeyboardInterrupt):
            lane.close()
        lane._link = link
        link.invalidate()
        assert until(lambda: len(os.listdir(tasks)) == before - 1)
        assert nvml.nvmlDeviceGetCount() == 1


class Chained(ctypes.Structure):
    _fields_ = (("count", ctypes.c_uint), ("values", ctypes.POINTER(ctypes.c_ulonglong)))


def test_what_a_pointer_led_to_lives_as_long_as_the_call() -> None:
    """A reply is written where the request was read, also if a handler or another thread has the structure point
    elsewhere meanwhile, and nobody else has what it pointed to."""
    values = (ctypes.c_ulonglong * 4)()
    gone = weakref.ref(values)
    chained = Chained(4, ctypes.cast(values, ctypes.POINTER(ctypes.c_ulonglong)))
    call = marshal.Call("nvmlAnything", (ctypes.byref(chained),))
    chained.values = ctypes.cast((ctypes.c_ulonglong * 4)(), ctypes.POINTER(ctypes.c_ulonglong))
    del values
    gc.collect()
    assert gone() is not None
    del call
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(("before", "during"), [(96, 1 << 20), (4096, 96)], ids=["larger", "smaller"])
@pytest.mark.parametrize("way", ["the array", "a reference", "a pointer"])
def test_an_array_that_moves_during_a_call(before: int, during: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """ctypes.resize() in a handler or another thread: the reply was written to where the array had been."""
    with nvml_isolated(simulate="t4") as nvml:
        device = nvml.nvmlDeviceGetHandleByIndex(0)
        buffer = ctypes.create_string_buffer(96)
        ctypes.resize(buffer, before)
        argument = {"the array": buffer, "a reference": ctypes.byref(buffer), "a pointer": ctypes.pointer(buffer)}[way]
        name = nvml._nvmlGetFunctionPointer("nvmlDeviceGetName")  # by an exchange of its own
        once_before(monkeypatch, Lane, "exchange", lambda: ctypes.resize(buffer, during), after=True)
        assert name(device, argument, ctypes.c_uint(96)) == 0
        assert ctypes.sizeof(buffer) == during
        assert ctypes.string_at(ctypes.addressof(buffer)) == b"Tesla T4"


def test_a_function_after_the_garbage_collector() -> None:
    """A finalizer may still have one whose parts have been taken away; it had been a SIGSEGV."""

    class Slow:
        restype = 3

    link = _fast.Link(print, print, print, print, None)  # type: ignore[arg-type]
    function = _fast.Function("nvmlAnything", Slow(), link)
    clear(function)
    for attempt in (
        lambda: function(),
        lambda: function(1, 2, 3, 4, 5, 6, 7, 8),
        lambda: function(a=1),
        lambda: type(function).__call__(function, 1, 2, 3, 4, 5, 6, 7, 8),
        lambda: function.restype,
        lambda: setattr(function, "restype", 3),
        lambda: repr(function),
    ):
        with pytest.raises(RuntimeError, match="is no more"):
            attempt()  # type: ignore[no-untyped-call]


def clear(thing: object) -> None:
    """What the garbage collector does to each part of a cycle."""
    get_slot = ctypes.pythonapi.PyType_GetSlot
    get_slot.argtypes, get_slot.restype = (ctypes.py_object, ctypes.c_int), ctypes.c_void_p
    address = get_slot(type(thing), 51)  # Py_tp_clear
    assert ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object)(address)(thing) == 0


@short
def test_a_calibration_that_fails_takes_nothing_away() -> None:
    """Plans that have been learnt go on reading where ctypes objects have their memory."""
    with nvml_isolated(simulate="t4x2") as nvml:
        nvml.nvmlDeviceGetCount()
        value = ctypes.c_uint(1)
        try:
            assert not _fast.calibrate([(value, 0xDEAD, type(value).__basicsize__)], [])
            assert nvml.nvmlDeviceGetCount() == 2
        finally:
            assert plans.calibrate()
        assert nvml.nvmlDeviceGetCount() == pynvml.nvmlDeviceGetCount() == 2


FIRST_LOOKS = """
import gc
from nvsandbox.bindings import Library

class Session:
    def has_function(self, name):
        # From here on one allocation after another is the one that the garbage collector comes at.
        gc.set_threshold(gc.get_count()[0] + steps)
        return True

class Padding:
    pass

def others_look(phase, info):
    global waiting
    if waiting is not None and phase == "start":
        library, waiting = waiting, None
        library.nvmlDeviceGetName

waiting = None
came = 0
gc.set_threshold(0)
gc.callbacks.append(others_look)
for steps in list(range(8)) * 20:
    library = Library(Session())
    gc.collect(0)
    used = [{} for _ in range(200)]  # dictionaries that were used before are used again, and not allocated
    counted = [Padding() for _ in range(100)]
    waiting = library
    function = library.nvmlDeviceGetCount_v2
    gc.set_threshold(0)
    came += waiting is None
    waiting = None
    holders = [one for one in gc.get_referrers(library._session) if isinstance(one, dict) and "_session" in one]
    assert len(holders) <= 1, f"its attributes are in {len(holders)} dictionaries, which share one reference"
    assert library.nvmlDeviceGetCount_v2 is function
    del library, function, holders, used
assert came > 0
"""


def test_first_looks_in_the_middle_of_one_another() -> None:
    """The garbage collector may come wherever something is allocated, and lets other threads run by whatever Python
    code it calls. In Python 3.11 an object whose ``__dict__`` two threads ask for first at that moment gets two, and
    its attributes are freed under whoever has them."""
    done = subprocess.run([sys.executable, "-c", FIRST_LOOKS], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
