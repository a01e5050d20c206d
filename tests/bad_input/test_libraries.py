# SPDX-License-Identifier: Apache-2.0
"""Libraries that are not there, or are not what they should be. Each is refused by name, with reason and remedy."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pynvml
import pytest
from host import require, require_isolation

import nvsandbox
from nvsandbox import LibraryNotFound, nvml_isolated, simulate

NAME = "libnvidia-ml.so.1"
STEPS = ["mount", "user", "guard"]

STUB = r"""
#include <stdio.h>
static void banner (const char *when) {
    for (int i = 0; i < 20; i++) {
        printf ("WARNING: you linked against the stub library (%s, line %d)\n", when, i);
        fprintf (stderr, "WARNING: you linked against the stub library (%s, line %d)\n", when, i);
    }
    fflush (stdout);
}
__attribute__ ((constructor)) static void loaded (void) { banner ("loaded"); }
int nvmlInitWithFlags (unsigned flags) { (void)flags; banner ("init"); return INIT; }
int nvmlInit_v2 (void) { return nvmlInitWithFlags (0); }
int nvmlShutdown (void) { banner ("shutdown"); return 0; }
int nvmlDeviceGetCount_v2 (unsigned *count) { banner ("count"); *count = 3; return 0; }
"""


@pytest.fixture(scope="session")
def compiler() -> str:
    found = shutil.which("cc") or ""
    require(found, "needs a C compiler")
    return found


@pytest.fixture
def build(compiler: str, tmp_path: Path) -> Callable[..., Path]:
    def build(source: str, folder: str = "built", *flags: str) -> Path:
        path = tmp_path / folder / NAME
        path.parent.mkdir(parents=True, exist_ok=True)
        command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(path), *flags]
        subprocess.run(command, input=source, text=True, check=True)
        return path

    return build


def refused(**options: object) -> LibraryNotFound:
    with pytest.raises(LibraryNotFound) as caught:
        nvml_isolated(**options).__enter__()
    error = caught.value
    assert isinstance(error, pynvml.NVMLError_LibraryNotFound)
    assert isinstance(error, nvsandbox.SandboxStartError)
    assert error.step == "library"
    return error


# ---- not there


def test_empty_driver_root(tmp_path: Path) -> None:
    error = refused(driver_root=str(tmp_path))
    assert error.errno == errno.ENOENT
    assert error.path == str(tmp_path)
    assert repr(str(tmp_path)) in str(error)
    assert "is NVIDIA's driver installed" in str(error)
    folders = [Path(line.partition(": ")[0]).parent.relative_to(tmp_path).as_posix() for line in error.tried]
    assert {"usr/lib64", "usr/lib", "usr/lib/wsl/lib", "usr/local/nvidia/lib64"} <= set(folders)
    assert all(line.endswith(f"{NAME}: does not exist") for line in error.tried)
    assert all(line in str(error) for line in error.tried)


def test_host_without_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    require(not any(map(os.path.exists, ("/proc/driver/nvidia", "/usr/lib64/" + NAME))), "a driver is installed here")
    error = refused()
    assert error.errno == errno.ENOENT
    assert any(line.startswith(NAME) and "the loader does not find it" in line for line in error.tried)
    assert "driver_root=" in str(error)
    assert "library=" in str(error)
    assert "1 places" not in str(error)
    assert str(error).count("the loader does not find it") == 1
    assert "NVSANDBOX_SIM" not in str(error)
    monkeypatch.setenv("NVSANDBOX_SIM", "h100x8")
    assert "what chooses it is NVSANDBOX_SIMULATE" in str(refused())


@pytest.mark.parametrize("isolation", STEPS)
def test_named_library_missing(tmp_path: Path, isolation: str) -> None:
    require_isolation(isolation)
    path = str(tmp_path / "missing" / NAME)
    error = refused(library=path, isolation=isolation)
    assert (error.errno, error.path) == (errno.ENOENT, path)
    assert error.tried == (f"{path}: No such file or directory",)
    assert "install NVIDIA's driver" in str(error)


# ---- there, but of no use


def elf(bits: int = 64, machine: int = 62, order: int = 1) -> bytes:
    """An ELF header and nothing behind it."""
    ident = b"\x7fELF" + bytes([bits // 32, order, 1]) + bytes(9)
    if bits == 32:
        return ident + struct.pack("<HHIIIIIHHHHHH", 3, machine, 1, 0, 52, 0, 0, 52, 32, 1, 40, 0, 0) + bytes(200)
    return ident + struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, 1, 64, 0, 0) + bytes(200)


_OTHER = (183, "aarch64") if os.uname().machine == "x86_64" else (62, "x86-64")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(b"", "is not a shared library (no ELF header)", id="empty"),
        pytest.param(b"This is the licence of the driver.\n" * 9, "is not a shared library (no ELF header)", id="text"),
        pytest.param(b"\x7fELF", "is not a shared library (no ELF header)", id="magic alone"),
        pytest.param(elf(32, 3), "is a 32-bit library, this process is 64-bit", id="32-bit x86"),
        pytest.param(elf(32, 40), "is a 32-bit library, this process is 64-bit", id="32-bit ARM"),
        pytest.param(elf(64, _OTHER[0]), f"is for {_OTHER[1]} (ELF machine {_OTHER[0]})", id="other architecture"),
        pytest.param(elf(64, 21), "is for POWER (ELF machine 21)", id="POWER"),
        pytest.param(elf(64, 62, 2), "has the other byte order", id="byte order"),
    ],
)
def test_wrong_file(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / NAME
    path.write_bytes(content)
    error = refused(library=str(path))
    assert (error.errno, error.path) == (errno.ENOEXEC, str(path))
    assert reason in str(error)
    assert error.tried[0].startswith(f"{path}: {reason}")
    assert "library=" in str(error)


@pytest.mark.parametrize("keep", [0.001, 0.3, 0.9, 1.0])
def test_truncated(tmp_path: Path, keep: float) -> None:
    whole = simulate.parse("t4").library.read_bytes()
    path = tmp_path / NAME
    path.write_bytes(whole[: max(20, min(int(len(whole) * keep), len(whole) - 1))])
    error = refused(library=str(path))
    assert (error.errno, error.path) == (errno.ENOEXEC, str(path))
    assert "is truncated" in str(error)


def test_truncated_in_a_driver_root(tmp_path: Path) -> None:
    """The bad one is told of, and a good one further down is used."""
    bad, good = tmp_path / "usr/lib64" / NAME, tmp_path / "usr/local/lib" / NAME
    for path in (bad, good):
        path.parent.mkdir(parents=True)
    bad.write_bytes(b"\x7fELF" + bytes(100))
    assert refused(driver_root=str(tmp_path)).path == str(bad)
    shutil.copy(simulate.parse("t4").library, good)
    with nvml_isolated(driver_root=str(tmp_path)) as nvml:
        assert nvml.session.library == str(good)


@pytest.mark.parametrize("isolation", STEPS)
def test_not_nvml(build: Callable[..., Path], isolation: str) -> None:
    require_isolation(isolation)
    path = str(build("int nvmlLookalike (void) { return 0; } int init (void) { return 0; }"))
    error = refused(library=path, isolation=isolation)
    assert (error.errno, error.path) == (errno.ELIBBAD, path)
    assert f"{path[-60:]} is not NVML (it lacks nvmlInit or nvmlShutdown)" in str(error)


def test_unresolved_symbol(build: Callable[..., Path]) -> None:
    path = str(build("extern int of_another_driver (void); int nvmlInit_v2 (void) { return of_another_driver (); }"))
    error = refused(library=path)
    assert (error.errno, error.path) == (errno.ELIBACC, path)
    assert f"{path[-60:]}: the loader refuses it: undefined symbol: of_another_driver" in str(error)


def test_missing_dependency(build: Callable[..., Path], tmp_path: Path) -> None:
    needed = build("int needed (void) { return 0; }", "needed")
    other = needed.rename(needed.with_name("libneeded-by-nvml.so"))
    source = "extern int needed (void); int nvmlInit_v2 (void) { return needed (); }"
    path = str(build(source, "nvml", f"-L{other.parent}", "-lneeded-by-nvml"))
    other.unlink()
    error = refused(library=path)
    assert (error.errno, error.path) == (errno.ELIBACC, path)
    assert "libneeded-by-nvml.so: cannot open shared object file" in str(error)


def test_folder(tmp_path: Path) -> None:
    error = refused(library=str(tmp_path))
    assert (error.errno, error.path) == (errno.EISDIR, str(tmp_path))
    assert "is not a regular file" in str(error)


def test_fifo_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / NAME
    os.mkfifo(path)
    error = refused(library=str(path))
    assert error.errno == errno.ENOEXEC
    assert "is not a regular file" in str(error)


def test_link_loop(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.symlink_to(path)
    error = refused(library=str(path))
    assert error.errno == errno.ELOOP


# ---- the toolkit's stub


def test_stub_first_in_ld_library_path(
    build: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The stub is skipped and never printed; if it is all that there is, the error says so."""
    stub = build(STUB, "toolkit/lib64/stubs", "-DINIT=9")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{stub.parent}:/nonexistent")
    require(not os.path.exists("/proc/driver/nvidia"), "a driver is installed here")
    error = refused()
    assert error.errno == errno.ENOENT
    assert f"{stub}: skipped: a stub for linking, not the driver's library" in error.tried
    assert "take its folder out of LD_LIBRARY_PATH" in str(error)

    good = stub.parent.parent / "driver" / NAME
    good.parent.mkdir()
    shutil.copy(simulate.parse("t4").library, good)
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{stub.parent}:{good.parent}")
    with nvml_isolated() as nvml:
        assert nvml.session.library == str(good)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("transport", ["shm", "pipe"])
