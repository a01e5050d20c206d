# SPDX-License-Identifier: Apache-2.0
"""The commands together, and how they end."""

from __future__ import annotations

import logging
from typing import Any

import click

import nvsandbox
from nvsandbox.cli import completing, failure
from nvsandbox.cli.audit import audit
from nvsandbox.cli.completing import completion
from nvsandbox.cli.doctor import doctor
from nvsandbox.cli.nodes import nodes
from nvsandbox.cli.query import query
from nvsandbox.cli.run import run


class _Program(click.Group):
    def main(self, *arguments: Any, **extra: Any) -> Any:
        completing.register()
        return super().main(*arguments, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        # Otherwise the package's log stays unread, for it repeats what the commands report.
        if failure.debugging():
            logging.basicConfig(format="%(name)s: %(message)s")
            logging.getLogger("nvsandbox").setLevel(logging.INFO)
        try:
            return super().invoke(ctx)
        except failure.EXPECTED as error:
            raise failure.ending(error) from error


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

    \b
    Exit status: 0 fine; 1 NVML failed, or something was found; 2 wrong usage;
    3 no sandbox, or nothing can be examined. run ends as its program does, run and
    audit with 125 if they fail themselves, 126 and 127 if there is no such program.
    """


main.add_command(audit)
main.add_command(completion)
main.add_command(nodes)
main.add_command(query)
main.add_command(doctor)
main.add_command(run)
