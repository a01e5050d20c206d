# SPDX-License-Identifier: Apache-2.0
"""`nvsandbox audit` of NVIDIA's own nvidia-smi: the node that it leaves, with its name, and a host that stays clean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from host import DRIVER, Host, require

pytestmark = pytest.mark.real


def audited(program: str, library: str) -> dict[str, Any]:
    import json
    import os
    import subprocess
    import sys

    import host

    before = host.listing()
    environment = {**os.environ, "LD_LIBRARY_PATH": os.path.dirname(library)}
    command = [sys.executable, "-m", "nvsandbox", "audit", "--json", "--", "sh", "-c", f"{program}; exit $?"]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", env=environment)
    return {
        "report": json.loads(done.stdout),
        "status": done.returncode,
        "errors": done.stderr,
        "same": host.listing() == before,
    }


def test_the_node_that_nvidia_smi_leaves(host: Host, real_library: str) -> None:
    found_programs = sorted(DRIVER.glob("usr/lib/nvidia/current/nvidia-smi"))
    require(found_programs, "needs NVIDIA's nvidia-smi: run scripts/fetch-nvidia-nvml")
    program = host.readable(found_programs[0])
    Path(program).chmod(0o755)
    found = host.run(audited, program=program, library=real_library)
    assert found["same"]
    assert found["status"] == 1
    assert "NVIDIA-SMI has failed" in found["errors"]
    report = found["report"]
    assert report["exit_status"] == 9
    made = {change["path"]: change for change in report["changes"] if change["what"] == "created"}
    node = made["/dev/nvidiactl"]
    assert (node["after"]["major"], node["after"]["minor"]) == (195, 255)
    assert [process["name"] for process in node["by"]] == ["nvidia-smi", "sh"]
    assert made["/dev/char/195:255"]["after"]["target"] == "../nvidiactl"
