# SPDX-License-Identifier: Apache-2.0
"""How soon a caller hears of a limit that has passed and of a death, and a worker of its caller's end. The quickest of
some attempts counts, for on a busy machine any of them may come late; the soak program has the others."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pynvml
import pytest
from waiting import prompt, stop, until_inside

from nvsandbox import CallTimeout, WorkerDied, nvml_isolated

SOON = 0.050


def lateness(nvml: Any, call: Callable[[], object], limit: float) -> float:
    """Seconds from the end of the limit to the CallTimeout, which must not come before."""
    pid = nvml.session.pid  # a start is none of the call's time
    start = time.monotonic()
    with pytest.raises(CallTimeout):
        call()
    late = time.monotonic() - start - limit
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)  # it would be let alone for two seconds
    assert late >= 0
    return late


@pytest.mark.parametrize("transport", ["shm", "pipe"])
@pytest.mark.parametrize("which", ["timeout", "deadline"])
def test_a_limit_is_kept(transport: str, which: str) -> None:
    options = {"simulate": "t4,hang=nvmlDeviceGetPowerUsage", "timeout": 0.5, "transport": transport}
    with nvml_isolated(**options) as nvml:
        with nvml.session.deadline(60):
            device = nvml.nvmlDeviceGetHandleByIndex(0)

        def call() -> None:
            with nvml.session.deadline(0.1) if which == "deadline" else contextlib.nullcontext():
                nvml.nvmlDeviceGetPowerUsage(device)

        prompt(lambda: lateness(nvml, call, 0.1 if which == "deadline" else 0.5), SOON)


def test_a_limit_is_kept_on_the_short_way() -> None:
    with nvml_isolated(simulate="t4", timeout=1) as nvml:
        device = nvml.nvmlDeviceGetHandleByIndex(0)

        def seconds() -> float:
            for _ in range(3):
                nvml.nvmlDeviceGetTemperature(device, 0)
            assert nvml.session.link is not None
            before = nvml.session.link.calls
            nvml.nvmlDeviceGetTemperature(device, 0)
            assert nvml.session.link.calls == before + 1
            stop(nvml.session.pid)
            return lateness(nvml, lambda: nvml.nvmlDeviceGetTemperature(device, 0), 1)

        prompt(seconds, SOON)


@pytest.mark.parametrize("what", ["death", "deadline"])
@pytest.mark.parametrize("transport", ["shm", "pipe"])
def test_all_others_in_the_worker_hear_of_it(transport: str, what: str) -> None:
    """Of its death, and of a deadline of one of them, after which it is of no use to the rest."""
    with nvml_isolated(simulate="t4,hang=nvmlDeviceGetPowerUsage", timeout=60, transport=transport) as nvml:
        device = nvml.nvmlDeviceGetHandleByIndex(0)

        def seconds() -> float:
            ends: list[float] = []
            pid = nvml.session.pid

            def call() -> None:
                with pytest.raises(WorkerDied) as caught:
                    nvml.nvmlDeviceGetPowerUsage(device)
                ends.append(time.monotonic())
                assert caught.value.call == "nvmlDeviceGetPowerUsage"

            threads = [threading.Thread(target=call) for _ in range(6)]
            for thread in threads:
                thread.start()
            until_inside(pid, 6)
            if what == "death":
                since = time.monotonic()
                os.kill(pid, signal.SIGKILL)
            else:
                since = time.monotonic() + 0.1
                with nvml.session.deadline(0.1), pytest.raises(CallTimeout):
                    nvml.nvmlDeviceGetPowerUsage(device)
            for thread in threads:
                thread.join(30)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            assert len(ends) == 6
            return max(ends) - since

        prompt(seconds, SOON)


EVENTS = """
#include <unistd.h>
static int nothing;
struct request { unsigned version; void *set; };
int nvmlEventSetCreate (void **set) { *set = &nothing; return 0; }
int nvmlSystemEventSetCreate (struct request *request) { request->set = &nothing; return 0; }
int nvmlEventSetWait (void *set, void *data, unsigned ms) { (void)set, (void)data, (void)ms; for (;;) pause (); }
int nvmlEventSetWait_v2 (void *set, void *data, unsigned ms) { (void)set, (void)data, (void)ms; for (;;) pause (); }
int nvmlEventSetWait_v3 (void *set, void *data) { (void)set, (void)data; for (;;) pause (); }
int nvmlSystemEventSetWait (void *request) { (void)request; for (;;) pause (); }
"""


def _wait(nvml: Any, name: str, milliseconds: int) -> Callable[[], object]:
    """Such a wait, for events of a set that is made beforehand."""
    if name == "nvmlSystemEventSetWait":
        events = nvml.nvmlSystemEventSetCreate(pynvml.nvmlSystemEventSetCreateRequest_v1)
        data = (pynvml.c_nvmlSystemEventData_v1_t * 2)()
        return lambda: nvml.nvmlSystemEventSetWait(
            pynvml.nvmlSystemEventSetWaitRequest_v1, events, milliseconds, data, len(data)
        )
    events = nvml.nvmlEventSetCreate()
    if name == "nvmlEventSetWait_v3":
        parameters = pynvml.c_nvmlEventSetWait_v3_t()
        parameters.timeoutMs = milliseconds
        return lambda: nvml.nvmlEventSetWait_v3(events, parameters)
    return lambda: getattr(nvml, name)(events, milliseconds)


@pytest.mark.parametrize(
    "name", ["nvmlEventSetWait", "nvmlEventSetWait_v2", "nvmlEventSetWait_v3", "nvmlSystemEventSetWait"]
)
def test_a_waits_own_time_is_added(compile_library: Callable[[str], str], name: str) -> None:
    """However NVML is told it: as an argument, or in a structure."""
    if not hasattr(pynvml, name):
        pytest.skip(f"this pynvml has no {name}")
    with nvml_isolated(library=compile_library(EVENTS), timeout=0.2) as nvml:

        def seconds() -> float:
            with nvml.session.deadline(60):
                wait = _wait(nvml, name, 300)
                nvml.session.has_function(name)  # so that it is not looked up in the wait's time
            return lateness(nvml, wait, 0.5)

        prompt(seconds, SOON)


LOGGED = """
import json, os, sys, threading, time
read, write = os.pipe()
os.dup2(write, 2)
os.close(write)
os.environ["NVSANDBOX_DEBUG"] = "1"  # what the library prints comes to stderr
import nvsandbox
with nvsandbox.nvml_isolated(library=sys.argv[1], timeout=0.2) as nvml:
    nvml.session.pid
    start = time.monotonic()
    try:
        nvml.nvmlDeviceGetCount()
    except nvsandbox.CallTimeout:
        took = time.monotonic() - start
    text = b""
    while not text.endswith(b"shutdown\\n"):
        text += os.read(read, 100)
