# SPDX-License-Identifier: Apache-2.0
"""How workers are replaced: how often, with which notice, and without the caller noticing."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pynvml
import pytest
from waiting import forked, kill, until

import nvsandbox
from nvsandbox import restarts


def end_worker(nvml):
    """SIGKILL, and back when a call has noticed."""
    kill(nvml.session.pid)
    with contextlib.suppress(nvsandbox.WorkerDied):
        nvml.nvmlDeviceGetCount()


def test_restarts_are_limited():
    with nvsandbox.nvml_isolated(simulate="t4", restart=2) as nvml:
        for _ in range(3):
            end_worker(nvml)
        with pytest.raises(
            nvsandbox.WorkerDied, match=r"SIGKILL.*2 restarts within 60 s .*next is possible in"
        ) as caught:
            nvml.nvmlDeviceGetCount()
        assert not caught.value.sent
        assert isinstance(caught.value, pynvml.NVMLError)
        assert nvml.session.stats()["restarts"] == 2


def test_the_pause_doubles_for_workers_that_never_answer(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(restarts.time, "monotonic", lambda: now)
    policy = restarts.Restarts(1000)
    assert policy.wait() == 0
    policy.died(answered=True)
    assert policy.wait() == 0
    policy.died(answered=False)
    assert policy.wait() == 0
    waits = []
    for _ in range(10):
        policy.died(answered=False)
        waits.append(policy.wait())
    assert waits[:3] == pytest.approx([0.05, 0.1, 0.2])
    assert waits[-1] == restarts.BACKOFF_MAX
    now += restarts.BACKOFF_MAX
    assert policy.wait() == 0
    policy.died(answered=True)
    assert policy.wait() == 0


def test_restarts_are_forgotten_after_the_window(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(restarts.time, "monotonic", lambda: now)
    policy = restarts.Restarts(2)
    policy.started()
    now += 10
    policy.started()
    assert policy.wait() == pytest.approx(restarts.WINDOW - 10)
    now += restarts.WINDOW - 10
    assert policy.wait() == 0
    assert policy.recent == 1


def test_no_restart_when_it_is_off():
    with nvsandbox.nvml_isolated(simulate="t4", restart=False) as nvml:
        os.kill(nvml.session.pid, signal.SIGKILL)
        for _ in range(3):
            with pytest.raises(nvsandbox.WorkerDied) as caught:
                nvml.nvmlDeviceGetCount()
            assert caught.value.signal == signal.SIGKILL
        assert nvml.session.stats()["deaths"] == 1


def test_hooks():
    deaths, sessions = [], []
    with nvsandbox.nvml_isolated(simulate="t4") as nvml:
        nvml.session.on_death(deaths.append)
        nvml.session.on_death(lambda error: 1 / 0)  # logged, and nobody's end

        @nvml.session.on_restart
        def restarted(session):
            sessions.append((session, session.pid))

        first = nvml.session.pid
        end_worker(nvml)
        assert nvml.nvmlDeviceGetCount() == 1
        assert [(type(death), death.signal) for death in deaths] == [(nvsandbox.WorkerDied, signal.SIGKILL)]
        assert sessions == [(nvml.session, nvml.session.pid)]
        assert nvml.session.pid != first


def test_what_is_logged(caplog):
    with caplog.at_level("DEBUG", logger="nvsandbox"):
        with nvsandbox.nvml_isolated(simulate="t4,hang=nvmlDeviceGetTemperature", timeout=5) as nvml:
            device = nvml.nvmlDeviceGetHandleByIndex(0)
            assert [record for record in caplog.records if record.levelname != "INFO"] == []
            killed = nvml.session.pid
            end_worker(nvml)
            nvml.nvmlDeviceGetCount()
            hung = nvml.session.pid
            with pytest.raises(nvsandbox.CallTimeout), nvml.session.deadline(0.1):
                nvml.nvmlDeviceGetTemperature(device, 0)
            nvml.nvmlDeviceGetCount()
            last = nvml.session.pid
            os.kill(hung, signal.SIGKILL)
    told = [(record.levelname, record.getMessage()) for record in caplog.records if record.levelname != "INFO"]
    assert len({killed, hung, last}) == 3
    assert {level for level, _ in told} == {"WARNING"}
    texts = [text for _, text in told]
    assert "SIGKILL" in texts[0]
    assert f"a new NVML worker, {hung}," in texts[1]
    assert texts[2] == f"ending the NVML worker {hung}: nvmlDeviceGetTemperature did not return in time"
    assert "nvmlDeviceGetTemperature did not return in time" in texts[3]
    assert f"a new NVML worker, {last}," in texts[4]
    assert len(texts) == 5


def test_a_hang_is_told_of_once_with_many_callers():
    deaths = []
    with nvsandbox.nvml_isolated(simulate="t4,hang=nvmlDeviceGetTemperature", timeout=1) as nvml:
        nvml.session.on_death(deaths.append)
        device = nvml.nvmlDeviceGetHandleByIndex(0)
        found = []
        barrier = threading.Barrier(8)  # who came when the worker is given up would meet the next one

        def call():
            nvml.nvmlDeviceGetCount()
            barrier.wait()
            start = time.monotonic()
            try:
                nvml.nvmlDeviceGetTemperature(device, 0)
            except pynvml.NVMLError as error:
                found.append((error, time.monotonic() - start))

        threads = [threading.Thread(target=call) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 8
        assert {type(error) for error, _ in found} <= {nvsandbox.CallTimeout, nvsandbox.WorkerDied}
        assert nvsandbox.CallTimeout in {type(error) for error, _ in found}
        assert nvml.nvmlDeviceGetCount() == 1
        assert len(deaths) == nvml.session.stats()["deaths"] == 1


def test_deadline_in_place_of_the_timeout():
    with nvsandbox.nvml_isolated(simulate="t4,hang=nvmlDeviceGetTemperature", timeout=None) as nvml:
        device = nvml.nvmlDeviceGetHandleByIndex(0)
        start = time.monotonic()
        with nvml.session.deadline(60), nvml.session.deadline(0.3), nvml.session.deadline(30):
            assert nvml.nvmlDeviceGetCount() == 1
            with pytest.raises(nvsandbox.CallTimeout) as caught:
                nvml.nvmlDeviceGetTemperature(device, 0)
            assert caught.value.sent
            assert 0.3 <= time.monotonic() - start < 5
            with pytest.raises(nvsandbox.CallTimeout, match=r"nvmlDeviceGetCount_v2 was not made") as caught:
                nvml.nvmlDeviceGetCount()
            assert not caught.value.sent
        assert nvml.nvmlDeviceGetCount() == 1  # outside: no limit
        assert nvml.session.stats()["deaths"] == 1


def test_a_deadline_that_never_comes():
    with nvsandbox.nvml_isolated(simulate="t4,hang=nvmlDeviceGetTemperature", timeout=0.3) as nvml:
        with nvml.session.deadline(math.inf):
            device = nvml.nvmlDeviceGetHandleByIndex(0)
            pid = nvml.session.pid
            threading.Timer(1, os.kill, (pid, signal.SIGKILL)).start()
            start = time.monotonic()
            with pytest.raises(nvsandbox.WorkerDied):
                nvml.nvmlDeviceGetTemperature(device, 0)
            assert time.monotonic() - start > 0.8


@pytest.mark.parametrize("seconds", [-1, float("nan"), "soon", None, True])
def test_wrong_deadline(seconds):
    with (
        nvsandbox.nvml_isolated(simulate="t4") as nvml,
        pytest.raises(ValueError, match=r"expected a number of seconds"),
        nvml.session.deadline(seconds),
    ):
        pass


def test_deadlines_are_the_tasks_own():
    with nvsandbox.nvml_isolated(simulate="t4") as nvml:

        async def late():
            with nvml.session.deadline(0):
                await asyncio.sleep(0.05)
                with pytest.raises(nvsandbox.CallTimeout):
                    await asyncio.to_thread(nvml.nvmlDeviceGetCount)

        async def free():
            for _ in range(10):
                assert await asyncio.to_thread(nvml.nvmlDeviceGetCount) == 1
                await asyncio.sleep(0.01)

        async def both():
            await asyncio.gather(late(), free())

        asyncio.run(both())


def test_a_deadline_slows_down_no_other_thread():
    """All calls of the session went the slow way."""
    with nvsandbox.nvml_isolated(simulate="t4") as nvml:
        asked = []
        call = nvml.session.call
        nvml.session.call = lambda name, *arguments: asked.append(threading.get_ident()) or call(name, *arguments)
        inside, go_on = threading.Event(), threading.Event()

        def wait():
            with nvml.session.deadline(30):
                nvml.nvmlDeviceGetCount()
                inside.set()
                go_on.wait(30)
                asked.clear()
                nvml.nvmlDeviceGetCount()
                assert asked == [threading.get_ident()]

        for _ in range(4):
            nvml.nvmlDeviceGetCount()
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(wait)
            assert inside.wait(30)
            asked.clear()
            for _ in range(20):
                nvml.nvmlDeviceGetCount()
            assert asked == []
            go_on.set()
            other.result()


def test_a_deadline_holds_for_a_restart():
    """It took as long as the start did, and CallTimeout came after that."""
    with nvsandbox.nvml_isolated(simulate="t4,init_ms=3000") as nvml:
        kill(nvml.session.pid)
        start = time.monotonic()
        with nvml.session.deadline(0.3), pytest.raises(nvsandbox.CallTimeout) as caught:
            nvml.nvmlDeviceGetCount()
        assert 0.25 < time.monotonic() - start < 2.8
        assert caught.value.sent is False
        assert nvml.nvmlDeviceGetCount() == 1
        assert nvml.session.stats()["restarts"] == 1, "the start that was under way went on"


@contextlib.contextmanager
def restarted_unawaited():
    """A sandbox whose worker was replaced while nobody waited: a call that was too late has only set it off. And the
    process ids of which its hook was told."""
    told = []
    with nvsandbox.nvml_isolated(simulate="t4") as nvml:
        nvml.session.on_restart(lambda session: told.append(session.pid))
        before = repr(nvml.session)
        kill(nvml.session.pid)
        with nvml.session.deadline(0), pytest.raises(nvsandbox.CallTimeout):
            nvml.nvmlDeviceGetCount()
        assert until(lambda: repr(nvml.session) != before), "a new worker has started"
        yield nvml, told


def test_a_restart_that_nobody_waited_for_is_told_of():
    """Nobody was told, until another restart came."""
    with restarted_unawaited() as (nvml, told):
        assert nvml.nvmlDeviceGetCount() == 1
        assert told == [nvml.session.pid]
        assert nvml.session.stats()["restarts"] == 1


def test_a_child_is_not_told_of_its_parents_restarts():
    with restarted_unawaited() as (nvml, told):

        def call():
            assert nvml.nvmlDeviceGetCount() == 1
            assert told == []

        assert os.waitpid(forked(call), 0)[1] == 0


def test_recycled_after_calls_with_callers_in_it():
    with nvsandbox.nvml_isolated(simulate="h100x2", recycle_after=200) as nvml:
        device = nvml.nvmlDeviceGetHandleByIndex(1)
        uuid = nvml.nvmlDeviceGetUUID(device)
        pids, failures = set(), []
        end = time.monotonic() + 20

        def call():
            try:
                # Calls go on while the next worker starts, so how many there are to one recycling is not known.
                while nvml.session.stats()["recycles"] < 6 and time.monotonic() < end:
                    assert nvml.nvmlDeviceGetUUID(device) == uuid
                    pids.add(nvml.session.pid)
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        stats = nvml.session.stats()
        assert stats["recycles"] >= 5
        assert len(pids) > 5
        assert stats["deaths"] == stats["restarts"] == 0


def test_recycled_at_a_size():
    with nvsandbox.nvml_isolated(simulate="t4,leak_kib=100", recycle_after="32MiB") as nvml:
        end = time.monotonic() + 20
        while nvml.session.stats()["recycles"] < 3 and time.monotonic() < end:
            nvml.nvmlDeviceGetCount()
        assert nvml.session.stats()["recycles"] >= 3


def test_not_recycled_under_event_sets():
    with nvsandbox.nvml_isolated(simulate="h100", recycle_after=20) as nvml:
        device = nvml.nvmlDeviceGetHandleByIndex(0)
        events = nvml.nvmlEventSetCreate()
        nvml.nvmlDeviceRegisterEvents(device, pynvml.nvmlEventTypeXidCriticalError, events)
        for _ in range(100):
            nvml.nvmlDeviceGetCount()
        assert nvml.session.stats()["recycles"] == 0
        with pytest.raises(pynvml.NVMLError_Timeout):
            nvml.nvmlEventSetWait(events, 10)
        nvml.nvmlEventSetFree(events)
        nvml.nvmlDeviceGetCount()
        until_recycled(nvml)


def test_event_sets_made_while_the_next_worker_starts_stay():
    with nvsandbox.nvml_isolated(simulate="h100,init_ms=600", recycle_after=5) as nvml:
        device = nvml.nvmlDeviceGetHandleByIndex(0)
        for _ in range(10):
            nvml.nvmlDeviceGetCount()
        events = nvml.nvmlEventSetCreate()
        time.sleep(0.8)
        assert nvml.session.stats()["recycles"] == 0
        nvml.nvmlDeviceRegisterEvents(device, pynvml.nvmlEventTypeXidCriticalError, events)
        nvml.nvmlEventSetFree(events)
        for _ in range(10):
            nvml.nvmlDeviceGetCount()
        until_recycled(nvml)


def test_nobody_waits_for_a_recycling():
    """The call after which it was due did, for the start of the next worker."""
    with nvsandbox.nvml_isolated(simulate="t4,init_ms=2500", recycle_after=5) as nvml:
        longest, end = 0.0, time.monotonic() + 30
        while nvml.session.stats()["recycles"] < 1 and time.monotonic() < end:
            start = time.monotonic()
            nvml.nvmlDeviceGetCount()
            longest = max(longest, time.monotonic() - start)
        assert nvml.session.stats()["recycles"] == 1
        assert longest < 2


def until_recycled(nvml, times=1):
    """The next worker starts while calls go on."""
    until(lambda: nvml.session.stats()["recycles"] >= times)
    assert nvml.session.stats()["recycles"] == times
