# SPDX-License-Identifier: Apache-2.0
"""``--processes`` and ``--mig``, and the examples of the page that describes them."""

from __future__ import annotations

import ctypes
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from host import require_isolation

from nvsandbox import mig, nvml_isolated
from nvsandbox.cli import main
from nvsandbox.processes import Names, Process, clients

PAGE = Path(__file__).parents[2] / "docs" / "cli" / "query.md"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["query", *arguments], prog_name="nvsandbox")


def read(description: str, view: str) -> dict[str, Any]:
    result = run("--simulate", description, view, "--json")
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = json.loads(result.stdout)
    return report


EXAMPLES = re.findall(r"^\$ nvsandbox query (.*frozen=1.*)\n((?:[^`$].*\n)+)", PAGE.read_text(encoding="utf-8"), re.M)


@pytest.mark.parametrize(("arguments", "output"), EXAMPLES, ids=[arguments for arguments, _ in EXAMPLES])
def test_the_examples_of_the_page(arguments: str, output: str) -> None:
    assert run(*arguments.split()).stdout == output


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 3


@pytest.mark.parametrize("view", ["--processes", "--mig", "--topology"])
def test_every_json_key_is_documented(view: str) -> None:
    documented = set(re.findall(r"`([a-z_]+)`", PAGE.read_text(encoding="utf-8")))
    report = read("a100x2,mig=3g.20gb,lost=1", view)

    def keys(value: Any) -> set[str]:
        if isinstance(value, dict):
            return set(value) | {key for each in value.values() for key in keys(each)}
        return {key for each in value for key in keys(each)} if isinstance(value, list) else set()

    assert keys(report) <= documented
    assert [gpu["error"] and gpu["error"]["code"] for gpu in report["gpus"]] == [None, 15]


# ---- processes


def test_one_line_for_what_a_process_does() -> None:
    class Unknown(Names):
        def __init__(self) -> None:
            self.usable = False

    found = clients(
        [
            Process(7, "compute", 10, None, None),
            Process(8, "compute", None, 1, 0),
            Process(7, "graphics", 10, None, None),
            Process(9, "graphics", 5, None, None),
            Process(8, "mps", 3, 1, 0),
            Process(8, "compute", 4, 2, 0),
        ],
        Unknown(),
    )
    assert [(each.pid, each.type, each.used_memory_bytes, each.gpu_instance_id) for each in found] == [
        (7, "C+G", 10, None),
        (8, "M+C", 3, 1),
        (9, "G", 5, None),
        (8, "C", 4, 2),
    ]


def test_processes_of_mig_devices() -> None:
    (gpu,) = read("a100,mig=3g.20gb*2,procs=3,frozen=1", "--processes")["gpus"]
    assert [(each["gpu_instance_id"], each["compute_instance_id"]) for each in gpu["processes"]] == [(1, 0)] * 2 + [
        (2, 0)
    ]
    assert all(each["type"] == "C" and each["used_memory_bytes"] > 0 for each in gpu["processes"])


def test_a_list_that_cannot_be_read_is_no_empty_list() -> None:
    (gpu,) = read("h100,insufficient=1", "--processes")["gpus"]
    assert gpu["processes"] is None
    assert {error["type"] for error in gpu["errors"]} == {"NVMLError_InsufficientSize"}
    result = run("--simulate", "h100,insufficient=1", "--processes")
    assert result.stdout.splitlines()[1].split() == ["0", *["N/A"] * 6]
    assert "Insufficient Size" in result.stderr


def test_no_processes() -> None:
    assert run("--simulate", "h100x2,procs=0", "--processes").stdout.splitlines()[1:] == ["No running processes found"]


# ---- MIG


def test_the_tree() -> None:
    on, off = read("a100x2,mig=1g.5gb*2+3g.20gb", "--mig")["gpus"], read("a100", "--mig")["gpus"]
    assert (off[0]["mig_enabled"], off[0]["gpu_instances"]) == (False, [])
    assert read("t4", "--mig")["gpus"][0]["mig_enabled"] is None
    for gpu in on:
        assert [instance["profile"] for instance in gpu["gpu_instances"]] == ["3g.20gb", "1g.5gb", "1g.5gb"]
        taken: set[int] = set()
        for instance in gpu["gpu_instances"]:
            run_ = range(instance["placement"]["start"], instance["placement"]["start"] + instance["placement"]["size"])
            assert not taken & set(run_)
            taken |= set(run_)
            (part,) = instance["compute_instances"]
            device = part["device"]
            assert (device["gpu_instance_id"], device["compute_instance_id"]) == (instance["id"], part["id"])
            assert device["uuid"].startswith("MIG-")
            assert device["memory_total_bytes"] == instance["memory_total_bytes"]


class Refusing:
    """NVML as it is for somebody who may not see instances."""

    def __init__(self, nvml: Any, refused: str) -> None:
        self._nvml = nvml
        self._refused = refused

    def _nvmlGetFunctionPointer(self, name: str) -> Any:
        if name == self._refused:
            return lambda *arguments: 4
        return self._nvml._nvmlGetFunctionPointer(name)


def test_without_the_right_to_see_instances_the_tree_is_made_from_devices() -> None:
    with nvml_isolated(simulate="a100,mig=1g.5gb+3g.20gb") as nvml:
        (full,) = mig.trees(nvml)
        (tree,) = mig.trees(Refusing(nvml, "nvmlDeviceGetGpuInstances"))
    assert [(error.field, error.code) for error in tree.errors] == [("gpu_instances", 4)]
    assert full.gpu_instances is not None
    assert tree.gpu_instances is not None
    for instance, whole in zip(tree.gpu_instances, full.gpu_instances, strict=True):
        assert (instance.id, instance.profile, instance.placement) == (whole.id, whole.profile, None)
        assert whole.placement is not None
        assert instance.compute_instances[0].device.uuid == whole.compute_instances[0].device.uuid


def test_several_compute_instances_in_one_gpu_instance() -> None:
    require_isolation("mount")
    with nvml_isolated(simulate="a100,mig=1g.5gb", privileged=True, isolation="mount") as nvml:
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        instance = nvml.nvmlDeviceCreateGpuInstance(gpu, 9)  # 3g.20gb
        for profile in (0, 0):  # 1c of it
            nvml.nvmlGpuInstanceCreateComputeInstance(instance, profile)
        empty = nvml.nvmlDeviceCreateGpuInstance(gpu, 14)  # 2g.10gb, without compute instances
        assert isinstance(empty, ctypes._Pointer)
        (tree,) = mig.trees(nvml)
    assert tree.errors == []
    found = {each.profile: [part.profile for part in each.compute_instances] for each in tree.gpu_instances or ()}
    assert found == {"1g.5gb": ["1g.5gb"], "3g.20gb": ["1c.3g.20gb", "1c.3g.20gb"], "2g.10gb": []}


def test_a_lost_and_a_hanging_gpu() -> None:
    result = run("--simulate", "a100x2,mig=1g.5gb,lost=0", "--mig")
    assert result.stdout.splitlines()[0] == "GPU 0: N/A (N/A): cannot be queried: GPU is lost"
    assert "MIG device 0" in result.stdout
    result = run("--simulate", "a100,mig=1g.5gb,hang=nvmlDeviceGetMigDeviceHandleByIndex", "--mig", "--timeout", "1")
    assert "did not return within 1 s" in result.stdout
    assert result.exit_code == 0
