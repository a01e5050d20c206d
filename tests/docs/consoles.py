# SPDX-License-Identifier: Apache-2.0
"""What a page shows of a console, and the same commands played on a stand-in for the host."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from host import DRIVER, Host, require

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Shown:
    """A command as it is printed, and the lines that follow it."""

    command: str
    output: list[str] = field(default_factory=list)


def consoles(page: str) -> list[list[Shown]]:
    """The console blocks of a page: after a prompt, `$` or `#`, a command; the rest is output."""
    found = []
    for block in re.findall(r"^```console\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S):
        shown: list[Shown] = []
        for line in block.splitlines():
            if re.match(r"[$#] ", line):
                shown.append(Shown(line[2:]))
            else:
                shown[-1].output.append(line)
        found.append(shown)
    return found


# ---- what is another each time

_CHANGES = (
    (r"\[[0-9]+\]", "[PID]"),
    (r"^ +[0-9]+\.[0-9]{3} s ", " TIME "),
    (r"nodes-[0-9]{8}T[0-9]{6}Z-[0-9]+\.jsonl", "UNDO"),
    (r"[0-9]{4}/[0-9]{2}/[0-9]{2} [0-9:.]{12}", "DATE"),
    (r"\b[0-9]+\.[0-9]{2} W\b", "POWER"),
    (r" < (?!agent)\S+\[PID\].*$", " < …"),  # what the tests themselves were started by
    (r"kernel \S+, Landlock ABI [0-9]+", "KERNEL"),
    (r"in a container \(\w+\)", "CONTAINER"),
    (r"cgroups of .*", "CGROUPS"),
    (r"nvsandbox [0-9][^ ,]*, nvidia-ml-py \S+", "RELEASES"),
)


def _steady(line: str) -> str:
    for pattern, name in _CHANGES:
        line = re.sub(pattern, name, line)
    return line


def same(shown: str, is_: str) -> bool:
    """Whether a line is as it is shown, but for what is another each time. `…` stands for the rest of a line."""
    shown, is_ = _steady(shown), _steady(is_)
    if shown.endswith(" …") and not shown.endswith("< …"):
        return is_.startswith(shown[:-1])
    return shown == is_


def difference(shown: list[str], is_: list[str]) -> str:
    """Empty if the lines are as they are shown."""
    if len(shown) == len(is_) and all(map(same, shown, is_)):
        return ""
    return "\n".join(["the page shows", *shown, "", "it is", *is_])


# ---- the stage


def play(
    steps: list[tuple[str, float]], folder: str, bin_: str, smi: str, library: str, simulate: str, with_driver: bool
) -> list[tuple[int, str]]:
    """Each command's status and what it writes, in one shell's surroundings. A command that has not ended after so many
    seconds gets SIGINT. What the pages take for granted is there: an agent that calls nvidia-smi, and the like."""
    import os
    import re
    import signal
    import stat
    import subprocess

    import host

    # Nothing of the machine's own is written to, nor read where another machine is meant.
    for path in ("/var/lib", "/run"):
        host.mount("none", path, "tmpfs")
    programs = {
        "agent": "nvidia-smi -q",
        "exporter": "test -d /dev/char",
        "some-agent": "true",
        "some-exporter": "true",
        "nvitop": 'test -n "$NVSANDBOX_SIM"',
        "jq": "exec cat",
    }
    for name, code in programs.items():
        for place in (folder, f"{folder}/.bin"):
            os.makedirs(place, exist_ok=True)
            with open(f"{place}/{name}", "w") as file:
                file.write(f"#!/bin/sh\n{code}\nexit $?\n")
            os.chmod(f"{place}/{name}", 0o755)
    driver = "/run/nvidia/driver"
    os.makedirs(f"{driver}/usr/bin")
    os.makedirs(f"{driver}/dev")
    os.symlink(smi or f"{folder}/some-agent", f"{driver}/usr/bin/nvidia-smi")
    os.symlink(smi or f"{folder}/some-agent", f"{folder}/.bin/nvidia-smi")
    if with_driver:
        for dev in ("/dev", f"{driver}/dev"):
            for name, minor in (("nvidiactl", 255), ("nvidia0", 0)):
                os.mknod(f"{dev}/{name}", stat.S_IFCHR | 0o666, os.makedev(195, minor))
                os.chmod(f"{dev}/{name}", 0o666)
        for name, minor in (("nvidiactl", 255), ("nvidia0", 0)):
            os.symlink(f"../{name}", f"/dev/char/195:{minor}")
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("NVSANDBOX_", "NVIDIA_"))}
    environment |= {"PATH": f"{folder}/.bin:{bin_}:{os.environ['PATH']}", "COLUMNS": "200"}
    environment |= {"LD_LIBRARY_PATH": os.path.dirname(library)} if library else {}
    environment |= {"NVSANDBOX_SIMULATE": simulate} if simulate else {}
    found: list[tuple[int, str]] = []
    names: dict[str, str] = {}
    undo = re.compile(r"nodes-[0-9]{8}T[0-9]{6}Z-[0-9]+\.jsonl")
    for command, seconds in steps:
        for shown, real in names.items():
            command = command.replace(shown, real)
        process = subprocess.Popen(
            ["bash", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            out, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)
            out, _ = process.communicate(timeout=20)
        # The pages go on with the file that they show.
        for later, _ in steps:
            for shown in undo.findall(later):
                if shown not in names and undo.search(out):
                    names[shown] = undo.findall(out)[0]
        found.append((process.returncode, out))
    return found


def on_stage(
    host: Host,
    folder: Path,
    steps: list[tuple[str, float]],
    *,
    real: bool = False,
    simulate: str = "",
    with_driver: bool = False,
    timeout: float = 90,
) -> list[tuple[int, list[str]]]:
    """The same with NVIDIA's own nvidia-smi, or a stand-in for it. Its place is shown as the usual one."""
    smi = library = ""
    if real:
        smi = next((str(path) for path in DRIVER.glob("usr/lib/nvidia/current/nvidia-smi")), "")
        require(smi, "needs NVIDIA's nvidia-smi: run scripts/fetch-nvidia-nvml")
        library = str(next(DRIVER.glob("usr/lib/*/nvidia/current/libnvidia-ml.so.1")))
    arguments: dict[str, Any] = {"simulate": simulate, "with_driver": with_driver, "smi": smi, "library": library}
    bin_ = str(Path(sys.executable).parent)
    found = host.run(play, timeout=timeout, steps=steps, folder=str(folder), bin_=bin_, **arguments)
    return [(status, out.replace(smi or "\0", "/usr/bin/nvidia-smi").splitlines()) for status, out in found]
