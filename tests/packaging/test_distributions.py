# SPDX-License-Identifier: Apache-2.0
"""What `python -m build` makes from a clean clone, and whether it works for those who install it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from host import require

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# A /dev of its own for what may make nodes, with the few that Python needs.
PROGRAMS = ("nvsandbox-worker", "nvsandbox-run")

PRIVATE_DEV = """
set -e
dev=$(mktemp -d)
mount -n -t tmpfs tmpfs "$dev"
for node in null zero full random urandom tty; do touch "$dev/$node"; mount -n --bind "/dev/$node" "$dev/$node"; done
ln -s /proc/self/fd "$dev/fd"
mkdir "$dev/shm"
mount -n -t tmpfs -o mode=1777 tmpfs "$dev/shm"
mount -n --move "$dev" /dev
rmdir "$dev"
exec "$@"
"""


def run(*command: str | Path, **kwargs: object) -> str:
    done = subprocess.run(
        [str(part) for part in command], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **kwargs
    )  # type: ignore[call-overload]
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return str(done.stdout)


def source_files() -> list[str]:
    """The files of the working tree as the next commit would have them."""
    require(shutil.which("git") is not None and (ROOT / ".git").exists(), "needs git, and a clone")
    listed = run("git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return sorted({name for name in listed.split("\0") if name and (ROOT / name).is_file()})


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    clone = tmp_path_factory.mktemp("clone")
    for name in source_files():
        target = clone / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    git = (
        "git",
        "-C",
        clone,
        "-c",
        "user.name=test",
        "-c",
        "user.email=test@example.org",
        "-c",
        "commit.gpgsign=false",
    )
    run("git", "init", "--quiet", clone)
    run(*git, "add", "--all", "--force")
    run(*git, "commit", "--quiet", "--no-verify", "--message", "as it is")
    return clone


@pytest.fixture(scope="module")
def distributions(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("build")
    target = tmp_path_factory.mktemp("dist")
    # What running the package leaves in a working tree must not be packed.
    for package in {clone / "nvsandbox", *(path.parent for path in clone.glob("nvsandbox/*/__init__.py"))}:
        (package / "__pycache__").mkdir()
        (package / "__pycache__" / "stale.cpython-39.pyc").touch()
    run(sys.executable, "-m", "build", "--sdist", "--outdir", target, clone)
    run(sys.executable, "-m", "build", "--wheel", "--outdir", target, clone)
    return target


@pytest.fixture(scope="module")
def wheel(distributions: Path) -> Path:
    (wheel,) = distributions.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def sdist(distributions: Path) -> Path:
    (sdist,) = distributions.glob("*.tar.gz")
    return sdist


@pytest.fixture
def bare_path(tmp_path: Path) -> str:
    """A PATH with the everyday tools, but no compiler and nothing that builds."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "env", "unshare", "mount", "touch", "ln", "mkdir", "rmdir", "mktemp"):
        if found := shutil.which(name):
            (folder / name).symlink_to(found)
    return str(folder)


def install(folder: Path, *what: str | Path, path: str | None = None) -> Path:
    """Install into a fresh venv, not the one that the tests run in; gives its bin folder."""
    venv.create(folder, with_pip=True)
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "CC", "CFLAGS"))}
    if path is not None:
        env["PATH"] = path
    run(folder / "bin" / "python", "-m", "pip", "install", "-qq", "--no-input", *what, env=env, cwd=folder)
    return folder / "bin"


