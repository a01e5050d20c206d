# SPDX-License-Identifier: Apache-2.0
"""Blocks and sessions: what is shared, what is counted, and who ends what."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import threading
import time
from typing import Any

import pynvml
import pytest
from host import Host, has_ended
from waiting import until, until_inside

import nvsandbox
from nvsandbox import nvml_isolated
from nvsandbox.sharing import registry


def test_a_block() -> None:
    with nvml_isolated(simulate="h100x8") as nvml:
        assert nvml.nvmlDeviceGetCount() == 8
        assert "H100" in nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(7))
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetCount() == 8
        pid = nvml.session.pid
        assert not has_ended(pid)
    assert has_ended(pid)


def test_equal_options_share_a_worker() -> None:
    with nvml_isolated(simulate="t4x2", timeout=30) as one, nvml_isolated(timeout=30.0, simulate="t4x2") as two:
        assert one.session is two.session
        assert one is not two
        with nvml_isolated(simulate="t4x3") as three:
            assert three.session.pid != one.session.pid
            assert (one.nvmlDeviceGetCount(), three.nvmlDeviceGetCount()) == (2, 3)
        assert gone_after(three)
        assert one.nvmlDeviceGetCount() == 2


def gone_after(nvml: Any) -> bool:
    try:
        nvml.nvmlDeviceGetCount()
    except pynvml.NVMLError_Uninitialized:
        return True
    return False


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_the_last_one_out_ends_it(order: tuple[int, ...]) -> None:
    blocks = [nvml_isolated(simulate="t4") for _ in range(3)]
    apis = [block.__enter__() for block in blocks]
    pid = apis[0].session.pid
    for position, index in enumerate(order):
        assert not has_ended(pid)
        blocks[index].__exit__(None, None, None)
        assert gone_after(apis[index])
        for other in order[position + 1 :]:
            assert apis[other].nvmlDeviceGetCount() == 1
    assert has_ended(pid)


def test_one_object_may_be_entered_again_and_again() -> None:
    block = nvml_isolated(simulate="t4")
    with block as one, block as two:
        assert one.session is two.session
    with block as three:
        assert three.nvmlDeviceGetCount() == 1
    assert gone_after(one)
    assert gone_after(two)


def test_making_one_starts_nothing() -> None:
    before = set(registry.sessions)
    nvml_isolated(simulate="t4")
    assert set(registry.sessions) == before


def test_many_threads_open_the_same_at_once() -> None:
    barrier = threading.Barrier(8)
    pids: list[int] = []
    wrong: list[BaseException] = []

    def run() -> None:
        try:
            barrier.wait()
            with nvml_isolated(simulate="t4") as nvml:
                pids.append(nvml.session.pid)
                barrier.wait()
                assert nvml.nvmlDeviceGetCount() == 1
                barrier.wait()
        except BaseException as error:
            wrong.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(set(pids)) == 1
    assert has_ended(pids[0])


def test_threads_open_and_close_and_call() -> None:
    """Own blocks and plain calls in several threads; a plain call may find no block open, but never anything odd."""
    end = time.monotonic() + 1.5
    wrong: list[BaseException] = []

    def own(count: int) -> None:
        try:
            while time.monotonic() < end:
                with nvml_isolated(simulate=f"t4x{count}") as nvml:
                    assert nvml.nvmlDeviceGetCount() == count
        except BaseException as error:
            wrong.append(error)

    def plain() -> None:
        try:
            while time.monotonic() < end:
                with contextlib.suppress(pynvml.NVMLError_Uninitialized):
                    assert pynvml.nvmlDeviceGetCount() in (1, 2, 3)
                    pynvml.nvmlDeviceGetHandleByIndex(0)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=own, args=(count,)) for count in (1, 2, 3)]
    threads += [threading.Thread(target=plain) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_an_exception_in_the_block_goes_through() -> None:
    class OwnError(Exception):
        pass

    pids = []

    def use() -> None:
        with nvml_isolated(simulate="t4") as nvml:
            pids.append(nvml.session.pid)
            raise OwnError

    with pytest.raises(OwnError):
        use()
    assert has_ended(pids[0])
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()


def test_closing_the_session_in_the_block() -> None:
    with nvml_isolated(simulate="t4") as one, nvml_isolated(simulate="t4") as two:
        pid = one.session.pid
        one.session.close()
        one.session.close()
        assert has_ended(pid)
        for nvml in (one, two):
            with pytest.raises(nvsandbox.SandboxClosed, match="open a new one"):
                nvml.nvmlDeviceGetCount()
        with pytest.raises(nvsandbox.SandboxClosed):
            _ = one.session.pid
        with nvml_isolated(simulate="t4") as three:
            assert three.nvmlDeviceGetCount() == 1, "a new block is not given the closed one"
    assert gone_after(three)


def test_closed_while_a_call_runs() -> None:
    """The call is let run to its end; one that takes too long is told that the sandbox was closed."""
    with nvml_isolated(simulate="t4,latency_us=300000") as nvml:
        results: list[Any] = []

        def call() -> None:
            try:
                results.append(nvml.nvmlDeviceGetCount())
            except pynvml.NVMLError as error:
                results.append(type(error))

        nvml.nvmlDeviceGetCount()
        thread = threading.Thread(target=call)
        thread.start()
        until_inside(nvml.session.pid)
        start = time.monotonic()
        nvml.session.close()
        assert time.monotonic() - start < 15
        thread.join()
    assert results in ([1], [nvsandbox.SandboxClosed])


def test_use_after_the_block() -> None:
    with nvml_isolated(simulate="t4") as nvml:
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        kept = nvml.nvmlDeviceGetName
    for use in (nvml.nvmlDeviceGetCount, nvml.nvmlInit, nvml.nvmlShutdown, lambda: kept(handle)):
        with pytest.raises(nvsandbox.SandboxClosed):
            use()
    with pytest.raises(nvsandbox.SandboxClosed):
        nvml.session.dev_nodes()
    assert nvml.nvmlErrorString is not None


def test_a_handle_of_one_sandbox_is_stale_in_another() -> None:
    with nvml_isolated(simulate="t4") as one, nvml_isolated(simulate="t4x2") as two:
        handle = one.nvmlDeviceGetHandleByIndex(0)
        with pytest.raises(nvsandbox.StaleHandle) as caught:
            two.nvmlDeviceGetName(handle)
        assert isinstance(caught.value, pynvml.NVMLError_InvalidArgument)
        assert one.nvmlDeviceGetName(handle) == "Tesla T4"


@pytest.mark.parametrize("value", [1, 0x1000, 0xDEAD_BEEF_DEAD_BEEF, 0xA5F0_0000_0000_0000])
def test_what_never_was_a_handle_is_an_invalid_argument(value: int) -> None:
    import ctypes

    with nvml_isolated(simulate="t4") as nvml:
        made_up = ctypes.cast(ctypes.c_void_p(value), pynvml.c_nvmlDevice_t)
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            nvml.nvmlDeviceGetName(made_up)
        assert nvml.nvmlDeviceGetCount() == 1


def test_what_the_session_tells() -> None:
    with nvml_isolated(simulate="t4", transport="pipe") as nvml:
        session = nvml.session
        assert isinstance(session, nvsandbox.NVMLSession)
        assert os.path.basename(session.library) == "libnvidia-ml.so.1"
        assert str(session.pid) in repr(session)
        assert session.isolation in repr(session)
        before = session.stats()
        nvml.nvmlDeviceGetCount()
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            nvml.nvmlDeviceGetHandleByIndex(9)
        after = session.stats()
        assert (after["calls"] - before["calls"], after["errors"] - before["errors"]) == (2, 1)
        assert after["deaths"] == after["restarts"] == after["timeouts"] == 0
        after["calls"] = -1
        assert session.stats()["calls"] > 0, "a copy"
    assert "closed" in repr(session)


def test_init_and_shutdown_in_a_block_are_counted() -> None:
    """By user: the block's own initialisation, and those of others, are not theirs to end."""
    with nvml_isolated(simulate="t4") as one, nvml_isolated(simulate="t4") as two:
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            one.nvmlShutdown()
        one.nvmlInit()
        one.nvmlShutdown()
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            one.nvmlShutdown()
        assert one.nvmlDeviceGetCount() == two.nvmlDeviceGetCount() == 1
        pynvml.nvmlInit()
        pynvml.nvmlInit()
        pynvml.nvmlShutdown()  # one is left to the block's end
    with nvml_isolated(simulate="t4") as three:
        assert three.nvmlDeviceGetCount() == 1


