# SPDX-License-Identifier: Apache-2.0
"""What the pages show of a console is what comes of these commands, and every example can be typed as it is printed."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner
from host import Host, require

from nvsandbox.cli import main

from .consoles import ROOT, Shown, consoles, difference, on_stage, same


def check(shown: list[Shown], is_: list[tuple[int, list[str]]]) -> None:
    """What is shown without output is not compared: it may be long, or a whole screen."""
    for one, (status, out) in zip(shown, is_, strict=True):
        if one.output:
            assert not difference(one.output, out), f"{one.command}\n{difference(one.output, out)}"
        else:
            ran(one.command, status, out)


def ran(command: str, status: int, out: list[str]) -> None:
    """Whether it did what it is printed for, as far as its status tells."""
    text = "\n".join(out)
    assert "Traceback" not in text, f"{command}\n{text}"
    assert "Usage:" not in text, f"{command}\n{text}"
    good = set(range(125)) if "nvsandbox run" in command else {0, 1, -signal.SIGINT}
    assert status in good, f"{command}: {status}\n{text}"


def test_run_without_a_driver(host: Host, tmp_path: Path) -> None:
    first, report = consoles("docs/cli/run.md")
    check([*first, *report], on_stage(host, tmp_path, [(one.command, 20) for one in (*first, *report)], real=True))


def test_nodes_without_a_driver(host: Host, tmp_path: Path) -> None:
    first, _ = consoles("docs/cli/nodes.md")
    check(first, on_stage(host, tmp_path, [(one.command, 20) for one in first], real=True))


def test_nodes_with_a_driver_in_a_container(host: Host, tmp_path: Path) -> None:
    """The driver's /proc, and the place of the CDI spec, have to be another's here."""
    _, [one] = consoles("docs/cli/nodes.md")
    information = tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0/information"
    information.parent.mkdir(parents=True)
    information.write_text("Model: \t NVIDIA H100\nDevice Minor: \t 0\n")
    version = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
    (tmp_path / "proc/driver/nvidia/version").write_text(version)
    (tmp_path / "proc/devices").write_text("Character devices:\n195 nvidia\n195 nvidiactl\n")
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi/nvidia.yaml").write_text(
        "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: '0'\n  containerEdits:\n    deviceNodes:\n"
        "    - {path: /dev/nvidia0, hostPath: /run/nvidia/driver/dev/nvidia0}\n"
        "    - {path: /dev/nvidiactl, hostPath: /run/nvidia/driver/dev/nvidiactl}\n"
    )
    command = f"{one.command} --proc {tmp_path}/proc --cdi-dir {tmp_path}/cdi"
    [(status, out)] = on_stage(host, tmp_path, [(command, 20)], with_driver=True)
    assert status == 1
    given = f" --proc {tmp_path}/proc --cdi-dir {tmp_path}/cdi"
    out = [line.replace(given, "").replace(f"{tmp_path}/cdi", "/etc/cdi") for line in out]
    assert not (text := difference(one.output, out)), text


def test_audit_of_a_command(host: Host, tmp_path: Path) -> None:
    first, _ = consoles("docs/cli/audit.md")
    check(first, on_stage(host, tmp_path, [(one.command, 20) for one in first], real=True))


def test_audit_of_the_host(host: Host, tmp_path: Path) -> None:
    _, [one] = consoles("docs/cli/audit.md")
    meanwhile = f"(sleep 1; ./agent --once) >/dev/null & exec {one.command}"
    [(status, out)] = on_stage(host, tmp_path, [(meanwhile, 3)], real=True)
    assert status == 1
    # How much of what is done in one moment the kernel tells of together is another each time, as the page says.
    assert one.output[-1] == "-- 3 changes in /dev"
    shown, told = "\n".join(one.output[:-1]), "\n".join(out[:-1])
    told = re.sub(r"^.* touched .*\n.*\n.*\n", "", told, flags=re.M)
    if " changed /dev/nvidiactl" not in told:
        shown = re.sub(r"^.* changed .*\n.*\n.*\n", "", shown, flags=re.M).replace("mode 0644", "mode 0666")
    assert not (text := difference(shown.splitlines(), told.splitlines())), text
    assert out[-1] == f"-- {told.count('created') + told.count('changed')} changes in /dev"


def test_doctor(host: Host, tmp_path: Path) -> None:
    """Findings about the machine itself are compared where there are any of theirs."""
    require(not os.path.exists("/proc/driver/nvidia"), "needs a machine without NVIDIA's driver")
    page = (ROOT / "docs/cli/doctor.md").read_text()
    shown = re.search(r"^```text\n\$ nvsandbox doctor\n(.*?)^```", page, re.M | re.S)
    assert shown is not None
    [(status, out)] = on_stage(host, tmp_path, [("nvsandbox doctor", 30)])
    assert status == 1

    def findings(lines: list[str]) -> tuple[list[list[str]], list[str]]:
        """Each with what to do, and the lines after the last."""
        end = lines.index("")
        grouped: list[list[str]] = []
        for line in lines[:end]:
            if line.startswith(" "):
                grouped[-1].append(line)
            else:
                grouped.append([line])
        return grouped, lines[end:]

    ours, our_end = findings(shown[1].splitlines())
    theirs, their_end = findings(out)
    assert not (text := difference(our_end, their_end)), text
    ids = {finding[0].split()[1] for finding in theirs}
    for finding in ours:
        if not finding[0].split()[1].startswith("system.") or finding[0].split()[1] in ids:
            assert any(not difference(finding, other) for other in theirs), "\n".join([*finding, "", *out])
    for other in theirs:
        mine = [finding for finding in ours if finding[0].split()[:2] == other[0].split()[:2]]
        assert mine or other[0].startswith("info"), other


def test_query(host: Host, tmp_path: Path) -> None:
    """Those whose output is fixed are compared in tests/cli/test_views.py."""
    blocks = consoles("docs/cli/query.md")
    shown = [
        one for block in blocks for one in block if "frozen=1" not in one.command and "topology" not in one.command
    ]
    assert len(shown) >= 4
    check(shown, on_stage(host, tmp_path, [(one.command, 20) for one in shown]))


def test_topology(host: Host, tmp_path: Path) -> None:
    """But for the network devices, which are this machine's: in a network namespace of its own there are none."""
    [one] = [one for block in consoles("docs/cli/query.md") for one in block if "topology" in one.command]
    start = one.output[0].index("NIC0")
    end = one.output[0].index("CPU AFFINITY")
    legend = one.output.index("")
    matrix = [line[:start] + line[end:] for line in one.output[:legend]]
    assert one.output[legend + 1].startswith("NIC0: ")
    [(status, out)] = on_stage(host, tmp_path, [(f"unshare --net {one.command}", 20)])
    assert status == 0
    assert not (text := difference([*matrix, *one.output[legend + 2 :]], out)), text


