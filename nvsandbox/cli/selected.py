# SPDX-License-Identifier: Apache-2.0
"""``--query-gpu`` and ``--query-compute-apps``: chosen fields as CSV, as nvidia-smi writes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from nvsandbox import fields, forms
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
        raise click.UsageError("--json and --format exclude each other: chosen fields are CSV")


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


# ---- compute processes -------------------------------------------------------------------------------------------

Cell = Callable[[Process, dict[str, str], Names], str | None]


@dataclass(frozen=True)
class _Column:
    name: str
    unit: str
    cell: Cell


def _memory(process: Process, gpu: dict[str, str], names: Names) -> str | None:
    return None if process.used_memory_bytes is None else forms.mib(process.used_memory_bytes)


def _name(process: Process, gpu: dict[str, str], names: Names) -> str | None:
    name = names.of(process.pid)
    return None if name is None else forms.text(name)


def _of_gpu(name: str) -> Cell:
    return lambda process, gpu, names: gpu[name]


# The fields that are the GPU's, by their names there.
_OF_GPU = {"timestamp": "timestamp", "gpu_name": "name", "gpu_bus_id": "pci.bus_id", "gpu_serial": "serial",
           "gpu_uuid": "uuid"}  # fmt: skip
_COLUMNS = {
    **{name: _Column(name, "", _of_gpu(name)) for name in _OF_GPU},
    "pid": _Column("pid", "", lambda process, gpu, names: str(process.pid)),
    "process_name": _Column("process_name", "", _name),
    "used_gpu_memory": _Column("used_gpu_memory", "MiB", _memory),
}
_ALIASES = {"name": "process_name", "used_memory": "used_gpu_memory"}
APP_FIELDS = {name: tuple(alias for alias, full in _ALIASES.items() if full == name) for name in _COLUMNS}
"""The fields of ``--query-compute-apps``, with other names that they have."""


class ComputeApps(_Csv):
    """``--query-compute-apps``."""

    def __init__(self, names: str, indexes: Sequence[int] | None, style: Style) -> None:
        super().__init__(indexes, style)
        known = {**_COLUMNS, **{alias: _COLUMNS[name] for alias, name in _ALIASES.items()}}
        self._columns: list[_Column] = [fields.named(name.strip(), known) for name in names.split(",")]

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

    def _read_gpu(self, nvml: Any, index: int, count: int, names: Names, lines: Lines) -> None:
        wanted = [column.name for column in self._columns if column.name in _OF_GPU]
        row = Row(nvml, index, count, fields.find(_OF_GPU[name] for name in wanted), Driver(0), self.style)
        lines.problems += [f"GPU {index}: {trouble}" for trouble in dict.fromkeys(row.troubles)]
        if row.asker is None:
            return
        asker: Asker = row.asker
        try:
            processes = running(asker, ["compute"])
        except GivenUp:
            processes = None
        lines.problems += [f"GPU {index}: no processes: {failure.message}" for failure in asker.errors]
        gpu = dict(zip(wanted, row.cells, strict=True))
        for process in processes or ():
            lines.rows.append(", ".join(self._cell(column, process, gpu, names) for column in self._columns))

    def _cell(self, column: _Column, process: Process, gpu: dict[str, str], names: Names) -> str:
        text = column.cell(process, gpu, names)
        if text is None:
            return forms.ABSENT
        return f"{text} {column.unit}" if column.unit and self.style.units else text


NO_NAMES = (
    "no names of processes: NVML's pids are those of the initial pid namespace, and in this one they may be other "
    "processes'"
)
