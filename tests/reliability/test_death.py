# SPDX-License-Identifier: Apache-2.0
"""F3, F7, F9: workers that die, in every way and at every time; starts that take long; waits with a lasting error."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest
from waiting import LIMIT, forked, kill, prompt, until_inside

import nvsandbox
from nvsandbox import WorkerDied, control, nvml_isolated, revival

WAYS = [("segv", signal.SIGSEGV, None), ("abort", signal.SIGABRT, None), ("exit", None, 0)]


@pytest.mark.parametrize(("way", "number", "status"), WAYS)
@pytest.mark.parametrize("transport", ["shm", "pipe"])
def test_f3_in_a_call(transport: str, way: str, number: int | None, status: int | None) -> None:
    description = f"h100x2,crash=nvmlDeviceGetPowerUsage:{way}"
    with nvml_isolated(simulate=description, transport=transport) as nvml:
        handle = nvml.nvmlDeviceGetHandleByIndex(1)
        uuid = nvml.nvmlDeviceGetUUID(handle)
        with pytest.raises(WorkerDied) as caught:
            nvml.nvmlDeviceGetPowerUsage(handle)
        assert (caught.value.signal, caught.value.status) == (number, status)
        assert caught.value.call == "nvmlDeviceGetPowerUsage"
        assert caught.value.sent
        assert isinstance(caught.value, pynvml.NVMLError)
        assert nvml.nvmlDeviceGetUUID(handle) == uuid


@pytest.mark.parametrize(("way", "number", "status"), WAYS)
def test_f3_in_init(way: str, number: int | None, status: int | None) -> None:
    with pytest.raises(WorkerDied, match="loading and initialising NVML") as caught:
        nvml_isolated(simulate=f"t4,crash=nvmlInit:{way}").__enter__()
    assert (caught.value.signal, caught.value.status) == (number, status)


@pytest.mark.parametrize("way", [way for way, _, _ in WAYS])
def test_f3_in_shutdown(way: str) -> None:
    """The last one is the sandbox's own, and nobody's concern any more; a user's raises."""
    with nvml_isolated(simulate=f"t4,crash=nvmlShutdown:{way}") as nvml:
        assert nvml.nvmlDeviceGetCount() == 1
    with nvml_isolated(simulate=f"t4,crash=nvmlShutdown:{way}") as nvml:
        nvml.nvmlInit()
        with pytest.raises(WorkerDied):
            nvml.nvmlShutdown()
        assert nvml.nvmlDeviceGetCount() == 1


def test_f3_no_core_dump() -> None:
    with nvml_isolated(simulate="t4") as nvml:
        limits = Path(f"/proc/{nvml.session.pid}/limits").read_text()
        found = re.search(r"Max core file size +(\d+)", limits)
        assert found is not None
        assert int(found[1]) <= 1  # 1, since with 0 the kernel still hands the core to a program


def test_f3_what_changes_state_is_not_repeated() -> None:
    deaths: list[WorkerDied] = []
    with nvml_isolated(simulate="t4,crash=nvmlDeviceSetPersistenceMode") as nvml:
        nvml.session.on_death(deaths.append)
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        with pytest.raises(WorkerDied) as caught:
            nvml.nvmlDeviceSetPersistenceMode(handle, 1)
        assert caught.value.sent
        time.sleep(0.1)
        assert len(deaths) == 1


# The reply is written by the library itself, into whichever channel its caller waits at.
HALF = """
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <linux/futex.h>
#include <unistd.h>

int nvmlSystemGetDriverVersion (char *version, unsigned size) { version[0] = '1', version[size > 1] = 0; return 0; }

int nvmlDeviceGetCount_v2 (unsigned *count)
{
    char line[512];
    unsigned long start;
    FILE *maps = fopen ("/proc/self/maps", "r");

    *count = 1;
    while (maps != NULL && fgets (line, sizeof line, maps) != NULL)
        if (strstr (line, "nvsandbox-lane") != NULL && sscanf (line, "%lx", &start) == 1) {
            /* struct nvs_lane: the reply's number is 64 bytes in, its length 8 behind that. */
            volatile uint32_t *lane = (volatile uint32_t *)start;

            lane[18] = LENGTH;
            __sync_synchronize ();
            lane[16] = lane[0];
            (void)syscall (SYS_futex, &lane[16], FUTEX_WAKE, 1, NULL, NULL, 0);
        }
    for (int fd = 4; fd < 64; fd++) {
        int type = 0;
        socklen_t length = sizeof type;
        uint32_t half[4] = { LENGTH, 0, 4, 0 };

        if (getsockopt (fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_STREAM)
            (void)!write (fd, half, sizeof half);
    }
    if (STAYS)
        for (;;)
            pause ();
    _exit (3);
}
"""


