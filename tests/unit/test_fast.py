# SPDX-License-Identifier: Apache-2.0
"""The short way for calls: taken when it fits, left for the marshaller when it does not, and never to a wrong size."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import threading
import weakref

import pynvml
import pytest
from waiting import kill, signal_when_inside, stop

import nvsandbox
from nvsandbox import _fast, plans
from nvsandbox.session import NVMLSession
from nvsandbox.worker import Worker

pytestmark = pytest.mark.skipif(not plans.available, reason="this Python's ctypes objects are not laid out as expected")


@pytest.fixture
def nvml():
    with nvsandbox.nvml_isolated(simulate="h100x2") as found:
        yield found


@pytest.fixture
def device(nvml):
    return nvml.nvmlDeviceGetHandleByIndex(0)


def short(nvml) -> int:
    """How many calls have gone the short way."""
    return nvml.session.link.calls


def function(nvml, name):
    found = nvml._nvmlGetFunctionPointer(name)
    assert isinstance(found, _fast.Function)
    return found


def test_the_second_call_goes_the_short_way(nvml, device):
    found = [nvml.nvmlDeviceGetName(device) for _ in range(10)]
    assert set(found) == {"NVIDIA H100 80GB HBM3"}
    assert short(nvml) == 9
    assert nvml.session.stats()["calls"] == 1 + 10  # with the handle


def test_errors_are_counted_and_raised(nvml, device):
    before = nvml.session.stats()
    for _ in range(5):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            nvml.nvmlDeviceGetFanSpeed(device)
    after = nvml.session.stats()
    assert (after["calls"] - before["calls"], after["errors"] - before["errors"]) == (5, 5)
    assert short(nvml) == 4


def test_other_types_go_by_the_marshaller_and_are_learned(nvml, device):
    get = function(nvml, "nvmlDeviceGetTemperature")
    value = ctypes.c_uint()
    for sensor in (ctypes.c_uint(0), 0, ctypes.c_int(0), ctypes.c_ubyte(0)):
        before = short(nvml)
        results = [get(device, sensor, ctypes.byref(value)) for _ in range(3)]
        assert results == [0, 0, 0]
        assert short(nvml) == before + 2
    assert get.plans == 4
    # And the first is still known
    before = short(nvml)
    assert get(device, ctypes.c_uint(0), ctypes.byref(value)) == 0
    assert short(nvml) == before + 1


def test_sizes_are_those_of_the_type_that_is_passed(nvml, device):
    """A larger or smaller buffer is another plan, and nothing beside it is written."""

    class Walls(ctypes.Structure):
        _fields_ = (("before", ctypes.c_char * 64), ("name", ctypes.c_char * 32), ("after", ctypes.c_char * 64))

    get = function(nvml, "nvmlDeviceGetName")
    for _ in range(3):
        walls = Walls(before=b"<" * 63, after=b">" * 63)
        name = (ctypes.c_char * 32).from_buffer(walls, 64)
        assert get(device, name, ctypes.c_uint(32)) == 0
        assert walls.name == b"NVIDIA H100 80GB HBM3"
        assert (walls.before, walls.after) == (b"<" * 63, b">" * 63)
        large = ctypes.create_string_buffer(4096)
        assert get(device, large, ctypes.c_uint(4096)) == 0
        assert large.value == b"NVIDIA H100 80GB HBM3"
        small = ctypes.create_string_buffer(8)
        assert get(device, small, ctypes.c_uint(8)) == pynvml.NVML_ERROR_INSUFFICIENT_SIZE


def test_byref_with_an_offset(nvml, device):
    get = function(nvml, "nvmlDeviceGetTemperature")
    values = (ctypes.c_uint * 4)(7, 7, 7, 7)
    for _ in range(3):
        assert get(device, 0, ctypes.byref(values)) == 0
    first = values[0]
    assert list(values) == [first, 7, 7, 7]
    before = short(nvml)
    assert get(device, 0, ctypes.byref(values, 8)) == 0
    assert short(nvml) == before  # by the marshaller
    assert values[1] == 7
    assert values[3] == 7
    assert 20 < values[2] < 100


def test_one_memory_twice(nvml, device):
    """What is passed twice is one memory to NVML; two that are not are two."""
    get = function(nvml, "nvmlDeviceGetPowerManagementLimitConstraints")
    low, high, both = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint()
    for _ in range(3):
        assert get(device, ctypes.byref(low), ctypes.byref(high)) == 0
        assert get(device, ctypes.byref(both), ctypes.byref(both)) == 0
        assert both.value == high.value != low.value


def test_64_bits_and_signs(nvml):
    """Registers are filled as the marshaller fills them."""
    kinds = [ctypes.c_byte, ctypes.c_short, ctypes.c_int, ctypes.c_long, ctypes.c_longlong]
    kinds += [ctypes.c_ubyte, ctypes.c_ushort, ctypes.c_uint, ctypes.c_ulong, ctypes.c_ulonglong]
    get = function(nvml, "nvmlDeviceGetTemperature")
    device = nvml.nvmlDeviceGetHandleByIndex(0)
    value = ctypes.c_uint()
    for kind in kinds:
        for number in (0, 1, -1):
            assert len({get(device, kind(number), ctypes.byref(value)) for _ in range(3)}) == 1


@pytest.mark.parametrize("wrong", ["0", 0.5, object()])
def test_what_ctypes_refuses_is_refused_as_before(nvml, device, wrong):
    get = function(nvml, "nvmlDeviceGetTemperature")
    value = ctypes.c_uint()
    if isinstance(wrong, str):
        assert get(device, wrong, ctypes.byref(value)) != 0  # a pointer to text is no sensor
        return
    texts = set()
    for _ in range(2):
        with pytest.raises(ctypes.ArgumentError) as caught:
            get(device, wrong, ctypes.byref(value))
        texts.add(str(caught.value))
        assert get(device, 0, ctypes.byref(value)) == 0
    assert len(texts) == 1
    assert "argument 2" in texts.pop()


def test_attributes_of_a_ctypes_function(nvml, device):
    get = function(nvml, "nvmlDeviceGetTemperature")
    assert get.__name__ == "nvmlDeviceGetTemperature"
    assert get.restype is ctypes.c_int
    value = ctypes.c_uint()
    for _ in range(3):
        get(device, 0, ctypes.byref(value))
    get.errcheck = lambda result, function, arguments: (result, len(arguments))
    assert get(device, 0, ctypes.byref(value)) == (0, 3)
    with pytest.raises(AttributeError):
        get.no_such_attribute  # noqa: B018
    with pytest.raises(TypeError):
        get(device, sensor=0)


def test_after_the_block(nvml):
    with nvsandbox.nvml_isolated(simulate="t4") as other:
        device = other.nvmlDeviceGetHandleByIndex(0)
        get = other._nvmlGetFunctionPointer("nvmlDeviceGetTemperature")
        value = ctypes.c_uint()
        for _ in range(3):
            assert get(device, 0, ctypes.byref(value)) == 0
    with pytest.raises(nvsandbox.SandboxClosed):
        get(device, 0, ctypes.byref(value))
    with pytest.raises(nvsandbox.SandboxClosed):
        other.nvmlDeviceGetTemperature(device, 0)


def test_one_block_of_two_ends(nvml, device):
    """Its functions end with it; the worker and the other block's functions do not."""
    with nvsandbox.nvml_isolated(simulate="h100x2") as other:
        assert other.session is nvml.session
        for _ in range(3):
            assert other.nvmlDeviceGetTemperature(device, 0) == nvml.nvmlDeviceGetTemperature(device, 0)
    with pytest.raises(nvsandbox.SandboxClosed):
        other.nvmlDeviceGetTemperature(device, 0)
    assert nvml.nvmlDeviceGetTemperature(device, 0) > 0


