# SPDX-License-Identifier: Apache-2.0
"""``nvsandbox nodes --clean`` and ``--undo``: what is removed, what never is, and that it comes back as it was."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import host
import pytest
from click.testing import CliRunner, Result
from host import NOBODY

from nvsandbox import hostnodes, noderemoval, nodeundo
from nvsandbox.cli import main

if TYPE_CHECKING:
    from .conftest import Machine


def run(machine: Machine, *arguments: str) -> Result:
    places = ["--dev", str(machine.dev), "--proc", str(machine.proc), "--cdi-dir", str(machine.folder / "cdi")]
    return CliRunner().invoke(main, ["nodes", *places, *arguments], prog_name="nvsandbox")


def cleaned(machine: Machine, *arguments: str) -> tuple[Result, Path]:
    """Removes with --yes; the file to undo it by."""
    file = machine.folder / "undo.jsonl"
    # Where processes are looked up is the machine's /proc; there is nobody there.
    return run(machine, "--clean", "--yes", "--undo-file", str(file), *arguments), file


def contents(machine: Machine) -> dict[str, tuple[Any, ...]]:
    """What is below the /dev, without what a new file cannot have of an old one."""
    found = host.listing(str(machine.dev))
    return {path: (mode, rdev, owner, target) for path, (mode, rdev, owner, _, _, target) in found.items()}


@pytest.fixture
def lived(machine: Machine) -> Machine:
    """The machine's /proc has a process 1, so that nothing seems to be hidden."""
    folder = machine.proc / "1" / "fd"
    folder.mkdir(parents=True)
    (machine.proc / "1" / "comm").write_text("init\n")
    (machine.proc / "1" / "maps").write_text("")
    return machine


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    """A process that has the node open without opening its device, for there is no driver: an O_PATH descriptor."""
    code = f"import os; os.open({str(path)!r}, os.O_PATH); print(flush=True); input()"
    process = subprocess.Popen([sys.executable, "-S", "-E", "-c", code], stdin=-1, stdout=-1)
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        process.stdout.readline()
        yield process.pid
        process.stdin.close()
        process.wait()


def test_a_dry_run_changes_nothing(lived: Machine) -> None:
    lived.usual_nodes(0)
    before = host.listing(str(lived.dev))
    result = run(lived, "--clean")
    assert result.exit_code == 1
    assert host.listing(str(lived.dev)) == before
    assert f"would remove {lived.dev}/nvidia0: char 195:0, mode 0666, owner 0:0" in result.output
    assert f"would remove {lived.dev}/char/195:0: link to ../nvidia0" in result.output
    assert "nothing was changed: add --yes to do it" in result.output


def test_removal_and_its_undoing(lived: Machine) -> None:
    lived.usual_nodes(0)
    os.chown(lived.node("nvidia1", 195, 1, mode=0o640), 7, 8)
    lived.node("nvidia-caps/nvidia-cap1", 240, 1, mode=0o400, link=True)
    (lived.dev / "nvidia-caps").chmod(0o750)
    lived.node("null", 1, 3)
    before = contents(lived)
    result, file = cleaned(lived)
    assert result.exit_code == 0, result.output
    assert set(contents(lived)) == {f"{lived.dev}/char", f"{lived.dev}/null"}
    assert f"removed {lived.dev}/nvidia-caps: the folder" in result.output
    undo = f"nvsandbox nodes --dev {lived.dev} --proc {lived.proc} --undo {file}"
    assert result.output.splitlines()[-1] == f"to put it back: {undo}"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = run(lived, "--undo", str(file))
    assert again.exit_code == 0, again.output
    assert contents(lived) == before
    assert f"put back {lived.dev}/nvidia1: char 195:1, mode 0640, owner 7:8" in again.output