@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize("length", [16, 4000, 0xFFFFFFFF])
@pytest.mark.parametrize("transport", ["shm", "pipe"])
def test_f3_half_a_reply(compile_library: Any, transport: str, length: int, stays: bool) -> None:
    library = compile_library(f"#define LENGTH {length}u\n#define STAYS {int(stays)}\n{HALF}")

    def seconds() -> float:
        with nvml_isolated(library=library, transport=transport, timeout=1) as nvml:
            assert nvml.nvmlSystemGetDriverVersion() == "1"
            start = time.monotonic()
            with pytest.raises((WorkerDied, nvsandbox.CallTimeout)):
                nvml.nvmlDeviceGetCount()
            took = time.monotonic() - start
            assert nvml.nvmlSystemGetDriverVersion() == "1"
            return took

    prompt(seconds, 2)


def test_a_death_ends_every_call_at_once() -> None:
    """SIGKILL with many callers inside; none of them waits for its own limit. The soak program measures how soon."""

    def seconds() -> float:
        found: list[tuple[float, BaseException]] = []
        with nvml_isolated(simulate="t4,hang=nvmlDeviceGetPowerUsage", timeout=60) as nvml:
            handle = nvml.nvmlDeviceGetHandleByIndex(0)

            def call() -> None:
                try:
                    nvml.nvmlDeviceGetPowerUsage(handle)
                except nvsandbox.SandboxError as error:
                    found.append((time.monotonic(), error))

            threads = [threading.Thread(target=call) for _ in range(32)]
            for thread in threads:
                thread.start()
            until_inside(nvml.session.pid, 32)
            os.kill(nvml.session.pid, signal.SIGKILL)
            start = time.monotonic()
            for thread in threads:
                thread.join(30)
            assert [(type(error), error.signal) for _, error in found] == [(WorkerDied, signal.SIGKILL)] * 32
            return max(end for end, _ in found) - start

    prompt(seconds, 0.5)


# ---- F7


@pytest.mark.slow
def test_f7_a_start_of_twelve_seconds() -> None:
    """As with eight GPUs and no persistence mode; calls' limit is none of the start's."""
    start = time.monotonic()
    with nvml_isolated(simulate="h100x8,init_ms=12000", timeout=1) as nvml:
        assert time.monotonic() - start >= 12
        assert nvml.nvmlDeviceGetCount() == 8


def test_f7_a_start_past_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "START_LIMIT", 2.0)  # by then it must have got as far as that

    def seconds() -> float:
        start = time.monotonic()
        with pytest.raises(nvsandbox.SandboxStartError, match=r"initialising NVML after 2 s, the limit of a start"):
            nvml_isolated(simulate="t4,init_ms=30000").__enter__()
        return time.monotonic() - start

    prompt(seconds, 6)


# ---- F9


def test_f9_waits_with_a_lasting_error_hold_up_nobody() -> None:
    with nvml_isolated(simulate="h100,wait999=1") as nvml:
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        events = nvml.nvmlEventSetCreate()
        nvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
        stop = threading.Event()
        seen: list[type] = []

        def wait() -> None:
            while not stop.is_set():
                try:
                    nvml.nvmlEventSetWait_v2(events, 1000)
                except pynvml.NVMLError as error:
                    seen.append(type(error))
                time.sleep(0.001)  # this loop is the user's, and so is its pause

        thread = threading.Thread(target=wait)
        thread.start()
        try:
            for _ in range(300):
                assert nvml.nvmlDeviceGetCount() == 1
            while not seen and thread.is_alive():
                assert nvml.nvmlDeviceGetCount() == 1
        finally:
            stop.set()
            thread.join()
        assert {issubclass(kind, pynvml.NVMLError_Unknown) for kind in seen} == {True}
        assert nvml.session.stats()["deaths"] == 0
        nvml.nvmlEventSetFree(events)