def test_handles_over_a_restart(nvml, device):
    uuid = nvml.nvmlDeviceGetUUID(device)
    for _ in range(3):
        for _ in range(3):
            assert nvml.nvmlDeviceGetUUID(device) == uuid
        kill(nvml.session.pid)
        with contextlib.suppress(nvsandbox.WorkerDied):
            nvml.nvmlDeviceGetCount()
    assert nvml.nvmlDeviceGetUUID(device) == uuid
    assert nvml.session.stats()["restarts"] >= 2


def test_a_worker_that_dies_between_calls_costs_no_call(nvml, device):
    """What did not reach the worker goes to the next one."""
    for _ in range(5):
        assert nvml.nvmlDeviceGetTemperature(device, 0) > 0
        kill(nvml.session.pid)
        assert nvml.nvmlDeviceGetTemperature(device, 0) > 0


def test_a_crash_in_a_call_that_goes_the_short_way():
    with nvsandbox.nvml_isolated(simulate="h100x2") as nvml:
        device = nvml.nvmlDeviceGetHandleByIndex(0)
        for _ in range(3):
            nvml.nvmlDeviceGetTemperature(device, 0)
        pid = nvml.session.pid
        stop(pid)
        killer = threading.Timer(0.2, os.kill, (pid, signal.SIGKILL))
        killer.start()
        # Stopped before it took the request: the call goes to a new worker.
        assert nvml.nvmlDeviceGetTemperature(device, 0) > 0
        killer.join()
        assert nvml.session.stats()["restarts"] == 1


