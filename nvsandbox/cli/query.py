# SPDX-License-Identifier: Apache-2.0
"""``nvsandbox query``: the GPUs of this machine."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import IO, Any

import click

from nvsandbox import fields
from nvsandbox.cli import completing, failure, ids, jsontext, streams, watching, wording
from nvsandbox.cli.mig_view import Mig
from nvsandbox.cli.options import enter_sandbox, sandbox_options
from nvsandbox.cli.overview import Overview
from nvsandbox.cli.process_view import Processes
from nvsandbox.cli.selected import ACCOUNTED_FIELDS, APP_FIELDS, AccountedApps, ComputeApps, GpuFields
from nvsandbox.cli.topology_view import Matrix
from nvsandbox.cli.view import View

Indexes = Sequence[int] | None
Maker = Callable[[Indexes], View]

_VIEWS = ("query_gpu", "query_compute_apps", "query_accounted_apps", "processes", "topology", "mig")
_APPS: dict[str, type[ComputeApps | AccountedApps]] = {
    "--query-compute-apps": ComputeApps,
    "--query-accounted-apps": AccountedApps,
}


def _interval(scale: float) -> Callable[[click.Context, click.Parameter, str | None], float | None]:
    def check(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
        if value is None:
            return None
        unit = "seconds, such as 2 or 0.5" if scale == 1 else "milliseconds, such as 500"
        try:
            seconds = float(value) * scale
        except ValueError:
            seconds = 0
        if not 0.001 <= seconds < 1e9:
            raise click.BadParameter(f"{value!r}: expected {unit}, at least a millisecond")
        return seconds

    return check


def _ids(context: click.Context, parameter: click.Parameter, value: str | None) -> list[str] | None:
    if value is None:
        return None
    named = [id_.strip() for id_ in value.split(",") if id_.strip()]
    if not named:
        raise click.BadParameter(f"{value!r}: expected indexes, UUIDs, PCI bus ids or serial numbers: 0,1")
    return named


def _print_and_exit(write: Callable[[], None]) -> Callable[[click.Context, click.Parameter, bool], None]:
    def callback(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        if value and not context.resilient_parsing:
            write()
            context.exit()

    return callback


def _help_query_gpu() -> None:
    click.echo('List of valid properties to query for the switch "--query-gpu":\n')
    for names, origin in fields.described():
        click.echo(f"{names}\n{origin}\n")


def _help_apps(switch: str, known: dict[str, tuple[str, ...]]) -> Callable[[], None]:
    def write() -> None:
        click.echo(f'List of valid properties to query for the switch "{switch}":\n')
        for name, aliases in known.items():
            click.echo(" or ".join(f'"{each}"' for each in (name, *aliases)) + "\n")

    return write


@click.command(short_help="List GPUs, their processes, MIG, topology.")
@sandbox_options
@click.option("--json", "as_json", is_flag=True, help="JSON for programs; docs/cli/query.md describes it.")
@click.option("-i", "--id", "chosen", metavar="IDS", callback=_ids, help="These GPUs: 0,1, GPU-…, PCI or serial.")
@click.option("--processes", is_flag=True, help="The processes that use the GPUs.")
@click.option("--topology", is_flag=True, help="How near GPUs, network devices and CPUs are.")
@click.option("--mig", is_flag=True, help="The tree of MIG instances and devices.")
@click.option(
    "--query-gpu",
    shell_complete=completing.gpu_fields,
    metavar="FIELDS",
    help="nvidia-smi's option: name,memory.used,… with --format.",
)
@click.option(
    "--query-compute-apps",
    shell_complete=completing.app_fields,
    metavar="FIELDS",
    help="nvidia-smi's option: pid,used_memory,…",
)
@click.option(
    "--query-accounted-apps",
    shell_complete=completing.accounted_fields,
    metavar="FIELDS",
    help="nvidia-smi's option: pid,gpu_util,time,…",
)
@click.option("--format", "style", shell_complete=completing.styles, metavar="FORMAT", help="csv[,noheader][,nounits]")
@click.option(
    *("-f", "--filename"),
    shell_complete=completing.file,
    metavar="FILE",
    help="Write there instead of to standard output.",
)
@click.option(
    *("-l", "--watch", "--loop"),
    "watch",
    metavar="SECONDS",
    is_flag=False,
    flag_value="5",
    callback=_interval(1),
    help="Again and again, until Ctrl-C.  [5 if no number is given]",
)
@click.option(
    "-lms", "--loop-ms", "watch_ms", metavar="MS", callback=_interval(0.001), help="The same in milliseconds."
)
@click.option(
    "--count",
    metavar="N",
    callback=wording.number(int, "how many times, a whole number from 1 on"),
    help="So many times; with --watch.",
)
@click.option(
    "--help-query-gpu",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_and_exit(_help_query_gpu),
    help="The fields of --query-gpu.",
)
@click.option(
    "--help-query-compute-apps",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_and_exit(_help_apps("--query-compute-apps", APP_FIELDS)),
    help="Those of --query-compute-apps.",
)
@click.option(
    "--help-query-accounted-apps",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_and_exit(_help_apps("--query-accounted-apps", ACCOUNTED_FIELDS)),
    help="Those of --query-accounted-apps.",
)
def query(
    as_json: bool,
    chosen: list[str] | None,
    watch: float | None,
    watch_ms: float | None,
    count: int | None,
    filename: str | None,
    **given: Any,
) -> None:
    """List GPUs: identity, memory, load, temperature, power, MIG devices.

    A table on a terminal, one line for each GPU elsewhere. What a GPU does not have is N/A; what could not be read
    is N/A too, and the reason is on stderr.

    \b
    Examples:
      nvsandbox query --devices 0,2
      nvsandbox query --json | jq '.gpus[] | {uuid, memory_used_bytes}'
      nvsandbox query --simulate a100x2,mig=1g.5gb*7 --mig
      nvsandbox query --watch 2
      nvsandbox query --query-gpu=name,memory.used --format=csv,noheader
      nvsandbox query --query-compute-apps=pid,used_memory --format=csv
      nvsandbox query --query-gpu=power.draw --format=csv -l 60 -f power.csv
      nvsandbox query --topology

    \b
    Exit status: 0; 1 NVML failed, such as without a driver; 2 wrong usage; 3 no
    sandbox could be started. With --watch 130 for Ctrl-C, 143 SIGTERM, 129 HUP.
    """
    # Terminals without UTF-8 lose a character, not the listing.
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    shown = {name: given.pop(name) for name in (*_VIEWS, "style")}
    try:
        if watch is not None and watch_ms is not None:
            raise click.UsageError("--watch and --loop-ms are mutually exclusive")
        interval = watch if watch is not None else watch_ms
        if count is not None and interval is None:
            raise click.UsageError("--count needs --watch: how often, and every how many seconds")
        make = _view(shown, as_json)
        with contextlib.ExitStack() as stack:
            if filename is not None:
                stack.enter_context(contextlib.redirect_stdout(_opened(filename, stack)))
            _show(make, chosen, interval, count, as_json, given)
    except (click.UsageError, streams.Unwritable, *failure.EXPECTED) as error:
        if as_json:
            once = watch is None and watch_ms is None
            click.echo(jsontext.dumps(failure.as_json(error), indent=2 if once else None))  # else a line is an object
        raise


def _opened(filename: str, stack: contextlib.ExitStack) -> IO[str]:
    """The file that is written to in standard output's place."""
    try:
        return stack.enter_context(streams.report_file(filename))
    except OSError as error:
        raise streams.Unwritable(f"--filename {shlex.quote(filename)}", error) from error


