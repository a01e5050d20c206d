# SPDX-License-Identifier: Apache-2.0
"""Descriptions of simulated GPUs: ``h100x8``, ``a100x2,mig=1g.5gb*7``, ``t4,lost=0``.

What may stand in one is told by the simulator's own tables (csrc/sim/profiles.def and options.def), which the C core
carries; see docs/simulator.md for each key.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

from nvsandbox._core import ffi, lib

MAX_GPUS = 64
MAX_MINOR = 249  # 254 and 255 are nvidia-modeset's and nvidiactl's
MAX_PROCS = 5000
MAX_LENGTH = 1023
MAX_TEXT = {"version": 31, "function": 95, "function_crash": 95}

_COMPUTE_SLICES = 7
_MEMORY_SLICES = 8

_U64 = re.compile(r"[0-9]{1,19}")
_KINDS = {
    "u64": (_U64, "a number such as 200"),
    "flag": (re.compile(r"[01]"), "0 or 1"),
    "indexes": (re.compile(r"[0-9]+(\+[0-9]+)*"), "GPU indexes joined by '+', such as 0+2"),
    "layout": (
        re.compile(r"[0-9a-z.]+(\*[0-9]+)?(\+[0-9a-z.]+(\*[0-9]+)?)*"),
        "MIG profiles joined by '+', such as 1g.10gb*3+2g.20gb",
    ),
    "version": (re.compile(r"[0-9]+(\.[0-9]+)*"), "a driver version such as 580.95.05"),
    "symbols": (re.compile(r"v1|v2|all"), "v1, v2 or all"),
    "function": (re.compile(r"nvml[A-Za-z0-9_]+"), "the name of an NVML function"),
    "function_crash": (
        re.compile(r"nvml[A-Za-z0-9_]+(:(segv|abort|exit))?"),
        "the name of an NVML function, perhaps with :segv, :abort or :exit",
    ),
    "fields": (re.compile(r"mixed"), "mixed"),
}


def _string(text: object) -> str:
    value = ffi.string(text)
    return value.decode() if isinstance(value, bytes) else str(value)


def profiles() -> dict[str, str]:
    """The GPU models that can be simulated: key (``"h100"``) to product name."""
    found = {}
    index = 0
    while entry := lib.nvs_core_profile(index):
        found[_string(entry.key)] = _string(entry.product)
        index += 1
    return found


@dataclass(frozen=True)
class MigProfile:
    """A MIG profile: the slices that it takes, of 7 for computing and 8 of memory, how many of it a GPU can have, and
    the memory slices at which one may start."""

    name: str
    slices: int
    memory_slices: int
    most: int
    starts: tuple[int, ...]


def mig_profiles(profile: str) -> dict[str, MigProfile]:
    """The MIG profiles of a GPU model by name (``"1g.10gb"``); none for a model without MIG."""
    found = {}
    index = 0
    while entry := lib.nvs_core_mig(index):
        if _string(entry.gpu) == profile:
            name = _string(entry.name)
            starts = tuple(slice_ for slice_ in range(_MEMORY_SLICES) if entry.starts >> slice_ & 1)
            found[name] = MigProfile(name, int(entry.slices), int(entry.memory_slices), int(entry.most), starts)
        index += 1
    return found


def _layout_problem(layout: str, known: dict[str, MigProfile]) -> str | None:
    """What is wrong with a MIG layout, or None.

    Places instances as nvs_mig_layout in csrc/sim/mig.c does: the largest first, those of three slices in the upper
    half if they fit there.
    """
    wanted: dict[str, int] = {}
    for match in re.finditer(r"([^+*]+(?:\+me)?)(?:\*([0-9]+))?(?:\+|$)", layout):
        name, number = match[1], int(match[2] or 1)
        if name not in known:
            return f"has no profile {name!r}; its profiles are {', '.join(known)}"
        if not 1 <= number <= _COMPUTE_SLICES:
            return f"cannot have {number} instances of {name}; expected 1 to {known[name].most}"
        wanted[name] = wanted.get(name, 0) + number
    used: set[int] = set()
    compute = 0
    for profile in sorted(known.values(), key=lambda each: -each.slices):
        number = wanted.get(profile.name, 0)
        if number > profile.most:
            return f"cannot have {number} instances of {profile.name}; expected at most {profile.most}"
        for _ in range(number):
            compute += profile.slices
            free = [s for s in profile.starts if used.isdisjoint(range(s, s + profile.memory_slices))]
            if not free or compute > _COMPUTE_SLICES:
                return (
                    f"has no room for this layout (at {profile.name}): there are {_COMPUTE_SLICES} compute and "
                    f"{_MEMORY_SLICES} memory slices"
                )
            start = 4 if profile.slices == 3 and 4 in free else free[0]
            used.update(range(start, start + profile.memory_slices))
    return None


def option_keys() -> dict[str, tuple[str, str]]:
    """The keys of a description: name to (kind, what it does)."""
    found = {}
    index = 0
    while entry := lib.nvs_core_option(index):
        found[_string(entry.key)] = (_string(entry.kind), _string(entry.help))
        index += 1
    return found


@dataclass(frozen=True)
class Simulation:
    """A description that was found to be in order: `text` is the simulator's to read."""

    text: str
    profile: str
    count: int
    symbols: str
    keys: tuple[tuple[str, str], ...] = ()

    def with_minors(self, minors: list[int]) -> str:
        """The description of the same GPUs of which only those with these minor numbers can be used: as for NVIDIA's
        library, the others do not exist. Raises ValueError where that leaves none."""
        keys = dict(self.keys)
        all_ = keys["minors"].split("+") if "minors" in keys else [str(index) for index in range(self.count)]
        shown = keys["visible"].split("+") if "visible" in keys else [str(index) for index in range(self.count)]
        kept = [index for index in shown if int(index) < len(all_) and int(all_[int(index)]) in minors]
        if not kept:
            raise ValueError(f"none of the simulated GPUs has one of these minor numbers; theirs are {', '.join(all_)}")
        keys["visible"] = "+".join(kept)
        return ",".join([self.text.split(",")[0], *(f"{key}={value}" for key, value in keys.items())])

    @functools.cached_property
    def library(self) -> Path:
        """The simulator's ``libnvidia-ml.so.1``, inside this package."""
        return lib_folder() / ("" if self.symbols == "all" else self.symbols) / "libnvidia-ml.so.1"


