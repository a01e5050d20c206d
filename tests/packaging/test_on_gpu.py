# SPDX-License-Identifier: Apache-2.0
"""What `benchmarks/on_gpu.sh --prepare` takes to a machine that reaches no package index."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from host import require
from packaging import tags
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "on_gpu.sh"
WANTED = ("nvsandbox", "pytest", "pytest-timeout", "hypothesis")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def releases() -> list[str]:
    """Those that the package says it supports."""
    found = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    assert len(found) >= 5
    return found


def run(*command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "NVSANDBOX"))}
    return subprocess.run(
        [str(part) for part in command], env=env | variables, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder, and what was said while it was made."""
    folder = tmp_path_factory.mktemp("prepared")
    reached = run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder / "probe", "pip")
    require(reached.returncode == 0, f"needs the package index: {reached.stderr.strip()}")
    done = run(SCRIPT, "--prepare", folder / "wheels", PYTHON=sys.executable, PYTHONDONTWRITEBYTECODE="1")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "wheels", done.stdout


def missing(folder: Path, release: str) -> list[str]:
    """What that release of Python, on this processor, would need and finds no wheel for. Worked out from the wheels
    themselves: whatever --python-version says, pip evaluates what is needed for which by the Python that runs it."""
    version = tuple(map(int, release.split(".")))
    platforms = list(tags.platform_tags())
    fitting = {*tags.cpython_tags(version, platforms=platforms), *tags.compatible_tags(version, platforms=platforms)}
    environment = default_environment() | {"python_version": release, "python_full_version": f"{release}.0"}
    wheels = [(*parse_wheel_filename(wheel.name), wheel) for wheel in folder.glob("*.whl")]
    lacking: list[str] = []
    seen: set[str] = set()
    todo = [Requirement(name) for name in WANTED]
    while todo:
        wanted = todo.pop()
        if str(wanted) in seen or (wanted.marker and not wanted.marker.evaluate({**environment, "extra": ""})):
            continue
        seen.add(str(wanted))
        found = [
            wheel
            for name, number, _, good_for, wheel in wheels
            if name == canonicalize_name(wanted.name) and number in wanted.specifier and good_for & fitting
        ]
        if not found:
            lacking.append(str(wanted))
        for wheel in found:
            with zipfile.ZipFile(wheel) as archive:
                (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
                headers = Parser().parsestr(archive.read(metadata).decode())
            todo += [Requirement(line) for line in headers.get_all("Requires-Dist", [])]
    return lacking


@pytest.mark.parametrize("release", releases())
def test_it_is_good_for_each_supported_release(prepared: tuple[Path, str], release: str) -> None:
    folder, said = prepared
    assert missing(folder, release) == []
    assert f"good for Python {release}\n" in said


def test_a_wheel_that_is_missing_would_be_seen(prepared: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = prepared
    for wheel in folder.glob("*.whl"):
        if "cffi-" not in wheel.name or "-cp312-" not in wheel.name:
            (tmp_path / wheel.name).symlink_to(wheel)
    assert [Requirement(text).name for text in missing(tmp_path, "3.12")] == ["cffi"]
    assert missing(tmp_path, "3.13") == []
    for wheel in tmp_path.glob("exceptiongroup-*.whl"):
        wheel.unlink()
    assert {Requirement(text).name for text in missing(tmp_path, "3.10")} == {"exceptiongroup"}
    assert missing(tmp_path, "3.13") == []


def test_it_can_be_installed_where_there_is_no_index(prepared: tuple[Path, str], tmp_path: Path) -> None:
    """As the script does on that machine: with the pip of the folder, into a venv that has none."""
    folder, _ = prepared
    assert run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv").returncode == 0
    python = tmp_path / "venv" / "bin" / "python"
    (pip,) = folder.glob("pip-*.whl")
    # Neither this machine's settings of pip, nor a proxy that leads out.
    offline = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "", "PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": ""}
    options = ("--quiet", "--no-index", "--find-links", folder)
    done = run(python, pip / "pip", "install", *options, *WANTED, "pyperf", "rpyc", **offline)
    assert done.returncode == 0, done.stdout + done.stderr
    done = run(tmp_path / "venv" / "bin" / "nvsandbox", "query", "--simulate", "h100x2", "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["gpus"]) == 2
    assert run(python, "-m", "pytest", "--version").returncode == 0
    assert (folder / "built").is_dir(), "the compiled C parts"
