# SPDX-License-Identifier: Apache-2.0
"""The short way for calls, over every function of the installed pynvml: taken, by a counter, and with equal results.

Each case is met three times in a row: by values that its function has not seen, by others, and by the first again, for
which nothing is new then. So whatever can go the short way has done so at the third at the latest.
"""

from __future__ import annotations

import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from . import arguments, library
from .marshalled import MARSHALLED
from .side import LIFECYCLE
from .test_echo import report
from .test_simulated import SIMULATIONS, simulated_cases

ROUNDS = ["some values", "others", "some values"]

# Success; a list that is asked for its size and then fetched; and a code that pynvml does not know, with rubbish.
VARIANTS: list[tuple[list[int], bool]] = [([], False), ([7], False), ([-5], True)]


def _cases() -> list[dict[str, Any]]:
    return [
        {
            "function": function,
            "optional": optional,
            "results": results,
            "garbage": garbage,
            "seed": zlib.crc32(f"{function} {number} {values}".encode()),
        }
        for function in arguments.functions()
        if function not in LIFECYCLE
        for optional in (False, True)
        for number, (results, garbage) in enumerate(VARIANTS)
        for values in ROUNDS
    ]


@pytest.fixture(scope="module")
def cases() -> list[dict[str, Any]]:
    """All cases, with the calls that pynvml makes for each."""
    return library.recorded(_cases())


@pytest.fixture(scope="module")
def sandboxed(cases: list[dict[str, Any]], echo_library: Path) -> Any:
    """What each case does in a session with a short way."""
    return library.side("shm", cases, library=str(echo_library))


def _symbols(case: dict[str, Any]) -> list[str]:
    return [line.split()[0] for line in case["expect"].splitlines()]


def test_every_call_went_one_of_the_two_ways(cases: list[dict[str, Any]], sandboxed: list[Any]) -> None:
    """The yardstick: the counters account for the calls that pynvml makes, and for no other."""
    wrong = [
        f"{case['function']}: {one['paths']}, but pynvml calls {_symbols(case)}"
        for case, one in zip(cases, sandboxed, strict=True)
        if one["paths"]["short"] + len(one["paths"]["marshalled"]) != len(_symbols(case))
        or Counter(one["paths"]["marshalled"]) - Counter(_symbols(case))
    ]
    assert wrong == []


def test_what_can_go_the_short_way_does(cases: list[dict[str, Any]], sandboxed: list[Any]) -> None:
    """At the third time the marshaller carries the functions of the table, always, and not one call of any other."""
    third = list(zip(cases, sandboxed, strict=True))[2::3]
    assert all(case["seed"] == again["seed"] for case, again in zip(cases[0::3], cases[2::3], strict=True))
    asked: Counter[str] = Counter()
    marshalled: Counter[str] = Counter()
    for case, one in third:
        asked.update(_symbols(case))
        marshalled.update(one["paths"]["marshalled"])
    assert sum(asked.values()) > 1000
    assert {name for name in asked if marshalled[name] == asked[name]} == asked.keys() & MARSHALLED.keys()
    assert {name: count for name, count in marshalled.items() if name not in MARSHALLED} == {}


def test_the_short_way_does_the_same(cases: list[dict[str, Any]], sandboxed: list[Any], echo_library: Path) -> None:
    """Results, exceptions and changed arguments, of all three times."""
    direct = library.side("direct", cases, library=str(echo_library))
    lines = report(cases, direct, sandboxed)
    assert not lines, f"{len(lines)} differences, the first of them:\n" + "\n".join(lines[:40])


@pytest.mark.parametrize("simulation", SIMULATIONS)
def test_the_simulated_driver(simulator: Path, simulation: str) -> None:
    """Both: with handles, counts and structures as a driver gives them."""
    cases = [case for case in simulated_cases(simulation) for _ in range(3) if case["function"] not in LIFECYCLE]
    direct = library.side("direct", cases, env={"NVSANDBOX_SIM": simulation}, kind="simulated", library=str(simulator))
    there = library.side("shm", cases, kind="simulated", simulate=simulation, privileged="yes")
    lines = report(cases, direct, there)
    assert not lines, f"{len(lines)} differences, the first of them:\n" + "\n".join(lines[:40])
    third = [one["paths"] for one in there[2::3] if one is not None]
    assert {name for paths in third for name in paths["marshalled"]} <= MARSHALLED.keys()
    assert sum(paths["short"] for paths in third) > 250
