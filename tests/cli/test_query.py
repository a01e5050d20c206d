# SPDX-License-Identifier: Apache-2.0
"""``nvsandbox query``: what it prints, for whom, and how it ends."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from host import require

from nvsandbox import control, simulate
from nvsandbox.cli import main, wording

DOCS = Path(__file__).parents[2] / "docs" / "cli" / "query.md"
MIB = 1 << 20

GPU_KEYS = {
    *("index", "minor_number", "name", "uuid", "pci_bus_id"),
    *("memory_total_bytes", "memory_used_bytes", "memory_free_bytes", "memory_reserved_bytes"),
    *("utilization_gpu_percent", "utilization_memory_percent", "temperature_celsius", "temperature_memory_celsius"),
    *("power_milliwatts", "power_limit_milliwatts", "energy_millijoules"),
    *("mig_enabled", "mig_devices", "processes", "error", "errors"),
}
MIG_KEYS = {
    *("index", "name", "uuid", "gpu_instance_id", "compute_instance_id", "errors"),
    *("memory_total_bytes", "memory_used_bytes", "memory_free_bytes", "memory_reserved_bytes"),
}
TOP_KEYS = {
    *("nvsandbox_version", "isolation", "library", "simulate", "driver_version", "nvml_version", "cuda_version"),
    *("errors", "totals", "gpus"),
}


def run(*arguments: str, **env: str) -> Result:
    return CliRunner().invoke(main, ["query", *arguments], prog_name="nvsandbox", env=env)


def listed(description: str, *arguments: str) -> dict[str, Any]:
    result = run("--simulate", description, "--json", *arguments)
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = json.loads(result.stdout)
    return report


# ---- JSON


def test_json_has_the_documented_keys_and_consistent_values() -> None:
    report = listed("h100x8,frozen=1")
    assert set(report) == TOP_KEYS
    assert len(report["gpus"]) == 8
    for index, gpu in enumerate(report["gpus"]):
        assert set(gpu) == GPU_KEYS
        assert (gpu["index"], gpu["minor_number"]) == (index, index)
        assert "H100" in gpu["name"]
        parts = ("memory_used_bytes", "memory_free_bytes", "memory_reserved_bytes")
        assert sum(gpu[part] for part in parts) == gpu["memory_total_bytes"] > 0
        assert 0 <= gpu["utilization_gpu_percent"] <= 100
        assert 0 < gpu["power_milliwatts"] <= gpu["power_limit_milliwatts"]
        assert gpu["energy_millijoules"] > 0
        assert (gpu["mig_enabled"], gpu["mig_devices"], gpu["error"], gpu["errors"]) == (False, [], None, [])
    for key in ("uuid", "pci_bus_id"):
        assert len({gpu[key] for gpu in report["gpus"]}) == 8
    assert report["totals"] == {
        "gpus": 8,
        "gpus_with_memory": 8,
        "memory_total_bytes": sum(gpu["memory_total_bytes"] for gpu in report["gpus"]),
        "memory_used_bytes": sum(gpu["memory_used_bytes"] for gpu in report["gpus"]),
    }


def test_every_json_key_is_documented() -> None:
    documented = set(re.findall(r"`([a-z_]+)`", DOCS.read_text(encoding="utf-8")))
    process_keys = set(listed("h100,procs=1")["gpus"][0]["processes"][0])
    assert TOP_KEYS | GPU_KEYS | MIG_KEYS | process_keys <= documented


def test_mig_devices() -> None:
    gpu = listed("a100,mig=1g.5gb*2+3g.20gb")["gpus"][0]
    assert gpu["mig_enabled"] is True
    assert gpu["utilization_gpu_percent"] is None
    assert gpu["errors"] == []
    assert len(gpu["mig_devices"]) == 3
    for device in gpu["mig_devices"]:
        assert set(device) == MIG_KEYS
        assert device["uuid"].startswith("MIG-")
        assert 0 < device["memory_used_bytes"] < device["memory_total_bytes"] < gpu["memory_total_bytes"]
    assert {device["name"].split("MIG ")[1] for device in gpu["mig_devices"]} == {"1g.5gb", "3g.20gb"}


def test_what_a_gpu_has_not_is_null_and_no_error() -> None:
    gpu = listed("t4")["gpus"][0]
    assert (gpu["mig_enabled"], gpu["mig_devices"], gpu["errors"]) == (None, None, [])


# ---- faults of the field


def test_undecodable_names_cost_nothing_else() -> None:
    clean, dirty = (
        listed("a100,mig=1g.5gb,frozen=1")["gpus"][0],
        listed("a100,mig=1g.5gb,frozen=1,garbage=1")["gpus"][0],
    )
    assert "\N{REPLACEMENT CHARACTER}" in dirty["name"]
    assert "\N{REPLACEMENT CHARACTER}" in dirty["mig_devices"][0]["name"]
    assert dirty["errors"] == []
    for gpu in (clean, dirty):
        del gpu["name"], gpu["mig_devices"][0]["name"]
    assert dirty == clean


def test_not_available_is_null_and_not_summed() -> None:
    report = listed("h100x2,na=1")
    for gpu in report["gpus"]:
        for key in ("memory_total_bytes", "memory_used_bytes", "memory_free_bytes", "memory_reserved_bytes"):
            assert gpu[key] is None, key
        assert gpu["utilization_gpu_percent"] is None
        assert gpu["errors"] == []
        assert [process["used_memory_bytes"] for process in gpu["processes"]] == [None]
    assert report["totals"] == {
        "gpus": 2,
        "gpus_with_memory": 0,
        "memory_total_bytes": None,
        "memory_used_bytes": None,
    }


def test_a_lost_gpu_is_listed_and_shifts_nobody() -> None:
    healthy, report = listed("h100x4,frozen=1"), listed("h100x4,lost=1,frozen=1")
    lost = report["gpus"].pop(1)
    healthy["gpus"].pop(1)
    assert report["gpus"] == healthy["gpus"]
    assert lost["index"] == 1
    assert lost["error"] == {"field": "gpu", "code": 15, "type": "NVMLError_GpuIsLost", "message": "GPU is lost"}
    assert {value for key, value in lost.items() if key not in ("index", "error", "errors")} == {None}
    assert report["totals"]["gpus_with_memory"] == 3


def test_minor_numbers_are_not_indexes() -> None:
    report = listed("h100x3,minors=2+0+5")
    assert [(gpu["index"], gpu["minor_number"]) for gpu in report["gpus"]] == [(0, 2), (1, 0), (2, 5)]


@pytest.mark.parametrize("symbols", ["v1", "v2"])
def test_an_old_driver_is_asked_by_older_symbols(symbols: str) -> None:
    new, old = listed("h100,frozen=1")["gpus"][0], listed(f"h100,frozen=1,symbols={symbols}")["gpus"][0]
    assert old["error"] is None
    for key in ("name", "uuid", "minor_number", "memory_total_bytes", "temperature_celsius", "power_milliwatts"):
        assert old[key] == new[key], key
    assert old["pci_bus_id"] is not None
    assert new["pci_bus_id"].endswith(old["pci_bus_id"])
    if symbols == "v1":
        assert old["memory_reserved_bytes"] is None


@pytest.mark.parametrize("processes", [0, 1, 5000])
def test_lists_that_grow_meanwhile_are_read_again(processes: int) -> None:
    gpu = listed(f"h100,grow=1,procs={processes}")["gpus"][0]
    assert gpu["errors"] == []
    assert len(gpu["processes"]) >= processes
    assert all(process["pid"] > 0 for process in gpu["processes"])


def test_a_list_that_never_fits_ends_as_an_error() -> None:
    gpu = listed("h100,insufficient=1")["gpus"][0]
    assert gpu["processes"] is None
    assert {(error["field"], error["type"]) for error in gpu["errors"]} == {
        ("processes.compute", "NVMLError_InsufficientSize"),
        ("processes.graphics", "NVMLError_InsufficientSize"),
    }
    assert gpu["memory_total_bytes"] is not None


def test_pids_are_as_nvml_says_in_a_pid_namespace_too() -> None:
    require(os.geteuid() == 0, "needs root, to make pid namespaces")
    command = [sys.executable, "-m", "nvsandbox", "query", "--simulate", "h100,frozen=1,procs=3", "--json"]
    seen = []
    for prefix in ([], ["unshare", "-pf", "--mount-proc"]):
        done = subprocess.run([*prefix, *command], cwd="/", check=True, capture_output=True, text=True, timeout=60)
        seen.append(json.loads(done.stdout)["gpus"][0]["processes"])
    assert seen[0] == seen[1]
    assert set(seen[0][0]) == {"pid", "kind", "used_memory_bytes", "gpu_instance_id", "compute_instance_id"}


def test_a_crash_costs_one_field() -> None:
    report = listed("h100x2,crash=nvmlDeviceGetUtilizationRates")
    for gpu in report["gpus"]:
        assert gpu["error"] is None
        assert [(error["field"], error["type"]) for error in gpu["errors"]] == [("utilization", "WorkerDied")]
        assert gpu["utilization_gpu_percent"] is None
        assert None not in (gpu["memory_total_bytes"], gpu["power_milliwatts"], gpu["processes"])


def test_a_hang_costs_one_timeout_for_each_gpu() -> None:
    report = listed("h100x2,hang=nvmlDeviceGetUtilizationRates", "--timeout", "1")
    for gpu in report["gpus"]:
        assert gpu["error"]["type"] == "CallTimeout"
        assert gpu["memory_total_bytes"] is not None  # asked before
        assert (gpu["power_milliwatts"], gpu["processes"]) == (None, None)


# ---- text


def test_lines_when_it_is_no_terminal() -> None:
    result = run("--simulate", "h100x4,lost=2,frozen=1")
    assert result.exit_code == 0
    head, columns, *rows = result.stdout.splitlines()[:6]
    assert "isolation" in head
    assert "simulated: h100x4" in head
    names = re.split(r" {2,}", columns)
    assert names[0] == "GPU"
    assert names[-1] == "STATUS"
    cells = [dict(zip(names, re.split(r" {2,}", row), strict=True)) for row in rows]
    assert [cell["GPU"] for cell in cells] == ["0", "1", "2", "3"]
    assert cells[2]["STATUS"] == "GPU is lost"
    assert set(cells[2].values()) == {"2", "N/A", "GPU is lost"}
    gpu = listed("h100x4,frozen=1")["gpus"][1]
    assert cells[1]["UUID"] == gpu["uuid"]
    assert cells[1]["TOTAL MiB"] == str(round(gpu["memory_total_bytes"] / MIB))
    assert "4 GPUs, " in result.stdout
    assert "(only 3 of them report memory)" in result.stdout
    assert result.stderr.startswith(
        "nvsandbox: GPU 2: cannot be queried: GPU is lost; the kernel log has its XID error"
    )
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("ending", ["crash", "hang"])
def test_nvml_that_fails_in_its_initialisation(ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are NVML's own failures, and what to do is said."""
    monkeypatch.setattr(control, "START_LIMIT", 2.0)  # by then it must have got as far as that
    result = run("--simulate", f"h100,{ending}=nvmlInit", "--json")
    assert result.exit_code == 1
    error = json.loads(result.stdout)["error"]
    assert (error["exit_code"], error["type"]) == (1, "WorkerDied" if ending == "crash" else "SandboxStartError")
    for text in (result.stderr, error["message"]):
        assert "loading and initialising NVML" in text
        assert "the kernel log" in text
        assert "nvsandbox doctor" in text


