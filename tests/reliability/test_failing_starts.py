# SPDX-License-Identifier: Apache-2.0
"""Restarts that fail, because NVML's initialisation does for a while."""

from __future__ import annotations

import dataclasses
import os
import time

import pynvml
import pytest
from waiting import forked, kill, until

from nvsandbox import CallFailed, WorkerDied, launch, nvml_isolated
from nvsandbox.errors import nvml_error


class Trouble:
    """Has the starts of a sandbox's next workers fail, from :meth:`begin` to :meth:`end`; counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
        self.starts = 0
        self.on = False
        real = launch.start

        def start(options, *arguments):
            self.starts += 1
            if self.on and kind == "999":
                raise nvml_error(pynvml.NVML_ERROR_UNKNOWN, "nvmlInit in this test")
            if self.on:
                options = dataclasses.replace(options, simulate="t4,crash=nvmlInit:abort")
            return real(options, *arguments)

        monkeypatch.setattr(launch, "start", start)


@pytest.fixture(params=["999", "abort"])
def trouble(request, monkeypatch):
    return Trouble(monkeypatch, request.param)


REASON = r"Unknown Error \(nvmlInit in this test\)|SIGABRT"


def test_a_moments_trouble_does_not_use_up_the_restarts(trouble):
    """T4: 20 restarts were used up in 0.35 s, and calls refused for a minute."""
    with nvml_isolated(simulate="t4") as nvml:
        assert nvml.nvmlDeviceGetCount() == 1
        trouble.on = True
        kill(nvml.session.pid)
        end = time.monotonic() + 1
        refused = set()
        while time.monotonic() < end:
            with pytest.raises(pynvml.NVMLError) as caught:
                nvml.nvmlDeviceGetCount()
            if isinstance(caught.value, WorkerDied) and "at the earliest" in str(caught.value):
                refused.add(str(caught.value))
        trouble.on = False
        assert nvml.session.stats()["restarts"] < 10

        def again():
            try:
                return nvml.nvmlDeviceGetCount()
            except pynvml.NVMLError:
                return 0

        # Pauses double, so that the last is no longer than what there was of the trouble.
        assert until(again) == 1
        assert nvml.session.stats()["restarts"] < 12


def test_the_last_failure_stands_in_the_error(trouble):
    """T4: the text spoke of the number of restarts alone."""
    with nvml_isolated(simulate="t4", restart=2) as nvml:
        assert nvml.nvmlDeviceGetCount() == 1
        trouble.on = True
        kill(nvml.session.pid)
        texts = []

        def refused():
            with pytest.raises(pynvml.NVMLError) as caught:
                nvml.nvmlDeviceGetCount()
            texts.append(str(caught.value))
            return "2 restarts within 60 s" in texts[-1]

        assert until(refused), texts
        assert trouble.starts == 3
        with pytest.raises(WorkerDied, match=rf"SIGKILL.*2 restarts within 60 s.*the last start failed: .*({REASON})"):
            nvml.nvmlDeviceGetCount()


def test_in_a_forked_child_as_well(trouble):
    """T4: there each call started a worker at once, for ever."""
    with nvml_isolated(simulate="t4") as nvml:
        assert nvml.nvmlDeviceGetCount() == 1

        def call():
            trouble.on = True
            trouble.starts = 0
            end = time.monotonic() + 0.5
            while time.monotonic() < end:
                with pytest.raises(pynvml.NVMLError) as caught:
                    nvml.nvmlDeviceGetCount()
                if isinstance(caught.value, CallFailed):
                    assert "the last start failed" in str(caught.value)
            assert 2 <= trouble.starts < 10
            trouble.on = False

            def again():
                try:
                    return nvml.nvmlDeviceGetCount()
                except pynvml.NVMLError:
                    return 0

            assert until(again) == 1

        assert os.waitpid(forked(call), 0)[1] == 0
        assert nvml.nvmlDeviceGetCount() == 1
