# SPDX-License-Identifier: Apache-2.0
"""What is made of a uevent's bytes."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from typing import Any

import pytest
from announcer import GPU, GPU_PATH, message
from hypothesis import given
from hypothesis import strategies as st

from nvsandbox import WatchEvent, WatchKind

module = importlib.import_module("nvsandbox.watch")  # `nvsandbox.watch` is the class


def classified(action: str, path: str, **properties: str) -> dict[str, Any] | None:
    parsed = module.parse(message(action, path, **properties))
    assert parsed is not None
    result: dict[str, Any] | None = module.classify(parsed)
    return result


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        ("add", WatchKind.GPU_ADDED),
        ("remove", WatchKind.GPU_REMOVED),
        ("bind", WatchKind.GPU_BOUND),
        ("unbind", WatchKind.GPU_UNBOUND),
    ],
)
@pytest.mark.parametrize("pci_class", ["30000", "30200", "38000"])
def test_gpus(action: str, kind: WatchKind, pci_class: str) -> None:
    properties = {**GPU, "PCI_CLASS": pci_class}
    assert classified(action, GPU_PATH, **properties) == {"kind": kind, "bus_id": "0000:65:00.0", "driver": None}


def test_who_took_a_gpu() -> None:
    for driver in ("nvidia", "vfio-pci"):
        found = classified("bind", GPU_PATH, DRIVER=driver, **GPU)
        assert found is not None
        assert found["driver"] == driver


@pytest.mark.parametrize(
    "properties",
    [
        {**GPU, "PCI_ID": "8086:0D57"},  # another vendor's
        {**GPU, "PCI_ID": "1AF4:10DE"},
        {**GPU, "PCI_CLASS": "40300"},  # a GPU's audio function
        {**GPU, "PCI_CLASS": "68000"},  # NVSwitch
        {**GPU, "PCI_CLASS": "3"},
        {**GPU, "PCI_CLASS": "rubbish"},
        {**GPU, "SUBSYSTEM": "net"},
        {"SUBSYSTEM": "pci"},
        {},
    ],
)
def test_what_is_no_gpu(properties: dict[str, str]) -> None:
    assert classified("add", GPU_PATH, **properties) is None


def test_other_actions_on_a_gpu() -> None:
    for action in ("change", "move", "online", "offline"):
        assert classified(action, GPU_PATH, **GPU) is None


def test_modules() -> None:
    loaded = classified("add", "/module/nvidia", SUBSYSTEM="module")
    assert loaded == {"kind": WatchKind.DRIVER_LOADED, "driver": "nvidia"}
    unloaded = classified("remove", "/module/nvidia_uvm", SUBSYSTEM="module")
    assert unloaded == {"kind": WatchKind.DRIVER_UNLOADED, "driver": "nvidia_uvm"}
    for name in ("nvidiafb", "i2c_nvidia_gpu", "nouveau", ""):
        assert classified("add", f"/module/{name}", SUBSYSTEM="module") is None


def test_nodes() -> None:
    path = "/devices/virtual/nvidia-caps/nvidia-cap21"
    added = classified(
        "add", path, SUBSYSTEM="nvidia-caps", MAJOR="235", MINOR="21", DEVNAME="nvidia-caps/nvidia-cap21"
    )
    assert added == {"kind": WatchKind.NODE_ADDED, "node": "/dev/nvidia-caps/nvidia-cap21", "minor": 21}
    removed = classified("remove", path, SUBSYSTEM="nvidia", MAJOR="195", MINOR="x", DEVNAME="nvidia0")
    assert removed == {"kind": WatchKind.NODE_REMOVED, "node": "/dev/nvidia0", "minor": None}
    assert classified("add", path, SUBSYSTEM="i2c-dev", MAJOR="89", MINOR="3", DEVNAME="i2c-3") is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"add@/devices/x",
        b"add@/devices/x\0ACTION=add\0",
        b"add@/devices/x\0ACTION=remove\0DEVPATH=/devices/x\0",
        b"add@/devices/x\0ACTION=add\0DEVPATH=/devices/y\0",
        b"libudev\0\xfe\xed\xca\xfe(\0\0\0(\0\0\0\x80\0\0\0ACTION=add\0DEVPATH=/devices/x\0SUBSYSTEM=pci\0",
        b"ACTION=add\0DEVPATH=/devices/x\0",
    ],
)
def test_what_is_no_uevent(data: bytes) -> None:
    assert module.parse(data) is None


def test_what_a_device_adds_does_not_change_what_the_kernel_said() -> None:
    data = message("add", "/devices/x", SUBSYSTEM="net") + b"ACTION=remove\0SUBSYSTEM=pci\0=\0x\0K=a=b\0N=\xff\0"
    assert module.parse(data) == {
        "ACTION": "add",
        "DEVPATH": "/devices/x",
        "SUBSYSTEM": "net",
        "K": "a=b",
        "N": "\\xff",
    }


PIECES = st.sampled_from(
    [b"add@/x", b"ACTION=add", b"DEVPATH=/x", b"SUBSYSTEM=pci", b"SUBSYSTEM=module", b"PCI_ID=10DE:1", b"PCI_CLASS=",
     b"PCI_CLASS=30200", b"DEVNAME=nvidia0", b"MAJOR=195", b"MINOR=\xb2", b"=", b"\xff\xfe", b"SYNTH_UUID=0"]
)  # fmt: skip


@given(st.lists(PIECES | st.binary(max_size=20)).map(b"\0".join))
def test_nothing_breaks_it(data: bytes) -> None:
    properties = module.parse(data)
    if properties is not None and (facts := module.classify(properties)) is not None:
        assert isinstance(WatchEvent(time=0.0, **facts).kind, WatchKind)


def test_events_travel() -> None:
    event = WatchEvent(WatchKind.GPU_ADDED, 1.5, bus_id="0000:65:00.0", properties={"ACTION": "add"})
    again = pickle.loads(pickle.dumps(event))
    assert again == event
    assert again.kind is WatchKind.GPU_ADDED
    assert hash(again) == hash(event)
    assert f"{event.kind}" == "gpu added"


def test_importing_imports_no_pyroute2() -> None:
    code = "import sys, nvsandbox; sys.exit('pyroute2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd="/").returncode == 0


def test_without_pyroute2_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['pyroute2'] = None\n"
        "import nvsandbox\n"
        "try: nvsandbox.watch()\n"
        "except nvsandbox.SandboxError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, cwd="/", capture_output=True, text=True)
    assert "pip install pyroute2" in done.stdout


@pytest.mark.parametrize(
    ("value", "error"), [("1", TypeError), (True, TypeError), (-1, ValueError), (float("nan"), ValueError)]
)
def test_wrong_timeouts(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"timeout=.*expected seconds"):
        module.watch(timeout=value)
