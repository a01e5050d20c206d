# SPDX-License-Identifier: Apache-2.0
"""How calls go wrong, and who may change what: as with the real library."""

from __future__ import annotations

from typing import Any

import pytest


def test_initialisation_is_counted(sim: Any) -> None:
    def count() -> list[int]:
        from simhelp import error_of, p, use

        use("t4")
        p.nvmlInit()
        found = [error_of(p.nvmlShutdown), error_of(p.nvmlDeviceGetCount), error_of(p.nvmlShutdown)]
        return [*found, error_of(p.nvmlDeviceGetCount), error_of(p.nvmlShutdown)]

    assert sim(count) == [0, 0, 0, 1, 1]


def test_what_is_set_stays_over_shutdown(sim: Any) -> None:
    def set_it() -> int:
        from simhelp import gpu, use

        p = use("t4")
        handle = gpu()
        p.nvmlDeviceSetPowerManagementLimit(handle, 60000)
        p.nvmlShutdown()
        p.nvmlInit()
        return int(p.nvmlDeviceGetPowerManagementLimit(handle))

    assert sim(set_it) == 60000


def test_bad_arguments(sim: Any) -> None:
    def call() -> dict[str, int]:
        import ctypes

        from simhelp import gpu, p, use

        use("h100")
        lib, device = p.nvmlLib, gpu()
        wrong = p.c_nvmlMemory_v2_t(version=1)
        bad = ctypes.c_void_p(0x1234)
        name = ctypes.create_string_buffer(96)
        return {
            "handle": lib.nvmlDeviceGetName(bad, name, 96),
            "no handle": lib.nvmlDeviceGetName(None, name, 96),
            "no buffer": lib.nvmlDeviceGetName(device, None, 96),
            "short": lib.nvmlDeviceGetName(device, name, 4),
            "version": lib.nvmlDeviceGetMemoryInfo_v2(device, ctypes.byref(wrong)),
            "index": lib.nvmlDeviceGetHandleByIndex_v2(1, ctypes.byref(ctypes.c_void_p())),
            "stub": lib.nvmlDeviceGetFanSpeed(device, ctypes.byref(ctypes.c_uint())),
            "stub, no pointer": lib.nvmlDeviceGetFanSpeed(device, None),
            "stub, handle": lib.nvmlDeviceGetFanSpeed(bad, None),
            "of another kind": lib.nvmlGpuInstanceDestroy(device),
            "serial": lib.nvmlDeviceGetHandleBySerial(b"1", ctypes.byref(ctypes.c_void_p())),
        }

    assert sim(call) == {
        "handle": 2,
        "no handle": 2,
        "no buffer": 2,
        "short": 7,
        "version": 25,
        "index": 2,
        "stub": 3,
        "stub, no pointer": 2,
        "stub, handle": 2,
        "of another kind": 2,
        "serial": 6,
    }


def test_sizes_are_asked_first(sim: Any) -> None:
    def ask() -> list[int]:
        import ctypes

        from simhelp import gpu, p, use

        use("h100,procs=3")
        count = ctypes.c_uint(0)
        function = p.nvmlLib.nvmlDeviceGetComputeRunningProcesses_v3
        found = [function(gpu(), ctypes.byref(count), None), count.value]
        room = (p.c_nvmlProcessInfo_v3_t * 2)()
        count.value = 2
        found += [function(gpu(), ctypes.byref(count), room), count.value]
        return found

    assert sim(ask) == [7, 3, 7, 3]


@pytest.mark.parametrize("admin", [True, False])
def test_setters_need_an_administrator(sim: Any, admin: bool) -> None:
    def set_all(admin: bool) -> list[int]:
        import os

        from simhelp import error_of, gpu, use

        p = use("h100")
        if not admin:
            os.setresuid(65534, 65534, 65534)
        device = gpu()
        memory, graphics = p.nvmlDeviceGetSupportedMemoryClocks(device)[0], 1200
        found = [
            error_of(p.nvmlDeviceSetPersistenceMode, device, 0),
            error_of(p.nvmlDeviceSetPowerManagementLimit, device, 400000),
            error_of(p.nvmlDeviceSetApplicationsClocks, device, memory, graphics),
            error_of(p.nvmlDeviceSetComputeMode, device, p.NVML_COMPUTEMODE_PROHIBITED),
            error_of(p.nvmlDeviceSetMigMode, device, 1),
        ]
        changed = (
            p.nvmlDeviceGetPersistenceMode(device),
            p.nvmlDeviceGetPowerManagementLimit(device),
            p.nvmlDeviceGetApplicationsClock(device, p.NVML_CLOCK_GRAPHICS),
            p.nvmlDeviceGetComputeMode(device),
            p.nvmlDeviceGetMigMode(device)[0],
        )
        assert (changed == (0, 400000, 1200, 2, 1)) == admin
        return found

    assert sim(set_all, admin=admin) == [0 if admin else 4] * 5


def test_a_limit_out_of_range(sim: Any) -> None:
    def too_much() -> int:
        from simhelp import error_of, gpu, use

        p = use("h100")
        return int(error_of(p.nvmlDeviceSetPowerManagementLimit, gpu(), 900000))

    assert sim(too_much) == 2


@pytest.mark.parametrize(
    ("description", "complaint"),
    [
        ("h300", "there is no GPU model h300"),
        ("h100x65", "between 1 and 64 GPUs"),
        ("h100x0", "between 1 and 64 GPUs"),
        ("h100,speed=9", "there is no option speed"),
        ("h100,seed", "key=value is expected"),
        ("h100,seed=-1", "is not a number"),
        ("h100,na=2", "is neither 0 nor 1"),
        ("h100x2,lost=2", "there is no GPU 2 among 2"),
        ("h100x2,minors=1", "minors names 1 GPUs of 2"),
        ("h100,visible=0++1", "is not a list of numbers"),
        ("h100,procs=5001", "procs is above 5000"),
        ("h100,crash=nvmlInit:loudly", "is not segv, abort or exit"),
        ("h100,hang=init", "is not the name of an NVML function"),
        ("t4,mig=1g.5gb", "t4 has no MIG"),
        ("h100,mig=1g.5gb", "the MIG layout does not fit"),
        ("h100,mig=4g.40gb*2", "the MIG layout does not fit"),
        ("h100,mig=1g.10gb*8", "the MIG layout does not fit"),
        ("h100," + "x" * 2000, "the description is too long"),
    ],
)
def test_wrong_descriptions(sim: Any, description: str, complaint: str) -> None:
    def start(description: str) -> tuple[int, str]:
        import os
        import tempfile

        from simhelp import error_of, use

        with tempfile.TemporaryFile() as log:
            os.dup2(log.fileno(), 2)
            code = error_of(use, description)
            log.seek(0)
            return code, log.read().decode()

    code, text = sim(start, description=description)
    assert code == 2
    assert complaint in text
    assert text.count("\n") == 1


def test_threads(sim: Any) -> None:
    def many() -> int:
        import threading

        from simhelp import gpu, p, use

        use("h100x4,mig=1g.10gb*7")
        errors = []

        def work(index: int) -> None:
            try:
                for _ in range(200):
                    p.nvmlInit()
                    device = gpu(index)
                    assert len(p.nvmlDeviceGetComputeRunningProcesses(device)) == 7
                    p.nvmlDeviceGetMigDeviceHandleByIndex(device, index)
                    p.nvmlShutdown()
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(errors)

    assert sim(many) == 0
