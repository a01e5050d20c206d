# SPDX-License-Identifier: Apache-2.0
"""Commands whose standard streams are closed, full, or read by nobody."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from host import require
from waiting import inside, until, workers_of

NODES = ("nodes", "--cdi-dir", "/nowhere")
COMMANDS = {
    "nodes": NODES,
    "nodes-json": (*NODES, "--json"),
    "query": ("query", "--simulate", "h100"),
    "query-json": ("query", "--simulate", "h100", "--json"),
    "doctor": ("doctor", "--simulate", "h100"),
    "audit": ("audit", "--", "true"),
    "audit-json": ("audit", "--json", "--", "true"),
    "completion": ("completion", "bash"),
    "help": ("--help",),
}
each_command = pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)


def start(redirections: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command with what a shell does to its streams; those that stay are read."""
    if arguments[0] == "audit":
        require(os.geteuid() == 0, "needs root, to make a /dev for the program")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("NVSANDBOX_", "NVIDIA_"))}
    return subprocess.run(
        ["sh", "-c", f'"$@" {redirections}', "sh", sys.executable, "-m", "nvsandbox", *arguments],
        env=environment,
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@each_command
def test_a_report_that_cannot_be_written_is_an_error(arguments: tuple[str, ...]) -> None:
    result = start(">/dev/full", *arguments)
    assert result.stderr == "nvsandbox: standard output cannot be written: No space left on device\n"
    assert result.returncode == (125 if arguments[0] == "audit" else 3)


@each_command
def test_nobody_who_reads_is_as_sigpipe(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """By a FIFO, both ends of which are gone when the command writes."""
    if arguments[0] == "audit":
        require(os.geteuid() == 0, "needs root, to make a /dev for the program")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(fifo, os.O_WRONLY)
    os.close(reader)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("NVSANDBOX_", "NVIDIA_"))}
    result = subprocess.run(
        [sys.executable, "-m", "nvsandbox", *arguments], env=environment, cwd="/", stdin=subprocess.DEVNULL,
        stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
    )  # fmt: skip
    os.close(writer)
    assert (result.returncode, result.stderr) == (128 + signal.SIGPIPE, "")


@each_command
def test_closed_streams_change_no_status(arguments: tuple[str, ...]) -> None:
    usual = start("", *arguments)
    assert start("2>&-", *arguments).stdout.count("\n") == usual.stdout.count("\n")
    closed = start("<&- >&-", *arguments)
    assert (closed.returncode, closed.stderr) == (usual.returncode, usual.stderr)


def test_errors_that_cannot_be_told_change_no_status() -> None:
    assert start("2>/dev/full", "nodes", "--dev", "/nowhere").returncode == 3
    result = start("2>&-", "nodes", "--dev", "/nowhere", "--json")
    assert result.returncode == 3
    assert json.loads(result.stdout)["error"]["exit_code"] == 3


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["lines", "json"])
def test_files_for_reports(form: tuple[str, ...]) -> None:
    require(os.geteuid() == 0, "needs root, to make a /dev for the program")
    result = start("", "audit", "--output", "/dev/full", *form, "--", "true")
    assert (result.returncode, result.stderr) == (
        125,
        "nvsandbox: /dev/full cannot be written: No space left on device\n",
    )
    result = start("", "run", "--report=/dev/full", *form, "--", "sh", "-c", "exit 7")
    assert result.returncode == 7  # the program's is what counts
    assert result.stderr == "nvsandbox: the report in /dev/full cannot be written: No space left on device\n"


def test_a_stream_that_does_not_wait_is_waited_for() -> None:
    """A pipe that another program has set to O_NONBLOCK, and a reader who takes a while."""
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    with subprocess.Popen(
        [sys.executable, "-m", "nvsandbox", "query", "--help-query-gpu"], cwd="/", stdout=writer, stderr=subprocess.PIPE
    ) as process:
        os.set_blocking(reader, True)
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        os.close(writer)
        with os.fdopen(reader, "rb") as output:
            text = output.read()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 0
    assert text.endswith(b"\n")
    assert len(text) > 8192


def test_what_others_have_named_does_not_reach_the_terminal_raw(tmp_path: Path) -> None:
    name = str(tmp_path / "a\x1b]0;b\x07\x9b2J")
    for arguments in (("nodes", "--undo", name), ("nodes", "--dev", name), ("audit", "--", name), ("run", "--", name)):
        if arguments[0] == "audit":
            require(os.geteuid() == 0, "needs root, to make a /dev for the program")
        result = start("", *arguments)
        assert result.returncode in (3, 127)
        assert result.stderr.startswith("nvsandbox: ")
        assert all(char.isprintable() for char in result.stderr.removesuffix("\n"))


def test_names_in_a_report_of_run_do_not_reach_the_terminal_raw() -> None:
    require(os.geteuid() == 0, "needs root, to make files in the private /dev")
    result = start("", "run", "--report", "--", "sh", "-c", "echo >'/dev/a\x1b[2J'")
    assert result.returncode == 0
    assert "/dev/a" in result.stderr
    assert all(char.isprintable() for line in result.stderr.splitlines() for char in line)


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["lines", "json"])
def test_ctrl_c_is_no_answer(form: tuple[str, ...]) -> None:
    """1 would say that NVML failed."""
    command = ("query", "--simulate", "h100,hang=nvmlDeviceGetName", "--timeout", "40", *form)
    with subprocess.Popen(
        [sys.executable, "-m", "nvsandbox", *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, cwd="/",
    ) as process:  # fmt: skip
        assert until(lambda: [inside(worker) for worker in workers_of(process.pid)] == [1])
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (-signal.SIGINT, "", "")
