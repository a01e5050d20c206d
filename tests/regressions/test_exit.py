# SPDX-License-Identifier: Apache-2.0
"""The interpreter's exit while threads are in calls."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import threading, time
from nvsandbox import nvml_isolated

nvml = nvml_isolated(simulate="t4").__enter__()

def call():
    while True:
        try:
            nvml.nvmlDeviceGetCount()
        except nvml.NVMLError:
            time.sleep(0.001)

for _ in range(4):
    threading.Thread(target=call, daemon=True).start()
time.sleep(0.05)
"""


def test_daemon_threads_in_calls_do_not_crash_the_exit() -> None:
    """Their channels were unmapped under them (SIGSEGV), or the exit waited for a lock that one had ended with: about
    once in ten exits."""
    for _ in range(12):
        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=30)
        assert (done.returncode, done.stderr) == (0, "")
