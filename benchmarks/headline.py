# SPDX-License-Identifier: Apache-2.0
"""The README's chart: one call by each way. An SVG of a few kilobytes, whose colours follow the reader's theme."""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape
from typing import Any

Entry = dict[str, Any]

_WIDTH, _LEFT, _RIGHT, _TOP, _ROW = 760, 262, 150, 34, 24
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#24292f}.head{font-weight:600}.other{fill:#8c959f}.own{fill:#1a7f37}"
    ".direct{fill:#57606a}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.other{fill:#6e7681}.own{fill:#3fb950}.direct{fill:#9198a1}}"
)


def headline(entries: list[Entry], titles: dict[str, str], quantity: Callable[[float], str]) -> str:
    """The chart of `entries`, each a way with its median in seconds and its ratio to a direct call. The bars are
    logarithmic, and begin at a tenth of the shortest."""
    entries = sorted(entries, key=lambda entry: float(entry["median"]))
    low = math.log10(entries[0]["median"]) - 1
    scale = (_WIDTH - _LEFT - _RIGHT) / (math.log10(entries[-1]["median"]) - low)
    height = _TOP + _ROW * len(entries) + 6
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}">',
        f"<style>{_STYLE}</style>",
        '<text class="head" x="8" y="20">One nvmlDeviceGetTemperature, NVML doing nothing (logarithmic)</text>',
    ]
    for row, entry in enumerate(entries):
        top = _TOP + row * _ROW
        width = (math.log10(entry["median"]) - low) * scale
        kind = {"direct": "direct", "shm": "own", "pipe": "own"}.get(entry["way"], "other")
        ratio = entry["ratio"]["median"]
        times = "" if entry["way"] == "direct" else f" · {ratio:.2f}x" if ratio < 10 else f" · {ratio:,.0f}x"
        lines += [
            f'<text x="{_LEFT - 8}" y="{top + 15}" text-anchor="end">{escape(titles[entry["way"]])}</text>',
            f'<rect class="{kind}" x="{_LEFT}" y="{top + 3}" width="{width:.1f}" height="{_ROW - 8}" rx="2"/>',
            f'<text x="{_LEFT + width + 6:.1f}" y="{top + 15}">{quantity(entry["median"])}{times}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"
