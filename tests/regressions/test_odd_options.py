# SPDX-License-Identifier: Apache-2.0
"""Values that Python takes for equal, and numbers that no float can hold."""

from __future__ import annotations

from nvsandbox import nvml_isolated
from nvsandbox.options import make


def test_one_restart_is_not_any_restart() -> None:
    """True == 1, so restart=1 joined the worker of restart=True, with 20 restarts, or the other way round."""
    assert make({"restart": 1}, {}) != make({"restart": True}, {})
    assert make({"restart": True}, {}) == make({}, {}) == make({"restart": 20}, {})
    assert make({"restart": False}, {}).restart is False


def test_times_beyond_any_float() -> None:
    assert make({"timeout": 10**400}, {}).timeout is None
    with nvml_isolated(simulate="t4") as nvml, nvml.session.deadline(10**400):
        assert nvml.nvmlDeviceGetCount() == 1
