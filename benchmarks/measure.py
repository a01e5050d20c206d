# SPDX-License-Identifier: Apache-2.0
"""Measuring side by side: short batches of each way in turn, so that what the machine does meanwhile meets them all."""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

Batch = Callable[[int], float]
"""Does something so many times, and returns how many seconds that took."""

SLOW = 0.02
"""Seconds for one call from which on a way takes part in every fourth round only."""


def batch(function: Callable[..., Any], arguments: tuple[Any, ...] = ()) -> Batch:
    def run(times: int) -> float:
        repeats = itertools.repeat(None, times)
        clock = time.perf_counter
        start = clock()
        for _ in repeats:
            function(*arguments)
        return clock() - start

    return run


def _fitting(run: Batch, seconds: float) -> int:
    """How many times take about `seconds`."""
    times = 1
    while True:
        taken = min(run(times) for _ in range(3))  # the first ones are slower: a lane is made, a plan is learned
        if taken >= seconds / 3 or times >= 1_000_000:
            return max(1, round(times * seconds / max(taken, 1e-9)))
        times *= 4


def interleave(batches: dict[str, Batch], rounds: int, seconds: float) -> dict[str, dict[int, float]]:
    """Seconds for one call, by way and round. A batch takes about `seconds`; each begins with some calls that are not
    counted, after which its worker is awake and the caches hold its code."""
    times = {name: _fitting(run, seconds) for name, run in batches.items()}
    found: dict[str, dict[int, float]] = {name: {} for name in batches}
    names = list(batches)
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            # Each comes after another one in turn: a neighbour may leave the caches or the clock rate behind.
            order = names[number % len(names) :] + names[: number % len(names)]
            for name in order if number % 2 == 0 else reversed(order):
                run, count = batches[name], times[name]
                if found[name] and number % 4 != 0 and found[name][0] > SLOW:
                    continue
                if not found[name] or found[name][0] <= SLOW:
                    run(min(count // 8 + 1, 50))
                found[name][number] = run(count) / count
            gc.collect(0)
    finally:
        gc.enable()
    return found


def spread(values: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    if len(values) == 1:
        return {"median": values[0], "q1": values[0], "q3": values[0]}
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "q1": q1, "q3": q3}


def ratio(values: dict[int, float], base: dict[int, float]) -> dict[str, float]:
    """Of each round's two figures, which were taken within milliseconds of each other."""
    return spread([values[number] / base[number] for number in values if number in base])


def latencies(function: Callable[..., Any], arguments: tuple[Any, ...], times: int, pause: float = 0.0) -> list[float]:
    """Seconds of single calls, the clock's own cost (about 0.05 us) included; with `pause` after a time of rest."""
    found = [0.0] * times
    clock = time.perf_counter_ns
    for i in range(times):
        if pause:
            time.sleep(pause)
        start = clock()
        function(*arguments)
        found[i] = (clock() - start) * 1e-9
    return found


def percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    last = len(ordered) - 1
    return {f"p{point:g}": ordered[round(last * point / 100)] for point in (50, 90, 99, 99.9)}
