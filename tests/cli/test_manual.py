# SPDX-License-Identifier: Apache-2.0
"""The manual pages are the commands' help, are valid, and come with the package."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import click
import pytest
from host import require

from nvsandbox.cli import main

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "man").glob("*.1"))
COMMANDS = {"nvsandbox": main, **{f"nvsandbox-{name}": command for name, command in main.commands.items()}}


def shown(page: Path) -> str:
    """The page as on a terminal, without what makes it bold."""
    require(shutil.which("groff"), "groff is not installed")
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Kutf8", "-Tutf8", "-rLL=100n", "-P-cbou", str(page)],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    return done.stdout


def test_each_command_has_a_page() -> None:
    assert {page.stem for page in PAGES} == set(COMMANDS)


def test_pages_are_what_the_commands_say() -> None:
    made = runpy.run_path(str(ROOT / "scripts" / "manpages.py"))["pages"]()
    for page in PAGES:
        assert page.read_text() == made[page.name], f"{page.name} is old: make fix"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_the_options_of_its_command(page: Path) -> None:
    text = shown(page)
    for heading in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "EXAMPLES", "ENVIRONMENT", "SEE ALSO"):
        assert f"\n{heading}\n" in text
    command = COMMANDS[page.stem]
    options = text[text.index("\nOPTIONS\n") : text.index("\nEXIT STATUS\n")]
    told = {
        name for line in re.findall(r"^ {5,7}(-\S.*)$", options, re.M) for name in re.findall(r"(?<!\S)--?[\w-]+", line)
    }
    here = {name for each in command.params if isinstance(each, click.Option) for name in each.opts}
    assert told - {"-h", "--help"} == here


def test_the_package_brings_them() -> None:
    installed = [Path(str(file)) for file in metadata.files("nvsandbox") or ()]
    assert {file.name for file in installed if file.parent.name == "man1"} == {page.name for page in PAGES}
