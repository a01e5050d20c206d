# SPDX-License-Identifier: Apache-2.0
"""The GPUs as text for people: a table for terminals, lines for everything else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nvsandbox.cli.view import of_gpu, told
from nvsandbox.inventory import GPU, Failure, MigDevice, System

if TYPE_CHECKING:
    from rich.console import Console

NA = "N/A"
_MIB = 1 << 20


@dataclass(frozen=True)
class Report:
    """What a query found."""

    about: dict[str, Any]
    """Of the sandbox."""
    system: System
    gpus: list[GPU]

    def totals(self) -> dict[str, int | None]:
        """Sums over the GPUs that say both their total and their used memory; None where none does."""
        known = [
            (gpu.memory_total_bytes, gpu.memory_used_bytes)
            for gpu in self.gpus
            if gpu.memory_total_bytes is not None and gpu.memory_used_bytes is not None
        ]
        return {
            "gpus": len(self.gpus),
            "gpus_with_memory": len(known),
            "memory_total_bytes": sum(total for total, _ in known) if known else None,
            "memory_used_bytes": sum(used for _, used in known) if known else None,
        }


# ---- values ----------------------------------------------------------------------------------------------------


def text(value: object) -> str:
    """A value for people."""
    if value is None:
        return NA
    # A name is whatever the driver says: nothing in it may move the cursor or break the line.
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in str(value))


def mib(value: int | None) -> str:
    """Bytes in MiB."""
    return NA if value is None else str(round(value / _MIB))


def _unit(value: float | None, unit: str, scale: int = 1) -> str:
    return NA if value is None else f"{value / scale:.0f} {unit}"


def _watts(milliwatts: int | None) -> str:
    return NA if milliwatts is None else f"{milliwatts / 1000:.0f}"


def _mig(gpu: GPU) -> str:
    if gpu.mig_enabled is None:
        return NA
    return f"on, {len(gpu.mig_devices or ())}" if gpu.mig_enabled else "off"


def _node(gpu: GPU) -> str:
    return NA if gpu.minor_number is None else f"/dev/nvidia{gpu.minor_number}"


def _failures(gpu: GPU) -> list[Failure]:
    """What could not be read of a GPU and its MIG devices, less what stands for the GPU as a whole."""
    whole = None if gpu.error is None else (gpu.error.code, gpu.error.message)
    devices = [failure for device in gpu.mig_devices or () for failure in device.errors]
    return [failure for failure in (*gpu.errors, *devices) if (failure.code, failure.message) != whole]


def _status(gpu: GPU) -> str:
    if gpu.error is not None:
        return text(gpu.error.message)
    return "partial" if _failures(gpu) else "ok"


def _heading(report: Report) -> str:
    system = report.system
    simulated = report.about["simulate"]
    source = "" if simulated is None else f", simulated: {simulated}"
    return (
        f"driver {text(system.driver_version)}, NVML {text(system.nvml_version)}, CUDA {text(system.cuda_version)}, "
        f"isolation {report.about['isolation']}{source}"
    )


def _sum(report: Report) -> str:
    totals = report.totals()
    count = len(report.gpus)
    known = totals["gpus_with_memory"]
    text = f"{count} GPU{'' if count == 1 else 's'}"
    total, used = totals["memory_total_bytes"], totals["memory_used_bytes"]
    if total is not None and used is not None:
        text += f", {mib(used)} of {mib(total)} MiB used"
        if known != count:
            text += f" (only {known} of them report{'s' if known == 1 else ''} memory)"
    return text


# ---- lines -----------------------------------------------------------------------------------------------------


def aligned(rows: Sequence[Sequence[str]], gap: str = "  ") -> Iterator[str]:
    """Rows as lines, in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield gap.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _cells(gpu: GPU) -> tuple[str, ...]:
    """What the lines and the wide table say of a GPU in the same words."""
    return (
        text(gpu.name),
        text(gpu.uuid),
        text(gpu.pci_bus_id),
        mib(gpu.memory_used_bytes),
        mib(gpu.memory_free_bytes),
        mib(gpu.memory_reserved_bytes),
        mib(gpu.memory_total_bytes),
        text(gpu.utilization_gpu_percent),
        text(gpu.utilization_memory_percent),
        text(gpu.temperature_celsius),
    )


def plain(report: Report) -> Iterator[str]:
    """One line for each GPU, then one for each MIG device; cells are two or more spaces apart."""
    yield _heading(report)
    rows: list[tuple[str, ...]] = [_GPU_HEADS]
    for gpu in report.gpus:
        rows.append(
            (
                str(gpu.index),
                _node(gpu),
                *_cells(gpu),
                _watts(gpu.power_milliwatts),
                _watts(gpu.power_limit_milliwatts),
                _mig(gpu),
                _status(gpu),
            )
        )
    yield from aligned(rows)
    migs = [(gpu, device) for gpu in report.gpus for device in gpu.mig_devices or ()]
    if migs:
        yield ""
        yield from aligned([_MIG_HEADS, *(_mig_row(gpu, device) for gpu, device in migs)])
    yield ""
    yield _sum(report)


_GPU_HEADS = (
    *("GPU", "NODE", "NAME", "UUID", "BUS ID", "USED MiB", "FREE MiB", "RESERVED MiB", "TOTAL MiB"),
    *("GPU %", "MEM %", "TEMP C", "POWER W", "LIMIT W", "MIG", "STATUS"),
)
_MIG_HEADS = ("GPU", "MIG", "GI", "CI", "NAME", "UUID", "USED MiB", "FREE MiB", "RESERVED MiB", "TOTAL MiB")


