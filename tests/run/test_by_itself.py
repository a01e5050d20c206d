# SPDX-License-Identifier: Apache-2.0
"""nvsandbox-run started by hand, as in images that have no Python: the same as ``nvsandbox run``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from host import NOBODY, Host

import nvsandbox

from .conftest import PROGRAM, Run, surroundings
from .test_trouble import failed

MAKE = "mknod -m 666 /dev/nvidiactl c 195 255 && ls /dev/nvidiactl"
STATE = r"""
import json, os, re, sys
status = open("/proc/self/status").read()
print(json.dumps({
    "environment": dict(os.environ),
    "arguments": sys.argv,
    "namespaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in ("mnt", "user")},
    "privileges": re.findall(r"(?:Cap(?:Eff|Bnd|Amb)|NoNewPrivs|Seccomp|Uid):\s*(.*)", status),
    "dev": sorted(os.listdir("/dev")),
    "descriptors": sorted(os.listdir("/proc/self/fd")),
}))
"""


@pytest.fixture
def direct(clean_host: None) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The program itself with the arguments that are given. The host's /dev must be as before."""

    def start(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        options = {
            "env": surroundings(), "stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 60,
            **options,
        }  # fmt: skip
        return subprocess.run([PROGRAM, *arguments], check=False, **options)

    return start


Direct = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.parametrize("how", [(), ("--user",), ("--guard",), ("--lockdown",), ("--isolation=mount", "--lockdown")])
def test_the_program_is_as_with_nvsandbox_run(run: Run, direct: Direct, how: tuple[str, ...]) -> None:
    python = ("/usr/bin/env", "python3", "-c", STATE, "--user", "a b")
    told = []
    for start in (run, direct):
        done = start(*how, "--", *python, env={**surroundings(), "EMPTY": "", "NAME": "a\nb"})
        assert (done.returncode, done.stderr) == (0, "")
        told.append(json.loads(done.stdout))
    mine = {name: os.readlink(f"/proc/self/ns/{name}") for name in ("mnt", "user")}
    own = [{name for name, namespace in state.pop("namespaces").items() if namespace != mine[name]} for state in told]
    assert told[1] == told[0]
    assert own[1] == own[0] == (set() if "--guard" in how else {"mnt", "user"} if "--user" in how else {"mnt"})


def test_what_it_makes_stays_in_its_own_dev(direct: Direct) -> None:
    done = direct("--isolation", "mount", "--", "sh", "-c", MAKE)
    assert (done.returncode, done.stdout) == (0, "/dev/nvidiactl\n")
    for how in ("--user", "--guard"):
        refused = direct(how, "sh", "-c", MAKE)
        assert refused.returncode != 0, how
        assert "nvidiactl" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["--"], 125, "there is no command"),
        (["--lockdown"], 125, "there is no command"),
        (["--no-such-option", "true"], 125, "there is no option --no-such-option"),
        (["--isolationx", "mount", "true"], 125, "there is no option --isolationx"),
        (["--driver-root"], 125, "--driver-root needs a value"),
        (["--isolation", "wrong", "true"], 125, "--isolation: 'wrong': expected auto, mount, user or guard"),
        (["--isolation=", "true"], 125, "--isolation: '': expected auto"),
        (["--driver-root=/no-where", "true"], 125, "--driver-root: '/no-where' does not exist: expected the root of"),
        (["--driver-root=/etc/passwd", "true"], 125, "--driver-root: '/etc/passwd' is not a folder: expected the root"),
        (["--dev-root", "/no-where", "true"], 125, "--dev-root: '/no-where' does not exist: expected the root whose"),
        (["--driver-root", "", "true"], 125, "--driver-root: '': expected the absolute path of a folder"),
        (["--dev-root", "dev", "true"], 125, "--dev-root: 'dev': expected the absolute path of a folder"),
        *(
            ([f"--devices={text}", "true"], 125, f"--devices: '{text}': expected minor numbers from 0 to 249")
            for text in ("", "x", "0,", ",0", "-1", " 1", "+1", "250", "99999999999999999999", "0;1", "GPU-00000000")
        ),
        (["--devices", ",".join(["1"] * 257), "true"], 125, "expected minor numbers"),
        (["--guard", "--devices", "0", "true"], 125, "--devices hides nodes"),
        (["/app/exporter"], 125, "'/app/exporter': expected -- before the command"),
        (["/app/exporter", "--listen", ":9400", "x"], 125, "nvsandbox-run [OPTION...] -- /app/exporter …"),
        (["x", "/bin/true", "true"], 125, "'x': expected -- before the command"),
        (["--", ""], 127, "does not exist, as a path or in PATH"),
        (["--", "no-such-command"], 127, "no-such-command does not exist, as a path or in PATH"),
        (["--", "/no/such/command"], 127, "/no/such/command does not exist"),
        (["--", "/etc/passwd"], 126, "/etc/passwd is not executable"),
        (["--", "/etc"], 126, "/etc is not executable"),
    ],
)
def test_wrong_usage(direct: Direct, arguments: list[str], status: int, told: str) -> None:
    assert told in failed(direct(*arguments), status)


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("NVSANDBOX_ISOLATION", "wrong", "'wrong': expected auto, mount, user or guard"),
        ("NVSANDBOX_DRIVER_ROOT", "/no-where", "'/no-where' does not exist: expected the root"),
        ("NVIDIA_DRIVER_ROOT", "/no-where", "'/no-where' does not exist: expected the root"),
        ("NVSANDBOX_DEV_ROOT", "/no-where", "'/no-where' does not exist: expected the root"),
        ("NVSANDBOX_DEVICES", "all", "'all': expected minor numbers"),
    ],
)
def test_the_environment_gives_defaults(direct: Direct, variable: str, value: str, told: str) -> None:
    error = failed(direct("--", "true", env={**surroundings(), variable: value}), 125)
    assert error.startswith(f"environment variable {variable}: {told}")
    assert direct("--", "true", env={**surroundings(), variable: ""}).returncode == 0


