# SPDX-License-Identifier: Apache-2.0
"""What a command says, and with which status it ends, when it fails."""

from __future__ import annotations

import traceback
from typing import IO, Any

import click
import pynvml

from nvsandbox.cli.wording import as_options, printable
from nvsandbox.errors import SandboxError, WorkerDied, is_hang
from nvsandbox.packets import debugging

EXIT_NVML = 1
EXIT_USAGE = 2
EXIT_SANDBOX = 3

KERNEL_LOG = "the kernel log may say why (dmesg | grep -iE 'xid|nvrm|segfault|oom')"

# What a command may fail with and that is no fault of its own.
EXPECTED = (SandboxError, pynvml.NVMLError)


def exit_code(error: BaseException) -> int:
    """The exit status for an error. One that is NVML's too (no library, a call that hung) counts as NVML's."""
    if isinstance(error, click.ClickException):
        return error.exit_code
    return EXIT_NVML if isinstance(error, pynvml.NVMLError) or is_hang(error) else EXIT_SANDBOX


def message(error: BaseException) -> str:
    """The error in words, and where NVML hung or crashed what to do, which the library's callers know."""
    if isinstance(error, click.ClickException):
        return as_options(error.format_message())
    if isinstance(error, WorkerDied) or is_hang(error):
        return f"{as_options(str(error))}; {KERNEL_LOG}, and nvsandbox doctor examines this machine"
    return as_options(str(error)) if isinstance(error, SandboxError) else f"NVML says: {error}"


def as_json(error: BaseException) -> dict[str, Any]:
    """The error for programs; docs/cli.md has the keys."""
    return {
        "error": {
            "type": type(error).__name__,
            "nvml_code": int(error.value) if isinstance(error, pynvml.NVMLError) else None,
            "message": message(error),
            "exit_code": exit_code(error),
        }
    }


class Failed(click.ClickException):
    """Ends the command: the error on stderr. With ``NVSANDBOX_DEBUG=1`` the traceback comes before it."""

    exit_code = EXIT_SANDBOX

    def __init__(self, error: BaseException) -> None:
        super().__init__(message(error))
        self._error = error

    def show(self, file: IO[Any] | None = None) -> None:
        if debugging():
            click.echo("".join(traceback.format_exception(self._error)), file=file, err=True, nl=False)
        click.echo(f"nvsandbox: {printable(self.message)}", file=file, err=True)


class NVMLFailed(Failed):
    """The same where NVML is what failed."""

    exit_code = EXIT_NVML


def ending(error: BaseException) -> Failed:
    """What to raise for an error so that the command ends as it should."""
    return (NVMLFailed if exit_code(error) == EXIT_NVML else Failed)(error)
