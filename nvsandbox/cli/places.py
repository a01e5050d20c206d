# SPDX-License-Identifier: Apache-2.0
"""The options that say where the driver's things are, for the commands that have them; and a list's parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from nvsandbox.cli import completing

_F = TypeVar("_F", bound=Callable[..., Any])


def places(
    driver_root: str = "Root of the tree with the driver's libraries.  [default: /]",
    library: str = "The libnvidia-ml.so.1 to load.  [default: searched for]",
) -> Callable[[_F], _F]:
    """Adds ``--driver-root``, ``--dev-root`` and ``--library`` to a command, with these words in its help."""
    folder, file = completing.folder, completing.file
    options = (
        click.option("--driver-root", metavar="DIR", shell_complete=folder, help=driver_root),
        click.option(
            "--dev-root",
            metavar="DIR",
            shell_complete=folder,
            help="Root whose dev/ has the nodes.  [default: the driver root or /]",
        ),
        click.option("--library", metavar="FILE", shell_complete=file, help=library),
    )

    def add(command: _F) -> _F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def parts(context: click.Context, parameter: click.Parameter, value: str | None) -> list[str] | None:
    """The callback of an option whose value is a list with commas."""
    return None if value is None else [item.strip() for item in value.split(",")]