# ---- examples of the help


def examples(*command: str) -> list[str]:
    """The commands of a help's examples, without the words beside them."""
    text = CliRunner().invoke(main, [*command, "--help"], prog_name="nvsandbox").output
    block = text[text.index("Examples:\n") :].split("\n\n")[0]
    return [re.split(r" {3,}", line.strip())[0] for line in block.splitlines() if line.strip().startswith("nvsandbox ")]


@pytest.mark.parametrize("command", ["", "query", "run", "doctor", "nodes", "audit"])
def test_every_example_runs(host: Host, tmp_path: Path, command: str) -> None:
    lines = examples(*command.split())
    assert len(lines) >= 3
    stray = "mknod -m 666 /dev/nvidiactl c 195 255; nvsandbox nodes --clean --yes --undo-file FILE"
    endless = ("--watch", "--host")
    steps = [(stray, 20.0), *((line, 1.5 if any(word in line for word in endless) else 20.0) for line in lines)]
    (status, out), *found = on_stage(host, tmp_path, steps, simulate="" if command == "nodes" else "h100x8")
    assert (status, out[0]) == (0, "removed /dev/nvidiactl: char 195:255, mode 0666, owner 0:0")
    for line, (status, out) in zip(lines, found, strict=True):
        ran(line, status, out)


def test_what_changes_each_time_is_no_difference() -> None:
    assert same("    0.015 s  created /dev/x", "   12.615 s  created /dev/x")
    assert same("by agent[1] < bash[2] < init[3]", "by agent[7] < python[8]")
    assert same("NVIDIA-SMI has failed …", "NVIDIA-SMI has failed because")
    assert not same("    0.015 s  created /dev/x", "    0.015 s  removed /dev/x")
    assert not same("by a[1] < agent[2]", "by b[1] < agent[2]")
    assert difference(["a"], ["a", "b"])
