# SPDX-License-Identifier: Apache-2.0
"""First calls of threads, for which a channel has to be opened."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from nvsandbox import CallTimeout, nvml_isolated


@pytest.mark.parametrize("transport", ["shm", "pipe"])
def test_their_time_limit_counts_while_a_channel_is_opened(transport: str) -> None:
    """A worker that did not answer held them up for ten seconds each, one after the other, and was never replaced."""
    with nvml_isolated(simulate="t4", timeout=0.3, transport=transport) as nvml:
        pid = nvml.session.pid
        assert nvml.nvmlDeviceGetCount() == 1
        os.kill(pid, signal.SIGSTOP)
        barrier = threading.Barrier(3)

        def call() -> float:
            barrier.wait()
            start = time.monotonic()
            with contextlib.suppress(CallTimeout):  # who comes late goes to the next worker
                nvml.nvmlDeviceGetCount()
            return time.monotonic() - start

        with ThreadPoolExecutor(3) as pool:
            took = [each.result() for each in [pool.submit(call) for _ in range(3)]]
        assert max(took) < 2
        assert nvml.session.stats()["timeouts"] >= 1
        os.kill(pid, signal.SIGCONT)
        assert nvml.nvmlDeviceGetCount() == 1
        assert nvml.session.pid != pid
