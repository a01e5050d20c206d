# SPDX-License-Identifier: Apache-2.0
"""Programs that know nothing of the simulator run on it."""

from __future__ import annotations

from typing import Any

import pytest

DESCRIPTIONS = ["h100x2", "t4", "a100x2,mig=1g.5gb*3+2g.10gb", "gb200x4", "h100x2,procs=3"]


@pytest.mark.parametrize("description", DESCRIPTIONS)
def test_nvitop(sim: Any, description: str) -> None:
    pytest.importorskip("nvitop")

    def snapshots(description: str) -> Any:
        from nvitop import Device
        from simhelp import use

        use(description)
        found = []
        for device in Device.all():
            shot = device.as_snapshot()
            assert shot.memory_used <= shot.memory_total
            assert shot.power_usage <= shot.power_limit
            for process in device.processes().values():
                assert process.gpu_memory() <= shot.memory_used
            found.append((shot.name, [mig.as_snapshot().name for mig in device.mig_devices()]))
        return found

    found = sim(snapshots, description=description)
    assert len(found) == {"t4": 1, "gb200x4": 4}.get(description, 2)
    assert all(bool(mig) == ("mig" in description) for _, mig in found)


def test_nvitop_program(sim: Any) -> None:
    pytest.importorskip("nvitop")

    def program() -> str:
        import contextlib
        import io
        import sys

        from simhelp import use

        use("h100x2,mig=1g.10gb+3g.40gb")
        from nvitop.cli import main

        sys.argv = ["nvitop", "--once", "--ascii"]
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            assert main() == 0
        return text.getvalue()

    text = sim(program)
    assert "H100 80GB HBM3" in text
    assert "3g.40gb @ GI/CI: 2/0" in text


@pytest.mark.parametrize("description", DESCRIPTIONS)
def test_gpustat(sim: Any, description: str) -> None:
    pytest.importorskip("gpustat")

    def query(description: str) -> Any:
        import gpustat
        from simhelp import use

        use(description)
        return [dict(gpu.entry) for gpu in gpustat.new_query().gpus]

    for entry in sim(query, description=description):
        assert entry["memory.used"] <= entry["memory.total"]
        assert entry["power.draw"] <= entry["enforced.power.limit"]
        assert (entry["utilization.gpu"] is None) == ("mig" in description)
        assert entry["fan.speed"] is None


def test_nvitop_exporter(sim: Any) -> None:
    pytest.importorskip("nvitop_exporter")

    def collect() -> str:
        import threading
        import time

        from nvitop import Device
        from nvitop_exporter.exporter import PrometheusExporter
        from prometheus_client import REGISTRY, generate_latest
        from simhelp import use

        use("h100x2")
        exporter = PrometheusExporter(Device.all(), hostname="simulated")
        threading.Thread(target=exporter.collect, daemon=True).start()
        end = time.monotonic() + 20
        text = ""
        while "gpu_utilization_Percentage{" not in text and time.monotonic() < end:
            time.sleep(0.2)
            text = generate_latest(REGISTRY).decode()
        return text

    text = sim(collect)
    assert "gpu_utilization_Percentage{" in text
    assert 'devicename="NVIDIA H100 80GB HBM3"' in text
