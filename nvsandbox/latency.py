# SPDX-License-Identifier: Apache-2.0
"""How long calls took: counts in fixed slots, of which csrc/core/histogram.h is the one place that knows the bounds."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from nvsandbox._core import lib

SLOTS: int = lib.NVS_LATENCY_SLOTS


@functools.cache
def bounds() -> tuple[float, ...]:
    """The most seconds that each slot holds: 128 ns, then four to each power of two up to 69 s, then infinity."""
    return (*(lib.nvs_core_latency_bound(slot) / 1e9 for slot in range(SLOTS - 1)), math.inf)


@dataclass(frozen=True, repr=False)
class Latency:
    """A histogram of how long calls took, in the form of a Prometheus histogram."""

    count: int
    """Of how many calls."""
    sum: float
    """The seconds that they took together."""
    buckets: tuple[tuple[float, int], ...]
    """Pairs of (seconds, calls that took at most so long), the last of them with infinity. The seconds are the same in
    every histogram, so that counts can be added up and subtracted."""

    def quantile(self, share: float) -> float:
        """How many seconds `share` (0 to 1) of the calls took at most, as nearly as the buckets tell: between two
        bounds as if calls were spread evenly, as Prometheus's ``histogram_quantile`` does. NaN if there were none."""
        if not 0 <= share <= 1:
            raise ValueError(f"share={share!r}: expected 0 to 1, such as 0.99")
        if self.count == 0:
            return math.nan
        wanted = share * self.count
        lower, before = 0.0, 0
        for upper, within in self.buckets:
            if within >= wanted and within > before:
                if math.isinf(upper):
                    return lower
                return lower + (upper - lower) * max(0.0, wanted - before) / (within - before)
            lower, before = upper, within
        return lower

    def __repr__(self) -> str:
        points = ", ".join(f"p{100 * share:g}={self.quantile(share):.3g}" for share in (0.5, 0.99) if self.count)
        return f"Latency(count={self.count}, sum={self.sum:.6g}{', ' if points else ''}{points})"


class Recorder:
    """Counts, as they are added. Whoever adds or reads holds a lock of their own."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Back to nothing."""
        self._counts = [0] * SLOTS
        self._sum_ns = 0

    def add(self, nanoseconds: int) -> None:
        """One call that took so long."""
        self._counts[lib.nvs_core_latency_slot(max(0, nanoseconds))] += 1
        self._sum_ns += nanoseconds

    def add_all(self, counts: Sequence[int], sum_ns: int) -> None:
        """Calls by slot, which took so long together."""
        self._counts = [mine + more for mine, more in zip(self._counts, counts, strict=True)]
        self._sum_ns += sum_ns

    def histogram(self, counts: Sequence[int] | None = None, sum_ns: int = 0) -> Latency:
        """What was added so far, and these with it."""
        buckets, total = [], 0
        for bound, mine, more in zip(bounds(), self._counts, counts or [0] * SLOTS, strict=True):
            total += mine + more
            buckets.append((bound, total))
        return Latency(total, (self._sum_ns + sum_ns) / 1e9, tuple(buckets))
