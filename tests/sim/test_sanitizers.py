# SPDX-License-Identifier: Apache-2.0
"""The simulator under the compiler's sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from host import Host, require

from .conftest import SOURCES


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_threads(host: Host, readable_folder: Path, sanitizer: str) -> None:
    compiler = shutil.which("cc")
    require(compiler, "needs a C compiler")
    program = readable_folder / f"threads-{sanitizer.partition(',')[0]}"
    sources = [Path(__file__).with_name("threads.c"), *sorted(SOURCES.glob("*.c"))]
    command = [str(compiler), "-std=gnu11", "-D_GNU_SOURCE", "-g", "-O1", f"-fsanitize={sanitizer}"]
    command += ["-fno-sanitize-recover=undefined", f"-I{SOURCES}", *map(str, sources), "-o", str(program)]
    built = subprocess.run([*command, "-lm", "-lpthread"], check=False, capture_output=True, text=True)
    require("cannot find" not in built.stderr, f"needs the libraries of -fsanitize={sanitizer}")
    assert built.returncode == 0, built.stderr

    def run(program: str) -> tuple[int, str]:
        import os
        import platform
        import subprocess

        # The thread sanitizer wants its addresses free, and some kernels put others there.
        fixed = ["setarch", platform.machine(), "-R"] if os.path.exists("/usr/bin/setarch") else []
        ran = subprocess.run([*fixed, program], check=False, capture_output=True, text=True, timeout=60)
        return ran.returncode, ran.stdout + ran.stderr

    result: Any = host.run(run, program=str(program))
    assert result == (0, "done\n")
