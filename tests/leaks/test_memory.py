# SPDX-License-Identifier: Apache-2.0
"""What is done again and again costs no memory that is still in use afterwards: an object each time would be seen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("growth.py")

# What is done, and how often: so often that 32 bytes each time are more than what is allowed below, with what is kept
# for each restart in addition.
KINDS = {
    "calls": 300,
    "deadlines": 300,
    "events": 300,
    "pipe": 300,
    "threads": 300,
    "killed": 200,
    "crashed": 200,
    "recycled": 450,
    "garbage": 300,
    "lost": 300,
    "blocks": 200,
    "refused": 150,
}

# The time of each restart is kept for a minute: eight bytes, in an array that grows by an eighth. The smallest of
# Python's objects takes 32 bytes with what the C library adds, and mostly there are several.
EACH = {"killed": 12, "crashed": 12}
ONCE = {"recycled": 12288}  # of those that were replaced, one or two are still known, some KiB each
ONCE_OTHERS = 4096


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_stays_in_use(kind: str) -> None:
    exact = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0", "PYTHONMALLOC": "malloc"}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), kind, str(KINDS[kind])],
        env={**os.environ, **exact},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < EACH.get(kind, 0) * KINDS[kind] + ONCE.get(kind, ONCE_OTHERS)