# ---- install(): for the rest of a process's life, so in one of its own


def installed() -> list[Any]:
    import pynvml

    import nvsandbox

    nvml = nvsandbox.install(simulate="h100x2")
    again = nvsandbox.install(simulate="h100x2")
    other = nvsandbox.install(simulate="h100x3")
    pynvml.nvmlInit()
    found = [
        nvml is again,
        nvml.nvmlDeviceGetCount(),
        other.nvmlDeviceGetCount(),
        pynvml.nvmlDeviceGetCount(),
        [nvml.session.pid, other.session.pid],
    ]
    with nvsandbox.nvml_isolated(simulate="h100x4") as inner:
        found.append((inner.nvmlDeviceGetCount(), pynvml.nvmlDeviceGetCount()))
    with nvsandbox.nvml_isolated(simulate="h100x2") as inner:
        found.append(inner.session is nvml.session)
    found.append((nvml.nvmlDeviceGetCount(), pynvml.nvmlDeviceGetCount()))
    return found


def test_install(host: Host) -> None:
    same, two, three, plain, pids, in_block, shared, after = host.run(installed)
    assert (same, two, three, plain) == (True, 2, 3, 3)
    assert in_block == (4, 4)
    assert shared
    assert after == (2, 3)
    assert [has_ended(pid) for pid in pids] == [True, True], "ended with the process"


