# SPDX-License-Identifier: Apache-2.0
"""`examples/exporter.py`, as Prometheus meets it."""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from host import require

from nvsandbox import simulate

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "exporter.py"
START_LIMIT = 60.0


@pytest.fixture(autouse=True)
def _installed() -> None:
    require(importlib.util.find_spec("prometheus_client"), "needs prometheus_client: pip install nvsandbox[test]")


@contextmanager
def exporter(description: str, **environment: str) -> Iterator[str]:
    """The exporter's address, while it runs."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLE), str(port)],
        cwd="/",
        env={**os.environ, "NVSANDBOX_SIMULATE": description, **environment},
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + START_LIMIT
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None, "the exporter has ended"
                assert time.monotonic() < end, "the exporter does not listen"
                time.sleep(0.05)
        address = f"http://127.0.0.1:{port}/metrics"
        while description and "gpu_nvml_up" in (found := scrape(address)) and found["gpu_nvml_up"] == [("", 0.0)]:
            assert time.monotonic() < end, "the exporter has no NVML"
            time.sleep(0.05)
        yield address
    finally:
        process.terminate()
        process.wait(10)


def scrape(address: str) -> dict[str, list[tuple[str, float]]]:
    with urllib.request.urlopen(address, timeout=30) as answer:
        text = answer.read().decode()
    found: dict[str, list[tuple[str, float]]] = {}
    for name, labels, value in re.findall(r"^(gpu_\w+)(?:\{(.*)\})? (\S+)$", text, re.M):
        # Releases of prometheus_client differ in the order of labels.
        found.setdefault(name, []).append((",".join(sorted(labels.split(","))), float(value)))
    return found


def test_all_gpus() -> None:
    with exporter("h100x3,frozen=1") as address:
        first, again = scrape(address), scrape(address)
    assert first == again
    for name in ("gpu_memory_used_bytes", "gpu_utilization_ratio", "gpu_temperature_celsius", "gpu_power_watts"):
        assert len({labels for labels, _ in first[name]}) == 3
        assert all(value > 0 for _, value in first[name])
    assert first["gpu_nvml_up"] == [("", 1.0)]
    infos = [dict(re.findall(r'(\w+)="(.*?)"', labels)) for labels, _ in first["gpu_info"]]
    assert [(info["index"], info["name"]) for info in infos] == [(str(n), "NVIDIA H100 80GB HBM3") for n in range(3)]
    assert {f'uuid="{info["uuid"]}"' for info in infos} == {labels for labels, _ in first["gpu_power_watts"]}
    assert first["gpu_worker_deaths_total"] == [("", 0.0)]
    assert "gpu_read_failures_total" not in first


def test_a_driver_that_comes_later_is_waited_for(tmp_path: Path) -> None:
    library = tmp_path / "libnvidia-ml.so.1"
    with exporter("", NVSANDBOX_LIBRARY=str(library)) as address:
        found = scrape(address)
        assert found["gpu_nvml_up"] == [("", 0.0)]
        assert "gpu_power_watts" not in found
        (tmp_path / "partial").write_bytes(simulate.parse("h100").library.read_bytes())
        (tmp_path / "partial").rename(library)
        end = time.monotonic() + START_LIMIT
        while len(found.get("gpu_power_watts", ())) != 1:
            assert time.monotonic() < end, "the exporter has not found the library"
            time.sleep(0.1)
            found = scrape(address)
    assert found["gpu_nvml_up"] == [("", 1.0)]


def test_a_lost_gpu_costs_itself() -> None:
    with exporter("h100x3,lost=1") as address:
        found = scrape(address)
    assert len(found["gpu_power_watts"]) == 2
    assert {labels for labels, _ in found["gpu_read_failures_total"]} == {
        'error="NVMLError_GpuIsLost",reading="handle"'
    }


def test_a_crash_costs_a_reading() -> None:
    with exporter("h100x2,crash=nvmlDeviceGetPowerUsage") as address:
        found = scrape(address)
    assert len(found["gpu_temperature_celsius"]) == 2
    assert "gpu_power_watts" not in found
    assert {labels for labels, _ in found["gpu_read_failures_total"]} == {
        'error="WorkerDied",reading="gpu_power_watts"'
    }
    assert found["gpu_worker_deaths_total"][0][1] >= 2


def test_a_reading_that_crashes_at_every_gpu_costs_that_reading() -> None:
    """In the third scrape all the others were gone too, for no more workers are started than 20 in a minute."""
    with exporter("h100x8,crash=nvmlDeviceGetPowerUsage") as address:
        found = [scrape(address) for _ in range(4)][-1]
    assert len(found["gpu_temperature_celsius"]) == 8
    assert "gpu_power_watts" not in found
    assert found["gpu_worker_deaths_total"] == [("", 8.0)]


def test_a_hang_costs_the_rest_of_one_gpu() -> None:
    with exporter("h100x2,hang=nvmlDeviceGetTemperature") as address:
        start = time.monotonic()
        found = scrape(address)
        assert time.monotonic() - start < 20  # each of the others that it hung at would have a limit of its own
        again = scrape(address)
    assert len(found["gpu_memory_used_bytes"]) == 2
    assert {labels for labels, _ in found["gpu_read_failures_total"]} == {
        'error="CallTimeout",reading="gpu_temperature_celsius"',
        'error="CallTimeout",reading="gpu_power_watts"',  # not asked any more
    }
    assert len(again["gpu_power_watts"]) == 2  # what hung is not asked again
    assert "gpu_temperature_celsius" not in again


def test_help_and_wrong_ports() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE), "--help"], cwd="/", capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "PORT" in done.stdout
    done = subprocess.run([sys.executable, str(EXAMPLE), "x"], cwd="/", capture_output=True, text=True)
    assert done.returncode == 2
    assert "invalid int value: 'x'" in done.stderr


def test_without_prometheus_client_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "prometheus_client").mkdir()
    (tmp_path / "prometheus_client" / "__init__.py").write_text("raise ModuleNotFoundError('No module named it')")
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], cwd="/", capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == f"{EXAMPLE}: No module named it: pip install prometheus_client\n"
