# SPDX-License-Identifier: Apache-2.0
"""Simulated GPUs for the tests of your own exporters and drivers.

::

    from nvsandbox import testing

    def test_lost_gpu():
        with testing.simulated("h100", 4, lost=1) as nvml:
            ...                              # plain pynvml calls in your code go to the simulated GPUs too

The simulator behaves as NVIDIA's library does, down to the faults that are hard to get from hardware; see
docs/simulator.md.
"""

from __future__ import annotations

from typing import Any

from nvsandbox import blocks, simulate
from nvsandbox.simulate import option_keys, profiles

__all__ = ["describe", "option_keys", "profiles", "simulated"]


def describe(profile: str = "h100", count: int = 1, **knobs: object) -> str:
    """A description for ``simulate=``: ``describe("h100", 4, lost=1)`` is ``"h100x4,lost=1"``.

    Lists and tuples of numbers become ``0+2``, True and False ``1`` and ``0``. Raises ValueError for what cannot be
    simulated; :func:`profiles` has the GPU models and :func:`option_keys` the knobs.
    """
    parts = [f"{profile}x{count}"]
    for key, value in knobs.items():
        if isinstance(value, bool):
            text = str(int(value))
        elif isinstance(value, list | tuple):
            text = "+".join(map(str, value))
        else:
            text = str(value)
        parts.append(f"{key}={text}")
    return simulate.parse(",".join(parts)).text


def simulated(
    profile: str = "h100", count: int = 1, *, options: dict[str, Any] | None = None, **knobs: object
) -> blocks.nvml_isolated:
    """``nvml_isolated(simulate=describe(…))``; `options` are further options of :class:`nvsandbox.nvml_isolated`."""
    return blocks.nvml_isolated(simulate=describe(profile, count, **knobs), **(options or {}))
