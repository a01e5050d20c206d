# SPDX-License-Identifier: Apache-2.0
"""Results, exceptions and changed arguments as plain data, so that two processes' can be compared.

Addresses and tokens differ between processes, what they stand for must not: handles become the identity that the
library itself reports for them, pointers what lies behind them.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import pynvml

from . import shapes

Identify = Callable[[Any], Any]


def _raw(kind: Any, target: Any) -> str:
    """All bytes, but for those of handles, pointers and strings, which are described one by one."""
    size = ctypes.sizeof(kind)
    start = ctypes.addressof(target)
    content = bytearray(ctypes.string_at(start, size))
    for leaf in shapes.leaves(kind, start, target):
        if leaf.sort in "hPNSO":
            content[leaf.at - start : leaf.at - start + 8] = b"\xee" * 8
    return content.hex()


def _simple(value: Any) -> Any:
    if isinstance(value, float):
        return struct.pack("d", value).hex()
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    return value


def _structure(value: Any, identify: Identify, holder: Any) -> Any:
    kind = type(value)
    found: dict[str, Any] = {}
    for name, part, offset in shapes.fields(kind):
        if (shapes.is_pointer_type(part) and not shapes.is_opaque(part)) or part is ctypes.c_void_p:
            found[name] = _behind(part, ctypes.addressof(value) + offset, holder, identify)
        else:
            # Not getattr: pynvml's structures decode text on the way, and rubbish must be comparable too.
            found[name] = describe(object.__getattribute__(value, name), identify, holder)
    return {"structure": kind.__name__, "fields": found, "raw": _raw(kind, value)}


def _behind(kind: Any, at: int, holder: Any, identify: Identify) -> Any:
    target = ctypes.c_size_t.from_address(at).value
    if target == 0:
        return None
    room = shapes.extent(target, holder)
    if kind is ctypes.c_void_p:
        return {"behind": ctypes.string_at(target, room).hex()}
    size = ctypes.sizeof(kind._type_)
    count = room // size
    elements = [kind._type_.from_address(target + i * size) for i in range(count)]
    return {"behind": [describe(element, identify, holder) for element in elements]}


def describe(value: Any, identify: Identify, holder: Any = None) -> Any:
    """Anything that pynvml takes or returns, as data for JSON. `holder` keeps its pointees alive."""
    if value is None or isinstance(value, (bool, int, str, float, bytes)):
        return _simple(value)
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [describe(item, identify) for item in value]}
    if isinstance(value, dict):
        return {str(key): describe(item, identify) for key, item in value.items()}
    if isinstance(value, pynvml.nvmlFriendlyObject):
        return {"friendly": describe(vars(value), identify)}
    if isinstance(value, type):
        return {"class": value.__qualname__}
    if isinstance(value, shapes._byref):
        return {"byref": describe(value._obj, identify)}
    kind = type(value)
    if shapes.is_opaque(kind):
        return {"handle": kind._type_.__name__, "identity": identify(value)}
    if isinstance(value, ctypes._Pointer):
        return {"pointer": describe(value.contents, identify) if value else None}
    if isinstance(value, ctypes.Structure):
        return _structure(value, identify, value if holder is None else holder)
    if isinstance(value, ctypes.Union):
        return {"union": kind.__name__, "raw": _raw(kind, value)}
    if isinstance(value, ctypes.Array):
        items = [] if kind._type_ is ctypes.c_char else [describe(item, identify, holder) for item in value]
        return {"array": kind.__name__, "items": items, "raw": _raw(kind, value)}
    if isinstance(value, shapes._Simple):
        return {"ctype": kind.__name__, "value": _simple(value.value)}
    raise TypeError(f"no description for {kind.__name__}")


def describe_error(error: BaseException) -> Any:
    """An exception: its class, code and text."""
    kind = type(error)
    return {
        "error": f"{kind.__module__}.{kind.__qualname__}",
        "value": getattr(error, "value", None),
        "text": str(error),
        "base": [base.__name__ for base in kind.__mro__],
    }


def differences(left: Any, right: Any, path: str = "") -> list[str]:
    """Where two descriptions differ: the place and both values."""
    if isinstance(left, dict) and isinstance(right, dict):
        found = []
        for key in sorted(left.keys() | right.keys()):
            place = f"{path}.{key}" if path else key
            if key not in left or key not in right:
                found.append(f"{place}: only {'sandboxed' if key not in left else 'direct'}")
            else:
                found.extend(differences(left[key], right[key], place))
        return found
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        return [
            line
            for index, (a, b) in enumerate(zip(left, right, strict=True))
            for line in differences(a, b, f"{path}[{index}]")
        ]
    if left == right and type(left) is type(right):
        return []
    return [f"{path}: direct {_short(left)}, sandboxed {_short(right)}"]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:120]}… ({len(text)} characters)"
