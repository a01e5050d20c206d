# SPDX-License-Identifier: Apache-2.0
"""What the tests of field reports share: faults that people who run NVML have met, one test (or more) for each kind.

Their names begin with the kind: A libraries, B and C values, D and E processes, G devices, H the system around them.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from host import require


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
