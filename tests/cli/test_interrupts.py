# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C at any moment: a command ends by SIGINT, and says nothing."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import host as stand_in
import pytest
from host import require

import nvsandbox

COMMAND = str(Path(sys.executable).parent / "nvsandbox")
PACKAGE = os.path.dirname(nvsandbox.__path__[0])
INTERRUPT = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"


def start(*arguments: str, path: Path | None = None, **more: object) -> subprocess.Popen[str]:
    environment = {name: text for name, text in os.environ.items() if not name.startswith("NVSANDBOX_")}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    return subprocess.Popen(
        [COMMAND, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd="/", env=environment, start_new_session=True, **more,
    )  # type: ignore[call-overload, no-any-return]  # fmt: skip


def is_pythons_own(traceback: str) -> bool:
    """Whether Python was interrupted before it had come to anything of this package. Nothing can be done about that."""
    frames = re.findall(r'File "(.*?)", line', traceback)
    ours = [f for f in frames if f.startswith((f"{PACKAGE}/nvsandbox/", f"{PACKAGE}/nvsandbox_command"))]
    return "KeyboardInterrupt" in traceback and bool(frames) and not ours


@pytest.mark.parametrize(
    "arguments",
    [
        ("query", "--simulate", "h100x8", "--watch", "0.01", "--json"),
        ("query", "--simulate", "h100x8", "--processes"),
        ("doctor", "--simulate", "h100"),
        ("nodes", "--cdi-dir", "/nowhere"),
        ("run", "--report", "--simulate", "h100", "--", "sleep", "5"),
        ("run", "--", "sleep", "5"),
        ("audit", "--", "sleep", "5"),
    ],
    ids=lambda arguments: "-".join(arguments[:2]),
)
def test_at_any_moment(arguments: tuple[str, ...]) -> None:
    """As a terminal sends it: to the command and to what it has started."""
    require(arguments[0] != "audit" or stand_in.can_play_host(), "needs CAP_SYS_ADMIN")
    moments, ours, tries = random.Random(1), 0, 0
    while tries < 9 or (not ours and tries < 60):
        tries += 1
        process = start(*arguments)
        # Later and later, where this machine is so busy that Python itself takes that long.
        time.sleep(moments.uniform(0, 0.3 * max(1, tries / 9)))
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
        if is_pythons_own(err):
            continue
        ours += 1
        assert "Traceback" not in err, err
        assert "KeyboardInterrupt" not in err, err
        # --report: the program was ended by it. audit: the same is in the report. Others may have been ready.
        expected = {"run": {130} if "--report" in arguments else set(), "audit": {0}}.get(arguments[0], {0, 1})
        assert process.returncode in expected | {-signal.SIGINT}, (process.returncode, out, err)
    assert ours


def test_while_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text(f"{INTERRUPT}raise RuntimeError('it went on')\n")
    process = start("nodes", path=tmp_path)
    assert (*process.communicate(timeout=30), process.returncode) == ("", "", -signal.SIGINT)


def test_where_an_import_makes_another_error_of_it(tmp_path: Path) -> None:
    """As Python does before 3.12, where it falls into the making of a class."""
    (tmp_path / "yaml.py").write_text(
        "try:\n    import os, signal, time\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(1)\n"
        "except KeyboardInterrupt as error:\n    raise RuntimeError('Error calling __set_name__') from error\n"
    )
    specs = tmp_path / "cdi"
    specs.mkdir()
    (specs / "nvidia.yaml").write_text("kind: nvidia.com/gpu\n")
    process = start("nodes", "--cdi-dir", str(specs), path=tmp_path)
    assert (*process.communicate(timeout=30), process.returncode) == ("", "", -signal.SIGINT)


def test_where_python_forgets_it(tmp_path: Path) -> None:
    """In a destructor: it is printed, and the program goes on."""
    (tmp_path / "yaml.py").write_text(
        "import os, signal, time\n"
        "class Object:\n"
        "    def __del__(self):\n        os.kill(os.getpid(), signal.SIGINT)\n        time.sleep(1)\n"
        "Object()\n"
    )
    specs = tmp_path / "cdi"
    specs.mkdir()
    (specs / "nvidia.yaml").write_text("kind: nvidia.com/gpu\n")
    process = start("nodes", "--cdi-dir", str(specs), path=tmp_path)
    assert (*process.communicate(timeout=30), process.returncode) == ("", "", -signal.SIGINT)


def test_other_errors_that_python_forgets_are_told_as_ever(tmp_path: Path) -> None:
    (tmp_path / "yaml.py").write_text(
        "class Object:\n    def __del__(self):\n        raise ValueError('so')\nObject()\n"
    )
    specs = tmp_path / "cdi"
    specs.mkdir()
    (specs / "nvidia.yaml").write_text("kind: nvidia.com/gpu\n")
    _, err = start("nodes", "--cdi-dir", str(specs), path=tmp_path).communicate(timeout=30)
    assert "Exception ignored in" in err
    assert "ValueError: so" in err


ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def ignoring() -> None:
    for number in ENDS:
        signal.signal(number, signal.SIG_IGN)


def test_what_is_ignored_stays_so() -> None:
    """As in the background of a script, and by nohup."""
    options = ("--json", "--watch", "0.1", "--count", "8")
    with start("query", "--simulate", "h100", *options, preexec_fn=ignoring) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines = []
        for number in ENDS:
            lines.append(process.stdout.readline())  # its handlers are there, and it goes on for some time
            process.send_signal(number)
        lines += process.stdout.readlines()
        err = process.stderr.read()
    assert (len(lines), err, process.returncode) == (8, "", 0)


def test_what_is_ignored_stays_so_for_an_audit_and_its_command() -> None:
    require(stand_in.can_play_host(), "needs CAP_SYS_ADMIN")
    show = "trap; grep SigIgn /proc/self/status; sleep 1"
    process = start("audit", "--", "sh", "-c", show, preexec_fn=ignoring)
    assert process.stdout is not None
    ignored = int(process.stdout.readline().split()[1], 16)
    assert {number for number in ENDS if ignored & 1 << number - 1} == set(ENDS)
    for number in ENDS:
        os.killpg(process.pid, number)
    out, err = process.communicate(timeout=30)
    assert (err, process.returncode) == ("", 0)
    assert "sh ended with status 0" in out


def test_as_the_first_process_of_a_pid_namespace() -> None:
    """That one no signal ends which it does not catch: it exits with the status that shells show."""
    require(os.geteuid() == 0, "needs root, to make a pid namespace")
    watch = [COMMAND, "query", "--simulate", "h100", "--watch", "60", "--json"]
    process = subprocess.Popen(
        ["unshare", "--fork", "--pid", "--mount-proc", "sh", "-c", 'exec "$@"', "sh", *watch],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/",
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    child = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])
    os.kill(child, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "")
