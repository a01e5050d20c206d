# SPDX-License-Identifier: Apache-2.0
"""What ``nvsandbox nodes`` prints for people: a table on a terminal, lines elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence

import click

from nvsandbox.cli.wording import shown
from nvsandbox.hostnodes import Survey
from nvsandbox.nodenames import Finding, Node, counted
from nvsandbox.noderemoval import Result, Step, describe
from nvsandbox.nodeundo import Restored

_HEADS = ("NODE", "IS", "MODE", "OWNER", "STATE")
_TOLD_MAX = 6
"""Different things that are told of one kind of finding: there can be thousands of nodes."""
_STYLES = {"unwanted": "yellow", "error": "red", "warning": "yellow"}


def _is(node: Node) -> str:
    if node.target is not None:
        return f"-> {node.target}"
    return node.kind if node.number is None else f"{node.kind} {node.number[0]}:{node.number[1]}"


def _state(node: Node) -> str:
    if node.unwanted:
        return "unwanted"
    severities = {finding.severity for finding in node.findings}
    return next((severity for severity in ("error", "warning") if severity in severities), "ok")


def _row(survey: Survey, node: Node) -> tuple[str, ...]:
    mode = "" if node.target is not None else f"{node.mode:04o}"
    cells = (os.path.join(survey.dev, node.path), _is(node), mode, f"{node.uid}:{node.gid}", _state(node))
    return tuple(map(shown, cells))


def heading(survey: Survey) -> str:
    """One line: where the driver and its nodes are."""
    driver = survey.driver
    if not driver.loaded:
        return f"{survey.dev}: NVIDIA's driver is not loaded"
    name = f"driver {driver.version or 'of unknown version'}"
    gpus = f"{len(driver.gpus)} GPU{'' if len(driver.gpus) == 1 else 's'}"
    where = "the host's" if survey.dev_root is None else f"in a container, with its nodes in {survey.dev_root}"
    return f"{survey.dev}: {name}, {gpus}, {where}"


def _grouped(pairs: Iterable[tuple[str, Finding]]) -> Iterable[tuple[list[str], Finding]]:
    """What is said of several nodes, and helps all of them, once, with all of them."""
    groups: dict[tuple[str, str, str], tuple[list[str], Finding]] = {}
    for path, finding in pairs:
        groups.setdefault((finding.id, finding.what, finding.remedy), ([], finding))[0].append(path)
    return groups.values()


def _some(paths: list[str]) -> str:
    return ", ".join(paths[:4]) + (f" and {len(paths) - 4} more" if len(paths) > 4 else "")


def _explanations(survey: Survey) -> list[str]:
    lines = []
    told: dict[str, int] = {}
    pairs = ((node.path, finding) for node in survey.nodes for finding in node.findings)
    for paths, finding in _grouped(pairs):
        told[finding.id] = told.get(finding.id, 0) + 1
        if told[finding.id] <= _TOLD_MAX:
            lines.append(f"{finding.severity}: {_some(paths)}: {finding.what} [{finding.id}]")
            lines.append(f"    {finding.remedy}")
    for key, count in told.items():
        if count > _TOLD_MAX:
            lines.append(f"and {count - _TOLD_MAX} more of [{key}]; --json has them all")
    for finding in survey.missing:
        lines.append(f"{finding.severity}: {finding.what} [{finding.id}]")
        lines.append(f"    {finding.remedy}")
    return [shown(line) for line in lines]


def _sum(survey: Survey) -> str:
    unwanted = sum(node.unwanted for node in survey.nodes)
    if not survey.nodes:
        return "no NVIDIA nodes"
    told = f"of which {unwanted} should not be there" if unwanted else "none of them unwanted"
    return f"{counted(survey.nodes)}, {told}"


def show(survey: Survey) -> None:
    """The nodes, then what is the matter with them."""
    rows = [_row(survey, node) for node in survey.nodes]
    if sys.stdout.isatty():
        _table(survey, rows)
        return
    click.echo(shown(heading(survey)))
    widths = [max(map(len, column)) for column in zip(_HEADS, *rows, strict=True)]
    for row in (_HEADS, *rows) if rows else ():
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    for line in _explanations(survey):
        click.echo(line)
    click.echo(_sum(survey))


def _table(survey: Survey, rows: Sequence[tuple[str, ...]]) -> None:
    # Here, for nobody else needs it and it takes a while to import.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text(shown(heading(survey))))
    if rows:
        grid = Table(box=None, padding=(0, 1), header_style="bold", collapse_padding=True)
        for head in _HEADS:
            grid.add_column(head.capitalize(), overflow="fold")
        for row in rows:
            grid.add_row(*(Text(cell, style=_STYLES.get(row[-1], "")) for cell in row))
        console.print(grid)
    for line in _explanations(survey):
        console.print(Text(line, style="" if line.startswith("    ") else _STYLES.get(line.partition(":")[0], "")))
    console.print(Text(_sum(survey)))


def doubt(survey: Survey) -> None:
    """What else may be the case, on stderr."""
    if survey.doubt is not None:
        click.echo(f"note: {shown(survey.doubt)}", err=True)


def unread(reasons: Iterable[str]) -> None:
    """On stderr, what could not be read."""
    for reason in reasons:
        click.echo(f"nvsandbox: not read: {shown(reason)}", err=True)


def plan(dev: str, steps: Sequence[Step]) -> None:
    """What would be done."""
    for step in steps:
        path = os.path.join(dev, step.node.path)
        if step.refusal is None:
            click.echo(shown(f"would remove {path}: {describe(step.node)}"))
        else:
            click.echo(shown(f"would keep {path}: {step.refusal}"))
    if any(step.refusal is None for step in steps):
        click.echo("nothing was changed: add --yes to do it")
    else:
        click.echo("nothing to remove")


def removal(dev: str, result: Result) -> None:
    """What was done, as it is done."""
    verb = "removed" if result.removed else "kept"
    click.echo(shown(f"{verb} {os.path.join(dev, result.path)}: {result.what}"))


def removed(results: Sequence[Result], undo: str) -> None:
    """The last line. `undo` is the command that puts it back."""
    if any(result.removed for result in results):
        click.echo(f"to put it back: {undo}")
    else:
        click.echo("nothing was removed")


def restored(dev: str, result: Restored) -> None:
    """What was put back."""
    where = result.path if result.path.startswith("line ") else os.path.join(dev, result.path)
    click.echo(shown(f"{'put back' if result.done else 'not put back'} {where}: {result.what}"))
