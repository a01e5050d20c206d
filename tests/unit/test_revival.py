# SPDX-License-Identifier: Apache-2.0
"""Handles after their worker is gone: devices go on working, what had state is stale."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess

import pynvml
import pytest
from host import require
from waiting import kill

import nvsandbox
from nvsandbox.session import NVMLSession


def kill_worker(nvml):
    """Returns when another worker answers. A call that the death meets raises; one that comes later does not."""
    pid = nvml.session.pid
    os.kill(pid, signal.SIGKILL)
    while nvml.session.pid == pid:
        with contextlib.suppress(nvsandbox.WorkerDied):
            nvml.nvmlDeviceGetCount()


def test_device_handles_go_on_working():
    with nvsandbox.nvml_isolated(simulate="h100x4") as nvml:
        by_index = nvml.nvmlDeviceGetHandleByIndex(2)
        uuid, serial, bus = (
            nvml.nvmlDeviceGetUUID(by_index),
            nvml.nvmlDeviceGetSerial(by_index),
            nvml.nvmlDeviceGetPciInfo(by_index).busId,
        )
        handles = [
            by_index,
            nvml.nvmlDeviceGetHandleByUUID(uuid),
            nvml.nvmlDeviceGetHandleBySerial(serial),
            nvml.nvmlDeviceGetHandleByPciBusId(bus),
        ]
        other = nvml.nvmlDeviceGetHandleByIndex(1)
        for _ in range(2):
            kill_worker(nvml)
            assert [nvml.nvmlDeviceGetUUID(handle) for handle in handles] == [uuid] * 4
            # Two handles in one call, of which both are stale at first
            kill_worker(nvml)
            assert nvml.nvmlDeviceGetTopologyCommonAncestor(by_index, other) >= 0
        assert nvml.session.stats()["restarts"] == 4


@pytest.mark.parametrize("name", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetMigDeviceHandleByIndex"])
def test_a_worker_that_ends_right_after_it_has_given_a_handle(name, monkeypatch):
    """The handle's UUID was asked for in vain, and the call made again, to the next worker: with the handle that it had
    been given in place of none, which was refused as stale."""

    def given(nvml, before=lambda: None):
        arguments = (1,) if name == "nvmlDeviceGetHandleByIndex" else (nvml.nvmlDeviceGetHandleByIndex(0), 1)
        getattr(nvml, name)(*arguments[:-1], 0)  # so that the function is known
        before()
        return nvml.nvmlDeviceGetUUID(getattr(nvml, name)(*arguments))

    with nvsandbox.nvml_isolated(simulate="h100x2,mig=1g.10gb*2") as nvml:
        right = given(nvml)
    with nvsandbox.nvml_isolated(simulate="h100x2,mig=1g.10gb*2") as nvml:
        pid = nvml.session.pid

        def before():
            ask = NVMLSession._ask

            def ended(session, *arguments):
                monkeypatch.undo()
                kill(pid)
                return ask(session, *arguments)

            monkeypatch.setattr(NVMLSession, "_ask", ended)

        assert given(nvml, before) == right
        assert nvml.session.pid != pid


def test_mig_device_handles_go_on_working():
    with nvsandbox.nvml_isolated(simulate="h100x1,mig=1g.10gb*2") as nvml:
        device = nvml.nvmlDeviceGetHandleByIndex(0)
        instances = [nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, index) for index in range(2)]
        uuids = [nvml.nvmlDeviceGetUUID(instance) for instance in instances]
        parent = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(instances[1])
        kill_worker(nvml)
        assert [nvml.nvmlDeviceGetUUID(instance) for instance in instances] == uuids
        assert nvml.nvmlDeviceGetUUID(parent) == nvml.nvmlDeviceGetUUID(device)


def test_what_had_state_is_stale():
    with nvsandbox.nvml_isolated(simulate="h100x2") as nvml:
        device = nvml.nvmlDeviceGetHandleByIndex(0)
        events = nvml.nvmlEventSetCreate()
        sample = nvml.nvmlGpmSampleAlloc()
        kill_worker(nvml)
        with pytest.raises(nvsandbox.StaleHandle) as caught:
            nvml.nvmlDeviceRegisterEvents(device, pynvml.nvmlEventTypeXidCriticalError, events)
        assert isinstance(caught.value, pynvml.NVMLError_InvalidArgument)
        assert caught.value.call == "nvmlDeviceRegisterEvents"
        with pytest.raises(nvsandbox.StaleHandle):
            nvml.nvmlGpmSampleGet(device, sample)


def test_instances_are_stale():
    with nvsandbox.nvml_isolated(simulate="h100,mig=1g.10gb*2") as nvml:
        device = nvml.nvmlDeviceGetHandleByIndex(0)
        number = nvml.nvmlDeviceGetGpuInstanceId(nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, 0))
        instance = nvml.nvmlDeviceGetGpuInstanceById(device, number)
        compute = nvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0)
        assert nvml.nvmlGpuInstanceGetInfo(instance).id == number
        assert nvml.nvmlComputeInstanceGetInfo(compute).id == 0
        kill_worker(nvml)
        with pytest.raises(nvsandbox.StaleHandle):
            nvml.nvmlGpuInstanceGetInfo(instance)
        with pytest.raises(nvsandbox.StaleHandle):
            nvml.nvmlComputeInstanceGetInfo(compute)
        again = nvml.nvmlDeviceGetGpuInstanceById(device, number)
        assert nvml.nvmlGpuInstanceGetInfo(again).id == number


UNITS = """
int nvmlInit_v2 (void) { return 0; }
int nvmlInitWithFlags (unsigned flags) { (void)flags; return 0; }
int nvmlShutdown (void) { return 0; }
int nvmlDeviceGetCount_v2 (unsigned *count) { *count = 0; return 0; }
static int units[2];
int nvmlUnitGetHandleByIndex (unsigned index, int **unit) { *unit = &units[index % 2]; return index < 2 ? 0 : 2; }
int nvmlUnitGetTemperature (int *unit, unsigned kind, unsigned *degrees)
{
    *degrees = (unsigned)(unit - units) + 20 + kind;
    return unit == &units[0] || unit == &units[1] ? 0 : 2;
}
"""


def test_unit_handles_go_on_working(readable_folder):
    """No GPU of today is in a unit, and so no simulated one."""
    compiler = shutil.which("cc") or ""
    require(compiler, "needs a C compiler")
    library = readable_folder / "units" / "libnvidia-ml.so.1"
    library.parent.mkdir(exist_ok=True)
    subprocess.run([compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=UNITS, text=True, check=True)
    with (
        nvsandbox.nvml_isolated(library=library, transport="shm") as nvml,
        nvsandbox.nvml_isolated(library=library, transport="pipe") as other,
    ):
        units = [nvml.nvmlUnitGetHandleByIndex(index) for index in range(2)]
        for _ in range(2):
            for _ in range(3):
                assert [nvml.nvmlUnitGetTemperature(unit, 1) for unit in units] == [21, 22]
            kill_worker(nvml)
        with pytest.raises(nvsandbox.StaleHandle):
            other.nvmlUnitGetTemperature(units[0], 1)


def test_handles_of_another_sandbox_are_stale():
    with nvsandbox.nvml_isolated(simulate="h100x2") as one, nvsandbox.nvml_isolated(simulate="t4") as two:
        handle = one.nvmlDeviceGetHandleByIndex(0)
        two.nvmlDeviceGetHandleByIndex(0)
        with pytest.raises(nvsandbox.StaleHandle):
            two.nvmlDeviceGetName(handle)
        assert one.nvmlDeviceGetName(handle) == "NVIDIA H100 80GB HBM3"


def test_no_token_is_an_invalid_argument_and_never_followed():
    with nvsandbox.nvml_isolated(simulate="h100x2") as nvml:
        for address in (1, 0x1000, 2**47 - 8, 2**64 - 8):
            with pytest.raises(pynvml.NVMLError_InvalidArgument) as caught:
                nvml.nvmlDeviceGetName(ctypes.cast(address, pynvml.c_nvmlDevice_t))
            assert not isinstance(caught.value, nvsandbox.StaleHandle)
        assert nvml.nvmlDeviceGetCount() == 2
