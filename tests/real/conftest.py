# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own library, where scripts/fetch-nvidia-nvml has put it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from host import Host, require

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "nvidia" / "root"


@pytest.fixture
def real_library(host: Host) -> str:
    """The path of NVIDIA's libnvidia-ml.so.1, readable by every user."""
    chosen = os.environ.get("NVSANDBOX_TEST_NVML")
    found = [Path(chosen)] if chosen else sorted(CACHE.glob("**/nvidia/current/libnvidia-ml.so.1"))
    require(found and found[0].exists(), "needs NVIDIA's library: run scripts/fetch-nvidia-nvml")
    require(not os.path.exists("/proc/driver/nvidia"), "needs a machine without NVIDIA's driver")
    return host.readable(found[0])
