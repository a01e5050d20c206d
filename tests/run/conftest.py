# SPDX-License-Identifier: Apache-2.0
"""The command, run as users run it: by its script, on the stand-in for the host."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import host as stand_in
import pytest
from host import require

COMMAND = str(Path(sys.executable).parent / "nvsandbox")

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run() -> Iterator[Run]:
    """`nvsandbox run` with the arguments that are given. The host's /dev must be as before."""
    require(stand_in.can_play_host(), "needs CAP_SYS_ADMIN, to make mount namespaces")
    before = stand_in.listing()

    def start(*arguments: str | bytes, **options: Any) -> subprocess.CompletedProcess[str]:
        environment = {name: text for name, text in os.environ.items() if not name.startswith("NVSANDBOX_")}
        options = {
            "env": environment, "stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 60,
            "errors": "surrogateescape", **options,
        }  # fmt: skip
        return subprocess.run([COMMAND, "run", *arguments], check=False, **options)

    yield start
    assert stand_in.listing() == before, "the program has changed the host's /dev"
