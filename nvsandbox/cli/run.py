# SPDX-License-Identifier: Apache-2.0
"""``nvsandbox run``: any program in the sandbox."""

from __future__ import annotations

import os
import sys
from typing import IO, TYPE_CHECKING, Any, NoReturn

import click

from nvsandbox import isolation as ladder
from nvsandbox import options as sandbox
from nvsandbox import run as runner
from nvsandbox.cli import completing, jsontext, places, streams
from nvsandbox.cli.wording import as_options, printable, shown

if TYPE_CHECKING:
    from nvsandbox import parent

_OF_CALLS = ("--timeout", "--transport")
_WITH_VALUE = ("--driver-root", "--dev-root", "--library", "--isolation", "--devices", "--simulate")


class _Run(click.Command):
    """Ends with 125 for wrong usage as well: 2 might be the program's own."""

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> click.Context:
        try:
            return super().make_context(info_name, args, *rest, **extra)
        except click.UsageError as error:
            text = error.format_message()
            if isinstance(error, click.NoSuchOption) and error.option_name in _OF_CALLS:
                text = (
                    f"{error.option_name} is not for run: the program calls NVML by itself, and not through nvsandbox"
                )
            _fail(f"{text} (see nvsandbox run --help)", "UsageError", as_json="--json" in _own(args))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # --report takes a value only with "=", which click has no kind of option for.
        own = _own(args)
        own = ["--report=-" if argument == "--report" else argument for argument in own]
        return super().parse_args(ctx, own + args[len(own) :])


def _own(args: list[str]) -> list[str]:
    """Of the arguments those before the command."""
    index = 0
    while index < len(args) and args[index].startswith("-") and args[index] not in ("--", "-"):
        index += 2 if args[index] in _WITH_VALUE else 1
    return args[:index]


def _fail(message: str, kind: str, exit_code: int = runner.EXIT_FAILED, *, as_json: bool) -> NoReturn:
    """The error on stderr; stdout is the program's. Not by way of click, whose own statuses are others."""
    text = as_options(message)
    if as_json:
        failed = {"type": kind, "nvml_code": None, "message": text, "exit_code": exit_code}
        click.echo(jsontext.dumps({"error": failed}), err=True)
    else:
        click.echo(f"nvsandbox: {printable(text)}", err=True)
    raise click.exceptions.Exit(exit_code)


