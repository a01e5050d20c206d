# SPDX-License-Identifier: Apache-2.0
"""devices= is not possible where the sandbox has no ``/dev`` of its own, and says so instead of showing everything."""

import pytest

import nvsandbox


def test_guard_cannot_hide_devices():
    with (
        pytest.raises(nvsandbox.SandboxUnavailable, match=r"devices= hides nodes.*leave devices= out"),
        nvsandbox.nvml_isolated(isolation="guard", devices=[0], library="/nonexistent/libnvidia-ml.so.1"),
    ):
        pass