def test_a_hang_in_a_call_that_goes_the_short_way():
    with nvsandbox.nvml_isolated(simulate="h100x2", timeout=1, restart=True) as nvml:
        device = nvml.nvmlDeviceGetHandleByIndex(0)
        for _ in range(3):
            nvml.nvmlDeviceGetTemperature(device, 0)
        pid = nvml.session.pid
        stop(pid)
        try:
            with pytest.raises(nvsandbox.CallTimeout) as caught:
                nvml.nvmlDeviceGetTemperature(device, 0)
            assert caught.value.call == "nvmlDeviceGetTemperature"
            assert nvml.nvmlDeviceGetTemperature(device, 0) > 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        assert nvml.session.stats()["timeouts"] == 1


def test_deadlines_are_kept(nvml, device):
    for _ in range(3):
        nvml.nvmlDeviceGetTemperature(device, 0)
    before = short(nvml)
    with nvml.session.deadline(0), pytest.raises(nvsandbox.CallTimeout):
        nvml.nvmlDeviceGetTemperature(device, 0)
    with nvml.session.deadline(10):
        nvml.nvmlDeviceGetTemperature(device, 0)
    assert short(nvml) == before
    nvml.nvmlDeviceGetTemperature(device, 0)
    assert short(nvml) == before + 1


def test_a_signal_handler_calls_while_a_call_waits():
    """Its call has another channel, and each answer meets its question."""
    with nvsandbox.nvml_isolated(simulate="h100x2,latency_us=100000") as nvml:
        device = nvml.nvmlDeviceGetHandleByIndex(0)
        uuids = [nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(2)]
        other = nvml.nvmlDeviceGetHandleByIndex(1)
        inside = []

        def handler(number, frame):
            inside.append(nvml.nvmlDeviceGetUUID(other))

        previous = signal.signal(signal.SIGALRM, handler)
        try:
            for _ in range(3):
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                assert nvml.nvmlDeviceGetUUID(device) == uuids[0]
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)
        assert inside == [uuids[1]] * 3


def interrupted(call, pid, *arguments):
    """Calls, and gets a SIGALRM while the call is under way."""
    sending = signal_when_inside(pid)
    try:
        return call(*arguments)
    finally:
        sending.join()


def test_an_exception_out_of_a_signal_handler():
    with nvsandbox.nvml_isolated(simulate="h100x2,latency_us=200000") as nvml:
        devices = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(2)]
        uuids = [nvml.nvmlDeviceGetUUID(device) for device in devices]

        def handler(number, frame):
            raise KeyboardInterrupt

        previous = signal.signal(signal.SIGALRM, handler)
        try:
            for _ in range(2):
                with pytest.raises(KeyboardInterrupt):
                    interrupted(nvml.nvmlDeviceGetUUID, nvml.session.pid, devices[0])
                # The late answer to that is not the answer to this.
                assert nvml.nvmlDeviceGetUUID(devices[1]) == uuids[1]
        finally:
            signal.signal(signal.SIGALRM, previous)
        assert nvml.session.stats()["deaths"] == 0


