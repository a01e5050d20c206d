# SPDX-License-Identifier: Apache-2.0
"""Mounts between a program and the host: none by default, and with --keep-propagation all but those of /dev."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from host import Host

from .conftest import COMMAND, PROGRAM, Run
from .test_trouble import failed


def mounts_from_inside(command: list[str], options: list[str]) -> Any:
    """What a program mounts on a directory of the host's and in /dev, and what the host and the program then see."""
    import os
    import subprocess
    import tempfile

    import host

    with tempfile.TemporaryDirectory() as folder:
        before = host.listing(skip=lambda path: path.startswith("/dev/pts"))
        script = (
            f"mount -n -t tmpfs inside {folder} && mkdir /dev/x && mount -n -t tmpfs inside /dev/x && "
            f"mknod /dev/nvidiactl c 195 255; touch {folder}/file; grep -c inside /proc/self/mountinfo"
        )
        done = subprocess.run([*command, *options, "--", "sh", "-c", script], capture_output=True, text=True)
        seen = {
            "status": done.returncode,
            "inside": done.stdout,
            "errors": done.stderr,
            "reached the host": os.path.ismount(folder),
            "file": os.path.exists(f"{folder}/file"),
            "dev": host.listing(skip=lambda path: path.startswith("/dev/pts")) == before,
            "mounts in /dev": [line for line in host.mounts() if "/dev/x" in line],
        }
        if os.path.ismount(folder):
            subprocess.run(["umount", "-n", folder], check=True)
        return seen


@pytest.mark.parametrize("command", [[COMMAND, "run"], [PROGRAM]], ids=["nvsandbox run", "nvsandbox-run"])
def test_mounts_reach_the_host_where_that_is_wanted(host: Host, command: list[str]) -> None:
    """U12: as a device plugin's with mountPropagation: Bidirectional have to. /dev stays the program's alone."""
    kept = host.run(mounts_from_inside, shared_root=True, command=command, options=["--keep-propagation"])
    assert (kept["status"], kept["inside"], kept["errors"]) == (0, "2\n", "")
    assert (kept["reached the host"], kept["file"]) == (True, True)
    cut = host.run(mounts_from_inside, shared_root=True, command=command, options=[])
    assert (cut["status"], cut["inside"], cut["errors"]) == (0, "2\n", "")
    assert (cut["reached the host"], cut["file"]) == (False, False)
    for seen in (kept, cut):
        assert (seen["dev"], seen["mounts in /dev"]) == (True, [])


def without_a_dev_of_its_own(command: list[str]) -> Any:
    """/dev is a directory of the root's, which is shared."""
    import os
    import subprocess

    import host

    while os.path.ismount("/dev"):
        subprocess.run(["umount", "-n", "-R", "-l", "/dev"], check=True)
    before = host.mounts()
    done = subprocess.run([*command, "--", "true"], capture_output=True, text=True)
    return done.returncode, done.stderr, host.mounts() == before


def test_dev_has_to_be_a_mount(host: Host) -> None:
    """U12: else what is mounted on it would reach the host. It is an error, and nothing is mounted."""
    status, errors, same = host.run(without_a_dev_of_its_own, shared_root=True, command=[PROGRAM, "--keep-propagation"])
    assert (status, same) == (125, True)
    assert "propagation can be kept only where /dev is a mount of its own" in errors


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--lockdown"], "--keep-propagation and --lockdown are mutually exclusive"),
        (["--user"], "--keep-propagation is for the step mount"),
        (["--isolation=guard"], "--keep-propagation is for the step mount"),
    ],
)
def test_what_does_not_go_together(run: Run, options: list[str], told: str) -> None:
    """U12: no option is dropped silently."""
    assert told in failed(run("--keep-propagation", *options, "--", "true"), 125)
    error = json.loads(run("--json", "--keep-propagation", *options, "--", "true").stderr)["error"]
    assert (error["type"], error["exit_code"]) == ("UsageError", 125)
    done = subprocess.run([PROGRAM, "--keep-propagation", *options, "--", "true"], capture_output=True, text=True)
    assert told in failed(done, 125)
