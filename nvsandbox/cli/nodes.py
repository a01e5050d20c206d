# SPDX-License-Identifier: Apache-2.0
"""``nvsandbox nodes``: NVIDIA's device nodes on this host, and the removal of those that should not be there."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import click

import nvsandbox
from nvsandbox import blockers, cdi, hostnodes, noderemoval, nodeundo, roots
from nvsandbox.cli import completing, failure, jsontext, nodelisting
from nvsandbox.cli.wording import command_line, printable
from nvsandbox.nodenames import Finding, Node

EXIT_UNWANTED = 1


class _NoLook(click.ClickException):
    """The nodes could not be looked at, or not be dealt with."""

    exit_code = failure.EXIT_SANDBOX

    def show(self, file: Any = None) -> None:
        click.echo(f"nvsandbox: {printable(self.format_message())}", file=file, err=True)


@dataclass(frozen=True)
class _Asked:
    """The options."""

    dev: str
    proc: str
    dev_root: str | None
    others: tuple[str, ...]
    cdi_dirs: tuple[str, ...]
    ignore_unseen: bool
    given: tuple[str, ...]
    """The options that say where to look, each followed by an absolute path, for commands that are to be pasted."""


@click.command(short_help="List, and remove, NVIDIA's nodes in /dev.")
@click.option("--clean", is_flag=True, help="Say what would be removed; with --yes remove it.")
@click.option("--yes", is_flag=True, help="With --clean: do it.")
@click.option("--undo", shell_complete=completing.file, metavar="FILE", help="Put back what --clean has removed.")
@click.option(
    "--undo-file",
    shell_complete=completing.file,
    metavar="FILE",
    help="With --clean --yes: where to write what was removed.  [default: a new file in /var/lib/nvsandbox, or for "
    "users in ~/.local/state/nvsandbox]",
)
@click.option("--ignore-unseen", is_flag=True, help="With --clean: go on though some processes cannot be looked at.")
@click.option(
    "--dev", default="/dev", shell_complete=completing.folder, metavar="DIR", show_default=True, help="The host's /dev."
)
@click.option(
    "--proc",
    default="/proc",
    shell_complete=completing.folder,
    metavar="DIR",
    show_default=True,
    help="The host's /proc.",
)
@click.option(
    "--driver-root",
    shell_complete=completing.folder,
    metavar="DIR",
    envvar=["NVSANDBOX_DRIVER_ROOT", "NVIDIA_DRIVER_ROOT"],
    help="Root of the tree with the driver.  [default: /run/nvidia/driver if it has nodes, else /]",
)
@click.option(
    "--dev-root",
    shell_complete=completing.folder,
    metavar="DIR",
    envvar="NVSANDBOX_DEV_ROOT",
    help="Root whose dev/ has the driver's own nodes.  [default: the driver root]",
)
@click.option(
    "--cdi-dir",
    "cdi_dirs",
    shell_complete=completing.folder,
    metavar="DIR",
    multiple=True,
    help="A folder with CDI specs; may be given several times.  [default: etc/cdi and var/run/cdi beside --dev]",
)
@click.option("--json", "as_json", is_flag=True, help="JSON for programs; docs/cli/nodes.md describes it.")
def nodes(
    clean: bool,
    yes: bool,
    undo: str | None,
    undo_file: str | None,
    ignore_unseen: bool,
    dev: str,
    proc: str,
    driver_root: str | None,
    dev_root: str | None,
    cdi_dirs: tuple[str, ...],
    as_json: bool,
) -> None:
    """List NVIDIA's device nodes on this host, each held against what the driver says: which are wrong, which should
    not be there, and which make cri-o refuse privileged containers.

    Nothing is changed but with --clean --yes and --undo. A node is never removed that is open somewhere, that the
    host's own driver needs, or that is not NVIDIA's by name and number.

    \b
    Examples:
      nvsandbox nodes
      nvsandbox nodes --clean           what would be removed, and what not and why
      nvsandbox nodes --clean --yes     removes it, and says how to put it back
      nvsandbox nodes --undo FILE

    \b
    Exit status: 0 nothing is there that should not be; 1 something is, or could not
    be removed or put back; 2 wrong usage; 3 the nodes could not be looked at.
    """
    for given, needs, there in (("--yes", "--clean", yes), ("--undo-file", "--clean", undo_file is not None)):
        if there and not clean:
            raise click.UsageError(f"{given} goes with {needs}")
    if undo is not None and clean:
        raise click.UsageError("--clean removes and --undo puts back: give one of them")
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    asked = _asked(dev, proc, driver_root, dev_root, cdi_dirs, ignore_unseen)
    try:
        if undo is not None:
            status = _undo(undo, asked, as_json)
        elif clean:
            status = _clean(asked, yes, undo_file, as_json)
        else:
            status = _list(asked, as_json)
    except (OSError, ValueError) as error:
        wrapped = _NoLook(_with_option(error, dev, proc, undo))
        if as_json:
            click.echo(jsontext.dumps(failure.as_json(wrapped), indent=2))
        raise wrapped from error
    sys.exit(status)


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _with_option(error: Exception, dev: str, proc: str, undo: str | None) -> str:
    """The error with the option that the path comes from, and what it should have been."""
    text = _words(error)
    if not isinstance(error, FileNotFoundError | NotADirectoryError) or error.filename is None:
        return text
    path = str(error.filename)
    if path == undo:
        return f"--undo {text}; expected the file that nodes --clean --yes wrote and named"
    for option, folder, expected in (("--dev", dev, "a folder with device nodes"), ("--proc", proc, "a mounted proc")):
        if path == folder or path.startswith(folder.rstrip("/") + "/"):
            return f"{option} {folder}: {text if path != folder else error.strerror}; expected {expected}"
    return text


def _asked(
    dev: str, proc: str, driver_root: str | None, dev_root: str | None, cdi_dirs: tuple[str, ...], ignore_unseen: bool
) -> _Asked:
    folder = None
    others: tuple[str, ...] = hostnodes.CONTAINER_DEV_ROOTS
    if driver_root is not None or dev_root is not None:
        others = ()
        found = roots.dev_folder(driver_root or "/", dev_root)
        folder = None if dev_root is None and found == "/dev" else found
    places = [("--dev", dev), ("--proc", proc), ("--driver-root", driver_root), ("--dev-root", dev_root)]
    places += [("--cdi-dir", directory) for directory in cdi_dirs]
    given = [
        word
        for option, place in places
        if place is not None and (option, place) not in (("--dev", "/dev"), ("--proc", "/proc"))
        for word in (option, os.path.abspath(place))
    ]
    return _Asked(dev, proc, folder, others, cdi_dirs or cdi.directories(dev), ignore_unseen, tuple(given))


def _look(asked: _Asked) -> tuple[hostnodes.Survey, list[str]]:
    survey = hostnodes.survey(asked.dev, asked.proc, dev_root=asked.dev_root, others=asked.others)
    survey, unread = blockers.add(survey, asked.cdi_dirs)
    survey = _with_places(survey, asked.given)
    return survey, [*survey.driver.unread, *survey.unread, *unread]


def _with_places(survey: hostnodes.Survey, given: Sequence[str]) -> hostnodes.Survey:
    """With commands that mean the folders that were looked at, not this system's own."""
    command = command_line(["nvsandbox", "nodes", *given, "--clean"])

    def helped(finding: Finding) -> Finding:
        return replace(finding, remedy=finding.remedy.replace("nvsandbox nodes --clean", command))

    nodes = tuple(replace(node, findings=tuple(map(helped, node.findings))) for node in survey.nodes)
    return replace(survey, nodes=nodes)