print(json.dumps([took, text.decode().split()]))
"""


def test_past_its_limit_a_call_is_let_return_and_nvml_shut_down(
    compile_library: Callable[[str], str], program: Callable[..., Any]
) -> None:
    """The worker is not cut off in the middle of it; and the caller waits for none of that."""
    library = compile_library(
        """
        #include <string.h>
        #include <unistd.h>
        static void say (const char *text) { (void)!write (2, text, strlen (text)); }
        int nvmlShutdown (void) { say ("shutdown\\n"); return 0; }
        int nvmlDeviceGetCount_v2 (unsigned *count)
        {
            say ("begun\\n");
            usleep (1200000);
            say ("returned\\n");
            *count = 1;
            return 0;
        }
        """
    )
    took, said = program(LOGGED, library)
    assert said == ["begun", "returned", "shutdown"]
    assert took < 1.2


def test_a_worker_ends_soon_after_its_caller_was_killed() -> None:
    code = "import sys, nvsandbox; nvml = nvsandbox.install(simulate='t4'); print(nvml.session.pid, flush=True); "
    code += "sys.stdin.read()"

    def seconds() -> float:
        command = [sys.executable, "-c", code]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/") as caller:
            assert caller.stdout is not None
            pidfd = os.pidfd_open(json.loads(caller.stdout.readline()))
            try:
                start = time.monotonic()
                caller.kill()
                assert select.select([pidfd], [], [], 20)[0]
                return time.monotonic() - start
            finally:
                os.close(pidfd)

    prompt(seconds, 0.1)
