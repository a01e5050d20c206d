# SPDX-License-Identifier: Apache-2.0
"""ctypes arguments to frames, and replies back into them.

pynvml hands ctypes objects to NVML's functions. Everything that a frame must say (how large a pointee is, where in it
handles, pointers and strings lie) can be read off their types, so there is no list of functions here. The layout of
frames is csrc/protocol.h.

How ctypes converts an argument for a function without ``argtypes`` is copied exactly: None is NULL, an int is a C
int, bytes are a pointer to themselves, byref(x) and arrays are pointers to their memory. What ctypes refuses is
refused with its own error.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from nvsandbox import threads
from nvsandbox._core import lib
from nvsandbox.errors import nvml_error

_HEADER = struct.Struct("=6I")
_ARG = struct.Struct("=IIQ")
_RELOC = struct.Struct("=6I")
_REPLY = struct.Struct("=IIIIQQ")
_U64 = struct.Struct("=Q")

ARGS_MAX: int = lib.NVS_ARGS_MAX
ALIGN: int = lib.NVS_DATA_ALIGN
FRAME_MAX: int = lib.NVS_FRAME_MAX
REQUEST_SIZE = _HEADER.size + ARGS_MAX * _ARG.size
REPLY_SIZE = _REPLY.size

_VALUE: int = lib.NVS_ARG_VALUE
_DATA: int = lib.NVS_ARG_DATA
_HANDLE: int = lib.NVS_ARG_HANDLE
_RELOC_HANDLE: int = lib.NVS_RELOC_HANDLE
_TOKEN_TAG: int = lib.NVS_TOKEN_TAG
_UNTYPED: int = lib.NVS_HANDLE_UNTYPED
_RELOC_POINTER: int = lib.NVS_RELOC_POINTER
_RELOC_STRING: int = lib.NVS_RELOC_STRING
_STRING_OUT = 1 << 63  # NVS_STRING_OUT
_ARGUMENTS_MAX = FRAME_MAX - (1 << 20)  # the rest is for what describes them
_NVML_ERROR_MEMORY = 20

SimpleType: Any = ctypes.c_int.__mro__[1]  # ctypes._SimpleCData
PointerType: Any = ctypes.POINTER(ctypes.c_int).__mro__[1]  # ctypes._Pointer
ByrefType: Any = type(ctypes.byref(ctypes.c_int()))
_CData: Any = SimpleType.__mro__[1]

# A C function that takes anything and does nothing with it: called with arguments that this module cannot convert, so
# that ctypes itself raises what it would have raised.
_probe = ctypes.CDLL(None).getppid


def pointed_handle(argument: Any) -> tuple[Any, int] | None:
    """The type and token of the handle that byref(handle) or pointer(handle) points to; None for anything else."""
    target = argument._obj if isinstance(argument, ByrefType) else argument
    if isinstance(target, PointerType) and target is argument and not is_opaque(type(target)):
        target = target.contents if target else None
    if isinstance(target, PointerType) and is_opaque(type(target)):
        return type(target), ctypes.c_void_p.from_buffer(target).value or 0
    return None


# ---- what a type says about its memory -------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """`count` places, the first at `offset`, each `stride` bytes after the one before."""

    offset: int
    count: int
    stride: int

    def places(self) -> Iterator[int]:
        return iter(range(self.offset, self.offset + self.count * self.stride, self.stride))


@dataclass(frozen=True)
class Layout:
    """Where handles (with their kind), pointers (with the type that they point to; None: void) and C strings lie in a
    type's memory."""

    handles: tuple[tuple[Run, int], ...] = ()
    pointers: tuple[tuple[Run, Any], ...] = ()
    strings: tuple[Run, ...] = ()

    @property
    def plain(self) -> bool:
        return not (self.handles or self.pointers or self.strings)


_PLAIN = Layout()
_layouts: dict[Any, Layout] = {}
_kinds: dict[str, int] = {}
_kinds_lock = threads.allocate_lock()


def is_opaque(pointer_type: Any) -> bool:
    """Whether this POINTER type is an NVML handle: it points to a structure without fields."""
    target = pointer_type._type_
    return isinstance(target, type) and issubclass(target, ctypes.Structure) and ctypes.sizeof(target) == 0


