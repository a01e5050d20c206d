# SPDX-License-Identifier: Apache-2.0
"""``nvsandbox nodes``: what it prints, for whom, and how it ends."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result
from host import NOBODY, Host

from nvsandbox import hostnodes
from nvsandbox.cli import main

if TYPE_CHECKING:
    from .conftest import Machine

PAGE = Path(__file__).parents[2] / "docs" / "cli" / "nodes.md"


def places(machine: Machine) -> list[str]:
    return ["--dev", str(machine.dev), "--proc", str(machine.proc), "--cdi-dir", str(machine.folder / "cdi")]


def run(machine: Machine, *arguments: str, **env: str) -> Result:
    return CliRunner().invoke(main, ["nodes", *places(machine), *arguments], prog_name="nvsandbox", env=env)


def test_a_clean_host(machine: Machine) -> None:
    result = run(machine)
    assert result.exit_code == 0
    assert result.output.splitlines() == [f"{machine.dev}: NVIDIA's driver is not loaded", "no NVIDIA nodes"]


def test_lines(machine: Machine) -> None:
    machine.usual_nodes(0)
    result = run(machine)
    assert result.exit_code == 1
    lines = result.output.splitlines()
    rows = [re.split(r" {2,}", line) for line in lines[1:6]]
    assert rows[0] == ["NODE", "IS", "MODE", "OWNER", "STATE"]
    assert rows[1] == [f"{machine.dev}/nvidia0", "char 195:0", "0666", "0:0", "unwanted"]
    assert rows[3] == [f"{machine.dev}/char/195:0", "-> ../nvidia0", "0:0", "unwanted"]
    assert "warning: nvidia0, nvidiactl: NVIDIA's driver is not loaded" in result.output
    assert result.output.count("[node.no-driver]") == 1  # said once for all of them
    assert lines[-1] == "2 nodes and 2 links, of which 4 should not be there"


def test_nodes_of_a_container_that_is_gone_remove_nothing_of_the_hosts(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.container_driver(0)
    machine.usual_nodes(0)
    monkeypatch.setattr("nvsandbox.hostnodes.CONTAINER_DEV_ROOTS", (str(machine.driver_dev),))
    assert run(machine).exit_code == 1
    library = machine.folder / "usr" / "lib64" / "libnvidia-ml.so.1"
    library.parent.mkdir(parents=True)
    library.with_name("libnvidia-ml.so.550.54.15").write_text("")
    library.symlink_to("libnvidia-ml.so.550.54.15")
    for arguments in ([], ["--clean"], ["--clean", "--yes"]):
        result = run(machine, *arguments)
        assert result.exit_code == 0, result.output
        assert f"note: {machine.driver_dev} has nodes too, but {machine.folder}/usr/lib64/" in result.stderr
    assert (machine.dev / "nvidia0").exists()
    assert json.loads(run(machine, "--json").stdout)["driver"]["doubt"].endswith(f"--dev-root {machine.driver_dev}")


def test_a_host_in_order_is_0_though_something_is_to_be_said(machine: Machine) -> None:
    machine.driver(0)
    machine.usual_nodes(0)
    (machine.dev / "nvidiactl").chmod(0o600)
    result = run(machine, "--driver-root", "/")
    assert result.exit_code == 0
    assert "driver 550.54.15, 1 GPU, the host's" in result.output
    assert f"chmod 0666 {machine.dev}/nvidiactl" in result.output


def test_a_spec_against_the_hosts_own_driver_is_1(machine: Machine) -> None:
    machine.driver(0)
    machine.usual_nodes(0)
    (machine.folder / "cdi").mkdir()
    spec = {"kind": "a/b", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0", "hostPath": "/other/nvidia0"}]}}
    (machine.folder / "cdi" / "a.json").write_text(json.dumps(spec))
    result = run(machine, "--driver-root", "/")
    assert result.exit_code == 1
    assert "it refuses privileged containers" in result.output
    assert "make the CDI spec anew" in result.output


@pytest.mark.parametrize("where", ["etc/cdi", "run/cdi"])
def test_without_a_folder_the_specs_are_those_beside_the_dev(machine: Machine, where: str) -> None:
    """As of a host that is mounted in a container; its links lead about in its own tree."""
    machine.driver(0)
    machine.usual_nodes(0)
    command = ["nodes", "--dev", str(machine.dev), "--proc", str(machine.proc), "--driver-root", "/"]
    (machine.folder / where).mkdir(parents=True)
    (machine.folder / "var").mkdir()
    (machine.folder / "var" / "run").symlink_to("/run")
    assert CliRunner().invoke(main, command).exit_code == 0
    spec = {"kind": "a/b", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0", "hostPath": "/other/nvidia0"}]}}
    (machine.folder / where / "a.json").write_text(json.dumps(spec))
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 1
    assert f"CDI device a/b in {machine.folder}/{where}/a.json hands out" in result.output
    assert CliRunner().invoke(main, [*command, "--cdi-dir", str(machine.folder / "none")]).exit_code == 0


def test_what_helps_names_the_folders_that_were_given(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that its line can be pasted, from any folder."""
    machine.container_driver(0)
    machine.usual_nodes(0)
    monkeypatch.chdir(machine.folder)
    result = CliRunner().invoke(main, ["nodes", "--dev", "dev", "--proc", "proc", "--driver-root", "run/driver"])
    assert result.exit_code == 1
    [command] = {line for line in result.output.splitlines() if line.endswith(" --clean")}
    root = machine.driver_dev.parent
    assert command == f"    nvsandbox nodes --dev {machine.dev} --proc {machine.proc} --driver-root {root} --clean"
    monkeypatch.chdir("/")
    again = CliRunner().invoke(main, shlex.split(command)[1:])
    assert f"{machine.dev}/nvidia0: " in again.output
    both = [line for line in result.output.splitlines() if line.endswith(" removes both")]
    assert both == [f"{command} removes both"]


