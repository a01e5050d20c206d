# SPDX-License-Identifier: Apache-2.0
"""``nvsandbox query``: the GPUs of this machine."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import asdict
from typing import Any

import click

import nvsandbox
from nvsandbox import inventory
from nvsandbox.cli import failure, listing
from nvsandbox.cli.options import enter_sandbox, sandbox_options


@click.command()
@sandbox_options
@click.option("--json", "as_json", is_flag=True, help="JSON for programs; docs/cli.md describes it.")
def query(as_json: bool, **given: Any) -> None:
    """List GPUs: identity, memory, load, temperature, power, MIG devices.

    A table on a terminal, one line for each GPU elsewhere. What a GPU does not have is N/A; what could not be read
    is N/A too, and the reason is on stderr.

    \b
    Examples:
      nvsandbox query --devices 0,2
      nvsandbox query --json | jq '.gpus[] | {uuid, memory_used_bytes}'
      nvsandbox query --simulate a100x2,mig=1g.5gb*7
    """
    # Terminals without UTF-8 lose a character, not the listing.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    try:
        with contextlib.ExitStack() as stack:
            nvml = enter_sandbox(stack, given)
            report = _report(nvml, processes=as_json)
    except (click.UsageError, *failure.EXPECTED) as error:
        if as_json:
            click.echo(json.dumps(failure.as_json(error), indent=2))
        raise
    if as_json:
        click.echo(json.dumps(report_json(report), indent=2, allow_nan=False))
    elif sys.stdout.isatty():
        listing.table(report)
    else:
        listing.plain(report)
    if not as_json:
        listing.problems(report)


def _report(nvml: Any, processes: bool) -> listing.Report:
    session = nvml.session
    # In this order, for the worker may be another one afterwards.
    isolation, library, simulated = session.isolation, session.library, session.options.simulate
    return listing.Report(
        isolation, library, simulated, inventory.system(nvml), inventory.gpus(nvml, processes=processes)
    )


def report_json(report: listing.Report) -> dict[str, Any]:
    """The object that ``--json`` prints."""
    return {
        "nvsandbox_version": nvsandbox.__version__,
        "isolation": report.isolation,
        "library": report.library,
        "simulate": report.simulate,
        **asdict(report.system),
        "totals": report.totals(),
        "gpus": [asdict(gpu) for gpu in report.gpus],
    }