def test_the_next_signals_handler_finds_no_lane_that_was_left_in_the_middle(monkeypatch):
    """It may run before the lane is closed, and what it wrote there would be overwritten by the late answer."""
    with nvsandbox.nvml_isolated(simulate="h100x2,latency_us=200000") as nvml:
        devices = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(2)]
        uuids = [nvml.nvmlDeviceGetUUID(device) for device in devices]
        inside = []
        abandon = Worker.abandon_lane

        def with_a_handler_before_it(*arguments):
            inside.append(nvml.nvmlDeviceGetUUID(devices[1]))
            abandon(*arguments)

        def handler(number, frame):
            raise KeyboardInterrupt

        monkeypatch.setattr(Worker, "abandon_lane", with_a_handler_before_it)
        previous = signal.signal(signal.SIGALRM, handler)
        try:
            for _ in range(2):
                with pytest.raises(KeyboardInterrupt):
                    interrupted(nvml.nvmlDeviceGetUUID, nvml.session.pid, devices[0])
                assert nvml.nvmlDeviceGetUUID(devices[0]) == uuids[0]
        finally:
            signal.signal(signal.SIGALRM, previous)
        assert inside == [uuids[1]] * 2
        assert nvml.session.stats()["deaths"] == 0


def test_a_signal_handlers_exception_while_a_lane_is_given_up(monkeypatch):
    """It goes on, as out of a finally block, and this thread's calls go the short way again."""

    class Second(Exception):
        pass

    with nvsandbox.nvml_isolated(simulate="h100,latency_us=200000") as nvml:
        device = nvml.nvmlDeviceGetHandleByIndex(0)
        uuid = nvml.nvmlDeviceGetUUID(device)
        abandon = Worker.abandon_lane
        raised = []

        def once_interrupted(*arguments):
            if not raised:
                raised.append(True)
                raise Second
            abandon(*arguments)

        def handler(number, frame):
            raise KeyboardInterrupt

        monkeypatch.setattr(Worker, "abandon_lane", once_interrupted)
        previous = signal.signal(signal.SIGALRM, handler)
        try:
            with pytest.raises(Second):
                interrupted(nvml.nvmlDeviceGetUUID, nvml.session.pid, device)
        finally:
            signal.signal(signal.SIGALRM, previous)
        before = short(nvml)
        assert [nvml.nvmlDeviceGetUUID(device) for _ in range(3)] == [uuid] * 3
        assert short(nvml) == before + 2  # the first has the lane made
        assert nvml.session.stats()["deaths"] == 0


