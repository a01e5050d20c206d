# SPDX-License-Identifier: Apache-2.0
"""``nvsandbox audit`` for the tests of this folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for `from auditing import ...`

import host
from auditing import Audit
from host import require


@pytest.fixture
def audit(tmp_path: Path) -> Audit:
    require(host.can_play_host(), "needs CAP_SYS_ADMIN, to make mount namespaces")
    return Audit(tmp_path)
