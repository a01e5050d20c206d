#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a call costs: nvsandbox beside direct pynvml and the other ways to isolate NVML.

``make bench`` runs it and writes into benchmarks/results/: bench.json, bench.md, charts (SVG, where matplotlib is
installed) and pyperf.json.gz (where pyperf is; for ``python -m pyperf stats``, ``hist`` or ``compare_to``).
``make bench-check`` (``--check``) compares a new run with the one that is there, by ratios. Each part runs in a process
of its own, on a stand-in for the host (a mount namespace with a /dev of its own). Progress goes to stderr, the table to
stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import report
from exchange import exchange_ns

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"

PARTS = ["calls-null", "calls-sim", "delays", "single", "histogram", "threads", "scrape", "scaling",
         "startup", "startup-steps", "startup-big", "memory", "idle"]  # fmt: skip
REAL = ["calls-real", "scrape-real"]
# What decides for --check: the others take longer, or say nothing by their ratios.
CHECKED = ["calls-null", "delays", "threads", "scrape", "startup"]
WORSE = 1.15
TRIES = 3

_DELAYS = {"null": 0, "null-20us": 20_000, "null-200us": 200_000, "null-2ms": 2_000_000}
_PART = "import sys; sys.path.insert(0, sys.argv.pop(1)); import bench_parts; bench_parts.main()"


def say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def compile_all(folder: Path) -> bool:
    """Makes the do-nothing libraries and the program that asks in `folder`; False without a compiler."""
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if compiler is None:
        return False
    flags = ["-std=gnu11", "-O2", "-D_GNU_SOURCE"]
    for name, delay in _DELAYS.items():
        target = folder / name / "libnvidia-ml.so.1"
        target.parent.mkdir(parents=True, exist_ok=True)
        command = [compiler, *flags, f"-DDELAY_NS={delay}", "-shared", "-fPIC", "-fvisibility=hidden",
                   str(HERE / "null_nvml.c"), "-o", str(target)]  # fmt: skip
        subprocess.run(command, check=True)
    query = [compiler, *flags, str(HERE / "nvml_query.c"), "-o", str(folder / "nvml-query"), "-ldl"]
    subprocess.run(query, check=True)
    exchange = [compiler, *flags, "-pthread", "-shared", "-fPIC", str(HERE / "exchange.c"), "-o",
                str(folder / "exchange.so")]  # fmt: skip
    subprocess.run(exchange, check=True)
    return True


def found_libraries(folder: Path, real: bool) -> dict[str, str]:
    """The libraries by name, those that were made in `folder` among them."""
    made = {path.parent.name: str(path) for path in folder.glob("*/libnvidia-ml.so.1")}
    return {"sim": simulator_library(), **made, **({"real": driver_library()} if real else {})}


def simulator_library() -> str:
    code = "import nvsandbox; print(nvsandbox.__path__[0])"
    done = subprocess.run([sys.executable, "-c", code], cwd="/", stdout=subprocess.PIPE, text=True, check=True)
    return f"{done.stdout.strip()}/sim/libnvidia-ml.so.1"


def driver_library() -> str:
    """Where the loader finds NVIDIA's library."""
    code = "import ctypes; ctypes.CDLL('libnvidia-ml.so.1'); print(open('/proc/self/maps').read())"
    done = subprocess.run([sys.executable, "-c", code], cwd="/", stdout=subprocess.PIPE, text=True, check=True)
    return next(line.split()[-1] for line in done.stdout.splitlines() if "libnvidia-ml" in line)


def run_part(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    start = time.monotonic()
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    if settings["real"]:
        environment["BENCH_PRIVATE_DEV"] = "0"
    # Not as a script: multiprocessing's spawned workers would import it too.
    command = [sys.executable, "-c", _PART, str(HERE), name, json.dumps(settings)]
    done = subprocess.run(command, cwd="/", env=environment, stdout=subprocess.PIPE, text=True, check=False)
    try:
        result: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        result = {"results": [], "missing": {}, "failed": f"{name} ended with {done.returncode}"}
        say(result["failed"])
    say(f"{name}: {time.monotonic() - start:.0f} s")
    return result


def machine() -> dict[str, Any]:
    model = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "cpu": model[1] if model else platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
    }


def versions() -> dict[str, str]:
    from importlib import metadata

    found = {}
    for name in ("nvsandbox", "nvidia-ml-py", "rpyc"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def run(parts: list[str], settings: dict[str, Any]) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "format": 1,
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "versions": versions(),
        "quick": settings["quick"],
        "results": [],
        "missing": {},
        "failed": [],
        "exchange_ns": {},
    }
    exchange = settings["exchange"]
    start = time.monotonic()
    for name in parts:
        before = exchange_ns(exchange) if exchange else None
        result = run_part(name, settings)
        summary["exchange_ns"][name] = [before, exchange_ns(exchange) if exchange else None]
        summary["results"] += result["results"]
        summary["missing"].update(result["missing"])
        summary["failed"] += [result["failed"]] if "failed" in result else []
    summary["seconds"] = round(time.monotonic() - start)
    return summary


# ---- comparing with a run from before


def ratios(summary: dict[str, Any]) -> dict[tuple[str, str, str], float]:
    """What is compared: nvsandbox's own ratios, such that more is worse."""
    found = {}
    for entry in summary["results"]:
        if entry["way"] in ("shm", "routed", "pipe") and "ratio" in entry:
            value = entry["ratio"]["median"]
            found[entry["part"], entry["case"], entry["way"]] = 1 / value if entry["unit"] == "calls/s" else value
    return found


