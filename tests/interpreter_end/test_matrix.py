# SPDX-License-Identifier: Apache-2.0
"""Who holds a sandbox at the interpreter's end, times what they do with it then: as with pynvml used directly."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import host as stand_in
import pytest
from host import require

import nvsandbox

PROGRAM = Path(__file__).with_name("program.py")
PACKAGE = Path(nvsandbox.__file__).parent
HOLDERS = [
    "module global",
    "generator",
    "ExitStack",
    "thread-local",
    "lru_cache",
    "atexit registered before",
    "atexit registered after",
    "weakref.finalize",
    "cycle",
    "daemon threads",
    "signal",
    "os._exit",
    "forked child",
    "session closed before",
]
ACTIONS = ["nothing", "call", "close", "enter"]
LIMIT = 8.0
"""Seconds that the end of a sandbox takes at most (docs/reliability.md)."""


def outcome(mode: str, holder: str, action: str) -> tuple[int, str, str]:
    # Direct use leaves nodes behind: in a /dev of its own.
    before = [str(PACKAGE / "nvsandbox-run"), "--isolation=mount", "--"] if mode == "direct" else []
    env = {**os.environ, "SIMULATOR": str(PACKAGE / "sim" / "libnvidia-ml.so.1"), "NVSANDBOX_SIM": "t4"}
    if mode == "sandboxed":
        del env["NVSANDBOX_SIM"]
    command = [*before, sys.executable, "-X", "faulthandler", str(PROGRAM), mode, holder, action]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("holder", HOLDERS)
def test_the_end_is_as_with_direct_use(holder: str, action: str) -> None:
    """S1: the same exit status and output, within the promised time; that no worker stays is tests/conftest.py's to
    see."""
    require(stand_in.can_play_host(), "needs CAP_SYS_ADMIN, for a /dev in which NVML may be used directly")
    expected = outcome("direct", holder, action)
    begun = time.monotonic()
    assert outcome("sandboxed", holder, action) == expected
    assert time.monotonic() - begun < LIMIT + 2  # and the program itself
    assert expected[1:] == ("", "")
