# SPDX-License-Identifier: Apache-2.0
"""What the tests of reliability share: libraries made for a fault, and programs of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from host import require

# What every library needs to be taken for NVML.
LIBRARY = """
#include <stddef.h>
int nvmlInit_v2 (void) { return 0; }
int nvmlInitWithFlags (unsigned flags) { (void)flags; return 0; }
#ifndef OWN_SHUTDOWN
int nvmlShutdown (void) { return 0; }
#endif
const char *nvmlErrorString (int result) { (void)result; return "an error"; }
"""


@pytest.fixture
def compile_library(readable_folder: Path, request: pytest.FixtureRequest) -> Callable[[str], str]:
    """A libnvidia-ml.so.1 that has, besides what every NVML has, what this C source says."""
    compiler = shutil.which("cc") or ""
    require(compiler, "needs a C compiler")

    def compile_library(source: str) -> str:
        folder = readable_folder / f"library-{abs(hash((request.node.nodeid, source)))}"
        folder.mkdir(exist_ok=True)
        path = folder / "libnvidia-ml.so.1"
        command = [compiler, "-shared", "-fPIC", "-D_GNU_SOURCE", "-Wall", "-Werror", "-x", "c", "-", "-o", str(path)]
        command += ["-DOWN_SHUTDOWN"] if "nvmlShutdown" in source else []
        subprocess.run(command, input=LIBRARY + source, text=True, check=True)
        return str(path)

    return compile_library


@pytest.fixture
def program() -> Callable[..., Any]:
    """Runs Python source text as a program of its own, `under` another if need be; gives what it prints, read as
    JSON."""

    def program(source: str, *arguments: str, timeout: float = 60, under: Sequence[str] = (), **options: Any) -> Any:
        command = [*under, sys.executable, "-W", "ignore", "-c", textwrap.dedent(source), *arguments]
        done = subprocess.run(
            command,
            capture_output=True,
            timeout=timeout,
            check=False,
            cwd="/",
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            **options,
        )
        assert done.returncode == 0, (done.returncode, done.stderr.decode(errors="replace"))
        return json.loads(done.stdout)

    return program
