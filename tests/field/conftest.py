# SPDX-License-Identifier: Apache-2.0
"""What the tests of field reports share: faults that people who run NVML have met, one test (or more) for each kind.

Their names begin with the kind: A libraries, B and C values, D and E processes, G devices, H the system around them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
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


@pytest.fixture
def compile_library(tmp_path: Path) -> Callable[[str, str], Path]:
    """A libnvidia-ml.so.1 of C source text, in a folder of its own."""
    compiler = shutil.which("cc") or ""
    require(compiler, "needs a C compiler")

    def compile_library(source: str, folder: str = "library") -> Path:
        path = tmp_path / folder / "libnvidia-ml.so.1"
        path.parent.mkdir(parents=True)
        command = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-x", "c", "-", "-o", str(path)]
        subprocess.run(command, input=source, text=True, check=True)
        return path

    return compile_library
