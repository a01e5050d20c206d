# SPDX-License-Identifier: Apache-2.0
"""Worker programs that are missing, are something else, or end at a bad moment."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import host as stand_in
import pynvml
import pytest
from host import require, require_isolation
from waiting import kill, prompt

import nvsandbox
from nvsandbox import SandboxStartError, WorkerDied, control, nvml_isolated, process

FAKE = Path(__file__).with_name("fake_worker.c")


def compile_fake(program: Path, version: str) -> Path:
    compiler = shutil.which("cc") or ""
    require(compiler, "needs a C compiler")
    csrc = Path(__file__).parents[2] / "csrc"
    define = f'-DNVSANDBOX_VERSION="{version}"'
    subprocess.run([compiler, define, f"-I{csrc}", "-o", program, FAKE], check=True)
    return program


@pytest.fixture(scope="session")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_fake(tmp_path_factory.mktemp("fake") / "worker", nvsandbox.__version__)


@pytest.fixture
def replace() -> Iterator[Callable[[Path], None]]:
    """Puts another file in the place of the worker program, for this process and its mount namespace."""
    require(stand_in.can_play_host(), "needs CAP_SYS_ADMIN, to mount over the worker program")
    done = []

    def replace(path: Path) -> None:
        stand_in.mount(str(path), str(process.PROGRAM), flags=stand_in.MS_BIND)
        done.append(path)

    yield replace
    for _ in done:
        stand_in.umount(str(process.PROGRAM))


def start(**options: object) -> None:
    with nvml_isolated(**{"simulate": "t4", **options}) as nvml:
        nvml.nvmlDeviceGetCount()


def refused(step: str, err: int, **options: object) -> SandboxStartError:
    with pytest.raises(SandboxStartError) as caught:
        start(**options)
    assert (caught.value.step, caught.value.errno) == (step, err)
    return caught.value


# ---- other programs


def test_missing(tmp_path: Path) -> None:
    source = Path(nvsandbox.__file__).parent
    shutil.copytree(source, tmp_path / "nvsandbox", ignore=shutil.ignore_patterns("__pycache__", process.PROGRAM.name))
    code = """if True:
        import nvsandbox
        try:
            nvsandbox.nvml_isolated(simulate="t4").__enter__()
        except nvsandbox.SandboxStartError as error:
            print(error.step, error.errno, error.path)
            print(error)
    """
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-P", "-c", code] if sys.version_info >= (3, 11) else [sys.executable, "-c", code]
    run = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False)
    path = tmp_path / "nvsandbox" / process.PROGRAM.name
    assert run.stderr == ""
    facts, text = run.stdout.splitlines()
    assert facts == f"spawn {errno.ENOENT} {path}"
    assert text == f"spawn: starting the worker program [{path}]: No such file or directory (errno 2)"


def test_not_executable(replace: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "worker"
    shutil.copyfile(process.PROGRAM, path)
    replace(path)
    error = refused("spawn", errno.EACCES)
    assert error.path == str(process.PROGRAM)


@pytest.mark.parametrize("content", [b"", b"not a program\n", b"\x7fELF" + bytes(100)], ids=["empty", "text", "cut"])
def test_not_a_program(replace: Callable[[Path], None], tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "worker"
    path.write_bytes(content)
    path.chmod(0o755)
    replace(path)
    error = refused("spawn", errno.ENOEXEC)
    assert error.path == str(process.PROGRAM)


@pytest.mark.parametrize(("program", "status"), [("true", 0), ("false", 1)])
def test_another_program(replace: Callable[[Path], None], program: str, status: int) -> None:
    replace(Path(shutil.which(program) or "/bin/true"))
    with pytest.raises(WorkerDied, match=f"it exited with status {status}") as caught:
        start()
    assert (caught.value.signal, caught.value.status) == (None, status)


def test_another_version(
    replace: Callable[[Path], None], fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two installations are mixed. The worker compares as well: tests/worker has that."""
    monkeypatch.setenv("FAKE", "isolated")
    replace(compile_fake(tmp_path / "other", "0.0.99"))
    error = refused("hello", errno.EPROTO)
    assert error.path == str(process.PROGRAM)
    assert "the worker is of version 0.0.99" in str(error)
    assert f"its caller of version {nvsandbox.__version__}" in str(error)
    assert "reinstall nvsandbox" in str(error)


# ---- programs that end, or say something else, at a bad moment

SAID = {
    "short": (errno.EPROTO, "a message of 5 bytes that this build does not know"),
    "magic": (errno.EPROTO, "that this build does not know"),
    "type": (errno.EPROTO, "that this build does not know"),
    "size": (errno.EPROTO, "that this build does not know"),
    "order": (errno.EPROTO, "message 4 while isolating, where it may not come"),
    "huge": (errno.EPROTO, "that this build does not know"),
}


