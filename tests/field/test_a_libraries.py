# SPDX-License-Identifier: Apache-2.0
"""A: libraries of other versions, in other places, or none."""

from __future__ import annotations

import ctypes
import pickle
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest
from host import Host, require_isolation

from nvsandbox import LibraryNotFound, nvml_isolated, roots, simulate

NAME = "libnvidia-ml.so.1"
LIBRARY = simulate.parse("t4").library


def asked_for() -> list[str]:
    """Every symbol that pynvml may ask a library for."""
    text = Path(pynvml.__file__).read_text()
    return sorted(set(re.findall(r"_nvmlGetFunctionPointer\(['\"](\w+)['\"]\)", text)))


@pytest.mark.parametrize("symbols", ["v1", "v2", "all"])
def test_a1_old_driver_lacks_versions(symbols: str) -> None:
    """FunctionNotFound for that call alone; session and worker live on."""
    description = f"h100,symbols={symbols}"
    direct = ctypes.CDLL(str(simulate.parse(description).library))  # loaded, not initialised: nothing happens
    has = {name for name in asked_for() if hasattr(direct, name)}
    assert has
    if symbols != "all":
        assert has < set(asked_for())
    with nvml_isolated(simulate=description) as nvml:
        pid = nvml.session.pid
        lacking = {name for name in asked_for() if not nvml.session.has_function(name)}
        assert lacking == set(asked_for()) - has
        for name in lacking:
            with pytest.raises(pynvml.NVMLError_FunctionNotFound):
                nvml._nvmlGetFunctionPointer(name)
        if "nvmlDeviceGetCount_v2" in lacking:
            for module in (nvml, pynvml):
                with pytest.raises(pynvml.NVMLError_FunctionNotFound):
                    module.nvmlDeviceGetCount()
        else:
            assert nvml.nvmlDeviceGetCount() == 1
        assert nvml.nvmlSystemGetDriverVersion().split(".")[0].isdigit()
        assert nvml.session.pid == pid
        assert nvml.session.stats()["restarts"] == 0


ECHO = """
#include <stdint.h>
#include <string.h>
struct memory { uint32_t version; uint32_t gap; uint64_t total, reserved, free, used; };
int nvmlInitWithFlags (unsigned flags) { return flags == 12345 ? 2 : 0; }
int nvmlShutdown (void) { return 0; }
int nvmlDeviceGetMemoryInfo_v2 (void *device, struct memory *memory)
{
    uint64_t sum = 14695981039346656037u;
    (void)device;
    for (unsigned i = 0; i < sizeof *memory; i++)
        sum = (sum ^ ((unsigned char *)memory)[i]) * 1099511628211u;
    memory->total = sum;
    memory->used = memory->version;
    return memory->version == 0 ? 25 : 0; /* as the real one: no version, no answer */
}
"""


def fnv(data: bytes) -> int:
    total = 14695981039346656037
    for byte in data:
        total = (total ^ byte) * 1099511628211 % 2**64
    return total


@pytest.mark.parametrize("transport", ["shm", "pipe"])
def test_a5_structures_travel_both_ways(compile_library: Callable[..., Path], transport: str) -> None:
    """The library sees what the caller put into a structure, its version first."""
    with nvml_isolated(library=compile_library(ECHO), transport=transport) as nvml:
        call = nvml._nvmlGetFunctionPointer("nvmlDeviceGetMemoryInfo_v2")
        for fill in (0x00, 0x01, 0x5A, 0xFF):
            memory = pynvml.c_nvmlMemory_v2_t()
            ctypes.memset(ctypes.byref(memory), fill, ctypes.sizeof(memory))
            memory.version = pynvml.nvmlMemory_v2
            expected = fnv(bytes(memory))
            assert call(None, ctypes.byref(memory)) == 0
            assert memory.total == expected
            assert memory.used == memory.version == pynvml.nvmlMemory_v2
            assert bytes(memory)[16:32] == bytes([fill]) * 16
        # The same by pynvml's own function, which sets the version.
        assert nvml.nvmlDeviceGetMemoryInfo(None, version=pynvml.nvmlMemory_v2).used == pynvml.nvmlMemory_v2
        with pytest.raises(pynvml.NVMLError_ArgumentVersionMismatch):
            nvml._nvmlCheckReturn(call(None, ctypes.byref(pynvml.c_nvmlMemory_v2_t())))


STUB = """
#include <stdio.h>
static void banner (void) { for (int i = 0; i < 20; i++) { puts ("STUB LIBRARY"); fputs ("STUB\\n", stderr); } }
__attribute__ ((constructor)) static void loaded (void) { banner (); }
int nvmlInitWithFlags (unsigned flags) { banner (); return flags == 0 ? 9 : 9; }
int nvmlShutdown (void) { return 0; }
"""


