# SPDX-License-Identifier: Apache-2.0
"""How calls wait: who looks for the other's answer instead of sleeping, and where nobody does."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pynvml
import pytest
from host import Host, require
from waiting import prompt

from nvsandbox import nvml_isolated

several = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one CPU, with which nobody looks")


def calls_of_300_us(cpus: set[int] | None = None, count: int = 200) -> dict[str, Any]:
    """Made in a thread of its own, to which, and to the worker, `cpus` are left: how it waited."""
    found: dict[str, Any] = {}

    def run() -> None:
        if cpus is not None:
            os.sched_setaffinity(0, cpus)
        with nvml_isolated(simulate="t4,latency_us=300") as nvml:
            device = nvml.nvmlDeviceGetHandleByIndex(0)
            for _ in range(count):
                nvml.nvmlDeviceGetTemperature(device, 0)
            assert nvml.session.link.calls >= count - 1  # the short way
            lane = nvml.session.keeper.worker._channels.lane.channel
            found.update(lane.waits, looking_max=nvml.session.link.looking_max)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found
    return found


@several
def test_calls_are_looked_for() -> None:
    waits = calls_of_300_us()
    assert waits["looking_max"] == len(os.sched_getaffinity(0)) // 2
    assert waits["looks"] > 0
    assert waits["futile"] + waits["hopeless"] <= waits["looks"]


def test_with_one_cpu_nobody_looks() -> None:
    waits = calls_of_300_us({min(os.sched_getaffinity(0))})
    assert (waits["looking_max"], waits["looks"]) == (0, 0)
    assert waits["sleeps"] >= 200


def set_quota() -> None:
    """Has /sys/fs/cgroup say that this process has $QUOTA: CPU time and period, both in microseconds."""
    import os
    from pathlib import Path

    import host

    limit = os.environ["QUOTA"]
    host.mount("cgroups", "/sys/fs/cgroup", "tmpfs", 0, "mode=755")
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        controllers, group = line.split(":", 2)[1:]
        if not controllers:
            Path("/sys/fs/cgroup/cpu.max").write_text(limit)
        elif "cpu" in controllers.split(","):
            folder = f"/sys/fs/cgroup/{controllers}{group}"
            os.makedirs(folder, exist_ok=True)
            for name, value in zip(("cpu.cfs_quota_us", "cpu.cfs_period_us"), limit.split(), strict=True):
                Path(folder, name).write_text(value)


def calls_under_a_quota() -> dict[str, int]:
    import nvsandbox

    with nvsandbox.nvml_isolated(simulate="t4,latency_us=300") as nvml:
        device = nvml.nvmlDeviceGetHandleByIndex(0)
        for _ in range(50):
            nvml.nvmlDeviceGetTemperature(device, 0)
        found = nvml.session.keeper.worker._channels.lane.channel.waits
        return {**found, "looking_max": nvml.session.link.looking_max}


@several
@pytest.mark.parametrize(("limit", "looking"), [("199000 100000", 0), ("200000 100000", 1)])
def test_with_the_time_of_one_cpu_nobody_looks(host: Host, limit: str, looking: int) -> None:
    require(os.path.isdir("/sys/fs/cgroup"), "a folder for cgroups")
    waits = host.run(calls_under_a_quota, setup=set_quota, env={"QUOTA": limit})
    assert waits["looking_max"] == looking
    assert looking or waits["looks"] == 0


def test_others_run_while_one_looks() -> None:
    """The interpreter is not held while a call waits: a thread that counts goes on. Nothing else lets it run, for here
    no thread is made to hand the interpreter over."""
    counted = [0]
    stop = threading.Event()

    def count() -> None:
        while not stop.is_set():
            counted[0] += 1
            time.sleep(0)

    interval = sys.getswitchinterval()
    with nvml_isolated(simulate="t4,latency_us=300") as nvml:
        device = nvml.nvmlDeviceGetHandleByIndex(0)
        for _ in range(10):
            nvml.nvmlDeviceGetTemperature(device, 0)
        thread = threading.Thread(target=count)
        sys.setswitchinterval(1000)
        try:
            thread.start()
            before = counted[0]
            calls = 0
            while counted[0] - before < 20 and calls < 5000:
                nvml.nvmlDeviceGetTemperature(device, 0)
                calls += 1
            after = counted[0]
        finally:
            stop.set()
            sys.setswitchinterval(interval)
            thread.join()
    assert after - before >= 20


def running_ns(pid: int) -> int:
    """How long the threads of a process have run."""
    found = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found += int((task / "schedstat").read_text().split()[0])
    return found


IDLE = """
import json, sys, threading, time
from nvsandbox import nvml_isolated
with nvml_isolated(simulate="t4", transport=sys.argv[1]) as nvml:
    device = nvml.nvmlDeviceGetHandleByIndex(0)
    begun, end = threading.Barrier(5), threading.Event()
    def use():
        for _ in range(100):
            nvml.nvmlDeviceGetTemperature(device, 0)
        begun.wait()
        end.wait()
    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    begun.wait()
    print(json.dumps(nvml.session.pid), flush=True)
    sys.stdin.read()
    end.set()
