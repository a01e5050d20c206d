# SPDX-License-Identifier: Apache-2.0
"""Packages that bring a pynvml of their own, or a copy under another name: calls go to the worker, or entering says
which package is in the way. Never a block in which NVML runs in the caller.

Each in a process of its own, to which the library is within reach: a call that went past the sandbox would make nodes
there, which are watched for.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pynvml
import pytest
from host import Host

sys.path.insert(0, str(Path(__file__).parent))  # for `from pynvml_packages import ...`

from pynvml_packages import folder_of

OLD = ["pynvml==11.5.3", "pynvml==11.0.0", "nvidia-ml-py3==7.352.0"]
OLDER = "pynvml==8.0.4"


def path(folder: Path) -> dict[str, str]:
    """The environment in which Python finds this folder first, and these tests' helpers."""
    return {"PYTHONPATH": f"{folder}:{Path(__file__).parent}"}


def used() -> dict[str, Any]:
    import host
    import pynvml
    from pynvml_packages import reach_nvml

    import nvsandbox

    reach_nvml()
    with host.watching() as watch:
        with nvsandbox.nvml_isolated(simulate="h100x2") as nvml:
            before = nvml.session.stats()["calls"]
            pynvml.nvmlInit()
            plain = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(1))
            yielded = nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(1))
            try:
                nvml.nvmlDeviceGetHandleByIndex(7)
            except pynvml.NVMLError as error:
                raised = type(error).__name__
            calls = nvml.session.stats()["calls"] - before
    return {"file": pynvml.__file__, "names": [str(plain), str(yielded)], "calls": calls, "raised": raised,
            "seen": watch.seen}  # fmt: skip


@pytest.mark.parametrize("package", OLD)
def test_an_old_package_is_bound(host: Host, package: str) -> None:
    """S2: the package ``pynvml`` up to 11.5.3 re-exports functions whose globals are those of ``pynvml.nvml``."""
    folder = folder_of(package)
    found = host.run(used, env=path(folder))
    assert found["file"].startswith(str(folder))
    assert all("H100" in name for name in found["names"])
    assert found["calls"] == 6
    assert found["raised"] == "NVMLError_InvalidArgument"
    assert found["seen"] == []


def refused() -> dict[str, Any]:
    import host
    from pynvml_packages import reach_nvml

    import nvsandbox

    reach_nvml()
    with host.watching() as watch, host.nothing_left():
        found = host.attempt(lambda: nvsandbox.nvml_isolated(simulate="h100x2").__enter__())
    return {**found, "seen": watch.seen}


def test_an_older_package_is_refused_by_name(host: Host) -> None:
    """S2: pynvml 8.0.4 has other names for everything."""
    folder = folder_of(OLDER)
    found = host.run(refused, env=path(folder))
    assert found["type"] == "SandboxUnavailable"
    assert str(folder / "pynvml" / "__init__.py") in found["text"]
    assert "of the distribution pynvml 8.0.4" in found["text"]
    assert "pip install --force-reinstall nvidia-ml-py" in found["text"]
    assert found["seen"] == []


def examined() -> dict[str, Any]:
    import json
    import os
    import subprocess
    import sys

    command = [sys.executable, "-m", "nvsandbox", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ, cwd="/")
    return {found["id"]: found for found in json.loads(done.stdout)["findings"]}


def test_the_doctor_says_it_too(host: Host) -> None:
    """S2: it only warned."""
    found = host.run(examined, env=path(folder_of(OLDER)))["package.unbound-pynvml"]
    assert found["severity"] == "error"
    assert "pynvml 8.0.4" in found["what"]
    assert found["do"] == "pip uninstall pynvml; pip install --force-reinstall nvidia-ml-py"


