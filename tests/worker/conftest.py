# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .harness import Lab, in_lab, worker_path

RunInLab = Callable[[Callable[[Lab], Any]], Any]


@pytest.fixture(scope="session")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """probe.c, compiled."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the library that tries what must not work")
    library = tmp_path_factory.mktemp("probe") / "libprobe.so"
    source = Path(__file__).with_name("probe.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-pthread"], check=True)
    return library


@pytest.fixture
def lab(probe: Path) -> Iterator[RunInLab]:
    if os.geteuid() != 0:
        pytest.skip("a namespace that plays the host can only be set up by root")
    folder = Path(tempfile.mkdtemp(prefix="nvsandbox-lab-"))
    folder.chmod(0o755)
    yield lambda body: in_lab(folder, worker_path(), probe, body)
    folder.rmdir()
