# SPDX-License-Identifier: Apache-2.0
"""What a library that means harm can do from inside the worker: measured, and compared with what docs/security.md says
in its table, cell by cell."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import security_tables
from host import NOBODY, Host, require

HEADING = "| a hostile library can |"

STEPS: dict[str, dict[str, Any]] = {
    "mount": {"isolation": "mount"},
    "mount, privileged": {"isolation": "mount", "privileged": True},
    "user": {"isolation": "user"},
    "user, not root": {"isolation": "user", "uid": NOBODY},
    "guard": {"isolation": "guard"},
    "guard, not root": {"isolation": "guard", "uid": NOBODY},
}
"""The columns of the table, and what they are measured with."""

IN_THE_HOSTS_DEV = "create, change or remove a name in the host's `/dev`"
ABSTRACT = "connect to a Unix socket with an abstract name"
READ_ONLY_IN_CONTAINERS = ("`/proc/sys`", "`/sys`")

NO, YES, WITH_LANDLOCK, ON_NEW_KERNELS = "no", "yes", "no ¹", "yes ²"
"""The cells. The last two: where the kernel has Landlock, else yes; as of Linux 6.13, else no."""


def set_up() -> None:
    """A host with a driver, whose majors are registered, and with a device that is not NVIDIA's (of /dev/zero's
    number)."""
    import os
    import tempfile

    import host

    os.mknod("/dev/other-device", 0o20600, os.makedev(1, 5))
    with tempfile.NamedTemporaryFile("w", suffix="-devices") as file:
        file.write("Character devices:\n  1 mem\n195 nvidia\n235 nvidia-caps\n\nBlock devices:\n")
        file.flush()
        host.mount(file.name, "/proc/devices", flags=host.MS_BIND)
    if os.environ["HOSTILE_LANDLOCK"] == "no":
        host._NUMBERS[os.uname().machine]["landlock_create_ruleset"] = 444
        host._filter([("landlock_create_ruleset", None, 0, 0x00050000 | 38)])  # ENOSYS, as from a kernel without it


def attack(library: str, program: str, isolation: str, privileged: bool) -> dict[str, Any]:
    """Makes all the attempts in a worker; returns (row, attempt, errno) of each, and what of the host was changed."""
    import contextlib
    import ctypes
    import os
    import shutil
    import signal
    import socket
    import subprocess
    import sys
    import tempfile

    import host
    import pynvml

    import nvsandbox

    libc = ctypes.CDLL(None, use_errno=True)
    signals: list[int] = []
    signal.signal(signal.SIGUSR2, lambda number, _: signals.append(number))
    # Without capabilities, for a process may trace one that has none that it lacks itself.
    idle = (
        "import ctypes, sys\n"
        "header = (ctypes.c_uint * 2)(0x20080522, 0)\n"
        "assert ctypes.CDLL(None).capset(header, (ctypes.c_uint * 6)()) == 0\n"
        "print(flush=True)\n"
        "sys.stdin.read()\n"
    )
    found: list[tuple[str, str, int]] = []
    with contextlib.ExitStack() as stack:
        folder = tempfile.mkdtemp(prefix="hostile-")
        stack.callback(shutil.rmtree, folder)
        for name in ("file", "spare"):
            with open(f"{folder}/{name}", "w") as file:
                file.write("text")
        os.mkdir(f"{folder}/spare-folder")
        shutil.copy(program, f"{folder}/setuid-program")
        os.chmod(f"{folder}/setuid-program", 0o4755)
        for address in (f"{folder}/socket", f"\0hostile-{os.getpid()}"):
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(address)
            listener.listen()
        stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)).bind(f"{folder}/datagrams")
        segment = libc.shmget(0, 4096, 0o1600)
        stack.callback(libc.shmctl, segment, 0, None)
        bystander = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-S", "-E", "-c", idle], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/dev"
            )
        )
        assert bystander.stdout is not None
        bystander.stdout.readline()
        terminals = os.openpty()
        for descriptor in terminals:
            stack.callback(os.close, descriptor)
        other = stack.enter_context(nvsandbox.nvml_isolated(simulate="h100x1", isolation=isolation))
        other.nvmlDeviceGetCount()  # opens its lane
        os.environ.update(
            HOSTILE_FOLDER=folder,
            HOSTILE_BYSTANDER=str(bystander.pid),
            HOSTILE_OTHER=str(other.session.pid),
            HOSTILE_SHM=str(segment),
            HOSTILE_ABSTRACT=f"hostile-{os.getpid()}",
            HOSTILE_TERMINAL=os.ttyname(terminals[1]),
        )
        before = (host.listing(), host.mounts(), host.privileges())
        with host.watching() as watch:
            # A worker for each: what one attempt has done to it, none of the next ones has.
            while True:
                with nvsandbox.nvml_isolated(library=library, isolation=isolation, privileged=privileged) as nvml:
                    assert nvml.session.isolation == isolation
                    try:
                        row, name, result = nvml.nvmlSystemGetProcessName(len(found)).split("\t")
                    except pynvml.NVMLError_NotFound:
                        break
                if name == "SIGIO" and result == "0" and not signals:
                    result = "1"  # it could be asked for and did not come
                found.append((row, name, int(result)))
        after = (host.listing(), host.mounts(), host.privileges())
    own = [os.access(path, os.W_OK) for path in ("/proc/sys/kernel/core_pattern", "/sys/kernel/mm")]
    return {
        "found": found,
        "own": own,
        "events": watch.seen,
        "same": [a == b for a, b in zip(before, after, strict=True)],
    }


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """hostile.c, compiled."""
    compiler = shutil.which("cc")
    require(compiler, "needs a C compiler")
    library = tmp_path_factory.mktemp("hostile") / "libhostile.so"
    source = Path(__file__).with_name("hostile.c")
    warnings = ["-Wall", "-Wextra", "-Werror"]
    subprocess.run([str(compiler), "-std=gnu11", "-shared", "-fPIC", *warnings, "-o", library, source], check=True)
    return library


@pytest.mark.parametrize("landlock", ["with Landlock", "without"])
@pytest.mark.parametrize("step", STEPS)
def test_the_table_is_true(host_with_nobody: Host, library: Path, step: str, landlock: str) -> None:
    how = STEPS[step]
    version = landlock_version()
    if landlock == "with Landlock" and version < 3:  # the kernel's, which CI does not choose
        pytest.skip(f"needs Landlock as of Linux 6.2; this kernel's version of it is {version}")
    measured = host_with_nobody.run(
        attack,
        setup=set_up,
        uid=how.get("uid"),
        env={"HOSTILE_LANDLOCK": "yes" if landlock == "with Landlock" else "no"},
        library=host_with_nobody.readable(library),
        program="/bin/true",
        isolation=how["isolation"],
        privileged=how.get("privileged", False),
    )
    if security_tables.WRITING and not write(step, landlock, measured):
        return
    heading, *table = security_tables.rows(HEADING)
    column = heading.index(step)
    told = {row[0]: says(row[column], landlock) for row in table}
    if version < 6:  # Linux 6.12
        told[ABSTRACT] |= next(row[column] for row in table if row[0] == ABSTRACT) == WITH_LANDLOCK
    for name, writable in zip(READ_ONLY_IN_CONTAINERS, measured["own"], strict=True):
        if not writable:  # for the caller either
            told.update({row: False for row in told if name in row})
    done: dict[str, list[str]] = {row: [] for row in told}
    for row, name, result in measured["found"]:
        done.setdefault(row, [])
        if result == 0:
            done[row].append(name)
    wrong = {row: worked for row, worked in done.items() if bool(worked) != told.get(row)}
    details = [(row, name, errno.errorcode.get(result, "")) for row, name, result in measured["found"] if row in wrong]
    assert not wrong, f"what worked, where the table says otherwise: {wrong}; in detail: {details}"
    assert measured["same"] == [True, True, True], "the host's /dev, mounts, the caller's privileges"
    # Whatever was made there was removed again, but this sees it.
    assert bool(measured["events"]) == told[IN_THE_HOSTS_DEV], measured["events"]


def says(cell: str, landlock: str) -> bool:
    """Whether it works, by the cell, on this kernel."""
    return {NO: False, YES: True, WITH_LANDLOCK: landlock == "without", ON_NEW_KERNELS: kernel() >= (6, 13)}[cell]


worked: dict[str, dict[str, dict[str, bool]]] = {}
"""Where the table is written: step to with Landlock or without to row to whether any of it worked."""


def write(step: str, landlock: str, measured: dict[str, Any]) -> bool:
    """Puts the step's column into the table, once it is known with Landlock and without. Whether it is."""
    writable = STEPS[step].get("uid") is not None or all(measured["own"])
    assert writable, "to write the table takes a machine where root can write to /proc/sys and /sys"
    assert landlock_version() >= 6, "to write the table takes a kernel with all of Landlock (Linux 6.12)"
    found: dict[str, bool] = {}
    for row, _, result in measured["found"]:
        found[row] = found.get(row, False) or result == 0
    worked.setdefault(step, {})[landlock] = found
    if len(worked[step]) < 2:
        return False
    heading, *table = security_tables.rows(HEADING)
    old = {row[0]: row[heading.index(step)] for row in table}
    cells = {row: cell(old.get(row, ""), {how: worked[step][how][row] for how in worked[step]}) for row in found}
    security_tables.write(HEADING, step, cells)
    return True


def cell(old: str, found: dict[str, bool]) -> str:
    """A cell that is true stays: of those that are, one kernel does not show which is true on others."""
    for candidate in (old, NO, YES, WITH_LANDLOCK):
        if candidate and all(says(candidate, landlock) == works for landlock, works in found.items()):
            return candidate
    raise AssertionError(f"no cell says {found}")


def kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])


def landlock_version() -> int:
    import ctypes

    return int(ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1))
