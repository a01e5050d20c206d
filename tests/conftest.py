# SPDX-License-Identifier: Apache-2.0
"""What holds for every test: none of them sees the real /dev, and none leaves anything behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for `from host import ...`

import host as stand_in
from host import DRIVER, Host, require
from leftovers import MARK, Snapshot

# What is ignored stays ignored in whatever is started: a run in the background of a shell would try programs that
# Ctrl-C does not reach. Python itself ignores the two that are left out, and subprocess gives them back.
for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

# How long an example takes is up to the machine; and in CI the same examples are drawn every time.
hypothesis.settings.register_profile(
    "nvsandbox",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=stand_in.in_ci(),
)
hypothesis.settings.load_profile("nvsandbox")

GRACE = 20.0
"""Seconds for what ends on its own (a worker that was told to stop, a thread that is on its way out)."""


@pytest.fixture(scope="session", autouse=True)
def _own_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Gives this run, and what it starts, a folder of its own for temporary files: what another run on this machine
    leaves in /tmp is none of this one's, and whatever is left in this one is."""
    tmp_path_factory.getbasetemp()  # pytest's own stay where they are, for it keeps them after the run
    folder = tempfile.mkdtemp(prefix="nvsandbox-test-")
    os.chmod(folder, 0o1777)  # open to all, as /tmp is, for some tests become another user
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield
    # Not shutil.rmtree: it would go into what a failed test may have left mounted there.
    subprocess.run(["rm", "-rf", "--one-file-system", folder], check=True)


@pytest.fixture(scope="session", autouse=True)
def _stand_in_for_dev(_own_temporary_folder: None) -> Iterator[None]:
    """Moves this process to a mount namespace with a /dev of its own, before anything that could spoil the real one
    runs, and looks at the end whether that is as it was."""
    os.environ[MARK] = str(os.getpid())
    real = os.open("/dev", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    before = _nvidia_nodes(real)
    if stand_in.can_play_host():
        stand_in.play_host()
    yield
    after = _nvidia_nodes(real)
    os.close(real)
    del os.environ[MARK]
    assert after == before, "the tests have changed the real /dev"


def _nvidia_nodes(folder: int) -> dict[str, tuple[object, ...]]:
    root = f"/proc/self/fd/{folder}/"
    return {path: facts for path, facts in stand_in.listing(root).items() if "nvidia" in path or "/char/" in path}


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest, _stand_in_for_dev: None) -> Iterator[None]:
    """Fails the test when it leaves something behind, and says what."""
    before = Snapshot.take()
    yield
    end = time.monotonic() + GRACE
    while (left := before.left_by(Snapshot.take())) and time.monotonic() < end:
        time.sleep(0.02)
    if left:
        pytest.fail(f"{request.node.nodeid} leaves behind:\n  " + "\n  ".join(left), pytrace=False)


@pytest.fixture(scope="session")
def readable_folder(_stand_in_for_dev: None) -> Iterator[Path]:
    """A folder that every user can read. pytest's own are for the user who runs the tests alone."""
    folder = Path(tempfile.mkdtemp(prefix="stand-in-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def _host(readable_folder: Path) -> Host:
    return Host(readable_folder)


@pytest.fixture
def host(_host: Host) -> Host:
    """Runs functions on a stand-in for the host: see host.py."""
    require(stand_in.can_play_host(), "needs CAP_SYS_ADMIN, to make mount namespaces")
    return _host


@pytest.fixture
def host_with_nobody(host: Host) -> Host:
    """The same, where unprivileged users can run this package as well."""
    require(host.python_for_nobody(), "needs a Python that an unprivileged user can run")
    return host


@pytest.fixture
def real_library(host: Host) -> str:
    """The path of NVIDIA's libnvidia-ml.so.1, readable by every user."""
    chosen = os.environ.get("NVSANDBOX_TEST_NVML")
    found = [Path(chosen)] if chosen else sorted(DRIVER.glob("**/nvidia/current/libnvidia-ml.so.1"))
    require(found and found[0].exists(), "needs NVIDIA's library: run scripts/fetch-nvidia-nvml")
    require(not os.path.exists("/proc/driver/nvidia"), "needs a machine without NVIDIA's driver")
    return host.readable(found[0])
