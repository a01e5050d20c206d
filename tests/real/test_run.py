# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's nvidia-smi under `nvsandbox run`: the same output and exit status as directly, and nothing left behind."""

from __future__ import annotations

from typing import Any

import pytest
from host import DRIVER, Host, require

pytestmark = pytest.mark.real


def started(driver_root: str, runs: list[list[str] | None]) -> list[tuple[int, str, str, list[str]]]:
    """nvidia-smi with these options of `nvsandbox run`, or directly (None): status, output, errors, nodes made."""
    import glob
    import os
    import subprocess
    import sys

    import host

    found = []
    for options in runs:
        environment = dict(os.environ)
        if options is None:
            [library] = glob.glob(f"{driver_root}/usr/lib/*/nvidia/current/libnvidia-ml.so.1")
            environment["LD_LIBRARY_PATH"] = os.path.dirname(library)
            command = [f"{driver_root}/usr/lib/nvidia/current/nvidia-smi"]
        else:
            command = [sys.executable, "-m", "nvsandbox", "run", "--driver-root", driver_root, *options]
            command += ["--", "nvidia-smi"]
        before = host.listing()
        with host.watching() as watch:
            done = subprocess.run(command, capture_output=True, text=True, cwd="/", env=environment)
        made = [path for path in host.listing() if path not in before]
        found.append((done.returncode, done.stdout, done.stderr, sorted({*made, *watch.seen})))
    return found


def test_nvidia_smi(host: Host, real_library: str) -> None:
    require(list(DRIVER.glob("usr/lib/nvidia/current/nvidia-smi")), "needs NVIDIA's: run scripts/fetch-nvidia-nvml")
    steps: list[list[str] | None] = [[], ["--user"], ["--guard"], ["--lockdown"]]
    *inside, direct = host.run(started, driver_root=str(DRIVER), runs=[*steps, None])
    status, output, errors, made = direct
    assert status == 9
    assert "NVIDIA-SMI has failed" in output
    assert "/dev/nvidiactl" in made
    for step, found in zip(steps, inside, strict=True):
        assert found == (status, output, errors, []), step


def test_the_report_names_what_it_does(host: Host, real_library: str) -> None:
    require(list(DRIVER.glob("usr/lib/nvidia/current/nvidia-smi")), "needs NVIDIA's: run scripts/fetch-nvidia-nvml")
    [(status, _, errors, made)] = host.run(started, driver_root=str(DRIVER), runs=[["--report"]])
    assert (status, made) == (9, [])
    assert "created  /dev/nvidiactl: character device 195:255, mode 0666, root:root\n" in errors
    assert "created  /dev/char/195:255: link to ../nvidiactl\n" in errors


def by_name(library: str) -> Any:
    """Where a program that looks for the library by its name finds it, in the ways that it may be told."""
    import os
    import subprocess
    import sys

    code = (
        "import ctypes; ctypes.CDLL('libnvidia-ml.so.1'); "
        "print([line.split()[-1] for line in open('/proc/self/maps') if 'libnvidia-ml' in line][0])"
    )
    found = []
    for name in (os.path.basename(library), "libnvidia-ml.so.535"):
        named = os.path.join("/dev/shm", name)
        os.symlink(library, named)
        command = [sys.executable, "-m", "nvsandbox", "run", "--library", named, "--", sys.executable, "-c", code]
        found.append(subprocess.run(command, capture_output=True, text=True, cwd="/").stdout.strip())
    return found


def test_the_library_is_found(host: Host, real_library: str) -> None:
    assert host.run(by_name, library=real_library) == [real_library] * 2