"""


@pytest.mark.parametrize("transport", ["shm", "pipe"])
def test_an_idle_session_takes_no_time(transport: str) -> None:
    """Of a CPU, of which a hundredth of a second is a tick. Neither side does, whoever called before."""
    with subprocess.Popen(
        [sys.executable, "-c", IDLE, transport], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/"
    ) as caller:
        assert caller.stdout is not None
        pids = [caller.pid, int(caller.stdout.readline())]

        def seconds() -> float:
            before = [running_ns(pid) for pid in pids]
            time.sleep(0.7)
            return max(running_ns(pid) - begun for pid, begun in zip(pids, before, strict=True)) / 1e9

        prompt(seconds, 0.0007)
        caller.communicate(b"")
    assert caller.returncode == 0


def test_a_long_wait_hardly_looks() -> None:
    """Whether its worker lives: by Python ten times a second, which holds up others, and not fifty times."""
    with nvml_isolated(simulate="h100") as nvml:
        looks = []
        worker = nvml.session.keeper.worker
        assert worker is not None
        check = worker._check_alive
        worker._check_alive = lambda name: looks.append(name) or check(name)  # type: ignore[method-assign,func-returns-value]
        events = nvml.nvmlEventSetCreate()
        looks.clear()
        with pytest.raises(pynvml.NVMLError_Timeout):
            nvml.nvmlEventSetWait_v2(events, 1500)
        assert 5 <= looks.count("nvmlEventSetWait_v2") <= 20
        nvml.nvmlEventSetFree(events)


def worker_sleeps(fast: bool) -> int:
    """How often the threads of a worker have gone to sleep over 200 calls, each of which comes 100 microseconds after
    the one before: a worker that may spin does so in between."""
    import re
    import time
    from pathlib import Path

    import nvsandbox
    from nvsandbox import plans

    plans.available = fast
    with nvsandbox.nvml_isolated(simulate="t4", transport="shm") as nvml:
        device = nvml.nvmlDeviceGetHandleByIndex(0)
        assert (nvml.session.link is not None) == fast

        def sleeps() -> int:
            tasks = Path(f"/proc/{nvml.session.pid}/task").iterdir()
            found = [
                re.search(r"^voluntary_ctxt_switches:\s*(\d+)", (task / "status").read_text(), re.M) for task in tasks
            ]
            return sum(int(one[1]) for one in found)

        before = sleeps()
        for _ in range(200):
            nvml.nvmlDeviceGetTemperature(device, 0)
            end = time.perf_counter() + 0.0001
            while time.perf_counter() < end:
                pass
        return sleeps() - before


@several
@pytest.mark.parametrize("fast", [True, False])
def test_a_quota_holds_for_the_worker_as_well(host: Host, fast: bool) -> None:
    """Defect 1: with the CPU time of less than two CPUs the worker sleeps between calls, with and without the fast
    path. (Where it may spin and nothing else uses the CPUs, it sleeps in a few of these pauses alone.)"""
    require(os.path.isdir("/sys/fs/cgroup"), "a directory for cgroups")
    assert host.run(worker_sleeps, setup=set_quota, env={"QUOTA": "199000 100000"}, fast=fast) > 100
