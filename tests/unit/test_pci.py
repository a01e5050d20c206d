# SPDX-License-Identifier: Apache-2.0
"""U7: PCI addresses are compared as numbers, however many digits who has written them."""

from __future__ import annotations

import pytest

from nvsandbox import options, pci


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0000:65:00.0", "0000:65:00.0"),
        ("00000000:65:00.0", "0000:65:00.0"),
        ("00010000:E1:00.0", "10000:e1:00.0"),
        ("10000:e1:00.0", "10000:e1:00.0"),
        ("af:00.0", "0000:af:00.0"),
        ("AF:0", "0000:af:00.0"),
        (":af:1f.7", "0000:af:1f.7"),
        ("af:20.0", None),
        ("af:00.8", None),
        ("GPU-aaaaaaaa-0000-0000-0000-000000000000", None),
        ("000000000:65:00.0", None),
        ("65", None),
        ("", None),
    ],
)
def test_addresses(text: str, address: str | None) -> None:
    assert pci.address(text) == address


@pytest.mark.parametrize("device", ["00010000:E1:00.0", "af:00.0", "0000:65:00.0"])
def test_devices_takes_what_can_be_found(device: str) -> None:
    assert options.make({"devices": [device]}, {}).devices == (device,)
