# SPDX-License-Identifier: Apache-2.0
"""``--query-gpu``, ``--query-compute-apps``, ``--query-accounted-apps``: fields as CSV, as nvidia-smi writes it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from nvsandbox import fields, forms
from nvsandbox.accounting import Accounted, accounted, is_on
from nvsandbox.asking import Asker, GivenUp, gpu_count
from nvsandbox.fields import Driver, Row, Style
from nvsandbox.processes import Names, Process, running


@dataclass
class Lines:
    """A table of which the header is written once."""

    rows: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class _Csv:
    appends = True

    def __init__(self, indexes: Sequence[int] | None, style: Style) -> None:
        self.indexes = indexes
        self.style = style
        self._headed = not style.header

    def header(self) -> str:
        raise NotImplementedError

    def lines(self, data: Lines) -> Iterable[str]:
        if not self._headed:
            self._headed = True
            yield self.header()
        yield from data.rows

    def styled(self, data: Lines, console: Any) -> None:
        for line in self.lines(data):
            click.echo(line)

    def problems(self, data: Lines) -> Iterable[str]:
        return data.problems

    def as_json(self, data: Lines) -> dict[str, Any]:
        raise click.UsageError("--json and --format are mutually exclusive: chosen fields are CSV")


class GpuFields(_Csv):
    """``--query-gpu``."""

    def __init__(self, names: str, indexes: Sequence[int] | None, style: Style) -> None:
        super().__init__(indexes, style)
        self._fields = fields.find(names.split(","))
        self._driver: Driver | None = None

    def header(self) -> str:
        return fields.header(self._fields, self._driver or Driver(9999), self.style)

    def read(self, nvml: Any) -> Lines:
        self._driver = self._driver or Driver.of(nvml)
        count = gpu_count(nvml)
        lines = Lines()
        for index in range(count) if self.indexes is None else self.indexes:
            row = Row(nvml, index, count, self._fields, self._driver, self.style)
            lines.rows.append(row.line)
            lines.problems += [f"GPU {index}: {trouble}" for trouble in dict.fromkeys(row.troubles)]
        return lines


# ---- processes ---------------------------------------------------------------------------------------------------

Cell = Callable[[Any, dict[str, str], Names], str | None]


@dataclass(frozen=True)
class _Column:
    name: str
    unit: str
    cell: Cell
    aliases: tuple[str, ...] = ()


def _of_gpu(name: str) -> Cell:
    return lambda process, gpu, names: gpu[name]


def _number(attribute: str, form: forms.Form) -> Cell:
    def cell(process: Any, gpu: dict[str, str], names: Names) -> str | None:
        value = getattr(process, attribute)
        return None if value is None else form(value)

    return cell


def _name(process: Process, gpu: dict[str, str], names: Names) -> str | None:
    name = names.of(process.pid)
    return None if name is None else forms.text(name)


# The fields that are the GPU's, by their names there.
_OF_GPU = {"timestamp": "timestamp", "gpu_name": "name", "gpu_bus_id": "pci.bus_id", "gpu_serial": "serial",
           "gpu_uuid": "uuid"}  # fmt: skip
_FOR_BOTH = (
    *(_Column(name, "", _of_gpu(name)) for name in _OF_GPU),
    _Column("pid", "", _number("pid", forms.plain)),
)
_COMPUTE = (
    *_FOR_BOTH,
    _Column("process_name", "", _name, ("name",)),
    _Column("used_gpu_memory", "MiB", _number("used_memory_bytes", forms.mib), ("used_memory",)),
)
# Names and units are those of nvidia-smi's help and output. vgpu_instance has a value on hosts of vGPUs alone.
_ACCOUNTED = (
    *_FOR_BOTH,
    _Column("vgpu_instance", "", lambda process, gpu, names: None),
    _Column("gpu_utilization", "%", _number("gpu_utilization_percent", forms.plain), ("gpu_util",)),
    _Column("mem_utilization", "%", _number("memory_utilization_percent", forms.plain), ("mem_util",)),
    _Column("max_memory_usage", "MiB", _number("max_memory_bytes", forms.mib)),
    _Column("time", "ms", _number("time_ms", forms.plain)),
)
APP_FIELDS = {column.name: column.aliases for column in _COMPUTE}
"""The fields of ``--query-compute-apps``, with other names that they have."""
ACCOUNTED_FIELDS = {column.name: column.aliases for column in _ACCOUNTED}
"""Those of ``--query-accounted-apps``."""


class _Apps(_Csv):
    columns: tuple[_Column, ...]

    def __init__(self, names: str, indexes: Sequence[int] | None, style: Style) -> None:
        super().__init__(indexes, style)
        known = {name: column for column in self.columns for name in (column.name, *column.aliases)}
        self._columns = fields.named(names.split(","), known)

    def header(self) -> str:
        return ", ".join(
            f"{column.name} [{column.unit}]" if column.unit and self.style.units else column.name
            for column in self._columns
        )

    def read(self, nvml: Any) -> Lines:
        lines = Lines()
        names = Names(nvml)
        count = gpu_count(nvml)
        for index in range(count) if self.indexes is None else self.indexes:
            self._read_gpu(nvml, index, count, names, lines)
        if not names.usable and lines.rows and any(column.name == "process_name" for column in self._columns):
            lines.problems.append(NO_NAMES)
        return lines

    def processes(self, asker: Asker, problems: list[str]) -> Sequence[Any]:
        """Those of one GPU. Raises GivenUp."""
        raise NotImplementedError

    def _read_gpu(self, nvml: Any, index: int, count: int, names: Names, lines: Lines) -> None:
        wanted = [column.name for column in self._columns if column.name in _OF_GPU]
        row = Row(nvml, index, count, fields.find(_OF_GPU[name] for name in wanted), Driver(0), self.style)
        lines.problems += [f"GPU {index}: {trouble}" for trouble in dict.fromkeys(row.troubles)]
        if row.asker is None:
            return
        problems: list[str] = []
        processes: Sequence[Any] = ()
        with contextlib.suppress(GivenUp):
            processes = self.processes(row.asker, problems)
        problems += [f"no processes: {failure.message}" for failure in row.asker.errors]
        lines.problems += [f"GPU {index}: {problem}" for problem in dict.fromkeys(problems)]
        gpu = dict(zip(wanted, row.cells, strict=True))
        for process in processes:
            lines.rows.append(", ".join(self._cell(column, process, gpu, names) for column in self._columns))

    def _cell(self, column: _Column, process: Any, gpu: dict[str, str], names: Names) -> str:
        text = column.cell(process, gpu, names)
        if text is None:
            return forms.ABSENT
        return f"{text} {column.unit}" if column.unit and self.style.units else text


class ComputeApps(_Apps):
    """``--query-compute-apps``."""

    columns = _COMPUTE

    def processes(self, asker: Asker, problems: list[str]) -> Sequence[Process]:
        return running(asker, ["compute"]) or ()


class AccountedApps(_Apps):
    """``--query-accounted-apps``."""

    columns = _ACCOUNTED

    def processes(self, asker: Asker, problems: list[str]) -> Sequence[Accounted]:
        on = is_on(asker)
        if on is None:
            if not asker.errors:
                problems.append("this GPU has no accounting mode")
            return ()
        if not on:
            problems.append("accounting mode is off: nvidia-smi --accounting-mode=1 turns it on (as root)")
        # What was counted before it was turned off is still there.
        return accounted(asker) or ()


NO_NAMES = (
    "no names of processes: NVML's pids are those of the initial pid namespace, and in this one they may be other "
    "processes'"
)
