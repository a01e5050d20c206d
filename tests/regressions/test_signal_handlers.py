# SPDX-License-Identifier: Apache-2.0
"""Signal handlers that call NVML while their thread is in the middle of another call."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
