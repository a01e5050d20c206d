# SPDX-License-Identifier: Apache-2.0
"""What other threads can do while a session starts a new worker, which can take long."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from nvsandbox import SandboxClosed, WorkerDied, nvml_isolated


def test_close_does_not_wait_for_it() -> None:
    with nvml_isolated(simulate="t4,init_ms=2000") as nvml, ThreadPoolExecutor(1) as pool:
        os.kill(nvml.session.pid, signal.SIGKILL)
        time.sleep(0.1)
        call = pool.submit(nvml.nvmlDeviceGetCount)
        time.sleep(0.3)
        start = time.monotonic()
        assert nvml.session.stats()["restarts"] == 1
        assert time.monotonic() - start < 0.5
        nvml.session.close()
        with pytest.raises(SandboxClosed):
            call.result()


def test_calls_go_on_while_a_worker_is_recycled() -> None:
    """They waited for the start of the next one, with their answers in hand, to be counted."""
    with nvml_isolated(simulate="t4,init_ms=1000", recycle_after=2000) as nvml, ThreadPoolExecutor(1) as pool:

        def call_all_the_time() -> float:
            longest, end = 0.0, time.monotonic() + 1.2
            while time.monotonic() < end:
                start = time.monotonic()
                nvml.session.call("nvmlDeviceGetCount_v2", (ctypes.byref(ctypes.c_uint()),))
                longest = max(longest, time.monotonic() - start)
                time.sleep(0.01)
            return longest

        other = pool.submit(call_all_the_time)
        end = time.monotonic() + 20
        while nvml.session.stats()["recycles"] == 0 and time.monotonic() < end:
            nvml.nvmlDeviceGetCount()
        assert nvml.session.stats()["recycles"] == 1
        assert other.result() < 0.5


def test_a_hook_may_wait_for_another_thread() -> None:
    """Hooks ran with the session locked: one that waited for a thread that called NVML waited for ever."""
    with nvml_isolated(simulate="t4") as nvml, ThreadPoolExecutor(1) as pool:
        told: list[dict[str, int]] = []

        @nvml.session.on_death
        def hook(error: WorkerDied) -> None:
            pool.submit(nvml.nvmlDeviceGetCount).result(10)
            told.append(nvml.session.stats())

        os.kill(nvml.session.pid, signal.SIGKILL)
        time.sleep(0.1)
        assert nvml.nvmlDeviceGetCount() == 1
        assert [counts["deaths"] for counts in told] == [1]
