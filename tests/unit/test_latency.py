# SPDX-License-Identifier: Apache-2.0
"""How long calls took: counted whichever way they go, in slots that Prometheus can do with."""

from __future__ import annotations

import itertools
import math
import os
import signal
import threading
import time

import pytest
from waiting import stop

import nvsandbox
from nvsandbox import plans
from nvsandbox._core import lib
from nvsandbox.latency import SLOTS, Recorder, bounds

short_way = pytest.mark.skipif(not plans.available, reason="this Python's ctypes objects are not laid out as expected")


def test_bounds_are_steps_of_a_quarter() -> None:
    found = bounds()
    assert found[0] == 128e-9
    assert found[-1] == math.inf
    assert found[-2] == 2**36 / 1e9
    assert all(1 < upper / lower <= 1.25 for lower, upper in itertools.pairwise(found[:-1]))


def test_a_slot_holds_what_is_at_most_its_bound() -> None:
    for slot in range(SLOTS - 1):
        bound = lib.nvs_core_latency_bound(slot)
        assert lib.nvs_core_latency_slot(bound) == slot
        assert lib.nvs_core_latency_slot(bound + 1) == slot + 1
    assert lib.nvs_core_latency_slot(0) == 0
    assert lib.nvs_core_latency_slot(2**64 - 1) == SLOTS - 1


def test_quantiles() -> None:
    recorder = Recorder()
    assert math.isnan(recorder.histogram().quantile(0.5))
    for microseconds in range(1, 1001):
        recorder.add(1000 * microseconds)
    found = recorder.histogram()
    assert found.count == 1000
    assert found.sum == pytest.approx(0.5005)
    for share in (0.1, 0.5, 0.9, 0.99):
        assert found.quantile(share) == pytest.approx(share * 1e-3, rel=0.05)
    recorder.add(2**40)  # beyond all bounds
    assert recorder.histogram().quantile(1) == 2**36 / 1e9
    with pytest.raises(ValueError, match="share=99"):
        found.quantile(99)
    assert "count=1000" in repr(found)
    assert len(repr(found)) < 100


def whole(session: nvsandbox.NVMLSession) -> nvsandbox.latency.Latency:
    """The histogram, when it has been found to be well-formed and to be of all calls."""
    stats = session.stats()
    latency = stats["latency"]
    counts = [count for _, count in latency.buckets]
    assert counts == sorted(counts)
    assert latency.count == counts[-1] == stats["calls"]
    return latency


@pytest.mark.parametrize("transport", ["shm", "pipe"])
def test_calls_are_in_it_with_the_time_that_they_took(transport: str) -> None:
    simulated = {"simulate": "h100,latency_us=3000", "transport": transport}
    with nvsandbox.nvml_isolated(**simulated) as nvml:
        device = nvml.nvmlDeviceGetHandleByIndex(0)
        before = whole(nvml.session)
        for _ in range(10):
            nvml.nvmlDeviceGetTemperature(device, 0)
        after = whole(nvml.session)
    taken = [bound for (bound, now), (_, then) in zip(after.buckets, before.buckets, strict=True) if now > then]
    assert after.count - before.count == 10
    assert after.sum - before.sum > 0.03
    assert min(taken) > 3e-3


@short_way
def test_all_calls_count_though_few_that_are_answered_at_once_are_timed() -> None:
    with nvsandbox.nvml_isolated(simulate="h100") as nvml:
        device = nvml.nvmlDeviceGetHandleByIndex(0)
        last = whole(nvml.session)
        for calls in (1, 2, 5, 100, 3, 2000):
            for _ in range(calls):
                nvml.nvmlDeviceGetTemperature(device, 0)
            latency = whole(nvml.session)
            assert latency.count == last.count + calls
            assert latency.sum > last.sum
            # What was counted once stays where it was.
            for (_, now), (_, then) in zip(latency.buckets, last.buckets, strict=True):
                assert now >= then
            last = latency
        assert nvml.session.link.calls > 2000


@short_way
def test_one_slow_call_of_a_quick_function_is_never_missed() -> None:
    """Though those that are answered at once are mostly not timed."""
    with nvsandbox.nvml_isolated(simulate="h100") as nvml:
        device = nvml.nvmlDeviceGetHandleByIndex(0)
        for _ in range(100):
            nvml.nvmlDeviceGetTemperature(device, 0)
        pid = nvml.session.pid
        for round_ in range(5):
            before = nvml.session.link.calls
            stop(pid)
            going_on = threading.Timer(0.4, os.kill, (pid, signal.SIGCONT))
            going_on.start()
            nvml.nvmlDeviceGetTemperature(device, 0)
            going_on.join()
            assert nvml.session.link.calls == before + 1
            latency = whole(nvml.session)
            slow = latency.count - max(count for bound, count in latency.buckets if bound < 0.3)
            assert slow == round_ + 1


def test_other_threads_and_other_workers() -> None:
    with nvsandbox.nvml_isolated(simulate="h100") as nvml:

        def work() -> None:
            device = nvml.nvmlDeviceGetHandleByIndex(0)
            for _ in range(500):
                nvml.nvmlDeviceGetTemperature(device, 0)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        before = whole(nvml.session)
        assert before.count >= 2000
        os.kill(nvml.session.pid, signal.SIGKILL)
        end = time.monotonic() + 10
        while nvml.session.stats()["restarts"] == 0 and time.monotonic() < end:
            try:
                work()
            except nvsandbox.WorkerDied:
                continue
        assert nvml.session.stats()["restarts"] == 1
        assert whole(nvml.session).count > before.count
        session = nvml.session
    assert whole(session).count > before.count, "it outlives the worker"


def test_a_forked_child_counts_from_nothing() -> None:
    with nvsandbox.nvml_isolated(simulate="h100") as nvml:
        device = nvml.nvmlDeviceGetHandleByIndex(0)
        for _ in range(50):
            nvml.nvmlDeviceGetTemperature(device, 0)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                first = nvml.session.stats()
                nvml.nvmlDeviceGetCount()
                second = nvml.session.stats()
                status = not (
                    first["calls"] == first["errors"] == first["latency"].count == first["latency"].sum == 0
                    and second["calls"] == second["latency"].count == 1
                    and second["latency"].sum > 0
                )
                nvml.session.close()
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert whole(nvml.session).count >= 50
