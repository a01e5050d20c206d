# SPDX-License-Identifier: Apache-2.0
"""F11 and E4: exceptions out of signal handlers at random moments."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "interrupts.py"


@pytest.mark.parametrize("more", [[], ["--twice"]], ids=["once", "twice"])
def test_nothing_is_left_by_interruptions(more: list[str]) -> None:
    """About one in seventy left a descriptor, a worker or a route."""
    command = [sys.executable, str(PROGRAM), "--seconds", "4", "--least", "20", *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["failures"] == []
    assert found["interrupted"] >= 20
