# SPDX-License-Identifier: Apache-2.0
"""The soak program in its short form: every check of each part, at a hundredth of the numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).resolve().parents[2] / "benchmarks" / "soak.py"

# Part: share of the full numbers, and what it must have done at least
SHORT = {
    "faults": (0.01, {"faults": 100, "calls that returned": 50, "workers: restarts": 20}),
    "notice": (0.03, {"deaths": 3, "deadlines": 3}),
    "calls": (0.01, {"calls": 10_000, "sessions": 20}),
    "killed": (0.1, {}),
    "forks": (0.02, {"forks": 20, "calls under way meanwhile": 100}),
}


TRIES = 4
LATE = "allowed are"


@pytest.mark.slow
@pytest.mark.parametrize("part", SHORT)
def test_short(tmp_path: Path, part: str) -> None:
    """The limits of time are those of the full form. A busy machine may exceed them at one try and another; anything
    else that fails does so at once."""
    scale, least = SHORT[part]
    command = [sys.executable, str(SOAK), "--part", part, "--scale", str(scale), "--out", str(tmp_path)]
    late: list[str] = []
    for _ in range(TRIES):
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        summary = json.loads((tmp_path / "soak.json").read_text())
        result = summary["parts"][part]
        assert [failure for failure in result["failed"] if LATE not in failure] == [], done.stderr
        assert summary["passed"] == (result["failed"] == [])
        assert done.returncode == (0 if summary["passed"] else 1)
        assert result["counts"]["left behind"] == 0
        for what, number in least.items():
            assert result["counts"][what] >= number, what
        assert done.stdout == (tmp_path / "soak.md").read_text()
        if summary["passed"]:
            return
        late += result["failed"]
    pytest.fail(f"at each of {TRIES} tries: {late}")


def test_wrong_scale() -> None:
    done = subprocess.run([sys.executable, str(SOAK), "--scale", "0"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "expected a number above 0" in done.stderr