def test_an_undo_never_replaces_what_is_there(lived: Machine) -> None:
    lived.usual_nodes(0)
    _, file = cleaned(lived)
    (lived.dev / "nvidia0").write_text("mine")
    result = run(lived, "--undo", str(file))
    assert result.exit_code == 1
    assert f"not put back {lived.dev}/nvidia0: something is there now, and stays as it is" in result.output
    assert (lived.dev / "nvidia0").read_text() == "mine"
    assert (lived.dev / "nvidiactl").is_char_device()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"remove": "sda", "kind": "char", "number": [8, 0]}, "no name of a node of NVIDIA's"),
        ({"remove": "nvidia0", "kind": "block", "number": [195, 0]}, "no block of NVIDIA's"),
        ({"remove": "nvidia0", "kind": "char", "number": [1, 1]}, "would be 1:1, which is mem's"),
        ({"remove": "nvidia0", "kind": "char", "number": [8, 0]}, "would be 8:0"),
        ({"remove": "nvidia0", "kind": "char", "number": "195:0"}, "[major, minor] was expected"),
        ({"remove": "nvidia0", "kind": "char", "number": [195, 0], "mode": 0o4755}, "mode is 2541"),
        ({"remove": "nvidia0", "kind": "char", "number": [195, 0], "uid": -1}, "uid is -1"),
        ({"remove": "nvidia0", "kind": "char", "number": [195, 0], "uid": "root"}, "uid is 'root'"),
        ({"remove": "../nvidia0", "kind": "char", "number": [195, 0]}, "no name of a node"),
        ({"remove": "/etc/nvidia0", "kind": "char", "number": [195, 0]}, "no name of a node"),
        ({"remove": "char/195:0", "kind": "link", "target": "/etc/shadow"}, "no node of NVIDIA's"),
        ({"remove": "char/8:0", "kind": "link", "target": "../nvidia0"}, "no link by a number of NVIDIA's"),
        ({"remove": "nvidia0", "kind": "link", "target": "../nvidia0"}, "no link by a number of NVIDIA's"),
        ({"remove": "nvidia-evil", "kind": "folder"}, "no folder of NVIDIA's"),
        ({"remove": "nvidia0", "kind": "char", "number": [195, 0], "aside": "../../etc/shadow"}, "aside is"),
        ({"remove": 3, "kind": "char"}, "remove is 3"),
        ([], "an object was expected"),
        ("{", "Expecting"),
    ],
)
def test_a_line_that_was_edited_is_not_acted_on(lived: Machine, line: Any, words: str) -> None:
    lived.usual_nodes(0, link=False)
    _, file = cleaned(lived)
    before = contents(lived)
    good = file.read_text().splitlines()
    if isinstance(line, dict):
        line = {"mode": 0o666, "uid": 0, "gid": 0, "target": None, "selinux": None, "aside": None, **line}
    text = line if isinstance(line, str) else json.dumps(line)
    file.write_text("\n".join([good[0], text, good[1]]) + "\n")
    result = run(lived, "--undo", str(file))
    assert result.exit_code == 1
    assert "not put back line 2: it is not acted on: " in result.output
    assert words in result.output
    [new] = set(contents(lived)) - set(before)
    assert new == f"{lived.dev}/{json.loads(good[1])['remove']}"


@pytest.mark.parametrize(
    "text",
    ["", "{}\n", "nonsense\n", '{"format": "nvsandbox nodes removed", "version": 2}\n', "[" * 100_000],
    ids=["empty", "object", "nonsense", "version", "deep"],
)
def test_another_file_is_no_undo_file(lived: Machine, text: str) -> None:
    file = lived.folder / "other"
    file.write_text(text)
    result = run(lived, "--undo", str(file))
    assert result.exit_code == 3
    assert "is no file of nvsandbox nodes --clean" in result.stderr


