# SPDX-License-Identifier: Apache-2.0
"""Signal handlers that call NVML while their thread is in the middle of another call."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

import nvsandbox
from nvsandbox import nvml_isolated

PROGRAM = """
import os, signal, sys
import pynvml
from nvsandbox import nvml_isolated

with nvml_isolated(simulate="t4,init_ms=300") as nvml:
    api = nvml if sys.argv[1] == "bound" else pynvml
    api.nvmlInit()
    counted = []
    signal.signal(signal.SIGALRM, lambda *_: counted.append(api.nvmlDeviceGetCount()))
    os.kill(nvml.session.pid, signal.SIGKILL)
    signal.setitimer(signal.ITIMER_REAL, 0.15)
    version = api.nvmlSystemGetDriverVersion()  # for which a new worker is started
    print(counted, version != "")
"""


@pytest.mark.parametrize("api", ["bound", "plain"])
def test_during_the_first_use_of_a_function(api: str) -> None:
    """pynvml looks functions up with a lock held: the handler waited for it, for ever."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, api], capture_output=True, text=True, timeout=20)
    assert done.stdout == "[1] True\n", done.stderr


class Unrelated(Exception):
    """Somebody's error of a request of their own, which was not sent."""

    sent = False


@pytest.mark.parametrize("error", [Unrelated(), nvsandbox.WorkerDied("nvmlDeviceGetCount", None, None, "why", False)])
def test_an_error_of_a_signal_handler_is_not_taken_for_the_sandbox_s(error: Exception) -> None:
    """Defect 3: it was swallowed, and the call made again, for it says that something was not sent."""

    def handler(number: int, frame: object) -> None:
        raise error

    with nvml_isolated(simulate="t4,latency_us=300000") as nvml:
        device = nvml.nvmlDeviceGetHandleByIndex(0)
        for _ in range(2):  # from the second on the fast path has it
            nvml.nvmlDeviceGetTemperature(device, 0)
        before = signal.signal(signal.SIGALRM, handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(type(error)) as caught:
                nvml.nvmlDeviceGetTemperature(device, 0)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert caught.value is error
