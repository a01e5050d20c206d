# SPDX-License-Identifier: Apache-2.0
"""``nvsandbox audit``: who creates, changes and removes what in ``/dev``."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import IO, Any

import click

import nvsandbox
from nvsandbox.audit import supervise, watch
from nvsandbox.audit.attribution import Change
from nvsandbox.audit.processes import Process
from nvsandbox.cli import completing, failure, jsontext, streams
from nvsandbox.cli.wording import printable, shown

EXIT_CHANGES = 1
EXIT_FAILED = 125


class AuditFailed(click.ClickException):
    """The audit could not be made."""

    exit_code = EXIT_FAILED

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"nvsandbox: {printable(self.format_message())}", file=file, err=True)


class NotExecutable(AuditFailed):
    """The command cannot be run."""

    exit_code = 126


class NotFound(AuditFailed):
    """There is no such command."""

    exit_code = 127


_ERRORS = {error.exit_code: error for error in (AuditFailed, NotExecutable, NotFound)}
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def _seconds(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smh]?)", value)
    if match is None or float(match[1]) == 0:
        raise click.BadParameter(f"{value!r}: expected a time such as 30s, 10m or 2h")
    return float(match[1]) * _UNITS[match[2]]


class _Audit(click.Command):
    """Ends with 125 for wrong usage as well, as other programs do that run a command."""

    def make_context(self, *arguments: Any, **extra: Any) -> click.Context:
        with _usage_is_125():
            return super().make_context(*arguments, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _usage_is_125():
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()


@contextlib.contextmanager
def _usage_is_125() -> Iterator[None]:
    try:
        yield
    except streams.Unwritable as error:
        if not error.reader_gone:
            error.exit_code = EXIT_FAILED  # type: ignore[misc]
        raise
    except click.UsageError as error:
        error.exit_code = EXIT_FAILED  # type: ignore[misc]
        raise


@click.command(
    cls=_Audit, short_help="Say who makes nodes in /dev.", context_settings={"allow_interspersed_args": False}
)
@click.option("--host", "on_host", is_flag=True, help="Watch the real /dev while something else runs.")
@click.option("--for", "limit", callback=_seconds, metavar="TIME", help="End after 30s, 10m, 2h.  [default: no limit]")
@click.option(
    "--dev", shell_complete=completing.folder, metavar="DIR", help="With --host: the folder to watch.  [default: /dev]"
)
@click.option(
    "--output",
    shell_complete=completing.file,
    metavar="FILE",
    help="Write the report there.  [default: standard output]",
)
@click.option("--json", "as_json", is_flag=True, help="JSON for programs; docs/cli/audit.md describes it.")
@click.argument(
    "command", nargs=-1, shell_complete=completing.program, type=click.UNPROCESSED, metavar="-- COMMAND [ARGUMENT]..."
)
def audit(
    on_host: bool, limit: float | None, dev: str | None, output: str | None, as_json: bool, command: tuple[str, ...]
) -> None:
    """Run COMMAND as it is, in a throwaway copy of /dev, and report each node, link and folder that it creates,
    changes or removes there: which process did it, and from which processes that comes.

    The machine's own /dev stays as it is. With --host the real /dev is watched instead, until Ctrl-C or for TIME.
    Both need CAP_SYS_ADMIN.

    \b
    Examples:
      nvsandbox audit -- nvidia-smi
      nvsandbox audit --json --output report.json -- some-agent --once
      nvsandbox audit --for 10m -- some-exporter
      nvsandbox audit --host --for 10m

    \b
    Exit status: 0 nothing changed; 1 something did; 125 wrong usage, or the audit
    could not be made; 126 COMMAND cannot be run; 127 there is no such COMMAND.
    COMMAND's own exit status is in the report.
    """
    if on_host and command:
        raise click.UsageError("--host watches while something else runs: give it or a COMMAND")
    if not on_host and not command:
        raise click.UsageError("a COMMAND is missing: nvsandbox audit -- COMMAND ARGUMENTS, or nvsandbox audit --host")
    if dev is not None and not on_host:
        raise click.UsageError("--dev goes with --host: a COMMAND has a copy of /dev")
    with contextlib.ExitStack() as stack:
        file: IO[str] = sys.stdout
        if output is not None:
            try:
                # Before the /dev is another: the file may be /dev/stderr.
                file = stack.enter_context(streams.report_file(output))
            except OSError as error:
                raise AuditFailed(f"{output}: {error.strerror}") from error
        elif hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="replace")
        try:
            if on_host:
                status = _watch(dev or "/dev", limit, as_json, file)
            else:
                status = _run(command, limit, as_json, file, to_stdout=output is None)
        except (supervise.AuditError, watch.WatchError, OSError) as error:
            raise _failed(error, as_json, file) from error
    sys.exit(status)


def _failed(error: Exception, as_json: bool, file: IO[str]) -> AuditFailed:
    text = str(error)
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    status = error.status if isinstance(error, supervise.AuditError) else EXIT_FAILED
    failed = _ERRORS[status](text)
    if as_json:
        print(jsontext.dumps(failure.as_json(failed), indent=2), file=file)
    return failed


# ---- the words ---------------------------------------------------------------------------------------------------


def _process_json(process: Process) -> dict[str, Any]:
    return {
        "pid": process.pid,
        "name": process.name,
        "exe": process.exe,
        "cmdline": list(process.cmdline),
        "uid": process.uid,
    }


def _change_json(change: Change | watch.Event, dev: str) -> dict[str, Any]:
    return {
        "seconds": round(change.seconds, 6),
        "path": None if change.path is None else os.path.join(dev, change.path),
        "what": change.what,
        "before": None if change.before is None else change.before.facts(),
        "after": None if change.after is None else change.after.facts(),
        "call": change.call if isinstance(change, Change) else None,
        "by": [_process_json(process) for process in change.by],
    }


def _details(change: Change | watch.Event) -> str:
    if change.what == "changed" and change.before is not None and change.after is not None:
        return f"{change.before.words()}; now {change.after.words()}"
    entry = change.after or change.before
    return "" if entry is None else entry.words()


def _lines(change: Change | watch.Event, dev: str) -> list[str]:
    """What became of one thing, and who it was."""
    call = f" ({change.call})" if isinstance(change, Change) and change.call is not None else ""
    path = os.path.join(dev, change.path or "")
    lines = [f"{change.seconds:9.3f} s  {change.what} {path}: {_details(change)}"]
    if not change.by:
        lines.append("             by unknown")
    else:
        lines.append(f"             by {' < '.join(map(str, change.by))}{call}")
        first = change.by[0]
        if first.exe is not None:
            lines.append(f"             {first.exe}: {' '.join(first.cmdline)}")
    return [shown(line) for line in lines]


def _in_user_namespace() -> bool:
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            return file.read().split() != ["0", "0", "4294967295"]
    except OSError:
        return False


# ---- a command ---------------------------------------------------------------------------------------------------


def _ended(outcome: supervise.Outcome) -> str:
    if outcome.status < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-outcome.status).name}"
        return f"was ended by signal {-outcome.status}"
    return f"ended with status {outcome.status}"


def _run(command: Sequence[str], limit: float | None, as_json: bool, file: IO[str], to_stdout: bool) -> int:
    if _in_user_namespace():
        click.echo("nvsandbox: in this user namespace no program can create device nodes", err=True)
    outcome = supervise.run(command, limit=limit, stdout_to_stderr=as_json and to_stdout)
    if as_json:
        report = {
            "nvsandbox_version": nvsandbox.__version__,
            "command": list(command),
            "exit_status": outcome.status if outcome.status >= 0 else None,
            "signal": -outcome.status if outcome.status < 0 else None,
            "seconds": round(outcome.seconds, 6),
            "timed_out": outcome.timed_out,
            "changes": [_change_json(change, "/dev") for change in outcome.changes],
        }
        print(jsontext.dumps(report, indent=2), file=file)
    else:
        over = ", for the time was over" if outcome.timed_out else ""
        print(shown(f"-- nvsandbox audit: {command[0]} {_ended(outcome)}{over}"), file=file)
        for change in outcome.changes:
            for line in _lines(change, "/dev"):
                print(line, file=file)
        print(_sum(len(outcome.changes), "/dev would have been left as it was", "in /dev"), file=file)
    return EXIT_CHANGES if outcome.changes else 0


def _sum(count: int, none: str, where: str) -> str:
    return f"-- {none}" if count == 0 else f"-- {count} change{'' if count == 1 else 's'} {where}"


# ---- the host ----------------------------------------------------------------------------------------------------


def _watch(dev: str, limit: float | None, as_json: bool, file: IO[str]) -> int:
    count = 0
    with watch.Watch(dev) as seen:
        for note in seen.notes:
            click.echo(f"nvsandbox: {shown(note)}", err=True)
        click.echo(f"nvsandbox: watching {dev}{'' if limit is None else f' for {limit:g} s'}; Ctrl-C ends it", err=True)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda *_: seen.stop())
        for event in seen.events(limit):
            count += _tell(event, dev, as_json, file)
        for event in seen.rest():
            count += _tell(event, dev, as_json, file)
    if not as_json:
        print(_sum(count, f"nothing changed in {dev}", f"in {dev}"), file=file)
    return EXIT_CHANGES if count else 0


def _tell(event: watch.Event, dev: str, as_json: bool, file: IO[str]) -> int:
    """Prints an event; 1 if it is a change."""
    if event.what == "lost":
        click.echo("nvsandbox: too much happened at once: some of it was not told of", err=True)
        return 0
    if as_json:
        print(jsontext.dumps(_change_json(event, dev)), file=file, flush=True)
    else:
        for line in _lines(event, dev):
            print(line, file=file)
        file.flush()
    return int(event.what != "touched")
