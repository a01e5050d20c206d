# SPDX-License-Identifier: Apache-2.0
"""Entering a block proves that calls come to its worker, whatever has been done to pynvml before, or refuses."""

from __future__ import annotations

import ctypes
import importlib.util
import inspect
import os
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pynvml
import pytest

import nvsandbox
from nvsandbox import nvml_isolated, routing

SIMULATED = "h100x2"


@pytest.fixture(autouse=True)
def _pynvml_as_it_was() -> Iterator[None]:
    before = dict(vars(pynvml))
    yield
    after = {name: value for name, value in vars(pynvml).items() if name != "_nvmlGetFunctionPointer_cache"}
    before.pop("_nvmlGetFunctionPointer_cache")
    assert after == before
    assert routing._routes == ()


def loaded(path: str, name: str) -> types.ModuleType:
    """A module of a file, in sys.modules under that name."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


# ---- the proof itself


def test_it_is_no_call_of_nvml() -> None:
    with nvml_isolated(simulate=SIMULATED) as nvml:
        stats = nvml.session.stats()
        assert (stats["calls"], stats["errors"], stats["latency"].count) == (0, 0, 0)
        assert "H100" not in nvml.nvmlSystemGetNVMLVersion()
        assert pynvml.nvmlSystemGetNVMLVersion() == nvml.nvmlSystemGetNVMLVersion()
        assert "nvsandbox" not in nvml.nvmlSystemGetNVMLVersion()
        assert nvml.session.stats()["calls"] == 4


@pytest.mark.parametrize("fault", ["hang", "crash"])
def test_what_the_function_does_that_is_called_for_it_does_not_matter(fault: str) -> None:
    with nvml_isolated(simulate=f"{SIMULATED},{fault}=nvmlSystemGetNVMLVersion") as nvml:
        assert nvml.nvmlDeviceGetCount() == 2


def test_the_worker_has_to_answer() -> None:
    """One that is gone does not, and a second block of it is not entered."""
    with nvml_isolated(simulate=SIMULATED, restart=False) as nvml:
        os.kill(nvml.session.pid, signal.SIGKILL)
        with pytest.raises(nvsandbox.WorkerDied):
            nvml_isolated(simulate=SIMULATED, restart=False).__enter__()


def test_other_threads_never_see_it() -> None:
    """They ask for what the proof is made with while blocks open: each answer is NVML's own."""
    answers: set[Any] = set()
    end = threading.Event()

    def ask() -> None:
        while not end.is_set():
            answers.add(pynvml.nvmlSystemGetNVMLVersion())

    with nvml_isolated(simulate=SIMULATED) as nvml:
        expected = nvml.nvmlSystemGetNVMLVersion()
        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(30):
            with nvml_isolated(simulate=SIMULATED):
                pass
        end.set()
        for thread in threads:
            thread.join()
    assert answers == {expected}


# ---- what has been done to pynvml


def test_a_getter_that_goes_past(monkeypatch: pytest.MonkeyPatch) -> None:
    """S2: the function that finds symbols has been replaced by one that asks elsewhere."""
    elsewhere = mock.MagicMock(name="a library", return_value=0)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", lambda name: elsewhere)
    library = pynvml.nvmlLib
    with pytest.raises(nvsandbox.SandboxUnavailable, match=r"module pynvml .*does not come to the sandbox.*lambda"):
        nvml_isolated(simulate=SIMULATED).__enter__()
    assert pynvml.nvmlLib is library


def test_a_getter_that_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    """S2: pointers that were kept before the block."""
    kept = {name: mock.MagicMock(return_value=0) for name in ("nvmlSystemGetNVMLVersion", "nvmlSystemGetDriverVersion")}
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", lambda name: kept[name])
    with pytest.raises(nvsandbox.SandboxUnavailable, match="does not come to the sandbox"):
        nvml_isolated(simulate=SIMULATED).__enter__()


def test_single_functions_that_a_test_has_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the program's own; all others go to the sandbox."""
    monkeypatch.setattr(pynvml, "nvmlSystemGetNVMLVersion", mock.MagicMock(return_value="mine"))
    with nvml_isolated(simulate=SIMULATED) as nvml:
        assert pynvml.nvmlSystemGetNVMLVersion() == "mine"
        assert nvml.nvmlDeviceGetCount() == pynvml.nvmlDeviceGetCount() == 2
        assert nvml.session.stats()["calls"] == 2


def test_a_mock_in_the_place_of_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """S2: refused by name."""
    monkeypatch.setitem(sys.modules, "pynvml", mock.MagicMock(name="stand-in"))
    with pytest.raises(nvsandbox.SandboxUnavailable, match=r"sys\.modules\['pynvml'\] is <MagicMock name='stand-in'"):
        nvml_isolated(simulate=SIMULATED).__enter__()


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_mock_before_nvsandbox_is_imported() -> None:
    """S2: an error that says so, and not one of Python's own about base classes."""
    text = run(
        "import sys; from unittest import mock\n"
        "sys.modules['pynvml'] = mock.MagicMock()\n"
        "import nvsandbox\n"
        "try: nvsandbox.nvml_isolated\n"
        "except ImportError as error: print(error)"
    )
    assert "pynvml is <MagicMock" in text
    assert "without NVML's exceptions" in text


