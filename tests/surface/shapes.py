# SPDX-License-Identifier: Apache-2.0
"""What memory looks like that is passed to NVML, read off ctypes objects, in the words of tests/native/echo/echo.c.

Independent of the product's own marshaller on purpose: two readings of the same types that must agree.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pynvml

PROBED = 3
"""What the library answers for a count when it is asked how much room is needed."""

INSUFFICIENT_SIZE = 7

_Pointer = type(ctypes.POINTER(ctypes.c_int)).__mro__[0]
_Simple = ctypes.c_int.__mro__[1]
_byref = type(ctypes.byref(ctypes.c_int()))
_COUNTS = re.compile(r"count|num|entries|size", re.IGNORECASE)


def is_pointer_type(kind: Any) -> bool:
    """A POINTER (…) class."""
    return isinstance(kind, _Pointer)


def is_opaque(kind: Any) -> bool:
    """A POINTER of a structure without fields: a handle."""
    if not is_pointer_type(kind):
        return False
    pointee = kind._type_
    return issubclass(pointee, ctypes.Structure) and not getattr(pointee, "_fields_", None)


def handle_types() -> list[Any]:
    """The opaque handle types of the installed pynvml, each once, in a fixed order: the index is the kind's number."""
    found = {kind._type_.__name__: kind for kind in vars(pynvml).values() if is_opaque(kind)}
    return [found[name] for name in sorted(found)]


_KINDS = {kind._type_.__name__: number for number, kind in enumerate(handle_types())}


def handle_kind(kind: Any) -> int:
    """The number by which the echo library knows a handle type."""
    return _KINDS[kind._type_.__name__]


def fields(kind: Any) -> Iterator[tuple[str, Any, int]]:
    """Each field of a structure or union, those of its bases first: name, type, offset."""
    for base in reversed(kind.__mro__):
        for entry in base.__dict__.get("_fields_", ()):
            descriptor = base.__dict__[entry[0]]
            yield entry[0], entry[1], descriptor.offset


def _kept(holder: Any, seen: set[int]) -> Iterator[Any]:
    """All ctypes objects that another keeps alive."""
    if id(holder) in seen:
        return
    seen.add(id(holder))
    if isinstance(holder, dict):
        for value in holder.values():
            yield from _kept(value, seen)
    elif isinstance(holder, tuple):
        for value in holder:
            yield from _kept(value, seen)
    elif isinstance(holder, bytes):
        yield holder
    elif isinstance(holder, (ctypes.Structure, ctypes.Union, ctypes.Array, ctypes._Pointer, _Simple)):
        yield holder
        yield from _kept(holder._objects, seen)
        yield from _kept(getattr(holder, "_b_base_", None), seen)


def extent(address: int, holder: Any) -> int:
    """How many bytes from `address` on belong to something that `holder` keeps alive; 0 where nothing does."""
    best = 0
    for kept in _kept(holder, set()):
        if isinstance(kept, bytes):
            continue
        start = ctypes.addressof(kept)
        if start <= address < start + ctypes.sizeof(kept):
            best = max(best, start + ctypes.sizeof(kept) - address)
    return best


def _address(at: int) -> int:
    return ctypes.c_size_t.from_address(at).value


@dataclass
class Leaf:
    """A run of memory of one sort. `name` is the innermost field's."""

    sort: str
    at: int
    size: int
    name: str = ""
    inner: list[Leaf] = field(default_factory=list)
    kind: int = 0
    nested: bool = False

    def token(self, counts: Callable[[Leaf], bool]) -> str:
        """In the echo library's words; `counts` says of a uint32_t whether it is to come out small."""
        if self.sort == "u":
            return "u" if counts(self) else "b4"
        if self.sort in "bc":
            return f"{self.sort}{self.size}"
        if self.sort == "h":
            return f"h{self.kind}"
        if self.sort == "P":
            return "P{" + spell(self.inner, counts) + "}"
        return self.sort


def spell(leaves: list[Leaf], counts: Callable[[Leaf], bool]) -> str:
    """The shape of a list of leaves, adjacent bytes and equal neighbours put together."""
    tokens: list[tuple[str, int]] = []
    for leaf in leaves:
        token = leaf.token(counts)
        if token[0] == "b" and tokens and tokens[-1][0][0] == "b":
            tokens[-1] = (f"b{int(tokens[-1][0][1:]) + int(token[1:])}", 1)
        elif tokens and tokens[-1][0] == token:
            tokens[-1] = (token, tokens[-1][1] + 1)
        else:
            tokens.append((token, 1))
    return "".join(token if times == 1 else f"*{times}({token})" for token, times in tokens)