@click.command(cls=_Run, context_settings={"allow_interspersed_args": False})
@click.option("--isolation", type=click.Choice(ladder.CHOICES), help="How the program is isolated.  [default: auto]")
@click.option("--user", is_flag=True, help="The same as --isolation user: needs no privileges.")
@click.option("--guard", is_flag=True, help="The same as --isolation guard: no /dev of its own.")
@click.option("--lockdown", is_flag=True, help="Also drop capabilities; refuse mounts, namespaces, tracing, modules.")
@click.option("--keep-propagation", is_flag=True, help="What it mounts outside /dev reaches the host.")
@places.places(
    driver_root="Root of the tree with the driver's libraries and nvidia-smi.",
    library="The libnvidia-ml.so.1 that the program is to find.",
)
@click.option(
    "--devices",
    metavar="LIST",
    callback=places.parts,
    help="Only these GPUs: 0,2 (minor numbers), GPU-…, PCI ids.",
)
@click.option(
    "--simulate", shell_complete=completing.gpus, metavar="GPUS", help="Simulated GPUs: h100x8, a100x2,mig=1g.5gb*7."
)
@click.option("--report", metavar="[=FILE]", help="Afterwards say what it did in its /dev, on stderr or in FILE.")
@click.option("--json", "as_json", is_flag=True, help="The report and errors as JSON.")
@click.argument(
    "command", nargs=-1, shell_complete=completing.program, type=click.UNPROCESSED, metavar="-- COMMAND [ARGUMENT]..."
)
def run(
    command: tuple[str, ...],
    user: bool,
    guard: bool,
    lockdown: bool,
    keep_propagation: bool,
    report: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Run any program in the sandbox, with a /dev of its own.

    The program takes the place of nvsandbox: its signals, terminal and exit status are its own.

    \b
    Examples:
      nvsandbox run -- nvidia-smi
      nvsandbox run --driver-root /run/nvidia/driver -- nvidia-smi -L
      nvsandbox run --simulate h100x8 -- nvitop
      nvsandbox run --lockdown --devices 0,2 -- ./exporter --listen :9400
      nvsandbox run --report -- nvidia-smi     what it would have done to the host

    \b
    Exit status: the program's own; 127 no such command; 126 it cannot be
    executed; 125 nvsandbox failed (usage, no sandbox).
    With --report 128+N when signal N ended it.
    """
    try:
        if not command:
            raise ValueError("no command: expected one after the options, as in nvsandbox run -- nvidia-smi")
        options = _options(user, guard, given)
        prepared = runner.prepare(options, command, lockdown, keep_propagation)
        if report is None:
            runner.become(prepared, as_json=as_json)
        status = _reported(prepared, None if report == "-" else report, as_json)
    except runner.RunError as error:
        kind = "SandboxStartError" if error.exit_code == runner.EXIT_FAILED else "CommandError"
        _fail(str(error), kind, error.exit_code, as_json=as_json)
    except (ValueError, TypeError) as error:
        _fail(str(error), "UsageError", as_json=as_json)
    raise click.exceptions.Exit(status)


def _options(user: bool, guard: bool, given: dict[str, Any]) -> sandbox.Options:
    chosen = {name: value for name, value in given.items() if value is not None}
    steps = [step for step, flag in (("user", user), ("guard", guard)) if flag]
    steps += [chosen["isolation"]] if "isolation" in chosen else []
    if len(set(steps)) > 1:
        raise ValueError(
            f"{' and '.join(f'isolation={step!r}' for step in steps)} are mutually exclusive: expected one"
        )
    if steps:
        chosen["isolation"] = steps[0]
    return sandbox.make(chosen)


# ---- --report


def _reported(prepared: runner.Run, path: str | None, as_json: bool) -> int:
    from nvsandbox import parent

    # Before the program runs: what it did cannot be told in a file that cannot be written.
    try:
        file = None if path is None else streams.report_file(path)
    except OSError as error:
        raise runner.RunError(f"--report={path} cannot be written: {error.strerror}") from error

    def execute(connection: int) -> None:
        try:
            os.set_inheritable(connection, True)
            runner.become(prepared, as_json=as_json, report=connection)
        except runner.RunError as error:
            try:
                _fail(str(error), "SandboxStartError", error.exit_code, as_json=as_json)
            except click.exceptions.Exit:
                os._exit(error.exit_code)

    outcome = parent.watch(execute)
    if outcome.isolation is not None:
        try:
            _tell(prepared, outcome, file or sys.stderr, as_json)
        except streams.Unwritable as error:  # the program's exit status is what counts
            click.echo(f"nvsandbox: the report in {printable(error.message)}", err=True)
    if file is not None:
        file.close()
    return outcome.status


def _tell(prepared: runner.Run, outcome: parent.Outcome, file: IO[str], as_json: bool) -> None:
    name = os.fsdecode(prepared.arguments[0])
    difference = outcome.difference
    if as_json:
        lines = [jsontext.dumps(_as_object(prepared, outcome))]
    elif difference is None:
        lines = [f"nvsandbox: {name} had no /dev of its own (isolation {outcome.isolation}): nothing to report"]
    elif not difference:
        lines = [f"nvsandbox: {name} has changed nothing in its /dev (isolation {outcome.isolation})"]
    else:
        lines = [f"nvsandbox: in its own /dev (isolation {outcome.isolation}) and not on the host, {name} has"]
        lines += [f"  created  /dev/{path}: {entry.words()}" for path, entry in difference.created.items()]
        for path, (before, after) in difference.changed.items():
            same = before.words() == after.words()
            lines.append(f"  {'replaced' if same else 'changed '} /dev/{path}: {after.words()}")
            lines += [] if same else [f"           it was: {before.words()}"]
        lines += [f"  removed  /dev/{path}: {entry.words()}" for path, entry in difference.removed.items()]
        lines += [f"  too deep /dev/{path}: not looked into" for path in difference.too_deep]
    for line in lines:
        print(shown(line), file=file)  # names can be of any bytes
    file.flush()


def _as_object(prepared: runner.Run, outcome: parent.Outcome) -> dict[str, Any]:
    difference = outcome.difference
    found: dict[str, Any] = {
        "command": [os.fsdecode(argument) for argument in prepared.arguments],
        "isolation": outcome.isolation,
        "exit_code": outcome.status,
        "signal": outcome.signal,
        "private_dev": difference is not None,
        "created": [],
        "changed": [],
        "removed": [],
        "too_deep": [],
    }
    if difference is not None:
        found["created"] = [{"path": f"/dev/{path}", **new.facts()} for path, new in difference.created.items()]
        found["removed"] = [{"path": f"/dev/{path}", **old.facts()} for path, old in difference.removed.items()]
        found["changed"] = [
            {"path": f"/dev/{path}", "before": old.facts(), "after": new.facts()}
            for path, (old, new) in difference.changed.items()
        ]
        found["too_deep"] = [f"/dev/{path}" for path in difference.too_deep]
    return found
