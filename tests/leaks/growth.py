# SPDX-License-Identifier: Apache-2.0
"""growth.py WHAT ROUNDS: does one thing again and again, and prints by how many bytes the memory in use has grown.

To be run with the C library's caches for each thread off (GLIBC_TUNABLES=glibc.malloc.tcache_count=0), for mallinfo2()
takes what lies in them for memory in use, and with Python's own allocator off (PYTHONMALLOC=malloc): then the figure is
exact, to the byte.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pynvml

import nvsandbox
from nvsandbox import nvml_isolated

WARM_UP = 0.5  # of the rounds: caches and free lists fill

_libc = ctypes.CDLL(None)


class _Mallinfo(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keep",
        )
    )


_libc.mallinfo2.restype = _Mallinfo


Once = Callable[[], object]


def in_use(once: Once) -> int:
    """The least of five looks: a worker that was replaced, say, may still be known at one of them."""
    looks = []
    for _ in range(5):
        once()
        looks.append(look())
    return min(looks)


def look() -> int:
    # What is done aside may go on: the end of a worker that was replaced, say.
    while len(os.listdir("/proc/self/task")) > 1:
        time.sleep(0.01)
    gc.collect()
    info = _libc.mallinfo2()
    return int(info.uordblks + info.hblkhd)


@contextmanager
def calls() -> Iterator[Once]:
    """By the short way and by the marshaller; with results of all kinds, and errors."""
    with nvml_isolated(simulate="h100x2,procs=20") as nvml:

        def once() -> None:
            device = nvml.nvmlDeviceGetHandleByIndex(1)
            for _ in range(3):
                nvml.nvmlDeviceGetTemperature(device, 0)
                nvml.nvmlDeviceGetName(device)
                nvml.nvmlDeviceGetMemoryInfo(device)
                nvml.nvmlDeviceGetComputeRunningProcesses(device)
                nvml.nvmlDeviceGetFieldValues(device, [1, 2, 3])
                nvml.nvmlSystemGetDriverVersion()
                with contextlib.suppress(pynvml.NVMLError):
                    nvml.nvmlDeviceGetFanSpeed(device)
            nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByUUID(nvml.nvmlDeviceGetUUID(device)))

        yield once


@contextmanager
def deadlines() -> Iterator[Once]:
    with nvml_isolated(simulate="t4") as nvml:

        def once() -> None:
            with nvml.session.deadline(10):
                nvml.nvmlDeviceGetCount()
            with nvml.session.deadline(0), contextlib.suppress(nvsandbox.CallTimeout):
                nvml.nvmlDeviceGetCount()

        yield once


@contextmanager
def events() -> Iterator[Once]:
    with nvml_isolated(simulate="t4") as nvml:
        device = nvml.nvmlDeviceGetHandleByIndex(0)

        def once() -> None:
            events = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(device, pynvml.nvmlEventTypeXidCriticalError, events)
            with contextlib.suppress(pynvml.NVMLError_Timeout):
                nvml.nvmlEventSetWait_v2(events, 1)
            nvml.nvmlEventSetFree(events)

        yield once


@contextmanager
def pipe() -> Iterator[Once]:
    with nvml_isolated(simulate="t4", transport="pipe") as nvml:
        yield lambda: nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(0))


@contextmanager
def threads() -> Iterator[Once]:
    """Each with a channel of its own."""
    with nvml_isolated(simulate="t4") as nvml:

        def once() -> None:
            thread = threading.Thread(target=nvml.nvmlDeviceGetCount)
            thread.start()
            thread.join()

        yield once


@contextmanager
def killed() -> Iterator[Once]:
    with nvml_isolated(simulate="h100x2", restart=1_000_000) as nvml:
        device = nvml.nvmlDeviceGetHandleByIndex(1)

        def once() -> None:
            os.kill(nvml.session.pid, signal.SIGKILL)
            for _ in range(3):
                with contextlib.suppress(nvsandbox.WorkerDied):
                    nvml.nvmlDeviceGetUUID(device)

        yield once


@contextmanager
def crashed() -> Iterator[Once]:
    with nvml_isolated(simulate="h100x2,crash=nvmlDeviceGetPowerUsage:segv", restart=1_000_000) as nvml:
        device = nvml.nvmlDeviceGetHandleByIndex(1)

        def once() -> None:
            nvml.nvmlDeviceGetUUID(device)
            with contextlib.suppress(nvsandbox.WorkerDied):
                nvml.nvmlDeviceGetPowerUsage(device)

        yield once


@contextmanager
def recycled() -> Iterator[Once]:
    with nvml_isolated(simulate="t4", recycle_after=5) as nvml:

        def once() -> None:
            before = nvml.session.stats()["recycles"]
            while nvml.session.stats()["recycles"] == before:
                nvml.nvmlDeviceGetCount()
            nvml.nvmlDeviceGetCount()  # so that the new one has a channel, as it has at each look

        yield once


@contextmanager
def garbage() -> Iterator[Once]:
    with nvml_isolated(simulate="h100,garbage=1") as nvml:
        device = nvml.nvmlDeviceGetHandleByIndex(0)

        def once() -> None:
            with contextlib.suppress(UnicodeDecodeError):
                nvml.nvmlDeviceGetName(device)

        yield once


@contextmanager
def lost() -> Iterator[Once]:
    with nvml_isolated(simulate="h100x2,lost=1") as nvml:

        def once() -> None:
            with contextlib.suppress(pynvml.NVMLError_GpuIsLost):
                nvml.nvmlDeviceGetHandleByIndex(1)

        yield once


@contextmanager
def blocks() -> Iterator[Once]:
    def once() -> None:
        with nvml_isolated(simulate="h100x2") as nvml:
            pynvml.nvmlDeviceGetCount()
            nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(0))

    yield once


@contextmanager
def refused() -> Iterator[Once]:
    """Blocks that cannot be entered."""

    def once() -> None:
        with contextlib.suppress(nvsandbox.LibraryNotFound), nvml_isolated(library="/dev/null"):
            pass

    yield once


def main() -> None:
    rounds = int(sys.argv[2])
    logging.getLogger("nvsandbox").setLevel(logging.CRITICAL)
    with globals()[sys.argv[1]]() as once:
        for _ in range(round(rounds * WARM_UP)):
            once()
        before = in_use(once)
        for _ in range(rounds):
            once()
        print(in_use(once) - before)


if __name__ == "__main__":
    main()
