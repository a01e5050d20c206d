#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Soak: faults by the thousand, calls by the million, callers that are killed, forks under load; and nothing left.

``make soak`` runs it at full size; ``--scale 0.01`` is a hundredth of that. Each part runs in a process of its own, on
a stand-in for the host (a mount namespace with a /dev of its own) where that is possible, with simulated GPUs. Progress
goes to stderr, the summary to stdout (Markdown) and into a folder (soak.json and soak.md). The exit status is 0
if every check has passed. What happens is drawn from ``--seed``; when it happens is up to the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent

PARTS = {
    "faults": "faults at random under calling threads",
    "notice": "how soon callers that are blocked hear of a death or a deadline",
    "calls": "calls, and sessions opened and closed",
    "killed": "SIGKILL of the caller at random moments",
    "forks": "forks under load",
}


def run_part(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "soak_parts.py"), name, str(arguments.scale), str(arguments.seed)]
    command.append(str(arguments.patience))
    start = time.monotonic()
    print(f"soak: {name}: {PARTS[name]}", file=sys.stderr, flush=True)
    # A folder of its own for temporary files: what is left there counts, and others use /tmp too.
    with tempfile.TemporaryDirectory(prefix="nvsandbox-soak-") as folder:
        os.chmod(folder, 0o1777)
        environment = {**os.environ, "TMPDIR": folder}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=False)
    try:
        result: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        result = {"counts": {}, "figures": {}, "failed": [f"the part ended with {done.returncode}"]}
    result["seconds"] = round(time.monotonic() - start, 1)
    for failure in result["failed"]:
        print(f"soak: {name}: FAILED: {failure}", file=sys.stderr)
    return result


def machine() -> dict[str, Any]:
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def markdown(summary: dict[str, Any]) -> str:
    where = summary["machine"]
    lines = [
        f"Soak at scale {summary['scale']:g}, seed {summary['seed']}: "
        f"{'every check passed' if summary['passed'] else 'FAILED'} "
        f"({where['cpus']} CPUs, {where['machine']}, kernel {where['kernel']}, Python {where['python']})",
    ]
    for name, result in summary["parts"].items():
        lines += ["", f"**{name}**: {PARTS[name]} ({result['seconds']:g} s)", "", "| | |", "|---|---|"]
        lines += [f"| {key} | {value} |" for key, value in {**result["counts"], **result["figures"]}.items()]
        lines += [f"| FAILED | {failure} |" for failure in result["failed"]]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        help="share of the full numbers (default 1); memory is judged from 0.2 on, and may grow by 1 MiB at any scale",
    )
    parser.add_argument("--seed", type=int, default=1, help="what is drawn follows from it (default 1)")
    parser.add_argument(
        "--patience", type=float, default=1.0, help="multiplies limits of time, for a machine that others use too"
    )
    parser.add_argument("--part", choices=PARTS, action="append", help="only this part; may be given several times")
    parser.add_argument("--out", type=Path, default=HERE.parent / "build" / "soak", help="folder for the summary")
    arguments = parser.parse_args()
    if not 0 < arguments.scale <= 100:
        parser.error("--scale: expected a number above 0, up to 100")
    if not 1 <= arguments.patience <= 100:
        parser.error("--patience: expected a number from 1 to 100")

    chosen = arguments.part or list(PARTS)
    summary: dict[str, Any] = {"scale": arguments.scale, "seed": arguments.seed, "machine": machine(), "parts": {}}
    for name in PARTS:
        if name in chosen:
            summary["parts"][name] = run_part(name, arguments)
    summary["passed"] = not any(result["failed"] for result in summary["parts"].values())

    text = markdown(summary)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "soak.json").write_text(json.dumps(summary, indent=2) + "\n")
    (arguments.out / "soak.md").write_text(text)
    print(text, end="")
    return 0 if summary["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