@pytest.mark.parametrize("name", ["a b", "it's", "$(touch x)", "two\nlines\x1b[2J", os.fsdecode(b"\xff\\1")])
def test_the_command_that_undoes_can_be_pasted_into_a_shell(lived: Machine, name: str) -> None:
    """Whatever is in the names, and from another folder; it names the /dev that the nodes are of."""
    lived.usual_nodes(0)
    before = contents(lived)
    (lived.folder / name).mkdir()
    file = lived.folder / name / "undo"
    result = run(lived, "--clean", "--yes", "--undo-file", str(file))
    assert result.exit_code == 0, result.output
    line = result.output.splitlines()[-1]
    assert line.isprintable()
    command = line.removeprefix("to put it back: nvsandbox")
    done = subprocess.run(
        ["bash", "-c", f'"$PYTHON" -m nvsandbox{command}'],
        env={**os.environ, "PYTHON": sys.executable},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert contents(lived) == before


def without_a_reader(machine: Machine, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, whose standard output is a pipe that nobody reads any more."""
    reader, writer = os.pipe()
    os.close(reader)
    places = ["--dev", str(machine.dev), "--proc", str(machine.proc)]
    try:
        return subprocess.run(
            [sys.executable, "-m", "nvsandbox", "nodes", *places, *arguments],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writer)


def test_all_is_put_back_though_nobody_reads_of_it(lived: Machine) -> None:
    lived.usual_nodes(0, 1, 2)
    before = contents(lived)
    _, file = cleaned(lived)
    assert contents(lived) != before
    done = without_a_reader(lived, "--undo", str(file))
    assert done.returncode == 141
    assert contents(lived) == before


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_how_to_undo_is_told_though_nobody_reads_what_was_removed(lived: Machine, more: list[str]) -> None:
    lived.usual_nodes(0)
    before = contents(lived)
    file = lived.folder / "undo"
    done = without_a_reader(lived, "--clean", "--yes", "--undo-file", str(file), *more)
    assert done.returncode == 141
    assert done.stderr.splitlines() == [
        "nvsandbox: broken off; what was removed comes back with: "
        f"nvsandbox nodes --dev {lived.dev} --proc {lived.proc} --undo {file}"
    ]
    assert run(lived, "--undo", str(file)).exit_code == 0
    assert contents(lived) == before


def test_folders_that_an_undo_needs_can_be_searched_by_everybody(lived: Machine) -> None:
    """Whatever the umask is of who puts things back."""
    lived.usual_nodes(0)
    _, file = cleaned(lived)
    (lived.dev / "char").rmdir()
    old = os.umask(0o077)
    try:
        assert run(lived, "--undo", str(file)).exit_code == 0
    finally:
        os.umask(old)
    assert stat.S_IMODE((lived.dev / "char").stat().st_mode) == 0o755


def test_an_undo_follows_no_link_of_a_folder(lived: Machine, tmp_path: Path) -> None:
    lived.node("nvidia-caps/nvidia-cap1", 240, 1)
    _, file = cleaned(lived)
    (tmp_path / "elsewhere").mkdir()
    (lived.dev / "nvidia-caps").symlink_to(tmp_path / "elsewhere")
    result = run(lived, "--undo", str(file))
    assert result.exit_code == 1
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_what_the_hosts_driver_needs_stays(lived: Machine) -> None:
    lived.driver(0)
    lived.usual_nodes(0)
    before = host.listing(str(lived.dev))
    result = run(lived, "--clean", "--yes")
    assert result.exit_code == 0
    assert result.output.splitlines() == ["nothing was removed"]
    assert host.listing(str(lived.dev)) == before


def test_only_devices_with_a_name_and_a_number_of_nvidias_go(lived: Machine) -> None:
    lived.node("nvidia0", 1, 3)
    lived.node("nvidia-mine", 195, 9)
    (lived.dev / "nvidia1").mkdir()
    os.mkfifo(lived.dev / "nvidia2")
    (lived.dev / "nvidia3").symlink_to("/etc/passwd")
    (lived.dev / "nvidia4").write_text("text")
    (lived.dev / "char" / "195:7").symlink_to("/etc/passwd")
    os.mknod(lived.dev / "nvidia5", stat.S_IFBLK | 0o600, os.makedev(195, 5))
    before = host.listing(str(lived.dev))
    result = run(lived, "--clean", "--yes")
    assert result.exit_code == 1
    assert host.listing(str(lived.dev)) == before
    assert f"kept {lived.dev}/nvidia0: 1:3 is no number of NVIDIA's but of mem" in result.output
    assert f"kept {lived.dev}/nvidia1: it is a folder" in result.output
    assert f"kept {lived.dev}/nvidia5: it is a block" in result.output
    assert "nvidia-mine" not in result.output
    assert "removed" not in result.output.replace("nothing was removed", "").replace("are removed from here", "")


def test_a_node_that_is_open_stays_with_its_link(machine: Machine) -> None:
    machine.usual_nodes(0)
    survey = hostnodes.survey(str(machine.dev), str(machine.proc), others=[])
    with opened(machine.dev / "nvidia0") as pid:
        steps = {step.node.path: step.refusal for step in noderemoval.plan(survey, ignore_unseen=True)}
    assert steps["nvidia0"] is not None
    assert steps["nvidia0"].startswith(f"it is open in {pid} (python")
    assert steps["char/195:0"] == "nvidia0 stays"
    assert steps["nvidiactl"] is steps["char/195:255"] is None


def test_a_node_that_is_opened_between_look_and_removal_stays(machine: Machine) -> None:
    machine.usual_nodes(0)
    before = host.listing(str(machine.dev))
    survey = hostnodes.survey(str(machine.dev), str(machine.proc), others=[])
    steps = noderemoval.plan(survey, ignore_unseen=True)
    assert [step.refusal for step in steps] == [None] * 4
    file = machine.folder / "undo"
    with opened(machine.dev / "nvidia0") as pid, nodeundo.Journal(str(file), str(machine.dev)) as journal:
        results = noderemoval.carry_out(steps, survey, journal, ignore_unseen=True)
    assert {result.path: result.removed for result in results} == {
        "nvidia0": False,
        "char/195:0": False,
        "nvidiactl": True,
        "char/195:255": True,
    }
    after = host.listing(str(machine.dev))
    # The very file, and not a copy of it.
    assert after[f"{machine.dev}/nvidia0"] == before[f"{machine.dev}/nvidia0"]
    assert set(before) - set(after) == {f"{machine.dev}/nvidiactl", f"{machine.dev}/char/195:255"}
    assert f"it is open in {pid}" in next(result.what for result in results if result.path == "nvidia0")
    restored = {result.path for result in nodeundo.restore(str(file), str(machine.dev), str(machine.proc))}
    assert restored == {"nvidiactl", "char/195:255"}


def test_a_node_that_is_mapped_stays(machine: Machine) -> None:
    """A mapping outlives its descriptor; /dev/zero's number stands in, for it can be mapped without a driver."""
    from nvsandbox import nodeusers

    node = machine.node("nvidia0", 1, 5)
    status = node.stat()
    code = (
        f"import mmap, os; fd = os.open({str(node)!r}, os.O_RDWR); m = mmap.mmap(fd, 4096, mmap.MAP_PRIVATE); "
        "os.close(fd); import ctypes; fds = os.listdir('/proc/self/fd'); print(flush=True); input()"
    )
    # Python's mmap keeps a descriptor of its own, which is closed here as well.
    code = code.replace("import ctypes; ", "os.closerange(3, 64); ")
    process = subprocess.Popen([sys.executable, "-S", "-E", "-c", code], stdin=-1, stdout=-1)
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        process.stdout.readline()
        links = [os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{process.pid}/fd")]
        users = nodeusers.find({(status.st_dev, status.st_ino): (str(node), status.st_rdev)})
        process.stdin.close()
        process.wait()
    assert str(node) not in links
    [[user]] = users.of.values()
    assert user.startswith(f"{process.pid} (")


THREADS = """
import ctypes, os, sys, threading, time
libc = ctypes.CDLL(None)
def other():
    if sys.argv[2] == "own":
        libc.unshare(0x400)  # CLONE_FILES
    os.open(sys.argv[1], os.O_RDONLY)
    if sys.argv[2] == "alone":
        while open(f"/proc/{os.getpid()}/stat").read().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)
    print("open", flush=True)
    time.sleep(60)
threading.Thread(target=other).start()
if sys.argv[2] == "alone":
    libc.pthread_exit(None)
time.sleep(60)
"""


@pytest.mark.parametrize("which", ["shared", "own", "alone"])
def test_a_node_that_another_thread_has_open_stays(machine: Machine, which: str) -> None:
    """One with descriptors of its own, and one whose process's first thread has ended."""
    from nvsandbox import nodeusers

    path = str(machine.node("nvidia0", 1, 3))  # /dev/null's number: no driver is needed to open it
    status = os.stat(path)
    with subprocess.Popen([sys.executable, "-c", THREADS, path, which], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"open\n"
            users = nodeusers.find({(status.st_dev, status.st_ino): (path, status.st_rdev)})
        finally:
            process.kill()
    assert [user.split()[0] for user in users.of.get((status.st_dev, status.st_ino), [])] == [str(process.pid)]


HOLDER = """
import os, sys
if sys.argv[3] == "private":
    os.setgroups([]), os.setresgid(65534, 65534, 65534), os.setresuid(65534, 65534, 65534)
os.chdir(sys.argv[1])
os.open("stuck", os.O_PATH), os.open(sys.argv[2], os.O_PATH)
print("open", flush=True)
input()
"""


@pytest.mark.parametrize("which", ["attributes", "private"])
def test_a_node_is_found_behind_a_file_that_cannot_be_looked_at(which: str) -> None:
    """Of a server that does not answer any more, as of a dead NFS mount, and of a user's own FUSE mount."""
    from nvsandbox import nodeusers

    host.require(os.path.exists("/dev/fuse"), "needs /dev/fuse, for a file that cannot be looked at")
    host.require(host.can_play_host(), "needs CAP_SYS_ADMIN, to mount, and root, to make a node")
    server_code = Path(__file__).parents[1] / "reliability" / "stuck_file.py"
    with contextlib.ExitStack() as stack:
        # In the folder for temporary files, for a user has to get there.
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        os.chmod(folder, 0o755)
        mounted, node = f"{folder}/mounted", f"{folder}/nvidia0"
        os.mkdir(mounted)
        os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(195, 0))
        server = subprocess.Popen([sys.executable, server_code, mounted, which], stdin=-1, stdout=-1)
        stack.callback(lambda: server.communicate(timeout=20))
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        holder = subprocess.Popen([sys.executable, "-c", HOLDER, mounted, node, which], stdin=-1, stdout=-1)
        stack.callback(lambda: holder.communicate(timeout=20))
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        # Who waits for the server is let go when that ends.
        end = threading.Timer(20, server.kill)
        end.start()
        stack.callback(end.join)
        stack.callback(end.cancel)
        status = os.stat(node)
        users = nodeusers.find({(status.st_dev, status.st_ino): (node, status.st_rdev)})
        assert not [reason for reason in users.unseen if f"process {holder.pid} " in reason]
        assert [user.split()[0] for user in users.of.get((status.st_dev, status.st_ino), [])] == [str(holder.pid)]


def users_where_statx_fails(err: int) -> tuple[bool, str]:
    import os
    import subprocess
    import sys

    import host

    from nvsandbox import nodeusers

    status = os.stat("/dev/null")
    identity = (status.st_dev, status.st_ino)
    holder = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=-1, stdout=-3, stderr=-3)
    host.refuse("statx", err)
    try:
        users = nodeusers.find({identity: ("/dev/null", status.st_rdev)})
    finally:
        holder.communicate()
    found = [user for user in users.of.get(identity, []) if user.startswith(f"{holder.pid} ")]
    return bool(found), "".join(reason for reason in users.unseen if reason.startswith(f"process {holder.pid} "))


@pytest.mark.parametrize("err", [errno.ENOSYS, errno.EPERM, errno.EIO], ids=errno.errorcode.get)
def test_where_a_file_cannot_be_looked_at_without_its_server(host: host.Host, err: int) -> None:
    """Old kernels and old seccomp profiles know no statx(). Else stat() is not tried, which may wait for ever."""
    found, unseen = host.run(users_where_statx_fails, err=err)
    assert found == (err != errno.EIO)
    assert ("cannot be looked at: Input/output error" in unseen) == (err == errno.EIO)


@pytest.mark.parametrize("dev", ["dev", "link", "./dev"])
def test_a_node_that_was_replaced_after_it_was_opened_counts_as_open(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, dev: str
) -> None:
    """As NVIDIA's library replaces nodes: whoever opened the old one uses this name, whatever we call the folder."""
    monkeypatch.chdir(machine.folder)
    (machine.folder / "link").symlink_to("dev")
    node = machine.node("nvidia0", 195, 0)
    with opened(node) as pid:
        node.unlink()
        machine.node("nvidia0", 195, 0)
        survey = hostnodes.survey(dev, str(machine.proc), others=[])
        [step] = noderemoval.plan(survey, ignore_unseen=True)
    assert step.refusal is not None
    assert f"{pid} (" in step.refusal


def test_the_same_device_by_another_node_is_no_use_of_this_one(machine: Machine) -> None:
    machine.container_driver(0)
    machine.node("nvidia0", 195, 0)
    with opened(machine.driver_dev / "nvidia0"):
        survey = hostnodes.survey(str(machine.dev), str(machine.proc), others=[str(machine.driver_dev)])
        [step] = noderemoval.plan(survey, ignore_unseen=True)
    assert step.refusal is None


def test_processes_that_cannot_be_looked_at_may_have_it_open(lived: Machine) -> None:
    lived.container_driver(0)
    lived.usual_nodes(0, link=False)
    (lived.proc / "7").mkdir()
    (lived.proc / "7" / "fd").write_text("")  # not to be listed
    (lived.proc / "7" / "comm").write_text("secretive\n")
    result = run(lived, "--clean", "--yes", "--dev-root", str(lived.driver_dev))
    assert result.exit_code == 1
    assert "it may be open: process 7 (secretive) cannot be looked at: Not a directory" in result.output
    assert (lived.dev / "nvidia0").exists()
    result, _ = cleaned(lived, "--ignore-unseen", "--dev-root", str(lived.driver_dev))
    assert result.exit_code == 0, result.output
    assert not (lived.dev / "nvidia0").exists()


def test_what_no_driver_serves_cannot_be_open(machine: Machine) -> None:
    """Opening it fails, so it does not matter who cannot be looked at."""
    machine.usual_nodes(0, link=False)
    result, _ = cleaned(machine)
    assert result.exit_code == 0, result.output


def test_hidden_processes_may_have_it_open(machine: Machine) -> None:
    machine.container_driver(0)
    machine.usual_nodes(0, link=False)
    result = run(machine, "--clean", "--dev-root", str(machine.driver_dev))
    assert "(hidepid)" in result.output
    assert "nothing to remove" in result.output


def test_another_pid_namespace_sees_too_little(lived: Machine) -> None:
    lived.container_driver(0)
    lived.usual_nodes(0, link=False)
    (lived.proc / "1" / "ns").mkdir(parents=True)
    (lived.proc / "1" / "ns" / "pid").symlink_to("pid:[4026532999]")
    result = run(lived, "--clean", "--dev-root", str(lived.driver_dev))
    assert "this pid namespace is not the host's" in result.output


def test_a_node_that_was_exchanged_meanwhile_stays(lived: Machine) -> None:
    lived.usual_nodes(0, link=False)
    survey = hostnodes.survey(str(lived.dev), str(lived.proc), others=[])
    steps = noderemoval.plan(survey, str(lived.proc))
    (lived.dev / "nvidia0").rename(lived.dev / "other")
    (lived.dev / "nvidia0").symlink_to("/etc/passwd")
    (lived.dev / "nvidiactl").unlink()
    with nodeundo.Journal(str(lived.folder / "undo"), str(lived.dev)) as journal:
        results = {r.path: r for r in noderemoval.carry_out(steps, survey, journal, str(lived.proc))}
    assert "another file" in results["nvidia0"].what
    assert results["nvidiactl"].what == "it is gone already"
    assert (lived.dev / "nvidia0").is_symlink()


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_comes_in_the_place_of_a_node_in_the_last_moment_stays(
    lived: Machine, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """After the last look, just before the node would be renamed."""
    node = lived.node("nvidia0", 195, 0)
    survey = hostnodes.survey(str(lived.dev), str(lived.proc), others=[])
    steps = noderemoval.plan(survey, str(lived.proc))
    rename = os.rename

    def late(*arguments: Any, **more: Any) -> None:
        node.unlink()
        if kind == "folder":
            node.mkdir()
            (node / "inside").write_text("not ours")
        elif kind == "file":
            node.write_text("not ours")
        else:
            node.symlink_to("/etc/passwd")
        rename(*arguments, **more)

    monkeypatch.setattr(os, "rename", late)
    with nodeundo.Journal(str(lived.folder / "undo"), str(lived.dev)) as journal:
        (result,) = noderemoval.carry_out(steps, survey, journal, str(lived.proc))
    assert (result.removed, "another file" in result.what) == (False, True)
    assert sorted(os.listdir(lived.dev)) == ["char", "nvidia0"]
    if kind == "folder":
        assert (node / "inside").read_text() == "not ours"


def test_nothing_goes_when_the_driver_comes_meanwhile(lived: Machine) -> None:
    """As at boot: without a driver the nodes lead nowhere, and with it they are its own."""
    lived.usual_nodes(0)
    before = host.listing(str(lived.dev))
    survey = hostnodes.survey(str(lived.dev), str(lived.proc), others=[])
    steps = noderemoval.plan(survey, str(lived.proc))
    assert [step.refusal for step in steps] == [None] * 4
    lived.driver(0)
    with nodeundo.Journal(str(lived.folder / "undo"), str(lived.dev)) as journal:
        results = noderemoval.carry_out(steps, survey, journal, str(lived.proc))
    assert {result.what for result in results} == {"the driver was loaded or unloaded meanwhile: run the command again"}
    assert host.listing(str(lived.dev)) == before


def test_a_removal_that_was_cut_short_is_undone(lived: Machine) -> None:
    """Killed between setting aside and removing: the node is back, itself."""
    node = lived.node("nvidia0", 195, 0)
    inode = node.stat().st_ino
    survey = hostnodes.survey(str(lived.dev), str(lived.proc), others=[])
    file = str(lived.folder / "undo")
    with nodeundo.Journal(file, str(lived.dev)) as journal:
        journal.removing(survey.nodes[0], ".nvsandbox-aside-1-nvidia0", None)
    node.rename(lived.dev / ".nvsandbox-aside-1-nvidia0")
    [result] = nodeundo.restore(file, str(lived.dev), str(lived.proc))
    assert result.done
    assert node.stat().st_ino == inode
    assert sorted(os.listdir(lived.dev)) == ["char", "nvidia0"]


def test_an_error_in_the_middle_puts_everything_back(lived: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    lived.usual_nodes(0)
    before = host.listing(str(lived.dev))
    survey = hostnodes.survey(str(lived.dev), str(lived.proc), others=[])
    steps = noderemoval.plan(survey, str(lived.proc))

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(noderemoval, "_in_use", interrupted)
    with nodeundo.Journal(str(lived.folder / "undo"), str(lived.dev)) as journal, pytest.raises(KeyboardInterrupt):
        noderemoval.carry_out(steps, survey, journal, str(lived.proc))
    assert host.listing(str(lived.dev)) == before


def _set_immutable(path: Path, on: bool) -> bool:
    """chattr +i or -i; whether the file system has that."""
    fd = os.open(path, os.O_RDONLY)
    try:
        flags = bytearray(ctypes.sizeof(ctypes.c_long))
        fcntl.ioctl(fd, 0x80086601, flags)  # FS_IOC_GETFLAGS
        value = int.from_bytes(flags, sys.byteorder)
        value = value | 0x10 if on else value & ~0x10
        fcntl.ioctl(fd, 0x40086602, value.to_bytes(len(flags), sys.byteorder))  # FS_IOC_SETFLAGS
    except OSError as error:
        if error.errno in (errno.ENOTTY, errno.EOPNOTSUPP, errno.EPERM):
            return False
        raise
    finally:
        os.close(fd)
    return True


def test_what_is_immutable_is_said_and_the_others_go_on(lived: Machine) -> None:
    lived.usual_nodes(0)
    lived.node("nvidia-caps/nvidia-cap1", 240, 1, link=True)
    host.require(_set_immutable(lived.dev / "nvidia-caps", True), "needs a file system with chattr +i")
    try:
        result, _ = cleaned(lived)
    finally:
        _set_immutable(lived.dev / "nvidia-caps", False)
    assert result.exit_code == 1
    assert "nvidia-cap1: it cannot be removed: Operation not permitted (immutable" in result.output
    assert sorted(os.listdir(lived.dev)) == ["char", "nvidia-caps"]
    assert os.listdir(lived.dev / "nvidia-caps") == ["nvidia-cap1"]
    assert os.listdir(lived.dev / "char") == ["240:1"]  # which belongs to it


def on_read_only(folder: str) -> dict[str, Any]:
    import os

    import host
    from click.testing import CliRunner

    from nvsandbox.cli import main

    dev = f"{folder}/dev"
    os.mkdir(dev)
    host.mount("t", dev, "tmpfs")
    for name, minor in (("nvidia0", 0), ("nvidiactl", 255)):
        os.mknod(f"{dev}/{name}", 0o020666, os.makedev(195, minor))
    host.mount("t", dev, "tmpfs", 32 | 1)  # remounted read-only
    arguments = ["nodes", "--dev", dev, "--clean", "--yes", "--undo-file", f"{folder}/undo", "--ignore-unseen"]
    result = CliRunner().invoke(main, arguments)
    left = sorted(os.listdir(dev))
    host.umount(dev)
    return {"exit": result.exit_code, "output": result.output, "left": left}


def test_a_read_only_dev(host: host.Host, tmp_path: Path) -> None:
    done = host.run(on_read_only, folder=str(tmp_path))
    assert done["exit"] == 1
    assert done["output"].count("it cannot be removed: Read-only file system") == 2
    assert done["left"] == ["nvidia0", "nvidiactl"]


def test_an_undo_file_is_never_written_over(lived: Machine) -> None:
    lived.usual_nodes(0)
    (lived.folder / "undo.jsonl").write_text("precious")
    before = host.listing(str(lived.dev))
    result, file = cleaned(lived)
    assert result.exit_code == 3
    assert f"{file}: File exists" in result.stderr
    assert "--undo-file names another place" in result.stderr
    assert file.read_text() == "precious"
    assert host.listing(str(lived.dev)) == before


def test_thousands_of_channels(lived: Machine) -> None:
    for minor in range(2048):
        lived.node(f"nvidia-caps-imex-channels/channel{minor}", 240, minor, link=True)
    before = contents(lived)
    result, file = cleaned(lived)
    assert result.exit_code == 0
    assert os.listdir(lived.dev) == ["char"]
    assert run(lived, "--undo", str(file)).exit_code == 0
    assert contents(lived) == before


def test_where_the_undo_file_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert nodeundo.default_path({}).startswith("/var/lib/nvsandbox/nodes-2")
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    assert nodeundo.default_path({"HOME": "/home/a"}).startswith("/home/a/.local/state/nvsandbox/nodes-2")
    assert nodeundo.default_path({"HOME": "/home/a", "XDG_STATE_HOME": "/s"}).startswith("/s/nvsandbox/nodes-2")


def test_json(lived: Machine) -> None:
    lived.usual_nodes(0, link=False)
    (lived.dev / "nvidia1").mkdir()
    planned = json.loads(run(lived, "--clean", "--json").stdout)
    assert planned["clean"]["done"] is False
    assert {step["path"]: step["to_be_removed"] for step in planned["clean"]["steps"]} == {
        "nvidia0": True,
        "nvidia1": False,
        "nvidiactl": True,
    }
    result, file = cleaned(lived, "--json")
    done = json.loads(result.stdout)
    assert done["clean"]["undo_file"] == str(file)
    assert {step["path"]: step["removed"] for step in done["clean"]["steps"]} == {
        "nvidia0": True,
        "nvidia1": False,
        "nvidiactl": True,
    }
    undone = json.loads(run(lived, "--undo", str(file), "--json").stdout)
    assert {step["path"]: step["done"] for step in undone["undo"]} == {"nvidia0": True, "nvidiactl": True}


@pytest.mark.usefixtures("lived")
def test_links_go_with_their_nodes(machine: Machine) -> None:
    """U6: a node with the number of a driver that was loaded before, and the link to it. The link dangled then, and a
    second run was needed; --undo brings both back."""
    machine.driver(0)
    machine.usual_nodes(0)
    current = machine.node("nvidia-uvm-tools", 510, 1, link=True)
    machine.node("nvidia-uvm", 510, 0, link=True)
    assert current.exists()
    before = contents(machine)
    result, file = cleaned(machine)
    assert result.exit_code == 0, result.output
    assert not os.path.lexists(machine.dev / "nvidia-uvm")
    left = sorted(os.listdir(machine.dev / "char"))
    assert [name for name in left if not os.path.exists(machine.dev / "char" / name)] == []
    assert run(machine, "--undo", str(file)).exit_code == 0
    assert contents(machine) == before
