# SPDX-License-Identifier: Apache-2.0
"""Words for people at a command line: errors that speak to Python's callers, and names that others have given."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Sequence
from typing import Any

import click

# An option as Python's callers write it, with or without a value: driver_root='/opt', library=
_KEYWORD = re.compile(
    r"(?<![\w.,-])(driver_root|dev_root|library|isolation|devices|timeout|transport|simulate|lockdown|keep_propagation)="
    r"(?:'([^']*)'|\"([^\"]*)\"|\[([^]]*)\]|(-?[0-9][0-9.]*))?"
)


def as_options(text: str) -> str:
    """An error's words with the options as they are written on the command line."""

    def option(match: re.Match[str]) -> str:
        name, *values = match.groups()
        value = next((value for value in values if value is not None), None)
        flag = f"--{name.replace('_', '-')}"
        return flag if value is None else f"{flag} {shlex.quote(value.replace(', ', ','))}"

    return _KEYWORD.sub(option, text).replace("or None for no limit", "or none for no limit")


def printable(text: str) -> str:
    """Words for a terminal: names, and what a driver says, may hold anything, and nothing may move the cursor.
    Lines stay lines."""
    return "".join(char if char.isprintable() or char == "\n" else "\N{REPLACEMENT CHARACTER}" for char in text)


def shown(text: str) -> str:
    """One line for a terminal. A name is whatever somebody has made of it: nothing in it may move the cursor or begin
    another line, which would look as if it were ours."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def command_line(words: Sequence[str]) -> str:
    """A command to be pasted into a shell, whatever bytes are in its words; it is printable, and one line."""
    return " ".join(shlex.quote(word) if word.isprintable() else _escaped(word) for word in words)


def _escaped(word: str) -> str:
    """As bash, zsh and POSIX 2024 have it: ``$'a\\012b'``."""
    plain = (chr(byte) if 0x20 <= byte < 0x7F and byte not in b"'\\" else f"\\{byte:03o}" for byte in os.fsencode(word))
    return f"$'{''.join(plain)}'"


def number(kind: type[float], expected: str, above: float = 0, most: float = math.inf) -> Any:
    """A callback for an option whose value is a number above one and at most another. `expected` says so in words."""

    def check(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
        if value is None:
            return None
        try:
            found = kind(value)
        except ValueError:
            found = above
        if not above < found <= most:
            raise click.BadParameter(f"{value!r}: expected {expected}")
        return found

    return check
