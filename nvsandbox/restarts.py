# SPDX-License-Identifier: Apache-2.0
"""How often a worker may be replaced: a crash loop is to be seen as an error, not as load."""

from __future__ import annotations

import time
from array import array
from bisect import bisect_right

WINDOW = 60.0
"""Seconds in which restarts are counted."""

DEFAULT = 20
"""Restarts in a window with ``restart=True``."""

BACKOFF_FIRST = 0.05
BACKOFF_MAX = 5.0


class Restarts:
    """Counts restarts after a death; `limit` may happen in any :data:`WINDOW` seconds. Not locked: :meth:`started` is
    for one thread at a time, and the others may be called in any at any time.

    The first restart comes at once. When the next worker cannot be started, or dies before it has answered a call, the
    one after it has to wait, longer each time: nothing says that it would fare better.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._times = array("d")  # of the restarts in the window
        self._in_vain = 0  # workers in a row that could not be started, or died without an answer
        self._last = 0.0
        self.failure = ""
        """Why the last start failed; "" where it did not."""

    def died(self, answered: bool) -> None:
        """A worker is gone; `answered` tells whether it had ever answered a call."""
        self._in_vain = 0 if answered else self._in_vain + 1
        self._last = time.monotonic()

    def failed(self, error: Exception) -> None:
        """A worker could not be started."""
        self.died(answered=False)
        self.failure = str(error)

    def wait(self) -> float:
        """Seconds until the next restart is allowed, 0 for now."""
        return max(self.full(), self.pause())

    def full(self) -> float:
        """Seconds until the window has room for one more restart."""
        now = time.monotonic()
        left = 0.0
        if len(self._times) >= self.limit:  # only then, for there may be thousands
            times = self._times[:]  # another thread may add to it meanwhile
            times = times[bisect_right(times, now - WINDOW) :]
            if len(times) >= self.limit:
                left = times[0] + WINDOW - now
        return max(0.0, left)

    def pause(self) -> float:
        """Seconds until the pause after the last failure is over."""
        if self._in_vain <= 1:
            return 0.0
        # The exponent is bounded, for failures may come for as long as the program runs.
        pause: float = min(BACKOFF_FIRST * 2 ** min(self._in_vain - 2, 16), BACKOFF_MAX)
        return max(0.0, self._last + pause - time.monotonic())

    def started(self) -> None:
        """A restart has been made."""
        del self._times[: bisect_right(self._times, time.monotonic() - WINDOW)]
        self._times.append(time.monotonic())

    @property
    def recent(self) -> int:
        """Restarts in the present window."""
        times = self._times[:]
        return len(times) - bisect_right(times, time.monotonic() - WINDOW)
