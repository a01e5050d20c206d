# SPDX-License-Identifier: Apache-2.0
"""Descriptions of simulated GPUs: ``h100x8``, ``a100x2,mig=1g.5gb*7``, ``t4,lost=0``.

What may stand in one is told by the simulator's own tables (csrc/sim/profiles.def and options.def), which the C core
carries; see docs/simulator.md for each key.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from nvsandbox._core import ffi, lib

MAX_GPUS = 16

_U64 = re.compile(r"[0-9]{1,19}")
_KINDS = {
    "u64": (_U64, "a number such as 200"),
    "flag": (re.compile(r"[01]"), "0 or 1"),
    "indexes": (re.compile(r"[0-9]+(\+[0-9]+)*"), "GPU indexes joined by '+', such as 0+2"),
    "layout": (
        re.compile(r"[0-9a-z.+]+?(\*[0-9]+)?(\+[0-9a-z.]+(\*[0-9]+)?)*"),
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


def _mig_profiles(profile: str) -> bool:
    index = 0
    while entry := lib.nvs_core_profile(index):
        if _string(entry.key) == profile:
            return bool(entry.mig)
        index += 1
    return False


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

    @property
    def library(self) -> Path:
        """The simulator's ``libnvidia-ml.so.1``, inside this package."""
        folder = Path(lib_folder())
        return folder / ("" if self.symbols == "all" else self.symbols) / "libnvidia-ml.so.1"


def lib_folder() -> Path:
    """Where the simulator's libraries lie."""
    return Path(__file__).parent / "sim"


def parse(description: str) -> Simulation:
    """Checks a description of simulated GPUs.

    Raises ValueError, which names the part that is wrong and what may stand there.
    """
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
        pattern, expected = _KINDS[keys[key][0]]
        if not pattern.fullmatch(value):
            raise ValueError(f"simulate={description!r}: {key}={value!r}; expected {expected}")
        seen[key] = value
    if "mig" in seen and not _mig_profiles(match[1]):
        raise ValueError(f"simulate={description!r}: {known[match[1]]} has no MIG; leave mig= out or take h100 or a100")
    for key in ("visible", "lost"):
        for index in seen.get(key, "").split("+"):
            if index and int(index) >= count:
                raise ValueError(
                    f"simulate={description!r}: {key}={seen[key]} names GPU {index}; there are 0 to {count - 1}"
                )
    return Simulation(description, match[1], count, seen.get("symbols", "all"), tuple(seen.items()))
