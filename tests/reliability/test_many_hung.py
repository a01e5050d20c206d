# SPDX-License-Identifier: Apache-2.0
"""E4 and F1: the ends of many workers that hang take as long as that of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SHORT = """
import json, os, signal, time
from nvsandbox import CallTimeout, ending, nvml_isolated
ending.STOP_LIMIT = ending.TERM_LIMIT = 0.6  # so that one that is stopped takes 1.2 s
"""


def test_at_the_exit(program: Callable[..., Any]) -> None:
    """They were ended one after the other, 7 seconds each."""
    source = (
        SHORT
        + """
import atexit
def seconds():
    print(json.dumps(time.monotonic() - start))
import nvsandbox.blocks
atexit.unregister(nvsandbox.blocks._close_all)
atexit.register(seconds)
atexit.register(nvsandbox.blocks._close_all)
pids = []
for number in range(1, 9):
    nvml = nvml_isolated(simulate=f"t4x{number}").__enter__()
    pids.append(nvml.session.pid)
for pid in pids:
    os.kill(pid, signal.SIGSTOP)
start = time.monotonic()
"""
    )
    assert 1.1 < program(source) < 7  # one after the other: 9.6 s


def test_of_one_session(program: Callable[..., Any]) -> None:
    """Each that was on its way was waited for after the one before."""
    source = (
        SHORT
        + """
with nvml_isolated(simulate="t4") as nvml:
    for _ in range(7):
        nvml.nvmlDeviceGetCount()
        os.kill(nvml.session.pid, signal.SIGSTOP)
        # Until all its threads stand it may still answer, and then it is the next call that hangs.
        os.waitid(os.P_PID, nvml.session.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            with nvml.session.deadline(0.2):  # and no such limit for the calls that are answered
                nvml.nvmlDeviceGetCount()
        except CallTimeout:
            pass
    os.kill(nvml.session.pid, signal.SIGSTOP)
    start = time.monotonic()
    nvml.session.close()
    print(json.dumps(time.monotonic() - start))
"""
    )
    assert program(source) < 7  # 1.2 s for the last of them; one after the other: 9.6 s
