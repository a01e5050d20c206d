# SPDX-License-Identifier: Apache-2.0
"""``nvsandbox audit --host``: what happens in a real /dev, which here is a stand-in, while others run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from auditing import Audit
from host import can_play_host, require

from nvsandbox.audit import connector


@pytest.fixture
def scratch() -> Any:
    """Removes what a test makes in the stand-in."""
    yield Path("/dev")
    for name in ("nvidia0", "watched", "moved"):
        path = Path("/dev", name)
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def hears_of_processes() -> bool:
    try:
        connector.open_events().close()
    except OSError:
        return False
    return True


def until_watching(process: subprocess.Popen[str]) -> str:
    """What it has said by the time that it watches."""
    assert process.stderr is not None
    said = ""
    while "watching" not in said:
        line = process.stderr.readline()
        assert line, said
        said += line
    return said


def watched(audit: Audit, script: str, *options: str, end: bool = True) -> tuple[list[dict[str, Any]], int, str]:
    """What was told while a script ran. At `echo PATH; read` the script waits until something was told of that."""
    process = audit.start("--host", "--json", *options)
    said = until_watching(process)
    assert process.stdout is not None
    assert process.stderr is not None
    events: list[dict[str, Any]] = []
    with subprocess.Popen(["bash", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as ran:
        assert ran.stdin is not None
        assert ran.stdout is not None
        for line in ran.stdout:
            while line.rstrip() not in {event["path"] for event in events}:
                events.append(json.loads(process.stdout.readline()))
            ran.stdin.write("go on\n")
            ran.stdin.flush()
    assert ran.returncode == 0
    if end:
        process.send_signal(signal.SIGINT)
    events += [json.loads(line) for line in process.stdout]
    said += process.stderr.read()
    process.communicate(timeout=60)
    return events, process.returncode, said


def test_each_event_with_who_it_was(audit: Audit, scratch: Path) -> None:
    script = (
        "mkdir /dev/watched; mknod /dev/watched/nvidia0 c 195 0; chmod 600 /dev/watched/nvidia0;"
        "ln -s nowhere /dev/watched/link; mv /dev/watched/link /dev/moved; echo /dev/moved; read;"
        "rm -r /dev/watched; true"  # which bash does itself; for a program that comes last it makes no process
    )
    events, status, said = watched(audit, f"exec -a culprit bash -c '{script}'")
    assert status == 1
    told = {(event["what"], event["path"]) for event in events}
    assert {
        ("created", "/dev/watched"),
        ("created", "/dev/watched/nvidia0"),
        ("removed", "/dev/watched/nvidia0"),
        ("removed", "/dev/watched"),
        ("created", "/dev/moved"),
    } <= told
    # Who ended at once may be unnamed; from whom it came is known.
    for event in events:
        if event["what"] in ("created", "removed"):
            assert event["by"], event
            if "may stay unnamed" not in said:  # the kernel tells of processes here
                assert any("culprit" in process["cmdline"] for process in event["by"][1:]), event
    [node] = [event for event in events if (event["what"], event["path"]) == ("created", "/dev/watched/nvidia0")]
    assert (node["after"]["major"], node["after"]["minor"]) == (195, 0)


# Whoever begins, acts and ends while the watch is between hearing of processes and reading what happened.
BETWEEN = """
import subprocess, sys
from nvsandbox.audit.watch import Watch

class Late(Watch):
    def _hear(self):
        super()._hear()
        if names:
            subprocess.run(["mkdir", f"/dev/watched/{names.pop()}"], check=True)

names = []
with Late() as watch:
    names += ["one", "two", "three"]
    subprocess.run(["mkdir", "/dev/watched"], check=True)
    for event in watch.events(0.5):
        print(event.what, event.path, *[process.pid for process in event.by])
