# SPDX-License-Identifier: Apache-2.0
"""``nvsandbox audit -- COMMAND``: what it names, and that the command notices nothing of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import host
import pytest
from auditing import Audit, compiled, names
from host import NOBODY, Host, require

from nvsandbox import simulate
from nvsandbox.audit import calls
from nvsandbox.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "cli" / "audit.md"
MOUNTED = ("/dev/pts/", "/dev/shm/")
HELPER = """
#define _GNU_SOURCE
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>
int main (void)
{
    umask (0);
    _exit (mknod ("/dev/nvidiactl", S_IFCHR | 0666, makedev (195, 255)) != 0);
}
"""


def shell(audit: Audit, script: str, **more: Any) -> dict[str, Any]:
    return audit.report("sh", "-c", script, **more)


def brief(report: dict[str, Any]) -> list[tuple[str, str]]:
    return [(change["what"], change["path"]) for change in report["changes"]]


def test_each_change_with_who_made_it(audit: Audit) -> None:
    cap = "/dev/nvidia-caps/nvidia-cap1"
    report = shell(
        audit,
        f"mkdir /dev/nvidia-caps; mknod -m 600 {cap} c 240 1; chmod 444 {cap}; chown 7:8 {cap};"
        "ln -s ../zero /dev/char/1:5; rm /dev/full; mv /dev/zero /dev/nought; ln -sf pts/other /dev/ptmx; : >/dev/null",
    )
    assert report["status"] == 1
    assert report["exit_status"] == 0
    # ln -sf makes a link under a passing name, and renames it.
    changes = [change for change in report["changes"] if names(change)[0] != "ln" or "char" in change["path"]]
    assert [(change["what"], change["path"], names(change)) for change in changes] == [
        ("created", "/dev/nvidia-caps", ["mkdir", "sh"]),
        ("created", cap, ["mknod", "sh"]),
        ("changed", cap, ["chmod", "sh"]),
        ("changed", cap, ["chown", "sh"]),
        ("created", "/dev/char/1:5", ["ln", "sh"]),
        ("removed", "/dev/full", ["rm", "sh"]),
        ("removed", "/dev/zero", ["mv", "sh"]),
        ("created", "/dev/nought", ["mv", "sh"]),
    ]
    [ptmx] = [change for change in report["changes"] if change["path"] == "/dev/ptmx"]
    assert (ptmx["what"], ptmx["before"]["target"], ptmx["after"]["target"]) == ("replaced", "pts/ptmx", "pts/other")
    created = changes[1]
    assert (created["after"]["major"], created["after"]["minor"], created["after"]["mode"]) == (240, 1, "0600")
    assert created["by"][0]["exe"].endswith("/mknod")
    assert created["by"][0]["cmdline"][:3] == ["mknod", "-m", "600"]
    assert created["call"] in ("mknod", "mknodat")
    assert (changes[3]["before"]["uid"], changes[3]["after"]["uid"]) == (0, 7)


def test_every_call_that_is_stopped_at_is_attributed(audit: Audit) -> None:
    library = str(Path(calls.__file__).parent)
    report = audit.report(sys.executable, "-S", "-E", str(Path(__file__).with_name("every_call.py")), library)
    assert report["exit_status"] == 0, report["errors"]
    made = set(report["output"].split())
    known = {call.name for call in calls.calls().values() if not call.starts}
    assert made <= known
    assert known - made <= {"openat2", "fchmodat2"}  # which older kernels lack
    attributed = {change["call"] for change in report["changes"] if change["path"].startswith("/dev/every/")}
    assert made - attributed == set()
    assert None not in attributed
    # What each of them did, and nothing else, is its own.
    for change in report["changes"]:
        if "/new-" in change["path"]:
            assert change["path"] == f"/dev/every/new-{change['call']}"


def test_a_helper_that_lives_for_a_moment_is_named_and_setuid_works(audit: Audit, readable_folder: Path) -> None:
    require(shutil.which("setpriv"), "needs setpriv")
    helper = compiled(HELPER, readable_folder / "nv-modprobe")
    helper.chmod(0o4755)
    script = f"exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups sh -c '{helper}; {helper}; exit 0'"
    report = shell(audit, script)
    [change] = report["changes"]
    assert (change["what"], change["path"], change["after"]["mode"]) == ("created", "/dev/nvidiactl", "0666")
    assert names(change) == ["nv-modprobe", "sh"]
    assert change["by"][0]["exe"] == str(helper)
    assert [process["uid"] for process in change["by"]] == [0, NOBODY]


def test_who_only_tried_is_not_blamed(audit: Audit) -> None:
    require(shutil.which("setpriv"), "needs setpriv")
    report = shell(
        audit,
        f"setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups mknod /dev/nvidia0 c 195 0; "
        f"cp $(command -v mknod) {audit.folder}/culprit; {audit.folder}/culprit /dev/nvidia0 c 195 0; "
        "mknod /dev/nvidia0 c 195 0; exit 0",
    )
    [change] = report["changes"]
    assert names(change) == ["culprit", "sh"]


def test_what_nobody_was_seen_doing_is_found(audit: Audit, tmp_path: Path) -> None:
    """Here by the system call of a 32-bit program, at which the filter does not stop."""
    program = compiled(
        """
        #define _GNU_SOURCE
        #include <string.h>
        #include <sys/mman.h>
        int main (void)
        {
        #ifdef __x86_64__
            char *path = mmap (0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
            int result;
            strcpy (path, "/dev/by-stealth");
            __asm__ volatile ("int $0x80" : "=a" (result) : "a" (39), "b" (path), "c" (0755) : "memory");
            return result != 0;
        #else
            return 77;
        #endif
        }
        """,
        tmp_path / "stealth",
    )
    report = audit.report(str(program))
    require(report["exit_status"] == 0, "needs a kernel with 32-bit system calls")
    [change] = report["changes"]
    assert (change["what"], change["path"], change["call"], change["by"]) == ("created", "/dev/by-stealth", None, [])


def test_what_is_left_running_is_watched_on(audit: Audit) -> None:
    report = shell(audit, "(setsid sh -c 'sleep 0.4; mknod /dev/nvidia0 c 195 0; exit 0' &) ; exit 3")
    assert report["exit_status"] == 3
    [change] = report["changes"]
    assert names(change)[:2] == ["mknod", "sh"]
    assert names(change)[-1] == "sh"
    assert "what it has left running is watched on" in report["errors"]


def test_the_command_sees_a_dev_like_the_hosts(audit: Audit) -> None:
    os.mkdir("/dev/odd")
    os.mkfifo("/dev/odd/fifo", 0o640)
    os.symlink("nowhere", "/dev/odd/dangling")
    Path("/dev/odd/file").write_text("text")
    os.chown("/dev/odd/file", 5, 6)
    os.mknod("/dev/odd/nvidia0", stat.S_IFCHR | 0o604, os.makedev(195, 0))
    sock = socket.socket(socket.AF_UNIX)
    sock.bind("/dev/odd/socket")
    try:
        code = "import sys, json; sys.path.insert(0, sys.argv[1]); import host; print(json.dumps(host.listing()))"
        report = audit.report(sys.executable, "-c", code, str(Path(host.__file__).parent))
        inside, outside = (
            {path: list(facts[:3] + facts[5:]) for path, facts in found.items() if not path.startswith(MOUNTED)}
            for found in (json.loads(report["output"]), json.loads(json.dumps(host.listing())))
        )
        assert inside == outside
        assert report["changes"] == []
        assert report["status"] == 0
    finally:
        sock.close()
        shutil.rmtree("/dev/odd")


def test_the_command_keeps_its_descriptors_environment_and_folder(audit: Audit) -> None:
    code = "import os; print(sorted(os.listdir('/proc/self/fd'))[:-1], os.getcwd(), os.environ['MARK'])"
    command = [sys.executable, "-c", code]
    env = {**os.environ, "MARK": "x"}
    alone = subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, stdin=subprocess.DEVNULL)
    report = audit.report(*command, env=env)
    assert report["output"] == alone.stdout


@pytest.mark.parametrize(
    ("script", "status", "number"),
    [("exit 0", 0, None), ("exit 42", 42, None), ("kill -TERM $$", None, 15), ("kill -KILL $$", None, 9)],
)
def test_the_commands_own_status_is_in_the_report(
    audit: Audit, script: str, status: int | None, number: int | None
) -> None:
    report = shell(audit, script)
    assert (report["exit_status"], report["signal"], report["status"]) == (status, number, 0)


def test_a_limit_ends_the_command(audit: Audit) -> None:
    report = shell(audit, "mkdir /dev/mine; sleep 60", options=("--for", "2s"))
    assert report["timed_out"] is True
    assert report["signal"] == signal.SIGTERM
    assert report["status"] == 1
    assert brief(report) == [("created", "/dev/mine")]


def test_a_limit_ends_a_stubborn_command(audit: Audit) -> None:
    report = shell(audit, "trap '' TERM; while :; do sleep 0.1; done", options=("--for", "2s"))
    assert report["signal"] == signal.SIGKILL


def test_a_limit_holds_while_much_happens(audit: Audit) -> None:
    report = shell(audit, "while :; do : >/dev/shm/../null; done", options=("--for", "0.5s"))
    assert report["timed_out"] is True
    assert report["seconds"] < 20  # it goes on for ever


def test_ctrl_c_ends_the_command_and_not_the_report(audit: Audit) -> None:
    process = audit.start("--", "sh", "-c", "mkdir /dev/mine; echo; exec sleep 60", start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "sh was ended by SIGINT" in out
    assert "created /dev/mine" in out


def test_a_signal_is_passed_on(audit: Audit) -> None:
    process = audit.start("--", "sh", "-c", "trap 'mkdir /dev/mine; exit 5' TERM; echo; while :; do sleep 0.05; done")
    assert process.stdout is not None
    process.stdout.readline()
    process.terminate()
    out, _ = process.communicate(timeout=30)
    assert "ended with status 5" in out
    assert "created /dev/mine" in out


def test_text(audit: Audit) -> None:
    done = audit.run("sh", "-c", "echo hello; mknod /dev/nvidiactl c 195 255")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "hello"
    assert lines[1] == "-- nvsandbox audit: sh ended with status 0"
    assert re.fullmatch(
        r" +\d+\.\d{3} s  created /dev/nvidiactl: character device 195:255, mode 0644, root:root", lines[2]
    )
    assert re.fullmatch(r" +by (mknod\[\d+\] < )?sh\[\d+\] \(mknod(at)?\)|.*", lines[3])
    assert lines[-1] == "-- 1 change in /dev"
    done = audit.run("true")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "-- /dev would have been left as it was"


def test_json_on_standard_output_stands_alone(audit: Audit) -> None:
    done = audit.run("--json", "--", "echo", "hello")
    assert json.loads(done.stdout)["changes"] == []
    assert done.stderr == "hello\n"


def test_names_cannot_move_the_cursor(audit: Audit) -> None:
    done = audit.run("sh", "-c", "mkdir \"$(printf '/dev/a\\033[2J')\"")
    assert done.returncode == 1
    assert "\x1b" not in done.stdout


def test_thousands_of_nodes(audit: Audit) -> None:
    code = "import os\nos.mkdir('/dev/c')\nfor i in range(2048): os.mknod(f'/dev/c/c{i}', 0o20444, os.makedev(240, i))"
    report = audit.report(sys.executable, "-S", "-c", code)
    assert len(report["changes"]) == 2049
    assert {change["call"] for change in report["changes"]} <= {"mkdir", "mkdirat", "mknod", "mknodat"}


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ((), 125, "a COMMAND is missing"),
        (("--for", "soon", "--", "true"), 125, "expected a time such as 30s, 10m or 2h"),
        (("--for", "0", "--", "true"), 125, "expected a time"),
        (("--host", "--", "true"), 125, "give it or a COMMAND"),
        (("--dev", "/x", "--", "true"), 125, "--dev goes with --host"),
        (("--", "/no/such/program"), 127, "/no/such/program cannot be run: No such file or directory"),
        (("--", "no-such-program"), 127, "no-such-program cannot be run"),
        (("--", "/etc/passwd"), 126, "/etc/passwd cannot be run: Permission denied"),
        (("--", "/"), 126, "/ cannot be run"),
        (("--output", "/no/such/file", "--", "true"), 125, "/no/such/file: No such file or directory"),
        (("--", sys.executable, "-m", "nvsandbox", "audit", "--", "true"), 0, "runs under another such audit"),
    ],
)
def test_what_cannot_be_done_is_said(audit: Audit, arguments: tuple[str, ...], status: int, words: str) -> None:
    done = audit.run(*arguments)
    assert done.returncode == status
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def unprivileged() -> list[tuple[int, str]]:
    import subprocess
    import sys

    found = []
    for arguments in (["--", "true"], ["--host", "--for", "1s"]):
        command = [sys.executable, "-m", "nvsandbox", "audit", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/")
        found.append((done.returncode, done.stderr))
    return found


def test_without_privileges(host_with_nobody: Host) -> None:
    command, watching = host_with_nobody.run(unprivileged, uid=NOBODY)
    assert command[0] == 125
    assert "needs CAP_SYS_ADMIN; run it as root" in command[1]
    assert watching[0] == 125
    assert "it needs CAP_SYS_ADMIN" in watching[1]


def test_everything_is_documented(audit: Audit) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for option in main.commands["audit"].params:
        if option.opts[0].startswith("--"):
            assert f"`{option.opts[0]}" in page, option.opts[0]
    report = json.loads(audit.run("--json", "--", "mkdir", "/dev/x").stdout)
    [change] = report["changes"]
    keys = {*report, *change, *change["after"], *change["by"][0]}
    assert keys <= set(re.findall(r"`([a-z_]+)`", page))


def test_many_threads_at_once(audit: Audit) -> None:
    code = """
import os, threading
def work(i):
    for k in range(50):
        path = f'/dev/t{i}-{k}'
        os.mknod(path, 0o20666, os.makedev(195, 0)); os.chmod(path, 0o600); os.unlink(path)
threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
[t.start() for t in threads]; [t.join() for t in threads]
"""
    report = audit.report(sys.executable, "-S", "-c", code)
    assert report["exit_status"] == 0
    # Each node is one thread's own, so that what became of it is all there.
    assert Counter(change["what"] for change in report["changes"]) == {"created": 300, "changed": 300, "removed": 300}
    assert all(change["by"] for change in report["changes"])


@pytest.mark.parametrize("which", ["too deep", "gone"])
def test_folders_that_are_not_looked_into(audit: Audit, which: str) -> None:
    deep = "/dev/" + "/".join(["a"] * 101)
    before = {"too deep": f"mkdir -p {deep}; cd {deep}", "gone": "mkdir /dev/d; cd /dev/d; rmdir /dev/d"}[which]
    report = audit.report("sh", "-c", f"{before}; touch node; mv node other; mkdir -p b/c; touch /dev/last")
    changes = [(change["what"], change["path"]) for change in report["changes"]]
    folders = [("created", "/dev/d"), ("removed", "/dev/d")]
    if which == "too deep":
        folders = [("created", "/dev/" + "/".join(["a"] * count)) for count in range(1, 102)]
    assert changes == [*folders, ("created", "/dev/last")]


def test_signals_do_not_disturb(audit: Audit) -> None:
    code = (
        "import os, signal\n"
        "signal.signal(signal.SIGALRM, lambda *_: None); signal.siginterrupt(signal.SIGALRM, False)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)\n"
        "for k in range(100): os.mkdir(f'/dev/s{k}'); os.rmdir(f'/dev/s{k}')\n"
        "signal.setitimer(signal.ITIMER_REAL, 0)"
    )
    report = audit.report(sys.executable, "-S", "-c", code)
    assert report["exit_status"] == 0, report["errors"]
    assert Counter(change["what"] for change in report["changes"]) == {"created": 100, "removed": 100}


def test_a_sandboxed_query_leaves_nothing(audit: Audit) -> None:
    """The sandbox works within an audit, and what NVML does in it is none of the host's."""
    report = audit.report(sys.executable, "-m", "nvsandbox", "query", "--simulate", "h100x2")
    assert report["exit_status"] == 0, report["errors"]
    assert report["output"].count("H100") == 2
    assert report["changes"] == []


def test_the_same_without_a_sandbox_is_seen(audit: Audit) -> None:
    library = str(simulate.parse("h100").library)
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).nvmlInit_v2()"
    report = audit.report(sys.executable, "-c", code, library)
    assert ("created", "/dev/nvidiactl") in brief(report)


