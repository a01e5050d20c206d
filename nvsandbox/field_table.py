# SPDX-License-Identifier: Apache-2.0
"""The table of ``--query-gpu``'s fields: nvidia-smi's names, and for each where NVML has it and how it is written.

Names, aliases, units and the order are those of ``nvidia-smi --help-query-gpu``, releases 535 to 610; the forms are
those of its output with these releases. Which fields they gave up, and since when, is ``deprecated_in``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nvsandbox import forms
from nvsandbox.forms import Form
from nvsandbox.sources import INT, TEXT, UINT, ULL, Call, Length, Own, Source, Value
from nvsandbox.structures import (
    BlackBox,
    C2c,
    Fabric2,
    Fabric3,
    Margin,
    Memory,
    Memory2,
    Mode,
    Pci,
    PciExt,
    Platform,
    RemappedRows,
    RowHistogram,
    SramErrors,
    Temperature,
    Text64,
    Utilization,
)


@dataclass(frozen=True)
class Field:
    """A field of nvidia-smi's."""

    name: str
    """As the header has it."""
    aliases: tuple[str, ...]
    unit: str
    """``MiB``, ``W``, …; empty where the value has none."""
    source: Source | None
    """None where NVML has no function for it: such a field is never available."""
    part: int | str
    """Which part of the source's answer it is; "" for all of it."""
    form: Form
    absent: str
    """What is written where this GPU does not have it."""
    deprecated_in: int | None
    """The first release of the driver whose nvidia-smi does not answer any more."""
    renamed_in: int | None
    """The first release whose nvidia-smi writes `name` into the header; before, it was the first alias."""


_ECC_PLACES = {
    "device_memory": 2, "dram": 2, "register_file": 3, "l1_cache": 0, "l2_cache": 1,
    "texture_memory": 4, "cbu": 6, "sram": 7,
}  # fmt: skip

_MEMORY = Call("nvmlDeviceGetMemoryInfo_v2", (Memory2,), version=2, older=Call("nvmlDeviceGetMemoryInfo", (Memory,)))
_PCI = Call("nvmlDeviceGetPciInfo_v3", (Pci,))
_PCI_CLASS = Call("nvmlDeviceGetPciInfoExt", (PciExt,), version=1)
_DRIVER = Call("nvmlSystemGetDriverVersion", (TEXT,), of_gpu=False)
_REASONS = Call(
    "nvmlDeviceGetCurrentClocksEventReasons", (ULL,), older=Call("nvmlDeviceGetCurrentClocksThrottleReasons", (ULL,))
)
_REASONS_SUPPORTED = Call(
    "nvmlDeviceGetSupportedClocksEventReasons",
    (ULL,),
    older=Call("nvmlDeviceGetSupportedClocksThrottleReasons", (ULL,)),
)
_TEMPERATURE = Call(
    "nvmlDeviceGetTemperatureV", (Temperature,), version=1, older=Call("nvmlDeviceGetTemperature", given=(0,))
)
_UTILIZATION = Call("nvmlDeviceGetUtilizationRates", (Utilization,))
_ENCODER = Call("nvmlDeviceGetEncoderStats", (UINT, UINT, UINT))
_ENCRYPTION = Call("nvmlDeviceGetDramEncryptionMode", (Mode, Mode), version=1)
_ECC = Call("nvmlDeviceGetEccMode", (UINT, UINT))
_SRAM = Call("nvmlDeviceGetSramEccErrorStatus", (SramErrors,), version=1)
_ROWS = Call("nvmlDeviceGetRemappedRows", (UINT, UINT, UINT, UINT))
_ROWS_INACTIVE = Call("nvmlDeviceGetRemappedRows_v2", (RemappedRows,))
_HISTOGRAM = Call("nvmlDeviceGetRowRemapperHistogram", (RowHistogram,))
_LIMITS = Call("nvmlDeviceGetPowerManagementLimitConstraints", (UINT, UINT))
_PROTECTED = Call("nvmlDeviceGetConfComputeProtectedMemoryUsage", (Memory,))
_FABRIC = Call(
    "nvmlDeviceGetGpuFabricInfoV",
    (Fabric3,),
    version=3,
    older=Call("nvmlDeviceGetGpuFabricInfoV", (Fabric2,), version=2),
)
_PLATFORM = Call("nvmlDeviceGetPlatformInfo", (Platform,), version=2)
_DRIVER_MODEL = Call("nvmlDeviceGetDriverModel", (UINT, UINT))
_OPERATION_MODE = Call("nvmlDeviceGetGpuOperationMode", (UINT, UINT))
_MIG_MODE = Call("nvmlDeviceGetMigMode", (UINT, UINT))
_GSP_MODE = Call("nvmlDeviceGetGspFirmwareMode", (UINT, UINT))