def test_threads_with_other_types_at_one_function(nvml, device):
    """A plan that another thread replaces while a call waits does not change that call."""
    get = function(nvml, "nvmlDeviceGetName")
    wrong = []

    def call(size):
        for turn in range(200):
            kind = ctypes.c_char * (size + turn % 7)
            buffer = kind()
            result = get(device, buffer, ctypes.c_uint(len(buffer)))
            if result != 0 or buffer.value != b"NVIDIA H100 80GB HBM3":
                wrong.append((size, result, buffer.value))

    threads = [threading.Thread(target=call, args=(64 + 16 * number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_sessions_come_and_go_under_callers():
    """Lanes are closed under threads that have just used them."""
    stop = threading.Event()
    wrong = []

    def call():
        while not stop.is_set():
            try:
                count = pynvml.nvmlDeviceGetCount()
                if count not in (1, 2):
                    wrong.append(count)
            except pynvml.NVMLError_Uninitialized:
                pass
            except BaseException as error:
                wrong.append(error)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for turn in range(60):
        with nvsandbox.nvml_isolated(simulate=f"t4x{1 + turn % 2}") as nvml:
            for _ in range(20):
                nvml.nvmlDeviceGetCount()
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_nothing_is_kept_alive():
    with nvsandbox.nvml_isolated(simulate="t4") as nvml:
        device = nvml.nvmlDeviceGetHandleByIndex(0)
        for _ in range(3):
            nvml.nvmlDeviceGetTemperature(device, 0)
        session, library = weakref.ref(nvml.session), weakref.ref(nvml.nvmlLib)
    del nvml, device
    gc.collect()
    assert session() is None
    assert library() is None


def test_without_it_everything_works(monkeypatch):
    monkeypatch.setattr(plans, "available", False)
    with nvsandbox.nvml_isolated(simulate="h100x2") as nvml:
        assert nvml.session.link is None
        device = nvml.nvmlDeviceGetHandleByIndex(0)
        for _ in range(3):
            assert nvml.nvmlDeviceGetName(device) == "NVIDIA H100 80GB HBM3"
        assert nvml.session.stats()["calls"] == 4


def test_calibration_wants_exactly_one_place():
    try:
        value = ctypes.c_uint(1)
        size = type(value).__basicsize__
        reference = ctypes.byref(value)
        good = (value, ctypes.addressof(value), size)
        named = (reference, ctypes.addressof(value), value, type(reference).__basicsize__)
        assert not _fast.calibrate([(value, 0xDEAD, size)], [named])
        assert not _fast.calibrate([good, (value, id(type(value)), size)], [named])
        assert not _fast.calibrate([], [named])
        assert not _fast.calibrate([good], [])
        assert not _fast.calibrate([good], [(reference, 0xDEAD, value, type(reference).__basicsize__)])
    finally:
        assert plans.calibrate()


def test_plans_that_cannot_be(nvml):
    get = function(nvml, "nvmlDeviceGetTemperature")
    head = bytes(120)
    for arguments in (
        ((4, int, None, 4, 0, False),),  # a reference to nothing
        ((5, int, None, 8, 1, False),),  # past the end of the data
        ((5, int, None, 2**32 - 1, 2**32 - 1, False),),
        ((2, int, None, 9, 0, False),),  # a number of nine bytes
        ((7, int, None, 0, 0, False),),
    ):
        with pytest.raises(ValueError, match="not well-formed"):
            get.learn(1, head, 8, arguments)
    with pytest.raises(ValueError, match="no lane has room"):
        get.learn(1, head, 1 << 20, ())
    with pytest.raises(ValueError, match="no lane has room"):
        get.learn(1, head[:8], 8, ())
    assert get.plans == 0


def refused(nvml):
    """The function for temperatures, with a plan whose frame the worker refuses: what comes back is no reply to it."""
    get = function(nvml, "nvmlDeviceGetTemperature")
    reference = type(ctypes.byref(ctypes.c_uint()))
    spec = (
        (3, pynvml.c_nvmlDevice_t, None, 8, 0, False),
        (1, int, None, 0, 0, False),
        (4, reference, ctypes.c_uint, 4, 0, False),
    )
    get.learn(nvml.session.link.serial, bytes(120), 4, spec)
    return get


def test_a_signal_as_a_reply_that_no_worker_gives_is_noticed(monkeypatch):
    """The lane is closed all the same, and not left for good to the call that has ended."""
    abandon = NVMLSession._fast_abandon
    interruptions = [KeyboardInterrupt]

    def interrupted(self, *arguments):
        if interruptions:
            raise interruptions.pop()  # as the handler of a signal does before the first line of any Python function
        abandon(self, *arguments)

    monkeypatch.setattr(NVMLSession, "_fast_abandon", interrupted)
    with nvsandbox.nvml_isolated(simulate="h100x1") as nvml:
        device = nvml.nvmlDeviceGetHandleByIndex(0)
        get = refused(nvml)
        with pytest.raises(KeyboardInterrupt):
            get(device, 0, ctypes.byref(ctypes.c_uint()))
        assert interruptions == []
        get.forget()
        uuid = nvml.nvmlDeviceGetUUID(device)
        before = short(nvml)
        assert [nvml.nvmlDeviceGetUUID(device) for _ in range(5)] == [uuid] * 5
        assert short(nvml) == before + 5


def test_a_reply_that_no_worker_gives_is_a_death(nvml, device):
    first = nvml.session.pid
    value = ctypes.c_uint()
    get = refused(nvml)
    with pytest.raises(nvsandbox.WorkerDied, match="broke the protocol") as caught:
        get(device, 0, ctypes.byref(value))
    assert caught.value.call == "nvmlDeviceGetTemperature"
    assert nvml.nvmlDeviceGetTemperature(device, 0) > 0
    assert nvml.session.pid != first
    assert nvml.session.stats()["deaths"] == 1


def test_a_handle_of_an_earlier_worker_goes_the_short_way_too():
    """Callers keep handles for longer than a worker lives."""
    with nvsandbox.nvml_isolated(simulate="h100x2", restart=1000) as nvml:
        devices = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(2)]
        uuids = [nvml.nvmlDeviceGetUUID(device) for device in devices]
        for _ in range(3):
            end_worker(nvml)
            fresh = nvml.nvmlDeviceGetHandleByIndex(1)
            for device, uuid in zip((*devices, fresh), (*uuids, uuids[1]), strict=True):
                assert nvml.nvmlDeviceGetUUID(device) == uuid
                before = short(nvml)
                assert [nvml.nvmlDeviceGetUUID(device) for _ in range(5)] == [uuid] * 5
                assert short(nvml) == before + 5


def end_worker(nvml) -> None:
    kill(nvml.session.pid)
    with contextlib.suppress(nvsandbox.WorkerDied):
        nvml.nvmlDeviceGetCount()


def assert_second_call_is_short(nvml, device) -> None:
    nvml.nvmlDeviceGetTemperature(device, 0)
    before = short(nvml)
    nvml.nvmlDeviceGetTemperature(device, 0)
    assert short(nvml) == before + 1


def test_the_short_way_is_there_however_many_workers_there_were():
    with nvsandbox.nvml_isolated(simulate="h100", restart=1000) as nvml:
        device = nvml.nvmlDeviceGetHandleByIndex(0)
        for _ in range(70):
            assert_second_call_is_short(nvml, device)
            end_worker(nvml)
        assert_second_call_is_short(nvml, device)


def test_calls_that_go_the_slow_way_for_another_reason_teach_nothing(nvml, device):
    """A deadline, a thread's first call, and one in so many with recycle_after=: none of them is of new types."""
    get = function(nvml, "nvmlDeviceGetTemperature")
    assert_second_call_is_short(nvml, device)
    with nvml.session.deadline(60):
        for _ in range(70):
            nvml.nvmlDeviceGetTemperature(device, 0)
    nvml.session.link.look_every = 2
    for _ in range(10):
        nvml.nvmlDeviceGetTemperature(device, 0)
    nvml.session.link.look_every = 0
    thread = threading.Thread(target=nvml.nvmlDeviceGetTemperature, args=(device, 0))
    thread.start()
    thread.join()
    assert get.plans == 1


def test_threads_that_learn_the_same_at_once_learn_it_once(device, nvml):
    get = function(nvml, "nvmlDeviceGetTemperature")
    barrier = threading.Barrier(4)

    def call() -> None:
        nvml.nvmlDeviceGetCount()  # so that the lane is there
        barrier.wait()
        nvml.nvmlDeviceGetTemperature(device, 0)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert get.plans == 1


def test_types_that_never_repeat_are_given_up_until_the_next_worker():
    """Learning takes longer than the call that it is to shorten."""
    with nvsandbox.nvml_isolated(simulate="h100", restart=1000) as nvml:
        device = nvml.nvmlDeviceGetHandleByIndex(0)
        get = function(nvml, "nvmlDeviceGetName")
        for size in range(32, 132):
            assert get(device, ctypes.create_string_buffer(size), ctypes.c_uint(size)) == 0
        name = ctypes.create_string_buffer(32)
        before = short(nvml)
        for _ in range(3):
            assert get(device, name, ctypes.c_uint(32)) == 0
        assert short(nvml) == before
        end_worker(nvml)
        for _ in range(3):
            assert get(device, name, ctypes.c_uint(32)) == 0
        assert short(nvml) == before + 2


def test_an_object_that_was_made_larger_teaches_nothing_about_its_type(nvml, device):
    """ctypes.resize() gives one object more memory than its type has."""
    get = function(nvml, "nvmlDeviceGetTemperature")
    large = ctypes.c_uint()
    ctypes.resize(large, 4096)
    assert get(device, 0, ctypes.byref(large)) == 0
    assert get.plans == 0
    value = ctypes.c_uint()
    assert get(device, 0, ctypes.byref(value)) == 0
    assert value.value == large.value


@pytest.mark.parametrize("number", [0, 1, 8, 16, 0x1000, 2**47 - 8, 2**63, 2**64 - 8])
def test_a_number_that_is_no_lane_is_refused(nvml, number):
    """Defect 7: a lane crosses between the extensions as a number, and a wrong one was a segmentation fault."""
    link = nvml.session.link
    with pytest.raises(ValueError, match=f"there is no lane at {number}"):
        link.attach(1, number, object())
    memory = ctypes.create_string_buffer(4096)
    with pytest.raises(ValueError, match="there is no lane"):
        link.attach(1, ctypes.addressof(memory) // 128 * 128 + 128, memory)