def test_a_driver_root_of_the_host_in_a_pod(direct: Direct) -> None:
    """U15: the variable that DRA drivers set names the host's path; the error names the one that is for this place."""
    remedy = "in a container this variable is often a path on the host: say with NVSANDBOX_DRIVER_ROOT where that root"
    env = {**surroundings(), "NVIDIA_DRIVER_ROOT": "/no-where"}
    assert remedy in failed(direct("--", "true", env=env), 125)
    assert "NVSANDBOX_DRIVER_ROOT" not in failed(direct("--driver-root", "/no-where", "--", "true"), 125)
    assert direct("--", "true", env={**env, "NVSANDBOX_DRIVER_ROOT": "/"}).returncode == 0


@pytest.mark.parametrize(("variable", "value"), [("SIMULATE", "h100"), ("LIBRARY", "/lib/x")])
def test_a_variable_that_takes_python_is_not_ignored_silently(direct: Direct, variable: str, value: str) -> None:
    done = direct("--", "true", env={**surroundings(), f"NVSANDBOX_{variable}": value})
    assert done.returncode == 0
    assert done.stderr == (
        f"nvsandbox: environment variable NVSANDBOX_{variable} has no effect on nvsandbox-run, only on `nvsandbox "
        "run`: the program finds the driver's library by itself\n"
    )
    # As `nvsandbox run --simulate` leaves it: the program does find the simulator.
    nested = {**surroundings(), "NVSANDBOX_SIM": "h100", "NVSANDBOX_SIMULATE": "h100", "NVSANDBOX_LIBRARY": ""}
    assert direct("--", "true", env=nested).stderr == ""


def test_options_go_before_the_environment(direct: Direct) -> None:
    env = {**surroundings(), "NVSANDBOX_ISOLATION": "guard", "NVSANDBOX_DEBUG": "1"}
    assert direct("--", "true", env=env).stderr == "nvsandbox: isolation guard\n"
    assert direct("--user", "true", env=env).stderr == "nvsandbox: isolation user\n"
    # The first says where it is in the container, the other, as vendors have it, where on the host.
    roots = {**surroundings(), "NVSANDBOX_DRIVER_ROOT": "/", "NVIDIA_DRIVER_ROOT": "/no-where"}
    assert direct("--", "true", env=roots).returncode == 0


def test_the_path_is_searched(direct: Direct, tmp_path: Path) -> None:
    folder, other = tmp_path / "folder", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    (folder / "command").write_text("echo found $1\n")
    search = {**surroundings(), "PATH": f"/no-where:{folder}:{other}:{os.environ['PATH']}"}
    assert "command is not executable" in failed(direct("--", "command", env=search), 126)
    (other / "command").write_text("echo other $1\n")
    (other / "command").chmod(0o755)
    assert direct("--", "command", "it", env=search).stdout == "other it\n"
    (folder / "command").chmod(0o755)
    assert direct("--", "command", "it", env=search).stdout == "found it\n"
    assert direct("--", "command", "it", cwd=folder, env={"PATH": ""}).stdout == "found it\n"
    assert direct("--", "true", env={}).returncode == 0