def ended(how: str) -> list[int]:
    """Workers of processes that end in a hurry."""
    import subprocess
    import sys

    code = (
        "import os, signal, sys, threading, nvsandbox\n"
        "nvml = nvsandbox.install(simulate='t4')\n"
        "block = nvsandbox.nvml_isolated(simulate='t4x2').__enter__()\n"
        "print(nvml.session.pid, block.session.pid, flush=True)\n"
    ) + {
        "sys.exit": "sys.exit(0)",
        "os._exit": "os._exit(0)",
        "exception": "raise RuntimeError",
        "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
        "SIGTERM": "os.kill(os.getpid(), signal.SIGTERM)",
        "thread": "threading.Thread(target=nvml.nvmlDeviceGetCount).start()",
    }[how]
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return [int(word) for word in done.stdout.split()]


@pytest.mark.parametrize("how", ["sys.exit", "os._exit", "exception", "SIGKILL", "SIGTERM", "thread"])
def test_workers_end_with_their_process(host: Host, how: str) -> None:
    pids = host.run(ended, how=how)
    assert len(pids) == 2
    assert until(lambda: all(has_ended(pid) for pid in pids))


def test_64_gpus() -> None:
    with nvml_isolated(simulate="h100x64") as nvml:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        assert [nvml.nvmlDeviceGetIndex(handle) for handle in handles] == list(range(64))
        if nvml.session.isolation == "mount":  # without the right to make nodes there are none
            assert {f"/dev/nvidia{i}" for i in range(64)} <= set(nvml.session.dev_nodes())


def test_install_after_close_opens_a_new_one() -> None:
    """U9: the driver is let go by close(), and taken up again by install(); plain pynvml goes there too."""
    script = """
import os, pynvml, nvsandbox
first = nvsandbox.install(simulate="h100x2")
assert nvsandbox.install(simulate="h100x2") is first
pid = first.session.pid
first.session.close()
assert first.session.closed and not os.path.exists(f"/proc/{pid}")
for count in (first.nvmlDeviceGetCount, pynvml.nvmlDeviceGetCount):
    try:
        count()
    except nvsandbox.SandboxClosed:
        pass
    else:
        raise AssertionError("a closed session answers")
second = nvsandbox.install(simulate="h100x2")
assert second is not first and not second.session.closed
assert second.nvmlDeviceGetCount() == pynvml.nvmlDeviceGetCount() == 2
assert second.session.stats()["calls"] == 2
with nvsandbox.nvml_isolated(simulate="h100x2") as shared:
    assert shared.session is second.session
    shared.session.close()
    third = nvsandbox.install(simulate="h100x2")
    assert third.nvmlDeviceGetCount() == 2
assert pynvml.nvmlDeviceGetCount() == 2
print("ok")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


def test_leaving_once_more_is_fine() -> None:
    block = nvml_isolated(simulate="t4")
    block.__enter__()
    for _ in range(2):
        assert block.__exit__(None, None, None) is None
