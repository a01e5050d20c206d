# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/security.md that are made from what tests measure: read, compared with, and written
(scripts/security-tables)."""

from __future__ import annotations

import os
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "security.md"
WRITING = os.environ.get("NVSANDBOX_TEST_WRITE_TABLES") == "1"
"""Whether what is measured is written into the document, in place of being compared with it."""


def rows(heading: str) -> list[list[str]]:
    """The rows of the table that begins with `heading`, that line first."""
    head, *lines = _lines(DOCUMENT.read_text(encoding="utf-8"), heading)
    return [_cells(head), *(_cells(line) for line in lines[1:])]


def compare(heading: str, column: str, measured: dict[str, str]) -> bool:
    """Whether the column says what was measured, row to cell; where tables are written, it does then."""
    if WRITING:
        write(heading, column, measured)
    head, *table = rows(heading)
    return {row[0]: row[head.index(column)] for row in table} == measured


def write(heading: str, column: str, measured: dict[str, str]) -> None:
    """Puts the cells into the column. Rows come and go as they do in what was measured, and in its order."""
    text = DOCUMENT.read_text(encoding="utf-8")
    lines = _lines(text, heading)
    head = _cells(lines[0])
    old = {cells[0]: cells for cells in map(_cells, lines[2:])}
    new = [lines[0], lines[1]]
    for name, cell in measured.items():
        cells = old.get(name) or [name, *[""] * (len(head) - 1)]
        cells[head.index(column)] = cell
        new.append(f"| {' | '.join(cells)} |")
    DOCUMENT.write_text(text.replace("\n".join(lines), "\n".join(new)), encoding="utf-8")


def _lines(text: str, heading: str) -> list[str]:
    return text[text.index(heading) :].split("\n\n")[0].splitlines()


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split(" | ")]
