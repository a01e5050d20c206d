# SPDX-License-Identifier: Apache-2.0
"""Every function of the installed pynvml against the simulated driver: direct and sandboxed must agree."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from . import arguments, library
from .simulated import CHOICES
from .test_echo import report

# Time stands still, so that two processes see the same load.
SIMULATIONS = ["h100x2,mig=1g.10gb*2+2g.20gb,frozen=1", "t4,frozen=1"]

# Called last, lest there be nothing left to ask the others about.
_LAST = re.compile(r"Destroy|Remove|Free|SetMigMode|Shutdown|DrainState")


def simulated_cases(simulation: str) -> list[dict[str, Any]]:
    """Every function, for each choice of a device."""
    names = sorted(arguments.functions(), key=lambda name: bool(_LAST.search(name)))
    choices = CHOICES if "mig" in simulation else ["first"]
    return [
        {"function": name, "optional": optional, "results": [], "choice": choice}
        for name in names
        for choice in choices
        for optional in (False, True)
    ]


@pytest.fixture(scope="session")
def directly(simulator: Path) -> dict[str, Any]:
    """What the cases of each simulation do without a sandbox."""
    return {
        simulation: library.side(
            "direct",
            simulated_cases(simulation),
            env={"NVSANDBOX_SIM": simulation},
            kind="simulated",
            library=str(simulator),
        )
        for simulation in SIMULATIONS
    }


@pytest.mark.parametrize("simulation", SIMULATIONS)
def test_the_simulator_answers_much(directly: dict[str, Any], simulation: str) -> None:
    """The comparison would say little if everything were NotSupported."""
    returned = [one for one in directly[simulation] if one is not None and "result" in one]
    assert len(returned) > (250 if "mig" in simulation else 60)


@pytest.mark.parametrize("transport", ["shm", "pipe"])
@pytest.mark.parametrize("simulation", SIMULATIONS)
def test_sandboxed_calls_do_the_same(directly: dict[str, Any], simulation: str, transport: str) -> None:
    """Results, exceptions and changed arguments; setters included, since the worker is privileged as direct use is."""
    cases = simulated_cases(simulation)
    sandboxed = library.side(transport, cases, kind="simulated", simulate=simulation, privileged="yes")
    lines = report(cases, directly[simulation], sandboxed)
    assert not lines, f"{len(lines)} differences, the first of them:\n" + "\n".join(lines[:40])