_OPERATION = forms.words({0: "All On", 1: "Compute", 2: "Low Double Precision"})
_MODEL = forms.words({0: "WDDM", 1: "TCC", 2: "MCDM"})
_COMPUTE = forms.words({0: "Default", 1: "Exclusive_Thread", 2: "Prohibited", 3: "Exclusive_Process"})
_ADDRESSING = forms.words({0: "None", 1: "HMM", 2: "ATS"})
_RECOVERY = forms.words({
    0: "None", 1: "Reset", 2: "Reboot", 3: "Drain P2P", 4: "Drain and Reset",
    5: "Recover IMEX Domain", 6: "Bus Reset", 7: "System Reboot",
})  # fmt: skip
_STATE = forms.words({0: None, 1: "Not Started", 2: "In Progress", 3: "Completed"})
_SUMMARY = forms.words({0: None, 1: "Healthy", 2: "Unhealthy", 3: "Limited Capacity"})
_TRUTH = {0: None, 1: "True", 2: "False"}
_CONFIGURATION = {
    0: None, 1: "None", 2: "Incorrect SysGUID", 3: "Incorrect Chassis SN", 4: "No Partition",
    5: "Insufficient Nvlinks", 6: "Incompatible GPU FW", 7: "Invalid Location", 8: "GPU State Invalid",
}  # fmt: skip


def _field(
    name: str,
    source: Source | None,
    form: Form,
    unit: str = "",
    *,
    part: int | str = 0,
    also: str = "",
    absent: str = forms.ABSENT,
    deprecated_in: int | None = None,
    renamed_in: int | None = None,
) -> Field:
    aliases = tuple(also.split())
    return Field(name, aliases, unit, source, part, form, absent, deprecated_in, renamed_in)


def _call(function: str, *given: int) -> Call:
    return Call(function, given=given)


