# SPDX-License-Identifier: Apache-2.0
"""The options that all commands share: those of :class:`nvsandbox.nvml_isolated`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import click

from nvsandbox import copies
from nvsandbox.blocks import nvml_isolated
from nvsandbox.cli import completing, places
from nvsandbox.cli.wording import as_options
from nvsandbox.errors import SandboxStartError
from nvsandbox.isolation import CHOICES
from nvsandbox.options import TRANSPORTS

_F = TypeVar("_F", bound=Callable[..., Any])


def _seconds(context: click.Context, parameter: click.Parameter, value: str | None) -> float | str | None:
    if value is None or value == "none":
        return value
    try:
        return float(value)
    except ValueError:
        raise click.BadParameter(f"{value!r}: expected seconds, such as 5, or none for no limit") from None


_OPTIONS = (
    click.option(
        "--simulate",
        metavar="GPUS",
        shell_complete=completing.gpus,
        help="Simulated GPUs instead of a driver: h100x8, a100x2,mig=1g.5gb*7.",
    ),
    places.places(),
    click.option("--isolation", type=click.Choice(CHOICES), help="How NVML is isolated.  [default: auto]"),
    click.option(
        "--devices",
        metavar="LIST",
        callback=places.parts,
        help="Only these GPUs: 0,2 (minor numbers), GPU-…, PCI ids; simulated ones by number.",
    ),
    click.option(
        "--timeout",
        metavar="SECONDS",
        callback=_seconds,
        help="Limit of each NVML call; a start has 60 s.  [default: 30]",
    ),
    click.option("--transport", type=click.Choice(TRANSPORTS), help="How calls reach the worker.  [default: auto]"),
)


def sandbox_options(command: _F) -> _F:
    """Adds the options to a command, which gets them as keyword arguments."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def enter_sandbox(stack: contextlib.ExitStack, given: dict[str, Any]) -> Any:
    """Opens a sandbox with the options that were given, for as long as `stack` is open. The environment has the
    defaults for the others.

    Raises UsageError for a wrong one, and what entering :class:`nvsandbox.nvml_isolated` raises.
    """
    options = {name: value for name, value in given.items() if value is not None}
    if options.get("timeout") == "none":
        options["timeout"] = None
    try:
        block = nvml_isolated(**options)
    except (TypeError, ValueError) as error:
        raise click.UsageError(as_options(str(error))) from error
    copies.check_for_commands()
    try:
        return stack.enter_context(block)
    except OSError as error:  # no descriptors left, no memory, …
        raise SandboxStartError("start", error.errno or 0, str(error.filename or ""), "starting a worker") from error