def test_what_a_library_prints_is_not_part_of_the_protocol(
    build: Callable[..., Path], capfd: pytest.CaptureFixture[str], transport: str
) -> None:
    library = str(build(STUB, "chatty", "-DINIT=0"))
    with nvml_isolated(library=library, transport=transport) as nvml:
        assert [nvml.nvmlDeviceGetCount() for _ in range(3)] == [3, 3, 3]
    assert capfd.readouterr() == ("", "")


def test_chatty_library_whose_init_fails(build: Callable[..., Path], capfd: pytest.CaptureFixture[str]) -> None:
    library = str(build(STUB, "chatty", "-DINIT=13"))
    with pytest.raises(pynvml.NVMLError_FunctionNotFound) as caught:
        nvml_isolated(library=library).__enter__()
    assert caught.value.value == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    assert f"nvmlInit in {library}" in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_long_paths_are_whole(build: Callable[..., Path], tmp_path: Path) -> None:
    """Defect 15: up to the longest path that there can be; of many candidates the error says how many it leaves out."""
    folder = "/".join(["d" * 200] * 15)
    missing = tmp_path / folder / "missing.so"
    error = refused(library=str(missing))
    assert error.path == str(missing)
    assert error.tried == (f"{missing}: No such file or directory",)
    library = build("int nvmlInit_v2 (void) { return 0; } int nvmlShutdown (void) { return 0; }", folder)
    with nvml_isolated(library=str(library)) as nvml:
        assert nvml.session.keeper.worker.library == str(library)
    root = library.parent
    places = ["usr/lib64", "usr/lib64/nvidia", "usr/lib", "usr/lib/nvidia", "lib64", "lib", "usr/lib/wsl/lib"]
    places += ["usr/local/nvidia/lib64", "usr/local/nvidia/lib", "opt/nvidia/lib64", "usr/local/lib64", "usr/local/lib"]
    for place in places:
        (root / place).mkdir(parents=True)
        (root / place / NAME).write_text("no library")
    error = refused(driver_root=str(root))
    *shown, last = error.tried
    assert 5 < len(shown) < len(places)
    assert all(line.startswith(f"{root}/") and "ELF" in line for line in shown)
    assert last == f"and {len(places) - len(shown)} more"