def _identity() -> Iterator[Field]:
    yield _field("timestamp", Own("timestamp"), forms.moment)
    yield _field("driver_version", _DRIVER, forms.text)
    yield _field("kmd_version", _DRIVER, forms.text)
    driver_capability = Call("nvmlGetVgpuDriverCapabilities", given=(0,), of_gpu=False)
    yield _field("vgpu_driver_capability.heterogenous_multivGPU", driver_capability, forms.support)
    yield _field("count", Own("count"), forms.plain)
    yield _field("name", Call("nvmlDeviceGetName", (TEXT,)), forms.text, also="gpu_name")
    yield _field("serial", Call("nvmlDeviceGetSerial", (TEXT,)), forms.text, also="gpu_serial")
    yield _field("uuid", Call("nvmlDeviceGetUUID", (TEXT,)), forms.text, also="gpu_uuid")
    yield _field("pci.bus_id", _PCI, forms.text, part="bus_id", also="gpu_bus_id")
    yield _field("pci.domain", _PCI, forms.hexadecimal(4), part="domain")
    yield _field("pci.bus", _PCI, forms.hexadecimal(2), part="bus")
    yield _field("pci.device", _PCI, forms.hexadecimal(2), part="device")
    yield _field("pci.baseClass", _PCI_CLASS, forms.hexadecimal(1), part="base_class")
    yield _field("pci.subClass", _PCI_CLASS, forms.hexadecimal(1), part="sub_class")
    yield _field("pci.device_id", _PCI, forms.hexadecimal(8), part="device_id")
    yield _field("pci.sub_device_id", _PCI, forms.hexadecimal(8), part="subsystem_id")
    for name, capability in (
        ("fractional_multiVgpu", 0),
        ("heterogeneous_timeSlice_profile", 1),
        ("heterogeneous_timeSlice_sizes", 2),
        ("homogeneous_placements", 9),
        ("mig_timeSlicing", 10),
        ("mig_timeSlicing_mode", 11),
    ):
        form = forms.switch if name.endswith("_mode") else forms.support
        yield _field(f"vgpu_device_capability.{name}", _call("nvmlDeviceGetVgpuCapabilities", capability), form)
    yield _field("pcie.link.gen.current", _call("nvmlDeviceGetCurrPcieLinkGeneration"), forms.plain)
    yield _field("pcie.link.gen.gpucurrent", _call("nvmlDeviceGetCurrPcieLinkGeneration"), forms.plain)
    yield _field("pcie.link.gen.max", _call("nvmlDeviceGetMaxPcieLinkGeneration"), forms.plain)
    yield _field("pcie.link.gen.gpumax", _call("nvmlDeviceGetGpuMaxPcieLinkGeneration"), forms.plain)
    yield _field("pcie.link.gen.hostmax", None, forms.plain)
    yield _field("pcie.link.width.current", _call("nvmlDeviceGetCurrPcieLinkWidth"), forms.plain)
    yield _field("pcie.link.width.max", _call("nvmlDeviceGetMaxPcieLinkWidth"), forms.plain)
    yield _field("index", Own("index"), forms.plain)


def _modes() -> Iterator[Field]:
    yield _field("display_mode", _call("nvmlDeviceGetDisplayMode"), forms.switch, deprecated_in=580)
    yield _field("display_attached", _call("nvmlDeviceGetDisplayMode"), forms.answer)
    yield _field("display_active", _call("nvmlDeviceGetDisplayActive"), forms.switch)
    yield _field("persistence_mode", _call("nvmlDeviceGetPersistenceMode"), forms.switch)
    addressing = Call("nvmlDeviceGetAddressingMode", (Mode,), version=1)
    yield _field("addressing_mode", addressing, _ADDRESSING, part="value")
    yield _field("accounting.mode", _call("nvmlDeviceGetAccountingMode"), forms.switch)
    yield _field("accounting.buffer_size", _call("nvmlDeviceGetAccountingBufferSize"), forms.plain)
    yield _field("driver_model.current", _DRIVER_MODEL, _MODEL)
    yield _field("driver_model.pending", _DRIVER_MODEL, _MODEL, part=1)
    yield _field("vbios_version", Call("nvmlDeviceGetVbiosVersion", (TEXT,)), forms.text)
    image = Call("nvmlDeviceGetInforomImageVersion", (TEXT,))
    yield _field("inforom.img", image, forms.text, also="inforom.image")
    for number, name, also in ((0, "oem", ""), (1, "ecc", ""), (2, "pwr", "inforom.power")):
        source = Call("nvmlDeviceGetInforomVersion", (TEXT,), (number,))
        yield _field(f"inforom.{name}", source, forms.text, also=also)
    # It answers by its return code alone.
    valid = Call("nvmlDeviceValidateInforom", ())
    yield _field("inforom.checksum_validation", valid, lambda _: "valid", part="")
    yield _field("reset_status.reset_required", Value(226), forms.answer)
    yield _field("reset_status.drain_and_reset_recommended", Value(227), forms.answer)
    yield _field("gpu_recovery_action", Value(230), _RECOVERY)
    yield _field("gom.current", _OPERATION_MODE, _OPERATION, also="gpu_operation_mode.current")
    yield _field("gom.pending", _OPERATION_MODE, _OPERATION, part=1, also="gpu_operation_mode.pending")
    yield _field("fan.speed", _call("nvmlDeviceGetFanSpeed"), forms.plain, "%")
    yield _field("pstate", _call("nvmlDeviceGetPerformanceState"), forms.performance)