def test_in_another_pid_namespace(audit: Audit) -> None:
    """Where the kernel does not tell of new processes: those that had ended are then unknown, but for the command."""
    file = audit.folder / "report.json"
    program = [sys.executable, "-m", "nvsandbox", "audit", "--json", "--output", str(file), "--", "sh", "-c"]
    script = "(setsid sh -c 'sleep 0.2; mkdir /dev/x; exit 0' &); exit 0"
    command = ["unshare", "-p", "-f", "--mount-proc", *program, script]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/")
    assert done.returncode == 1, done.stderr
    [change] = json.loads(file.read_text())["changes"]
    assert names(change)[:2] == ["mkdir", "sh"]
    assert names(change)[-2:] == [None, "sh"]
    assert change["by"][-2]["pid"] == 0


def test_the_command_is_slowed_down_little_elsewhere(audit: Audit, tmp_path: Path) -> None:
    """Files elsewhere are not looked into: a thousand are made and removed in reasonable time."""
    code = (
        f"import os\nfor i in range(1000):\n p = f'{tmp_path}/f{{i}}'; os.close(os.open(p, os.O_CREAT)); os.unlink(p)"
    )
    start = time.monotonic()
    report = audit.report(sys.executable, "-S", "-c", code)
    assert report["changes"] == []
    assert time.monotonic() - start < 20
