# SPDX-License-Identifier: Apache-2.0
"""Words for people at a command line: errors that speak to Python's callers, and names that others have given."""

from __future__ import annotations

import re
import shlex

# An option as Python's callers write it, with or without a value: driver_root='/opt', library=
_KEYWORD = re.compile(
    r"(?<![\w.,-])(driver_root|dev_root|library|isolation|devices|timeout|transport|simulate)="
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
