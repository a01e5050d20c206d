# SPDX-License-Identifier: Apache-2.0
"""The images of containers/: the command in them works, and needs nothing else."""

from __future__ import annotations

import pytest
from podman import Podman

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_the_image_has_the_command_and_no_compiler(podman: Podman) -> None:
    out = podman.run(
        """
        podman run --rm --network none nvsandbox query --simulate h100x2 --query-gpu=name --format=csv,noheader
        podman run --rm --network none --entrypoint sh nvsandbox -c 'command -v cc gcc || echo no compiler
            /lib64/ld-linux-x86-64.so.2 --list $(command -v nvsandbox-run) 2>&1; nvsandbox-run --version'
        """
    )
    *gpus, compiler, libraries, version = out.splitlines()
    assert gpus == ["NVIDIA H100 80GB HBM3"] * 2
    assert compiler == "no compiler"
    assert "statically linked" in libraries
    assert version.startswith("nvsandbox-run ")
