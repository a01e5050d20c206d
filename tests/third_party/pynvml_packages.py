# SPDX-License-Identifier: Apache-2.0
"""Other packages than nvidia-ml-py that bring pynvml, or a copy of it, each in a folder of its own under .cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_CACHE = Path(__file__).resolve().parents[2] / ".cache" / "pynvml"


def reach_nvml() -> None:
    """Loads the simulator's library, whose soname is the driver's: dlopen("libnvidia-ml.so.1") gives it in this process
    from here on, and nvmlInit makes nodes."""
    import ctypes

    from nvsandbox.simulate import parse

    os.environ["NVSANDBOX_SIM"] = "h100x2"
    ctypes.CDLL(str(parse("h100x2").library))


def folder_of(requirement: str) -> Path:
    """The folder to put first on sys.path. What cannot be downloaded skips the test, and in CI fails it."""
    from host import require

    target = _CACHE / requirement.replace("==", "-")
    if not target.exists():
        _CACHE.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=_CACHE))
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(made), requirement]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            made.chmod(0o755)
            try:
                os.rename(made, target)
            except OSError:  # another run was first
                shutil.rmtree(made)
        else:
            shutil.rmtree(made)
        require(target.exists(), f"needs {requirement}: {done.stderr.strip()[-300:]}")
    return target
