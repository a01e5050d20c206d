# SPDX-License-Identifier: Apache-2.0
"""Pictures of folders that somebody has made to be in the way."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from nvsandbox import tree


def test_folders_in_folders(tmp_path: Path) -> None:
    """More than Python calls itself, and than a process has descriptors."""
    before = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    top = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fchdir(top)
        for _ in range(1500):
            os.mkdir("a")
            os.chdir("a")
        os.fchdir(top)
        os.mkdir("b")
        found = tree.picture(top)
    finally:
        os.fchdir(before)
        os.close(before)
        os.close(top)
        subprocess.run(["rm", "-rf", tmp_path / "a"], check=True)
    assert {"a", "a/a/a", "b"} <= set(found)
    assert len(found) < 1500
