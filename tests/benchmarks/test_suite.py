# SPDX-License-Identifier: Apache-2.0
"""The benchmark suite measures what it says: every way gives the same answers, and a run becomes a table."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from host import can_play_host, require

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
TESTS = Path(__file__).resolve().parents[1]

WAYS = ["direct", "shm", "routed", "pipe", "worker", "rpyc", "manager", "fork", "unshare", "bwrap"]
OPTIONAL = {"rpyc", "bwrap"}

ANSWERS = """
import json, os, sys
sys.path[:0] = sys.argv[1:3]
import host
host.play_host()
from ways import Target, Ways
from workloads import WORKLOADS
target, query, names = Target(*json.loads(sys.argv[3])), sys.argv[4], sys.argv[5].split()
before = set(os.listdir("/dev"))
with Ways(target, [name for name in names if name != "direct"], query) as ways:
    found = {name: {key: ways.answer(name, key, 1) for key in WORKLOADS} for name in ways.names}
    print("asked", *ways.names, file=sys.stderr)
new = sorted(set(os.listdir("/dev")) - before)
with Ways(target, ["direct"]) as direct:
    found["direct"] = {key: direct.answer("direct", key, 1) for key in WORKLOADS}
json.dump({"answers": found, "missing": ways.missing, "new": new}, sys.stdout)
"""


def run(*command: object, timeout: float = 100) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, command)], cwd="/", capture_output=True, text=True, timeout=timeout, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The do-nothing libraries and the program that asks."""
    require(can_play_host(), "needs CAP_SYS_ADMIN, to make mount namespaces")
    require(shutil.which("cc") or shutil.which("gcc"), "needs a C compiler")
    folder = tmp_path_factory.mktemp("built")
    run(BENCHMARKS / "bench.py", "--compile", folder)
    return folder


@pytest.fixture(scope="module")
def simulator() -> str:
    return run("-c", "import nvsandbox; print(nvsandbox.__path__[0])").strip() + "/sim/libnvidia-ml.so.1"


@pytest.mark.parametrize("simulate", ["", "h100x2,frozen=1,procs=100"], ids=["null", "simulator"])
def test_all_ways_give_the_same_answers(built: Path, simulator: str, simulate: str) -> None:
    """And all of them, direct calls apart, leave the host's /dev as it is, or they would be no alternatives."""
    library = simulator if simulate else str(built / "null" / "libnvidia-ml.so.1")
    target = json.dumps([library, simulate])
    text = run("-c", ANSWERS, BENCHMARKS, TESTS, target, built / "nvml-query", " ".join(WAYS))
    found: dict[str, Any] = json.loads(text)
    assert found["missing"].keys() <= OPTIONAL, found["missing"]
    assert found["answers"].keys() == set(WAYS) - found["missing"].keys()
    direct = found["answers"]["direct"]
    assert len(direct["processes"]) == 100
    assert len(direct["fields"]) == 50
    for way, answers in found["answers"].items():
        assert answers == direct, way
    assert found["new"] == []