def test_without_folders_what_helps_names_none(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.usual_nodes(0)
    survey = hostnodes.survey(str(machine.dev), str(machine.proc), others=[])
    monkeypatch.setattr("nvsandbox.hostnodes.survey", lambda *arguments, **more: survey)
    assert "\n    nvsandbox nodes --clean\n" in CliRunner().invoke(main, ["nodes"]).output


def test_paths_are_those_of_the_dev_that_was_given(machine: Machine) -> None:
    machine.driver(0, 1)
    machine.node("nvidia0", 195, 0, mode=0o600)
    os.chown(machine.dev / "nvidia0", 12, 34)
    output = run(machine, "--driver-root", "/").output
    for path in ("nvidiactl does not exist", "nvidia1 does not exist", "char/195:0 for nvidia0 does not exist"):
        assert f"info: {machine.dev}/{path}" in output
    assert f"    chmod 0666 {machine.dev}/nvidia0\n" in output
    assert f"    chown 0:0 {machine.dev}/nvidia0\n" in output
    assert re.search(r"(?<!\S)/dev/", output) is None


@pytest.mark.parametrize("with_driver", [False, True])
def test_nothing_is_promised_that_clean_refuses(machine: Machine, with_driver: bool) -> None:
    if with_driver:
        machine.container_driver(0)
    (machine.dev / "char" / "195:7").symlink_to("../gone")
    machine.node("nvidia5", 1, 3)
    (machine.dev / "char" / "1:3").symlink_to("../nvidia5")
    os.mknod(machine.dev / "nvidia6", stat.S_IFBLK | 0o600, os.makedev(195, 6))
    (machine.dev / "char" / "195:6").symlink_to("../nvidia6")
    machine.node("nvidia0", 195, 0, link=True)
    places = ("--dev-root", str(machine.driver_dev)) if with_driver else ()
    nodes = {node["path"]: node for node in json.loads(run(machine, *places, "--json").stdout)["nodes"]}
    plan = json.loads(run(machine, *places, "--clean", "--ignore-unseen", "--json").stdout)["clean"]["steps"]
    removed = {step["path"] for step in plan if step["to_be_removed"]}
    assert removed == {"nvidia0", "char/195:0"}
    for path, node in nodes.items():
        promises = {"--clean" in finding["remedy"] for finding in node["findings"] if finding["unwanted"]}
        assert promises == {path in removed}, (path, node["findings"])
    assert "remove it by hand" in nodes["char/195:7"]["findings"][0]["remedy"]
    assert "its name and target are not both NVIDIA's" in nodes["char/195:7"]["findings"][0]["remedy"]
    unwanted = [finding for finding in nodes["nvidia5"]["findings"] if finding["unwanted"]]
    reasons = {finding["remedy"].partition(" leaves it alone, for ")[2] for finding in unwanted}
    assert reasons == {"1:3 is no number of NVIDIA's but of mem"}


def test_what_helps_one_node_is_not_said_of_another(machine: Machine) -> None:
    machine.node("nvidia0", 195, 0)
    machine.node("nvidia1", 1, 1)
    output = run(machine).output
    assert "warning: nvidia0: NVIDIA's driver is not loaded" in output
    assert "warning: nvidia1: NVIDIA's driver is not loaded" in output


@pytest.mark.parametrize("how", ["--driver-root", "--dev-root", "NVIDIA_DRIVER_ROOT", "NVSANDBOX_DEV_ROOT"])
def test_where_the_driver_is(machine: Machine, how: str) -> None:
    machine.container_driver(0)
    machine.usual_nodes(0)
    root = str(machine.driver_dev.parent)
    result = run(machine, how, root) if how.startswith("--") else run(machine, **{how: root})
    assert f"in a container, with its nodes in {machine.driver_dev}" in result.output
    assert result.exit_code == 1


def keys_of(value: Any) -> set[str]:
    if isinstance(value, dict):
        inner = [keys_of(item) for key, item in value.items() if key not in ("majors", "gpus")]
        return {*value, *(key for keys in inner for key in keys)}
    return {key for item in value for key in keys_of(item)} if isinstance(value, list) else set()


def test_json_and_its_keys_are_documented(machine: Machine) -> None:
    machine.driver(0)
    machine.usual_nodes(0, 5)
    (machine.dev / "nvidiactl").unlink()
    report = json.loads(run(machine, "--driver-root", "/", "--json").stdout)
    assert report["driver"]["version"] == "550.54.15"
    assert report["driver"]["placement"] == "host"
    assert report["driver"]["gpus"] == {"0": "0000:00:00.0"}
    nodes = {node["path"]: node for node in report["nodes"]}
    assert (nodes["nvidia5"]["major"], nodes["nvidia5"]["minor"], nodes["nvidia5"]["mode"]) == (195, 5, "0666")
    assert (nodes["nvidia5"]["unwanted"], nodes["nvidia5"]["findings"][0]["id"]) == (False, "node.no-gpu")
    assert nodes["nvidia0"]["findings"] == []
    assert nodes["char/195:0"]["target"] == "../nvidia0"
    assert report["missing"][0]["id"] == "node.missing"
    planned = json.loads(run(machine, "--driver-root", "/", "--clean", "--json").stdout)
    documented = set(re.findall(r"`([a-z_]+)`", PAGE.read_text(encoding="utf-8")))
    assert keys_of(report) | keys_of(planned) | {"undo", "done"} <= documented


def test_every_finding_is_documented() -> None:
    """Those that the code can make are those of the page."""
    source = Path(__file__).parents[2] / "nvsandbox"
    code = "".join((source / name).read_text() for name in ("nodefindings.py", "blockers.py"))
    made = set(re.findall(r'"((?:node|link)\.[a-z-]+)"', code))
    listed = set(re.findall(r"^\| `((?:node|link)\.[a-z-]+)` \|", PAGE.read_text(encoding="utf-8"), re.M))
    assert made == listed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--yes"], "--yes goes with --clean"),
        (["--undo-file", "x"], "--undo-file goes with --clean"),
        (["--clean", "--undo", "x"], "give one of them"),
        (["--cleen"], "No such option"),
        (["more"], "unexpected extra argument"),
    ],
)
def test_wrong_usage_is_2(machine: Machine, arguments: list[str], words: str) -> None:
    result = run(machine, *arguments)
    assert result.exit_code == 2
    assert words in result.stderr


