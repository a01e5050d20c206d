# SPDX-License-Identifier: Apache-2.0
"""``make demo``'s script: what it shows is so, and it says what it cannot show."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import host
import pytest
from host import Host, require

DEMO = Path(__file__).parents[2] / "scripts" / "demo"


def run(*prefix: str, demo: Path = DEMO) -> subprocess.CompletedProcess[str]:
    before = host.listing()
    done = subprocess.run([*prefix, sys.executable, demo], cwd="/", capture_output=True, text=True, timeout=100)
    assert {path: facts for path, facts in host.listing().items() if "nvidia" in path or "/char/" in path} == {
        path: facts for path, facts in before.items() if "nvidia" in path or "/char/" in path
    }
    return done


def parts_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line[3:] for line in done.stdout.splitlines() if line.startswith("== ")]


def test_before_and_after(host: Host) -> None:
    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    direct, sandboxed, query = done.stdout.split("\n== ")[1:]
    assert direct.startswith("1. ")
    after = direct.split("/dev after:")[1]
    assert "/dev/nvidiactl" in after
    assert "195, 255" in after
    assert "/dev/char/195:0 -> ../nvidia0" in after
    assert "NVIDIA nodes)" in sandboxed.split("/dev after:")[1]
    assert "checked: the call through nvsandbox has left nothing behind" in sandboxed
    assert query.startswith("3. nvsandbox query")
    assert "GPU-" in query
    assert done.stdout.count("checked:") == 4
    if not os.path.exists("/proc/driver/nvidia/version"):
        assert "simulated" in done.stdout.splitlines()[0]


def test_without_privilege_it_says_what_is_missing() -> None:
    """R14: the parts that there are are counted from 1."""
    if os.geteuid() == 0:
        require(shutil.which("setpriv"), "needs setpriv, to give up CAP_SYS_ADMIN")
        done = run("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")
    else:
        done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "CAP_SYS_ADMIN" in done.stdout
    assert "A direct NVML call" not in done.stdout
    assert parts_of(done) == ["1. A call through nvsandbox", "2. nvsandbox query --simulate=h100x4"]
    assert "checked: the call through nvsandbox has left nothing behind" in done.stdout


def test_where_no_node_can_be_made_it_says_so(host: Host) -> None:
    done = run("unshare", "-Urm")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no direct call" in done.stdout
    assert "A direct NVML call" not in done.stdout
    assert parts_of(done)[0] == "1. A call through nvsandbox"


@pytest.mark.parametrize(
    ("true", "untrue", "claim"),
    [
        ("pynvml.nvmlInit()\n", "sys.exit()\n", "the direct call has left device nodes behind"),
        (
            "session = nvml.session",
            "session = nvml.session; Path('/dev/nvidia-x').symlink_to('nvidia')",
            "while it runs",
        ),
    ],
)
def test_it_fails_where_what_it_shows_is_not_so(host: Host, tmp_path: Path, true: str, untrue: str, claim: str) -> None:
    text = DEMO.read_text(encoding="utf-8")
    assert true in text
    changed = tmp_path / "demo"
    changed.write_text(text.replace(true, untrue), encoding="utf-8")
    done = run(demo=changed)
    assert done.returncode == 1
    assert f"demo: FAILED: {claim}" in done.stderr