def _clock_reasons() -> Iterator[Field]:
    def reason(name: str, source: Source, form: Form) -> Field:
        old = f"clocks_throttle_reasons.{name}"
        return _field(f"clocks_event_reasons.{name}", source, form, also=old, renamed_in=535)

    yield reason("supported", _REASONS_SUPPORTED, forms.hexadecimal(16))
    yield reason("active", _REASONS, forms.hexadecimal(16))
    for name, mask in (
        ("gpu_idle", 0x1),
        ("applications_clocks_setting", 0x2),
        ("sw_power_cap", 0x4),
        ("hw_slowdown", 0x8),
        ("hw_thermal_slowdown", 0x40),
        ("hw_power_brake_slowdown", 0x80),
        ("sw_thermal_slowdown", 0x20),
        ("sync_boost", 0x10),
    ):
        yield reason(name, _REASONS, forms.bit(mask))
    # NVML counts nanoseconds here (nvml.h, NVML_FI_DEV_CLOCKS_EVENT_REASON_…).
    for name, id_ in (
        ("sw_power_cap", 74),
        ("sync_boost", 76),
        ("sw_thermal_slowdown", 269),
        ("hw_thermal_slowdown", 270),
        ("hw_power_brake_slowdown", 271),
    ):
        yield _field(f"clocks_event_reasons_counters.{name}", Value(id_), forms.microseconds, "us")


def _use() -> Iterator[Field]:
    for name in ("total", "reserved", "used", "free"):
        yield _field(f"memory.{name}", _MEMORY, forms.mib, "MiB", part=name)
    yield _field("compute_mode", _call("nvmlDeviceGetComputeMode"), _COMPUTE)
    yield _field("compute_cap", Call("nvmlDeviceGetCudaComputeCapability", (INT, INT)), _capability, part="")
    yield _field("utilization.gpu", _UTILIZATION, forms.plain, "%", part="gpu")
    yield _field("utilization.memory", _UTILIZATION, forms.plain, "%", part="memory")
    for name, engine in (("encoder", "Encoder"), ("decoder", "Decoder"), ("jpeg", "Jpg"), ("ofa", "Ofa")):
        source = Call(f"nvmlDeviceGet{engine}Utilization", (UINT, UINT))
        yield _field(f"utilization.{name}", source, forms.plain, "%")
    for part, name in enumerate(("sessionCount", "averageFps", "averageLatency")):
        yield _field(f"encoder.stats.{name}", _ENCODER, forms.plain, part=part)
    yield _field("dramEncryption.mode.current", _ENCRYPTION, lambda mode: forms.switch(mode.value))
    yield _field("dramEncryption.mode.pending", _ENCRYPTION, lambda mode: forms.switch(mode.value), part=1)


def _capability(answer: tuple[int, int]) -> str:
    return f"{answer[0]}.{answer[1]}"