def test_the_same_problem_on_several_gpus_is_told_once() -> None:
    result = run("--simulate", "h100x2,crash=nvmlDeviceGetUtilizationRates")
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("nvsandbox: GPU 0, GPU 1: no utilization: ")


def test_a_hang_is_told_once() -> None:
    result = run("--simulate", "h100x2,hang=nvmlDeviceGetUtilizationRates", "--timeout", "1")
    reason = "nvmlDeviceGetUtilizationRates did not return within 1 s"
    assert result.stderr == f"nvsandbox: GPU 0, GPU 1: cannot be queried: {reason}\n"
    rows = result.stdout.splitlines()[2:4]
    assert [re.split(r" {2,}", row)[-1] for row in rows] == [reason] * 2


@pytest.mark.parametrize(
    "description", ["h100x2,crash=nvmlDeviceGetUtilizationRates", "a100x2,mig=1g.5gb,crash=nvmlDeviceGetGpuInstanceId"]
)
def test_a_gpu_that_was_read_in_part_is_partial(description: str) -> None:
    result = run("--simulate", description)
    assert result.exit_code == 0
    assert [re.split(r" {2,}", row)[-1] for row in result.stdout.splitlines()[2:4]] == ["partial"] * 2
    assert "partial, without " in on_terminal(80, "--simulate", description)


