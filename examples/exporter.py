#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A Prometheus exporter. A scrape ends within SCRAPE_LIMIT, whatever NVML does, and a reading that fails costs that
reading; one that hangs or crashes is left out for PAUSE. A driver that is not there yet is waited for: gpu_nvml_up is 0
until then. Series have the GPU's UUID, which lasts; gpu_info has its index and name: gpu_power_watts * on (uuid)
group_left (index, name) gpu_info. Needs the package prometheus_client."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pynvml

try:
    from prometheus_client import start_http_server
    from prometheus_client.core import REGISTRY, CounterMetricFamily, GaugeMetricFamily
except ModuleNotFoundError as error:
    sys.exit(f"{sys.argv[0]}: {error}: pip install prometheus_client")

from nvsandbox import CallTimeout, NVMLSession, SandboxError, WorkerDied, nvml_isolated

SCRAPE_LIMIT = 5.0  # seconds; below Prometheus' scrape_timeout
GPU_LIMIT = 1.0  # so that a wedged GPU leaves time for the others
PAUSE = 60.0  # seconds for which a reading that hung or crashed is not asked for: each time costs a worker, of which a
# session gets 20 a minute (restart=), and none of the other readings would be had without one
RETRY = 5.0  # seconds between looks for a driver

METRICS: dict[str, tuple[str, Callable[[Any], float]]] = {
    "gpu_memory_used_bytes": ("Memory in use.", lambda gpu: pynvml.nvmlDeviceGetMemoryInfo(gpu).used),
    "gpu_utilization_ratio": ("Load.", lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100),
    "gpu_temperature_celsius": ("Temperature.", lambda gpu: pynvml.nvmlDeviceGetTemperature(gpu, 0)),
    "gpu_power_watts": ("Power draw.", lambda gpu: pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000),
}


class Collector:
    def __init__(self) -> None:
        self.session: NVMLSession | None = None  # until there is a driver
        self.failures: Counter[tuple[str, str]] = Counter()
        self.deaths = 0
        self.paused: dict[tuple[str, int], float] = {}  # readings of GPUs, and until when

    def use(self, session: NVMLSession) -> None:
        session.on_death(self.died)
        self.session = session

    def died(self, error: Exception) -> None:
        self.deaths += 1
        print(error, file=sys.stderr)

    def read(self, what: str, index: int, question: Callable[[], Any]) -> Any:
        if time.monotonic() < self.paused.get((what, index), 0):
            return None
        try:
            return question()
        except pynvml.NVMLError_NotSupported:
            return None  # not a failure: this GPU has no such reading
        except pynvml.NVMLError as error:  # CallTimeout and WorkerDied are NVMLErrors too
            self.failures[what, type(error).__name__] += 1
            if isinstance(error, CallTimeout | WorkerDied) and error.sent:
                self.paused[what, index] = time.monotonic() + PAUSE
            return None

    def read_gpu(self, index: int, gauges: dict[str, GaugeMetricFamily], info: GaugeMetricFamily) -> None:
        gpu = self.read("handle", index, lambda: pynvml.nvmlDeviceGetHandleByIndex(index))
        uuid = gpu and self.read("uuid", index, lambda: pynvml.nvmlDeviceGetUUID(gpu))
        name = uuid and self.read("name", index, lambda: pynvml.nvmlDeviceGetName(gpu))
        if name:
            info.add_metric([uuid, str(index), name], 1)
        for metric, (_, question) in METRICS.items() if uuid else ():
            value = self.read(metric, index, partial(question, gpu))
            if value is not None:
                gauges[metric].add_metric([uuid], value)

    def describe(self) -> list[Any]:
        return []  # or registering would scrape

    def collect(self) -> list[Any]:
        gauges = {name: GaugeMetricFamily(name, text, labels=["uuid"]) for name, (text, _) in METRICS.items()}
        info = GaugeMetricFamily("gpu_info", "The GPUs' indexes and names.", labels=["uuid", "index", "name"])
        session = self.session
        if session is not None:
            with session.deadline(SCRAPE_LIMIT):
                for index in range(self.read("count", -1, pynvml.nvmlDeviceGetCount) or 0):
                    with session.deadline(GPU_LIMIT):
                        self.read_gpu(index, gauges, info)
        up = GaugeMetricFamily("gpu_nvml_up", "1 once NVML has been started.", value=int(session is not None))
        failures = CounterMetricFamily("gpu_read_failures", "Readings that failed.", labels=["reading", "error"])
        for labels, number in self.failures.items():
            failures.add_metric(labels, number)
        deaths = CounterMetricFamily("gpu_worker_deaths", "NVML workers that crashed or hung.", value=self.deaths)
        return [up, info, *gauges.values(), failures, deaths]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int, nargs="?", default=9835, metavar="PORT", help="to listen on (%(default)s)")
    port = parser.parse_args().port
    collector = Collector()
    REGISTRY.register(collector)
    start_http_server(port)
    while True:
        try:
            with nvml_isolated() as nvml:
                collector.use(nvml.session)
                threading.Event().wait()
        except (SandboxError, pynvml.NVMLError) as error:  # no driver, for one
            print(f"no NVML, asking again in {RETRY:.0f} s: {error}", file=sys.stderr)
            time.sleep(RETRY)


if __name__ == "__main__":
    main()
