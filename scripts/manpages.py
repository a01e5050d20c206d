# SPDX-License-Identifier: Apache-2.0
"""manpages.py [DIR]: the manual pages, made from the commands' own help, in DIR (default: man/).

They are committed, for the package is built without being imported; a test compares them with what this makes.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import click

import nvsandbox
from nvsandbox import cli

ROOT = Path(__file__).resolve().parents[1]

ENVIRONMENT = """\
.TP
.BR NVSANDBOX_DRIVER_ROOT ", " NVIDIA_DRIVER_ROOT
The default of
.BR \\-\\-driver\\-root .
.TP
.BI NVSANDBOX_ OPTION
The default of another option:
.B NVSANDBOX_SIMULATE
of
.BR \\-\\-simulate ,
and so on.
.TP
.B NVSANDBOX_DEBUG
If 1, errors come with tracebacks and the log of the package.
.TP
.B NO_COLOR
If set, there is no colour on terminals.
"""

NOTES = {
    "nvsandbox run": "The program nvsandbox-run, which does the same by itself and needs no Python, lies in the "
    "package's folder. It has fewer options: nvsandbox-run --help lists them."
}


def roff(text: str) -> str:
    """Text as roff takes it: no character of it is a request, and every hyphen can be copied."""
    text = (
        text.replace("\\", "\\e").replace("-", "\\-").replace("~", "\\(ti").replace("^", "\\(ha").replace("`", "\\(ga")
    )
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in text.splitlines())


def paragraphs(help_text: str) -> Iterable[tuple[bool, str]]:
    """The paragraphs of a command's help, each with whether its lines stay as they are."""
    for block in re.split(r"\n\s*\n", inspect.cleandoc(help_text)):
        kept = block.startswith("\b")
        yield kept, block.removeprefix("\b").strip("\n") if kept else " ".join(block.split())


def context(command: click.Command) -> click.Context:
    """As when it is called by way of the program, which has settings for all commands."""
    program = click.Context(cli.main, **cli.main.context_settings)
    return program if command is cli.main else click.Context(command, parent=program)


def invocation(command: click.Command, name: str) -> str:
    pieces = command.collect_usage_pieces(context(command))
    return f".B {roff(name)}\n{roff(' '.join(pieces))}\n"


def option(parameter: click.Option) -> str:
    metavar = parameter.make_metavar(click.Context(click.Command("none")))
    names = []
    for name in sorted((*parameter.opts, *parameter.secondary_opts), key=lambda name: name.startswith("--")):
        shown = f"\\fB{roff(name)}\\fR"
        if not parameter.is_flag and not parameter.count and name == (parameter.opts[-1]):
            joined = "" if metavar.startswith("[=") else " "
            shown += f"{joined}\\fI{roff(metavar)}\\fR"
        names.append(shown)
    record = parameter.get_help_record(click.Context(click.Command("none")))
    text = "" if record is None else record[1]
    return f".TP\n{', '.join(names)}\n{roff(text)}\n"


def page(command: click.Command, name: str, others: list[str]) -> str:
    """The manual page of a command as roff text."""
    title = name.replace(" ", "-")
    body = list(paragraphs(command.help or ""))
    first = body[0][1]
    parts = [
        '.\\" SPDX-License-Identifier: Apache-2.0',
        '.\\" Made by scripts/manpages.py from the help of the command: change that instead.',
        f'.TH {title.upper().replace("-", chr(92) + "-")} 1 "" "nvsandbox {nvsandbox.__version__}" "nvsandbox manual"',
        ".nh",
        ".ad l",
        ".SH NAME",
        f"{roff(title)} \\- {roff(short(first))}",
        ".SH SYNOPSIS",
        invocation(command, name).rstrip(),
        ".SH DESCRIPTION",
    ]
    sections: list[tuple[str, str]] = []
    for kept, text in body:
        heading, _, rest = text.partition("\n")
        if kept and heading.strip() == "Examples:":
            sections.append(("EXAMPLES", f".EX\n{roff(dedented(rest))}\n.EE"))
        elif kept and heading.startswith("Exit status"):
            status = " ".join(text.split()).removeprefix("Exit status: ")
            sections.append(("EXIT STATUS", roff(status[0].upper() + status[1:])))
        else:
            parts.append(f".PP\n{roff(text)}")
    parameters = [each for each in command.get_params(context(command)) if isinstance(each, click.Option)]
    parts += [".SH OPTIONS", "".join(map(option, parameters)).rstrip()]
    if isinstance(command, click.Group):
        parts.append(".SH COMMANDS")
        for child, each in sorted(command.commands.items()):
            summary = next(iter(paragraphs(each.help or "")))[1]
            parts.append(f".TP\n.BR nvsandbox\\-{roff(child)} (1)\n{roff(short(summary))}")
    for heading in ("EXIT STATUS", "EXAMPLES"):
        parts += [f".SH {heading}\n{text}" for this, text in sections if this == heading]
    if name in NOTES:
        parts.append(f".SH NOTES\n{roff(NOTES[name])}")
    parts += [".SH ENVIRONMENT", ENVIRONMENT.rstrip(), ".SH SEE ALSO"]
    parts.append("\n".join(f".BR {roff(other)} (1)," for other in others if other != title).removesuffix(","))
    return "\n".join(parts) + "\n"


def short(text: str) -> str:
    """The first sentence, as a line of ``whatis`` wants it."""
    return text.split(". ")[0].removesuffix(".")


def dedented(text: str) -> str:
    return "\n".join(line.removeprefix("  ") for line in text.splitlines())


def pages() -> dict[str, str]:
    """All manual pages, by file name."""
    commands = {
        "nvsandbox": cli.main,
        **{f"nvsandbox {name}": each for name, each in sorted(cli.main.commands.items())},
    }
    titles = [name.replace(" ", "-") for name in commands]
    return {f"{name.replace(' ', '-')}.1": page(command, name, titles) for name, command in commands.items()}


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "man"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")
