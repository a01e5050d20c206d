# SPDX-License-Identifier: Apache-2.0
"""JSON for programs: always valid UTF-8, whatever bytes are in names. Each byte that is none is U+FFFD."""

from __future__ import annotations

import json
import re
from typing import Any

_SURROGATE = re.compile("[\ud800-\udfff]")


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return {_clean(key): _clean(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(inner) for inner in value]
    return value


def dumps(value: Any, **options: Any) -> str:
    """As :func:`json.dumps`. ``os.fsdecode()`` makes a lone surrogate of each byte of a name that is no UTF-8, which
    readers of JSON refuse or make something else of."""
    return json.dumps(_clean(value), **options)


__all__ = ["dumps"]
