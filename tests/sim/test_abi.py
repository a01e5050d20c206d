# SPDX-License-Identifier: Apache-2.0
"""The simulator's structures are those that pynvml passes, byte for byte."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pynvml
import pytest
from host import require

from .conftest import SOURCES

SAME = {
    "nvml_memory": "c_nvmlMemory_t",
    "nvml_memory_v2": "c_nvmlMemory_v2_t",
    "nvml_bar1": "c_nvmlBAR1Memory_t",
    "nvml_utilization": "c_nvmlUtilization_t",
    "nvml_pci": "nvmlPciInfo_t",
    "nvml_pci_v2": "nvmlPciInfo_v2_t",
    "nvml_pci_ext_v1": "nvmlPciInfoExt_v1_t",
    "nvml_process": "c_nvmlProcessInfo_v3_t",
    "nvml_process_detail": "c_nvmlProcessDetail_v1_t",
    "nvml_process_detail_list": "c_nvmlProcessDetailList_v1_t",
    "nvml_process_sample": "c_nvmlProcessUtilizationSample_t",
    "nvml_process_util": "c_nvmlProcessUtilizationInfo_v1_t",
    "nvml_processes_util": "c_nvmlProcessesUtilizationInfo_v1_t",
    "nvml_sample": "c_nvmlSample_t",
    "nvml_field_value": "c_nvmlFieldValue_t",
    "nvml_violation": "c_nvmlViolationTime_t",
    "nvml_ecc_counts": "c_nvmlEccErrorCounts_t",
    "nvml_sram_ecc": "c_nvmlEccSramErrorStatus_v1_t",
    "nvml_row_histogram": "c_nvmlRowRemapperHistogramValues",
    "nvml_remapped_v2": "c_nvmlRemappedRowsInfo_v2_t",
    "nvml_repair_status": "c_nvmlRepairStatus_t",
    "nvml_uuid": "c_nvmlUUID_t",
    "nvml_pdi": "c_nvmlPdi_t",
    "nvml_branch_info": "c_nvmlSystemDriverBranchInfo_v1_t",
    "nvml_excluded_device": "c_nvmlExcludedDeviceInfo_t",
    "nvml_addressing_mode": "c_nvmlDeviceAddressingMode_t",
    "nvml_c2c": "c_nvmlC2cModeInfo_v1_t",
    "nvml_capabilities": "c_nvmlDeviceCapabilities_v1_t",
    "nvml_platform_info": "c_nvmlPlatformInfo_v2_t",
    "nvml_temperature_v1": "c_nvmlTemperature_v1_t",
    "nvml_margin_temperature": "c_nvmlMarginTemperature_v1_t",
    "nvml_thermal_sensor": "c_nvmlGpuThermalSensor_t",
    "nvml_thermal": "c_nvmlGpuThermalSettings_t",
    "nvml_cooler": "c_nvmlCoolerInfo_t",
    "nvml_fan_rpm": "c_nvmlFanSpeedInfo_t",
    "nvml_pstate_util": "c_nvmlGpuDynamicPstatesUtilization_t",
    "nvml_pstates_info": "c_nvmlGpuDynamicPstatesInfo_t",
    "nvml_text_2048": "c_nvmlDevicePerfModes_v1_t",
    "nvml_clock_offset": "c_nvmlClockOffset_t",
    "nvml_clk_mon": "nvmlClkMonStatus_t",
    "nvml_power_value": "c_nvmlPowerValue_v2_t",
    "nvml_event": "c_nvmlEventData_t",
    "nvml_system_event_request": "c_nvmlSystemEventSetCreateRequest_v1_t",
    "nvml_system_event_register": "c_nvmlSystemRegisterEventRequest_v1_t",
    "nvml_system_event": "c_nvmlSystemEventData_v1_t",
    "nvml_system_event_wait": "c_nvmlSystemEventSetWaitRequest_v1_t",
    "nvml_placement": "c_nvmlGpuInstancePlacement_t",
    "nvml_gi_profile": "c_nvmlGpuInstanceProfileInfo_t",
    "nvml_gi_profile_v2": "c_nvmlGpuInstanceProfileInfo_v2_t",
    "nvml_gi_info": "c_nvmlGpuInstanceInfo_t",
    "nvml_ci_profile": "c_nvmlComputeInstanceProfileInfo_t",
    "nvml_ci_profile_v2": "c_nvmlComputeInstanceProfileInfo_v2_t",
    "nvml_ci_info": "c_nvmlComputeInstanceInfo_t",
    "nvml_attributes": "c_nvmlDeviceAttributes",
    "nvml_gpm_support": "c_nvmlGpmSupport_t",
    "nvml_gpm_metric": "c_nvmlGpmMetric_t",
    "nvml_fabric": "c_nvmlGpuFabricInfo_t",
    "nvml_fabric_v2": "c_nvmlGpuFabricInfo_v2_t",
    "nvml_fabric_v3": "c_nvmlGpuFabricInfo_v3_t",
    "nvml_fabric_v4": "c_nvmlGpuFabricInfo_v4_t",
    "nvml_link_info": "c_nvmlNvLinkInfo_v1_t",
    "nvml_link_info_v2": "c_nvmlNvLinkInfo_v2_t",
    "nvml_encoder_session": "c_nvmlEncoderSession_t",
    "nvml_fbc_stats": "c_nvmlFBCStats_t",
    "nvml_bridge_chips": "c_nvmlBridgeChipHierarchy_t",
    "nvml_accounting": "c_nvmlAccountingStats_t",
    "nvml_cc_state": "c_nvmlConfComputeSystemState_t",
    "nvml_cc_settings": "c_nvmlSystemConfComputeSettings_v1_t",
    "nvml_cc_caps": "c_nvmlConfComputeSystemCaps_t",
    "nvml_cc_memory": "c_nvmlConfComputeMemSizeInfo_t",
}
"""Each structure in nvml_abi.h, and what pynvml calls it."""

DIFFERENT = {
    "nvml_process_v1": "pynvml no longer has it",
    "nvml_event_v1": "pynvml no longer has it",
    "nvml_gi_profile_v3": "pynvml does not have it yet",
    "nvml_gpm_metrics": "ends in an array of any length",
    "nvml_licensable_features": "only the beginning is used",
}


def _structures() -> dict[str, list[str]]:
    """The fields of each structure in the header; those within a nested one are left out."""
    text = (SOURCES / "nvml_abi.h").read_text()
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    found = {}
    for name, body in re.findall(r"^struct (nvml_\w+) \{(.*?)^\};", text, flags=re.DOTALL | re.MULTILINE):
        while "{" in body:
            body = re.sub(r"(?:struct|union) \{[^{}]*\}", "nested", body)
        found[name] = re.findall(r"[\s*](\w+)(?:\[\w*\])?(?=[,;])", body)
    return found


def test_every_structure_is_compared() -> None:
    assert sorted(_structures()) == sorted([*SAME, *DIFFERENT])


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """Size, then the offset of each field, as the compiler has them."""
    compiler = shutil.which("cc")
    require(compiler, "needs a C compiler")
    folder: Path = tmp_path_factory.mktemp("abi")
    lines = []
    for name, fields in _structures().items():
        values = [f"sizeof (struct {name})", *(f"offsetof (struct {name}, {field})" for field in fields)]
        lines.append(f'printf ("{name}{" %zu" * len(values)}\\n", {", ".join(values)});')
    source = '#include <stddef.h>\n#include <stdio.h>\n#include "nvml_abi.h"\nint main (void) {\n'
    (folder / "layout.c").write_text(source + "\n".join(lines) + "\nreturn 0; }\n")
    program = folder / "layout"
    subprocess.run([str(compiler), f"-I{SOURCES}", "-o", str(program), str(folder / "layout.c")], check=True)
    output = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    return {name: list(map(int, rest)) for name, *rest in map(str.split, output.splitlines())}


@pytest.mark.parametrize("name", sorted(SAME))
def test_layout(layout: dict[str, list[int]], name: str) -> None:
    theirs: Any = getattr(pynvml, SAME[name], None)
    if theirs is None:
        pytest.skip(f"this release of pynvml has no {SAME[name]}")
    # An array of ours may stand for numbered fields of theirs: each of ours begins where one of theirs does.
    offsets = [getattr(theirs, field[0]).offset for field in theirs._fields_]
    assert layout[name][0] == ctypes.sizeof(theirs)
    assert set(layout[name][1:]) <= set(offsets)
    assert len(layout[name]) - 1 == len(offsets) or name == "nvml_pci_v2"
