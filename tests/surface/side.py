# SPDX-License-Identifier: Apache-2.0
"""One side of a comparison: a program of its own, so that the two sides share nothing.

    side.py MODE CASES RESULTS [OPTION=VALUE ...]

MODE is `record` (which calls does pynvml make?), `direct`, `shm` or `pipe`. CASES and RESULTS are JSON files.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml

from . import arguments, scenarios, shapes
from .describe import describe, describe_error
from .paths import Paths

# Not forwarded one to one by design: a session counts them itself.
LIFECYCLE = {"nvmlInit", "nvmlInitWithFlags", "nvmlShutdown"}


class NullSupply:
    """For recording: the shape of a handle does not depend on its value."""

    plausible = False

    def handle(self, kind: Any) -> Any:
        return kind()


class EchoSupply:
    """Handles of the echo library."""

    plausible = False

    def __init__(self, pointer: Any) -> None:
        self._handle = pointer("nvmlEchoHandle")
        self._identity = pointer("nvmlEchoIdentity")
        self.rng = random.Random(0)

    def handle(self, kind: Any) -> Any:
        made = kind()
        result = self._handle(shapes.handle_kind(kind), self.rng.randrange(8), ctypes.byref(made))
        if result != 0:
            raise RuntimeError(f"nvmlEchoHandle: {result}")
        return made

    def identify(self, handle: Any) -> Any:
        """The place of a handle in the library's table: 0 for NULL, -1 for none of its own."""
        index = ctypes.c_int(-2)
        result = self._identity(shapes.handle_kind(type(handle)), handle, ctypes.byref(index))
        return index.value if result == 0 else f"error {result}"


@contextlib.contextmanager
def opened(mode: str, options: dict[str, str]) -> Iterator[tuple[Any, Any]]:
    """The API of a side, initialised, and what gives a function pointer for any symbol."""
    if mode == "direct":
        pynvml.nvmlLib = ctypes.CDLL(options["library"])
        pynvml.nvmlInit()
        yield pynvml, pynvml._nvmlGetFunctionPointer
        return
    import nvsandbox

    privileged = options.pop("privileged", "") == "yes"
    # A sandbox that may restart its worker asks, on its own account, for the UUID of a handle that an index gave.
    with nvsandbox.nvml_isolated(transport=mode, privileged=privileged, restart=False, **options) as nvml:
        # The two ways in, each tested in one of the transports: what the block gives, and plain pynvml.
        api = nvml if mode == "shm" else pynvml
        yield api, api._nvmlGetFunctionPointer


def seeded(case: dict[str, Any]) -> random.Random:
    """The same numbers on both sides."""
    return random.Random("/".join(str(case[key]) for key in ("function", "optional", "seed")))


def record(cases: list[dict[str, Any]]) -> list[Any]:
    """For each case the expectations, in the echo library's words; None where the case does not exist."""
    found: list[Any] = []
    for case in cases:
        given = arguments.arguments(case["function"], case["optional"], NullSupply(), seeded(case))
        if given is None:
            found.append(None)
            continue
        recorder = shapes.Recorder(tuple(case["results"]))
        pynvml.nvmlLib = recorder
        pynvml._nvmlGetFunctionPointer_cache.clear()
        # Whatever pynvml's own code thinks of the answers is for the comparison to see.
        with contextlib.suppress(Exception):
            getattr(pynvml, case["function"])(*given)
        text = recorder.expectations(case["garbage"], case["seed"])
        found.append("" if case["function"] in LIFECYCLE else text)
    return found


def outcome(function: Any, given: list[Any], identify: Any) -> dict[str, Any]:
    """What a call does: its result or exception, and what it leaves in its arguments."""
    found: dict[str, Any] = {}
    try:
        found["result"] = describe(function(*given), identify)
    except Exception as error:
        found["raised"] = describe_error(error)
    # A handle's own bytes cannot change, and after a call that frees it nobody may ask about it.
    found["arguments"] = [None if shapes.is_opaque(type(item)) else describe(item, identify) for item in given]
    return found


def echo(cases: list[dict[str, Any]], mode: str, options: dict[str, str]) -> list[Any]:
    """Every case against the echo library."""
    found: list[Any] = []
    with opened(mode, options) as (api, pointer):
        expect = pointer("nvmlEchoExpect")
        supply = EchoSupply(pointer)
        paths = Paths(api.session) if mode == "shm" else None
        for case in cases:
            supply.rng = random.Random(case["seed"])
            given = arguments.arguments(case["function"], case["optional"], supply, seeded(case))
            assert given is not None
            expect(ctypes.c_char_p(case["expect"].encode()))
            function = getattr(api, case["function"])
            one = outcome(paths.counted(function) if paths else function, given, supply.identify)
            one["note"], one["digest"] = scenarios.received(pointer)
            one["paths"] = paths.found if paths else None
            found.append(one)
    return found


def main(argv: list[str]) -> None:
    mode, cases_path, results_path = argv[:3]
    options = dict(option.split("=", 1) for option in argv[3:])
    cases: Any = json.loads(Path(cases_path).read_text())
    kind = options.pop("kind", "echo")
    if mode == "record":
        found: Any = record(cases)
    elif kind == "echo":
        found = echo(cases, mode, options)
    elif kind == "scenarios":
        with opened(mode, options) as (api, pointer):
            found = scenarios.run(cases, api, pointer, EchoSupply(pointer))
    elif kind == "randomised":
        from . import randomised  # needs hypothesis

        # No call of its own initialises the direct way: it must not stand in the sandboxed one's way either.
        loaded = ctypes.CDLL(options["library"])
        with opened(mode, options) as (_, pointer):
            randomised.run(randomised.Way(lambda name: getattr(loaded, name)), randomised.Way(pointer), 120)
        found = []
    else:
        from . import simulated

        found = simulated.run(cases, mode, options)
    Path(results_path).write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
