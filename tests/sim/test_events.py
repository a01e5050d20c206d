# SPDX-License-Identifier: Apache-2.0
"""Event sets."""

from __future__ import annotations

from typing import Any


def test_a_wait_ends_with_its_time(sim: Any) -> None:
    def wait() -> Any:
        import time

        from simhelp import error_of, gpu, p, use

        use("h100")
        events = p.nvmlEventSetCreate()
        p.nvmlDeviceRegisterEvents(gpu(), p.nvmlEventTypeXidCriticalError, events)
        start = time.monotonic()
        code = error_of(p.nvmlEventSetWait_v2, events, 200)
        taken = time.monotonic() - start
        p.nvmlEventSetFree(events)
        return code, taken, error_of(p.nvmlEventSetFree, events)

    code, taken, gone = sim(wait)
    assert (code, gone) == (10, 2)
    assert 0.2 <= taken < 20


def test_an_xid_comes_once(sim: Any) -> None:
    def wait() -> Any:
        from simhelp import error_of, gpu, p, use

        use("h100x2,xid=79")
        events = p.nvmlEventSetCreate()
        p.nvmlDeviceRegisterEvents(gpu(), p.nvmlEventTypeXidCriticalError, events)
        event = p.nvmlEventSetWait_v2(events, 1000)
        same = p.nvmlDeviceGetUUID(event.device) == p.nvmlDeviceGetUUID(gpu())
        return same, event.eventType, event.eventData, error_of(p.nvmlEventSetWait_v2, events, 1)

    assert sim(wait) == (True, 8, 79, 10)


def test_a_wait_that_fails_at_once(sim: Any) -> None:
    def wait() -> Any:
        from simhelp import error_of, p, use

        use("h100,wait999=1")
        events = p.nvmlEventSetCreate()
        return [error_of(p.nvmlEventSetWait_v2, events, 100000) for _ in range(3)]

    assert sim(wait) == [999, 999, 999]


def test_waiting_holds_up_nobody_and_ends_with_shutdown(sim: Any) -> None:
    def wait() -> Any:
        import threading
        import time

        from simhelp import error_of, p, use

        use("h100")
        events = p.nvmlEventSetCreate()
        codes: list[int] = []
        waiter = threading.Thread(target=lambda: codes.append(error_of(p.nvmlEventSetWait_v2, events, 60000)))
        waiter.start()
        time.sleep(0.2)
        count = p.nvmlDeviceGetCount()
        p.nvmlShutdown()
        waiter.join(10)
        return count, codes

    assert sim(wait) == (1, [1])


def test_system_events(sim: Any) -> None:
    def wait() -> Any:
        import ctypes

        from simhelp import p, use

        use("h100")

        def request(name: str, **fields: Any) -> Any:
            made = getattr(p, f"c_{name}_t")()
            made.version = getattr(p, name)
            for field, value in fields.items():
                setattr(made, field, value)
            return made

        lib = p.nvmlLib
        create = request("nvmlSystemEventSetCreateRequest_v1")
        found = [lib.nvmlSystemEventSetCreate(ctypes.byref(create))]
        register = request("nvmlSystemRegisterEventRequest_v1", eventTypes=3, set=create.set)
        found.append(lib.nvmlSystemRegisterEvents(ctypes.byref(register)))
        data = (p.c_nvmlSystemEventData_v1_t * 4)()
        wait = request("nvmlSystemEventSetWaitRequest_v1", timeoutms=10, set=create.set, data=data, dataSize=4)
        found.append(lib.nvmlSystemEventSetWait(ctypes.byref(wait)))
        free = request("nvmlSystemEventSetFreeRequest_v1", set=create.set)
        return [*found, lib.nvmlSystemEventSetFree(ctypes.byref(free))]

    assert sim(wait) == [0, 0, 10, 0]