def _bad(nodes: Iterable[Node]) -> bool:
    return any(node.unwanted or any(finding.id == blockers.ID for finding in node.findings) for node in nodes)


# ---- listing -----------------------------------------------------------------------------------------------------


def _list(asked: _Asked, as_json: bool) -> int:
    survey, unread = _look(asked)
    if as_json:
        click.echo(jsontext.dumps(_report(survey, unread), indent=2))
    else:
        nodelisting.show(survey)
        nodelisting.doubt(survey)
        nodelisting.unread(unread)
    return EXIT_UNWANTED if _bad(survey.nodes) else 0


def _node_json(node: Node) -> dict[str, Any]:
    return {
        "path": node.path,
        "kind": node.kind,
        "major": None if node.number is None else node.number[0],
        "minor": None if node.number is None else node.number[1],
        "mode": f"{node.mode:04o}",
        "uid": node.uid,
        "gid": node.gid,
        "target": node.target,
        "unwanted": node.unwanted,
        "findings": [asdict(finding) for finding in node.findings],
    }


def _report(survey: hostnodes.Survey, unread: list[str]) -> dict[str, Any]:
    """The object that ``--json`` prints."""
    driver = survey.driver
    return {
        "nvsandbox_version": nvsandbox.__version__,
        "dev": survey.dev,
        "driver": {
            "loaded": driver.loaded,
            "version": driver.version,
            "placement": survey.placement,
            "dev_root": survey.dev_root,
            "doubt": survey.doubt,
            "majors": driver.majors,
            "modify_device_files": driver.modify_device_files,
            "gpus": {str(minor): bus for minor, bus in driver.gpus.items()},
        },
        "nodes": [_node_json(node) for node in survey.nodes],
        "missing": [asdict(finding) for finding in survey.missing],
        "unread": unread,
    }


