# SPDX-License-Identifier: Apache-2.0
"""What a session still believes of a worker that is gone."""

from __future__ import annotations

import time

import pytest
from waiting import kill

from nvsandbox import WorkerDied, nvml_isolated


def test_event_sets_of_a_dead_worker_do_not_forbid_recycling() -> None:
    """They were counted for ever: nobody can free them any more."""
    with nvml_isolated(simulate="t4", recycle_after=5) as nvml:
        nvml.nvmlEventSetCreate()
        kill(nvml.session.pid)
        end = time.monotonic() + 20
        while nvml.session.stats()["recycles"] == 0 and time.monotonic() < end:
            nvml.nvmlDeviceGetCount()
        assert nvml.session.stats()["recycles"] >= 1


def test_a_call_after_a_death_without_restarts_was_not_sent() -> None:
    with nvml_isolated(simulate="t4", restart=False) as nvml:
        assert nvml.nvmlDeviceGetCount() == 1
        kill(nvml.session.pid)
        with pytest.raises(WorkerDied) as caught:
            nvml.nvmlDeviceGetCount()
        assert caught.value.sent is False
