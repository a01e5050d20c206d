# SPDX-License-Identifier: Apache-2.0
"""``--query-gpu`` and ``--query-compute-apps``: what nvidia-smi would print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest
from click.testing import CliRunner, Result
from host import DRIVER, require

from nvsandbox import fields, nvml_isolated
from nvsandbox.cli import main
from nvsandbox.field_table import FIELDS

ROOT = Path(__file__).parents[2]
DEPRECATED = "[Requested functionality has been deprecated]"


def run(*arguments: str, **env: str) -> Result:
    return CliRunner().invoke(main, ["query", *arguments], prog_name="nvsandbox", env=env)


def cells(description: str, *names: str, style: str = "csv,noheader") -> list[list[str]]:
    """The values of these fields, by GPU."""
    result = run("--simulate", description, f"--query-gpu={','.join(names)}", f"--format={style}")
    assert result.exit_code == 0, result.output
    return [line.split(", ") for line in result.stdout.splitlines()]


# What nvidia-smi 580 printed for an idle H200, where the simulated one is to be the same.
H200 = {
    "count": "1",
    "name": "NVIDIA H200",
    "pci.domain": "0x0000",
    "pci.device": "0x00",
    "pci.baseClass": "0x3",
    "pci.subClass": "0x2",
    "pci.device_id": "0x233510DE",
    "pci.sub_device_id": "0x18BE10DE",
    "vgpu_driver_capability.heterogenous_multivGPU": "[N/A]",
    "vgpu_device_capability.fractional_multiVgpu": "[N/A]",
    "pcie.link.gen.current": "5",
    "pcie.link.gen.gpumax": "5",
    "pcie.link.gen.hostmax": "[N/A]",
    "pcie.link.width.max": "16",
    "index": "0",
    "display_mode": DEPRECATED,
    "display_attached": "Yes",
    "display_active": "Disabled",
    "persistence_mode": "Enabled",
    "accounting.mode": "Disabled",
    "accounting.buffer_size": "4000",
    "driver_model.current": "[N/A]",
    "inforom.oem": "2.1",
    "inforom.ecc": "7.16",
    "inforom.pwr": "[N/A]",
    "inforom.checksum_validation": "valid",
    "gpu_recovery_action": "None",
    "gom.pending": "[N/A]",
    "fan.speed": "[N/A]",
    "pstate": "P0",
    "clocks_event_reasons.supported": "0x00000000000001FF",
    "clocks_event_reasons.active": "0x0000000000000001",
    "clocks_event_reasons.gpu_idle": "Active",
    "clocks_event_reasons.sync_boost": "Not Active",
    "clocks_event_reasons_counters.sync_boost": "0 us",
    "clocks_event_reasons_counters.hw_thermal_slowdown": "0 us",
    "memory.total": "143771 MiB",
    "compute_mode": "Default",
    "compute_cap": "9.0",
    "utilization.gpu": "0 %",
    "utilization.jpeg": "0 %",
    "encoder.stats.averageLatency": "0",
    "dramEncryption.mode.current": "[N/A]",
    "ecc.mode.pending": "Enabled",
    "ecc.errors.corrected.volatile.dram": "0",
    "ecc.errors.corrected.volatile.l2_cache": "[N/A]",
    "ecc.errors.uncorrected.volatile.sram.parity": "0",
    "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded": "No",
    "retired_pages.double_bit.count": "[N/A]",
    "retired_pages.pending": "[N/A]",
    "remapped_rows.correctable_inactive": "0",
    "remapped_rows.pending": "No",
    "remapped_rows.histogram.none": "0",
    "power.management": "Enabled",
    "power.limit": "700.00 W",
    "power.min_limit": "200.00 W",
    "power.max_limit": "700.00 W",
    "module.power.draw.average": "[N/A]",
    "module.power.limit": "[N/A]",
    "power_smoothing.window_multiplier": "[N/A]",
    "clocks.current.graphics": "345 MHz",
    "clocks.applications.graphics": "1980 MHz",
    "clocks.max.memory": "3201 MHz",
    "mig.mode.current": "Disabled",
    "gsp.mode.default": "Enabled",
    "c2c.mode": "Disabled",
    "protected_memory.total": "0 MiB",
    "fabric.state": "Completed",
    "fabric.status": "Success",
    "fabric.cliqueId": "0",
    "fabric.clusterUuid": "00000000-0000-0000-0000-000000000000",
    "hostname": "[N/A]",
}


def test_an_idle_h200_is_as_nvidia_smi_has_it() -> None:
    (row,) = cells("h200,procs=0,frozen=1", *H200)
    assert dict(zip(H200, row, strict=True)) == H200


FORMS = {
    "MiB": r"\d+ MiB",
    "W": r"\d+\.\d\d W",
    "%": r"\d+(\.\d\d)? %",
    "MHz": r"\d+ MHz",
    "us": r"\d+ us",
    "ms": r"\d+ ms",
    "W/s": r"\d+\.\d\d W/s",
    "seconds": r"\d+ seconds",
    "": r"[^ ].*|",
}


@pytest.mark.parametrize("model", ["h100", "t4", "gb200", "a100,mig=1g.5gb"])
def test_every_field_has_its_form_with_and_without_units(model: str) -> None:
    names = [field.name for field in FIELDS]
    assert len(set(names)) == len(names)
    (row,) = cells(f"{model},frozen=1", *names)
    (bare,) = cells(f"{model},frozen=1", *names, style="csv,nounits,noheader")
    for field, value, number in zip(FIELDS, row, bare, strict=True):
        if value.startswith("[") or value == "N/A":
            assert value in ("[N/A]", "N/A", DEPRECATED), field.name
            assert number == value
            continue
        assert re.fullmatch(FORMS[field.unit], value), f"{field.name}: {value}"
        if field.name != "timestamp":
            assert number == (value.removesuffix(f" {field.unit}") if field.unit else value)


def test_the_header_has_full_names_and_units() -> None:
    names = "timestamp,gpu_name,gpu_uuid,clocks.sm,memory.used,fan.speed,temperature.memory,retired_pages.sbe"
    arguments = ("--simulate", "h100", f"--query-gpu={names}")
    full = "timestamp, name, uuid, clocks.current.sm{MHz}, memory.used{MiB}, fan.speed{%}, temperature.memory, "
    full += "retired_pages.single_bit_ecc.count"
    header = run(*arguments, "--format=csv").stdout.splitlines()[0]
    assert header == re.sub(r"{(\w+|%)}", r" [\1]", full)
    assert run(*arguments, "--format=csv,nounits").stdout.splitlines()[0] == re.sub(r"{(\w+|%)}", "", full)
    assert len(run(*arguments, "--format=csv,noheader").stdout.splitlines()) == 1


def test_both_names_of_a_field_are_one() -> None:
    for field in FIELDS:
        assert fields.find([field.name, *field.aliases]) == [field] * (1 + len(field.aliases))


@pytest.mark.parametrize(
    ("driver", "display", "clocks", "header"),
    [
        ("525.147.05", "Enabled", "1980 MHz", "clocks_throttle_reasons.active"),
        ("535.261.03", "Enabled", "1980 MHz", "clocks_event_reasons.active"),
        ("580.95.05", DEPRECATED, "1980 MHz", "clocks_event_reasons.active"),
        ("590.48.01", DEPRECATED, DEPRECATED, "clocks_event_reasons.active"),
    ],
)
def test_what_releases_gave_up_and_renamed(driver: str, display: str, clocks: str, header: str) -> None:
    names = "display_mode,clocks.applications.graphics,clocks_event_reasons.active"
    result = run("--simulate", f"h100,driver={driver}", f"--query-gpu={names}", "--format=csv")
    first, row = result.stdout.splitlines()
    assert first == f"display_mode, clocks.applications.graphics [MHz], {header}"
    assert row.split(", ")[:2] == [display, clocks]


def test_each_figure_of_memory_is_rounded_up() -> None:
    (row,) = cells("l40s,frozen=1", "memory.total", "memory.used", "memory.free", "memory.reserved")
    total, *parts = (int(cell.removesuffix(" MiB")) for cell in row)
    assert total <= sum(parts) <= total + 2


def test_the_timestamp() -> None:
    ((moment,),) = cells("t4", "timestamp")
    assert re.fullmatch(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3}", moment)


# ---- the program itself

NAME = rb"[a-z][A-Za-z_0-9]*(?:\.[A-Za-z_0-9]+)+"


@pytest.mark.real
def test_the_fields_of_nvidias_own_program_are_known() -> None:
    """The names lie together in it: those that --query-gpu has, and the headings of its help."""
    program_file = DRIVER / "usr" / "lib" / "nvidia" / "current" / "nvidia-smi"
    require(program_file.exists(), "needs NVIDIA's nvidia-smi: run scripts/fetch-nvidia-nvml")
    program = program_file.read_bytes()
    start, end = program.index(b"pci.bus_id\0"), program.index(b"process_name\0")
    names = {name.decode() for name in re.findall(rb"(?<=\0)" + NAME + rb"(?=\0)", program[start:end])}
    known = {name for field in FIELDS for name in (field.name, *field.aliases)}
    headings = {name for name in names if any(other.startswith(f"{name}.") for other in known)}
    assert len(names & known) > 140
    # One name is misspelt there, and in no help.
    assert names - known - headings <= {"clocks_event_reason.display_clocks_setting"}
    for message in (b'Field "%s" is not a valid field to query.', b"Format modifier is not recognized."):
        assert message in program


# ---- faults


def test_a_lost_gpu_has_its_row() -> None:
    result = run("--simulate", "h100x3,lost=1", "--query-gpu=index,name,memory.used,count", "--format=csv,noheader")
    rows = [line.split(", ") for line in result.stdout.splitlines()]
    assert result.exit_code == 0
    assert rows[1] == ["1", "[GPU is lost]", "[GPU is lost]", "3"]
    assert [row[0] for row in rows] == ["0", "1", "2"]
    assert rows[2][1].startswith("NVIDIA H100")
    assert result.stderr == "nvsandbox: GPU 1: GPU is lost\n"


def test_garbage_and_markers() -> None:
    ((name, used, rate, uuid),) = cells("h100,garbage=1,na=1", "name", "memory.used", "utilization.gpu", "uuid")
    assert "\N{REPLACEMENT CHARACTER}" in name
    assert (used, rate) == ("[N/A]", "[N/A]")
    assert uuid.startswith("GPU-")


def test_field_values_have_codes_of_their_own() -> None:
    names = ["power.draw.average", "power.draw.instant", "power_smoothing.priv_level", "gpu_recovery_action"]
    ids = [185, 186, 252, 230]
    (row,) = cells("h100,fields=mixed", *names, "temperature.memory", "power_smoothing.active_profile")
    codes = [id_ % 5 for id_ in (*ids, 82, 264)]  # 3: not supported, 4: unknown
    assert codes == [0, 1, 2, 0, 2, 4]
    assert row[0] == "0.28 W"  # 285 mW
    assert row[2] == "352"
    assert row[5] == "[Unknown Error]"
    (absent,) = cells("h100,fields=mixed", "power_smoothing.imm_ramp_down", "module.power.min_limit")
    assert absent[0] == "[N/A]"  # 253


def test_a_hang_costs_one_timeout_for_each_gpu_and_a_crash_one_field() -> None:
    arguments = ("--query-gpu=name,power.draw,uuid", "--format=csv,noheader", "--timeout", "1")
    result = run("--simulate", "h100x2,hang=nvmlDeviceGetPowerUsage", *arguments)
    for line in result.stdout.splitlines():
        assert line.split(", ")[1:] == ["[Timeout]", "[Timeout]"]
    reason = "nvmlDeviceGetPowerUsage did not return within 1 s"
    assert result.stderr.splitlines() == [f"nvsandbox: GPU {n}: {reason}" for n in (0, 1)]
    result = run("--simulate", "h100x2,crash=nvmlDeviceGetPowerUsage", *arguments)
    for line in result.stdout.splitlines():
        name, power, uuid = line.split(", ")
        assert (power, uuid[:4]) == ("[Unknown Error]", "GPU-")
        assert name.startswith("NVIDIA")
    assert result.stderr.count("nvmlDeviceGetPowerUsage") == 2


@pytest.mark.parametrize("function", ["nvmlSystemGetDriverVersion", "nvmlDeviceGetSerial", "nvmlSystemGetProcessName"])
@pytest.mark.parametrize("fault", ["hang", "crash"])
def test_what_the_query_itself_asks_may_fail_too(function: str, fault: str) -> None:
    arguments = ("--simulate", f"h100x2,{fault}={function}", "--timeout", "1", "--format=csv,noheader")
    (uuid,) = cells("h100x2", "uuid")[1]
    for option, expected in (("--query-gpu=index,uuid", f"1, {uuid}\n"), ("--query-compute-apps=gpu_uuid,name", uuid)):
        result = run(*arguments, option, "--id", uuid)
        assert result.exit_code == 0, result.output
        assert result.stdout.startswith(expected)


@pytest.mark.parametrize("symbols", ["v1", "v2"])
def test_an_old_library(symbols: str) -> None:
    (row,) = cells(f"h100,symbols={symbols},frozen=1", "memory.used", "temperature.gpu", "clocks_event_reasons.active")
    assert re.fullmatch(r"\d+ MiB", row[0])
    assert re.fullmatch(r"\d+", row[1])


# ---- which GPUs


def test_ids_of_all_kinds() -> None:
    everyone = cells("h100x3,frozen=1", "index", "uuid", "pci.bus_id", "serial")
    for index, uuid, bus, serial in everyone:
        for id_ in (index, uuid, uuid.upper(), bus, bus.lower()[4:], serial):
            result = run("--simulate", "h100x3,frozen=1", "-i", id_, "--query-gpu=index", "--format=csv,noheader")
            assert result.stdout == f"{index}\n", id_
    result = run("--simulate", "h100x3", "--id=2,0,2", "--query-gpu=index", "--format=csv,noheader")
    assert result.stdout == "2\n0\n"


def test_ids_choose_for_every_view_and_do_not_need_the_lost() -> None:
    uuid = cells("h100x3", "uuid")[2][0]
    assert "GPU-" in run("--simulate", "h100x3,lost=0", "-i", uuid).stdout
    assert '"index": 2' in run("--simulate", "h100x3", "-i", "2", "--json").stdout
    assert run("--simulate", "h100x3", "-i", "1", "--mig").stdout.startswith("GPU 1: ")


# ---- processes


def test_compute_apps() -> None:
    arguments = ["--simulate", "h100x2,procs=2,frozen=1", "--format=csv"]
    result = run("--query-compute-apps=gpu_uuid,pid,name,used_memory", *arguments)
    header, *rows = result.stdout.splitlines()
    assert header == "gpu_uuid, pid, process_name, used_gpu_memory [MiB]"
    assert len(rows) == 4
    uuids = [uuid for (uuid,) in cells("h100x2,frozen=1", "uuid")]
    assert [row.split(", ")[0] for row in rows] == [uuids[0]] * 2 + [uuids[1]] * 2
    for row in rows:
        assert re.fullmatch(r"GPU-[\w-]+, 300\d+, \[N/A\], \d+ MiB", row)
    bare = run("--query-compute-apps=used_gpu_memory", *arguments[:2], "--format=csv,noheader,nounits")
    assert all(line.isdigit() for line in bare.stdout.splitlines())
    assert run("--query-compute-apps=pid", "--simulate", "h100,procs=0", "--format=csv").stdout == "pid\n"


def test_compute_apps_when_something_is_wrong() -> None:
    result = run("--simulate", "h100x2,lost=0,na=1", "--query-compute-apps=pid,used_memory", "--format=csv,noheader")
    assert result.exit_code == 0
    assert re.fullmatch(r"\d+, \[N/A\]\n", result.stdout)
    assert "GPU 0" in result.stderr
    result = run("--simulate", "h100,insufficient=1", "--query-compute-apps=pid", "--format=csv,noheader")
    assert (result.stdout, result.exit_code) == ("", 0)
    assert result.stderr == "nvsandbox: GPU 0: no processes: Insufficient Size\n"


@pytest.mark.parametrize("grow", ["grow=1,procs=0", "grow=1,procs=5000"])
def test_lists_that_grow(grow: str) -> None:
    result = run("--simulate", f"h100,{grow}", "--query-compute-apps=pid", "--format=csv,noheader")
    assert result.stderr == ""
    assert len(result.stdout.splitlines()) >= int(grow.split("=")[-1])


def test_names_of_processes_only_where_pids_are_ours() -> None:
    require(os.geteuid() == 0, "needs root, to make pid namespaces")
    command = [sys.executable, "-m", "nvsandbox", "query", "--simulate", "h100"]
    views = {
        "csv": ["--query-compute-apps=pid,process_name", "--format=csv,noheader"],
        "table": ["--processes"],
    }
    for view, options in views.items():
        for inside, prefix in ((False, []), (True, ["unshare", "-pf", "--mount-proc"])):
            done = subprocess.run(
                [*prefix, *command, *options], cwd="/", check=True, capture_output=True, text=True, timeout=60
            )
            last = done.stdout.splitlines()[-1]
            initial = os.readlink("/proc/self/ns/pid") == "pid:[4026531836]"
            if inside or not initial:
                assert last.endswith({"csv": ", [N/A]", "table": "N/A"}[view])
                assert "initial pid namespace" in done.stderr
            else:
                assert last.endswith(sys.executable)
                assert done.stderr == ""


# ---- usage


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["--query-gpu=memory.usedd", "--format=csv"],
            'Field "memory.usedd" is not a valid field to query. Is it memory.used',
        ),
        (["--query-gpu=name,", "--format=csv"], "--query-gpu name,: expected names of fields"),
        (["--query-gpu=power.drawn", "--format=csv"], "--help-query-gpu lists all"),
        (["--query-compute-apps=gpu", "--format=csv"], "gpu_"),
        (["--query-gpu=name"], "--query-gpu needs --format=csv"),
        (["--query-gpu=name", "--format=xml"], "Format modifier is not recognized"),
        (["--query-gpu=name", "--format=noheader"], "--format=csv,noheader"),
        (["--query-gpu=name", "--format=csv", "--json"], "--query-gpu and --json are mutually exclusive"),
        (["--query-compute-apps=pid", "--format=csv", "--json"], "are mutually exclusive"),
        (["--format=csv"], "--format csv: is for --query-gpu"),
        (["--mig", "--topology"], "--topology and --mig are mutually exclusive"),
        (["--query-gpu=name", "--format=csv", "--processes"], "are mutually exclusive"),
        (["--id", "7"], "--id 7: no GPU has it. Expected an index (0 to 1)"),
        (["--id", "GPU-nobody"], "--id GPU-nobody"),
        (["--id", ","], "expected indexes"),
        (["--count", "3"], "--count needs --watch"),
        (["--watch", "soon"], "'soon': expected seconds"),
        (["--watch", "0"], "'0': expected seconds"),
        (["--watch", "nan"], "expected seconds"),
        (["-lms", "x"], "expected milliseconds"),
        (["--watch", "1", "-lms", "100"], "--watch and --loop-ms are mutually exclusive"),
        (["--watch", "1", "--count", "0"], "'0': expected how many times, a whole number from 1 on"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_usage_is_2_and_says_what_would_be_right(arguments: list[str], text: str) -> None:
    result = run("--simulate", "h100x2", *arguments)
    assert result.exit_code == 2, result.output
    assert text in result.stderr
    assert "Traceback" not in result.stderr


def test_help_lists_each_field_with_where_it_comes_from() -> None:
    text = run("--help-query-gpu").stdout
    for field in FIELDS:
        assert " or ".join(f'"{name}"' for name in (field.name, *field.aliases)) + "\n" in text
    assert '"memory.used"\nnvmlDeviceGetMemoryInfo_v2 [MiB]\n' in text
    apps = run("--help-query-compute-apps").stdout
    assert '"process_name" or "name"\n' in apps
    names = re.findall(r'^"([\w.]+)"', text, re.M)
    assert run("--simulate", "t4", f"--query-gpu={','.join(names)}", "--format=csv").exit_code == 0


# ---- by NVML's names


def test_fields_by_the_function_that_they_come_from() -> None:
    for name in (
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetName",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetTemperatureV",
    ):
        [field] = fields.find([name])
        assert cells("h100,frozen=1", name) == cells("h100,frozen=1", field.name)
    header = run("--simulate", "h100", "--query-gpu=nvmlDeviceGetPowerUsage", "--format=csv").stdout.splitlines()[0]
    assert header == "power.draw [W]"


def test_functions_that_answer_several_fields() -> None:
    for name in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"):
        done = run("--simulate", "h100", f"--query-gpu=uuid,{name}", "--format=csv")
        assert done.exit_code == 2
        assert f'Field "{name}" stands for several, of which one is to be named: memory.total, ' in done.stderr


def test_field_values_by_their_constants() -> None:
    """As NVML has them, in its units."""
    names = ["NVML_FI_DEV_MEMORY_TEMP", "NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "NVML_FI_DEV_POWER_INSTANT"]
    (row,) = cells("h100,frozen=1", *names)
    with nvml_isolated(simulate="h100,frozen=1") as nvml:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        values = nvml.nvmlDeviceGetFieldValues(gpu, [getattr(pynvml, name) for name in names])
        assert row[0] == str(values[0].value.uiVal)
        assert row[1] == str(values[1].value.ullVal)
        assert row[2] == str(values[2].value.uiVal)
    done = run("--simulate", "h100", f"--query-gpu={names[0]}", "--format=csv")
    assert done.stdout.splitlines()[0] == names[0]
    done = run("--simulate", "h100", "--query-gpu=NVML_FI_DEV_NONSENSE,nvmlDeviceGetNonsense", "--format=csv")
    assert done.exit_code == 2
    assert 'Field "NVML_FI_DEV_NONSENSE" is not' in done.stderr
    assert 'Field "nvmlDeviceGetNonsense" is not' in done.stderr
