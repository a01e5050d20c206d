# SPDX-License-Identifier: Apache-2.0
"""E4, F10, F11: threads that come and go, ends while calls are under way, signals, and the end of the program."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pynvml
import pytest
from waiting import prompt, until, until_inside

import nvsandbox
from nvsandbox import SandboxClosed, nvml_isolated


def _tasks(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def test_f10_the_thread_that_started_the_worker_ends() -> None:
    """A parent-death signal would follow that thread."""
    with ThreadPoolExecutor(1) as pool:
        block = nvml_isolated(simulate="h100x2")
        nvml = pool.submit(block.__enter__).result()
        pid = nvml.session.pid
    time.sleep(0.1)
    assert nvml.nvmlDeviceGetCount() == 2
    assert nvml.session.pid == pid
    block.__exit__(None, None, None)


@pytest.mark.parametrize("transport", ["shm", "pipe"])
def test_hundreds_of_threads(transport: str) -> None:
    with nvml_isolated(simulate="h100x8", transport=transport) as nvml:
        uuids = [nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(8)]
        barrier = threading.Barrier(300)
        fine: list[bool] = []

        def call(number: int) -> None:
            barrier.wait()
            handle = nvml.nvmlDeviceGetHandleByIndex(number % 8)
            fine.append(all(nvml.nvmlDeviceGetUUID(handle) == uuids[number % 8] for _ in range(5)))

        threads = [threading.Thread(target=call, args=(number,)) for number in range(300)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert fine == [True] * 300
        assert nvml.session.stats()["deaths"] == 0


@pytest.mark.parametrize("transport", ["shm", "pipe"])
def test_threads_that_end_leave_no_channel(transport: str) -> None:
    with nvml_isolated(simulate="t4", transport=transport) as nvml:
        nvml.nvmlDeviceGetCount()
        # Its main thread and this one's. The one that looked after nvmlInit may still be there for a moment.
        assert until(lambda: _tasks(nvml.session.pid) == 2)
        descriptors = len(os.listdir("/proc/self/fd"))
        for _ in range(200):
            thread = threading.Thread(target=nvml.nvmlDeviceGetCount)
            thread.start()
            thread.join()
        assert until(lambda: _tasks(nvml.session.pid) == 2)
        assert until(lambda: len(os.listdir("/proc/self/fd")) == descriptors)


@pytest.mark.parametrize("transport", ["shm", "pipe"])
def test_e4_calls_that_run_when_the_sandbox_is_closed_come_back(transport: str) -> None:
    def seconds(until_refused: bool) -> float:
        with nvml_isolated(simulate="h100x2,latency_us=400000", transport=transport) as nvml:
            results: list[Any] = []

            def call() -> None:
                try:
                    results.append(nvml.nvmlDeviceGetCount())
                except pynvml.NVMLError as error:
                    results.append(type(error))

            def is_refused() -> bool:
                try:
                    nvml.nvmlDeviceGetCount()
                except SandboxClosed:
                    return True
                return False

            nvml.nvmlDeviceGetCount()
            threads = [threading.Thread(target=call) for _ in range(4)]
            for thread in threads:
                thread.start()
            until_inside(nvml.session.pid, 4)
            start = time.monotonic()
            closers = [threading.Thread(target=nvml.session.close) for _ in range(2)]
            for thread in closers:
                thread.start()
            assert until(lambda: "closed" in repr(nvml.session))
            assert until(is_refused)  # at that very moment one call may still get through, which counts as late
            refused = time.monotonic() - start
            for thread in (*threads, *closers):
                thread.join(10)
            nvml.session.close()
            assert results == [2] * 4
            return refused if until_refused else time.monotonic() - start

    prompt(lambda: seconds(until_refused=True), 0.2)
    prompt(lambda: seconds(until_refused=False), 2)


def test_e4_calls_that_do_not_come_back_are_given_up() -> None:
    """Long before the 30 s that a call may take."""

    def seconds() -> float:
        with nvml_isolated(simulate="t4,hang=nvmlDeviceGetPowerUsage") as nvml:
            handle = nvml.nvmlDeviceGetHandleByIndex(0)
            results: list[BaseException] = []

            def call() -> None:
                try:
                    nvml.nvmlDeviceGetPowerUsage(handle)
                except pynvml.NVMLError as error:
                    results.append(error)

            thread = threading.Thread(target=call)
            thread.start()
            until_inside(nvml.session.pid)
            start = time.monotonic()
            nvml.session.close()
            thread.join(20)
            took = time.monotonic() - start
            assert [type(error) for error in results] == [SandboxClosed]
            return took

    prompt(seconds, 4)


def test_e4_event_waits_that_do_not_end_by_themselves() -> None:
    """Each learns that its sandbox was closed: some were told what NVML's shutdown made of them (Uninitialized), which
    came in the same moment."""
    with nvml_isolated(simulate="t4") as nvml:
        sets = [nvml.nvmlEventSetCreate() for _ in range(50)]
        results: list[type] = []

        def wait(events: Any) -> None:
            try:
                nvml.nvmlEventSetWait_v2(events, 60_000)
            except pynvml.NVMLError as error:
                results.append(type(error))

        threads = [threading.Thread(target=wait, args=(events,)) for events in sets]
        for thread in threads:
            thread.start()
        assert until(lambda: _tasks(nvml.session.pid) == 52)
        nvml.session.close()
        for thread in threads:
            thread.join(20)
        assert results == [SandboxClosed] * 50


def test_e4_closed_in_a_signal_handler_during_a_call() -> None:
    """The call that it interrupts cannot end before the handler has, so that is not waited for."""

    def seconds() -> float:
        with nvml_isolated(simulate="t4,hang=nvmlDeviceGetPowerUsage", timeout=20) as nvml:
            handle = nvml.nvmlDeviceGetHandleByIndex(0)
            before = signal.signal(signal.SIGALRM, lambda *_: nvml.session.close())
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            start = time.monotonic()
            try:
                with pytest.raises(SandboxClosed, match=r"PowerUsage: .* before this call was done") as error:
                    nvml.nvmlDeviceGetPowerUsage(handle)
                assert "thread" not in str(error.value), "it was this one"
            finally:
                signal.signal(signal.SIGALRM, before)
            return time.monotonic() - start

    prompt(seconds, 4)


def test_a_signal_handler_may_call() -> None:
    """While its thread is in a call: the answers do not cross."""
    with nvml_isolated(simulate="h100x2,latency_us=1000") as nvml:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(2)]
        uuids = [nvml.nvmlDeviceGetUUID(handle) for handle in handles]
        seen: list[str] = []

        def call(*_: object) -> None:
            seen.append(nvml.nvmlDeviceGetUUID(handles[1]))
            # Only now the next one: where calls take longer than the pause, each would interrupt the one before.
            signal.setitimer(signal.ITIMER_REAL, 0.01)

        before = signal.signal(signal.SIGALRM, call)
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        try:
            for _ in range(200):
                assert nvml.nvmlDeviceGetUUID(handles[0]) == uuids[0]
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert len(seen) > 5
        assert set(seen) == {uuids[1]}


@pytest.mark.parametrize("transport", ["shm", "pipe"])
def test_f11_the_answer_after_an_interrupted_call_is_its_own(transport: str) -> None:
    with nvml_isolated(simulate="h100x2,latency_us=20000", transport=transport) as nvml:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(2)]
        uuids = [nvml.nvmlDeviceGetUUID(handle) for handle in handles]
        pid = nvml.session.pid
        interrupted = 0
        for number in range(20):
            timer = threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT))
            with contextlib.suppress(KeyboardInterrupt):
                timer.start()
                interrupted += 1
                nvml.nvmlDeviceGetUUID(handles[0])
                timer.join()
                time.sleep(0.01)
                interrupted -= 1
            timer.join()
            index = number % 2
            assert nvml.nvmlDeviceGetUUID(handles[index]) == uuids[index]
        assert interrupted > 10
        assert nvml.session.pid == pid


def test_f11_ctrl_c_in_a_terminal_ends_the_program_alone() -> None:
    """It goes to all of the terminal's foreground; the worker is in a session of its own."""
    code = """
import sys, time
from nvsandbox import nvml_isolated
with nvml_isolated(simulate="h100x2,hang=nvmlDeviceGetPowerUsage", timeout=30) as nvml:
    handle = nvml.nvmlDeviceGetHandleByIndex(1)
    uuid = nvml.nvmlDeviceGetUUID(handle)
    pid = nvml.session.pid
    start = time.monotonic()
    try:
        print("worker", pid, flush=True)
        nvml.nvmlDeviceGetPowerUsage(handle)
    except KeyboardInterrupt:
        print("interrupted", time.monotonic() - start < 10, flush=True)
    print("same", nvml.nvmlDeviceGetUUID(handle) == uuid, nvml.session.pid == pid, flush=True)
"""
    main, terminal = pty.openpty()
    try:
        with subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            cwd="/",
            start_new_session=True,
            preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # makes it the controlling one
        ) as child:
            os.close(terminal)
            until_inside(int(_read_until(main, b"\n").split()[1]))
            os.write(main, b"\x03")
            text = _read_until(main, b"same")
            text += _read_until(main, b"\n") if not text.endswith(b"\n") else b""
            assert b"interrupted True" in text, text
            assert b"same True True" in text, text
            assert child.wait(15) == 0
    finally:
        os.close(main)