def _errors() -> Iterator[Field]:
    yield _field("ecc.mode.current", _ECC, forms.switch)
    yield _field("ecc.mode.pending", _ECC, forms.switch, part=1)
    for kind, kind_name in enumerate(("corrected", "uncorrected")):
        for span, span_name in enumerate(("volatile", "aggregate")):
            prefix = f"ecc.errors.{kind_name}.{span_name}"
            for name, place in _ECC_PLACES.items():
                source = Call("nvmlDeviceGetMemoryErrorCounter", (ULL,), (kind, span, place))
                yield _field(f"{prefix}.{name}", source, forms.plain)
            total = Call("nvmlDeviceGetTotalEccErrors", (ULL,), (kind, span))
            yield _field(f"{prefix}.total", total, forms.plain)
    for span_name in ("volatile", "aggregate"):
        for name in ("parity", "secded"):
            part = f"{span_name}_{name}"
            yield _field(f"ecc.errors.uncorrected.{span_name}.sram.{name}", _SRAM, forms.plain, part=part)
    sram = "ecc.errors.uncorrected.aggregate.sram"
    yield _field(f"{sram}.thresholdExceeded", _SRAM, forms.answer, part="threshold_exceeded")
    for name in ("l2", "sm", "mcu", "pcie", "other"):
        yield _field(f"{sram}.{name}", _SRAM, forms.plain, part=name)
    single, double = (Length("nvmlDeviceGetRetiredPages", (cause,)) for cause in (0, 1))
    yield _field("retired_pages.single_bit_ecc.count", single, forms.plain, also="retired_pages.sbe")
    yield _field("retired_pages.double_bit.count", double, forms.plain, also="retired_pages.dbe")
    yield _field("retired_pages.pending", _call("nvmlDeviceGetRetiredPagesPendingStatus"), forms.answer)
    yield _field("remapped_rows.correctable", _ROWS, forms.plain, also="remapped_rows.sbe")
    yield _field("remapped_rows.correctable_inactive", _ROWS_INACTIVE, forms.plain, part="correctable_inactive")
    yield _field("remapped_rows.uncorrectable", _ROWS, forms.plain, part=1, also="remapped_rows.dbe")
    yield _field("remapped_rows.uncorrectable_inactive", _ROWS_INACTIVE, forms.plain, part="uncorrectable_inactive")
    yield _field("remapped_rows.pending", _ROWS, forms.answer, part=2)
    yield _field("remapped_rows.failure", _ROWS, forms.answer, part=3)
    for name in ("max", "high", "partial", "low", "none"):
        yield _field(f"remapped_rows.histogram.{name}", _HISTOGRAM, forms.plain, part=name)


def _celsius(answer: tuple[Temperature | int]) -> str:
    reading = answer[0]
    return str(reading if isinstance(reading, int) else reading.temperature)


def _power() -> Iterator[Field]:
    yield _field("temperature.gpu", _TEMPERATURE, _celsius, part="")
    margin = Call("nvmlDeviceGetMarginTemperature", (Margin,), version=1)
    yield _field("temperature.gpu.tlimit", margin, forms.plain, part="temperature")
    yield _field("temperature.memory", Value(82), forms.plain, absent=forms.BARE)
    yield _field("power.management", _call("nvmlDeviceGetPowerManagementMode"), forms.switch, deprecated_in=590)

    def watts(name: str, source: Source | None, also: str = "", part: int = 0) -> Field:
        return _field(name, source, forms.thousandths, "W", part=part, also=also)

    yield watts("power.draw", _call("nvmlDeviceGetPowerUsage"))
    yield watts("power.draw.average", Value(185), "gpu.power.draw.average")
    yield watts("power.draw.instant", Value(186), "gpu.power.draw.instant")
    yield watts("power.limit", _call("nvmlDeviceGetPowerManagementLimit"), "gpu.power.requested_limit")
    yield watts("enforced.power.limit", _call("nvmlDeviceGetEnforcedPowerLimit"), "gpu.power.current_limit")
    default = _call("nvmlDeviceGetPowerManagementDefaultLimit")
    yield watts("power.default_limit", default, "gpu.power.default_limit")
    yield watts("power.min_limit", _LIMITS, "gpu.power.min_limit")
    yield watts("power.max_limit", _LIMITS, "gpu.power.max_limit", part=1)
    for name, id_, also in (
        ("power.draw.average", 185, ""),
        ("power.draw.instant", 186, ""),
        ("power.limit", 192, "module.power.requested_limit"),
        ("enforced.power.limit", 190, "module.power.current_limit"),
        ("power.default_limit", 189, ""),
        ("power.min_limit", 187, ""),
        ("power.max_limit", 188, ""),
    ):
        yield watts(f"module.{name}", Value(id_, _OF_MODULE), also)
    for name, id_ in (("current", 190), ("requested", 192), ("default", 189), ("min", 187), ("max", 188)):
        yield watts(f"gpu.base.{name}", Value(id_, _OF_GPU_BASE))


