# SPDX-License-Identifier: Apache-2.0
"""Commands that cannot be run, wrong options, machines that are in a bad way."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from host import NOBODY, Host

from .conftest import COMMAND, HOW, Run, surroundings


def failed(done: subprocess.CompletedProcess[str], status: int) -> str:
    """The error, which must be one line of nvsandbox's."""
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("nvsandbox: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr.removeprefix("nvsandbox: ").rstrip()


# ---- the command


@pytest.mark.parametrize("how", HOW)
def test_no_such_command(run: Run, how: tuple[str, ...]) -> None:
    assert "'no-such-command': command not found (looked in PATH: /" in failed(run(*how, "--", "no-such-command"), 127)
    assert failed(run(*how, "--", "/no/such/command"), 127) == "'/no/such/command' does not exist"


def test_what_is_no_program(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("echo script $1\n")
    assert failed(run("--", str(file)), 126) == f"'{file}' is not executable"
    assert failed(run("--", "./file"), 127) == "'./file' does not exist"
    assert failed(run("--", "./file", cwd=tmp_path), 126) == "'./file' is not executable"
    assert failed(run("--", str(tmp_path)), 126) == f"'{tmp_path}' is a folder, not a program"
    assert failed(run("--", ""), 127).startswith("'': command not found")
    assert failed(run("--", "file", env={"PATH": f"/nowhere:{tmp_path}"}), 126) == f"'{file}' is not executable"
    file.chmod(0o755)
    for command in (str(file), "./file", "file"):
        env = {**surroundings(), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        assert run("--", command, "one", cwd=tmp_path, env=env).stdout == "script one\n"  # without #!: the shell's


@pytest.mark.parametrize("how", HOW)
def test_what_only_the_kernel_can_tell(run: Run, tmp_path: Path, how: tuple[str, ...]) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    assert "interpreter that it names, does not exist" in failed(run(*how, "--", str(script)), 127)
    script.write_bytes(b"\x7fELF" + b"\1" * 100)
    assert run(*how, "--", str(script)).returncode in (126, 127)  # the shell's answer, as with execvp


def test_path_empty_or_not_set(run: Run, tmp_path: Path) -> None:
    assert "PATH is empty" in failed(run("--", "nothing", env={"PATH": ""}), 127)
    assert run("--", "true", env={}).returncode == 0  # the system's own
    (tmp_path / "here").symlink_to("/bin/true")
    assert run("--", "here", env={"PATH": ""}, cwd=tmp_path).returncode == 0  # empty means the working folder


def test_a_command_in_dev_is_not_in_the_private_one(run: Run, tmp_path: Path) -> None:
    os.symlink("/bin/true", "/dev/command")
    try:
        assert "does not exist (in the private /dev, if it is there)" in failed(run("--", "/dev/command"), 127)
        assert run("--guard", "--", "/dev/command").returncode == 0
    finally:
        os.unlink("/dev/command")


def test_the_working_folder_in_dev(run: Run) -> None:
    made = "mknod nvidiactl c 195 255; pwd -P; stat -c %F nvidiactl"
    done = run("--", "sh", "-c", made, cwd="/dev")
    assert done.stdout == "/dev\ncharacter special file\n"
    assert run("--", "pwd", cwd="/dev/shm").stdout == "/dev/shm\n"
    os.mkdir("/dev/folder")
    try:
        assert run("--", "sh", "-c", "pwd; ! touch x 2>&1", cwd="/dev/folder").stdout.startswith("/dev/folder\ntouch: ")
        done = run("--lockdown", "--", "pwd", cwd="/dev/folder")  # there it is not shown
        assert "the working folder is in the host's /dev" in failed(done, 125)
    finally:
        os.rmdir("/dev/folder")


# ---- options


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "no command: expected one after the options, as in nvsandbox run -- nvidia-smi"),
        (["--lockdown", "--"], "no command"),
        (["--no-such-option", "true"], "--no-such-option"),
        (["--driver-root"], "--driver-root"),
        (["--isolation", "wrong", "true"], "wrong"),
        (["--user", "--guard", "true"], "--isolation user and --isolation guard are mutually exclusive"),
        (["--user", "--isolation", "mount", "true"], "are mutually exclusive"),
        (["--devices", "x", "true"], "--devices x: expected device minor numbers"),
        (["--devices", "GPU-00000000", "true"], "is not listed by the driver"),
        (["--simulate", "h100", "--devices", "3", "true"], "--devices 3: none of the simulated GPUs has one"),
        (["--simulate", "h1000", "true"], "'h1000' is no GPU that can be simulated"),
        (["--simulate", "h100", "--library", "/x", "true"], "are mutually exclusive"),
        (["--driver-root", "/nowhere", "true"], "--driver-root /nowhere does not exist"),
        (["--guard", "--devices", "0", "true"], "--devices hides nodes"),
        (["--report=/nowhere/report", "true"], "--report=/nowhere/report cannot be written"),
    ],
)
def test_wrong_usage(run: Run, arguments: list[str], told: str) -> None:
    assert told in failed(run(*arguments), 125)
    done = run("--json", *arguments)
    error = json.loads(done.stderr)["error"]
    assert (done.returncode, error["exit_code"]) == (125, 125)
    assert told in error["message"]