@pytest.mark.parametrize("mode", SAID)
def test_wrong_words(replace: Callable[[Path], None], fake: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setenv("FAKE", mode)
    replace(fake)
    err, text = SAID[mode]
    error = refused("hello", err)
    assert text in str(error)
    assert error.path == str(process.PROGRAM)


@pytest.mark.parametrize("isolation", ["mount", "user", "guard", "auto"])
def test_worker_that_lies(
    replace: Callable[[Path], None], fake: Path, monkeypatch: pytest.MonkeyPatch, isolation: str
) -> None:
    """It says that it is isolated, and is not: found out before NVML is loaded, and no weaker step is trusted."""
    monkeypatch.setenv("FAKE", "isolated")
    replace(fake)
    with pytest.raises(nvsandbox.SandboxUnavailable) as caught:
        start(isolation=isolation)
    text = "without seccomp or no_new_privs" if isolation == "guard" else "in this process's mount namespace"
    assert text in str(caught.value)
    assert [step for step, _ in caught.value.attempts] == (
        ["mount", "user", "guard"] if isolation == "auto" else [isolation]
    )


HALF_DONE = {
    "same-dev": "the worker's /dev is this process's own",
    "proc-dev": "the worker's /dev is no tmpfs (its file system is of type 0x9fa0)",
    "no-seccomp": "without seccomp or no_new_privs",
}


@pytest.mark.parametrize("mode", HALF_DONE)
def test_worker_that_lies_about_the_rest(
    replace: Callable[[Path], None], fake: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Each thing that a caller looks at is looked at by itself."""
    monkeypatch.setenv("FAKE", mode)
    replace(fake)
    with pytest.raises(nvsandbox.SandboxUnavailable) as caught:
        start(isolation="mount")
    assert HALF_DONE[mode] in str(caught.value)


@pytest.mark.parametrize(
    ("mode", "doing"),
    [("exit-at-once", "isolating itself"), ("exit-after-start", "isolating itself"), ("kill", "isolating itself")],
)
def test_dies_during_the_start(
    replace: Callable[[Path], None], fake: Path, monkeypatch: pytest.MonkeyPatch, mode: str, doing: str
) -> None:
    monkeypatch.setenv("FAKE", mode)
    replace(fake)
    with pytest.raises(WorkerDied) as caught:
        start()
    error = caught.value
    assert (error.signal, error.status) == ((signal.SIGKILL, None) if mode == "kill" else (None, 7))
    assert error.call == doing
    assert ("SIGKILL" if mode == "kill" else "exited with status 7") in str(error)


def test_says_nothing(replace: Callable[[Path], None], fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE", "silent")
    monkeypatch.setattr(control, "START_LIMIT", 0.3)
    replace(fake)

    def seconds() -> float:
        begin = time.monotonic()
        error = refused("start", errno.ETIMEDOUT)
        assert "still isolating itself after 0.3 s, the limit of a start" in str(error)
        return time.monotonic() - begin

    prompt(seconds, 5)


@pytest.mark.parametrize("isolation", ["mount", "user", "guard"])
@pytest.mark.parametrize("how", ["segv", "abort", "exit"])
def test_dies_in_init(isolation: str, how: str) -> None:
    require_isolation(isolation)
    with pytest.raises(WorkerDied) as caught:
        start(simulate=f"t4,crash=nvmlInitWithFlags:{how}", isolation=isolation)
    error = caught.value
    expected = {"segv": (signal.SIGSEGV, None), "abort": (signal.SIGABRT, None), "exit": (None, 0)}[how]
    assert (error.signal, error.status) == expected
    assert error.call == "loading and initialising NVML"
    assert isinstance(error, pynvml.NVMLError_Unknown)


@pytest.mark.parametrize("transport", ["shm", "pipe"])
@pytest.mark.parametrize("how", ["segv", "abort", "exit"])
def test_dies_in_a_call(transport: str, how: str) -> None:
    def seconds() -> float:
        with nvml_isolated(simulate=f"t4,crash=nvmlSystemGetDriverVersion:{how}", transport=transport) as nvml:
            first = nvml.session.pid
            begin = time.monotonic()
            with pytest.raises(WorkerDied, match="in nvmlSystemGetDriverVersion") as caught:
                nvml.nvmlSystemGetDriverVersion()
            took = time.monotonic() - begin
            assert caught.value.call == "nvmlSystemGetDriverVersion"
            expected = {"segv": (signal.SIGSEGV, None), "abort": (signal.SIGABRT, None), "exit": (None, 0)}[how]
            assert (caught.value.signal, caught.value.status) == expected
            assert nvml.nvmlDeviceGetCount() == 1
            assert nvml.session.pid != first
            assert nvml.session.stats()["restarts"] == 1
            return took

    prompt(seconds, 1)


@pytest.mark.parametrize("how", ["segv", "abort", "exit"])
def test_dies_in_shutdown(how: str) -> None:
    """At the end nobody needs it any more."""
    start(simulate=f"t4,crash=nvmlShutdown:{how}")


def test_no_restart() -> None:
    with nvml_isolated(simulate="t4", restart=False) as nvml:
        kill(nvml.session.pid)
        for _ in range(3):
            with pytest.raises(WorkerDied, match="it was ended by SIGKILL"):
                nvml.nvmlDeviceGetCount()
        assert nvml.session.stats()["restarts"] == 0
