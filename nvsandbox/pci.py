# SPDX-License-Identifier: Apache-2.0
"""PCI addresses, which NVML, the kernel and people write with eight, four and no digits of domain."""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"(?:([0-9a-f]{0,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-7]))?", re.IGNORECASE)


def address(text: str) -> str | None:
    """The address as sysfs writes it: ``0000:07:00.0``; None where `text` is none. Domain and function are 0 where they
    are left out."""
    found = _ADDRESS.fullmatch(text.strip())
    if found is None:
        return None
    domain, bus, device, function = (int(part or "0", 16) for part in found.groups())
    return None if device > 0x1F else f"{domain:04x}:{bus:02x}:{device:02x}.{function:x}"


__all__ = ["address"]
