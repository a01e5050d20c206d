# SPDX-License-Identifier: Apache-2.0
"""Options that are right: what becomes of them, and where defaults come from. (Wrong ones: tests/bad_input.)"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nvsandbox import options
from nvsandbox.options import Options, make

GPU = "GPU-8f6d8a5a-0000-1111-2222-333344445555"


def test_defaults() -> None:
    assert make({}, {}) == Options()
    assert Options() == Options("/", None, None, "auto", None, False, 30.0, 20, "auto", None)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("driver_root", Path("/usr"), "/usr"),
        ("driver_root", "/usr/", "/usr"),
        ("driver_root", "/usr/../usr/lib", "/usr/lib"),
        ("dev_root", None, None),
        ("dev_root", "/dev", "/dev"),
        ("library", Path("/nowhere/lib.so"), "/nowhere/lib.so"),  # whether it is there is found out at the start
        ("devices", None, None),
        ("devices", [], ()),
        ("devices", [2, 0, 2], (0, 2)),
        ("devices", ("nvidia1", "/dev/nvidia0", "3"), (0, 1, 3)),
        ("devices", {GPU}, (GPU,)),
        ("devices", (item for item in ["00000000:65:00.0", "65:00.1"]), ("00000000:65:00.0", "65:00.1")),
        ("timeout", 5, 5.0),
        ("timeout", None, None),
        ("timeout", float("inf"), None),
        ("timeout", 0.001, 0.001),
        ("isolation", "guard", "guard"),
        ("transport", "pipe", "pipe"),
        ("privileged", True, True),
        ("restart", False, False),
        ("simulate", "h100x8,mig=1g.10gb*3", "h100x8,mig=1g.10gb*3"),
    ],
)
def test_value(name: str, value: object, expected: object) -> None:
    made = getattr(make({name: value}, {}), name)
    assert made == expected
    assert type(made) is type(expected)


def test_relative_paths_are_of_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's working directory is /, and the caller's may change."""
    monkeypatch.chdir(tmp_path)
    made = make({"library": "lib.so", "driver_root": ".", "dev_root": "."}, {})
    assert (made.library, made.driver_root, made.dev_root) == (f"{tmp_path}/lib.so", str(tmp_path), str(tmp_path))


@pytest.mark.parametrize(
    ("variable", "text", "name", "expected"),
    [
        ("NVSANDBOX_DRIVER_ROOT", "/usr", "driver_root", "/usr"),
        ("NVIDIA_DRIVER_ROOT", "/usr", "driver_root", "/usr"),
        ("NVSANDBOX_DEV_ROOT", "/usr", "dev_root", "/usr"),
        ("NVSANDBOX_LIBRARY", "/x/y", "library", "/x/y"),
        ("NVSANDBOX_ISOLATION", "user", "isolation", "user"),
        ("NVSANDBOX_DEVICES", "0,nvidia2", "devices", (0, 2)),
        ("NVSANDBOX_PRIVILEGED", "1", "privileged", True),
        ("NVSANDBOX_PRIVILEGED", "off", "privileged", False),
        ("NVSANDBOX_TIMEOUT", "2.5", "timeout", 2.5),
        ("NVSANDBOX_TIMEOUT", "none", "timeout", None),
        ("NVSANDBOX_RESTART", "0", "restart", False),
        ("NVSANDBOX_TRANSPORT", "pipe", "transport", "pipe"),
        ("NVSANDBOX_SIMULATE", "t4", "simulate", "t4"),
    ],
)
def test_environment(variable: str, text: str, name: str, expected: object) -> None:
    assert getattr(make({}, {variable: text}), name) == expected
    assert getattr(make({}, {variable: ""}), name) == getattr(Options(), name), "empty is as good as unset"


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("NVSANDBOX_TIMEOUT", "abc", "expected seconds, such as 5, or none for no limit"),
        ("NVSANDBOX_TIMEOUT", "-1", "timeout=-1.0: expected seconds above 0"),
        ("NVSANDBOX_RESTART", "maybe", "expected 1, 0, or how many restarts"),
        ("NVSANDBOX_PRIVILEGED", "maybe", "expected 1 or 0"),
    ],
)
def test_a_wrong_variable_says_what_would_be_right(variable: str, text: str, expected: str) -> None:
    with pytest.raises(ValueError, match=f"{variable}='{text}': {expected}"):
        make({}, {variable: text})


def test_every_option_has_a_variable() -> None:
    assert set(options._ENVIRONMENT) == set(Options.__dataclass_fields__) == set(options._CHECKS)
    for name, (variables, _) in options._ENVIRONMENT.items():
        assert variables[0] == f"NVSANDBOX_{name.upper()}"


def test_what_is_given_comes_before_the_environment() -> None:
    environment = {"NVSANDBOX_TIMEOUT": "5", "NVSANDBOX_DRIVER_ROOT": "/usr", "NVIDIA_DRIVER_ROOT": "/nonexistent"}
    assert make({"timeout": 7, "driver_root": "/etc"}, environment) == Options(timeout=7.0, driver_root="/etc")
    assert make({}, environment).driver_root == "/usr", "ours before NVIDIA's, which is not even looked at"


@pytest.mark.parametrize(
    ("given", "environment", "expected"),
    [
        ({"library": "/x"}, {"NVSANDBOX_SIMULATE": "t4"}, ("/x", None)),
        ({"simulate": "t4"}, {"NVSANDBOX_LIBRARY": "/x"}, (None, "t4")),
        ({"simulate": None}, {"NVSANDBOX_SIMULATE": "t4"}, (None, None)),
    ],
)
def test_library_and_simulate_exclude_each_other(
    given: dict[str, Any], environment: dict[str, str], expected: tuple[object, object]
) -> None:
    made = make(given, environment)
    assert (made.library, made.simulate) == expected


def test_equal_options_are_one_key() -> None:
    one = make({"devices": [0, 1], "timeout": 30}, {})
    other = make({"devices": ("1", "nvidia0")}, {})
    assert one == other
    assert len({one, other}) == 1