def queried() -> dict[str, Any]:
    import os
    import subprocess
    import sys

    command = [sys.executable, "-m", "nvsandbox", "query", "--simulate", "h100x2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ, cwd="/")
    return {"status": done.returncode, "out": done.stdout, "err": done.stderr}


@pytest.mark.parametrize("package", [OLDER, "nvidia-ml-py3==7.352.0"])
def test_query_says_which_package_is_too_old(host: Host, package: str) -> None:
    """S2: it was an AttributeError."""
    found = host.run(queried, env=path(folder_of(package)))
    assert found["status"] == 3
    assert "Traceback" not in found["err"]
    assert " ".join(package.split("==")) in found["err"]


def test_query_works_with_the_last_of_the_old_packages(host: Host) -> None:
    found = host.run(queried, env=path(folder_of("pynvml==11.5.3")))
    assert (found["status"], found["err"]) == (0, "")
    assert "2 GPUs" in found["out"]


def with_py3nvml(when: str) -> dict[str, Any]:
    import host
    from pynvml_packages import reach_nvml

    import nvsandbox

    reach_nvml()
    if when == "before":
        from py3nvml import py3nvml
    with host.watching() as watch, nvsandbox.nvml_isolated(simulate="h100x2") as nvml:
        if when == "within":
            from py3nvml import py3nvml
        before = nvml.session.stats()["calls"]
        py3nvml.nvmlInit()
        count = py3nvml.nvmlDeviceGetCount()
        calls = nvml.session.stats()["calls"] - before
        watch.seen = watch.events()
    seen, after = watch.seen, host.attempt(py3nvml.nvmlDeviceGetCount)
    return {"count": count, "calls": calls, "seen": seen, "after": after["mro"][-4:]}


@pytest.mark.parametrize("when", ["before", "within"])
def test_a_package_with_a_copy_of_its_own(host: Host, when: str) -> None:
    """S2: py3nvml has pynvml's code, over globals of its own; also where it is imported while the block is open."""
    found = host.run(with_py3nvml, when=when, env=path(folder_of("py3nvml==0.2.7")))
    assert (found["count"], found["calls"], found["seen"]) == (2, 2, [])


def with_vendored(when: str) -> dict[str, Any]:
    import host
    from pynvml_packages import reach_nvml

    import nvsandbox

    reach_nvml()
    if when == "before":
        import vendor.pynvml as vendored
    with host.watching() as watch:
        block = nvsandbox.nvml_isolated(simulate="h100x2")
        found: dict[str, Any] = {}
        try:
            with block as nvml:
                if when == "within":
                    import vendor.pynvml as vendored
                vendored.nvmlInit()
                found = {"count": vendored.nvmlDeviceGetCount(), "calls": nvml.session.stats()["calls"]}
                found["loader"] = type(vendored.__loader__).__name__
        except (nvsandbox.SandboxUnavailable, ImportError) as error:
            found = host.outcome(error)
    return {**found, "seen": watch.seen}


@pytest.fixture
def vendor(tmp_path: Path) -> Path:
    folder = tmp_path / "vendor"
    folder.mkdir()
    tmp_path.chmod(0o755)
    (folder / "__init__.py").touch()
    shutil.copy(pynvml.__file__, folder / "pynvml.py")
    return folder


@pytest.mark.parametrize("when", ["before", "within"])
def test_a_vendored_copy(host: Host, vendor: Path, when: str) -> None:
    """S2: bound as well, and afterwards as an import leaves it."""
    found = host.run(with_vendored, when=when, env=path(vendor.parent))
    assert (found["count"], found["calls"], found["seen"]) == (2, 2, [])
    assert found["loader"] == "SourceFileLoader"


@pytest.mark.parametrize("when", ["before", "within"])
def test_a_vendored_copy_that_cannot_be_bound(host: Host, vendor: Path, when: str) -> None:
    """S2: refused by name, on entering and when it is imported within."""
    shutil.copy(folder_of(OLDER) / "pynvml" / "nvml.py", vendor / "pynvml.py")
    found = host.run(with_vendored, when=when, env=path(vendor.parent))
    assert found["type"] == ("SandboxUnavailable" if when == "before" else "ImportError")
    assert f"the module vendor.pynvml ({vendor / 'pynvml.py'})" in found["text"]
    assert "nvsandbox run" in found["text"]
    assert found["seen"] == []


def through(module: str) -> dict[str, Any]:
    import importlib

    import host
    from pynvml_packages import reach_nvml

    import nvsandbox

    reach_nvml()
    found = importlib.import_module(module)
    with host.watching() as watch, nvsandbox.nvml_isolated(simulate="h100x2") as nvml:
        if module == "nvidia_smi":
            found.nvmlInit()
            count = found.nvmlDeviceGetCount()
        else:
            count = len(found.smi.nvidia_smi.getInstance().DeviceQuery("index")["gpu"])
        calls = nvml.session.stats()["calls"]
        seen = watch.events()
    return {"count": count, "calls": calls > 1, "seen": seen}


@pytest.mark.parametrize(
    ("package", "module"), [("nvidia-ml-py3==7.352.0", "nvidia_smi"), ("pynvml==12.0.0", "pynvml_utils")]
)
def test_modules_that_pass_pynvml_on(host: Host, package: str, module: str) -> None:
    found = host.run(through, module=module, env=path(folder_of(package)))
    assert found == {"count": 2, "calls": True, "seen": []}


LOADS_IT_ITSELF = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
count = ctypes.c_uint()
print(library.nvmlInit_v2(), library.nvmlDeviceGetCount_v2(ctypes.byref(count)), count.value)
"""


def under_run(program: str, run: bool) -> dict[str, Any]:
    import os
    import subprocess
    import sys

    import host

    from nvsandbox.simulate import parse

    command = [sys.executable, "-m", "nvsandbox", "run", "--simulate", "h100x2", "--"] if run else []
    command += [sys.executable, "-c", program, "libnvidia-ml.so.1" if run else str(parse("h100x2").library)]
    env = {**os.environ, "NVSANDBOX_SIM": "h100x2"}
    with host.watching() as watch:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd="/")
    return {"out": done.stdout + done.stderr, "seen": sorted({os.path.basename(path) for path in watch.seen})}


@pytest.mark.parametrize("run", [True, False])
def test_a_library_that_the_program_loads_itself(host: Host, run: bool) -> None:
    """What pynvml has no part in: `nvsandbox run` keeps it from the host, and without that it makes nodes there."""
    found = host.run(under_run, program=LOADS_IT_ITSELF, run=run)
    assert found["out"].split() == ["0", "0", "2"]
    assert ("nvidiactl" in found["seen"]) is (not run)
    assert run is (found["seen"] == [])
