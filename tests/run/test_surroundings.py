# SPDX-License-Identifier: Apache-2.0
"""What --driver-root and --simulate put into the program's environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from .conftest import HOW, Run, surroundings

VARIABLES = "import os; print({name: os.environ.get(name) for name in ('PATH', 'LD_LIBRARY_PATH', 'LD_PRELOAD')})"


@pytest.fixture
def driver_root(tmp_path: Path) -> Path:
    """A driver's tree: a library, nvidia-smi and nothing of another system."""
    root = tmp_path / "driver"
    (root / "usr/lib64").mkdir(parents=True)
    (root / "usr/lib64/libnvidia-ml.so.1").touch()
    (root / "usr/lib/nvidia/current").mkdir(parents=True)
    tool = root / "usr/lib/nvidia/current/nvidia-smi"
    tool.write_text("#!/bin/sh\necho driver $*\n")
    tool.chmod(0o755)
    (root / "usr/bin").mkdir()
    (root / "usr/bin/nvidia-smi").symlink_to("/usr/lib/nvidia/current/nvidia-smi")
    return root


def variables(run: Run, *options: str, **environment: str) -> dict[str, str | None]:
    done = run(*options, "--", sys.executable, "-c", VARIABLES, env={**surroundings(), **environment})
    assert done.returncode == 0, done.stderr
    found: dict[str, str | None] = eval(done.stdout)
    return found


def test_a_tree_of_the_driver_alone_comes_first(run: Run, driver_root: Path) -> None:
    found = variables(run, "--driver-root", str(driver_root), LD_LIBRARY_PATH="/present")
    assert found["LD_LIBRARY_PATH"] == f"{driver_root}/usr/lib64:/present"
    assert found["PATH"] == f"{driver_root}/usr/lib/nvidia/current:{os.environ['PATH']}"
    assert found["LD_PRELOAD"] is None
    assert run("--driver-root", str(driver_root), "--", "nvidia-smi", "-L").stdout == "driver -L\n"


def test_a_whole_system_takes_the_place_of_nothing(run: Run, driver_root: Path) -> None:
    """A driver container has a C library and programs of its own, which are not for the programs of this system."""
    (driver_root / "usr/lib64/libc.so.6").touch()
    (driver_root / "usr/lib/nvidia/current/sh").touch()
    done = run("--driver-root", str(driver_root), "--", "sh", "-c", "echo $PATH; echo $LD_PRELOAD; nvidia-smi -q")
    path, preloaded, output = done.stdout.splitlines()
    assert path == f"{os.environ['PATH']}:{driver_root}/usr/lib/nvidia/current"
    assert preloaded == f"{driver_root}/usr/lib64/libnvidia-ml.so.1"
    assert output == "driver -q"


def test_paths_that_separate_paths(run: Run, driver_root: Path) -> None:
    """A variable that can hold the path is taken, and where there is none it is said: the program would find another
    library, or none."""
    found = {}
    for name in ("a b", "a;b", "a:b"):
        root = driver_root.with_name(name)
        root.symlink_to(driver_root)
        found[name] = run("--driver-root", str(root), "--", sys.executable, "-c", VARIABLES, env=surroundings())
    blank, semicolon = (eval(found[name].stdout) for name in ("a b", "a;b"))
    assert (blank["LD_LIBRARY_PATH"], blank["LD_PRELOAD"]) == (f"{driver_root.parent}/a b/usr/lib64", None)
    preloaded = f"{driver_root.parent}/a;b/usr/lib64/libnvidia-ml.so.1"
    assert (semicolon["LD_LIBRARY_PATH"], semicolon["LD_PRELOAD"]) == (None, preloaded)
    assert found["a:b"].returncode == 125
    assert "no variable of the dynamic loader can hold such a path" in found["a:b"].stderr


def test_without_a_driver_root_nothing_is_added(run: Run) -> None:
    assert variables(run) == {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": None, "LD_PRELOAD": None}


@pytest.mark.parametrize("how", HOW)
def test_simulated_gpus(run: Run, how: tuple[str, ...]) -> None:
    tool = str(Path(sys.executable).parent / "gpustat")
    done = run(*how, "--simulate", "h100x8", "--", tool, "--json")
    assert done.stdout.count('"uuid"') == 8, done.stderr
    done = run(*how, "--simulate", "h100x8", "--devices", "0,2", "--", tool, "--json")
    assert done.stdout.count('"uuid"') == 2, done.stderr


def test_devices_cannot_be_made_by_the_program(run: Run) -> None:
    """At the step mount it may make nodes: of the GPUs that it is to see, and of no others."""
    script = "mknod /dev/nvidia2 c 195 2 && echo 2; mknod /dev/nvidia1 c 195 1 || echo not 1"
    assert run("--simulate", "h100x4", "--devices", "0,2", "--", "sh", "-c", script).stdout == "2\nnot 1\n"


def test_simulated_gpus_for_programs_that_use_nvsandbox(run: Run) -> None:
    """Their workers start without LD_LIBRARY_PATH. A library of the environment's is overruled for them as well."""
    script = "import nvsandbox\nwith nvsandbox.nvml_isolated() as nvml:\n    print(nvml.nvmlDeviceGetCount())"
    environment = {**surroundings(), "NVSANDBOX_LIBRARY": "/nowhere/libnvidia-ml.so.1"}
    for how, count in ((), "8\n"), (("--devices", "0,2"), "2\n"):
        done = run("--simulate", "h100x8", *how, "--", sys.executable, "-c", script, env=environment)
        assert (done.stdout, done.stderr) == (count, "")


def test_simulated_nodes_are_made_when_nvml_is_called(run: Run) -> None:
    script = (
        "import glob, pynvml\nprint(len(glob.glob('/dev/nvidia[0-9c]*')))\n"
        "pynvml.nvmlInit()\nprint(len(glob.glob('/dev/nvidia[0-9c]*')))"
    )
    for how, made in ((), "0\n9\n"), (("--user",), "0\n0\n"):
        assert run(*how, "--simulate", "h100x8", "--", sys.executable, "-c", script).stdout == made
