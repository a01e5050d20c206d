# SPDX-License-Identifier: Apache-2.0
"""Where the library and the nodes are: layouts of driver roots as distributions and driver containers make them."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import pytest
from host import require

from nvsandbox import roots
from nvsandbox.roots import LIBRARY, dev_folder, device_minor, library_candidates, resolve_in_root

TRIPLET = f"{platform.machine()}-linux-gnu"


def put(root: Path, path: str, target: str | None = None) -> Path:
    """A file, or a link to `target`, in a root."""
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    if target is None:
        place.touch()
    else:
        place.symlink_to(target)
    return place


def debian(root: Path) -> str:
    """Alternatives: absolute links that mean the root's own tree."""
    real = f"usr/lib/{TRIPLET}/nvidia/current/libnvidia-ml.so.535.261.03"
    put(root, real)
    put(root, f"usr/lib/{TRIPLET}/nvidia/current/{LIBRARY}", "libnvidia-ml.so.535.261.03")
    put(root, f"etc/alternatives/nvidia--{LIBRARY}", f"/usr/lib/{TRIPLET}/nvidia/current/{LIBRARY}")
    put(root, f"usr/lib/{TRIPLET}/{LIBRARY}", f"/etc/alternatives/nvidia--{LIBRARY}")
    return real


def fedora(root: Path) -> str:
    """/lib64 is a link; the file has its version in the name."""
    put(root, "usr/lib64/libnvidia-ml.so.580.95.05")
    put(root, f"usr/lib64/{LIBRARY}", "libnvidia-ml.so.580.95.05")
    put(root, "lib64", "usr/lib64")
    return "usr/lib64/libnvidia-ml.so.580.95.05"


def arch(root: Path) -> str:
    put(root, f"usr/lib/{LIBRARY}")
    return f"usr/lib/{LIBRARY}"


def container_optimized_os(root: Path) -> str:
    put(root, f"home/kubernetes/bin/nvidia/lib64/{LIBRARY}")
    return f"home/kubernetes/bin/nvidia/lib64/{LIBRARY}"


def wsl(root: Path) -> str:
    put(root, f"usr/lib/wsl/lib/{LIBRARY}")
    return f"usr/lib/wsl/lib/{LIBRARY}"


def merged_usr(root: Path) -> str:
    """Only /lib/<triplet> leads there, by an absolute link."""
    put(root, f"opt/driver/{LIBRARY}")
    put(root, f"lib/{TRIPLET}", "/opt/driver")
    return f"opt/driver/{LIBRARY}"


@pytest.mark.parametrize(
    "layout", [debian, fedora, arch, container_optimized_os, wsl, merged_usr], ids=lambda layout: layout.__name__
)
def test_layout(tmp_path: Path, layout: object) -> None:
    real = layout(tmp_path)  # type: ignore[operator]
    found, looked = library_candidates(str(tmp_path))
    assert found == [str(tmp_path / real)]
    assert all(path.startswith(str(tmp_path)) for path in looked)


def test_an_empty_root_tells_where_it_looked(tmp_path: Path) -> None:
    found, looked = library_candidates(str(tmp_path))
    assert found == []
    assert len(looked) == len(set(looked)) > 10
    assert f"{tmp_path}/usr/lib/{TRIPLET}/{LIBRARY}" in looked


def test_the_hosts_own_root_ends_with_the_loader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And LD_LIBRARY_PATH, where the toolkit's stub often comes first, is the very last."""
    stub = put(tmp_path, f"stubs/{LIBRARY}")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"relative:{tmp_path}/stubs:/nonexistent:")
    found, looked = library_candidates("/")
    assert found[-2:] == [LIBRARY, str(stub)]
    assert f"/nonexistent/{LIBRARY}" in looked
    other, _ = library_candidates(str(tmp_path))
    assert str(stub) not in other, "not for a root of its own"


@pytest.mark.parametrize(
    ("links", "path", "expected"),
    [
        ({}, "a/file", "a/file"),
        ({}, "/a/file", "a/file"),
        ({}, "a/none", None),
        ({}, "a/../a/./file", "a/file"),
        ({}, "../../a/file", "a/file"),
        ({"link": "a/file"}, "link", "a/file"),
        ({"link": "/a/file"}, "link", "a/file"),
        ({"folder": "/a"}, "folder/file", "a/file"),
        ({"b/up": "../../../../a"}, "b/up/file", "a/file"),
        ({"one": "two", "two": "/three", "three": "a"}, "one/file", "a/file"),
        ({"loop": "loop"}, "loop", None),
        ({"loop/x": "/back", "back": "loop/x"}, "back", None),
        ({"out": "/etc/passwd"}, "out", None),
        ({"out": "../../../../../../../../etc/passwd"}, "out", None),
        ({"dangling": "none"}, "dangling", None),
    ],
)
def test_links_stay_in_the_root(tmp_path: Path, links: dict[str, str], path: str, expected: str | None) -> None:
    put(tmp_path, "a/file")
    for place, target in links.items():
        put(tmp_path, place, target)
    found = resolve_in_root(str(tmp_path), path)
    assert found == (None if expected is None else str(tmp_path / expected))


