# SPDX-License-Identifier: Apache-2.0
"""Drawn structures, arrays and sizes through both transports."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import library


@pytest.mark.parametrize("transport", ["shm", "pipe"])
def test_bytes_out_are_the_same_function_of_bytes_in(echo_library: Path, transport: str) -> None:
    """The side ends with the failing example if there is one."""
    pytest.importorskip("hypothesis")
    library.side(transport, [], kind="randomised", library=str(echo_library))