def test_output_without_utf8() -> None:
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    command = [sys.executable, "-m", "nvsandbox", "query", "--simulate", "h100,garbage=1"]
    done = subprocess.run(command, env=env, cwd="/", capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert b"GPU-" in done.stdout


def on_terminal(columns: int, *arguments: str) -> str:
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    command = [sys.executable, "-m", "nvsandbox", "query", *arguments]
    process = subprocess.Popen(command, stdin=follower, stdout=follower, stderr=subprocess.DEVNULL, cwd="/",
                               env={**env, "TERM": "xterm"})  # fmt: skip
    os.close(follower)
    out = b""
    try:
        while chunk := os.read(leader, 65536):
            out += chunk
    except OSError:  # EIO: the other end is closed
        pass
    os.close(leader)
    assert process.wait(timeout=30) == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", out.decode()).replace("\r\n", "\n")


@pytest.mark.parametrize("description", ["h100x8", "a100x2,mig=1g.5gb*7", "h100x2,garbage=1", "h100x2,na=1,lost=0"])
def test_a_table_of_80_columns_on_a_terminal(description: str) -> None:
    out = on_terminal(80, "--simulate", description)
    report = listed(description)
    assert max(map(len, out.splitlines())) <= 80
    for gpu in report["gpus"]:
        if gpu["error"] is None:
            assert gpu["uuid"] in out
            assert gpu["pci_bus_id"] in out
        for device in gpu["mig_devices"] or ():
            assert device["uuid"] in out
    assert f"{len(report['gpus'])} GPUs" in out
    assert "…" not in out


@pytest.mark.parametrize("model", sorted(simulate.profiles()))
def test_a_wide_terminal_has_a_line_for_each_gpu(model: str) -> None:
    out = on_terminal(160, "--simulate", f"{model}x3,frozen=1").splitlines()
    assert max(map(len, out)) <= 160
    for gpu in listed(f"{model}x3,frozen=1")["gpus"]:
        (line,) = (line for line in out if gpu["uuid"] in line)
        for text in (gpu["name"], gpu["pci_bus_id"], str(round(gpu["memory_free_bytes"] / MIB)), "ok"):
            assert text in line


def test_a_narrow_terminal_loses_nothing() -> None:
    out = on_terminal(40, "--simulate", "h100,frozen=1").replace("\n", "")
    gpu = listed("h100,frozen=1")["gpus"][0]
    assert gpu["uuid"] in out
    assert f"{round(gpu['memory_reserved_bytes'] / MIB)} reserved" in out
    assert "…" not in out


# ---- options and endings


def test_options_reach_the_sandbox() -> None:
    report = listed("h100", "--isolation", "guard", "--transport", "pipe", "--timeout", "none")
    assert report["isolation"] == "guard"
    assert len(report["gpus"]) == 1


def test_the_environment_gives_defaults() -> None:
    result = run("--json", NVSANDBOX_SIMULATE="t4x2")
    assert [gpu["name"] for gpu in json.loads(result.stdout)["gpus"]] == ["Tesla T4"] * 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--simulate", "h1000x8"], "h100"),
        (["--simulate", "h100", "--devices", "nonsense"], "minor numbers"),
        (["--timeout", "soon"], "seconds"),
        (["--timeout", "-1"], "above 0, or none for no limit"),
        (["--isolation", "none"], "mount"),
        (["--driver-root", "/nowhere/at/all"], "does not exist"),
        (["--driver-root", "/nowhere/at/all"], "--driver-root /nowhere/at/all does not exist"),
        (
            ["--simulate", "h100", "--library", "/bin/true"],
            "--simulate h100 and --library /bin/true are mutually exclusive",
        ),
        (["--simulate", "h100", "--devices", "GPU-12345678"], "--devices GPU-12345678: with --simulate h100 expected"),
        (
            ["--simulate", "h100x2", "--devices", "5,7"],
            "--devices 5,7: none of the simulated GPUs has one of these minor numbers; theirs are 0, 1\n",
        ),
        (["surplus"], "surplus"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_usage_is_2_and_says_what_would_be_right(arguments: list[str], text: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert text in result.stderr
    assert "Traceback" not in result.stderr


def no_traceback(result: Result, code: int) -> None:
    assert result.exit_code == code, result.output
    assert result.stderr.startswith("nvsandbox: ")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("description", "type_", "nvml_code"),
    [
        ("h100,crash=nvmlInit", "WorkerDied", 999),
        ("h100,crash=nvmlDeviceGetCount", "WorkerDied", 999),
        ("h100,hang=nvmlDeviceGetCount", "CallTimeout", 10),
    ],
)
def test_where_nvml_fails_it_is_1(description: str, type_: str, nvml_code: int) -> None:
    arguments = ("--simulate", description, "--timeout", "1")
    result = run(*arguments)
    no_traceback(result, 1)
    assert result.stdout == ""
    result = run(*arguments, "--json")
    no_traceback(result, 1)
    error = json.loads(result.stdout)["error"]
    assert (error["type"], error["nvml_code"], error["exit_code"]) == (type_, nvml_code, 1)
    assert error["message"] in result.stderr


def test_no_library_is_1_and_says_where_it_looked(tmp_path: Path) -> None:
    result = run("--driver-root", str(tmp_path))
    no_traceback(result, 1)
    assert f"none was found under --driver-root {tmp_path}; " in result.stderr
    assert "? simulated GPUs need none: --simulate h100x8; tried:" in result.stderr


def test_errors_speak_of_options_not_of_keywords() -> None:
    written = wording.as_options(
        "driver_root='/a b' library= dev_root=\"/x\" devices=[0, 2]: timeout=-1.0: simulate='h100,na=1' devices="
    )
    assert written == (
        "--driver-root '/a b' --library --dev-root /x --devices 0,2: --timeout -1.0: --simulate h100,na=1 --devices"
    )
    result = run("--simulate", "h100", "--devices", "3")
    assert "Error: --devices 3: none of the simulated GPUs has" in result.stderr
    assert "=" not in run("--library", "/bin/true").stderr


def test_no_privilege_is_3_and_names_it() -> None:
    require(os.geteuid() == 0 and shutil.which("setpriv"), "needs root, to give up CAP_SYS_ADMIN")
    command = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", sys.executable, "-m", "nvsandbox"]
    command += ["query", "--simulate", "h100", "--isolation", "mount", "--json"]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert done.stderr.startswith("nvsandbox: ")
    assert "CAP_SYS_ADMIN" in done.stderr
    assert json.loads(done.stdout)["error"]["type"] == "SandboxUnavailable"


def test_wrong_usage_in_json() -> None:
    result = run("--simulate", "nothing", "--json")
    assert result.exit_code == 2
    error = json.loads(result.stdout)["error"]
    assert (error["type"], error["nvml_code"], error["exit_code"]) == ("UsageError", None, 2)


def test_debug_shows_the_traceback() -> None:
    result = run("--simulate", "h100,crash=nvmlInit", NVSANDBOX_DEBUG="1")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("nvsandbox: ")


def test_version_and_help() -> None:
    runner = CliRunner()
    version = runner.invoke(main, ["--version"], prog_name="nvsandbox")
    assert re.fullmatch(r"nvsandbox [0-9.]+\S*\n", version.stdout)
    for arguments in (["--help"], ["query", "--help"]):
        text = runner.invoke(main, arguments, prog_name="nvsandbox").stdout
        assert "Examples:" in text
        assert max(map(len, text.splitlines())) <= 80


@pytest.mark.real
def test_without_a_driver_the_real_library_is_1(real_library: str) -> None:
    result = run("--library", real_library, "--json")
    no_traceback(result, 1)
    error = json.loads(result.stdout)["error"]
    assert (error["type"], error["nvml_code"]) == ("NVMLError_DriverNotLoaded", 9)
