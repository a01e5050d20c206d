# SPDX-License-Identifier: Apache-2.0
"""First calls of threads, for which a channel has to be opened."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from waiting import stop

from nvsandbox import CallFailed, CallTimeout, nvml_isolated


@pytest.mark.parametrize("transport", ["shm", "pipe"])
def test_their_time_limit_counts_while_a_channel_is_opened(transport: str) -> None:
    """A worker that did not answer held them up for ten seconds each, one after the other, and was never replaced."""
    with nvml_isolated(simulate="t4", timeout=1, transport=transport) as nvml:
        pid = nvml.session.pid
        assert nvml.nvmlDeviceGetCount() == 1
        stop(pid)
        barrier = threading.Barrier(3)

        def call() -> float:
            barrier.wait()
            start = time.monotonic()
            with contextlib.suppress(CallTimeout):  # who comes late goes to the next worker
                nvml.nvmlDeviceGetCount()
            return time.monotonic() - start

        with ThreadPoolExecutor(3) as pool:
            took = [each.result() for each in [pool.submit(call) for _ in range(3)]]
        assert max(took) < 8
        assert nvml.session.stats()["timeouts"] >= 1
        os.kill(pid, signal.SIGCONT)
        assert nvml.nvmlDeviceGetCount() == 1
        assert nvml.session.pid != pid


def test_a_worker_without_descriptors_refuses_a_channel_and_lives() -> None:
    """It took the descriptor that had not arrived for a caller that breaks the protocol, and ended, with everybody's
    calls."""
    with nvml_isolated(simulate="t4", transport="pipe") as nvml, ThreadPoolExecutor(1) as pool:
        pid = nvml.session.pid
        assert nvml.nvmlDeviceGetCount() == 1
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (5, 5))
        with pytest.raises(CallFailed, match="descriptor"):
            pool.submit(nvml.nvmlDeviceGetCount).result()
        assert nvml.nvmlDeviceGetCount() == 1
        assert nvml.session.pid == pid