def handle_kind(pointer_type: Any) -> int:
    """The number that stands for this handle type in tokens, 1 to 254."""
    name = pointer_type._type_.__name__
    kind = _kinds.get(name)
    if kind is None:
        with _kinds_lock:
            kind = _kinds.setdefault(name, len(_kinds) + 1)
        if kind >= _UNTYPED:
            raise TypeError(f"{name}: more than {_UNTYPED - 1} kinds of NVML handles")
    return kind


def is_token(value: int) -> bool:
    """Whether this is a handle of a sandbox, in whatever it is passed."""
    return value >> 52 == _TOKEN_TAG


def _kind_of_token(token: int) -> int:
    return token >> 24 & 0xFF


def _repeat(run: Run, offset: int, count: int, stride: int) -> list[Run]:
    """`run`, found in an element, for `count` elements that are `stride` apart, the first at `offset`."""
    if count == 1:
        return [Run(offset + run.offset, run.count, run.stride)]
    if run.count == 1:
        return [Run(offset + run.offset, count, stride)]
    if run.stride * run.count == stride:  # an array of arrays: one long one
        return [Run(offset + run.offset, count * run.count, run.stride)]
    # Whichever way needs fewer runs.
    if run.count < count:
        return [Run(offset + place, count, stride) for place in run.places()]
    return [Run(offset + i * stride + run.offset, run.count, run.stride) for i in range(count)]


def layout_of(ctype: Any) -> Layout:
    """The layout of a ctypes type; made once for each type."""
    layout = _layouts.get(ctype)
    if layout is None:
        layout = _layouts[ctype] = _make_layout(ctype)
    return layout


def _make_layout(ctype: Any) -> Layout:
    if issubclass(ctype, ctypes.Array):
        return array_layout(ctype._type_, ctype._length_)
    if issubclass(ctype, ctypes.Structure | ctypes.Union):
        handles: list[tuple[Run, int]] = []
        pointers: list[tuple[Run, Any]] = []
        strings: list[Run] = []
        # Base classes' fields are part of the structure.
        for base in reversed(ctype.__mro__):
            for entry in base.__dict__.get("_fields_", ()):
                offset = getattr(ctype, entry[0]).offset
                inner = layout_of(entry[1])
                handles += [(r, kind) for run, kind in inner.handles for r in _repeat(run, offset, 1, 0)]
                pointers += [(r, target) for run, target in inner.pointers for r in _repeat(run, offset, 1, 0)]
                strings += [r for run in inner.strings for r in _repeat(run, offset, 1, 0)]
        if handles or pointers or strings:
            if issubclass(ctype, ctypes.Union):
                raise TypeError(
                    f"{ctype.__name__}: a union with pointers in it, which may hold a number just as "
                    f"well; NVML has none: pass the structure or pointer that is meant"
                )
            return Layout(tuple(handles), tuple(pointers), tuple(strings))
        return _PLAIN
    if issubclass(ctype, PointerType):
        one = Run(0, 1, 8)
        return (
            Layout(handles=((one, handle_kind(ctype)),))
            if is_opaque(ctype)
            else Layout(pointers=((one, ctype._type_),))
        )
    if issubclass(ctype, ctypes.c_char_p):
        return Layout(strings=(Run(0, 1, 8),))
    if issubclass(ctype, ctypes.c_void_p):
        return Layout(pointers=((Run(0, 1, 8), None),))
    return _PLAIN


def array_layout(element: Any, count: int) -> Layout:
    """The layout of `count` elements of a type, one behind the other."""
    inner = layout_of(element)
    if inner.plain or count == 0:
        return _PLAIN
    size = ctypes.sizeof(element)
    return Layout(
        tuple((r, kind) for run, kind in inner.handles for r in _repeat(run, 0, count, size)),
        tuple((r, target) for run, target in inner.pointers for r in _repeat(run, 0, count, size)),
        tuple(r for run in inner.strings for r in _repeat(run, 0, count, size)),
    )


# ---- how much memory is behind a pointer -----------------------------------------------------------------------


def _reachable(root: Any) -> list[Any]:
    """The ctypes objects that `root` keeps alive, itself included: whoever put a pointer into it."""
    found: list[Any] = []
    seen: set[int] = set()
    waiting = [root]
    while waiting and len(seen) < 100_000:
        item = waiting.pop()
        if item is None or id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, dict):
            waiting += item.values()
        elif isinstance(item, tuple | list):
            waiting += item
        elif isinstance(item, ByrefType):
            waiting.append(item._obj)
        elif isinstance(item, _CData):
            found.append(item)
            waiting += (item._b_base_, item._objects)
    return found