_OF_MODULE, _OF_GPU_BASE = 1, 3  # NVML_POWER_SCOPE_…


def _power_smoothing() -> Iterator[Field]:
    watts, percent, plain = (forms.thousandths, "W"), (forms.hundredths, "%"), (forms.plain, "")
    for name, id_, (form, unit) in (
        ("tmp_floor", 255, watts),
        ("tmp_ceil", 254, watts),
        ("hw_lifetime_remaining_percent", 258, percent),
        ("enabled", 251, (forms.answer, "")),
        ("delayed_power_smoothing_supported", 280, (forms.answer, "")),
        ("soc_power_smoothing_enabled", 300, (forms.switch, "")),
        ("priv_level", 252, plain),
        ("imm_ramp_down", 253, (forms.switch, "")),
        ("max_percent_tmp_floor", 256, percent),
        ("min_percent_tmp_floor", 257, percent),
        ("primary_power_floor", 275, watts),
        ("secondary_power_floor", 276, watts),
        ("min_primary_floor_activation_offset", 277, watts),
        ("min_primary_floor_activation_point", 278, watts),
        ("window_multiplier", 279, (forms.plain, "ms")),
        ("num_preset_profiles", 259, plain),
        ("curr_profile.percent_tmp_floor", 260, percent),
        ("curr_profile.ramp_up_rate", 261, (forms.thousandths, "W/s")),
        ("curr_profile.ramp_down_rate", 262, (forms.thousandths, "W/s")),
        ("curr_profile.ramp_down_hysteresis", 263, (forms.plain, "ms")),
        ("curr_profile.secondary_power_floor", 281, watts),
        ("curr_profile.primary_floor_act_window_multiplier", 282, plain),
        ("curr_profile.primary_floor_tar_window_multiplier", 283, plain),
        ("curr_profile.primary_floor_act_offset", 284, watts),
        ("active_profile", 264, plain),
        ("admin_override.percent_tmp_floor", 265, percent),
        ("admin_override.ramp_up_rate", 266, (forms.thousandths, "W/s")),
        ("admin_override.ramp_down_rate", 267, (forms.thousandths, "W/s")),
        ("admin_override.ramp_down_hysteresis", 268, (forms.plain, "ms")),
        ("admin_override.secondary_power_floor", 285, watts),
        ("admin_override.primary_floor_act_window_multiplier", 286, plain),
        ("admin_override.primary_floor_tar_window_multiplier", 287, plain),
        ("admin_override.primary_floor_act_offset", 288, watts),
    ):
        yield _field(f"power_smoothing.{name}", Value(id_), form, unit)
    yield _field("edpp_multiplier", Value(274), forms.hundredths, "%")


def _clocks() -> Iterator[Field]:
    graphics, memory, sm, video = ("graphics", 0, "gr"), ("memory", 2, "mem"), ("sm", 1, "sm"), ("video", 3, "video")
    for section, function, domains, deprecated_in in (
        ("current", "nvmlDeviceGetClockInfo", (graphics, sm, memory, video), None),
        ("applications", "nvmlDeviceGetApplicationsClock", (graphics, memory), 590),
        ("default_applications", "nvmlDeviceGetDefaultApplicationsClock", (graphics, memory), 590),
        ("max", "nvmlDeviceGetMaxClockInfo", (graphics, sm, memory), None),
    ):
        for name, domain, short in domains:
            full = f"clocks.{section}.{name}"
            also = f"clocks.{short}" if section == "current" else f"clocks.{section}.{short}"
            yield _field(
                full,
                _call(function, domain),
                forms.plain,
                "MHz",
                also="" if also == full else also,
                deprecated_in=deprecated_in,
            )


