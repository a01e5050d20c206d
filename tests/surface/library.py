# SPDX-License-Identifier: Apache-2.0
"""The echo library, built, and a place to run a side in."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pynvml

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent / "native" / "echo" / "echo.c"
ALWAYS = ["nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags", "nvmlShutdown", "nvmlErrorString"]

# A mount namespace that plays the host: whatever makes nodes makes them here.
_HOST = r"""
set -e
t=$(mktemp -d)
mount -n -t tmpfs -o mode=755 tmpfs "$t"
for n in null zero full random urandom tty; do
    [ -e /dev/$n ] || continue
    : > "$t/$n"
    mount -n --bind /dev/$n "$t/$n"
done
mkdir "$t/shm" "$t/pts"
mount -n -t tmpfs -o mode=1777 tmpfs "$t/shm"
ln -s /proc/self/fd "$t/fd"
mount -n --move "$t" /dev
rmdir "$t"
exec "$@"
"""


def symbols() -> list[str]:
    """Every symbol that the installed pynvml asks for."""
    asked = re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', Path(pynvml.__file__).read_text())
    return sorted({*asked, *ALWAYS})


def build(folder: Path, exported: list[str]) -> Path:
    """The echo library with these symbols."""
    (folder / "symbols.def").write_text("".join(f"SYMBOL ({name})\n" for name in exported))
    path = folder / "libnvidia-ml.so.1"
    compiler = os.environ.get("CC") or shutil.which("cc") or "gcc"
    flags = ["-std=gnu11", "-O1", "-g", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run([compiler, *flags, f"-I{folder}", "-o", str(path), str(SOURCE)], check=True)
    return path


@functools.lru_cache(maxsize=1)
def host_prefix() -> list[str] | None:
    """What to put before a command so that it runs in a mount namespace with a /dev of its own; None: not possible."""
    for flags in (["-m"], ["-r", "-m"]):
        prefix = ["unshare", *flags, "--propagation", "private", "sh", "-c", _HOST, "sh"]
        if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0:
            return prefix
    return None


def side(mode: str, cases: list[Any], timeout: float = 120, env: dict[str, str] | None = None, **options: str) -> Any:
    """Runs one side, in a throwaway host where there can be one, and returns what it found."""
    with tempfile.TemporaryDirectory(prefix="surface-") as name:
        folder = Path(name)
        (folder / "cases").write_text(json.dumps(cases))
        code = (
            f"import sys; sys.path.insert(0, {str(HERE.parent)!r}); from surface import side; side.main(sys.argv[1:])"
        )
        command = [sys.executable, "-c", code, mode, str(folder / "cases"), str(folder / "results")]
        command += [f"{key}={value}" for key, value in options.items()]
        prefix = [] if mode == "record" else host_prefix()
        if prefix is None:
            # The echo library makes no nodes; the simulator does, and must not on the host.
            assert options.get("kind") != "simulated", "no mount namespace can be had to run this in"
            prefix = []
        done = subprocess.run(
            [*prefix, *command],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            cwd="/",
            env={**os.environ, **(env or {})},
        )
        if done.returncode != 0:
            raise AssertionError(f"the {mode} side ended with {done.returncode}:\n{done.stderr[-4000:]}")
        return json.loads((folder / "results").read_text())


def recorded(candidates: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of the cases that there are, with the calls that pynvml makes for each."""
    expected = side("record", candidates)
    return [{**case, "expect": text} for case, text in zip(candidates, expected, strict=True) if text is not None]
