# SPDX-License-Identifier: Apache-2.0
"""The simulator used directly, by pynvml alone: no sandbox."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from host import Host, require

SOURCES = Path(__file__).resolve().parents[2] / "csrc" / "sim"
STRICT = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Wstrict-prototypes", "-Werror"]

_PRELUDE = '''\
import ctypes, os, sys
import pynvml as p

def use(description, library=None):
    """pynvml on the simulator, initialised with this description."""
    os.environ["NVSANDBOX_SIM"] = description
    if library or p.nvmlLib is None:
        p.nvmlLib = ctypes.CDLL(library or os.environ["SIM_LIBRARY"])
    p.nvmlInit()
    return p

def gpu(index=0):
    return p.nvmlDeviceGetHandleByIndex(index)

def error_of(function, *arguments):
    """The NVML error that a call ends with, 0 for none."""
    try:
        function(*arguments)
    except p.NVMLError as error:
        return error.value
    return 0
'''


def compile_simulator(folder: Path, *flags: str) -> Path:
    """The library, built by hand from its sources alone."""
    target = folder / "libnvidia-ml.so.1"
    command = ["cc", "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-fPIC", "-fvisibility=hidden", *STRICT, "-shared"]
    command += ["-Wl,-soname,libnvidia-ml.so.1", *flags, *map(str, sorted(SOURCES.glob("*.c")))]
    subprocess.run([*command, "-o", str(target), "-lm", "-lpthread"], check=True)
    return target


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The three libraries by the symbols that they have: those of the installed package, else built for the tests."""
    asked = subprocess.run(
        [sys.executable, "-c", "import nvsandbox; print(nvsandbox.__file__)"],
        cwd="/",  # not the source tree, where this would find the sources
        check=False,
        capture_output=True,
        text=True,
    )
    if asked.returncode == 0:
        folder = Path(asked.stdout.strip()).parent / "sim"
        found = {"all": folder, "v1": folder / "v1", "v2": folder / "v2"}
        return {name: place / "libnvidia-ml.so.1" for name, place in found.items()}
    require(shutil.which("cc"), "needs the installed package, or a C compiler")
    folder = tmp_path_factory.mktemp("simulator")
    made = {"all": compile_simulator(folder)}
    for name in ("v1", "v2"):
        (folder / name).mkdir()
        made[name] = compile_simulator(folder / name, f"-Wl,--version-script={SOURCES}/symbols_{name}.map")
    return made


@pytest.fixture
def sim(host: Host, libraries: dict[str, Path], readable_folder: Path) -> Callable[..., Any]:
    """Runs a function on a stand-in for the host; in the module ``simhelp`` it finds ``use``, ``gpu``, ``error_of``,
    and pynvml as ``p``."""
    helper = readable_folder / "simhelp.py"
    if not helper.exists():
        helper.write_text(_PRELUDE)
    copies = {name: host.readable(path) for name, path in libraries.items()}

    def run(function: Callable[..., Any], **arguments: Any) -> Any:
        env = {"SIM_LIBRARY": copies["all"], "SIM_V1": copies["v1"], "SIM_V2": copies["v2"]}
        env["PYTHONPATH"] = str(readable_folder)
        return host.run(function, env=env, **arguments)

    return run