# ---- removing ----------------------------------------------------------------------------------------------------


def _undo_command(asked: _Asked, file: str) -> str:
    """What puts back what was removed, from any folder."""
    words = ["nvsandbox", "nodes"]
    for option, folder, default in (("--dev", asked.dev, "/dev"), ("--proc", asked.proc, "/proc")):
        words += [] if folder == default else [option, os.path.abspath(folder)]
    return command_line([*words, "--undo", os.path.abspath(file)])


@contextlib.contextmanager
def _undo_is_told(undo: str) -> Iterator[None]:
    """Nodes may be gone when this ends by an exception: Ctrl-C, a full disk, or nobody who reads what is printed."""
    try:
        yield
    except BaseException:
        click.echo(f"nvsandbox: broken off; what was removed comes back with: {undo}", err=True)
        raise


def _clean(asked: _Asked, yes: bool, undo_file: str | None, as_json: bool) -> int:
    """Removes what should not be there, or without `yes` says what it would remove. The exit status."""
    survey, unread = _look(asked)
    steps = noderemoval.plan(survey, asked.proc, ignore_unseen=asked.ignore_unseen)
    if yes and any(step.refusal is None for step in steps):
        return _remove(asked, survey, unread, steps, undo_file or nodeundo.default_path(), as_json)
    results = [
        noderemoval.Result(step.node.path, False, step.refusal or noderemoval.describe(step.node)) for step in steps
    ]
    if as_json:
        would = set() if yes else {step.node.path for step in steps if step.refusal is None}
        _print_cleaning(survey, unread, results, done=yes, would=would, undo_file=None)
    elif yes:
        for result in results:
            nodelisting.removal(asked.dev, result)
        nodelisting.removed(results, "")
    else:
        nodelisting.plan(asked.dev, steps)
    if not as_json:
        nodelisting.doubt(survey)
        nodelisting.unread(unread)
    return EXIT_UNWANTED if _bad(survey.nodes) else 0


def _remove(
    asked: _Asked,
    survey: hostnodes.Survey,
    unread: list[str],
    steps: list[noderemoval.Step],
    undo_file: str,
    as_json: bool,
) -> int:
    """Carries out the steps and writes them down in `undo_file`. The exit status is that of a second look."""
    try:
        journal = nodeundo.Journal(undo_file, os.path.abspath(asked.dev))
    except OSError as error:
        text = f"{_words(error)}: what is removed cannot be written down; --undo-file names another place for it"
        raise ValueError(text) from error
    undo = _undo_command(asked, undo_file)
    results = []
    with _undo_is_told(undo):
        with journal:
            for result in noderemoval.carry_out(steps, survey, journal, asked.proc, ignore_unseen=asked.ignore_unseen):
                results.append(result)
                if not as_json:
                    nodelisting.removal(asked.dev, result)
        if as_json:
            _print_cleaning(survey, unread, results, done=True, would=set(), undo_file=undo_file)
        else:
            nodelisting.removed(results, undo)
            nodelisting.doubt(survey)
            nodelisting.unread(unread)
        return EXIT_UNWANTED if _bad(_look(asked)[0].nodes) else 0


def _print_cleaning(
    survey: hostnodes.Survey,
    unread: list[str],
    results: list[noderemoval.Result],
    *,
    done: bool,
    would: set[str],
    undo_file: str | None,
) -> None:
    report = _report(survey, unread)
    report["clean"] = {
        "done": done,
        "undo_file": undo_file,
        "steps": [
            {"path": r.path, "removed": r.removed, "to_be_removed": r.path in would, "what": r.what} for r in results
        ],
    }
    click.echo(jsontext.dumps(report, indent=2))


def _undo(file: str, asked: _Asked, as_json: bool) -> int:
    # All of it before anything is printed: where nobody reads that, the rest is put back all the same.
    results = list(nodeundo.restore(file, asked.dev, asked.proc))
    for result in () if as_json else results:
        nodelisting.restored(asked.dev, result)
    if as_json:
        click.echo(jsontext.dumps({"dev": asked.dev, "undo": [asdict(result) for result in results]}, indent=2))
    elif not results:
        click.echo("nothing to put back")
    return 0 if all(result.done for result in results) else EXIT_UNWANTED