def test_a_run_becomes_a_table(built: Path, tmp_path: Path) -> None:
    """A quick one, of the parts that show most."""
    parts = ["calls-null", "scrape", "startup-steps", "memory"]
    arguments = [argument for part in parts for argument in ("--part", part)]
    arguments += ["--quick", "--built", str(built), "--out", str(tmp_path), "--way", "shm", "--way", "worker"]
    text = run(BENCHMARKS / "bench.py", *arguments)
    summary = json.loads((tmp_path / "bench.json").read_text())
    assert summary["failed"] == []
    if len(os.sched_getaffinity(0)) > 1:
        assert summary["exchange_ns"].keys() == set(parts)
        assert all(0 < time < 1e9 for times in summary["exchange_ns"].values() for time in times)
        # Each round belongs to one distance of the CPUs, which the table tells apart.
        calls = [entry for entry in summary["results"] if entry["part"] == "calls, null"]
        # On a busy machine the distance is not found in every round.
        known = {entry["case"]: entry["n"] for entry in calls if entry["way"] == "exchange"}
        assert len(known) == 5
        assert all(0 < rounds <= 5 for rounds in known.values())
        for entry in calls:
            if entry["way"] == "shm":
                rounds = sum(found["n"] for found in entry["distance"].values())
                assert rounds == entry["n"] or rounds <= known[entry["case"]] < 5
                for name, found in entry["distance"].items():
                    assert (found["exchange"]["median"] <= 250e-9) == (name == "near")
        assert "| temperature | near |" in text or "| temperature | far |" in text
    assert {(entry["part"], entry["way"]) for entry in summary["results"]} >= {
        ("calls, null", "direct"),
        ("calls, null", "shm"),
        ("calls, null", "worker"),
        ("scrape", "shm"),
        ("memory", "shm"),
    }
    # The times of a start's steps, each of which is there, add up.
    steps = {entry["case"]: entry for entry in summary["results"] if entry["part"] == "start-up, step by step"}
    assert {"seccomp", "verification", "library", "second call", "all of it"} <= steps.keys()
    assert all(entry["q1"] > 0 for entry in steps.values())
    for entry in summary["results"]:
        assert 0 < entry["q1"] <= entry["median"] <= entry["q3"] or entry["part"] == "memory", entry
        if entry["way"] == "direct":
            assert entry["ratio"]["median"] == 1
    scrape = next(entry for entry in summary["results"] if entry["part"] == "scrape")
    assert scrape["case"] == "8 GPUs, 488 calls"
    assert text.startswith("# What a call costs")
    assert (tmp_path / "bench.md").read_text().strip() == text.strip()
    assert "| temperature / direct, NVML doing nothing | at most 1.5 |" in text

    # The README's chart needs no library that draws.
    chart = (tmp_path / "headline.svg").read_text()
    bars = re.findall(r'class="(direct|own|other)"[^>]* width="([0-9.]+)"', chart)
    # From short to long, whichever those are: in a run as quick as this nvsandbox may come before a direct call.
    assert sorted(kind for kind, _ in bars) == ["direct", "other", "own"]
    assert [float(width) for _, width in bars] == sorted(float(width) for _, width in bars)

    page = tmp_path / "page.md"
    page.write_text("before\n<!-- targets -->\nof yesterday\n<!-- end of targets -->\nafter\n")
    run(BENCHMARKS / "bench.py", "--fill", page, "--baseline", tmp_path / "bench.json")
    filled = page.read_text()
    assert filled.startswith("before\n<!-- targets -->\n")
    assert filled.endswith("<!-- end of targets -->\nafter\n")
    assert "at most 1.5" in filled
    assert "of yesterday" not in filled


COMPARED = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import bench
def summary(*figures):
    return {"failed": [], "results": [
        {"part": "scrape", "case": "1", "way": "shm", "unit": "s", "ratio": {"median": figures[0]}},
        {"part": "threads", "case": "4", "way": "shm", "unit": "calls/s", "ratio": {"median": figures[1]}},
        {"part": "scrape", "case": "1", "way": "worker", "unit": "s", "ratio": {"median": figures[2]}},
    ]}
runs, asked = [summary(*figures) for figures in json.loads(sys.argv[3])], []
bench.run = lambda parts, settings: (asked.append(parts), runs.pop(0))[1]
baseline = Path(sys.argv[2])
baseline.write_text(json.dumps(summary(2.0, 0.8, 10)))
print(bench.check(baseline, {"quick": False}), json.dumps(asked))
"""


@pytest.mark.parametrize(
    ("runs", "status", "asked"),
    [
        pytest.param([[2.2, 0.75, 99]], 0, 1, id="within 15 %, and others do not count"),
        pytest.param([[2.4, 0.8, 10], [2.1, 0.8, 10]], 0, 2, id="worse once"),
        pytest.param([[2.4, 0.8, 10], [2.1, 0.6, 10]], 0, 2, id="another one the second time"),
        pytest.param([[2.4, 0.8, 10], [2.5, 0.8, 10], [2.4, 0.8, 10]], 1, 3, id="worse three times"),
        pytest.param([[2.0, 0.6, 10], [2.0, 0.6, 10], [2.0, 0.65, 10]], 1, 3, id="less throughput three times"),
        pytest.param([[1.0, 1.6, 10]], 0, 1, id="better"),
    ],
)
def test_what_counts_as_worse(tmp_path: Path, runs: list[list[float]], status: int, asked: int) -> None:
    text = run("-c", COMPARED, BENCHMARKS, tmp_path / "baseline.json", json.dumps(runs))
    found, _, parts = text.splitlines()[-1].partition(" ")
    assert int(found) == status, text
    calls = json.loads(parts)
    assert len(calls) == asked
    assert all(len(again) == 1 for again in calls[1:])


# The do-nothing library, but in a worker, where it is busy for a while: so only what goes through nvsandbox is slower.
SLOWED = '-DDELAY_NS=(strcmp(program_invocation_short_name, "nvsandbox-worker") == 0 ? 40000000 : 0)'


def test_a_slow_down_is_found(built: Path, tmp_path: Path) -> None:
    """By the program as a whole, with calls that are really slower. In the run that they are compared with each ratio
    is 40 000: so short a run scatters, on a busy machine up to 30 000, and only the slow-down (to 100 000)
    is to decide."""
    quick = [BENCHMARKS / "bench.py", "--quick", "--part", "calls-null", "--way", "shm"]
    run(*quick, "--built", built, "--out", tmp_path)
    baseline = tmp_path / "bench.json"
    before = json.loads(baseline.read_text())
    for entry in before["results"]:
        entry["ratio"]["median"] = 40_000
    baseline.write_text(json.dumps(before))
    quick += ["--check", "--baseline", baseline]
    assert "no ratio is worse by more than 15 %" in run(*quick, "--built", built)

    slowed = tmp_path / "slowed"
    shutil.copytree(built, slowed)
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None
    command = [compiler, "-std=gnu11", "-D_GNU_SOURCE", "-include", "errno.h", SLOWED, "-shared", "-fPIC"]
    command += [str(BENCHMARKS / "null_nvml.c"), "-o", str(slowed / "null" / "libnvidia-ml.so.1")]
    subprocess.run(command, check=True)
    arguments = [sys.executable, *map(str, quick), "--built", str(slowed)]
    done = subprocess.run(arguments, cwd="/", capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1, f"{done.stdout}\n{done.stderr}"
    found = re.search(r"^worse: calls, null, temperature, shm: ([0-9.]+) before, now (.*)$", done.stdout, re.MULTILINE)
    assert found, done.stdout
    again = [float(figure) for figure in found[2].split(", ")]
    assert len(again) == 3
    assert min(again) > 1.15 * float(found[1])


TURNS = """
import sys; sys.path.insert(0, sys.argv[1])
import measure
turns = []
def way(name, seconds):
    def run(times):
        turns.append((name, times))
        return times * seconds
    return run
