# SPDX-License-Identifier: Apache-2.0
"""pyroute2 is imported before a test counts what it leaves behind."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import host
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for `from announcer import ...`

from announcer import Announcer

importlib.import_module("pyroute2.netlink.uevent")


@pytest.fixture
def kernel(nothing_left: None) -> Iterator[Announcer]:
    host.require(host.can_play_host(), "needs CAP_SYS_ADMIN, to make network namespaces")
    with Announcer() as announcer:
        yield announcer