def test_as_chroot_sees_it(tmp_path: Path) -> None:
    """The same as the kernel's own answer, in a root with many links."""
    for number in range(12):
        put(tmp_path, f"d{number}/f")
        put(tmp_path, f"d{number}/l", f"/d{(number * 5 + 1) % 12}/m")
        put(tmp_path, f"d{number}/m", f"../d{(number * 7 + 3) % 12}/{'f' if number % 3 else 'l'}")
    code = (
        "import os, sys; os.chroot(sys.argv[1]); os.chdir('/')\n"
        "for n in range(12):\n for x in 'flm':\n"
        "  p = f'/d{n}/{x}'; print(os.path.realpath(p) if os.path.exists(p) else None)"
    )
    done = subprocess.run(
        ["/usr/bin/env", "python3", "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    require(done.returncode == 0, "needs CAP_SYS_CHROOT")
    expected = [None if line == "None" else f"{tmp_path}{line}" for line in done.stdout.splitlines()]
    assert [resolve_in_root(str(tmp_path), f"d{n}/{x}") for n in range(12) for x in "flm"] == expected


def test_dev_folder(tmp_path: Path) -> None:
    driver, other = tmp_path / "driver", tmp_path / "other"
    (driver / "dev").mkdir(parents=True)
    other.mkdir()
    assert dev_folder(str(driver), None) == "/dev", "a driver root whose dev has no nodes"
    put(driver, "dev/nvidiactl")
    assert dev_folder(str(driver), None) == str(driver / "dev")
    assert dev_folder(str(driver), "/") == "/dev"
    assert dev_folder("/", str(driver)) == str(driver / "dev")
    assert dev_folder("/", str(driver / "dev")) == str(driver / "dev"), "the folder itself"
    assert dev_folder("/", str(other)) == str(other)
    assert dev_folder("/nonexistent", None) == "/dev"


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """/proc/driver/nvidia/gpus with two GPUs whose minor numbers are not in the order of their addresses."""
    base = tmp_path / "gpus"
    for bus, uuid, minor in [
        ("0000:0f:00.0", "GPU-aaaaaaaa-0000-0000-0000-000000000000", 1),
        ("0000:87:00.0", "GPU-bbbbbbbb-0000-0000-0000-000000000000", 0),
    ]:
        file = put(base, f"{bus}/information")
        file.write_text(
            f"Model: \t\t NVIDIA H100\nIRQ:   \t\t 97\nGPU UUID: \t {uuid}\nBus Location: \t {bus}\n"
            f"Device Minor: \t {minor}\nGPU Excluded:\t No\n"
        )
    (base / "empty").mkdir()
    put(base, "odd/information").write_bytes(b"\xff\xfe:\nDevice Minor: none\nGPU UUID: GPU-cccccccc\n")
    listdir, open_ = os.listdir, open
    proc = "/proc/driver/nvidia/gpus"
    monkeypatch.setattr(roots.os, "listdir", lambda path: listdir(str(path).replace(proc, str(base))))
    monkeypatch.setitem(vars(roots), "open", lambda path, *a, **k: open_(str(path).replace(proc, str(base)), *a, **k))
    return base


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("name", "minor"),
    [
        ("GPU-aaaaaaaa-0000-0000-0000-000000000000", 1),
        ("gpu-BBBBBBBB-0000-0000-0000-000000000000", 0),
        ("0000:0f:00.0", 1),
        ("00000000:0F:00.0", 1),
        ("00000000:87:00.0", 0),
        ("0000:88:00.0", None),
        # U7: without a domain, as nvidia-smi and lspci write it too
        ("87:00.0", 0),
        ("0f:00.0", 1),
        ("F:0.0", 1),
        ("0:0f:00", 1),
        ("00010000:87:00.0", None),
        ("1:0f:00.0", None),
        ("GPU-cccccccc", None),
    ],
)
def test_minor_numbers(name: str, minor: int | None) -> None:
    assert device_minor(name) == minor


def test_minor_number_without_a_driver() -> None:
    if os.path.exists("/proc/driver/nvidia"):
        pytest.skip("a driver is loaded")
    assert device_minor("0000:0f:00.0") is None
