# SPDX-License-Identifier: Apache-2.0
"""``--query-gpu``: fields by nvidia-smi's names, read and written as nvidia-smi does it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pynvml

from nvsandbox import forms
from nvsandbox.asking import Asker, GivenUp
from nvsandbox.field_table import FIELDS, Field
from nvsandbox.sources import Call, Length, Own, Reading, Source, Value, part_of

_T = TypeVar("_T")

_BY_NAME = {name: field for field in FIELDS for name in (field.name, *field.aliases)}


class UnknownFieldError(ValueError):
    """There is no field of this name. Says so in nvidia-smi's words, and which names are close to it."""


def find(names: Iterable[str]) -> list[Field]:
    """The fields with these names: nvidia-smi's, or NVML's. Raises UnknownFieldError."""
    wanted = [name.strip() for name in names]
    found = {name: field for name in wanted if name not in _BY_NAME and (field := _by_nvml_name(name)) is not None}
    return named(wanted, {**_BY_NAME, **found})


def _by_nvml_name(name: str) -> Field | None:
    """The field that an NVML function answers, whichever of its versions is named; or a field value of NVML's as it is,
    in NVML's units, by the name of its constant (``NVML_FI_DEV_…``). Raises UnknownFieldError where a function answers
    several."""
    if name.startswith("NVML_FI_DEV_") and isinstance(value := getattr(pynvml, name, None), int):
        return Field(name, (), "", Value(value), 0, str, forms.ABSENT, None, None)
    found = [field for field in FIELDS if _unversioned(name) in _functions(field.source)]
    if len(found) > 1:
        several = ", ".join(field.name for field in found)
        raise UnknownFieldError(f'Field "{name}" stands for several, of which one is to be named: {several}.')
    return found[0] if found else None


def _functions(source: Source | None) -> Iterator[str]:
    while isinstance(source, Call | Length):
        yield _unversioned(source.function)
        source = source.older if isinstance(source, Call) else None


def _unversioned(function: str) -> str:
    return re.sub(r"(?<=[a-z])(_v[0-9]+|V[0-9]?)$", "", function)


def named(names: Iterable[str], known: Mapping[str, _T]) -> list[_T]:
    """What has these names. Raises UnknownFieldError, which tells of all that have none."""
    wanted = [name.strip() for name in names]
    unknown = dict.fromkeys(name for name in wanted if name not in known)
    if unknown:
        raise UnknownFieldError(" ".join(_unknown(name, known) for name in unknown))
    return [known[name] for name in wanted]


def _unknown(name: str, known: Iterable[str]) -> str:
    known = list(known)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    # A part of a name is as good a hint as a slip: power.average, temperature.
    close += [other for other in known if name and name in other and other not in close][: 3 - len(close)]
    hint = f" Is it {' or '.join(close)}?" if close else ""
    return f'Field "{name}" is not a valid field to query.{hint}'


@dataclass(frozen=True)
class Style:
    """The modifiers of ``--format``."""

    header: bool = True
    units: bool = True

    @classmethod
    def parse(cls, text: str) -> Style:
        """``csv``, ``noheader`` and ``nounits``, joined by commas. Raises ValueError."""
        words = [word.strip() for word in text.split(",")]
        for word in words:
            if word not in ("csv", "noheader", "nounits"):
                raise ValueError(f"{word!r}: Format modifier is not recognized. Known are csv, noheader and nounits")
        if "csv" not in words:
            raise ValueError(f"{text!r}: Format modifier csv is mandatory: --format={','.join(['csv', *words])}")
        return cls("noheader" not in words, "nounits" not in words)


@dataclass(frozen=True)
class Driver:
    """What the driver's release decides."""

    major: int
    """Of its version; a high number where it cannot be read, for that is a new one."""

    @classmethod
    def of(cls, nvml: Any) -> Driver:
        """The driver that is loaded."""
        asker = Asker(nvml, [])
        try:
            version = asker.ask("driver_version", lambda: asker.text("nvmlSystemGetDriverVersion")) or ""
        except GivenUp:
            version = ""
        match = re.match(r"\d+", version)
        return cls(int(match[0]) if match else 9999)

    def header(self, field: Field) -> str:
        """A field's name, as this release writes it."""
        old = field.renamed_in is not None and self.major < field.renamed_in
        return field.aliases[0] if old else field.name


def header(fields: Sequence[Field], driver: Driver, style: Style) -> str:
    """The line above the values."""
    return ", ".join(
        f"{driver.header(field)} [{field.unit}]" if field.unit and style.units else driver.header(field)
        for field in fields
    )


class Row:
    """The fields of one GPU at one moment.

    `cells` are their values, and `line` all of them. `troubles` are the reasons for what is missing that no cell shows.
    `asker` asks for more of this GPU, and is None where it cannot be asked.
    """

    def __init__(
        self, nvml: Any, index: int, count: int, fields: Sequence[Field], driver: Driver, style: Style
    ) -> None:
        wanted = {field.source for field in fields if isinstance(field.source, Value)}
        self._reading = Reading(nvml, index, count, wanted)
        self.cells = [self._cell(field, driver, style) for field in fields]
        self.line = ", ".join(self.cells)
        self.troubles = self._reading.troubles
        self.asker = self._reading.asker

    def _cell(self, field: Field, driver: Driver, style: Style) -> str:
        if field.deprecated_in is not None and driver.major >= field.deprecated_in:
            return forms.DEPRECATED
        if field.source is None:
            return field.absent
        try:
            value = part_of(self._reading.get(field.source), field.part)
        except pynvml.NVMLError_Uninitialized:
            raise
        except pynvml.NVMLError_NotSupported:
            return field.absent
        except pynvml.NVMLError as error:
            return forms.failed(int(error.value))
        text = None if value is None else field.form(value)
        if text is None:
            return field.absent
        return f"{text} {field.unit}" if field.unit and style.units else text


def described() -> Iterator[tuple[str, str]]:
    """For each field its names, quoted and joined by "or", and where its value comes from."""
    for field in FIELDS:
        names = " or ".join(f'"{name}"' for name in (field.name, *field.aliases))
        yield names, " ".join(filter(None, (_origin(field), field.unit and f"[{field.unit}]")))


def _origin(field: Field) -> str:
    source = field.source
    if isinstance(source, Call | Length):
        return source.function + (f" ({', '.join(map(str, source.given))})" if source.given else "")
    if isinstance(source, Value):
        return f"nvmlDeviceGetFieldValues (field {source.id}{f', scope {source.scope}' if source.scope else ''})"
    if isinstance(source, Own):
        return "of this query"
    return "NVML has no function for it: never available"
