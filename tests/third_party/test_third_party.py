# SPDX-License-Identifier: Apache-2.0
"""Monitors that people use, unmodified, on simulated GPUs in the sandbox: nvitop, gpustat, nvitop-exporter.

Each in a process of its own, for they keep global state.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from host import Host, require

ISOLATION = ["mount", "guard"]


@pytest.fixture(autouse=True)
def _installed() -> None:
    import importlib.util

    for name in ("nvitop", "gpustat", "nvitop_exporter"):
        require(importlib.util.find_spec(name), f"needs {name}: pip install nvsandbox[test]")


# ---- nvitop


def nvitop_snapshots(isolation: str) -> dict[str, Any]:
    import host
    import nvitop

    import nvsandbox

    def plain(value: Any) -> Any:
        if isinstance(value, tuple) and hasattr(value, "_asdict"):
            return {key: plain(item) for key, item in value._asdict().items()}
        return value if type(value) in (int, float, tuple) else "".join(str(value))  # "N/A" is a class of its own

    found: dict[str, Any] = {}
    with host.watching() as watch, nvsandbox.nvml_isolated(simulate="h100x4,procs=3", isolation=isolation):
        found["count"] = nvitop.Device.count()
        found["driver"] = nvitop.Device.driver_version()
        found["cuda"] = nvitop.Device.cuda_driver_version()
        found["devices"] = []
        for device in nvitop.Device.all():
            snapshot = {key: plain(value) for key, value in vars(device.as_snapshot()).items() if key != "real"}
            processes = {pid: (process.type, process.gpu_memory()) for pid, process in device.processes().items()}
            found["devices"].append((snapshot, processes))
        found["query"] = [str(device.uuid()) for device in nvitop.Device.from_indices([3, 1])]
        one = nvitop.Device.all()[2]
        found["by_uuid"] = nvitop.Device(uuid=one.uuid()).index
        found["by_bus_id"] = nvitop.Device(bus_id=one.bus_id()).index
    found["seen"] = watch.seen
    return found


@pytest.mark.parametrize("isolation", ISOLATION)
def test_nvitop_snapshots(host: Host, isolation: str) -> None:
    found = host.run(nvitop_snapshots, isolation=isolation)
    assert found["count"] == 4
    assert re.fullmatch(r"[0-9]+\.[0-9.]+", found["driver"])
    assert re.fullmatch(r"[0-9]+\.[0-9]+", found["cuda"])
    assert found["seen"] == []
    for index, (snapshot, processes) in enumerate(found["devices"]):
        assert snapshot["index"] == index
        assert snapshot["name"] == "NVIDIA H100 80GB HBM3"
        assert snapshot["uuid"].startswith("GPU-")
        memory = snapshot["memory_info"]
        assert memory["used"] + memory["free"] + memory["reserved"] == memory["total"]
        assert snapshot["memory_used"] <= snapshot["memory_total"]
        assert 79 * 2**30 < snapshot["memory_total"] < 80 * 2**30
        assert 0 <= snapshot["gpu_utilization"] <= 100
        assert 0 <= snapshot["memory_utilization"] <= 100
        assert 20 <= snapshot["temperature"] <= 90
        assert 0 < snapshot["power_usage"] <= snapshot["power_limit"]
        assert snapshot["clock_infos"]["sm"] <= snapshot["max_clock_infos"]["sm"]
        assert snapshot["mig_mode"] == "Disabled"
        # Everything that this GPU has is there: "N/A" is what nvitop makes of a failed call.
        lacking = {key for key, value in snapshot.items() if value == "N/A"}
        assert lacking <= {"fan_speed", "current_driver_model", "display_mode", "display_active"}
        assert len(processes) == 3
        assert sum(memory for _, memory in processes.values()) <= snapshot["memory_used"]
        assert {kind for kind, _ in processes.values()} == {"C"}
    uuids = [snapshot["uuid"] for snapshot, _ in found["devices"]]
    assert len(set(uuids)) == 4
    assert found["query"] == [uuids[3], uuids[1]]
    assert found["by_uuid"] == found["by_bus_id"] == 2


def nvitop_mig(isolation: str) -> list[Any]:
    import nvitop

    import nvsandbox

    with nvsandbox.nvml_isolated(simulate="h100x2,mig=1g.10gb*2+3g.40gb", isolation=isolation):
        found = []
        for device in nvitop.Device.all():
            assert device.is_mig_mode_enabled()
            found.append(
                [
                    (mig.index, mig.name(), mig.uuid(), mig.memory_total(), mig.as_snapshot().memory_used,
                     mig.gpu_instance_id(), mig.compute_instance_id())
                    for mig in device.mig_devices()
                ]
            )  # fmt: skip
        found.append([device.index for device in nvitop.MigDevice.all()])
        found.append(nvitop.MigDevice.count())
        return found


@pytest.mark.parametrize("isolation", ISOLATION)
def test_nvitop_mig(host: Host, isolation: str) -> None:
    *gpus, indices, count = host.run(nvitop_mig, isolation=isolation)
    assert count == 6
    assert indices == [(gpu, mig) for gpu in range(2) for mig in range(3)]
    seen = set()
    for gpu, migs in enumerate(gpus):
        assert sorted(name.rpartition(" ")[2] for _, name, *_ in migs) == ["1g.10gb", "1g.10gb", "3g.40gb"]
        for number, (index, name, uuid, total, used, instance, compute) in enumerate(migs):
            assert index == (gpu, number)
            assert uuid.startswith("MIG-")
            assert 0 <= used <= total
            assert (30 if "3g" in name else 8) * 2**30 < total < (41 if "3g" in name else 11) * 2**30
            assert compute == 0
            seen.add((gpu, instance, uuid))
    assert len(seen) == 6


def nvitop_once(isolation: str, description: str, installed: bool) -> tuple[int, str]:
    import contextlib
    import io
    import sys

    import nvsandbox

    sys.argv = ["nvitop", "--once"]
    output = io.StringIO()
    options = {"simulate": description, "isolation": isolation}
    with contextlib.ExitStack() as stack:
        if installed:
            nvsandbox.install(**options)
        else:
            stack.enter_context(nvsandbox.nvml_isolated(**options))
        from nvitop.cli import main

        with contextlib.redirect_stdout(output):
            code = main()
    return code, output.getvalue()


@pytest.mark.parametrize(
    ("isolation", "installed"), [("mount", True), ("mount", False), ("guard", True)], ids=lambda value: str(value)
)
def test_nvitop_once(host: Host, isolation: str, installed: bool) -> None:
    code, text = host.run(nvitop_once, isolation=isolation, description="h100x4,procs=2", installed=installed)
    assert code == 0
    assert "Driver Version: 580.95.05" in text
    assert text.count("H100 80GB HBM3") == 4
    assert len(re.findall(r"[0-9.]+[GM]iB / 79.65GiB", text)) == 4
    assert len(re.findall(r"[0-9]+W / 700W", text)) == 4
    assert "ERROR" not in text
    assert "Traceback" not in text


def test_nvitop_once_mig(host: Host) -> None:
    code, text = host.run(nvitop_once, isolation="mount", description="a100x2,mig=3g.20gb+1g.5gb*2", installed=True)
    assert code == 0
    assert text.count("3g.20gb") == 2
    assert text.count("1g.5gb") == 4


@pytest.mark.parametrize("description", ["t4x2", "l40s", "b200x2", "gb200"])
def test_nvitop_once_other_models(host: Host, description: str) -> None:
    code, text = host.run(nvitop_once, isolation="mount", description=description, installed=True)
    assert code == 0
    assert "Driver Version" in text
    assert "ERROR" not in text


def test_nvitop_once_with_a_lost_gpu(host: Host) -> None:
    code, text = host.run(nvitop_once, isolation="mount", description="h100x3,lost=1", installed=True)
    assert code == 0
    assert text.count("H100 80GB HBM3") == 2
    assert "GPU is Lost" in text


# ---- gpustat


def gpustat_output(isolation: str) -> dict[str, Any]:
    import io

    import gpustat
    import host

    import nvsandbox

    text, data = io.StringIO(), io.StringIO()
    with host.watching() as watch, nvsandbox.nvml_isolated(simulate="h100x4,procs=2", isolation=isolation):
        query = gpustat.new_query()
        query.print_formatted(text, no_color=True, show_pid=True, show_power="draw,limit")
        query.print_json(data)
        counted = gpustat.gpu_count()
        available = gpustat.is_available()
        some = [gpu.index for gpu in gpustat.GPUStatCollection.new_query(id="1,3")]
    return {"text": text.getvalue(), "json": data.getvalue(), "count": counted, "available": available, "some": some,
            "seen": watch.seen}  # fmt: skip


@pytest.mark.parametrize("isolation", ISOLATION)
def test_gpustat(host: Host, isolation: str) -> None:
    found = host.run(gpustat_output, isolation=isolation)
    assert found["count"] == 4
    assert found["available"]
    assert found["some"] == [1, 3]
    assert found["seen"] == []
    data = json.loads(found["json"])
    assert data["driver_version"] == "580.95.05"
    assert [gpu["index"] for gpu in data["gpus"]] == [0, 1, 2, 3]
    for gpu in data["gpus"]:
        assert gpu["name"] == "NVIDIA H100 80GB HBM3"
        assert gpu["uuid"].startswith("GPU-")
        assert 0 < gpu["memory.used"] <= gpu["memory.total"]
        assert 0 <= gpu["utilization.gpu"] <= 100
        assert 20 <= gpu["temperature.gpu"] <= 90
        assert 0 < gpu["power.draw"] <= gpu["enforced.power.limit"]
        assert gpu["fan.speed"] is None
        assert len(gpu["processes"]) >= 1  # of made-up pids it shows none
    lines = found["text"].splitlines()
    assert "580.95.05" in lines[0]
    assert len(lines) == 5
    for index, line in enumerate(lines[1:]):
        assert re.match(rf"\[{index}\] NVIDIA H100 80GB HBM3 \| *[0-9]+.C, *[0-9]+ %, *[0-9]+ / 700 W \|", line)


# ---- nvitop-exporter


def exporter_metrics(isolation: str, description: str) -> str:
    import nvitop
    from nvitop_exporter import PrometheusExporter
    from prometheus_client import CollectorRegistry, generate_latest

    import nvsandbox

    registry = CollectorRegistry()
    with nvsandbox.nvml_isolated(simulate=description, isolation=isolation):
        devices = [
            leaf for device in nvitop.Device.all() for leaf in ([device, *device.mig_devices()] if device else [device])
        ]
        exporter = PrometheusExporter(devices, hostname="node-1", registry=registry, interval=0.1)
        exporter.update_host()
        for device in devices:
            exporter.update_device(device)
        return generate_latest(registry).decode()


def series(text: str, name: str) -> dict[str, float]:
    """Values of a metric by device."""
    found = {}
    for line in text.splitlines():
        match = re.fullmatch(rf"{name}\{{(.*)\}} (\S+)", line)
        if match:
            labels = dict(re.findall(r'(\w+)="([^"]*)"', match[1]))
            found[labels.get("index") or labels.get("uuid") or ""] = float(match[2])
    return found


@pytest.mark.parametrize("isolation", ISOLATION)
def test_exporter(host: Host, isolation: str) -> None:
    text = host.run(exporter_metrics, isolation=isolation, description="h100x4,procs=2")
    assert 'driver_version="580.95.05"' in text
    assert 'device_count="4"' in text
    families = set(re.findall(r"^# TYPE (gpu_\w+) gauge", text, re.M))
    assert len(families) >= 10
    empty = {family for family in families if not series(text, family)}
    assert {family for family in empty if "process" not in family} == set()
    used, total, free = (series(text, f"gpu_memory_{kind}_MiB") for kind in ("used", "total", "free"))
    assert len(total) == 4
    for device, value in total.items():
        assert 0 < used[device] <= value
        assert used[device] + free[device] <= value + 1
    for name in ("gpu_utilization_Percentage", "gpu_memory_utilization_Percentage"):
        values = series(text, name)
        assert len(values) == 4
        assert all(0 <= value <= 100 for value in values.values())


def test_exporter_mig(host: Host) -> None:
    text = host.run(exporter_metrics, isolation="mount", description="h100x2,mig=1g.10gb*2+3g.40gb")
    assert text.count("MIG-") > 6
    total, used = series(text, "gpu_memory_total_MiB"), series(text, "gpu_memory_used_MiB")
    assert len(total) == 8
    assert all(0 <= used[device] <= value for device, value in total.items())


# ---- what they leave


def state_of_pynvml() -> dict[str, Any]:
    """Runs with all three imported before the first block."""
    import io

    import gpustat
    import host
    import nvitop
    import nvitop_exporter  # noqa: F401
    import pynvml

    import nvsandbox

    def state() -> dict[str, Any]:
        found = {key: id(value) for key, value in vars(pynvml).items() if not key.startswith("__")}
        found["_nvmlGetFunctionPointer_cache"] = dict(pynvml._nvmlGetFunctionPointer_cache)
        found["_nvmlLib_refcount"] = pynvml._nvmlLib_refcount
        found["nvmlLib"] = repr(pynvml.nvmlLib)
        return found

    before = state()
    patched = [f.__code__.co_filename for f in (pynvml.nvmlDeviceGetMemoryInfo, pynvml._nvmlGetFunctionPointer)]
    names = []
    for description in ("h100x2", "t4x3", "h100x2"):
        with nvsandbox.nvml_isolated(simulate=description) as nvml:
            names.append((nvml.nvmlDeviceGetCount(), len(gpustat.new_query().gpus), len(nvitop.Device.all())))
            gpustat.new_query().print_formatted(io.StringIO())
            names.append([device.name() for device in nvitop.Device.all()])
        after = state()
        assert after == before, {
            key: (before.get(key), after.get(key)) for key in after if after[key] != before.get(key)
        }
    raised = host.attempt(pynvml.nvmlDeviceGetCount)
    return {"patched": patched, "names": names, "raised": raised["type"]}


def test_pynvml_is_as_before(host: Host) -> None:
    """Their patches of pynvml work in the block and are in place after it; so is what pynvml knew. And a second block
    has other GPUs."""
    found = host.run(state_of_pynvml)
    assert ["gpustat" in path for path in found["patched"]] == [True, True]
    assert found["names"] == [
        (2, 2, 2),
        ["NVIDIA H100 80GB HBM3"] * 2,
        (3, 3, 3),
        ["Tesla T4"] * 3,
        (2, 2, 2),
        ["NVIDIA H100 80GB HBM3"] * 2,
    ]
    assert found["raised"] in ("NVMLError_Uninitialized", "NVMLError_LibraryNotFound")