def lib_folder() -> Path:
    """Where the simulator's libraries lie."""
    return Path(__file__).parent / "sim"


@functools.lru_cache(maxsize=32)  # each restart of a worker asks for it
def parse(description: str) -> Simulation:
    """Checks a description of simulated GPUs.

    Raises ValueError, which names the part that is wrong and what may stand there.
    """
    if len(description.encode()) > MAX_LENGTH:
        raise ValueError(f"simulate={description[:40]!r}…: {len(description)} characters; expected up to {MAX_LENGTH}")
    head, *rest = description.split(",")
    known = profiles()
    match = re.fullmatch(r"([a-z0-9]+?)(?:x([0-9]+))?", head)
    if match is None or match[1] not in known:
        raise ValueError(
            f"simulate={description!r}: {head!r} is no GPU that can be simulated; expected one of "
            f"{', '.join(sorted(known))}, perhaps with a number of GPUs, as in 'h100x8'"
        )
    count = int(match[2]) if match[2] else 1
    if not 1 <= count <= MAX_GPUS:
        raise ValueError(f"simulate={description!r}: {count} GPUs; expected 1 to {MAX_GPUS}")
    keys = option_keys()
    seen: dict[str, str] = {}
    for part in rest:
        key, equals, value = part.partition("=")
        if key not in keys or not equals:
            raise ValueError(
                f"simulate={description!r}: {part!r} is not key=value with a known key; expected one of "
                f"{', '.join(sorted(keys))}"
            )
        if key in seen:
            raise ValueError(f"simulate={description!r}: {key} is given twice")
        kind = keys[key][0]
        pattern, expected = _KINDS[kind]
        if not pattern.fullmatch(value):
            raise ValueError(f"simulate={description!r}: {key}={value!r}; expected {expected}")
        if len(value) > MAX_TEXT.get(kind, MAX_LENGTH):
            raise ValueError(f"simulate={description!r}: {key} is too long; expected up to {MAX_TEXT[kind]} characters")
        seen[key] = value
    _check_values(description, match[1], count, seen)
    return Simulation(description, match[1], count, seen.get("symbols", "all"), tuple(seen.items()))


def _check_values(description: str, profile: str, count: int, seen: dict[str, str]) -> None:
    """What depends on the GPU model or on their number."""
    product = profiles()[profile]
    if "mig" in seen:
        known = mig_profiles(profile)
        able = [name for name in profiles() if mig_profiles(name)]
        if not known:
            raise ValueError(
                f"simulate={description!r}: {product} has no MIG; leave mig= out or take one of {', '.join(able)}"
            )
        problem = _layout_problem(seen["mig"], known)
        if problem is not None:
            raise ValueError(f"simulate={description!r}: mig={seen['mig']!r}: {product} {problem}")
    for key in ("visible", "lost"):
        indexes = [int(index) for index in seen.get(key, "").split("+") if index]
        for index in indexes:
            if index >= count:
                raise ValueError(
                    f"simulate={description!r}: {key}={seen[key]} names GPU {index}; there are 0 to {count - 1}"
                )
        if len(indexes) > MAX_GPUS:
            raise ValueError(f"simulate={description!r}: {key}={seen[key]} names a GPU twice")
    if "minors" in seen:
        minors = [int(minor) for minor in seen["minors"].split("+")]
        if len(minors) != count or len(set(minors)) != count or max(minors) > MAX_MINOR:
            raise ValueError(
                f"simulate={description!r}: minors={seen['minors']}; expected {count} different "
                f"number{'s' if count > 1 else ''} from 0 to {MAX_MINOR}, one for each GPU"
            )
    if int(seen.get("procs", 0)) > MAX_PROCS:
        raise ValueError(f"simulate={description!r}: procs={seen['procs']}; expected 0 to {MAX_PROCS}")
