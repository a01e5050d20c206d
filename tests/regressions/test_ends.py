# SPDX-License-Identifier: Apache-2.0
"""Ends of workers that are interrupted, or for which there is no thread."""

from __future__ import annotations

import _thread
import os
import signal
import threading
from typing import Any

import pytest
from host import descriptors, has_ended
from waiting import stop, until

from nvsandbox import CallTimeout, nvml_isolated, process


def test_an_interrupted_close_still_ends_the_worker() -> None:
    """Ctrl-C while a hung worker was waited for: it stayed, and its descriptors too."""
    before = descriptors()
    interrupter = threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGINT))
    with nvml_isolated(simulate="t4") as nvml:
        pid = nvml.session.pid
        assert nvml.nvmlDeviceGetCount() == 1
        stop(pid)
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            nvml.session.close()
    interrupter.join()
    wait_until_ended(pid)
    until(lambda: set(descriptors()) <= set(before))
    assert set(descriptors()) <= set(before)


def test_a_hang_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call raised RuntimeError in place of CallTimeout, and nobody ever ended the worker."""

    def start(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with nvml_isolated(simulate="t4,hang=nvmlDeviceGetName", timeout=1) as nvml:
        pid = nvml.session.pid
        device = nvml.nvmlDeviceGetHandleByIndex(0)
        with monkeypatch.context() as patch:
            patch.setattr(_thread, "start_new_thread", start)
            with pytest.raises(CallTimeout):
                nvml.nvmlDeviceGetName(device)
        assert nvml.nvmlDeviceGetCount() == 1
        wait_until_ended(pid)


def test_an_interruption_right_after_the_spawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker ended, but was never reaped."""
    spawn = process.lib.nvs_spawn
    pids: list[int] = []

    class Lib:
        def __getattr__(self, name: str) -> Any:
            return getattr(lib, name)

        def nvs_spawn(self, path: Any, environment: Any, control: Any, pid: Any, error: Any) -> int:
            spawn(path, environment, control, pid, error)
            pids.append(pid[0])
            raise KeyboardInterrupt

    lib = process.lib
    monkeypatch.setattr(process, "lib", Lib())
    with pytest.raises(KeyboardInterrupt), nvml_isolated(simulate="t4"):
        pass
    with pytest.raises(ChildProcessError):
        os.waitpid(pids[0], 0)


def wait_until_ended(pid: int) -> None:
    assert until(lambda: has_ended(pid))