"""


def test_who_begins_while_the_watch_is_at_work(scratch: Path) -> None:
    require(can_play_host(), "needs CAP_SYS_ADMIN, to watch by fanotify")
    require(hears_of_processes(), "needs the process events connector, in the machine's own pid and network namespaces")
    program = subprocess.Popen([sys.executable, "-c", BETWEEN], stdout=subprocess.PIPE, text=True, cwd="/")
    out, _ = program.communicate(timeout=60)
    assert program.returncode == 0
    told = {path: pids for what, path, *pids in (line.split() for line in out.splitlines()) if what == "created"}
    assert told.keys() == {"watched", "watched/one", "watched/two", "watched/three"}
    for path, pids in told.items():
        assert str(program.pid) in pids[1:], (path, pids)


def test_a_process_that_lives_on_is_named(audit: Audit, scratch: Path) -> None:
    events, _, _ = watched(
        audit,
        "python3 -c \"import os; os.mknod('/dev/nvidia0', 0o20666, os.makedev(195, 0)); "
        "print('/dev/nvidia0', flush=True); input()\"",
    )
    [event] = [event for event in events if event["what"] == "created"]
    assert event["path"] == "/dev/nvidia0"
    assert event["by"][0]["name"].startswith("python3")
    assert event["by"][0]["uid"] == os.geteuid()


def test_a_limit_and_nothing_to_tell(audit: Audit) -> None:
    events, status, said = watched(audit, "true", "--for", "0.4s", end=False)
    assert (events, status) == ([], 0)
    assert "for 0.4 s" in said


def test_text_and_what_is_not_watched(audit: Audit, scratch: Path) -> None:
    process = audit.start("--host", "--for", "2s")
    assert process.stderr is not None
    said = ""
    while "watching /dev" not in said:
        said += process.stderr.readline()
    (scratch / "watched").mkdir()
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "created /dev/watched: folder" in out
    assert f"[{os.getpid()}]" in out
    assert out.splitlines()[-1] == "-- 1 change in /dev"
    assert "/dev/shm is a file system of its own and is not watched" in said


def test_what_was_there_before_is_known(audit: Audit, scratch: Path) -> None:
    os.mknod("/dev/nvidia0", 0o020600, os.makedev(195, 0))
    events, _, _ = watched(audit, "chmod 666 /dev/nvidia0; echo /dev/nvidia0; read; rm /dev/nvidia0")
    assert [(event["what"], event["path"]) for event in events] == [
        ("changed", "/dev/nvidia0"),
        ("removed", "/dev/nvidia0"),
    ]
    assert (events[0]["before"]["mode"], events[0]["after"]["mode"]) == ("0600", "0666")


def test_another_time_alone_is_no_change(audit: Audit) -> None:
    events, status, _ = watched(audit, "touch /dev/null")
    assert status == 0
    assert {(event["what"], event["path"]) for event in events} == {("touched", "/dev/null")}


def test_a_limit_holds_in_a_flood(audit: Audit) -> None:
    process = audit.start("--host", "--for", "1s", "--output", "/dev/null")
    flood = "import os\nwhile True: os.mkdir('/dev/flood'); os.rmdir('/dev/flood')"
    other = subprocess.Popen([sys.executable, "-S", "-E", "-c", flood])
    try:
        assert process.wait(timeout=30) == 1
    finally:
        other.kill()
        other.wait()
        process.communicate()
        shutil.rmtree("/dev/flood", ignore_errors=True)


def test_another_folder(audit: Audit, tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    process = audit.start("--host", "--json", "--for", "2s", "--dev", str(tmp_path / "dev"))
    until_watching(process)
    (tmp_path / "dev" / "nvidia0").write_text("")
    (tmp_path / "outside").write_text("")
    out, _ = process.communicate(timeout=30)
    events = [json.loads(line) for line in out.splitlines()]
    assert {event["path"] for event in events} == {str(tmp_path / "dev" / "nvidia0")}


def test_a_folder_that_is_not_there(audit: Audit) -> None:
    done = audit.run("--host", "--dev", "/no/such", "--for", "1s")
    assert done.returncode == 125
    assert "/no/such: No such file or directory" in done.stderr
