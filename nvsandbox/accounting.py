# SPDX-License-Identifier: Apache-2.0
"""The processes that a GPU has kept account of, those that have ended too."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import partial

import pynvml

from nvsandbox.asking import U32, U64, Asker, number
from nvsandbox.structures import Accounting


@dataclass(frozen=True)
class Accounted:
    """What a process has used of a GPU while it lived."""

    pid: int
    """As NVML says it: see :class:`nvsandbox.processes.Process`."""
    gpu_utilization_percent: int | None
    memory_utilization_percent: int | None
    """Of the time in which the GPU's memory was read or written."""
    max_memory_bytes: int | None
    time_ms: int | None
    """How long it had a context. 0 while it runs."""


def is_on(asker: Asker) -> bool | None:
    """Whether this GPU keeps account; None where it cannot, or where that could not be read. Raises GivenUp."""
    mode = asker.ask("accounting.mode", lambda: asker.u32("nvmlDeviceGetAccountingMode"))
    return None if mode is None else bool(mode)


def accounted(asker: Asker) -> list[Accounted] | None:
    """The processes in NVML's order, which is that of its buffer. None where the list could not be read: the reason is
    among the asker's errors. Raises GivenUp."""
    pids = asker.ask("processes.accounted", lambda: asker.listed("nvmlDeviceGetAccountingPids", ctypes.c_uint))
    if pids is None:
        return None
    found = (asker.ask("accounting", partial(_of, asker, pid)) for pid in pids)
    return [one for one in found if one is not None]


def _of(asker: Asker, pid: int) -> Accounted | None:
    stats = Accounting()
    try:
        asker.call("nvmlDeviceGetAccountingStats", asker.handle, ctypes.c_uint(pid), ctypes.byref(stats))
    except pynvml.NVMLError_NotFound:
        return None  # its place in the buffer has been given to another one meanwhile
    return Accounted(
        pid, number(stats.gpu, U32), number(stats.memory, U32), number(stats.max_memory, U64), number(stats.time, U64)
    )
