# SPDX-License-Identifier: Apache-2.0
"""podman, with the image of the recipes in it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import host
import pytest
from host import require

sys.path.insert(0, str(Path(__file__).parent))

from podman import ROOT, Podman
from profiles import Profiles


@pytest.fixture(scope="session")
def podman(_stand_in_for_dev: None) -> Iterator[Podman]:
    require(host.can_play_host(), "needs CAP_SYS_ADMIN, to make mount namespaces")
    made = subprocess.run(
        [ROOT / "scripts" / "podman-root"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600
    )
    require(made.returncode == 0, f"needs a tree with podman: {made.stderr.strip()}")
    files = Path(tempfile.mkdtemp(prefix="podman-files-"))
    podman = Podman(Path(made.stdout.strip()), files)
    podman.prepare()
    yield podman
    shutil.rmtree(files)


@pytest.fixture(scope="session")
def profiles(podman: Podman) -> Profiles:
    return Profiles(podman)
