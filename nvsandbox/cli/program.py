# SPDX-License-Identifier: Apache-2.0
"""The commands together, and how they end."""

from __future__ import annotations

import importlib
import logging
import signal
import sys
from collections.abc import Iterator, MutableMapping
from typing import Any

import click

import nvsandbox
from nvsandbox import packets
from nvsandbox.cli import completing, interrupts, streams


class _Commands(MutableMapping[str, click.Command]):
    """The commands by name. The module of each is imported when it is called for: `run` is to start at once."""

    def __init__(self) -> None:
        own = ("audit", "doctor", "nodes", "query", "run")
        self._modules = {**dict(zip(own, own, strict=True)), "completion": "completing"}
        self._others: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name in self._others:
            return self._others[name]
        command: click.Command = getattr(importlib.import_module(f"nvsandbox.cli.{self._modules[name]}"), name)
        return command

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._others[name] = command

    def __delitem__(self, name: str) -> None:
        del self._others[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._modules, *self._others}))

    def __len__(self) -> int:
        return len(list(iter(self)))


class _Program(click.Group):
    def main(self, *arguments: Any, **extra: Any) -> Any:
        completing.register()
        self._interrupts = interrupts.Interrupts()
        with self._interrupts.silent(), streams.guarded():
            return super().main(*arguments, **extra)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        resolved = super().resolve_command(ctx, args)
        self._interrupts.catch()  # now that the command's module has been imported
        return resolved

    def invoke(self, ctx: click.Context) -> Any:
        # Otherwise the package's log stays unread, for it repeats what the commands report.
        if packets.debugging():
            logging.basicConfig(format="%(name)s: %(message)s")
            logging.getLogger("nvsandbox").setLevel(logging.INFO)
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise interrupts.BySignal(signal.SIGINT) from None  # click would say 1, which is an answer
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            from nvsandbox.cli import failure

            if isinstance(error, failure.EXPECTED):
                raise failure.ending(error) from error
            raise
        finally:
            sys.stdout.flush()  # here, where that it fails can still be told


@click.group(cls=_Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(nvsandbox.__version__, message="nvsandbox %(version)s")
def main() -> None:
    """NVIDIA's management library (NVML) in a sandbox: the host's /dev stays as it is.

    \b
    Examples:
      nvsandbox query                          the GPUs of this machine
      nvsandbox query --json                   the same for programs
      nvsandbox query --simulate h100x8        eight simulated GPUs, no driver
      nvsandbox doctor                         what is wrong here, and what to do
      nvsandbox query --driver-root /run/nvidia/driver
                                               with the driver in a container
      nvsandbox run -- nvidia-smi              any program, with a /dev of its own
      nvsandbox nodes                          what NVML left in the host's /dev
      nvsandbox audit -- nvidia-smi            who leaves it there

    \b
    Exit status: 0 fine; 1 NVML failed, or something was found; 2 wrong usage;
    3 no sandbox, or nothing can be examined. run ends as its program does; run
    and audit with 125 if they fail themselves, 126 or 127 without such a program.
    """


main.commands = _Commands()