def _platform() -> Iterator[Field]:
    yield _field("mig.mode.current", _MIG_MODE, forms.switch)
    yield _field("mig.mode.pending", _MIG_MODE, forms.switch, part=1)
    yield _field("gsp.mode.current", _GSP_MODE, forms.switch)
    yield _field("gsp.mode.default", _GSP_MODE, forms.switch, part=1)
    yield _field("c2c.mode", Call("nvmlDeviceGetC2cModeInfoV", (C2c,)), forms.switch, part="enabled")
    for name in ("total", "used", "free"):
        yield _field(f"protected_memory.{name}", _PROTECTED, forms.mib, "MiB", part=name)
    yield _fabric("state", lambda fabric: _STATE(fabric.state))
    yield _fabric("status", lambda fabric: forms.status(fabric.status) if fabric.state == _COMPLETED else None)
    yield _fabric("cliqueId", lambda fabric: str(fabric.clique))
    yield _fabric("clusterUuid", lambda fabric: forms.uuid(bytes(fabric.cluster)))
    yield _fabric("health.summary", lambda fabric: _SUMMARY(getattr(fabric, "summary", 0)))
    for name, shift, width, names in (
        ("bandwidth", 0, 2, {0: None, 1: "Degraded", 2: "Full"}),
        ("route_recovery_in_progress", 2, 2, _TRUTH),
        ("route_unhealthy", 4, 2, _TRUTH),
        ("access_timeout_recovery", 6, 2, _TRUTH),
        ("incorrect_configuration", 8, 4, _CONFIGURATION),
        ("partition_assigned", 12, 2, _TRUTH),
    ):
        yield _fabric(f"health.{name}", _health(shift, width, names))
    yield _field("platform.chassis_serial_number", _PLATFORM, forms.text, part="chassis")
    for name, part in (("slot_number", "slot"), ("tray_index", "tray"), ("host_id", "host")):
        yield _field(f"platform.{name}", _PLATFORM, forms.plain, part=part)
    peer = forms.words({0: "Direct Connected", 1: "Switch Connected"})
    yield _field("platform.peer_type", _PLATFORM, peer, part="peer")
    yield _field("platform.module_id", _PLATFORM, forms.plain, part="module")
    yield _field("platform.gpu_fabric_guid", _PLATFORM, forms.guid, part="guid")
    yield _field("hostname", Call("nvmlDeviceGetHostname_v1", (Text64,)), forms.text, part="text")
    run = Call("nvmlDeviceGetBBXTimeData_v1", (BlackBox,))
    yield _field("bbx.time_run", run, forms.plain, "seconds", part="seconds")


_COMPLETED = 3


def _health(shift: int, width: int, names: Mapping[int, str | None]) -> Callable[[Any], str | None]:
    """Some bits of the fabric's health."""
    return lambda fabric: forms.words(names)(fabric.health >> shift & (1 << width) - 1)


def _fabric(name: str, form: Callable[[Any], str | None]) -> Field:
    """Of a GPU that is in a fabric; state 0 is that of one that is not."""
    return _field(
        f"fabric.{name}",
        _FABRIC,
        lambda answer: form(answer[0]) if answer[0].state else None,
        part="",
        absent=forms.BARE,
    )


FIELDS: tuple[Field, ...] = (
    *_identity(),
    *_modes(),
    *_clock_reasons(),
    *_use(),
    *_errors(),
    *_power(),
    *_power_smoothing(),
    *_clocks(),
    *_platform(),
)
"""All fields, in the order of ``nvidia-smi --help-query-gpu``."""
