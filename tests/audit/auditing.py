# SPDX-License-Identifier: Apache-2.0
"""``nvsandbox audit`` as a program of its own, whose /dev is the stand-in that all tests run on."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import host
from host import require


class Audit:
    """Runs audits of commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, *arguments: str, **more: Any) -> subprocess.Popen[str]:
        program = [sys.executable, "-m", "nvsandbox", "audit"]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([*program, *arguments], text=True, cwd="/", **{**pipes, **more})

    def run(self, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments, **more)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def report(self, *command: str, options: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
        """The report of a command, and its output as ``output``. The stand-in must be as it was."""
        before = host.listing(skip=lambda path: path.startswith(("/dev/pts/", "/dev/shm/")))
        file = self.folder / "report.json"
        done = self.run("--json", "--output", str(file), *options, "--", *command, **more)
        assert host.listing(skip=lambda path: path.startswith(("/dev/pts/", "/dev/shm/"))) == before
        found: dict[str, Any] = json.loads(file.read_text())
        found |= {"output": done.stdout, "errors": done.stderr, "status": done.returncode}
        return found


def compiled(source: str, target: Path) -> Path:
    """A C program, in a file that everybody may run."""
    require(shutil.which("cc"), "needs a C compiler")
    code = target.with_suffix(".c")
    code.write_text(source)
    subprocess.run(["cc", "-O1", "-o", target, code], check=True)
    target.chmod(0o755)
    return target


def names(change: dict[str, Any]) -> list[str]:
    """The processes' names of a change, innermost first."""
    return [process["name"] for process in change["by"]]
