# SPDX-License-Identifier: Apache-2.0
"""What the tests of the whole surface share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from . import library


@pytest.fixture(scope="session")
def echo_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The echo library with every symbol that pynvml asks for."""
    return library.build(tmp_path_factory.mktemp("echo"), library.symbols())


@pytest.fixture(scope="session")
def simulator() -> Path:
    """The simulator's library, inside the installed package."""
    # Asked elsewhere than in the source tree, where "import nvsandbox" may find the sources.
    code = "import nvsandbox; print(nvsandbox.__file__)"
    asked = subprocess.run([sys.executable, "-c", code], cwd="/", check=True, capture_output=True, text=True)
    path = Path(asked.stdout.strip()).parent / "sim" / "libnvidia-ml.so.1"
    assert path.exists(), f"the simulator is not installed: {path}"
    if library.host_prefix() is None:
        pytest.skip("direct use of the simulator makes nodes, and no mount namespace can be had to make them in")
    return path
