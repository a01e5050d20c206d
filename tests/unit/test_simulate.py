# SPDX-License-Identifier: Apache-2.0
"""Descriptions of simulated GPUs that are right. (Wrong ones: tests/bad_input.)"""

from __future__ import annotations

import pytest

from nvsandbox import simulate, testing
from nvsandbox.simulate import option_keys, parse, profiles

# A value for every kind of option; a kind that is new needs one.
VALUES = {
    "u64": "7",
    "flag": "1",
    "indexes": "0",
    "layout": "1g.10gb*2+2g.20gb",
    "version": "570.1.2",
    "symbols": "v2",
    "function": "nvmlDeviceGetName",
    "function_crash": "nvmlDeviceGetName:abort",
    "fields": "mixed",
}


@pytest.mark.parametrize("profile", sorted(profiles()))
@pytest.mark.parametrize("count", [None, 1, 2, 16, 64])
def test_profile(profile: str, count: int | None) -> None:
    text = profile if count is None else f"{profile}x{count}"
    made = parse(text)
    assert (made.text, made.profile, made.count, made.symbols) == (text, profile, count or 1, "all")
    assert made.library.exists()


def test_the_profiles() -> None:
    assert set(profiles()) >= {"h100", "h200", "a100", "l40s", "t4", "b200", "gb200"}
    assert "H100" in profiles()["h100"]


@pytest.mark.parametrize("key", sorted(option_keys()))
def test_every_key(key: str) -> None:
    kind, text = option_keys()[key]
    made = parse(f"h100,{key}={VALUES[kind]}")
    assert made.keys == ((key, VALUES[kind]),)
    assert text


def test_the_symbols_decide_on_the_library() -> None:
    libraries = {parse(f"h100,symbols={which}").library for which in ("v1", "v2", "all")}
    assert len(libraries) == 3
    assert all(library.name == "libnvidia-ml.so.1" and library.exists() for library in libraries)
    assert parse("h100").library == parse("h100,symbols=all").library


@pytest.mark.parametrize(
    ("text", "minors", "expected"),
    [
        ("h100x4", [0, 2], "h100x4,visible=0+2"),
        ("h100x4", [3, 9], "h100x4,visible=3"),
        ("h100x4,visible=1+2", [0, 2], "h100x4,visible=2"),
        ("h100x3,minors=2+0+5", [5, 2], "h100x3,minors=2+0+5,visible=0+2"),
        ("h100x2,lost=1,seed=3", [1], "h100x2,lost=1,seed=3,visible=1"),
    ],
)
def test_only_some_minor_numbers(text: str, minors: list[int], expected: str) -> None:
    assert parse(text).with_minors(minors) == expected
    assert parse(expected).count == parse(text).count


def test_no_gpu_left() -> None:
    with pytest.raises(ValueError, match=r"none of the simulated GPUs .* theirs are 2, 0"):
        parse("h100x2,minors=2+0").with_minors([1])


@pytest.mark.parametrize(
    ("knobs", "expected"),
    [
        ({}, "h100x2"),
        ({"lost": 1}, "h100x2,lost=1"),
        ({"lost": [0, 1], "grow": True, "garbage": False}, "h100x2,lost=0+1,grow=1,garbage=0"),
        ({"crash": "nvmlDeviceGetName"}, "h100x2,crash=nvmlDeviceGetName"),
    ],
)
def test_described_by_keywords(knobs: dict[str, object], expected: str) -> None:
    assert testing.describe("h100", 2, **knobs) == expected


def test_the_parts_of_the_package_are_where_they_are_looked_for() -> None:
    from nvsandbox import process

    assert process.PROGRAM.exists()
    assert (process.PROGRAM.parent / "sim").samefile(simulate.lib_folder())
