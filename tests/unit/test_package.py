# SPDX-License-Identifier: Apache-2.0
"""What importing the package does and does not do, in processes of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nvsandbox


def python(code: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, **environment},
        text=True,
        capture_output=True,
        timeout=60,
    )


def test_a_source_folder_that_is_not_built_says_so(tmp_path: Path) -> None:
    """As it is found by a Python that is started in a fresh clone."""
    package = tmp_path / "nvsandbox"
    built = shutil.ignore_patterns("*.so", "sim", "nvsandbox-worker", "nvsandbox-run", "__pycache__")
    shutil.copytree(Path(nvsandbox.__file__).parent, package, ignore=built)
    done = python("import nvsandbox", tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: {package} is nvsandbox's source folder, in which nothing is built: run `make setup` there, or "
        f"start Python in another folder"
    )
    assert "ModuleNotFoundError" not in done.stderr


LOGGED = """
import nvsandbox
with nvsandbox.nvml_isolated(simulate="h100,crash=nvmlDeviceGetName") as nvml:
    try:
        nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(0))
    except nvsandbox.WorkerDied:
        pass
    nvml.nvmlDeviceGetCount()
"""


def test_the_log_is_silent_until_somebody_wants_it(tmp_path: Path) -> None:
    quiet = python(LOGGED, tmp_path)
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    heard = python(f"import logging; logging.basicConfig(level='INFO'){LOGGED}", tmp_path)
    assert heard.returncode == 0
    assert "nvsandbox:" in heard.stderr
