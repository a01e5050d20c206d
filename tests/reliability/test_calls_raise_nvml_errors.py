# SPDX-License-Identifier: Apache-2.0
"""A call raises NVML errors alone, wherever the sandbox fails under it: code that handles NVMLError for each metric
goes on working."""

from __future__ import annotations

from typing import Any

import pytest
from host import require_isolation
from waiting import kill

from nvsandbox import CallFailed, SandboxError, SandboxStartError, SandboxUnavailable, launch, nvml_isolated
from nvsandbox.errors import LibraryNotFound

CALLS = """
import json, os, resource, sys, threading, time
import pynvml
from nvsandbox import nvml_isolated

def fill(free):  # all numbers but so many
    held = []
    try:
        while True:
            held.append(os.dup(0))
    except OSError:
        for _ in range(free):
            os.close(held.pop())
    return held

def in_a_thread(work):  # which has no channel yet
    found = []
    def run():
        try:
            work()
            found.append([])
        except Exception as error:
            found.append([each.__name__ for each in type(error).__mro__] + [str(error)])
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]

resource.setrlimit(resource.RLIMIT_NOFILE, (128, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
results = []
with nvml_isolated(simulate="t4", transport=sys.argv[1], restart=100000) as nvml:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    eventset = nvml.nvmlEventSetCreate()
    ways = {
        "known": lambda: nvml.nvmlDeviceGetHandleByIndex(0),
        "unknown": lambda: nvml.nvmlDeviceGetPowerUsage(handle),
        "global": lambda: pynvml.nvmlDeviceGetTemperature(handle, 0),
        "init": nvml.nvmlInit,
        "wait": lambda: nvml.nvmlEventSetWait_v2(eventset, 1),
        "shutdown": lambda: (nvml.nvmlInit(), nvml.nvmlShutdown()),
    }
    for name, way in ways.items():
        for free in range(int(sys.argv[3])):
            if sys.argv[2] == "restart":
                # In each round of a worker that has just died, so that a new one has to be started.
                while True:
                    try:
                        nvml.nvmlDeviceGetCount()
                        break
                    except pynvml.NVMLError:  # the next start is not possible yet
                        time.sleep(0.01)
                os.kill(nvml.session.pid, 9)
            held = fill(free)
            try:
                results.append([name, free, in_a_thread(way)])
            finally:
                for fd in held:
                    os.close(fd)
print(json.dumps(results))
"""


@pytest.mark.parametrize("transport", ["shm", "pipe"])
@pytest.mark.parametrize(("case", "most"), [("alive", 4), ("restart", 6)])
def test_t1_at_each_count_of_descriptors(program: Any, transport: str, case: str, most: int) -> None:
    """T1: looking a function up for the first time raised SandboxStartError, which is no NVMLError."""
    results = program(CALLS, transport, case, str(most))
    failed = [each for each in results if each[2]]
    short = {name for name, free, error in failed if free == 0 and "CallFailed" in error}
    if case == "alive":  # in the other a call may go through in descriptors that the dead worker's end sets free
        assert short >= {"known", "unknown", "global", "init", "wait"}
    assert [each for each in failed if "NVMLError" not in each[2]] == []
    assert [each for each in results if each[1] == most - 1 and each[0] != "wait" and "CallFailed" in each[2]] == []


FAILURES = [
    SandboxUnavailable("no CAP_SYS_ADMIN"),
    SandboxStartError("spawn", 11, "", "starting the worker program"),
    SandboxStartError("seccomp", 1),
    SandboxStartError("initialisation", 110, "", "the worker was still loading"),
    LibraryNotFound(2, "", "", ()),
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: str(getattr(failure, "step", "unavailable")))
@pytest.mark.parametrize(
    "name", ["nvmlDeviceGetCount", "nvmlDeviceGetPowerUsage", "nvmlInit", "nvmlSystemGetNVMLVersion"]
)
def test_t1_at_each_stage_of_a_restart(monkeypatch: pytest.MonkeyPatch, failure: SandboxError, name: str) -> None:
    """T1: also where a new worker cannot be started; the cause says why."""
    import pynvml

    with nvml_isolated(simulate="t4") as nvml:
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        nvml.nvmlDeviceGetCount()
        kill(nvml.session.pid)

        def start(*_: object) -> None:
            raise failure

        monkeypatch.setattr(launch, "start", start)
        arguments = (handle,) if "Power" in name else ()
        with pytest.raises(pynvml.NVMLError) as caught:
            getattr(nvml, name)(*arguments)
        if not isinstance(failure, pynvml.NVMLError):
            assert isinstance(caught.value, CallFailed)
            assert type(caught.value.__cause__) is type(failure)
            assert str(failure) in str(caught.value)
        monkeypatch.undo()


def test_t1_privileges_dropped_before_a_restart(program: Any) -> None:
    """T1: isolation="mount" is not possible any more when the worker has died: a call raised SandboxUnavailable."""
    require_isolation("mount")
    found = program(
        """
        import json, os
        import pynvml
        from nvsandbox import nvml_isolated
        with nvml_isolated(simulate="t4", isolation="mount", privileged=False) as nvml:
            nvml.nvmlDeviceGetCount()
            os.kill(nvml.session.pid, 9)
            os.waitid(os.P_PID, nvml.session.keeper.worker.pid, os.WEXITED | os.WNOWAIT)
            os.setresuid(65534, 65534, 65534)
            caught = []
            for call in (nvml.nvmlDeviceGetCount, nvml.nvmlSystemGetNVMLVersion, nvml.nvmlInit):
                try:
                    call()
                except pynvml.NVMLError as error:
                    caught.append([type(error).__name__, type(error.__cause__).__name__])
        print(json.dumps(caught))
        """
    )
    assert len(found) == 3
    assert found[0] == ["CallFailed", "SandboxUnavailable"]
    # After a failed start the next one has to wait for a moment, which is a WorkerDied.
    assert all(each in (found[0], ["WorkerDied", "NoneType"]) for each in found)