def test_the_environment_gives_defaults(run: Run) -> None:
    env = {**surroundings(), "NVSANDBOX_ISOLATION": "guard", "NVSANDBOX_DEBUG": "1"}
    assert run("true", env=env).stderr == "nvsandbox: isolation guard\n"
    assert run("--user", "true", env=env).stderr == "nvsandbox: isolation user\n"
    env["NVSANDBOX_ISOLATION"] = "wrong"
    assert "NVSANDBOX_ISOLATION='wrong'" in failed(run("true", env=env), 125)


def test_the_program_of_another_installation(clean_host: None) -> None:
    """Started by hand, or by a package of another version: an error and no guess."""
    import nvsandbox

    program = Path(nvsandbox.__file__).parent / "nvsandbox-run"
    for arguments in ([], ["3"], ["3", "/bin/true", "true"], ["0", "/bin/true", "true"]):
        done = subprocess.run([program, *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 125
        assert "is started by" in done.stderr


# ---- privileges


def tried(command: str, runs: list[list[str]]) -> Any:
    """Each of the runs: status, what was shown, errors, and whether the host's /dev has changed."""
    import os
    import subprocess

    import host

    found = []
    for arguments in runs:
        before = host.listing(skip=lambda path: path.startswith("/dev/pts"))
        env = {**os.environ, "NVSANDBOX_DEBUG": "1"}
        done = subprocess.run(
            [*command.split(), "run", *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL, env=env
        )
        same = host.listing(skip=lambda path: path.startswith("/dev/pts")) == before
        found.append((done.returncode, done.stdout, done.stderr, same))
    return found


def as_nobody(host: Host) -> str:
    return " ".join([*host.python_for_nobody(), "-m", "nvsandbox"])


def test_without_any_privilege(host_with_nobody: Host) -> None:
    host = host_with_nobody
    runs = [["--", "id", "-u"], ["--isolation", "mount", "--", "true"], ["--user", "--", "true"]]
    for namespaces in ("refused", "none left"):
        auto, mount, user = host.run(tried, uid=NOBODY, user_namespaces=namespaces, command=as_nobody(host), runs=runs)
        assert auto[:2] == (0, f"{NOBODY}\n")
        assert "isolation guard; not user: user namespace: " in auto[2]
        assert mount[0] == 125
        assert "needs CAP_SYS_ADMIN" in mount[2]
        assert user[0] == 125
        assert "user namespace: " in user[2]
        assert [each[3] for each in (auto, mount, user)] == [True] * 3


def test_as_an_unprivileged_user(host_with_nobody: Host) -> None:
    host = host_with_nobody
    script = "id -u; id -g; mknod /dev/x c 195 0 2>&1; touch /dev/file && ls /dev/file; stat -f -c %T /dev"
    runs = [["--", "sh", "-c", script], ["--lockdown", "--", "sh", "-c", script]]
    for status, shown, errors, same in host.run(tried, uid=NOBODY, command=as_nobody(host), runs=runs):
        assert (status, same) == (0, True)
        assert shown.splitlines()[:2] == [str(NOBODY)] * 2
        assert "not permitted" in shown
        assert shown.splitlines()[-2:] == ["/dev/file", "tmpfs"]
        assert errors.startswith("nvsandbox: isolation user, and ids of others are shown as 65534 ")


# ---- sandboxes in sandboxes


STEPS = ["mount", "user", "guard", "lockdown"]


@pytest.mark.parametrize("outer", STEPS)
@pytest.mark.parametrize("inner", ["auto", *STEPS])
def test_one_in_the_other(run: Run, outer: str, inner: str) -> None:
    def options(step: str) -> list[str]:
        return ["--lockdown"] if step == "lockdown" else ["--isolation", step]

    script = "echo inside; mknod /dev/nvidiactl c 195 255 2>/dev/null; mkdir /dev/char/folder 2>/dev/null; exit 6"
    done = run(*options(outer), "--", COMMAND, "run", *options(inner), "--", "sh", "-c", script)
    possible = {
        "mount": {"auto", *STEPS},
        "user": {"auto", "guard", "lockdown"},  # root without CAP_SETFCAP cannot be mapped (Linux 5.12)
        "guard": {"auto", "guard", "lockdown"},  # in a Landlock domain nothing can be mounted
        "lockdown": {"auto", "guard", "lockdown"},
    }
    if inner in possible[outer]:
        assert (done.returncode, done.stdout) == (6, "inside\n"), done.stderr
    else:
        assert (done.returncode, done.stdout) == (125, "")
        assert "nvsandbox: " in done.stderr


def test_the_package_in_it(run: Run) -> None:
    """nvml_isolated() in a program in the sandbox, at whichever step is left."""
    import sys

    code = "import nvsandbox\nwith nvsandbox.nvml_isolated(simulate='h100x2') as nvml: print(nvml.nvmlDeviceGetCount())"
    for how in HOW:
        assert run(*how, "--", sys.executable, "-c", code).stdout == "2\n", how


def container() -> None:
    """A /dev as a container engine makes it: a tmpfs with nodes that are mounted on files, and a console."""
    import os
    import stat

    import host

    os.mkdir("/dev/shm/dev")
    host.mount("dev", "/dev/shm/dev", "tmpfs", host.MS_NOSUID, "mode=755,size=64k")
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        with open(f"/dev/shm/dev/{name}", "w"):
            pass
        host.mount(f"/dev/{name}", f"/dev/shm/dev/{name}", flags=host.MS_BIND)
    for name in ("pts", "shm", "mqueue"):
        os.mkdir(f"/dev/shm/dev/{name}")
    host.mount("/dev/pts", "/dev/shm/dev/pts", flags=host.MS_BIND)
    host.mount("shm", "/dev/shm/dev/shm", "tmpfs", host.MS_NOSUID | host.MS_NOEXEC, "mode=1777,size=64m")
    host.mount("mqueue", "/dev/shm/dev/mqueue", "mqueue", host.MS_NOSUID | host.MS_NOEXEC)
    os.symlink("pts/ptmx", "/dev/shm/dev/ptmx")
    os.symlink("/proc/self/fd", "/dev/shm/dev/fd")
    os.symlink("/nowhere/log", "/dev/shm/dev/log")
    os.mknod("/dev/shm/dev/nvidia0", 0o666 | stat.S_IFCHR, os.makedev(195, 0))
    host.mount("/dev/shm/dev", "/dev", flags=host.MS_BIND | host.MS_REC)


@pytest.mark.parametrize("options", [[], ["--user"], ["--lockdown"]])
def test_in_a_container(host: Host, options: list[str]) -> None:
    script = (
        "cd /dev; echo *; readlink log; stat -f -c %T . shm pts mqueue; echo x >null; echo x >shm/file; cat shm/file"
    )
    [(status, shown, _, same)] = host.run(
        tried, setup=container, command=COMMAND, runs=[[*options, "--", "sh", "-c", script]]
    )
    assert (status, same) == (0, False)  # /dev/shm is shared with those outside
    names, *rest = shown.splitlines()
    assert names == "char fd full log mqueue null ptmx pts random shm stderr stdin stdout tty urandom zero"
    assert rest == ["/nowhere/log", "tmpfs", "tmpfs", "devpts", "mqueue", "x"]


# ---- what may lie in /dev


def bad_entries() -> None:
    import os
    import stat
    import subprocess

    import host

    with open("/dev/shm/devices", "w") as file:
        file.write("Character devices:\n195 nvidia\n235 nvidia-caps\n236 nvidia-caps-imex-channels\n\nBlock devices:\n")
    host.mount("/dev/shm/devices", "/proc/devices", flags=host.MS_BIND)
    os.mkdir("/dev/nvidia0")
    os.mkfifo("/dev/nvidia1")
    os.symlink("/nowhere", "/dev/nvidia2")
    os.symlink("nvidia3", "/dev/nvidia3")
    os.mknod("/dev/nvidia4", 0o666 | stat.S_IFBLK, os.makedev(195, 4))
    os.mknod("/dev/nvidia5", 0o666 | stat.S_IFCHR, os.makedev(195, 5))
    os.mknod("/dev/nvidia6", 0o666 | stat.S_IFCHR, os.makedev(8, 0))
    subprocess.run(["chattr", "+i", "/dev/nvidia5"], check=False, capture_output=True)  # a tmpfs may not have it
    with open("/dev/nvidia-caps", "w"):
        pass
    os.mkfifo("/dev/shm/x")
    with open("/dev/char/195:5", "w"):
        pass
    os.symlink("/dev/char/195:6", "/dev/char/195:6")


@pytest.mark.parametrize("options", [[], ["--user"], ["--lockdown"]])
def test_entries_that_are_no_nodes(host: Host, options: list[str]) -> None:
    script = "cd /dev; echo nvidia*; stat -c %F nvidia5"
    [(status, shown, _, same)] = host.run(
        tried, setup=bad_entries, command=COMMAND, runs=[[*options, "--", "sh", "-c", script]]
    )
    assert (status, same) == (0, True)
    assert shown == "nvidia5\ncharacter special file\n"


def many_channels() -> None:
    import os
    import stat

    import host

    with open("/dev/shm/devices", "w") as file:
        file.write("Character devices:\n195 nvidia\n236 nvidia-caps-imex-channels\n\nBlock devices:\n")
    host.mount("/dev/shm/devices", "/proc/devices", flags=host.MS_BIND)
    os.mkdir("/dev/nvidia-caps-imex-channels")
    for number in range(2048):
        os.mknod(f"/dev/nvidia-caps-imex-channels/channel{number}", 0o666 | stat.S_IFCHR, os.makedev(236, number))


@pytest.mark.parametrize("options", [[], ["--user"], ["--report"]])
def test_two_thousand_channels(host: Host, options: list[str]) -> None:
    script = "cd /dev/nvidia-caps-imex-channels; ls | wc -l; stat -c %t:%T channel2047"
    [(status, shown, _, same)] = host.run(
        tried, setup=many_channels, command=COMMAND, runs=[[*options, "--", "sh", "-c", script]]
    )
    assert (status, shown, same) == (0, "2048\nec:7ff\n", True)


@pytest.mark.parametrize("how", HOW)
def test_a_full_dev_is_the_programs_own_trouble(run: Run, how: tuple[str, ...]) -> None:
    """Less than two MiB go in."""
    script = "head -c 64M /dev/zero >/dev/file; echo $?; head -c 10 /dev/zero | wc -c"
    done = run(*how, "--", "sh", "-c", script)
    if how == ("--guard",):
        assert "Permission denied" in done.stderr or "cannot create /dev/file" in done.stderr
    else:
        assert "No space left on device" in done.stderr
    assert done.stdout.splitlines()[-1] == "10"
    assert done.returncode == 0


@pytest.mark.parametrize("option", ["--timeout", "--transport"])
def test_options_of_calls_are_not_for_programs(run: Run, option: str) -> None:
    done = run(option, "3", "--", "true")
    assert done.returncode == 125
    assert f"{option} is not for run: the program calls NVML by itself" in done.stderr
    assert "--simulate" not in done.stderr


def test_an_option_with_a_slip_is_named(run: Run) -> None:
    assert "'--devces'. Did you mean '--devices'?" in run("--devces", "0", "--", "true").stderr
