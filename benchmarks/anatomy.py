#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What one fast call is made of: a temperature, directly and through nvsandbox, from an NVML that does nothing.

Prints two tables. Times by substitution: pynvml's function as a whole, and the library's function that it calls alone,
with arguments that are there already; the same request and reply between two C programs; what the CPUs take to hand a
cache line over and back. And instructions in the caller's process, as valgrind counts them: runs of N and of 2N calls,
whose difference by N is one call's. What the inlined functions of our own C are is told by their lines. Needs
CAP_SYS_ADMIN (the host's /dev is a stand-in), a C compiler, meson, and valgrind for the second table.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import functools
import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

import bench
import host
from exchange import exchange_ns
from measure import batch, interleave, spread
from ways import Target, Ways

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent

Counts = dict[tuple[str, str], float]
"""Instructions by object (a file's name) and function; that is empty where only the object is of interest."""

OWN = ("_fast.abi3.so", "_core.abi3.so")

STEPS = {
    "what the call is": "function_call call_fast find_plan fits take_int take_scalar word_at plan_release",
    "the thread's lane": "find_lane nvs_lane_enter nvs_lane_leave nvs_lane_frame",
    "writing the request": "write_request",
    "sending it": "nvs_lane_send nvs_futex_wake",
    "waiting, as long as it takes": "await nvs_lane_await nvs_lane_spin nvs_lane_spins nvs_lane_answered relax look "
    "learn nap at_work_elsewhere nvs_lane_taken nvs_lane_sleep futex_wait least",
    "the clock": "now_ns",
    "reading the reply": "nvs_lane_reply read_reply nvs_reply_read",
    "the latency histogram": "latency_quick latency_count nvs_latency_slot",
}
"""What our functions in C are for."""


# ---- what runs in a process of its own


def _alone(ways: Ways, way: str) -> tuple[Any, tuple[Any, ...]]:
    """The function of the library that pynvml's function calls, and what it passes."""
    nvml = ways.module(way)
    reference = ctypes.byref(ctypes.c_uint())
    return nvml._nvmlGetFunctionPointer("nvmlDeviceGetTemperature"), (ways.handles(way)[0], ctypes.c_int(0), reference)


def times(library: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of one call, by what is called."""
    with Ways(Target(library), ["direct", "shm"]) as ways:
        batches = {}
        for way in ways.names:
            batches[way] = batch(*ways.function(way, "temperature"))
            batches[f"{way}, library's function"] = batch(*_alone(ways, way))
        return {name: [*values.values()] for name, values in interleave(batches, rounds, 0.004).items()}


def repeat(library: str, way: str, count: int, fast: str) -> None:
    """So many calls, and little else; with the short way from the file `fast`."""
    loader = importlib.machinery.ExtensionFileLoader("nvsandbox._fast", fast)
    spec = importlib.util.spec_from_file_location("nvsandbox._fast", fast, loader=loader)
    assert spec is not None
    sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    with Ways(Target(library), [way]) as ways:
        batch(*ways.function(way, "temperature"))(count)


# ---- counting


@functools.cache
def _functions(path: str) -> list[tuple[int, str]]:
    """Where the functions of a C file of ours begin: by a name at the beginning of a line, below that of its type."""
    found = []
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        start = re.match(r"(?:static inline [\w ]+\*?\s?\**)?(\w+) \(", line)
        if start:
            found.append((number, start[1]))
    return found


def _function_at(path: str, line: int) -> str:
    name = "?"
    for begin, function in _functions(path):
        if begin > line:
            break
        name = function
    return name


def _source(path: str) -> str | None:
    """Our own file that the compiler calls `path`; None for one of the system's."""
    _, there, rest = path.rpartition("csrc/")
    return str(ROOT / "csrc" / rest) if there and (ROOT / "csrc" / rest).exists() else None


def parsed(text: str) -> Counts:
    """Instructions in a callgrind file, without those of what is called: by function in our own objects, inlined ones
    too. Copies that the compiler has made of memcpy are its caller's."""
    counts: Counts = collections.defaultdict(float)
    binary = file = function = ""
    called = False
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key == "ob":
            binary = Path(value).name
        elif key in ("fl", "fi", "fe"):
            file = value
        elif key == "fn":
            function = value
        elif key == "calls":
            called = True  # the next line is the called function's
        elif line[:1].isdigit():
            number, cost = line.split()[:2]
            if called:
                called = False
                continue
            name = ""
            if binary in OWN:
                source = _source(file)
                name = _function_at(source, int(number)) if source else function.partition("'")[0]
            counts[binary, name] += int(cost)
    return counts


def counted(library: str, way: str, count: int, fast: Path, folder: Path) -> Counts:
    """Instructions of one call."""
    runs = []
    for calls in (count, 2 * count):
        out = folder / f"{way}-{calls}"
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "--compress-strings=no",
                   "--compress-pos=no", sys.executable, str(HERE / "anatomy.py"), "--repeat", way, str(calls),
                   str(fast), "--library", library]  # fmt: skip
        # Tables of hashes are the same in both runs.
        done = subprocess.run(
            command, cwd="/", env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise SystemExit(f"under valgrind: {done.stderr[-2000:]}")
        runs.append(parsed(out.read_text()))
    few, many = runs
    return {key: (many[key] - few.get(key, 0)) / count for key in many}


def built(folder: Path) -> Path:
    """The package's C parts in `folder`, compiled as pip does it, and with the lines of the source."""
    _do("meson", "setup", folder, ROOT, "-Dtests=true", "-Dbuildtype=release", "-Ddebug=true", "-Db_ndebug=if-release")
    _do("meson", "compile", "-C", folder)
    return next(folder.glob("**/_fast.abi3.so"))


def lane_ns(build: Path) -> str:
    """The round trip between two C programs, as tests/native/worker/bench_lane.c measures it."""
    text = _do("meson", "test", "-C", build, "--no-rebuild", "--benchmark", "--verbose", "worker lane")
    found = re.search(r"\blane: p50 (\d+) ns", text)
    assert found, text
    return found[1]


def _do(*command: object) -> str:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


# ---- saying it


def _cell(seconds: list[float]) -> str:
    found = spread(seconds)
    return " | ".join(f"{found[key] * 1e9:.0f}" for key in ("median", "q1", "q3"))


def _difference(whole: list[float], part: list[float]) -> list[float]:
    return [a - b for a, b in zip(whole, part, strict=True)]


def print_times(found: dict[str, list[float]], lane: str, exchanges: list[int | None]) -> None:
    print("| ns | median | q1 | q3 |\n| --- | --- | --- | --- |")
    for way, title in (("direct", "direct"), ("shm", "nvsandbox")):
        whole, part = found[way], found[f"{way}, library's function"]
        print(f"| {title}: pynvml's function | {_cell(whole)} |")
        print(f"| of that the library's function, arguments at hand | {_cell(part)} |")
        print(f"| the rest: pynvml's Python, making arguments | {_cell(_difference(whole, part))} |")
    print(f"| request and reply between two C programs (p50) | {lane} | | |")
    print(f"| a cache line over and back, before and after | {' and '.join(map(str, exchanges))} | | |")


def print_counts(found: dict[str, Counts]) -> None:
    """What is less than one instruction a call is left out."""
    rows: dict[str, dict[str, float]] = collections.defaultdict(lambda: dict.fromkeys(found, 0.0))
    step_of = {function: step for step, functions in STEPS.items() for function in functions.split()}
    for way, counts in found.items():
        for (binary, function), number in counts.items():
            rows[step_of.get(function, f"{binary} {function}") if binary in OWN else binary][way] += number
    print("\n| instructions | direct | nvsandbox |\n| --- | --- | --- |")
    # Ours come last, in their order in time.
    order = list(STEPS)
    for row in sorted(
        rows, key=lambda row: (row in STEPS, order.index(row) if row in STEPS else -sum(rows[row].values()))
    ):
        if max(rows[row].values()) >= 1:
            print(f"| {row} | {rows[row]['direct']:.0f} | {rows[row]['shm']:.0f} |")
    print(f"| **all** | {sum(found['direct'].values()):.0f} | {sum(found['shm'].values()):.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100, help="batches of each, for the times (%(default)s)")
    parser.add_argument("--calls", type=int, default=2000, help="calls to count instructions of (%(default)s)")
    parser.add_argument("--library", help=argparse.SUPPRESS)
    parser.add_argument("--repeat", nargs=3, metavar=("WAY", "COUNT", "FAST"), help=argparse.SUPPRESS)
    parser.add_argument("--times", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.library:
        host.play_host()
        if arguments.repeat:
            way, count, fast = arguments.repeat
            repeat(arguments.library, way, int(count), fast)
        else:
            json.dump(times(arguments.library, arguments.rounds), sys.stdout)
        return
    if not host.can_play_host():
        sys.exit("needs CAP_SYS_ADMIN: direct calls must not touch the real /dev")
    with tempfile.TemporaryDirectory(prefix="nvsandbox-anatomy-") as name:
        folder = Path(name)
        if not bench.compile_all(folder):
            sys.exit("needs a C compiler")
        library = str(folder / "null" / "libnvidia-ml.so.1")
        exchanges = [exchange_ns(str(folder / "exchange.so"))]
        command = [sys.executable, __file__, "--times", "--library", library, "--rounds", str(arguments.rounds)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        fast = built(folder / "build")
        lane = lane_ns(folder / "build")
        exchanges.append(exchange_ns(str(folder / "exchange.so")))
        print_times(json.loads(done.stdout), lane, exchanges)
        if shutil.which("valgrind"):
            print_counts({way: counted(library, way, arguments.calls, fast, folder) for way in ("direct", "shm")})
        else:
            print("\nvalgrind is not installed: no instructions")


if __name__ == "__main__":
    main()
