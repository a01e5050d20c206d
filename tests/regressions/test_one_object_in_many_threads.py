# SPDX-License-Identifier: Apache-2.0
"""One nvml_isolated object, used by several threads or tasks at a time."""

from __future__ import annotations

import asyncio
import threading

from nvsandbox import nvml_isolated


def test_threads() -> None:
    """Whoever left first closed the block of whoever had entered last."""
    sandbox = nvml_isolated(simulate="t4")
    entered, left = threading.Event(), threading.Event()
    counted: list[int] = []

    def other() -> None:
        with sandbox as nvml:
            entered.set()
            left.wait(10)
            counted.append(nvml.nvmlDeviceGetCount())

    thread = threading.Thread(target=other)
    with sandbox:
        thread.start()
        assert entered.wait(10)
    left.set()
    thread.join()
    assert counted == [1]


def test_tasks() -> None:
    sandbox = nvml_isolated(simulate="t4")

    async def use(before: float, after: float) -> int:
        await asyncio.sleep(before)
        with sandbox as nvml:
            await asyncio.sleep(after)
            return int(nvml.nvmlDeviceGetCount())

    async def main() -> list[int]:
        return await asyncio.gather(use(0, 0.2), use(0.1, 0.2))

    assert asyncio.run(main()) == [1, 1]


def test_entered_here_and_left_there() -> None:
    sandbox = nvml_isolated(simulate="t4")
    nvml = sandbox.__enter__()
    thread = threading.Thread(target=sandbox.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    with sandbox as again:
        assert again is not nvml
        assert again.nvmlDeviceGetCount() == 1
