# SPDX-License-Identifier: Apache-2.0
"""Threads that enter, leave and install equal options at the same time."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from nvsandbox import nvml_isolated
from nvsandbox import session as session_module

INSTALL = """
import threading, time
from nvsandbox import install, nvml_isolated

def enter():
    with nvml_isolated(simulate="t4,init_ms=300"):
        pass

thread = threading.Thread(target=enter, daemon=True)
thread.start()
time.sleep(0.1)
print(install(simulate="t4,init_ms=300").nvmlDeviceGetCount())
"""


def test_install_while_a_block_with_equal_options_starts() -> None:
    """install() waited for the start with the registry locked, and the start waited for the registry."""
    done = subprocess.run([sys.executable, "-c", INSTALL], capture_output=True, text=True, timeout=20)
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_entering_while_the_last_block_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new block got the session that the old one was about to close."""
    leaving, entered = threading.Event(), threading.Event()
    close = session_module.NVMLSession.close

    def slow_close(self: session_module.NVMLSession) -> None:
        leaving.set()
        entered.wait(5)
        close(self)

    def leave() -> None:
        with nvml_isolated(simulate="t4"):
            pass

    monkeypatch.setattr(session_module.NVMLSession, "close", slow_close)
    thread = threading.Thread(target=leave)
    thread.start()
    assert leaving.wait(10)
    with nvml_isolated(simulate="t4") as nvml:
        entered.set()
        thread.join()
        assert nvml.nvmlDeviceGetCount() == 1
