# SPDX-License-Identifier: Apache-2.0
"""What building says with a Python that is too old."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from host import require

ROOT = Path(__file__).parents[2]

OLD = """#!/bin/sh
# This Python, which tells Meson that it is 3.9.
{python} "$@" | sed -E 's/("(version|language_version)": )"3\\.[0-9]+"/\\1"3.9"/g'
"""


def test_the_version_that_is_needed_is_named(tmp_path: Path) -> None:
    """R7: and not that there is no such cffi for it, on the way to which pip stopped."""
    meson = Path(sys.executable).parent / "meson"
    require(meson.exists(), "needs meson beside this Python")
    old = tmp_path / "python"
    old.write_text(OLD.format(python=sys.executable))
    old.chmod(0o755)
    native = tmp_path / "native.ini"
    native.write_text(f"[binaries]\npython = '{old}'\n")
    command = [meson, "setup", f"--native-file={native}", tmp_path / "build", ROOT]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "nvsandbox needs Python 3.10 or newer, and this is Python 3.9" in done.stdout
    required = (ROOT / "pyproject.toml").read_text().split("requires = [", 1)[1].splitlines()[0]
    assert "cffi>=2.1; python_version >= '3.10'" in required