def _mig_row(gpu: GPU, device: MigDevice) -> tuple[str, ...]:
    return (
        str(gpu.index),
        str(device.index),
        text(device.gpu_instance_id),
        text(device.compute_instance_id),
        text(device.name),
        text(device.uuid),
        mib(device.memory_used_bytes),
        mib(device.memory_free_bytes),
        mib(device.memory_reserved_bytes),
        mib(device.memory_total_bytes),
    )


# ---- table -----------------------------------------------------------------------------------------------------

_DEVICE_WIDTH = 40  # a UUID
_TABLE_WIDTH = 78


def table(report: Report, console: Console) -> None:
    """For a terminal: a line for each GPU where it is wide enough for that, else blocks of 78 columns."""
    # Here, for nobody else needs it and it takes a while to import.
    from rich.table import Table
    from rich.text import Text

    lines = _wide(report, console.width)
    if lines is not None:
        for line in (_heading(report), "", *lines, _sum(report)):
            console.print(Text(line), soft_wrap=True)
        return
    if console.width < _TABLE_WIDTH:
        # The terminal then breaks lines, which is ugly; cells that are cut would be wrong.
        console.width = _TABLE_WIDTH
    grid = Table(title=None, box=None, padding=(0, 1), header_style="bold", collapse_padding=True)
    grid.add_column("GPU", justify="right")
    grid.add_column("Device", overflow="fold", width=_DEVICE_WIDTH)
    grid.add_column("Memory, MiB", justify="right", no_wrap=True)
    grid.add_column("State", justify="right", no_wrap=True)
    for gpu in report.gpus:
        device = Text.assemble((text(gpu.name), "bold"))
        if gpu.error is None:
            device.append(f"\n{text(gpu.uuid)}\n{text(gpu.pci_bus_id)}\n{_node(gpu)}, MIG {_mig(gpu)}")
            if _failures(gpu):
                device.append(f"\npartial, without {', '.join(sorted({f.field for f in _failures(gpu)}))}", style="red")
        else:
            device.append(f"\ncannot be queried: {text(gpu.error.message)}", style="red")
        grid.add_row(str(gpu.index), device, _memory(gpu), _state(gpu))
        for mig in gpu.mig_devices or ():
            name = Text(f"{text(mig.name)}\n{text(mig.uuid)}")
            grid.add_row(f"{gpu.index}.{mig.index}", name, _memory(mig, brief=True), "")
        grid.add_row()
    console.print(Text(_heading(report)))
    console.print()
    if report.gpus:
        console.print(grid)
    console.print(Text(_sum(report)))


_WIDE_HEADS = (
    *("GPU", "NODE", "NAME", "UUID", "BUS ID", "MiB USED", "FREE", "RSVD", "TOTAL"),
    *("GPU%", "MEM%", "°C", "WATTS", "MIG", "STATUS"),
)
_WIDE_WIDTH = 160


def _wide(report: Report, width: int) -> list[str] | None:
    """A line for each GPU and each MIG device, or None if one of them has more than `width` columns."""
    if width < _WIDE_WIDTH or not report.gpus:
        return None
    rows: list[Sequence[str]] = [_WIDE_HEADS]
    for gpu in report.gpus:
        rows.append(
            (
                str(gpu.index),
                _node(gpu).removeprefix("/dev/"),
                *_cells(gpu),
                f"{_watts(gpu.power_milliwatts)}/{_watts(gpu.power_limit_milliwatts)}",
                _mig(gpu),
                "failed" if gpu.error is not None else _status(gpu),  # the reason is on stderr
            )
        )
    migs = [_mig_row(gpu, device) for gpu in report.gpus for device in gpu.mig_devices or ()]
    for gap in ("  ", " "):
        lines = [*aligned(rows, gap), ""]
        if migs:
            lines += [*aligned([_MIG_HEADS, *migs]), ""]
        if max(map(len, lines)) <= width:
            return lines
    return None


def _memory(of: GPU | MigDevice, brief: bool = False) -> str:
    lines = [f"{mib(of.memory_used_bytes)} used"]
    if not brief:
        lines += [f"{mib(of.memory_free_bytes)} free", f"{mib(of.memory_reserved_bytes)} reserved"]
    return "\n".join([*lines, f"{mib(of.memory_total_bytes)} total"])


def _state(gpu: GPU) -> str:
    return "\n".join(
        (
            f"{_unit(gpu.utilization_gpu_percent, '%')} GPU",
            f"{_unit(gpu.utilization_memory_percent, '%')} memory",
            _unit(gpu.temperature_celsius, "°C"),
            f"{_watts(gpu.power_milliwatts)} of {_unit(gpu.power_limit_milliwatts, 'W', 1000)}",
        )
    )


# ---- what went wrong --------------------------------------------------------------------------------------------


def problems(report: Report) -> Iterator[str]:
    """What could not be read and why."""
    yield from told(
        [
            ("driver", report.system.errors),
            *((f"GPU {gpu.index}", of_gpu(gpu.error, gpu.errors)) for gpu in report.gpus),
            *(
                (f"MIG device {gpu.index}.{device.index}", device.errors)
                for gpu in report.gpus
                for device in gpu.mig_devices or ()
            ),
        ]
    )