@pytest.mark.parametrize("which", ["dev", "proc"])
def test_what_cannot_be_looked_at_is_3(machine: Machine, which: str) -> None:
    nowhere = str(machine.folder / "nowhere")
    arguments = ["nodes", *places(machine), f"--{which}", nowhere]
    result = CliRunner().invoke(main, arguments, prog_name="nvsandbox")
    assert result.exit_code == 3
    assert result.stderr.startswith(f"nvsandbox: --{which} {nowhere}: ")
    assert "No such file or directory" in result.stderr
    failed = CliRunner().invoke(main, [*arguments, "--json"], prog_name="nvsandbox")
    assert json.loads(failed.stdout)["error"]["exit_code"] == 3


def test_a_folder_that_cannot_be_listed_is_said(machine: Machine) -> None:
    (machine.dev / "char").rmdir()
    (machine.dev / "char").write_text("")
    result = run(machine)
    assert result.exit_code == 0
    assert f"nvsandbox: not read: {machine.dev}/char: Not a directory" in result.stderr


def test_names_cannot_move_the_cursor(machine: Machine) -> None:
    (machine.dev / "nvidia-\x1b[2J\n").write_text("")
    (machine.dev / os.fsdecode(b"nvidia-\xff")).write_text("")
    result = run(machine)
    assert result.exit_code == 0
    assert "\x1b" not in result.output
    assert len(result.output.splitlines()) == 7
    assert json.loads(run(machine, "--json").stdout)["nodes"][0]["path"] == "nvidia-\x1b[2J\n"


