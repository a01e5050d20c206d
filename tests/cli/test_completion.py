# SPDX-License-Identifier: Apache-2.0
"""Shells complete commands, options and values, asked as they ask."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from host import require

from nvsandbox import isolation, testing
from nvsandbox.cli import main
from nvsandbox.field_table import FIELDS

BIN = Path(sys.executable).parent


def shell(*command: str, folder: Path | None = None, **env: str) -> str:
    path = f"{BIN}:{os.environ['PATH']}"
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": path, **env}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def in_bash(*words: str, folder: Path | None = None) -> list[str]:
    """What bash offers for the last of these words, its own splitting at ``=`` included."""
    split: list[str] = []
    for word in words:
        option, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        split += [option, equals, value] if equals else [option]
    quoted = " ".join(f"'{word}'" for word in split)
    code = f"""
        source <(nvsandbox completion bash)
        complete -p nvsandbox >/dev/null || exit
        COMP_WORDS=(nvsandbox {quoted}) COMP_CWORD={len(split)}
        function compopt () {{ :; }}
        _nvsandbox_completion nvsandbox
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    return [word for word in shell("bash", "-c", code, folder=folder).splitlines() if word]


def test_commands() -> None:
    assert set(in_bash("")) == set(main.commands)
    assert in_bash("do") == ["doctor"]


def test_options() -> None:
    assert set(in_bash("query", "--query-")) == {"--query-gpu", "--query-compute-apps", "--query-accounted-apps"}


@pytest.mark.parametrize("command", ["query", "run"])
def test_isolation(command: str) -> None:
    assert in_bash(command, "--isolation", "") == list(isolation.CHOICES)


@pytest.mark.parametrize("command", ["query", "run", "doctor"])
def test_simulated_gpus(command: str) -> None:
    offered = in_bash(command, "--simulate", "")
    assert set(offered) == {text for model in testing.profiles() for text in (model, f"{model}x8")}
    assert "h100x8,mig=" in in_bash(command, "--simulate=h100x8,m")


def test_fields_after_a_comma() -> None:
    offered = in_bash("query", "--query-gpu=name,memory.")
    known = {name for field in FIELDS for name in (field.name, *field.aliases) if name.startswith("memory.")}
    assert set(offered) == {f"name,{name}" for name in known}
    assert "name,memory.used" in offered
    assert in_bash("query", "--query-accounted-apps", "pid,max") == ["pid,max_memory_usage"]
    assert in_bash("query", "--query-compute-apps", "pid,used_gpu_m") == ["pid,used_gpu_memory"]
    assert in_bash("query", "--format", "csv,no") == ["csv,noheader", "csv,nounits"]
    assert in_bash("query", "--format", "csv,noheader,no") == ["csv,noheader,nounits"]


def test_a_program_on_path(tmp_path: Path) -> None:
    assert "bash" in in_bash("run", "--", "bas")
    assert "bash" in in_bash("audit", "--", "bas")
    assert in_bash("run", "--driver-root", "/et") == []  # left to the shell, which knows the folders


@pytest.mark.parametrize("name", ["zsh", "fish"])
def test_the_other_shells_take_their_scripts(name: str, tmp_path: Path) -> None:
    script = CliRunner().invoke(main, ["completion", name], prog_name="nvsandbox").stdout
    assert f"_NVSANDBOX_COMPLETE={name}_complete" in script
    env = {"_NVSANDBOX_COMPLETE": f"{name}_complete", "COMP_WORDS": "nvsandbox do", "COMP_CWORD": "1"}
    if name == "fish":
        env["COMP_CWORD"] = "do"
    assert "doctor" in shell("nvsandbox", **env)
    if shutil.which(name) is not None:
        (tmp_path / "script").write_text(script)
        shell(name, "-n", str(tmp_path / "script"))


def test_an_unknown_shell() -> None:
    result = CliRunner().invoke(main, ["completion", "tcsh"], prog_name="nvsandbox")
    assert result.exit_code == 2
    assert "'bash', 'zsh', 'fish'" in result.stderr


def test_a_terminal_completes(tmp_path: Path) -> None:
    """The real thing: Tab in an interactive bash."""
    import pty
    import select

    require(shutil.which("bash"), "bash is not installed")
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(PATH=f"{BIN}:{os.environ['PATH']}", PS1="> ", TERM="dumb", HOME=str(tmp_path))
        os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
    seen = b""
    os.write(terminal, b"source <(nvsandbox completion bash); echo rea''dy\n")

    def until(text: bytes) -> None:
        nonlocal seen
        while text not in seen:
            assert select.select([terminal], [], [], 30)[0], seen
            seen += os.read(terminal, 4096)

    until(b"\nready")
    os.write(terminal, b"nvsandbox doc\t")
    until(b"nvsandbox doctor ")
    os.write(terminal, b"\x15exit\n")
    while True:
        try:
            if not os.read(terminal, 4096):
                break
        except OSError:
            break
    os.close(terminal)
    assert os.waitpid(child, 0)[1] == 0