def test_a_name_is_never_cut_off(direct: Direct, tmp_path: Path) -> None:
    """In a folder whose path leaves no room for it: what there is room for is another program's."""
    (tmp_path / "com").write_text("echo another program\n")
    (tmp_path / "com").chmod(0o755)
    length = os.pathconf("/", "PC_PATH_MAX") - 1 - len("/com")
    folder = str(tmp_path) + "/." * ((length - len(str(tmp_path))) // 2)
    search = {**surroundings(), "PATH": folder.ljust(length, "/")}
    assert direct("--", "com", env=search).stdout == "another program\n"
    assert "command does not exist" in failed(direct("--", "command", env=search), 127)


def test_help_and_version(direct: Direct) -> None:
    told = direct("--help")
    assert told.returncode == 0
    assert direct("-h").stdout == told.stdout
    assert set(re.findall(r"--[a-z-]+", told.stdout)) == {
        *("--isolation", "--user", "--guard", "--lockdown", "--driver-root", "--dev-root", "--devices"),
        "--keep-propagation",
        *("--version", "--help"),
    }
    assert direct("--version").stdout.startswith(f"nvsandbox-run {nvsandbox.__version__} ")


def run_with_a_dev_root_that_cannot_be_read() -> tuple[int, str]:
    import os
    import subprocess
    from pathlib import Path

    import nvsandbox

    program = Path(nvsandbox.__file__).parent / "nvsandbox-run"
    root = os.environ["DEV_ROOT"]
    done = subprocess.run([program, "--dev-root", root, "--", "true"], capture_output=True, text=True)
    return done.returncode, done.stderr


def test_what_ends_it_leaves_the_reasons_before_in_the_text(host_with_nobody: Host) -> None:
    """Defect 12: an unprivileged user cannot have the first step, and the second cannot read the dev root."""
    with tempfile.TemporaryDirectory() as root:
        os.chmod(root, 0o755)
        os.mkdir(f"{root}/dev", 0o700)
        status, errors = host_with_nobody.run(
            run_with_a_dev_root_that_cannot_be_read, uid=NOBODY, env={"DEV_ROOT": root}
        )
    assert status == 125
    assert re.fullmatch(rf"nvsandbox: mount: mount namespace: .*; user: dev root: .*{root}/dev.*\n", errors), errors


def test_text_for_the_command_line_alone_names_steps_as_it_does(direct: Direct) -> None:
    """Defect 13: the same words do for the option and for Python's argument; nothing is replaced within a path."""
    root = '/tmp/isolation="guard"'
    assert failed(direct("--dev-root", root, "--", "true"), 125).count(root) == 1


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("caf\u00e9-\u4e2d-\U0001f40d".encode(), "caf\u00e9-\u4e2d-\U0001f40d"),
        (b"a\xffb\xc3", "a\ufffdb\ufffd"),
        (b"\xc0\xaf\xed\xa0\x80\xf4\x90\x80\x80", "\ufffd" * 9),
        (b'"\\\n\x7f', '"\\\n\x7f'),
    ],
)
def test_json_has_paths_as_they_are(run: Run, tmp_path: Path, name: bytes, told: str) -> None:
    """Defect 13: UTF-8 stays UTF-8, and each byte that is none becomes U+FFFD."""
    program = os.fsencode(tmp_path) + b"/" + name
    with open(program, "wb") as file:
        file.write(b"#!/no/such/interpreter\n")
    os.chmod(program, 0o755)
    done = run("--json", "--", program)
    error = json.loads(done.stderr)["error"]
    assert (done.returncode, error["type"]) == (127, "CommandError")
    assert error["message"].startswith(f"cannot run {tmp_path}/{told}: ")


def test_a_long_path_is_whole_in_the_error(direct: Direct, tmp_path: Path) -> None:
    """Defect 15: paths are told up to the longest that there can be; what is longer is cut, and that shows."""
    folder = tmp_path
    while len(str(folder)) < 3500:
        folder = folder / ("d" * 200)
    folder.mkdir(parents=True)
    program = folder / "program"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    assert f"cannot run {program}: " in failed(direct("--", str(program)), 127)
    text = failed(direct("--dev-root", "/" + "x" * 250 + "/x" * 900, "--", "true"), 125)
    shown = ("/" + "x" * 250 + "/x" * 900)[:300]
    assert text == f"--dev-root: '{shown}…' does not exist: expected the root whose dev/ holds the NVIDIA nodes"
