# SPDX-License-Identifier: Apache-2.0
"""Every function of the installed pynvml against a library whose every output depends on every byte of its input."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest

from . import arguments, library
from .describe import differences
from .side import LIFECYCLE

TRANSPORTS = ["shm", "pipe"]

# What the calls of one function return, and whether text comes out as text. An unknown code is among them.
VARIANTS: list[tuple[list[int], bool]] = [([], False), ([7], False), ([3], False), ([-5], False), ([], True)]


def _cases() -> list[dict[str, Any]]:
    found = []
    for function in arguments.functions():
        for optional in (False, True):
            for number, (results, garbage) in enumerate(VARIANTS):
                seed = zlib.crc32(f"{function} {number}".encode())
                found.append(
                    {"function": function, "optional": optional, "results": results, "garbage": garbage, "seed": seed}
                )
    return [case for case in found if case["function"] not in LIFECYCLE or not (case["results"] or case["garbage"])]


@pytest.fixture(scope="session")
def cases() -> list[dict[str, Any]]:
    """All cases, with the calls that pynvml makes for each."""
    return library.recorded(_cases())


@pytest.fixture(scope="session")
def direct(cases: list[dict[str, Any]], echo_library: Path) -> Any:
    """What each case does without a sandbox."""
    return library.side("direct", cases, library=str(echo_library))


def _seen(one: Any) -> Any:
    """What a caller sees of it: not which way its calls went, for directly there is only one."""
    return one and {key: value for key, value in one.items() if key != "paths"}


def report(cases: list[dict[str, Any]], left: list[Any], right: list[Any]) -> list[str]:
    """Each difference, with the function that it is of."""
    lines = []
    for case, one, other in zip(cases, left, right, strict=True):
        named = f"{case['function']} (results {case['results']}, optional {case['optional']})"
        found = differences(_seen(one), _seen(other))
        lines.extend(f"{named}: {line}" for line in found[:5])
    return lines


def test_arguments_are_known_for_every_function(cases: list[dict[str, Any]]) -> None:
    """A new pynvml with a function for which nothing is known fails in the recording, and names it."""
    assert {case["function"] for case in cases} == set(arguments.functions())


def test_direct_calls_are_as_recorded(cases: list[dict[str, Any]], direct: list[Any]) -> None:
    """The yardstick itself: without a sandbox no call is unexpected, no handle unknown, no pointer lost."""
    notes = [f"{case['function']}: {one['note']}" for case, one in zip(cases, direct, strict=True) if one["note"]]
    assert notes == []


def test_most_cases_return_something(cases: list[dict[str, Any]], direct: list[Any]) -> None:
    """The comparison would be empty if everything raised: with success asked for, nearly all functions return."""
    plain = [(case, one) for case, one in zip(cases, direct, strict=True) if not case["results"]]
    raised = {case["function"] for case, one in plain if "raised" in one and not case["garbage"]}
    assert len(raised) < 25, sorted(raised)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_sandboxed_calls_do_the_same(
    cases: list[dict[str, Any]], direct: list[Any], echo_library: Path, transport: str
) -> None:
    """Results, exceptions and changed arguments, structures field by field and byte by byte."""
    sandboxed = library.side(transport, cases, library=str(echo_library))
    lines = report(cases, direct, sandboxed)
    assert not lines, f"{len(lines)} differences, the first of them:\n" + "\n".join(lines[:40])


def test_missing_symbols(cases: list[dict[str, Any]], tmp_path: Path) -> None:
    """A symbol that the library lacks is FunctionNotFound for that call, as without a sandbox, and for no other."""
    every = library.symbols()
    kept = [name for name in every if name in library.ALWAYS or zlib.crc32(name.encode()) % 2]
    path = library.build(tmp_path, kept)
    chosen = [case for case in cases if not case["results"] and not case["garbage"]]
    left = library.side("direct", chosen, library=str(path))
    right = library.side("shm", chosen, library=str(path))
    missing = [one for one in left if one.get("raised", {}).get("error") == "pynvml.NVMLError_FunctionNotFound"]
    assert len(missing) > len(every) // 4
    lines = report(chosen, left, right)
    assert not lines, f"{len(lines)} differences, the first of them:\n" + "\n".join(lines[:40])