def _show(
    make: Maker,
    chosen: list[str] | None,
    interval: float | None,
    count: int | None,
    as_json: bool,
    given: dict[str, Any],
) -> None:
    with contextlib.ExitStack() as stack:
        nvml = enter_sandbox(stack, given)
        view = make(ids.indexes(nvml, chosen))
        if interval is not None:
            watching.watch(view, nvml, interval, count, as_json)
            return
        data = view.read(nvml)
    if as_json:
        click.echo(jsontext.dumps(view.as_json(data), indent=2, allow_nan=False))
        return
    if sys.stdout.isatty():
        from rich.console import Console  # here, for nobody else needs it and it takes a while to import

        view.styled(data, Console(highlight=False))
    else:
        for line in view.lines(data):
            click.echo(line)
    sys.stdout.flush()  # a file, whose name an error is to tell
    for problem in view.problems(data):
        click.echo(f"nvsandbox: {problem}", err=True)


def _view(shown: dict[str, Any], as_json: bool) -> Maker:
    """What to show, once it is known of which GPUs. Raises UsageError for what does not go together."""
    flags = [f"--{name.replace('_', '-')}" for name in _VIEWS if shown[name] not in (None, False)]
    if len(flags) > 1:
        raise click.UsageError(
            f"{flags[0]} and {flags[1]} are mutually exclusive: one view at a time, so ask for each by itself"
        )
    view = flags[0] if flags else ""
    names = shown[view.removeprefix("--").replace("-", "_")] if view.startswith("--query-") else None
    if names is not None and (names.startswith("-") or not all(name.strip() for name in names.split(","))):
        such = "name,memory.used" if view == "--query-gpu" else "pid,gpu_uuid"
        raise click.UsageError(
            f"{view} {shlex.quote(names)}: expected names of fields joined by commas, such as {such}; "
            f"{view.replace('--', '--help-')} lists all"
        )
    style = _style(view, shown["style"], as_json)
    if names is not None:
        try:
            return _csv(view, names, style)
        except fields.UnknownFieldError as error:
            raise click.UsageError(f"{error} {view.replace('--', '--help-')} lists all.") from error
    makers: dict[str, Maker] = {"--processes": Processes, "--topology": Matrix, "--mig": Mig}
    return makers.get(view, lambda indexes: Overview(indexes, processes=as_json))


def _csv(view: str, names: str, style: fields.Style) -> Maker:
    """Raises UnknownFieldError."""
    if view == "--query-gpu":
        fields.find(names.split(","))
        return lambda indexes: GpuFields(names, indexes, style)
    apps = _APPS[view]
    apps(names, None, style)
    return lambda indexes: apps(names, indexes, style)


def _style(view: str, text: str | None, as_json: bool) -> fields.Style:
    if not view.startswith("--query-"):
        if text is not None:
            raise click.UsageError(f"--format {text}: is for {', '.join(('--query-gpu', *_APPS))}; --json for programs")
        return fields.Style()
    if as_json:
        raise click.UsageError(f"{view} and --json are mutually exclusive: chosen fields are CSV")
    if text is None:
        raise click.UsageError(f"{view} needs --format=csv[,noheader][,nounits]")
    try:
        return fields.Style.parse(text)
    except ValueError as error:
        raise click.UsageError(f"--format {error}") from error
