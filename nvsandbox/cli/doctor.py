# SPDX-License-Identifier: Apache-2.0
"""``nvsandbox doctor``: what isolation is possible here, and what is wrong."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

import nvsandbox
from nvsandbox import options as options_
from nvsandbox.cli import completing, failure, jsontext, places, wording

if TYPE_CHECKING:
    from nvsandbox.doctor import Report

EXIT_FINDINGS = 1

_STYLES = {"ok": "green", "info": "cyan", "warning": "yellow", "error": "red"}


@click.command()
@places.places()
@click.option(
    "--simulate",
    shell_complete=completing.gpus,
    metavar="GPUS",
    help="Ask simulated GPUs, and leave out what concerns a driver.",
)
@click.option(
    "--wait",
    metavar="SECONDS",
    callback=wording.number(float, "seconds, such as 5, at most 3600", most=3600),
    help="How long NVML gets to answer; past that is an error.  [default: 1, a warning]",
)
@click.option("--json", "as_json", is_flag=True, help="JSON for programs; docs/cli/doctor.md describes it.")
def doctor(as_json: bool, wait: float | None, **given: Any) -> None:
    """Examine this machine: isolation, driver, libraries, nodes.

    Says which isolation is possible and what more would need, what is wrong, and what to do first. Each finding has
    an id; docs/doctor.md has a section for each. Nothing is changed: no node is made, no module loaded.

    \b
    Examples:
      nvsandbox doctor
      nvsandbox doctor --driver-root /run/nvidia/driver
      nvsandbox doctor --json | jq '.findings[] | select(.severity == "error")'

    \b
    Exit status: 0 fine; 1 at least one finding of severity error; 2 wrong usage;
    3 could not examine.
    """
    from nvsandbox import doctor as doctor_  # the other commands do without

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    try:
        try:
            options = options_.make({name: value for name, value in given.items() if value is not None})
        except (TypeError, ValueError) as error:
            raise click.UsageError(wording.as_options(str(error))) from error
        report = doctor_.examine(doctor_.Places.here(options), wait)
    except (click.UsageError, *failure.EXPECTED) as error:
        if as_json:
            click.echo(jsontext.dumps(failure.as_json(error), indent=2))
        raise
    code = EXIT_FINDINGS if report.severity == "error" else 0
    if as_json:
        click.echo(jsontext.dumps(report_json(report, code), indent=2, allow_nan=False))
    elif sys.stdout.isatty():
        _table(report)
    else:
        _lines(report)
    if any(finding.id in ("query.slow", "query.hung") for finding in report.findings):
        # NVML hangs in its worker. The end of this process ends that too; to close it in good order would wait for it.
        sys.stdout.flush()
        os._exit(code)
    sys.exit(code)


def report_json(report: Report, code: int) -> dict[str, Any]:
    """The object that ``--json`` prints."""
    counts = dict.fromkeys(_STYLES, 0)
    for finding in report.findings:
        counts[finding.severity] += 1
    return {
        "nvsandbox_version": nvsandbox.__version__,
        "exit_code": code,
        "severity": report.severity,
        "counts": counts,
        "verdict": report.verdict.as_json(),
        "findings": [finding.as_json() for finding in report.findings],
    }


def _printable(text: str) -> str:
    """Paths and names may hold anything; nothing may move the cursor or break the line."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def _closing(report: Report) -> list[str]:
    lines = list(report.verdict.sentences)
    if report.verdict.first:
        lines.append("First:")
        lines += [f"  {number}. {text}" for number, text in enumerate(report.verdict.first, 1)]
    return [_printable(line) for line in lines]


def _lines(report: Report) -> None:
    width = max(len(finding.id) for finding in report.findings)
    for finding in report.findings:
        click.echo(f"{finding.severity:<7}  {finding.id:<{width}}  {_printable(finding.what)}")
        if finding.do:
            click.echo(f"{'':<7}  {'':<{width}}  -> {_printable(finding.do)}")
    click.echo()
    for line in _closing(report):
        click.echo(line)


def _table(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    grid = Table(box=None, padding=(0, 1), show_header=False, pad_edge=False)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold", ratio=1)
    for finding in report.findings:
        what = Text(_printable(finding.what))
        what.append(f"  {finding.id}", style="dim")
        if finding.do:
            what.append(f"\n→ {_printable(finding.do)}", style="italic")
        grid.add_row(Text(finding.severity, style=_STYLES[finding.severity]), what)
    console.print(grid)
    console.print()
    for line in _closing(report):
        console.print(Text(line), soft_wrap=True)