def _read_until(fd: int, what: bytes, limit: float = 20.0) -> bytes:
    text = b""
    end = time.monotonic() + limit
    while what not in text:
        assert select.select([fd], [], [], max(0.0, end - time.monotonic()))[0], text
        text += os.read(fd, 4096)
    return text


def test_asyncio() -> None:
    with nvml_isolated(simulate="h100x8") as nvml:

        async def ask(index: int) -> str:
            handle = await asyncio.to_thread(nvml.nvmlDeviceGetHandleByIndex, index)
            uuid: str = await asyncio.get_running_loop().run_in_executor(None, nvml.nvmlDeviceGetUUID, handle)
            return uuid

        async def all_() -> list[str]:
            return await asyncio.gather(*(ask(index % 8) for index in range(64)))

        found = asyncio.run(all_())
        assert found == [nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index % 8)) for index in range(64)]


def test_the_end_of_the_program(program: Any) -> None:
    """Calls from atexit, from __del__, and from daemon threads that the end finds in the middle of one."""
    found = program(
        """
        import atexit, json, os, sys, threading, time
        import nvsandbox, pynvml

        @atexit.register
        def after():  # registered before the import's own, so that it runs after it: the sandbox is closed by then
            pass

        nvml = nvsandbox.install(simulate="h100x2")
        pid = nvml.session.pid
        handle = nvml.nvmlDeviceGetHandleByIndex(1)
        uuid = nvml.nvmlDeviceGetUUID(handle)

        @atexit.register
        def report():
            print(json.dumps([pynvml.nvmlDeviceGetUUID(handle) == uuid, nvml.nvmlDeviceGetCount()]))
            sys.stdout.flush()

        class Late:
            def __del__(self):
                try:
                    pynvml.nvmlDeviceGetCount()
                except Exception:
                    pass

        late = Late()
        late.itself = late
        for index in range(8):
            def load():
                while True:
                    nvml.nvmlDeviceGetUUID(handle)
            threading.Thread(target=load, daemon=True).start()
        time.sleep(0.2)
        """,
        timeout=20,
    )
    assert found == [True, 2]


def test_finalizers_may_call() -> None:
    with nvml_isolated(simulate="h100x2") as nvml:
        seen: list[int] = []

        class Ends:
            def __del__(self) -> None:
                seen.append(nvml.nvmlDeviceGetCount())

        for _ in range(50):
            Ends()
            cycle = Ends()
            cycle.itself = cycle  # type: ignore[attr-defined]
            del cycle
            assert nvml.nvmlDeviceGetCount() == 2
        import gc

        gc.collect()
        assert seen == [2] * 100


def test_two_threads_leave_and_enter_at_once() -> None:
    wrong: list[BaseException] = []

    def user() -> None:
        try:
            for _ in range(20):
                with nvml_isolated(simulate="h100x2") as nvml:
                    assert nvml.nvmlDeviceGetCount() == 2
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=user) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert nvsandbox.sharing.registry.sessions == {}