def test_a_wait_blocks_nobody_else() -> None:
    """A wait of its own length, with a limit for calls that is shorter."""
    with nvml_isolated(simulate="h100", timeout=1) as nvml:
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        events = nvml.nvmlEventSetCreate()
        nvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
        outcome: list[BaseException] = []

        def wait() -> None:
            try:
                nvml.nvmlEventSetWait_v2(events, 1500)
            except pynvml.NVMLError as error:
                outcome.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        calls = 0
        while thread.is_alive():
            assert nvml.nvmlDeviceGetCount() == 1
            calls += 1
        thread.join()
        assert calls > 300
        assert [type(error) for error in outcome] == [pynvml.NVMLError_Timeout]


def test_the_caller_is_killed_and_nothing_remains(readable_folder: Path) -> None:
    """Also in the middle of a call that takes its time: the worker lets it end, within a limit."""
    code = """
import os, sys, threading, time
from nvsandbox import nvml_isolated
with nvml_isolated(simulate=sys.argv[1]) as nvml:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    print(nvml.session.pid, flush=True)
    while True:
        nvml.nvmlDeviceGetPowerUsage(handle)
"""

    def seconds(description: str) -> float:
        with subprocess.Popen([sys.executable, "-c", code, description], stdout=subprocess.PIPE, cwd="/") as caller:
            assert caller.stdout is not None
            pid = int(caller.stdout.readline())
            pidfd = os.pidfd_open(pid)
            if "hang" in description:
                until_inside(pid)
            start = time.monotonic()
            caller.kill()
        try:
            assert select.select([pidfd], [], [], 20)[0], "the worker is there 20 s after its caller"
            return time.monotonic() - start
        finally:
            os.close(pidfd)

    prompt(lambda: seconds("t4"), 1)
    prompt(lambda: seconds("t4,hang=nvmlDeviceGetPowerUsage"), 4)


def test_a_handle_in_use_is_not_forgotten_over_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many others are asked for after each restart: those that nobody uses go first."""
    monkeypatch.setattr(revival, "_KEPT_MAX", 6)
    with nvml_isolated(simulate="h100x4", restart=100) as nvml:
        kept = nvml.nvmlDeviceGetHandleByIndex(0)
        uuid = nvml.nvmlDeviceGetUUID(kept)
        for _ in range(10):
            kill(nvml.session.pid)
            assert nvml.nvmlDeviceGetUUID(kept) == uuid
            for index in range(1, 4):
                nvml.nvmlDeviceGetHandleByIndex(index)


def test_a_shutdown_that_hangs_after_the_callers_death(compile_library: Callable[[str], str]) -> None:
    """Nobody is there to end the worker then but itself, whatever signals the library has blocked."""
    library = compile_library(
        """
        #include <signal.h>
        #include <unistd.h>
        static __attribute__ ((constructor)) void
        block_all (void)
        {
            sigset_t all;

            sigfillset (&all);
            sigprocmask (SIG_BLOCK, &all, NULL);
        }
        int nvmlShutdown (void) { for (;;) pause (); }
        """
    )
    read, write = os.pipe()

    def caller() -> None:
        nvml = nvml_isolated(library=library).__enter__()
        os.write(write, str(nvml.session.pid).encode())
        os.kill(os.getpid(), signal.SIGKILL)

    assert os.waitpid(forked(caller), 0)[1] == signal.SIGKILL
    pid = int(os.read(read, 20))
    os.close(read)
    os.close(write)
    pidfd = os.pidfd_open(pid)
    try:
        assert select.select([pidfd], [], [], LIMIT)[0], "the worker is still there"
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)
