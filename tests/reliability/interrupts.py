# SPDX-License-Identifier: Apache-2.0
"""Exceptions out of a signal handler (Ctrl-C, or a timeout that a program makes of SIGALRM) at random moments of a
block's start, restart and end: none of them may leave anything. `interrupts.py [--seconds 5] [--seed 1]` prints what
it found, as JSON; where it may make device nodes it wants a /dev that is not the machine's own."""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import pynvml

from nvsandbox import nvml_isolated
from nvsandbox.sharing import registry

SETTLED = 10.0
"""Seconds in which what was interrupted has to be gone: an end takes up to 7 where a worker hangs."""

OPTIONS = {"simulate": "t4", "timeout": 20.0}


class Interrupted(BaseException):
    """What KeyboardInterrupt is to a program."""


armed = [False]


def on_alarm(*_: object) -> None:
    if armed[0]:
        raise Interrupted


def enter_and_leave() -> None:
    with nvml_isolated(**OPTIONS):
        pass


def call_in_it() -> None:
    with nvml_isolated(**OPTIONS):
        pynvml.nvmlInit()
        pynvml.nvmlDeviceGetCount()


def nested() -> None:
    with nvml_isolated(**OPTIONS) as outer, nvml_isolated(**OPTIONS) as inner:
        assert outer.session is inner.session


def close() -> None:
    with nvml_isolated(**OPTIONS) as nvml:
        nvml.session.close()


def restart() -> None:
    with nvml_isolated(**OPTIONS) as nvml:
        os.kill(nvml.session.pid, signal.SIGKILL)
        nvml.nvmlDeviceGetCount()


def failing_start() -> None:
    try:
        with nvml_isolated(**{**OPTIONS, "simulate": "t4,crash=nvmlInitWithFlags"}):
            pass
    except pynvml.NVMLError:
        pass


KINDS: list[Callable[[], None]] = [enter_and_leave, call_in_it, nested, close, restart, failing_start]


def state() -> dict[str, Any]:
    """All that could be left."""
    return {
        "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1],
        "children": children(),
        "threads": len(os.listdir("/proc/self/task")),
        "lanes": sum("memfd:nvsandbox" in line for line in open("/proc/self/maps")),
        "library": None if pynvml.nvmlLib is None else repr(pynvml.nvmlLib),
        "references": pynvml._nvmlLib_refcount,
        "sessions": len(registry.sessions),
    }


def children() -> list[str]:
    """Also those that have ended and were not reaped, of all threads."""
    found = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/children", encoding="ascii") as file:
                found += file.read().split()
        except OSError:
            continue
    return found


def when_quiet() -> dict[str, Any]:
    """The state when all that works aside has ended: each leaves a moment after what it did was seen to be done."""
    end = time.monotonic() + SETTLED
    while (children() or len(os.listdir("/proc/self/task")) > 1) and time.monotonic() < end:
        time.sleep(0.001)
    return state()


def left_after(before: dict[str, Any]) -> dict[str, Any]:
    end = time.monotonic() + SETTLED
    pause = 0.0005
    while True:
        now = state()
        different = {key: (before[key], now[key]) for key in before if before[key] != now[key]}
        if not different or time.monotonic() > end:
            return different
        time.sleep(pause)
        pause = min(pause * 2, 0.05)
        if pause >= 0.05:
            gc.collect()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--least", type=int, default=0, help="so many interruptions, however long that takes")
    parser.add_argument("--twice", action="store_true", help="more interruptions soon after the first")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    signal.signal(signal.SIGALRM, on_alarm)
    lost: list[str] = []
    sys.unraisablehook = lambda error: lost.append(f"{error.exc_value!r} in {error.object!r}")
    lengths = {}
    for kind in KINDS:  # also the warm-up
        start = time.monotonic()
        kind()
        lengths[kind] = time.monotonic() - start
    before = left = when_quiet()
    failures: list[dict[str, Any]] = []
    tries = interrupted = 0
    end = time.monotonic() + arguments.seconds
    while time.monotonic() < end or interrupted < arguments.least:
        kind = KINDS[tries % len(KINDS)]
        tries += 1
        moment = chance.uniform(0, lengths[kind] * 1.2)
        again = chance.uniform(0.0001, 0.002) if arguments.twice else 0.0
        raised: BaseException | None = None
        try:
            armed[0] = True
            signal.setitimer(signal.ITIMER_REAL, max(moment, 1e-6), again)
            kind()
            armed[0] = False
        except BaseException as error:
            armed[0] = False
            raised = error.with_traceback(None)
        signal.setitimer(signal.ITIMER_REAL, 0)
        if isinstance(raised, Interrupted):
            interrupted += 1
        elif raised is not None:
            failures.append({"try": tries, "kind": kind.__name__, "moment": moment, "raised": repr(raised)})
        del raised
        left = left_after(before)
        if left or lost:
            failures.append({"try": tries, "kind": kind.__name__, "moment": moment, "left": left, "lost": lost[:]})
            lost.clear()
            before = when_quiet()
    print(json.dumps({"tries": tries, "interrupted": interrupted, "failures": failures}))


if __name__ == "__main__":
    main()
