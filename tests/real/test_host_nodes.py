# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's own library leaves in a host's /dev: `nvsandbox nodes` names it, removes it, and puts it back."""

from __future__ import annotations

import re
from typing import Any

import pytest
from host import Host

pytestmark = pytest.mark.real


def through_the_command(library: str, undo_file: str) -> dict[str, Any]:
    import ctypes
    import os

    import host
    from click.testing import CliRunner

    from nvsandbox.cli import main

    def nodes(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, ["nodes", *arguments])
        return result.exit_code, result.output

    found: dict[str, Any] = {"before": nodes()}
    code = ctypes.CDLL(library).nvmlInit_v2()
    left = host.listing()
    found |= {
        "nvml": code,
        "after": nodes(),
        "clean": nodes("--clean", "--yes", "--undo-file", undo_file),
        "left": [path for path in host.listing() if "nvidia" in path or "195:" in path],
        "cleaned": nodes(),
        "undo": nodes("--undo", undo_file),
    }
    back = host.listing()
    names = [path for path in left if "nvidia" in path or "195:" in path]
    found["same"] = [(left[path][:3], left[path][5]) == (back[path][:3], back[path][5]) for path in names]
    os.unlink(undo_file)
    return found


def test_the_node_that_nvml_leaves(host: Host, real_library: str) -> None:
    found = host.run(through_the_command, library=real_library, undo_file=str(host.folder / "undo.jsonl"))
    assert found["nvml"] == 9  # NVML_ERROR_DRIVER_NOT_LOADED
    assert found["before"][0] == 0
    assert found["after"][0] == 1
    assert re.search(r"^/dev/nvidiactl +char 195:255 .* unwanted$", found["after"][1], re.M)
    assert "node.no-driver" in found["after"][1]
    assert found["clean"][0] == 0
    assert "removed /dev/nvidiactl: char 195:255, mode 0666" in found["clean"][1]
    assert found["left"] == []
    assert found["cleaned"][0] == 0
    assert found["undo"][0] == 0
    assert found["same"]
    assert all(found["same"])
