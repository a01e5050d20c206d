# SPDX-License-Identifier: Apache-2.0
"""What is used after its end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pynvml
import pytest

from nvsandbox import NVMLSession, SandboxClosed, nvml_isolated

BLOCK_ENDED = r"^nvml\w+: the nvml_isolated\(\) block that this belongs to has ended; open a new one$"
SESSION_CLOSED = r"^this sandbox is closed; open a new one with nvml_isolated\(\)$"


def test_nvml_after_its_block() -> None:
    with nvml_isolated(simulate="h100x2") as nvml:
        handle = nvml.nvmlDeviceGetHandleByIndex(1)
        never_called = nvml.nvmlDeviceGetUUID
        pointer = nvml._nvmlGetFunctionPointer("nvmlDeviceGetCount_v2")
    later: list[Callable[[], Any]] = [
        nvml.nvmlInit,
        nvml.nvmlDeviceGetCount,
        nvml.nvmlShutdown,
        lambda: nvml.nvmlDeviceGetHandleByIndex(0),
        lambda: nvml.nvmlDeviceGetName(handle),
        lambda: never_called(handle),
        lambda: pointer(None),
    ]
    for action in later:
        with pytest.raises(SandboxClosed, match=BLOCK_ENDED) as caught:
            action()
        assert isinstance(caught.value, pynvml.NVMLError_Uninitialized)
        assert caught.value.value == pynvml.NVML_ERROR_UNINITIALIZED
    # What never was NVML's still works.
    assert nvml.NVML_SUCCESS == 0
    assert nvml.NVMLError is pynvml.NVMLError


def test_session_after_its_block() -> None:
    with nvml_isolated(simulate="t4") as nvml:
        session: NVMLSession = nvml.session
        pid = session.pid
    later: list[Callable[[], Any]] = [
        lambda: session.pid,
        lambda: session.isolation,
        lambda: session.library,
        session.dev_nodes,
    ]
    for action in later:
        with pytest.raises(SandboxClosed, match=SESSION_CLOSED):
            action()
    session.close()
    session.close()
    assert session.stats()["deaths"] == 0
    assert repr(session) == "<NVMLSession: closed>"
    assert pid > 1


def test_session_closed_inside_its_block() -> None:
    """A close is for everybody. The block's end is then nothing more to do, and a new block gets a new worker."""
    with nvml_isolated(simulate="t4") as nvml, nvml_isolated(simulate="t4") as other:
        assert nvml.session is other.session
        first = nvml.session.pid
        nvml.session.close()
        for name in ("nvmlDeviceGetCount", "nvmlSystemGetDriverVersion"):
            for module in (nvml, other, pynvml):
                with pytest.raises(SandboxClosed, match=SESSION_CLOSED):
                    getattr(module, name)()
        with nvml_isolated(simulate="t4") as third:
            assert third.nvmlDeviceGetCount() == 1
            assert third.session.pid != first


def test_plain_pynvml_after_the_block() -> None:
    """It is as it was before: not initialised."""
    with nvml_isolated(simulate="t4"):
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetCount() == 1
    with pytest.raises(pynvml.NVMLError_Uninitialized) as caught:
        pynvml.nvmlDeviceGetCount()
    assert not isinstance(caught.value, SandboxClosed)


def test_handle_of_another_sandbox() -> None:
    """Handles do not outlive their sandbox, nor go to another."""
    with nvml_isolated(simulate="t4") as nvml, nvml_isolated(simulate="h100x2") as other:
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        with pytest.raises(pynvml.NVMLError_InvalidArgument, match="not of the worker that runs now"):
            other.nvmlDeviceGetName(handle)
        assert nvml.nvmlDeviceGetName(handle) == "Tesla T4"


@pytest.mark.parametrize("value", [None, 0, 1, 0x7FFF00000000, 2**64 - 1])
def test_handles_out_of_thin_air(value: int | None) -> None:
    """Never dereferenced: the worker lives on."""
    import ctypes

    with nvml_isolated(simulate="t4") as nvml:
        pid = nvml.session.pid
        handle = ctypes.cast(ctypes.c_void_p(value), pynvml.c_nvmlDevice_t)
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            nvml.nvmlDeviceGetName(handle)
        assert nvml.nvmlDeviceGetCount() == 1
        assert nvml.session.pid == pid


def test_ends_while_others_call() -> None:
    """A thread that calls while the block ends gets an answer, or SandboxClosed, or WorkerDied; nothing else."""
    wrong: list[BaseException] = []
    started = threading.Barrier(5)

    def call(nvml: Any) -> None:
        started.wait()
        try:
            while True:
                nvml.nvmlDeviceGetCount()
        except (SandboxClosed, pynvml.NVMLError_Unknown):
            pass
        except BaseException as error:
            wrong.append(error)

    with nvml_isolated(simulate="t4") as nvml:
        threads = [threading.Thread(target=call, args=(nvml,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        started.wait()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert wrong == []