ways = {"null": way("null", 4e-7), "2 ms": way("2 ms", 0.002), "5 ms": way("5 ms", 0.005), "25 ms": way("25 ms", 0.025)}
measure.interleave(ways, 4, 0.004)
print(turns[-26:])
"""


def test_a_batch_begins_with_calls_that_are_not_counted() -> None:
    """Else the first call of one or two, which comes after others have had the CPUs, pays for waking its worker. What
    takes part in every fourth round only has none to wake, or does not show it."""
    turns: list[tuple[str, int]] = ast.literal_eval(run("-c", TURNS, BENCHMARKS))
    first = [("null", 50), ("null", 10_000), ("2 ms", 1), ("2 ms", 2), ("5 ms", 1), ("5 ms", 1)]
    first += [("25 ms", 1), ("25 ms", 1)]
    assert turns[:8] == first
    for place, name in enumerate(["null", "2 ms", "5 ms"]):
        assert [turn for turn in turns if turn[0] == name] == first[2 * place : 2 * place + 2] * 4


def test_a_comparison_of_nothing_is_none(tmp_path: Path) -> None:
    """It is not success where the run from before has nothing of what is measured now."""
    script = COMPARED.replace("summary(2.0, 0.8, 10)", '{"results": []}')
    text = run("-c", script, BENCHMARKS, tmp_path / "baseline.json", json.dumps([[2.0, 0.8, 10]]))
    assert text.split()[0] == "2"


CALLGRIND = """\
version: 1
events: Ir
ob=/x/_fast.abi3.so
fl={root}/csrc/core/lane.c
fn=nvs_lane_enter
{enter} 5
fi=/usr/include/string.h
7 3
cob=/lib/libc.so.6
cfi=???
cfn=memcpy
calls=2 0
{enter} 900

ob=/lib/libc.so.6
fl=???
fn=memcpy
0 11
"""


def test_instructions_are_counted_once() -> None:
    """Those of a called function are its own; of inlined code of the system, whose function it is in."""
    root = BENCHMARKS.parent
    lines = (root / "csrc/core/lane.c").read_text().splitlines()
    enter = next(number for number, line in enumerate(lines, 1) if line.startswith("nvs_lane_enter")) + 3
    script = "import sys; sys.path.insert(0, sys.argv[1]); import anatomy, json; "
    script += "print(json.dumps([[*key, value] for key, value in anatomy.parsed(sys.argv[2]).items()]))"
    found = json.loads(run("-c", script, BENCHMARKS, CALLGRIND.format(root=root, enter=enter)))
    assert found == [["_fast.abi3.so", "nvs_lane_enter", 8], ["libc.so.6", "", 11]]


def test_the_getters_of_a_gpu_can_be_compared(simulator: str) -> None:
    """The program for machines with a GPU, on the simulator."""
    require(can_play_host(), "needs CAP_SYS_ADMIN, to make mount namespaces")
    text = run(BENCHMARKS / "gpu_surface.py", "--simulate", "t4,frozen=1")
    assert "the sandbox agrees with direct calls" in text
