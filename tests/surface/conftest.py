# SPDX-License-Identifier: Apache-2.0
"""What the tests of the whole surface share."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import library


@pytest.fixture(scope="session")
def echo_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The echo library with every symbol that pynvml asks for."""
    return library.build(tmp_path_factory.mktemp("echo"), library.symbols())