def leaves(kind: Any, at: int, holder: Any, name: str = "", nested: bool = False) -> list[Leaf]:
    """What lies at an address where there is something of this type, kept alive by `holder`."""
    if is_opaque(kind):
        return [Leaf("h", at, 8, name, kind=handle_kind(kind))]
    if is_pointer_type(kind) or kind is ctypes.c_void_p:
        target = _address(at)
        if target == 0:
            return [Leaf("N", at, 8, name)]
        room = extent(target, holder)
        if kind is ctypes.c_void_p:
            return [Leaf("P", at, 8, name, [Leaf("b", target, room)])]
        size = ctypes.sizeof(kind._type_)
        count = max(1, room // size)
        inner = [leaf for i in range(count) for leaf in leaves(kind._type_, target + i * size, holder, name, True)]
        return [Leaf("P", at, 8, name, inner)]
    if kind is ctypes.c_char_p:
        return [Leaf("S", at, 8, name)]
    if issubclass(kind, ctypes.Array):
        element = kind._type_
        if element is ctypes.c_char:
            return [Leaf("c", at, ctypes.sizeof(kind), name)]
        if issubclass(element, _Simple) and element not in (ctypes.c_char_p, ctypes.c_void_p):
            return [Leaf("b", at, ctypes.sizeof(kind), name)]
        step = ctypes.sizeof(element)
        return [leaf for i in range(kind._length_) for leaf in leaves(element, at + i * step, holder, name, True)]
    if issubclass(kind, ctypes.Structure):
        found: list[Leaf] = []
        end = at
        for label, part, offset in fields(kind):
            if at + offset > end:
                found.append(Leaf("b", end, at + offset - end, "padding"))
            found.extend(leaves(part, at + offset, holder, label, nested))
            end = at + offset + ctypes.sizeof(part)
        if end < at + ctypes.sizeof(kind):
            found.append(Leaf("b", end, at + ctypes.sizeof(kind) - end, "padding"))
        return found
    if issubclass(kind, ctypes.Union):
        return [Leaf("b", at, ctypes.sizeof(kind), name)]
    if kind in (ctypes.c_uint, ctypes.c_uint32):
        return [Leaf("u", at, 4, name, nested=nested)]
    return [Leaf("b", at, ctypes.sizeof(kind), name)]


@dataclass
class Argument:
    """One argument of a call: its token is finished later, when it is known which call of how many this was."""

    prefix: str
    memory: list[Leaf] = field(default_factory=list)
    scalar: bool = False

    @property
    def lists(self) -> bool:
        """Does it hold room for a list: an array, or a structure that points at one?"""
        return self.prefix == "p" and not self.scalar and any(leaf.sort == "P" or leaf.nested for leaf in self.memory)

    def token(self, probe: bool, bounded: bool) -> str:
        """In the echo library's words."""
        if self.prefix != "p":
            return self.prefix
        points = any(leaf.sort == "P" for leaf in self.memory)

        def counts(leaf: Leaf) -> bool:
            if probe:
                return not leaf.nested
            return not leaf.nested and ((bounded and self.scalar) or (points and bool(_COUNTS.search(leaf.name))))

        return "p{" + spell(self.memory, counts) + "}"


def argument(value: Any) -> Argument:
    """What an argument of an NVML call is, read off the object that pynvml passes to ctypes."""
    if value is None:
        return Argument("n")
    if isinstance(value, int):
        return Argument("v32")
    if isinstance(value, bytes):
        return Argument("s")
    if isinstance(value, _byref):
        return _pointee(value._obj)
    kind = type(value)
    if is_opaque(kind):
        return Argument(f"h{handle_kind(kind)}")
    if isinstance(value, ctypes._Pointer):
        return _pointee(value.contents) if value else Argument("n")
    if isinstance(value, ctypes.c_char_p):
        return Argument("s" if value.value is not None else "n")
    if isinstance(value, ctypes.Array):
        return _pointee(value)
    if isinstance(value, _Simple):
        return Argument(f"v{8 * ctypes.sizeof(value)}")
    raise TypeError(f"no shape for an argument of type {kind.__name__}")


def _pointee(target: Any) -> Argument:
    kind = type(target)
    memory = leaves(kind, ctypes.addressof(target), target, nested=isinstance(target, ctypes.Array))
    return Argument("p", memory, scalar=isinstance(target, _Simple))


@dataclass
class Call:
    """One call of a symbol, with what it was given."""

    symbol: str
    result: int | str
    arguments: list[Argument]

    def line(self, last: bool, garbage: bool, seed: int) -> str:
        """What the echo library is told to expect."""
        bounded = any(argument.lists or argument.prefix == "n" for argument in self.arguments)
        mode = "probe" if not last else "garbage" if garbage else "final"
        tokens = [argument.token(not last, bounded) for argument in self.arguments]
        return " ".join([self.symbol, str(self.result), mode, str(seed), *tokens]) + "\n"


class Recorder:
    """Stands in for the loaded library while pynvml's own code runs once, to see which calls that code makes.

    The n-th call returns the n-th of `results`, later ones 0. Counts come out as the echo library gives them."""

    def __init__(self, results: tuple[int, ...] = ()) -> None:
        self._results = results
        self.calls: list[Call] = []

    def __getattr__(self, symbol: str) -> Any:
        if not symbol.startswith("nvml"):
            raise AttributeError(symbol)
        return _Function(self, symbol)

    def record(self, symbol: str, arguments: tuple[Any, ...], text: bool) -> Any:
        """A call has been made."""
        position = len(self.calls)
        seen = [argument(value) for value in arguments]
        result = self._results[position] if position < len(self._results) else 0
        self.calls.append(Call(symbol, "s" if text else result, seen))
        for each in seen:
            for leaf in each.memory:
                if leaf.sort == "u" and not leaf.nested:
                    ctypes.c_uint32.from_address(leaf.at).value = PROBED
        return b"text" if text else result

    def expectations(self, garbage: bool, seed: int) -> str:
        """All calls, for nvmlEchoExpect()."""
        return "".join(call.line(index == len(self.calls) - 1, garbage, seed) for index, call in enumerate(self.calls))


class _Function:
    def __init__(self, recorder: Recorder, symbol: str) -> None:
        self._recorder = recorder
        self._symbol = symbol
        self.restype: Any = ctypes.c_int

    def __call__(self, *arguments: Any) -> Any:
        return self._recorder.record(self._symbol, arguments, self.restype is ctypes.c_char_p)