def worse(old: dict[str, Any], new: dict[str, Any]) -> dict[tuple[str, str, str], tuple[float, float]]:
    before, after = ratios(old), ratios(new)
    return {key: (before[key], value) for key, value in after.items() if key in before and value > before[key] * WORSE}


def _parts_of(keys: Any) -> list[str]:
    names = {"calls, null": "calls-null", "slow NVML": "delays", "start-up": "startup"}
    wanted = {names.get(key[0], key[0]) for key in keys}
    return [name for name in CHECKED if name in wanted]


def check(baseline: Path, settings: dict[str, Any], parts: list[str] = CHECKED) -> int:
    """Exit status: 1 where something is worse by more than 15 % each time, of three; 2 where nothing was compared."""
    try:
        old = json.loads(baseline.read_text())
    except OSError as error:
        say(f"nothing to compare with: {error}")
        return 2
    if settings["quick"]:
        say("a quick run says little: its figures scatter")
    suspects: dict[tuple[str, str, str], list[float]] = {}
    for attempt in range(TRIES):
        new = run(parts, settings)
        if new["failed"]:
            return 1
        found = worse(old, new)
        if attempt == 0:
            compared = len(ratios(new).keys() & ratios(old).keys())
            say(f"{compared} ratios compared, {len(found)} worse")
            if compared == 0:
                say(f"{baseline} has none of what was measured: make it anew with the same parts and ways")
                return 2
            suspects = {key: [before, after] for key, (before, after) in found.items()}
        else:
            suspects = {key: [*values, found[key][1]] for key, values in suspects.items() if key in found}
        if not suspects:
            break
        parts = _parts_of(suspects)
    for key, (before, *after) in suspects.items():
        print(f"worse: {', '.join(key)}: {before:.2f} before, now {', '.join(f'{value:.2f}' for value in after)}")
    if not suspects:
        print("no ratio is worse by more than 15 %")
    return 1 if suspects else 0


# ----


def write(summary: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.json").write_text(_compact(summary))
    text = report.markdown(summary)
    (folder / "bench.md").write_text(text)
    print(text)
    for reason in (report.charts(summary, folder), report.pyperf_suite(summary, folder)):
        if reason:
            say(reason)


def _compact(summary: dict[str, Any]) -> str:
    """JSON with one measurement to a line, so that a change of it can be read."""

    def rounded(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.5g}")
        if isinstance(value, dict):
            return {key: rounded(item) for key, item in value.items()}
        return value

    head = {key: value for key, value in summary.items() if key != "results"}
    lines = ",\n".join("  " + json.dumps(rounded(entry)) for entry in summary["results"])
    return json.dumps(head, indent=1)[:-2] + f',\n "results": [\n{lines}\n ]\n}}\n'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for what is written (%(default)s)")
    parser.add_argument("--part", action="append", choices=[*PARTS, *REAL], help="this part only; may be repeated")
    parser.add_argument("--way", action="append", help="compare only these ways, beside direct calls")
    parser.add_argument("--rounds", type=int, default=40, help="batches of each way (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="a hundredth of the work, to see whether it runs")
    parser.add_argument("--real", action="store_true", help="a driver's own library too; without a stand-in for /dev")
    parser.add_argument("--check", action="store_true", help="compare with the committed run")
    parser.add_argument("--baseline", type=Path, default=RESULTS / "bench.json", help="for --check (%(default)s)")
    parser.add_argument("--compile", type=Path, metavar="FOLDER", help="only make the C parts, in this folder")
    parser.add_argument("--built", type=Path, metavar="FOLDER", help="use the C parts from this folder")
    parser.add_argument("--redraw", type=Path, metavar="JSON", help="table and charts of an earlier run, into --out")
    parser.add_argument(
        "--fill", type=Path, metavar="PAGE", help="put the table of targets of --baseline into this page"
    )
    arguments = parser.parse_args()

    if arguments.compile:
        return 0 if compile_all(arguments.compile) else 1
    if arguments.redraw:
        write(json.loads(arguments.redraw.read_text()), arguments.out)
        return 0
    if arguments.fill:
        arguments.fill.write_text(report.filled(arguments.fill.read_text(), json.loads(arguments.baseline.read_text())))
        return 0
    with tempfile.TemporaryDirectory(prefix="nvsandbox-bench-") as name:
        folder = arguments.built or Path(name)
        if not arguments.built:
            compile_all(folder)
        query, exchange = folder / "nvml-query", folder / "exchange.so"
        settings = {
            "quick": arguments.quick,
            "rounds": arguments.rounds,
            "libraries": found_libraries(folder.resolve(), arguments.real),
            "exchange": str(exchange.resolve()) if exchange.exists() else "",
            "query": str(query.resolve()) if query.exists() else "",
            "ways": [*arguments.way, "direct"] if arguments.way else None,
            "real": arguments.real,
        }
        if arguments.check:
            unchecked = sorted({*(arguments.part or [])} - {*CHECKED})
            if unchecked:
                parser.error(f"--check compares {', '.join(CHECKED)}, and not {', '.join(unchecked)}")
            return check(arguments.baseline, settings, arguments.part or CHECKED)
        parts = arguments.part or [*PARTS, *(REAL if arguments.real else [])]
        if "null" not in settings["libraries"]:
            say("no C compiler, so there is no do-nothing library: only the simulator is measured")
            parts = [part for part in parts if part in ("calls-sim", "scrape", "scaling", *REAL)]
        if os.getloadavg()[0] > 0.5:
            say(f"this machine is not idle (load {os.getloadavg()[0]:.1f}): the figures will scatter")
        summary = run(parts, settings)
        write(summary, arguments.out)
    return 1 if summary["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
