# SPDX-License-Identifier: Apache-2.0
"""How far two CPUs are apart: what a cache line takes from one to the other and back (``exchange.c``)."""

from __future__ import annotations

import ctypes
import os
import statistics
from collections.abc import Callable
from pathlib import Path

NEAR_NS = 250
"""Up to this, CPUs count as near: below are those that share a cache (40 to 130 ns), above those that do not."""


def meter(library: str, pid: int | None = None) -> Callable[[int], float | None]:
    """What measures it, in seconds for so many times; None where there is no telling: with one CPU.

    Args:
        library: ``exchange.c``, compiled.
        pid: another process; then it is between the CPU on which this thread is and that on which the other's busiest
            thread was last. Else, and where these are the same, between the first two that this thread may use.
    """
    measure = ctypes.CDLL(library).exchange_ns
    measure.restype = ctypes.c_double
    current = ctypes.CDLL(None).sched_getcpu

    def read(times: int) -> float | None:
        allowed = sorted(os.sched_getaffinity(0))
        if len(allowed) < 2:
            return None
        cpus = (allowed[0], allowed[1])
        if pid is not None and (there := _last_cpu(pid)) != (here := current()):
            cpus = (here, there)
        taken: float = measure(*cpus, ctypes.c_uint32(max(2, times)))
        return taken * 1e-9 * times if taken > 0 else None

    return read


def exchange_ns(library: str) -> int | None:
    """Nanoseconds of one, the median of some readings."""
    read = meter(library)
    readings = [seconds for _ in range(9) if (seconds := read(1000)) is not None]
    return round(statistics.median(readings) * 1e6) if readings else None


def _last_cpu(pid: int) -> int:
    """Of a process's busiest thread."""
    stats = [(task / "stat").read_text().rpartition(")")[2].split() for task in Path(f"/proc/{pid}/task").iterdir()]
    # proc_pid_stat(5): utime is field 14, stime 15, processor 39; the first after the name is field 3
    return int(max(stats, key=lambda fields: int(fields[11]) + int(fields[12]))[36])
