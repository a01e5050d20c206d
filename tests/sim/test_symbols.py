# SPDX-License-Identifier: Apache-2.0
"""Which functions the three libraries have."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import pynvml
import pytest

from .conftest import SOURCES


def _has(library: Path, name: str) -> bool:
    return hasattr(ctypes.CDLL(str(library)), name)


def _asked() -> list[str]:
    return sorted(set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', Path(pynvml.__file__).read_text())))


def test_every_function_that_pynvml_asks_for(libraries: dict[str, Path]) -> None:
    assert [name for name in _asked() if not _has(libraries["all"], name)] == []


def test_every_stub(libraries: dict[str, Path]) -> None:
    stubs = re.findall(r"^X \(\w+, (\w+)\)", (SOURCES / "stubs.def").read_text(), flags=re.MULTILINE)
    assert len(stubs) > 400
    assert [name for name in stubs if not _has(libraries["all"], name)] == []


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("nvmlInit", {"v1", "v2", "all"}),
        ("nvmlInit_v2", {"v2", "all"}),
        ("nvmlInitWithFlags", {"v2", "all"}),
        ("nvmlShutdown", {"v1", "v2", "all"}),
        ("nvmlDeviceGetMemoryInfo", {"v1", "v2", "all"}),
        ("nvmlDeviceGetMemoryInfo_v2", {"v2", "all"}),
        ("nvmlDeviceGetComputeRunningProcesses", {"v1", "v2", "all"}),
        ("nvmlDeviceGetComputeRunningProcesses_v3", {"all"}),
        ("nvmlDeviceGetGridLicensableFeatures_v4", {"all"}),
        ("nvmlDeviceGetHostname_v1", {"v2", "all"}),
    ],
)
def test_versions(libraries: dict[str, Path], name: str, found: set[str]) -> None:
    assert {kind for kind, library in libraries.items() if _has(library, name)} == found


def test_nothing_else_is_exported(libraries: dict[str, Path]) -> None:
    assert not _has(libraries["all"], "nvs_begin")
    assert not _has(libraries["all"], "nvs_machine")


def test_an_old_driver_lacks_the_new_call_only(sim: Any) -> None:
    def old() -> list[object]:
        import ctypes
        import os

        from simhelp import p

        found: list[object] = []
        p.nvmlLib = ctypes.CDLL(os.environ["SIM_V2"])
        os.environ["NVSANDBOX_SIM"] = "t4"
        p.nvmlInit()
        device = p.nvmlDeviceGetHandleByIndex(0)
        try:
            p.nvmlDeviceGetComputeRunningProcesses_v3(device)
        except p.NVMLError_FunctionNotFound:
            found.append("FunctionNotFound")
        found.append(len(p.nvmlDeviceGetComputeRunningProcesses_v2(device)))
        found.append(p.nvmlDeviceGetName(device))
        return found

    assert sim(old) == ["FunctionNotFound", 1, "Tesla T4"]