@pytest.mark.parametrize("how", ["reloaded", "imported anew", "only its functions are left"])
def test_pynvml_loaded_anew_before_the_block(how: str) -> None:
    """S2: before nvsandbox is imported, or after."""
    change = {
        "reloaded": "import importlib; importlib.reload(pynvml); again = pynvml",
        "imported anew": "del sys.modules['pynvml']; import pynvml as again",
        "only its functions are left": (
            "from pynvml import *; del sys.modules['pynvml']; import pynvml as again; again = sys.modules['__main__']"
        ),
    }[how]
    for first in ("", "nvsandbox.nvml_isolated"):
        text = run(
            f"import sys, pynvml, nvsandbox\n{first}\n{change}\n"
            f"with nvsandbox.nvml_isolated(simulate={SIMULATED!r}) as nvml:\n"
            f"    pynvml.nvmlInit(); again.nvmlInit()\n"
            f"    print(pynvml.nvmlDeviceGetCount(), again.nvmlDeviceGetCount(), nvml.session.stats()['calls'])\n"
        )
        assert text.split() == ["2", "2", "4"]


def test_several_copies_each_with_its_own_count() -> None:
    """S2: direct use and initialisation counts of each copy come back as they were."""
    again = loaded(pynvml.__file__, "nvsandbox_tests_pynvml")
    try:
        library = mock.MagicMock(spec=["nvmlDeviceGetCount_v2"])
        again.nvmlLib, again._nvmlLib_refcount = library, 5
        for _ in range(2):
            with nvml_isolated(simulate=SIMULATED):
                assert again._nvmlLib_refcount == 0
                again.nvmlInit()
                assert (again._nvmlLib_refcount, pynvml._nvmlLib_refcount) == (1, 0)
                assert again.nvmlDeviceGetCount() == 2
            assert again.nvmlLib is library
            assert again._nvmlLib_refcount == 5
        library.nvmlDeviceGetCount_v2.return_value = 0
        again.nvmlDeviceGetCount()
        library.nvmlDeviceGetCount_v2.assert_called_once()
    finally:
        del sys.modules["nvsandbox_tests_pynvml"]
        routing._copies[:] = [copy for copy in routing._copies if copy.scope is not vars(again)]


def test_one_that_is_imported_while_two_blocks_are_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S2: it goes with the others, from block to block and back to what it was."""
    (tmp_path / "vendored_nvml_bindings.py").write_bytes(Path(pynvml.__file__).read_bytes())
    monkeypatch.syspath_prepend(str(tmp_path))
    with nvml_isolated(simulate="h100x3"):
        with nvml_isolated(simulate="h100x4"):
            again: Any = importlib.import_module("vendored_nvml_bindings")
            assert again.nvmlDeviceGetCount() == 4
            assert importlib.reload(again) is again
            assert again.nvmlDeviceGetCount() == 4
        assert again.nvmlDeviceGetCount() == 3
    with pytest.raises(again.NVMLError_Uninitialized):
        again.nvmlDeviceGetCount()
    assert again.nvmlLib is None
    assert type(again.__loader__).__name__ == "SourceFileLoader"
    assert again.__spec__.loader is again.__loader__
    del sys.modules["vendored_nvml_bindings"]
    routing._copies[:] = [copy for copy in routing._copies if copy.scope is not vars(again)]


def test_looking_for_copies_loads_nothing_and_bears_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sly(types.ModuleType):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(f"asked for {name}")

    for number, thing in enumerate(
        [Sly("sly"), None, 7, object(), mock.MagicMock(), type("Slots", (), {"__slots__": ()})()]
    ):
        monkeypatch.setitem(sys.modules, f"nvsandbox_tests_{number}", thing)
    with nvml_isolated(simulate=SIMULATED) as nvml:
        assert nvml.nvmlDeviceGetCount() == 2


def test_pynvmls_library_itself() -> None:
    with nvml_isolated(simulate=SIMULATED) as nvml:
        count = ctypes.c_uint()
        assert pynvml.nvmlLib.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
        assert count.value == 2
        assert nvml.session.stats()["calls"] == 1


def test_what_was_kept_of_direct_use_is_the_callers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library and pointers into it from before the block: plain calls go to the sandbox all the same."""
    library = mock.MagicMock(name="the caller's own")
    library.nvmlDeviceGetCount_v2.return_value = 0
    monkeypatch.setattr(pynvml, "nvmlLib", library)
    kept = pynvml._nvmlGetFunctionPointer("nvmlDeviceGetCount_v2")
    with nvml_isolated(simulate=SIMULATED) as nvml:
        assert pynvml.nvmlDeviceGetCount() == 2
        assert kept() == 0
        assert nvml.session.stats()["calls"] == 1
    kept.assert_called_once()
    pynvml._nvmlGetFunctionPointer_cache.clear()


# ---- what is yielded, for help(), mocks and editors


def test_signatures_are_pynvmls() -> None:
    """T8: they were (*args, **kwargs) for functions that pynvml decorates."""
    with nvml_isolated(simulate=SIMULATED) as nvml:
        functions = {name: value for name, value in vars(pynvml).items() if isinstance(value, types.FunctionType)}
        assert len(functions) > 400
        for name, function in functions.items():
            if name in ("_nvmlGetFunctionPointer", "_nvmlCheckReturn"):
                continue
            assert inspect.signature(getattr(nvml, name)) == inspect.signature(function), name
        assert str(inspect.signature(nvml.nvmlDeviceGetName)) == "(handle)"
        # What is wrapped is bound to the block as well.
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        assert nvml.nvmlDeviceGetName.__wrapped__(handle) == nvml.nvmlDeviceGetName(handle).encode()
        spec = mock.create_autospec(nvml)
        with pytest.raises(TypeError, match="too many positional arguments"):
            spec.nvmlDeviceGetName(1, 2)
        kept = nvml.nvmlDeviceGetName.__wrapped__
    with pytest.raises(nvsandbox.SandboxClosed):
        kept(handle)
