# SPDX-License-Identifier: Apache-2.0
"""Values as nvidia-smi writes them in its CSV, less the unit. Each form takes a value of NVML's, which is never None,
and gives None where that means "not available"."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import pynvml

Form = Callable[[Any], str | None]

_MIB = 1 << 20


def text(value: str) -> str:
    """A name is whatever the driver says: nothing in it may move the cursor or break the line."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in value)


def plain(value: float) -> str:
    """An integer as it is."""
    return str(int(value))


def hexadecimal(digits: int) -> Form:
    """``0x`` and at least so many digits."""
    return lambda value: f"0x{value:0{digits}X}"


def mib(value: int) -> str:
    """Bytes in MiB, each figure rounded up for itself (seen from 580 to 610: parts need not add up to their sum)."""
    return str(-(-value // _MIB))


def thousandths(value: float) -> str:
    """Milliwatts in watts, with two decimals."""
    return f"{value / 1000:.2f}"


def hundredths(value: float) -> str:
    """With two decimals."""
    return f"{value:.2f}"


def microseconds(value: int) -> str:
    """Nanoseconds in microseconds."""
    return str(value // 1000)


def switch(value: int) -> str:
    """``Enabled`` or ``Disabled``."""
    return "Enabled" if value else "Disabled"


def answer(value: int) -> str:
    """``Yes`` or ``No``."""
    return "Yes" if value else "No"


def support(value: int) -> str:
    """``Supported`` or ``Not Supported``."""
    return "Supported" if value else "Not Supported"


def bit(mask: int) -> Form:
    """``Active`` or ``Not Active``."""
    return lambda value: "Active" if value & mask else "Not Active"


def words(names: Mapping[int, str | None]) -> Form:
    """A word for each number; ``Unknown(7)`` for one that is not known yet."""
    return lambda value: names.get(int(value), f"Unknown({int(value)})")


def performance(value: int) -> str | None:
    """``P0`` to ``P15``; 32 is NVML's "unknown"."""
    return None if value == 32 else f"P{value}"


def moment(value: datetime) -> str:
    """``2026/01/31 23:59:59.999``, local time."""
    return f"{value:%Y/%m/%d %H:%M:%S}.{value.microsecond // 1000:03d}"


def uuid(value: bytes) -> str:
    """16 bytes with dashes."""
    digits = value.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def guid(value: bytes) -> str:
    """The first 8 bytes as one number."""
    return f"0x{int.from_bytes(value[:8], 'big'):016X}"


def status(value: int) -> str:
    """NVML's words for one of its return codes."""
    return "Success" if value == 0 else str(pynvml.NVMLError(value))


def failed(code: int) -> str:
    """What stands in place of a value that could not be read, by NVML's return code."""
    if code == pynvml.NVML_ERROR_NOT_SUPPORTED:
        return ABSENT
    return f"[{pynvml.NVMLError(code)}]"


ABSENT = "[N/A]"
BARE = "N/A"
DEPRECATED = "[Requested functionality has been deprecated]"
