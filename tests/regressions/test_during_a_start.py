# SPDX-License-Identifier: Apache-2.0
"""What other threads can do while a session starts a new worker, which can take long."""

from __future__ import annotations

import ctypes
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from waiting import kill, until

from nvsandbox import SandboxClosed, WorkerDied, nvml_isolated


def test_close_does_not_wait_for_it() -> None:
    with nvml_isolated(simulate="t4,init_ms=3000") as nvml, ThreadPoolExecutor(1) as pool:
        kill(nvml.session.pid)
        call = pool.submit(nvml.nvmlDeviceGetCount)
        start = time.monotonic()
        assert until(lambda: nvml.session.stats()["restarts"] == 1)
        assert time.monotonic() - start < 2.5
        nvml.session.close()
        with pytest.raises(SandboxClosed):
            call.result()


def test_calls_go_on_while_a_worker_is_recycled() -> None:
    """They waited for the start of the next one, with their answers in hand, to be counted."""
    with nvml_isolated(simulate="t4,init_ms=2500", recycle_after=2000) as nvml, ThreadPoolExecutor(1) as pool:
        recycled = threading.Event()

        def call_all_the_time() -> float:
            longest = 0.0
            while not recycled.is_set():
                start = time.monotonic()
                nvml.session.call("nvmlDeviceGetCount_v2", (ctypes.byref(ctypes.c_uint()),))
                longest = max(longest, time.monotonic() - start)
                time.sleep(0.01)
            return longest

        other = pool.submit(call_all_the_time)
        end = time.monotonic() + 30
        while nvml.session.stats()["recycles"] == 0 and time.monotonic() < end:
            nvml.nvmlDeviceGetCount()
        recycled.set()
        assert nvml.session.stats()["recycles"] == 1
        assert other.result() < 2


def test_a_hook_may_wait_for_another_thread() -> None:
    """Hooks ran with the session locked: one that waited for a thread that called NVML waited for ever."""
    with nvml_isolated(simulate="t4") as nvml, ThreadPoolExecutor(1) as pool:
        told: list[dict[str, int]] = []

        @nvml.session.on_death
        def hook(error: WorkerDied) -> None:
            pool.submit(nvml.nvmlDeviceGetCount).result(10)
            told.append(nvml.session.stats())

        kill(nvml.session.pid)
        assert nvml.nvmlDeviceGetCount() == 1
        assert [counts["deaths"] for counts in told] == [1]
