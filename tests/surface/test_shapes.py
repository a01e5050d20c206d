# SPDX-License-Identifier: Apache-2.0
"""Each shape of argument on its own: direct and sandboxed must agree, and the echo library have nothing to say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from . import library, scenarios
from .describe import differences

NAMES = list(scenarios.SCENARIOS)


@pytest.fixture(scope="session")
def sides(echo_library: Path) -> dict[str, Any]:
    """What all scenarios do on each side; a side is run when it is first asked for."""
    return {"path": str(echo_library)}


def _side(sides: dict[str, Any], mode: str) -> Any:
    if mode not in sides:
        sides[mode] = library.side(mode, NAMES, kind="scenarios", library=sides["path"])
    return sides[mode]


@pytest.mark.parametrize("name", NAMES)
def test_direct(sides: dict[str, Any], name: str) -> None:
    """The yardstick: without a sandbox the scenario works, and the library is called as announced."""
    found = _side(sides, "direct")[name]
    failed = found.get("failed")
    if failed and failed["error"] == "builtins.AttributeError" and failed["text"].startswith("module 'pynvml'"):
        pytest.skip(f"this pynvml is too old for it: {failed['text']}")
    assert not failed, failed
    notes = [entry[1] for entry in found["log"] if isinstance(entry, list) and len(entry) > 1 and entry[1]]
    if name not in ("python_calling_rules", "wrong_types", "more_than_a_lane_holds"):
        assert notes == []


@pytest.mark.parametrize("transport", ["shm", "pipe"])
@pytest.mark.parametrize("name", NAMES)
def test_sandboxed(sides: dict[str, Any], name: str, transport: str) -> None:
    """The same through a sandbox."""
    left, right = _side(sides, "direct")[name], _side(sides, transport)[name]
    found = differences(left, right)
    assert not found, f"{len(found)} differences:\n" + "\n".join(found[:20])
