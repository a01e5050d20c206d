# SPDX-License-Identifier: Apache-2.0
"""Every getter of the installed pynvml on a real GPU, direct and through both transports: do they agree?

``gpu_surface.py`` uses the driver's library; ``gpu_surface.py --simulate h100x2,frozen=1`` tries the program where
there is none. Functions that change anything are left out. What two direct runs disagree on (loads, clocks, times) must
have the same type or the same exception, everything else must be equal. Prints the differences and a summary; the exit
status is 0 if there are none.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from bench import driver_library, simulator_library
from surface import arguments, library

_TESTS = Path(__file__).resolve().parent.parent / "tests"
_CHANGES = re.compile(r"(?<=[a-z])(Set|Reset|Clear|Create|Remove|Destroy|Free|Freeze|Modify|Discover)(?![a-z])")


def getters() -> list[str]:
    return [name for name in arguments.functions() if "Get" in name and not _CHANGES.search(name)]


def real_side(mode: str, cases: list[Any], **options: str) -> Any:
    """As library.side, on this machine's own /dev: the driver's nodes are there."""
    with tempfile.TemporaryDirectory(prefix="surface-") as name:
        given, found = Path(name, "cases"), Path(name, "results")
        given.write_text(json.dumps(cases))
        code = f"import sys; sys.path.insert(0, {str(_TESTS)!r}); from surface import side; side.main(sys.argv[1:])"
        command = [sys.executable, "-c", code, mode, str(given), str(found), "kind=simulated"]
        command += [f"{key}={value}" for key, value in options.items()]
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=120, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"the {mode} side ended with {done.returncode}:\n{done.stderr[-3000:]}")
        return json.loads(found.read_text())


def sides(description: str | None) -> Callable[[str, list[Any]], Any]:
    if description is None:
        path = driver_library()
        return lambda mode, cases: real_side(mode, cases, library=path)
    path = simulator_library()

    def side(mode: str, cases: list[Any]) -> Any:
        options = {"library": path} if mode == "direct" else {"simulate": description}
        return library.side(mode, cases, env={"NVSANDBOX_SIM": description}, kind="simulated", **options)

    return side


def shape(value: Any) -> Any:
    """What stays of a result whose figures change from moment to moment."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items() if key != "raw"}
    if isinstance(value, list):
        return [shape(item) for item in value[:1]]
    return type(value).__name__


def difference(first: Any, second: Any, sandboxed: Any) -> str:
    """What is wrong with the sandboxed outcome, given two direct ones."""
    if first == second:
        return "" if sandboxed == first else f"direct {first}\n      sandbox {sandboxed}"
    if shape(sandboxed) in (shape(first), shape(second)):
        return ""
    return f"direct {shape(first)}\n      sandbox {shape(sandboxed)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--simulate", help="a description of simulated GPUs")
    simulate = parser.parse_args().simulate
    ask = sides(simulate)

    def side(mode: str, cases: list[Any]) -> list[Any]:
        """The outcomes alone: which way a call took is not what is compared."""
        return [one and {key: value for key, value in one.items() if key != "paths"} for one in ask(mode, cases)]

    cases = [
        {"function": name, "optional": optional, "results": [], "choice": choice}
        for name in getters()
        for choice in ("first", "last")
        for optional in (False, True)
    ]
    first, second = side("direct", cases), side("direct", cases)
    made = sum(one is not None for one in first)
    returned = sum(one is not None and "result" in one for one in first)
    moving = sum(a != b for a, b in zip(first, second, strict=True))
    print(f"{made} calls of {len(getters())} functions; {returned} return a result, {moving} differ from run to run")
    wrong = 0
    for transport in ("shm", "pipe"):
        found = side(transport, cases)
        for case, a, b, c in zip(cases, first, second, found, strict=True):
            text = difference(a, b, c)
            if text:
                wrong += 1
                print(f"   {transport}: {case['function']} ({case['choice']}): {text[:600]}")
    print(f"{wrong} differences" if wrong else "the sandbox agrees with direct calls, over both transports")
    return 1 if wrong or returned == 0 else 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    sys.exit(main())