def test_a8_stubs_and_other_architectures_are_passed_over(
    compile_library: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    stub = compile_library(STUB, "cuda/lib64/stubs")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(stub.parent))
    root = tmp_path / "root"
    folders = [root / folder for folder in ("usr/lib64", "usr/lib", "usr/local/lib64")]
    for folder in folders:
        folder.mkdir(parents=True)
    (folders[0] / NAME).symlink_to(stub)  # as an image that was built against the toolkit
    (folders[1] / NAME).write_bytes(b"\x7fELF\x01\x01\x01" + bytes(9) + b"\x03\x00\x03\x00" + bytes(200))
    shutil.copy(LIBRARY, folders[2] / NAME)
    with nvml_isolated(driver_root=root) as nvml:
        assert nvml.session.library == str(folders[2] / NAME)
    (folders[2] / NAME).unlink()
    with pytest.raises(LibraryNotFound) as caught:
        nvml_isolated(driver_root=root).__enter__()
    assert any("32-bit" in line and str(folders[1]) in line for line in caught.value.tried)
    assert capfd.readouterr() == ("", "")


def _only_so_1(root: Path) -> Path:
    path = root / "usr/lib64" / NAME
    path.parent.mkdir(parents=True)
    shutil.copy(LIBRARY, path)
    return path


def _alternatives(root: Path) -> Path:
    """Debian's: links in /etc, absolute, which mean the driver's own tree."""
    triplet = roots._TRIPLETS["x86_64" if "x86_64" in roots._folders()[0] else "aarch64"]
    folder = root / "usr/lib" / triplet
    real = folder / "nvidia/current/libnvidia-ml.so.535.261.03"
    real.parent.mkdir(parents=True)
    (root / "etc/alternatives").mkdir(parents=True)
    shutil.copy(LIBRARY, real)
    (real.parent / NAME).symlink_to(real.name)
    (root / "etc/alternatives/glx--libnvidia-ml.so.1").symlink_to(f"/usr/lib/{triplet}/nvidia/current/{NAME}")
    (folder / NAME).symlink_to("/etc/alternatives/glx--libnvidia-ml.so.1")
    return real


def _merged_usr(root: Path) -> Path:
    path = root / "usr/lib/nvidia" / NAME
    path.parent.mkdir(parents=True)
    (root / "lib").symlink_to("usr/lib")
    shutil.copy(LIBRARY, path)
    return path


def _gke(root: Path) -> Path:
    path = root / "home/kubernetes/bin/nvidia/lib64" / NAME
    path.parent.mkdir(parents=True)
    shutil.copy(LIBRARY, path.with_name("libnvidia-ml.so.550.54.15"))
    path.symlink_to("libnvidia-ml.so.550.54.15")
    return path.with_name("libnvidia-ml.so.550.54.15")


@pytest.mark.parametrize("layout", [_only_so_1, _alternatives, _merged_usr, _gke])
@pytest.mark.parametrize("isolation", ["mount", "guard"])
def test_a9_odd_places(tmp_path: Path, layout: Callable[[Path], Path], isolation: str) -> None:
    require_isolation(isolation)
    path = layout(tmp_path)
    with nvml_isolated(driver_root=tmp_path, isolation=isolation) as nvml:
        assert nvml.session.library == str(path)


def test_a9_says_where_it_looked(tmp_path: Path) -> None:
    dangling = tmp_path / "usr/lib64" / NAME
    dangling.parent.mkdir(parents=True)
    dangling.symlink_to("/opt/gone/libnvidia-ml.so.535")
    with pytest.raises(LibraryNotFound) as caught:
        nvml_isolated(driver_root=tmp_path).__enter__()
    assert any(line.startswith(f"{dangling}: ") for line in caught.value.tried)
    assert len(caught.value.tried) >= 15
    assert all(line in str(caught.value) for line in caught.value.tried)


def test_a10_importing_touches_nothing(host: Host) -> None:
    def imported() -> dict[str, Any]:
        import threading
        from pathlib import Path

        import host

        with host.watching() as watch, host.nothing_left():
            import pynvml

            import nvsandbox
            import nvsandbox.testing

            assert nvsandbox.nvml_isolated()  # options alone start nothing
        return {
            "seen": watch.seen,
            "threads": threading.active_count(),
            "library": pynvml.nvmlLib,
            "maps": "libnvidia" in Path("/proc/self/maps").read_text(),
        }

    assert host.run(imported) == {"seen": [], "threads": 1, "library": None, "maps": False}


def _keeps(error: pynvml.NVMLError, kind: type[Exception]) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, kind)
    assert type(again).__name__ == type(error).__name__
    assert (again.value, str(again), again.args) == (error.value, str(error), error.args)
    assert hash(error) == hash(error)
    assert error in {error}


def test_a10_no_library_is_library_not_found(tmp_path: Path) -> None:
    with pytest.raises(pynvml.NVMLError_LibraryNotFound) as caught:
        nvml_isolated(driver_root=tmp_path).__enter__()
    _keeps(caught.value, pynvml.NVMLError_LibraryNotFound)
    assert pickle.loads(pickle.dumps(caught.value)).tried == caught.value.tried


@pytest.mark.real
@pytest.mark.parametrize("isolation", ["mount", "user", "guard"])
def test_a10_no_driver_is_driver_not_loaded(real_library: str, isolation: str) -> None:
    begin = time.monotonic()
    with pytest.raises(pynvml.NVMLError_DriverNotLoaded) as caught:
        nvml_isolated(library=real_library, isolation=isolation).__enter__()
    assert time.monotonic() - begin < 20  # at once, and not after the limit of a call or of a start
    assert str(caught.value).startswith("Driver Not Loaded")
    _keeps(caught.value, pynvml.NVMLError_DriverNotLoaded)
