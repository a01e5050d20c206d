# SPDX-License-Identifier: Apache-2.0
"""``--query-accounted-apps``, ``-f``, and what is said of fields that there are not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
from click.testing import CliRunner, Result

from nvsandbox import nvml_isolated
from nvsandbox.cli import main
from nvsandbox.cli.selected import ACCOUNTED_FIELDS, AccountedApps
from nvsandbox.fields import Style


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["query", *arguments], prog_name="nvsandbox")


@pytest.fixture
def accounting() -> Iterator[Any]:
    """Two GPUs, the second of which has accounting mode off."""
    with nvml_isolated(simulate="a100x2,procs=2,frozen=1", privileged=True, isolation="mount") as nvml:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        nvml.nvmlDeviceSetAccountingMode(gpu, pynvml.NVML_FEATURE_ENABLED)
        yield nvml


# As release 535 and later print it: "gpu_name, pid, time [ms], gpu_utilization [%], mem_utilization [%],
# max_memory_usage [MiB]" and "NVIDIA A100-PCIE-40GB, 1906656, 14193 ms, 55 %, 8 %, 4989 MiB".
NAMES = "gpu_name,pid,time,gpu_util,mem_util,max_memory_usage"


def test_as_nvidia_smi_prints_it(host: Any, accounting: Any) -> None:
    view = AccountedApps(NAMES, None, Style())
    data = view.read(accounting)
    header, *rows = view.lines(data)
    assert header == "gpu_name, pid, time [ms], gpu_utilization [%], mem_utilization [%], max_memory_usage [MiB]"
    assert len(rows) == 2
    for row, pid in zip(
        rows, accounting.nvmlDeviceGetAccountingPids(accounting.nvmlDeviceGetHandleByIndex(0)), strict=True
    ):
        stats = accounting.nvmlDeviceGetAccountingStats(accounting.nvmlDeviceGetHandleByIndex(0), pid)
        assert row == (
            f"NVIDIA A100-SXM4-40GB, {pid}, {stats.time} ms, {stats.gpuUtilization} %, {stats.memoryUtilization} %, "
            f"{-(-stats.maxMemoryUsage // 2**20)} MiB"
        )
    assert data.problems == ["GPU 1: accounting mode is off: nvidia-smi --accounting-mode=1 turns it on (as root)"]


def test_chosen_gpus_and_no_units(host: Any, accounting: Any) -> None:
    view = AccountedApps(f"gpu_uuid,vgpu_instance,{NAMES}", [0], Style(header=False, units=False))
    data = view.read(accounting)
    assert data.problems == []
    for row in view.lines(data):
        assert re.fullmatch(r"GPU-[\w-]+, \[N/A\], [^,]+(, \d+){5}", row)


def test_values_that_are_not_available(host: Any) -> None:
    with nvml_isolated(simulate="h100,procs=1,na=1", privileged=True, isolation="mount") as nvml:
        nvml.nvmlDeviceSetAccountingMode(nvml.nvmlDeviceGetHandleByIndex(0), 1)
        view = AccountedApps("pid,max_memory_usage", None, Style(header=False))
        [row] = view.lines(view.read(nvml))
    assert row.endswith(", [N/A]")


def test_where_no_account_is_kept() -> None:
    done = run("--simulate", "h100x2", "--query-accounted-apps=pid,time", "--format=csv")
    assert (done.exit_code, done.stdout) == (0, "pid, time [ms]\n")
    assert done.stderr.count("accounting mode is off: nvidia-smi --accounting-mode=1") == 2


def test_a_gpu_that_hangs_or_is_lost() -> None:
    done = run(
        "--simulate", "h100x2,lost=1,hang=nvmlDeviceGetAccountingMode", "--timeout", "1",
        "--query-accounted-apps=pid", "--format=csv,noheader",
    )  # fmt: skip
    assert (done.exit_code, done.stdout) == (0, "")
    assert "GPU 0: no processes: nvmlDeviceGetAccountingMode did not return within 1 s" in done.stderr
    assert "GPU 1: " in done.stderr


def test_the_help_lists_its_fields() -> None:
    text = run("--help-query-accounted-apps").stdout
    assert 'for the switch "--query-accounted-apps":' in text
    for name, aliases in ACCOUNTED_FIELDS.items():
        assert " or ".join(f'"{each}"' for each in (name, *aliases)) + "\n" in text
    assert '"gpu_utilization" or "gpu_util"\n' in text


# ---- -f


@pytest.mark.parametrize("option", ["-f", "--filename"])
def test_output_goes_to_a_file(tmp_path: Path, option: str) -> None:
    """One that was there is overwritten. What could not be read is told on stderr as ever."""
    file = tmp_path / "out.csv"
    file.write_text("something long that was there before\n" * 9)
    query = ("--simulate", "h100x2,lost=1", "--query-gpu=index,name", "--format=csv")
    usual = run(*query)
    done = run(*query, option, str(file))
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", usual.stderr)
    assert file.read_text() == usual.stdout
    assert "GPU is lost" in done.stderr


@pytest.mark.parametrize("view", [(), ("--json",), ("--processes",), ("--mig", "--json"), ("--topology",)], ids=str)
def test_every_view_can_go_to_a_file(tmp_path: Path, view: tuple[str, ...]) -> None:
    file = tmp_path / "out"
    query = ("--simulate", "h100,frozen=1", *view)
    assert run(*query, "-f", str(file)).stdout == ""
    assert file.read_text() == run(*query).stdout != ""


def test_a_watch_goes_on_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "out.csv"
    query = ("--simulate", "h100", "--query-gpu=name", "--format=csv", "-lms", "50", "--count", "3")
    assert run(*query, "-f", str(file)).exit_code == 0
    assert file.read_text() == "name\n" + "NVIDIA H100 80GB HBM3\n" * 3


def test_each_state_is_in_the_file_at_once(tmp_path: Path) -> None:
    """Somebody may follow it with tail -f."""
    file = tmp_path / "out.csv"
    command = [sys.executable, "-m", "nvsandbox", "query", "--simulate", "h100", "--query-gpu=name", "--format=csv"]
    with subprocess.Popen([*command, "-l", "60", "-f", str(file)], cwd="/") as process:
        end = time.monotonic() + 30
        while not (file.exists() and file.read_text().count("\n") == 2) and time.monotonic() < end:
            time.sleep(0.05)
        process.terminate()
    assert file.read_text() == "name\nNVIDIA H100 80GB HBM3\n"


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    query = ("--simulate", "h100", "--query-gpu=name", "--format=csv")
    done = run(*query, "-f", f"{tmp_path}/none/out")
    assert done.exit_code == 3
    assert done.stderr == f"nvsandbox: --filename {tmp_path}/none/out cannot be written: No such file or directory\n"
    assert "--filename '' cannot be written" in run(*query, "-f", "").stderr
    assert run(*query, "-f", str(tmp_path)).stderr.endswith("cannot be written: Is a directory\n")
    done = run(*query, "-f", "/dev/full")
    assert (done.exit_code, done.stdout) == (3, "")
    assert done.stderr == "nvsandbox: /dev/full cannot be written: No space left on device\n"
    done = run("--simulate", "h100", "--json", "-f", f"{tmp_path}/none/out")
    assert json.loads(done.stdout)["error"]["exit_code"] == done.exit_code == 3


def test_a_wrong_query_overwrites_nothing(tmp_path: Path) -> None:
    file = tmp_path / "out.csv"
    file.write_text("before")
    assert run("--simulate", "h100", "--query-gpu=nonsense", "--format=csv", "-f", str(file)).exit_code == 2
    assert file.read_text() == "before"


# ---- what is said of wrong fields


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--query-gpu=", "--format=csv"],
            "--query-gpu '': expected names of fields joined by commas, such as name,memory",
        ),
        (
            ["--query-gpu=name,,uuid", "--format=csv"],
            "--query-gpu name,,uuid: expected names of fields joined by commas",
        ),
        (["--query-gpu=name,", "--format=csv"], "--help-query-gpu lists all"),
        (["--query-gpu", "--format=csv"], "--query-gpu --format=csv: expected names of fields"),
        (["--query-accounted-apps= ", "--format=csv"], "--query-accounted-apps ' ': expected names of fields"),
        (
            ["--query-gpu=nam,uuid,nonsense", "--format=csv"],
            'Field "nam" is not a valid field to query. Is it name or gpu_name or hostname? Field "nonsense" is',
        ),
        (["--query-accounted-apps=gpu_utl", "--format=csv"], "Is it gpu_util or "),
        (["--query-accounted-apps=nonsense", "--format=csv"], "--help-query-accounted-apps lists all"),
        (["--query-accounted-apps=pid"], "--query-accounted-apps needs --format=csv"),
        (
            ["--query-accounted-apps=pid", "--query-gpu=name", "--format=csv"],
            "--query-gpu and --query-accounted-apps are mutually exclusive: one view at a time, so ask for each by "
            "itself",
        ),
        (
            ["--query-accounted-apps=pid", "--format=csv", "--json"],
            "--query-accounted-apps and --json are mutually exclusive",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_fields(arguments: list[str], words: str) -> None:
    done = run("--simulate", "h100", *arguments)
    assert done.exit_code == 2
    assert words in done.stderr