def check_installed(bin_folder: Path, path: str | None = None) -> None:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "NVSANDBOX", "LD_"))}
    env["PATH"] = path or env["PATH"]
    cwd = bin_folder.parent
    version = run(
        bin_folder / "python", "-c", "import nvsandbox; print(nvsandbox.__version__)", env=env, cwd=cwd
    ).strip()
    assert version == "0.1.0"
    folder = run(
        bin_folder / "python", "-c", "import nvsandbox; print(nvsandbox.__path__[0])", env=env, cwd=cwd
    ).strip()
    assert Path(folder).is_relative_to(bin_folder.parent)
    for program in PROGRAMS:
        assert version in run(Path(folder, program), "--version", env=env, cwd=cwd)
    assert version in run(bin_folder / "nvsandbox", "--version", env=env, cwd=cwd)
    unshare = ["unshare", "--mount", "--propagation", "private", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    program = (
        "import pynvml; from nvsandbox import nvml_isolated\n"
        "with nvml_isolated(simulate='h100x8'):\n"
        "    pynvml.nvmlInit()\n"
        "    print(pynvml.nvmlDeviceGetCount(), pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(7)))\n"
    )
    inside = run(*unshare, "sh", "-c", PRIVATE_DEV, "sh", bin_folder / "python", "-c", program, env=env, cwd=cwd)
    assert inside.startswith("8 NVIDIA H100"), inside


def test_the_wheel_holds_the_whole_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        modes = {entry.filename: entry.external_attr >> 16 for entry in archive.infolist() if not entry.is_dir()}
    files = {name for name in modes if name.startswith("nvsandbox/")}
    expected = {
        name for name in source_files() if name.startswith("nvsandbox/") and Path(name).name != "meson.build"
    } | {"nvsandbox/_core.abi3.so", "nvsandbox/_fast.abi3.so"}
    expected |= {f"nvsandbox/{program}" for program in PROGRAMS}
    built = {name for name in files - expected if name.startswith("nvsandbox/sim/")}
    assert "nvsandbox/sim/libnvidia-ml.so.1" in built
    assert all(name.endswith("/libnvidia-ml.so.1") for name in built), built
    assert files - built == expected
    others = {name for name in modes if not name.startswith("nvsandbox/") and ".dist-info/" not in name}
    pages = {name for name in source_files() if name.startswith("man/")}
    assert {re.sub(r"^nvsandbox-[^/]*\.data/data/share/man/man1/", "man/", name) for name in others} == {
        *pages,
        "nvsandbox_children.pth",
        "nvsandbox_children.py",
        "nvsandbox_command.py",
    }
    for program in PROGRAMS:
        mode = modes[f"nvsandbox/{program}"]
        assert mode & 0o111 == 0o111, oct(mode)


def test_the_wheel_is_for_the_stable_abi_of_linux(wheel: Path) -> None:
    _, _, python, abi, platform = wheel.stem.split("-")
    assert python.startswith("cp3")
    assert abi == "abi3"
    assert platform.startswith("linux_")


def test_the_programs_link_nothing_but_the_c_library(wheel: Path, tmp_path: Path) -> None:
    """They run with privileges, and in images that have nothing else."""
    require(shutil.which("readelf") is not None, "needs readelf (Debian: binutils)")
    for program in PROGRAMS:
        with zipfile.ZipFile(wheel) as archive:
            file = archive.extract(f"nvsandbox/{program}", tmp_path)
        needed = set(re.findall(r"\(NEEDED\).*\[(.*?)\]", run("readelf", "--dynamic", "--wide", file)))
        assert "libc.so.6" in needed
        assert needed <= {"libc.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-aarch64.so.1"}


def test_the_sdist_holds_what_is_needed_to_build_and_to_test(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    missing = set(source_files()) - files
    assert not missing


def test_the_wheel_works_where_there_is_no_compiler(wheel: Path, tmp_path: Path, bare_path: str) -> None:
    check_installed(install(tmp_path / "venv", "--only-binary", ":all:", wheel, path=bare_path), path=bare_path)


def test_the_sdist_can_be_installed(sdist: Path, tmp_path: Path) -> None:
    check_installed(install(tmp_path / "venv", sdist))


@pytest.mark.parametrize(
    ("system", "cpu", "says"),
    [("darwin", "aarch64", "nvsandbox is for Linux only"), ("linux", "ppc64", "x86-64 and 64-bit Arm")],
)
def test_other_systems_are_refused_clearly(system: str, cpu: str, says: str, tmp_path: Path) -> None:
    meson = shutil.which("meson", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if meson is None:
        pytest.skip("meson is not installed")
    (tmp_path / "cross.ini").write_text(
        "[binaries]\nc = 'cc'\n[host_machine]\n"
        f"system = '{system}'\ncpu_family = '{cpu}'\ncpu = '{cpu}'\nendian = 'little'\n"
    )
    command = [meson, "setup", "--cross-file", str(tmp_path / "cross.ini"), str(tmp_path / "build"), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode != 0
    assert says in done.stdout
