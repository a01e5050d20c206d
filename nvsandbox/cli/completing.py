# SPDX-License-Identifier: Apache-2.0
"""What shells offer while a command line is typed: scripts for them, and values for options."""

from __future__ import annotations

import os
from collections.abc import Iterable

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, get_completion_class

SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_NVSANDBOX_COMPLETE"  # click's name for the program nvsandbox


@click.command(short_help="Print a script for completion in a shell.")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that makes SHELL complete commands, options and their values: models of simulated GPUs, fields,
    steps of isolation, files.

    \b
    Examples:
      source <(nvsandbox completion bash)      in this shell
      nvsandbox completion bash >/etc/bash_completion.d/nvsandbox
      nvsandbox completion zsh >"${fpath[1]}/_nvsandbox"
      nvsandbox completion fish >~/.config/fish/completions/nvsandbox.fish

    \b
    Exit status: 0; 2 wrong usage.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "nvsandbox", _VARIABLE).source())


class _Bash(BashComplete):
    """bash hands over ``--option=value`` as three words, which click takes for an option with the value ``=``."""

    def get_completion_args(self) -> tuple[list[str], str]:
        arguments, incomplete = super().get_completion_args()
        if arguments[-1:] == ["="]:
            arguments.pop()
        elif incomplete == "=":
            incomplete = ""
        return arguments, incomplete


def register() -> None:
    """Has click use what is here."""
    add_completion_class(_Bash, "bash")


def _of(words: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """Those words that go on from the last comma of what was typed, each with what stands before it."""
    before, comma, begun = incomplete.rpartition(",")
    given = before.split(",")
    return [CompletionItem(f"{before}{comma}{word}") for word in words if word.startswith(begun) and word not in given]


def folder(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The shell knows the folders."""
    return [CompletionItem(incomplete, type="dir")]


def file(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The shell knows the files."""
    return [CompletionItem(incomplete, type="file")]


def gpus(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Simulated GPUs: models, and after a comma the keys."""
    from nvsandbox import testing

    if "," in incomplete:
        return _of((f"{key}=" for key in testing.option_keys()), incomplete)
    return _of((text for model in testing.profiles() for text in (model, f"{model}x8")), incomplete)


def gpu_fields(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Fields of ``--query-gpu``, by all their names."""
    from nvsandbox.field_table import FIELDS

    return _of((name for field in FIELDS for name in (field.name, *field.aliases)), incomplete)


def app_fields(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Fields of ``--query-compute-apps``."""
    from nvsandbox.cli.selected import APP_FIELDS

    return _of((name for field, aliases in APP_FIELDS.items() for name in (field, *aliases)), incomplete)


def accounted_fields(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Fields of ``--query-accounted-apps``."""
    from nvsandbox.cli.selected import ACCOUNTED_FIELDS

    return _of((name for field, aliases in ACCOUNTED_FIELDS.items() for name in (field, *aliases)), incomplete)


def styles(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What ``--format`` takes."""
    return _of(("csv", "noheader", "nounits"), incomplete)


def program(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """A command and its arguments: programs on PATH, then files."""
    if context.params.get(parameter.name or "") or "/" in incomplete:
        return [CompletionItem(incomplete, type="file")]
    found: set[str] = set()
    for path in os.get_exec_path():
        try:
            with os.scandir(path) as entries:
                found |= {entry.name for entry in entries if entry.name.startswith(incomplete)}
        except OSError:
            continue
    return [CompletionItem(name) for name in sorted(found)]