def test_thousands_of_findings_are_told_in_short(machine: Machine) -> None:
    for minor in range(300):
        machine.node(f"nvidia-caps-imex-channels/channel{minor}", 240, minor + 1, link=True)
    result = run(machine)
    assert result.exit_code == 1
    rest = result.output.splitlines()[602:]  # after two lines of headings, the nodes and the links
    assert len(rest) < 30
    assert "and 294 more of [node.wrong-number]; --json has them all" in rest


def test_a_table_on_a_terminal(machine: Machine) -> None:
    machine.usual_nodes(0)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "nvsandbox", "nodes", *places(machine)]
    process = subprocess.Popen(
        command, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    )
    os.close(theirs)
    data = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:
            break
        if not piece:
            break
        data += piece
    os.close(ours)
    assert process.wait() == 1
    text = data.decode()
    assert "\x1b[33m" in text  # yellow: unwanted
    assert re.search(r"nvidia0 .*char 195:0", re.sub(r"\x1b\[[0-9;]*m", "", text))


def test_every_option_is_documented() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for option in main.commands["nodes"].params:
        assert f"`{option.opts[0]}" in page, option.opts[0]


def as_nobody() -> dict[str, Any]:
    from click.testing import CliRunner

    from nvsandbox.cli import main

    listed = CliRunner().invoke(main, ["nodes"], env={"HOME": "/nonexistent"})
    removed = CliRunner().invoke(main, ["nodes", "--clean", "--yes", "--ignore-unseen", "--undo-file", "/dev/shm/undo"])
    return {"list": (listed.exit_code, listed.output), "clean": (removed.exit_code, removed.output)}


def a_stray_node() -> None:
    import os

    os.mknod("/dev/nvidiactl", 0o020666, os.makedev(195, 255))


def test_without_privileges(host_with_nobody: Host) -> None:
    done = host_with_nobody.run(as_nobody, setup=a_stray_node, uid=NOBODY)
    assert done["list"][0] == 1
    assert "/dev/nvidiactl  char 195:255" in done["list"][1]
    assert done["clean"][0] == 1
    assert "kept /dev/nvidiactl: it cannot be removed: Permission denied (run it as root)" in done["clean"][1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--dev", "/nowhere/dev"], "--dev /nowhere/dev: No such file or directory; expected a folder"),
        (["--proc", "/nowhere/proc"], "--proc /nowhere/proc: /nowhere/proc/devices: No such file or directory; "),
        (["--undo", "/nowhere/file"], "--undo /nowhere/file: No such file or directory; expected the file"),
    ],
)
def test_a_path_that_is_not_there_is_named_with_its_option(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(main, ["nodes", *arguments], prog_name="nvsandbox")
    assert result.exit_code == 3
    assert says in result.stderr


@pytest.mark.parametrize("kind", ["FIFO", "directory", "device", "socket"])
def test_an_undo_file_that_is_no_file(machine: Machine, tmp_path: Path, kind: str) -> None:
    """U20: a FIFO was waited for, for ever."""
    path = tmp_path / "undo"
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    else:
        path = Path("/dev/null")
    result = run(machine, "--undo", str(path))
    assert result.exit_code == 3
    assert str(path) in result.output
    assert "Traceback" not in result.output
