# SPDX-License-Identifier: Apache-2.0
"""That the kernel loads no module for what a worker does: tried in a virtual machine, whose modprobe writes down what
it is asked for, and compared with the table in docs/security.md, cell by cell."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import security_tables
from machine import Machine, kernel_folder

HEADING = "| what makes the kernel look for a module |"
COLUMNS = {
    "mount": ["worker", "mount", ""],
    "mount, privileged": ["worker", "mount", "privileged"],
    "user": ["worker", "user", ""],
    "guard": ["worker", "guard", ""],
    "lockdown, mount": ["run", "mount", "--lockdown"],
    "lockdown, user": ["run", "user", "--lockdown"],
    "lockdown, guard": ["run", "guard", "--lockdown"],
}
"""The columns of the table, and what they are measured with."""


def measure(library: str, program: str, columns: dict[str, list[str]]) -> dict[str, list[str]]:
    """What autoload.c says in the guest, line by line: outside, and in each of `columns`."""
    import os
    import subprocess
    from pathlib import Path

    import pynvml

    import nvsandbox

    modprobe = Path("/run/modprobe")
    modprobe.write_text('#!/bin/sh\necho "$@" >>/run/modprobe.log\nexit 1\n')
    modprobe.chmod(0o755)
    Path("/run/modprobe.log").touch()
    Path("/proc/sys/kernel/modprobe").write_text(f"{modprobe}\n")
    Path("/run/program").write_bytes(bytes(range(1, 65)))
    os.chmod("/run/program", 0o755)
    os.environ["AUTOLOAD_PROGRAM"] = "/run/program"
    os.mknod("/dev/nvidia8", 0o20666, os.makedev(195, 8))

    def lines(*command: str) -> list[str]:
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()

    found = {"outside": lines(program)}
    for column, (kind, isolation, more) in columns.items():
        if kind == "run":
            run = f"{nvsandbox.__path__[0]}/nvsandbox-run"
            found[column] = lines(run, "--isolation", isolation, more, "--", program)
            continue
        found[column] = []
        with nvsandbox.nvml_isolated(library=library, isolation=isolation, privileged=bool(more)) as nvml:
            while True:
                try:
                    found[column].append(nvml.nvmlSystemGetProcessName(len(found[column])))
                except pynvml.NVMLError_NotFound:
                    break
    return found


Measured = dict[str, dict[str, tuple[int, str]]]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, _stand_in_for_dev: None) -> Measured:
    """For outside and each column: attempt to errno and what modprobe was asked for."""
    kernel = kernel_folder()
    folder = tmp_path_factory.mktemp("vm")
    source = Path(__file__).with_name("autoload.c")
    library, program = folder / "libautoload.so", folder / "autoload"
    for target, how in ((library, ["-shared", "-fPIC"]), (program, [])):
        warnings = ["-std=gnu11", "-Wall", "-Wextra", "-Werror"]
        subprocess.run(["cc", *warnings, *how, "-o", target, source], check=True)
    said = Machine(folder, kernel).run(measure, library=str(library), program=str(program), columns=COLUMNS)
    return {
        where: {name: (int(err), asked) for name, err, asked in (line.split("\t") for line in lines)}
        for where, lines in said.items()
    }


def test_the_attempts_do_it_outside(measured: Measured) -> None:
    """S6: else nothing would be shown by their failing inside."""
    assert len(measured["outside"]) > 10
    assert not [name for name, (_, asked) in measured["outside"].items() if not asked], measured["outside"]


@pytest.mark.parametrize("column", ["mount", "mount, privileged", "user"])
def test_no_module_loads(measured: Measured, column: str) -> None:
    """S6: for nothing at all, as promised; whatever the table says."""
    assert not {name: asked for name, (_, asked) in measured[column].items() if asked}


@pytest.mark.parametrize("column", COLUMNS)
def test_the_table_is_true(measured: Measured, column: str) -> None:
    """S6: what else there is to try, and what *guard* and a program under --lockdown can do, is in the table."""
    cells = {name: "yes" if asked else "no" for name, (_, asked) in measured[column].items()}
    assert security_tables.compare(HEADING, column, cells), measured[column]
