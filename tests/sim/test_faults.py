# SPDX-License-Identifier: Apache-2.0
"""The knobs: what can be made to go wrong."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize(
    ("knob", "name", "end"),
    [
        ("crash=nvmlDeviceGetName", "nvmlDeviceGetName", -11),
        ("crash=nvmlDeviceGetCount:abort", "nvmlDeviceGetCount", -6),  # the function behind it is nvmlDeviceGetCount_v2
        ("crash=nvmlDeviceGetCount_v2:exit", "nvmlDeviceGetCount", 0),
        ("crash=nvmlInit:segv", "", -11),
        ("crash=nvmlShutdown:abort", "nvmlShutdown", -6),
        ("crash=nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV", -11),
        ("crash=nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature", -11),
        ("crash=nvmlDeviceGetSerial", "nvmlDeviceGetName", 99),  # another one
    ],
)
def test_crash(sim: Any, knob: str, name: str, end: int) -> None:
    def crash(knob: str, name: str) -> int:
        import os
        import resource

        from simhelp import gpu, p, use

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        child = os.fork()
        if child == 0:
            use(f"h100,{knob}")
            if name.startswith("nvmlDeviceGetTemperature"):
                getattr(p, name)(gpu(), 0)
            elif name.startswith("nvmlDeviceGet") and "Count" not in name:
                getattr(p, name)(gpu())
            elif name:
                getattr(p, name)()
            os._exit(99)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert sim(crash, knob=knob, name=name) == end


def test_hang_holds_up_nobody_else(sim: Any) -> None:
    def hang() -> list[Any]:
        import threading

        from simhelp import gpu, p, use

        use("h100,hang=nvmlDeviceGetName")
        thread = threading.Thread(target=p.nvmlDeviceGetName, args=(gpu(),), daemon=True)
        thread.start()
        thread.join(0.3)
        found = [thread.is_alive(), len(p.nvmlDeviceGetUUID(gpu()))]
        return found

    # The process ends although the thread hangs: it is a daemon.
    assert sim(hang) == [True, 40]


def test_delays(sim: Any) -> None:
    def measure() -> list[float]:
        import time

        from simhelp import p, use

        start = time.monotonic()
        use("h100,init_ms=300,latency_us=20000")
        between = time.monotonic()
        for _ in range(10):
            p.nvmlDeviceGetCount()
        return [between - start, time.monotonic() - between]

    init, calls = sim(measure)
    assert init >= 0.3
    assert 0.2 <= calls < 20


def test_lost(sim: Any) -> None:
    def lost() -> list[int]:
        from simhelp import error_of, gpu, use

        p = use("h100x4,lost=1")
        assert p.nvmlDeviceGetCount() == 4
        return [error_of(gpu, index) for index in range(4)]

    assert sim(lost) == [0, 15, 0, 0]


def test_garbage(sim: Any) -> None:
    def name() -> Any:
        import ctypes

        from simhelp import gpu, p, use

        use("h100,garbage=1")
        buffer = ctypes.create_string_buffer(100)
        p.nvmlLib.nvmlDeviceGetName(gpu(), buffer, 96)
        try:
            p.nvmlDeviceGetName(gpu())
        except UnicodeDecodeError:
            return buffer.raw

    raw = sim(name)
    assert 0xF8 in raw
    assert b"\0" not in raw[:96]
    assert raw[96:] == b"\0" * 4


def test_not_available(sim: Any) -> None:
    def read() -> list[Any]:
        from simhelp import gpu, p, use

        use("h100,na=1")
        memory = p.nvmlDeviceGetMemoryInfo(gpu())
        (process,) = p.nvmlDeviceGetComputeRunningProcesses(gpu())
        return [memory.total, memory.used, p.nvmlDeviceGetUtilizationRates(gpu()).gpu, process.usedGpuMemory]

    assert sim(read) == [2**64 - 1, 2**64 - 1, 2**32 - 1, None]


def test_mixed_field_values(sim: Any) -> None:
    def read() -> Any:
        from simhelp import gpu, p, use

        use("h100,fields=mixed")
        names = ["dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal"]
        values = p.nvmlDeviceGetFieldValues(gpu(), list(range(1, 71)))
        good = [
            (v.fieldId, names[v.valueType], getattr(v.value, names[v.valueType])) for v in values if not v.nvmlReturn
        ]
        bad = {(v.nvmlReturn, v.value.ullVal) for v in values if v.nvmlReturn}
        stale = [v.value.ullVal for v in values if v.valueType == 1 and not v.nvmlReturn]
        return good, bad, stale

    good, bad, stale = sim(read)
    assert {name for _, name, _ in good} == {"dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal"}
    assert {abs(int(value)) - field for field, _, value in good} == {100}
    assert bad == {(3, 0xA5A5A5A5A5A5A5A5), (999, 0xA5A5A5A5A5A5A5A5)}
    assert all(value >> 32 == 0xA5A5A5A5 for value in stale)


@pytest.mark.parametrize("number", [0, 1, 5000])
def test_processes(sim: Any, number: int) -> None:
    def read(number: int) -> Any:
        from simhelp import gpu, p, use

        use(f"h100,procs={number}")
        memory = p.nvmlDeviceGetMemoryInfo(gpu(), version=p.nvmlMemory_v2)
        running = p.nvmlDeviceGetComputeRunningProcesses(gpu())
        assert sum(process.usedGpuMemory for process in running) <= memory.used
        return len(running), len({process.pid for process in running}), p.nvmlDeviceGetUtilizationRates(gpu()).gpu > 0

    assert sim(read, number=number) == (number, number, number > 0)


def test_the_process_is_the_parent(sim: Any) -> None:
    def read() -> bool:
        import os

        from simhelp import gpu, p, use

        use("h100")
        (process,) = p.nvmlDeviceGetComputeRunningProcesses(gpu())
        return process.pid == os.getppid()

    assert sim(read)


def test_lists_grow(sim: Any) -> None:
    def read() -> list[Any]:
        import ctypes

        from simhelp import gpu, p, use

        use("h100,grow=1,procs=2")
        function = p.nvmlLib.nvmlDeviceGetComputeRunningProcesses_v3
        found: list[Any] = []
        for _ in range(2):
            count = ctypes.c_uint(0)
            function(gpu(), ctypes.byref(count), None)
            room = (p.c_nvmlProcessInfo_v3_t * count.value)()
            found.append((count.value, function(gpu(), ctypes.byref(count), room), count.value))
        return [*found, len(p.nvmlDeviceGetComputeRunningProcesses(gpu()))]

    assert sim(read) == [(2, 7, 3), (3, 7, 4), 5]


def test_never_enough_room(sim: Any) -> None:
    def read() -> list[int]:
        from simhelp import error_of, gpu, p, use

        use("h100,insufficient=1")
        return [error_of(p.nvmlDeviceGetComputeRunningProcesses, gpu()) for _ in range(3)]

    assert sim(read) == [7, 7, 7]


def test_leak(sim: Any) -> None:
    def grow() -> int:
        from simhelp import p, use

        def resident() -> int:
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * 4

        use("h100,leak_kib=100")
        before = resident()
        for _ in range(100):
            p.nvmlDeviceGetCount()
        return resident() - before

    assert 9000 < sim(grow) < 20000


def test_strict_handles(sim: Any) -> None:
    def stale() -> Any:
        import ctypes
        import os
        import resource

        from simhelp import gpu, p, use

        def address(handle: Any) -> Any:
            return ctypes.cast(handle, ctypes.c_void_p).value

        use("h100,strict_handles=1")
        first = gpu()
        p.nvmlShutdown()
        p.nvmlInit()
        different = address(first) != address(gpu())
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        child = os.fork()
        if child == 0:
            p.nvmlDeviceGetName(first)
            os._exit(0)
        return different, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert sim(stale) == (True, -6)
