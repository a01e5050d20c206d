# SPDX-License-Identifier: Apache-2.0
"""Programs that use pynvml, unmodified: the same output in the sandbox as with NVML used directly."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from host import Host

sys.path.insert(0, str(Path(__file__).parent))  # for `from pynvml_packages import ...`

from pynvml_packages import folder_of

SCALENE = """
from scalene.scalene_nvidia_gpu import ScaleneNVIDIAGPU
gpu = ScaleneNVIDIAGPU()
print(gpu.has_gpu(), gpu.gpu_device(), gpu.get_stats())
"""
GLANCES = """
from glances.plugins.gpu.cards.nvidia import NvidiaGPU
print(NvidiaGPU().get_device_stats())
"""


def ran(program: str, sandboxed: bool) -> dict[str, Any]:
    import os
    import subprocess
    import sys

    import host

    from nvsandbox.simulate import parse

    # With frozen=1, two processes read the same figures. Scalene turns accounting on, which takes privileged=True.
    simulated = "h100x2,frozen=1"
    if sandboxed:
        program = (
            f"import nvsandbox\nnvml = nvsandbox.install(simulate={simulated!r}, privileged=True)\n{program}\n"
            "assert nvml.session.stats()['calls'] > 0\n"
        )
    library = os.path.dirname(parse(simulated).library)
    env = {**os.environ, "NVSANDBOX_SIM": simulated, "LD_LIBRARY_PATH": library}
    with host.watching() as watch:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=env)
    return {"outcome": (done.returncode, done.stdout, done.stderr), "seen": watch.seen}


@pytest.mark.parametrize(
    ("package", "program"), [("scalene==2.4.0", SCALENE), ("glances==4.5.8", GLANCES)], ids=["scalene", "glances"]
)
def test_a_program_is_as_with_direct_use(host: Host, tmp_path: Path, package: str, program: str) -> None:
    env = {"PYTHONPATH": str(folder_of(package)), "TMPDIR": str(tmp_path)}  # Glances puts a log there
    direct = host.run(ran, program=program, sandboxed=False, env=env)
    sandboxed = host.run(ran, program=program, sandboxed=True, env=env)
    assert direct["outcome"][0] == 0, direct
    assert direct["outcome"][1]
    assert any("nvidia" in path for path in direct["seen"])
    assert sandboxed == {"outcome": direct["outcome"], "seen": []}
