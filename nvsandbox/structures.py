# SPDX-License-Identifier: Apache-2.0
"""The structures that our own queries hand to NVML, by the layouts of its ABI.

pynvml has most of them too, but which ones depends on its release. Where a structure has a version, `version` is its
first member (:func:`versioned` fills it in).
"""

from __future__ import annotations

import ctypes
from typing import TypeVar

_S = TypeVar("_S", bound=ctypes.Structure)

_U8, _U32, _I32, _U64 = ctypes.c_ubyte, ctypes.c_uint, ctypes.c_int, ctypes.c_ulonglong


def versioned(structure: type[_S], version: int) -> _S:
    """An instance whose first member says its size and version, as NVML wants it. Version 0: it has none."""
    return structure(version=ctypes.sizeof(structure) | version << 24) if version else structure()


class Memory(ctypes.Structure):
    _fields_ = (("total", _U64), ("free", _U64), ("used", _U64))


class Memory2(ctypes.Structure):
    _fields_ = (("version", _U32), ("total", _U64), ("reserved", _U64), ("free", _U64), ("used", _U64))


class Pci(ctypes.Structure):
    # Before version 3 the structure had four reserved words where `bus_id` is.
    _fields_ = (
        ("bus_id_legacy", ctypes.c_char * 16),
        ("domain", _U32),
        ("bus", _U32),
        ("device", _U32),
        ("device_id", _U32),
        ("subsystem_id", _U32),
        ("bus_id", ctypes.c_char * 32),
    )


class PciExt(ctypes.Structure):
    _fields_ = (
        ("version", _U32),
        *((name, _U32) for name in ("domain", "bus", "device", "device_id", "subsystem_id", "base_class", "sub_class")),
        ("bus_id", ctypes.c_char * 32),
    )


class Utilization(ctypes.Structure):
    _fields_ = (("gpu", _U32), ("memory", _U32))


class Temperature(ctypes.Structure):
    _fields_ = (("version", _U32), ("sensor", _U32), ("temperature", _I32))


class Margin(ctypes.Structure):
    _fields_ = (("version", _U32), ("temperature", _I32))


class Mode(ctypes.Structure):
    """Addressing mode; DRAM encryption."""

    _fields_ = (("version", _U32), ("value", _U32))


class C2c(ctypes.Structure):
    _fields_ = (("enabled", _U32),)


class Process1(ctypes.Structure):
    _fields_ = (("pid", _U32), ("memory", _U64))


class Process2(ctypes.Structure):
    _fields_ = (*Process1._fields_, ("gi", _U32), ("ci", _U32))


class SramErrors(ctypes.Structure):
    _fields_ = (
        ("version", _U32),
        ("aggregate_parity", _U64),
        ("aggregate_secded", _U64),
        ("aggregate_corrected", _U64),
        ("volatile_parity", _U64),
        ("volatile_secded", _U64),
        ("volatile_corrected", _U64),
        ("l2", _U64),
        ("sm", _U64),
        ("pcie", _U64),
        ("mcu", _U64),
        ("other", _U64),
        ("threshold_exceeded", _U32),
    )


class RemappedRows(ctypes.Structure):
    _fields_ = (
        ("correctable", _U32),
        ("correctable_inactive", _U32),
        ("uncorrectable", _U32),
        ("uncorrectable_inactive", _U32),
        ("pending", _U32),
        ("failure", _U32),
    )


class RowHistogram(ctypes.Structure):
    _fields_ = (("max", _U32), ("high", _U32), ("partial", _U32), ("low", _U32), ("none", _U32))


class Fabric2(ctypes.Structure):
    _fields_ = (
        ("version", _U32),
        ("cluster", _U8 * 16),
        ("status", _U32),
        ("clique", _U32),
        ("state", _U8),
        ("health", _U32),
    )


class Fabric3(ctypes.Structure):
    _fields_ = (*Fabric2._fields_, ("summary", _U8))


class Platform(ctypes.Structure):
    _fields_ = (
        ("version", _U32),
        ("guid", _U8 * 16),
        ("chassis", ctypes.c_char * 16),
        ("slot", _U8),
        ("tray", _U8),
        ("host", _U8),
        ("peer", _U8),
        ("module", _U8),
    )


class Text64(ctypes.Structure):
    _fields_ = (("text", ctypes.c_char * 64),)


class BlackBox(ctypes.Structure):
    _fields_ = (("seconds", _U32),)


class GpuProfile(ctypes.Structure):
    """Of GPU instances; version 2."""

    _fields_ = (
        ("version", _U32),
        ("id", _U32),
        ("p2p", _U32),
        ("slices", _U32),
        ("instances", _U32),
        ("multiprocessors", _U32),
        *((f"{name}s", _U32) for name in ("copy_engine", "decoder", "encoder", "jpeg", "ofa")),
        ("memory_mib", _U64),
        ("name", ctypes.c_char * 96),
    )


class Accounting(ctypes.Structure):
    _fields_ = (
        ("gpu", _U32),
        ("memory", _U32),
        ("max_memory", _U64),
        ("time", _U64),
        ("start", _U64),
        ("running", _U32),
        ("reserved", _U32 * 5),
    )
