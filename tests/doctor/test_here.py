# SPDX-License-Identifier: Apache-2.0
"""The command on this machine: with privileges missing, as another user, in a terminal, and how it ends."""

from __future__ import annotations

import importlib.util
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from host import Host, can_play_host, listing, require

from nvsandbox.cli import main
from nvsandbox.doctor import CATALOGUE

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "nvsandbox", "doctor"]


def run(*arguments: str, **env: str) -> Any:
    return CliRunner().invoke(main, ["doctor", *arguments], prog_name="nvsandbox", env=env)


def examined(*before: str) -> dict[str, Any]:
    """The JSON of the command, started by another one that takes something away."""
    done = subprocess.run([*before, *COMMAND, "--json"], capture_output=True, text=True, timeout=60, cwd="/")
    assert done.returncode in (0, 1), done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["exit_code"] == done.returncode
    return report


def by_id(report: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for finding in report["findings"]:
        found.setdefault(finding["id"], []).append(finding)
    return found


def tool(name: str) -> str:
    path = shutil.which(name) or ""
    require(path, f"needs {name}")
    return path


# ---- how it ends, and what it prints


def test_simulated_gpus_are_fine() -> None:
    result = run("--simulate", "h100x8", "--json", "--wait", "20")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    found = by_id(report)
    assert found["query.works"][0]["facts"]["gpus"] == 8
    assert report["verdict"]["can_query"] is True
    assert report["verdict"]["isolation"] == found["isolation.possible"][0]["about"]
    assert not [id_ for id_ in found if id_.startswith(("driver.", "library.", "nodes.", "gpu."))]


def test_an_error_is_exit_status_1() -> None:
    result = run("--simulate", "h100x2,lost=0", "--wait", "20")
    assert result.exit_code == 1
    assert re.search(r"^error +query\.gpu-failed +GPU 0 cannot be queried", result.stdout, re.M)
    assert "First:\n  1. query.gpu-failed: " in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [("--driver-root", "/none"), ("--simulate", "h100y8"), ("--wait", "0"), ("--wait", "soon"), ("--colour",), ("x",)],
)
def test_wrong_usage_is_exit_status_2(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert arguments[-1] in result.stderr


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan", "3601"])
def test_a_wait_that_is_none(text: str) -> None:
    assert f"'{text}': expected seconds, such as 5, at most 3600" in run("--wait", text).stderr


def test_wrong_usage_in_json() -> None:
    result = run("--driver-root", "/none", "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["exit_code"] == 2


def test_help_fits_a_terminal() -> None:
    text = run("--help").stdout
    assert "Examples:" in text
    assert max(map(len, text.splitlines())) <= 80


def test_without_proc_is_exit_status_3(host: Host) -> None:
    def doctor() -> Any:
        import subprocess
        import sys

        import host

        host.mount("none", "/proc", "tmpfs")
        command = [sys.executable, "-m", "nvsandbox", "doctor", "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
        host.umount("/proc")
        return done.returncode, done.stdout, done.stderr

    status, out, err = host.run(doctor)
    assert status == 3, err
    assert json.loads(out)["error"]["exit_code"] == 3
    assert err.startswith("nvsandbox: cannot examine anything without /proc")


def test_the_page_describes_the_json() -> None:
    report = json.loads(run("--simulate", "h100", "--json", "--wait", "20").stdout)
    documented = set(re.findall(r"`(\w+)`", (ROOT / "docs" / "cli" / "doctor.md").read_text(encoding="utf-8")))
    assert {*report, *report["verdict"], *report["findings"][0]} <= documented
    assert sum(report["counts"].values()) == len(report["findings"])
    for finding in report["findings"]:
        page, _, anchor = finding["documentation"].partition("#")
        headings = re.findall(r"^### (.*)$", (ROOT / page).read_text(encoding="utf-8"), re.M)
        assert anchor in {re.sub(r"[^\w -]", "", heading) for heading in headings}


def test_a_table_with_colours_on_a_terminal() -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    with subprocess.Popen([*COMMAND, "--simulate", "h100x8"], stdout=theirs, env=environment) as process:
        os.close(theirs)
        output = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # EIO: the other end is closed
                break
            output += piece
    os.close(ours)
    assert process.returncode == 0
    assert b"\x1b[32mok" in output
    plain = re.sub(r"\x1b\[[0-9;]*m", "", output.decode())
    assert "isolation.possible" in plain
    assert max(map(len, plain.splitlines()[:5])) <= 100


def test_nvml_that_hangs_is_not_waited_for() -> None:
    start = time.monotonic()
    done = subprocess.run(
        [*COMMAND, "--simulate", "h100,init_ms=8000", "--wait", "0.3", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert time.monotonic() - start < 7.5
    assert done.returncode == 1, done.stderr
    assert by_id(json.loads(done.stdout))["query.hung"]
    # Its worker ends by itself, when nvmlInit has come back: the fixture that looks for what is left waits for that.


# ---- with something taken away


def test_no_capability_in_the_bounding_set() -> None:
    setpriv = tool("setpriv")
    require(os.geteuid() == 0, "needs root, to give capabilities up")
    found = by_id(examined(setpriv, "--bounding-set=-all", "--inh-caps=-all"))
    assert "--cap-add SYS_ADMIN" in found["isolation.no-cap-sys-admin"][0]["do"]
    refused = {finding["about"]: finding for finding in found["isolation.refused"]}
    assert "CAP_SYS_ADMIN" in refused["mount"]["do"]
    assert "CAP_SETFCAP" in refused["user"]["do"]  # root cannot map itself without


def test_no_new_privs() -> None:
    assert "isolation.no-new-privs" in by_id(examined(tool("setpriv"), "--no-new-privs"))


def test_in_a_user_namespace() -> None:
    found = by_id(examined(tool("unshare"), "-Urm"))
    assert [finding["about"] for finding in found["isolation.possible"]] == ["mount", "user", "guard"]


def test_in_a_pid_namespace() -> None:
    require(os.geteuid() == 0, "needs root, to make a pid namespace")
    found = by_id(examined(tool("unshare"), "-pf", "--mount-proc"))
    assert "system.pid-namespace" in found


def test_securebits() -> None:
    require(os.geteuid() == 0, "needs root, to set securebits")
    require(importlib.util.find_spec("prctl"), "needs python-prctl")
    assert "isolation.securebits" in by_id(examined(tool("setpriv"), "--securebits=+noroot"))


def doctor_on_the_host() -> Any:
    import json
    import subprocess
    import sys

    done = subprocess.run([sys.executable, "-m", "nvsandbox", "doctor", "--json"], capture_output=True, text=True)
    return (done.returncode, done.stderr) if not done.stdout else json.loads(done.stdout)


def test_another_user_without_user_namespaces(host_with_nobody: Host) -> None:
    report = host_with_nobody.run(doctor_on_the_host, uid=65534, user_namespaces="refused")
    found = by_id(report)
    assert report["verdict"]["isolation"] == "guard"
    assert {"isolation.only-guard", "isolation.seccomp", "isolation.no-cap-sys-admin"} <= set(found)
    assert "doctor.unexamined" not in found


def test_another_user_with_none_left(host_with_nobody: Host) -> None:
    found = by_id(host_with_nobody.run(doctor_on_the_host, uid=65534, user_namespaces="none left"))
    refused = {finding["about"]: finding for finding in found["isolation.refused"]}
    assert "user.max_user_namespaces=10000" in refused["user"]["do"]
    assert "isolation.userns-disabled" in found


def test_root_under_a_filter_that_refuses_mounts(host: Host) -> None:
    """As under a container's profile, with CAP_SYS_ADMIN all the same."""

    def no_mounts() -> None:
        import errno

        import host

        host._filter([("mount", None, 0, host._RET_ERRNO | errno.EPERM)])

    found = by_id(host.run(doctor_on_the_host, setup=no_mounts))
    refused = {finding["about"]: finding for finding in found["isolation.refused"]}
    assert "AppArmor" in refused["mount"]["do"]
    assert "AppArmor" in refused["user"]["do"]
    assert "isolation.no-cap-sys-admin" not in found


def test_a_worker_on_a_file_system_without_programs(host: Host) -> None:
    def doctor() -> Any:
        import os
        import shutil
        import tempfile

        import host

        from nvsandbox.doctor import Places, package

        folder = tempfile.mkdtemp(prefix="stand-in-")
        host.mount("none", folder, "tmpfs", host.MS_NOEXEC)
        shutil.copy(os.path.join(os.path.dirname(os.path.dirname(package.__file__)), "nvsandbox-worker"), folder)
        found = [finding.as_json() for finding in package.installation(Places(package=folder))]
        host.umount(folder)
        os.rmdir(folder)
        return found

    (one,) = [finding for finding in host.run(doctor) if finding["id"] == "package.worker"]
    assert "Permission denied" in one["what"]
    assert "noexec" in one["do"]


def test_nothing_is_made_and_nothing_opened(host: Host) -> None:
    """What is left in /dev without a driver is found, stays, and is not opened."""

    def doctor() -> Any:
        import json
        import os
        import stat
        import subprocess
        import sys

        import host

        os.mknod("/dev/nvidiactl", stat.S_IFCHR | 0o666, os.makedev(195, 255))
        before = host.listing("/dev")
        command = [sys.executable, "-m", "nvsandbox", "doctor", "--json"]
        with host.watching("/dev") as watch:
            done = subprocess.run(command, capture_output=True, text=True)
        return json.loads(done.stdout), host.listing("/dev") == before, watch.seen

    report, same, seen = host.run(doctor)
    found = by_id(report)
    assert list(found["nodes.unwanted"][0]["facts"]["nodes"]) == ["nvidiactl"]
    assert report["verdict"]["dev_is_clean"] is False
    assert same
    assert seen == []


def test_a_process_that_ends_while_it_is_looked_at(tmp_path: Path) -> None:
    """Between the opening of its comm and the reading: that gives ESRCH, and the fabric manager is looked for on."""
    from nvsandbox.doctor import Places, driver

    process = subprocess.Popen(["sleep", "60"])
    with open(f"/proc/{process.pid}/comm", "rb") as comm:
        process.kill()
        process.wait()
        for pid, link in (("1", f"/proc/self/fd/{comm.fileno()}"), ("2", "../../manager")):
            (tmp_path / "proc" / pid).mkdir(parents=True)
            (tmp_path / "proc" / pid / "comm").symlink_to(link)
        (tmp_path / "manager").write_text("nv-fabricmanage\n")
        (tmp_path / "proc/driver/nvidia-nvswitch/devices/0000:01:00.0").mkdir(parents=True)
        (tmp_path / "proc/self/ns").mkdir(parents=True)
        (tmp_path / "proc/self/ns/pid").symlink_to("pid:[4026531836]")
        places = Places(root=str(tmp_path), proc=str(tmp_path / "proc"))
        assert list(driver.fabric_manager(places)) == []
        (tmp_path / "manager").write_text("another\n")
        assert [finding.id for finding in driver.fabric_manager(places)] == ["driver.fabric-manager"]


@pytest.fixture
def stuck_node(tmp_path: Path) -> Iterator[Path]:
    """A path whose open never returns: state D, as in a driver that hangs."""
    require(os.path.exists("/dev/fuse"), "needs /dev/fuse")
    require(can_play_host(), "needs CAP_SYS_ADMIN, to mount")
    folder = tmp_path / "fuse"
    folder.mkdir()
    program = ROOT / "tests" / "reliability" / "stuck_file.py"
    server = subprocess.Popen(
        [sys.executable, str(program), str(folder), "open"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert server.stdin is not None
    assert server.stdout is not None
    ready = server.stdout.readline()
    yield folder / "stuck"
    server.stdin.close()
    server.wait(10)
    server.stdout.close()
    assert ready == b"ready\n"


def test_an_open_that_never_returns_is_given_up(stuck_node: Path) -> None:
    code = "import sys; from nvsandbox.doctor import nodes; print(nodes.try_to_open([sys.argv[1], '/dev/null']))"
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code, str(stuck_node)], capture_output=True, text=True, timeout=30)
    assert time.monotonic() - start < 20
    assert done.stdout.strip() == repr(({}, str(stuck_node)))


def test_all_ids_are_known() -> None:
    report = examined()
    assert {finding["id"] for finding in report["findings"]} <= set(CATALOGUE)
    assert "doctor.unexamined" not in by_id(report)
    assert [path for path in listing("/dev") if "nvidia" in path] == []