_COUNT_NAME = re.compile(r"count|num|size|entries", re.IGNORECASE)


def _told_count(ctype: Any, address: int, offset: int, element: Any) -> int:
    """How many elements a structure says are behind its pointer at `offset`, by the convention of NVML's structures:
    one integer field of it is a count or size. 1 where that is not so.

    Only for pointers whose memory no ctypes object is known to own, such as one that NVML itself returned.
    """
    if not issubclass(ctype, ctypes.Structure):
        return 1
    numbers = []
    for entry in getattr(ctype, "_fields_", ()):
        name: str = entry[0]
        kind: Any = entry[1]
        if issubclass(kind, SimpleType) and kind._type_ in "IiLlQqHhBb" and _COUNT_NAME.search(name):
            numbers.append(kind.from_address(address + getattr(ctype, name).offset).value)
    if len(numbers) != 1:
        return 1
    return max(0, min(int(numbers[0]), FRAME_MAX // max(1, ctypes.sizeof(element))))


def wait_milliseconds(arguments: tuple[Any, ...]) -> int:
    """The timeout in milliseconds that an event wait's arguments hold: a field of that name, or the last integer."""
    for argument in reversed(arguments):
        target = getattr(argument, "_obj", argument)
        if isinstance(target, ctypes.Structure):
            for name in ("timeoutms", "timeoutMs", "timeout"):
                if hasattr(target, name):
                    return int(getattr(target, name))
        elif isinstance(target, int):
            return target & 0xFFFFFFFF
        elif isinstance(target, ctypes.c_uint | ctypes.c_int) and target is argument:
            return target.value & 0xFFFFFFFF
    return 0


# The C strings that NVML put into structures of the caller's, such as the names of GPM metrics. They are constants of
# the library, and must stay where they are as long as any structure points to them: for good.
_strings: dict[bytes, Any] = {}
_STRINGS_MAX = 65536


def _intern(text: bytes) -> int:
    buffer = _strings.get(text)
    if buffer is None:
        if len(_strings) >= _STRINGS_MAX:
            raise BrokenReply("more strings than any NVML has")
        buffer = _strings.setdefault(text, ctypes.create_string_buffer(text))
    return ctypes.addressof(buffer)


def _read(owner: Any, place: int, size: int) -> bytes:
    """From a ctypes object's memory, wherever that is: by one call in C, for ctypes.resize() in another thread may
    move it between any two."""
    found: bytes = struct.unpack_from(f"{size}s", owner, place)[0]
    return found


def _write(owner: Any, place: int, data: bytes | bytearray | memoryview) -> None:
    """To a ctypes object's memory, as far as there is still room: it may have been made smaller since it was read."""
    try:
        struct.pack_into(f"{len(data)}s", owner, place, data)
    except struct.error:
        data = data[: max(0, ctypes.sizeof(owner) - place)]
        struct.pack_into(f"{len(data)}s", owner, place, data)


# ---- a call ----------------------------------------------------------------------------------------------------


@dataclass
class _Segment:
    offset: int  # in the data
    address: int  # in this process
    size: int
    owner: Any  # the ctypes object that this is memory of; None where none is known
    place: int  # in the owner
    handles: list[tuple[Run, int]] = field(default_factory=list)
    # places whose content must not be copied back as it is: (offset in the segment, what the caller had there, what
    # was sent)
    pointers: list[tuple[int, int, int]] = field(default_factory=list)
    strings: list[tuple[int, int, int]] = field(default_factory=list)
    layouts: list[tuple[int, Layout]] = field(default_factory=list)  # what was found to lie in it, and where

    @property
    def end(self) -> int:
        return self.address + self.size

    def translated(self) -> set[int]:
        """The places in it that its layouts have."""
        found: set[int] = set()
        for at, layout in self.layouts:
            runs = [run for run, _ in layout.handles] + [run for run, _ in layout.pointers] + list(layout.strings)
            found.update(at + place for run in runs for place in run.places())
        return found


@dataclass(frozen=True)
class _Memory:
    """`size` bytes at `address`, which are a `ctype`; if `owner` is not None, they are at `place` in that object."""

    address: int
    ctype: Any
    size: int
    owner: Any
    place: int


class _Contains(Exception):
    """This memory has to be sent as one, before what was found to lie in it."""

    def __init__(self, memory: _Memory) -> None:
        self.memory = memory


class Call:
    """One call: its frame, and where the parts of the reply go."""

    __slots__ = ("_args", "_data", "_first", "_owners", "_relocs", "_roots", "_segments", "flags", "name")

    def __init__(self, name: str, arguments: tuple[Any, ...], flags: int = 0) -> None:
        self.name = name
        self.flags = flags
        self._owners: list[tuple[int, int, Any]] | None = None
        self._roots = arguments
        self._first: list[_Memory] = []
        if len(arguments) > ARGS_MAX:
            raise TypeError(f"{name}: {len(arguments)} arguments; no NVML function takes more than {ARGS_MAX}")
        while True:
            try:
                self._make()
                break
            except _Contains as found:
                # Largest first, so that each finds itself in what contains it.
                self._first = sorted([*self._first, found.memory], key=lambda memory: -memory.size)

    def _make(self) -> None:
        self._args: list[tuple[int, int, int]] = []
        self._relocs: list[tuple[int, int, int, int, int, int]] = []
        self._segments: list[_Segment] = []
        self._data = bytearray()
        for memory in self._first:
            self._segment(memory)
        for position, argument in enumerate(self._roots, 1):
            self._args.append(self._argument(position, argument))

    # -- arguments

    def _argument(self, position: int, argument: Any) -> tuple[int, int, int]:
        if argument is None:
            return _VALUE, 0, 0
        kind = type(argument)
        if kind is ByrefType:
            return self._byref(position, argument)
        if isinstance(argument, int):
            if is_token(argument):
                return _HANDLE, _kind_of_token(argument), argument
            return _VALUE, 0, self._integer(argument)
        if isinstance(argument, PointerType):
            value = ctypes.c_void_p.from_buffer(argument).value or 0
            if is_opaque(kind):
                return _HANDLE, handle_kind(kind), value
            return self._pointed(value, kind._type_, 1)
        if isinstance(argument, ctypes.Array):
            return self._memory(ctypes.addressof(argument), kind, ctypes.sizeof(argument), argument)
        if isinstance(argument, SimpleType):
            return self._simple(position, argument)
        if isinstance(argument, bytes):
            self._check_room(len(argument))
            return self._bytes(argument + b"\0")
        if isinstance(argument, str):
            return self._bytes(bytes(ctypes.create_unicode_buffer(argument)))
        if isinstance(argument, ctypes.Structure | ctypes.Union):
            raise TypeError(
                f"{self.name}: argument {position} is a {kind.__name__} by value; NVML takes pointers: pass byref(…)"
            )
        stand_in = getattr(argument, "_as_parameter_", None)
        if stand_in is not None:
            return self._argument(position, stand_in)
        self._refused(position, argument)
        raise AssertionError("ctypes took what it refuses")

    def _refused(self, position: int, argument: Any) -> None:
        _probe(*[None] * (position - 1), argument)

    def _integer(self, argument: int) -> int:
        if not -(1 << 63) <= argument < 1 << 64:
            _probe(*[None] * len(self._args), argument)  # raises
        low = argument & 0xFFFFFFFF
        return low if low < 1 << 31 else low | 0xFFFFFFFF00000000

    def _simple(self, position: int, argument: Any) -> tuple[int, int, int]:
        code = argument._type_
        if code in "bhilqBHILQ" and is_token(argument.value & 0xFFFFFFFFFFFFFFFF):
            return _HANDLE, _kind_of_token(argument.value), argument.value & 0xFFFFFFFFFFFFFFFF
        if code in "bhilq":
            return _VALUE, 0, argument.value & 0xFFFFFFFFFFFFFFFF
        if code in "BHILQ?":
            return _VALUE, 0, int(argument.value)
        if code == "c":
            return _VALUE, 0, argument.value[0]
        if code == "z":
            if argument._objects is None and ctypes.c_void_p.from_buffer(argument).value:
                # c_char_p(17): reading there would end this process.
                raise TypeError(f"{self.name}: argument {position} is a c_char_p of a number, not bytes")
            return (_VALUE, 0, 0) if argument.value is None else self._bytes(argument.value + b"\0")
        if code == "P":
            value = argument.value or 0
            if not value:
                return _VALUE, 0, 0
            if is_token(value):
                return _HANDLE, _kind_of_token(value), value
            owner, place = self._owner(value)
            if owner is None:
                raise TypeError(
                    f"{self.name}: argument {position} is a c_void_p to memory of unknown size: pass the object itself"
                )
            owned = ctypes.sizeof(owner) - place
            return self._memory(value, type(owner) if place == 0 else ctypes.c_ubyte * owned, owned, owner, place)
        raise TypeError(f"{self.name}: argument {position}: NVML takes no {type(argument).__name__} by value")

    def _byref(self, position: int, argument: Any) -> tuple[int, int, int]:
        obj = argument._obj
        address = ctypes.addressof(obj)
        value = ctypes.cast(argument, ctypes.c_void_p).value or 0
        if value == address:
            return self._memory(address, type(obj), ctypes.sizeof(obj), obj)
        # byref(obj, offset): what follows the offset, as bytes
        size = address + ctypes.sizeof(obj) - value
        if size <= 0 or value < address or not layout_of(type(obj)).plain:
            raise TypeError(
                f"{self.name}: argument {position}: byref() with an offset that is outside of the object, or in "
                f"one with pointers"
            )
        return self._memory(value, ctypes.c_ubyte * size, size, obj, value - address)

    # -- memory

    def _pointed(self, address: int, element: Any, fallback: int) -> tuple[int, int, int]:
        if address == 0:
            return _VALUE, 0, 0
        size = ctypes.sizeof(element)
        owned = self._owned(address)
        count = fallback if owned is None else owned // size
        return self._memory(address, element * count, size * count, *self._owner(address))

    def _owned(self, address: int) -> int | None:
        """How many bytes from `address` on belong to an object that the arguments keep alive; None if to none."""
        owner, place = self._owner(address)
        return None if owner is None else ctypes.sizeof(owner) - place

    def _owner(self, address: int) -> tuple[Any, int]:
        """The object that `address` is in, of those that the arguments keep alive, and where in it; None if it is in
        none. Of several the one that has most behind it. From here on this call keeps them as well: the reply goes to
        where the request came from, whoever has let go of that meanwhile."""
        if self._owners is None:
            self._owners = [
                (start, start + ctypes.sizeof(item), item)
                for item in _reachable(self._roots)
                for start in (ctypes.addressof(item),)
            ]
        best: tuple[int, Any, int] = (-1, None, 0)
        for start, end, item in self._owners:
            # An array of no elements is at an address too.
            if (start <= address < end or start == address == end) and end - address > best[0]:
                best = (end - address, item, address - start)
        return best[1:]

    def _bytes(self, content: bytes) -> tuple[int, int, int]:
        """Input only: the memory of bytes and str objects is not NVML's to write to."""
        return _DATA, 0, self._append(content)

    def _append(self, content: Any) -> int:
        data = self._data
        if len(data) % ALIGN:
            data.extend(bytes(-len(data) % ALIGN))
        offset = len(data)
        self._check_room(len(content))
        data += content
        return offset

    def _check_room(self, size: int) -> None:
        """Before `size` bytes are copied."""
        if len(self._data) + size > _ARGUMENTS_MAX:
            raise nvml_error(
                _NVML_ERROR_MEMORY,
                f"{self.name}: {len(self._data) + size} bytes of arguments, and a call carries at most "
                f"{_ARGUMENTS_MAX}: pass smaller arrays; was a count that NVML gave too large to be true?",
            )

    def _memory(self, address: int, ctype: Any, size: int, owner: Any = None, place: int = 0) -> tuple[int, int, int]:
        return _DATA, 0, self._segment(_Memory(address, ctype, size, owner, place))

    def _segment(self, memory: _Memory) -> int:
        """The offset of this memory in the data. What overlaps is one memory to NVML as well, in whichever order and
        by whichever types it is passed."""
        address, size = memory.address, memory.size
        end = address + size
        for known in self._segments:
            if not known.size:
                continue
            if known.address <= address and end <= known.end:
                if not layout_of(memory.ctype).plain:
                    self._translate(known, address - known.address, memory.ctype)
                return known.offset + address - known.address
            if address < known.end and known.address < end:
                if address <= known.address and known.end <= end:
                    raise _Contains(memory)
                first, size = min(address, known.address), max(end, known.end) - min(address, known.address)
                raise _Contains(_Memory(first, ctypes.c_ubyte * size, size, None, 0))
        self._check_room(size)
        content = ctypes.string_at(address, size) if memory.owner is None else _read(memory.owner, memory.place, size)
        segment = _Segment(self._append(content), address, size, memory.owner, memory.place)
        self._segments.append(segment)
        self._translate(segment, 0, memory.ctype)
        return segment.offset

    def _translate(self, segment: _Segment, at: int, ctype: Any) -> None:
        """Translates the handles, pointers and strings of a `ctype` that lies at `at` in a segment."""
        layout = layout_of(ctype) if not issubclass(ctype, ctypes.Array) else array_layout(ctype._type_, ctype._length_)
        if layout.plain:
            return
        done = segment.translated()
        segment.layouts.append((at, layout))  # first: a structure may point to itself

        def missing(run: Run) -> list[Run]:
            if not done:
                return [Run(at + run.offset, run.count, run.stride)]
            return [Run(at + place, 1, 8) for place in run.places() if at + place not in done]

        for whole, kind in layout.handles:
            for run in missing(whole):
                self._relocate(_RELOC_HANDLE, kind, segment, run)
                segment.handles.append((run, kind))
        for whole, target in layout.pointers:
            for run in missing(whole):
                if target is None:
                    self._void_pointers(segment, at, ctype, run)
                else:
                    self._pointers(segment, at, ctype, run, target)
        for whole in layout.strings:
            for run in missing(whole):
                for place in run.places():
                    value = _U64.unpack_from(self._data, segment.offset + place)[0]
                    sent = self._append(ctypes.string_at(value) + b"\0") + 1 if value else 0
                    _U64.pack_into(self._data, segment.offset + place, sent)
                    segment.strings.append((place, value, sent))
                self._relocate(_RELOC_STRING, 0, segment, run)

    def _pointers(self, segment: _Segment, at: int, ctype: Any, run: Run, target: Any) -> None:
        for place in run.places():
            value = _U64.unpack_from(self._data, segment.offset + place)[0]
            sent = 0
            if value and ctypes.sizeof(target):
                told = _told_count(ctype, segment.address + at, place - at, target)
                sent = self._pointed(value, target, told)[2] + 1
            _U64.pack_into(self._data, segment.offset + place, sent)
            segment.pointers.append((place, value, sent))
        self._relocate(_RELOC_POINTER, 0, segment, run)

    def _void_pointers(self, segment: _Segment, at: int, ctype: Any, run: Run) -> None:
        """A handle, or NULL where NVML may put one, is a handle of whatever kind; what else is there points to
        bytes."""

        def is_handle(place: int) -> bool:
            value = _U64.unpack_from(self._data, segment.offset + place)[0]
            return value == 0 or is_token(value)

        places = list(run.places())
        handles = [place for place in places if is_handle(place)]
        groups = [run] if len(handles) == len(places) else [Run(place, 1, 8) for place in handles]
        for group in groups:
            self._relocate(_RELOC_HANDLE, _UNTYPED, segment, group)
            segment.handles.append((group, _UNTYPED))
        for place in places:
            if place not in handles:
                self._pointers(segment, at, ctype, Run(place, 1, 8), ctypes.c_ubyte)

    def _relocate(self, kind: int, handle: int, segment: _Segment, run: Run) -> None:
        self._relocs.append((kind, handle, segment.offset + run.offset, run.count, run.stride, 0))
        if len(self._relocs) > lib.NVS_RELOCS_MAX:
            raise ValueError(f"{self.name}: arguments with more than {lib.NVS_RELOCS_MAX} groups of pointers")

    @property
    def arguments(self) -> list[tuple[int, int, int]]:
        """For each argument: kind (NVS_ARG_…), kind of handle, value."""
        return self._args

    @property
    def segments(self) -> int:
        """How many pieces of the caller's memory it carries."""
        return len(self._segments)

    @property
    def data_len(self) -> int:
        """Bytes of data in its frame."""
        return len(self._data)

    # -- frames

    def frame(self, function: int) -> bytearray:
        """The request frame, for the function with this index in the worker."""
        out = bytearray(
            _HEADER.pack(lib.NVS_OP_CALL, function, self.flags, len(self._args), len(self._relocs), len(self._data))
        )
        for argument in self._args:
            out += _ARG.pack(*argument)
        out += bytes((ARGS_MAX - len(self._args)) * _ARG.size)
        for reloc in self._relocs:
            out += _RELOC.pack(*reloc)
        out += bytes(-len(out) % ALIGN)
        out += self._data
        return out

    def _handle_places(self) -> Iterator[int]:
        """Where in the data handles lie."""
        for segment in self._segments:
            for run, _ in segment.handles:
                for place in run.places():
                    yield segment.offset + place

    def tokens(self) -> set[int]:
        """The handles that this call passes."""
        found = {value for kind, _, value in self._args if kind == _HANDLE}
        found.update(_U64.unpack_from(self._data, place)[0] for place in self._handle_places())
        return found - {0}

    def replace(self, tokens: dict[int, int]) -> None:
        """Passes other handles instead."""
        self._args = [
            (kind, sort, tokens.get(value, value) if kind == _HANDLE else value) for kind, sort, value in self._args
        ]
        for place in self._handle_places():
            value = _U64.unpack_from(self._data, place)[0]
            _U64.pack_into(self._data, place, tokens.get(value, value))

    def undo(self) -> None:
        """Puts back into the caller's objects what was sent."""
        self.accept(Reply(lib.NVS_STATUS_OK, 0, 0, memoryview(self._data), b""))

    def accept(self, reply: Reply) -> None:
        """Copies a reply's data into the caller's objects."""
        data = reply.data
        if len(data) != len(self._data):
            raise BrokenReply(f"{self.name}: {len(data)} bytes of data for {len(self._data)}")
        for segment in self._segments:
            if not segment.size:
                continue
            piece = bytearray(data[segment.offset : segment.offset + segment.size])
            for place, value, _ in segment.pointers:
                _U64.pack_into(piece, place, value)
            for place, value, sent in segment.strings:
                got = _U64.unpack_from(piece, place)[0]
                if got == sent:
                    here = value
                elif got & _STRING_OUT:
                    here = _intern(reply.string(got & ~_STRING_OUT))
                elif got == 0:
                    here = 0
                else:
                    raise BrokenReply(f"{self.name}: a string at {got:#x}")
                _U64.pack_into(piece, place, here)
            if segment.owner is None:
                ctypes.memmove(segment.address, bytes(piece), segment.size)
            else:
                _write(segment.owner, segment.place, piece)


class BrokenReply(Exception):
    """The worker answered what no worker answers."""


@dataclass(frozen=True)
class Reply:
    """A reply that was found to be well-formed."""

    status: int
    index: int
    result: int
    data: memoryview
    strings: bytes

    def string(self, offset: int) -> bytes:
        end = self.strings.find(b"\0", offset)
        if offset >= len(self.strings) or end < 0:
            raise BrokenReply(f"a string at {offset} of {len(self.strings)} bytes")
        if end - offset >= lib.NVS_STRING_MAX:
            raise BrokenReply(f"a string of {end - offset} bytes, longer than any that a worker sends")
        return self.strings[offset:end]


def parse_reply(reply: memoryview) -> Reply:
    """Takes a reply apart. `reply` is this process's own copy of what the worker wrote."""
    if len(reply) < REPLY_SIZE:
        raise BrokenReply(f"a reply of {len(reply)} bytes")
    status, data_len, strings_len, index, result, _ = _REPLY.unpack_from(reply)
    if REPLY_SIZE + data_len + strings_len != len(reply):
        raise BrokenReply(f"a reply of {len(reply)} bytes that says {data_len} + {strings_len}")
    end = REPLY_SIZE + data_len
    return Reply(status, index, result, reply[REPLY_SIZE:end], bytes(reply[end : end + strings_len]))


def kept_length(reply: memoryview) -> int | None:
    """The length of a reply that the worker keeps, since it does not fit the channel; None for any other reply."""
    if len(reply) < REPLY_SIZE:
        return None
    status, _, _, _, result, _ = _REPLY.unpack_from(reply)
    return int(result) if status == lib.NVS_STATUS_TOO_LARGE else None


def resolve_frame(name: str) -> bytearray:
    """The request for the index of a symbol."""
    return _bare_frame(lib.NVS_OP_RESOLVE, name.encode("ascii") + b"\0")


def fetch_frame(offset: int) -> bytearray:
    """The request for what a kept reply has from `offset` on."""
    return _bare_frame(lib.NVS_OP_FETCH, _U64.pack(offset))


def _bare_frame(op: int, data: bytes) -> bytearray:
    out = bytearray(_HEADER.pack(op, 0, 0, 0, 0, len(data)))
    out += bytes(ARGS_MAX * _ARG.size)
    out += bytes(-len(out) % ALIGN)
    return out + data


def _after_fork_in_child() -> None:
    global _kinds_lock
    _kinds_lock = threads.allocate_lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
