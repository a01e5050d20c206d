# SPDX-License-Identifier: Apache-2.0
"""What the dev root has besides NVIDIA's nodes, as generators of CDI specs and device plugins look for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import host as stand_in
import pytest
from host import require

from .conftest import COMMAND, Run, surroundings

LOOK = r"""
import json, os, stat, sys
found = {}
for folder, folders, files in os.walk("/dev"):
    for name in folders + files:
        path = os.path.join(folder, name)
        st = os.lstat(path)
        kind = stat.S_IFMT(st.st_mode)
        facts = [stat.filemode(st.st_mode), st.st_uid, st.st_gid]
        if kind in (stat.S_IFCHR, stat.S_IFBLK):
            facts += [os.major(st.st_rdev), os.minor(st.st_rdev)]
        if kind == stat.S_IFLNK:
            facts.append(os.readlink(path))
        found[path.removeprefix("/dev/")] = facts
print(json.dumps(found))
"""

NODES = {
    "dri/card1": (0o660, 226, 1, 44),
    "dri/renderD129": (0o666, 226, 129, 105),
    "gdrdrv": (0o666, 508, 0, 0),
    "nvidia-fs0": (0o600, 507, 0, 0),
    "infiniband/uverbs0": (0o666, 231, 192, 0),
    "infiniband/rdma_cm": (0o666, 10, 58, 0),
    "kmsg": (0o644, 1, 11, 4),
}
LINKS = {"dri/by-path/pci-0000:0a:00.0-card": "../card1", "rtc": "gdrdrv"}


@pytest.fixture
def dev_root(tmp_path: Path) -> Iterator[Path]:
    """A dev root that has more than NVIDIA's nodes."""
    require(stand_in.can_play_host(), "needs CAP_SYS_ADMIN, to make mount namespaces")
    dev = tmp_path / "dev"
    for name, (mode, major, minor, gid) in NODES.items():
        path = dev / name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(path, mode | 0o20000, os.makedev(major, minor))
        os.chmod(path, mode)
        os.chown(path, 0, gid)
    for name, target in LINKS.items():
        (dev / name).parent.mkdir(parents=True, exist_ok=True)
        (dev / name).symlink_to(target)
    for name, kind, device in (
        ("nvidia-caps", 0, 0),
        ("disk", 0, 0),
        ("mem", 0o20000, (1, 1)),
        ("tty7", 0o20000, (4, 7)),
    ):
        if kind:
            os.mknod(dev / name, 0o600 | kind, os.makedev(*device))
        else:
            (dev / name).mkdir()
    os.mknod(dev / "nvidia0", 0o20666, os.makedev(195, 0))  # there is no driver: a node of no use, and a trap
    os.mknod(dev / "sda", 0o60660, os.makedev(8, 0))
    yield tmp_path
    shutil.rmtree(dev)


def seen(run: Run, dev_root: Path, *options: str) -> dict[str, Any]:
    done = run("--dev-root", str(dev_root), *options, "--", "/usr/bin/python3", "-c", LOOK)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("options", [(), ("--user",), ("--report=/dev/null",)])
def test_what_nvml_cannot_create_is_there(run: Run, dev_root: Path, options: tuple[str, ...]) -> None:
    """U10: with number, mode and owner as in the dev root, and the links by path."""
    found = seen(run, dev_root, *options)
    for name, (mode, major, minor, gid) in NODES.items():
        assert found[name][0] == f"c{stand_in_mode(mode)}", name
        assert found[name][1:] == [0, gid, major, minor], name
    for name, target in LINKS.items():
        assert found[name][-1] == target, name
    assert {"mem", "tty7", "sda", "disk", "nvidia0"} & set(found) == set()


def stand_in_mode(mode: int) -> str:
    return "".join(letter if mode >> (8 - index) & 1 else "-" for index, letter in enumerate("rwxrwxrwx"))


def test_what_is_shown_of_directories_is_read_only(run: Run, dev_root: Path) -> None:
    """U10: a program that makes a name there would make it in the dev root."""
    for options in ((), ("--user",)):
        script = "mknod /dev/dri/card9 c 226 9; touch /dev/infiniband/x; chmod 0 /dev/dri/card1; rm /dev/dri/card1"
        done = run("--dev-root", str(dev_root), *options, "--", "sh", "-c", script)
        assert done.returncode != 0
        assert done.stderr.count("Read-only file system") >= 3, done.stderr
    assert sorted(os.listdir(dev_root / "dev/dri")) == ["by-path", "card1", "renderD129"]


def test_what_is_left_out(run: Run, dev_root: Path) -> None:
    """U10: --devices hides other GPUs' DRM nodes, --lockdown and --simulate show nothing but what NVML needs."""
    assert {"gdrdrv", "kmsg", "dri"} & set(seen(run, dev_root, "--devices", "0")) == {"gdrdrv", "kmsg"}
    for options in (("--lockdown",), ("--user", "--lockdown"), ("--simulate", "h100")):
        assert {"gdrdrv", "kmsg", "dri", "infiniband"} & set(seen(run, dev_root, *options)) == set()


def test_owners_are_those_of_the_host(run: Run, dev_root: Path) -> None:
    """U11: as root all ids are mapped at "user"; without the capabilities for that it works, and says so."""
    os.chown(dev_root / "dev/gdrdrv", 12345, 23456)
    env = {**surroundings(), "NVSANDBOX_DEBUG": "1"}
    stat = ("--dev-root", str(dev_root), "--", "stat", "-c", "%u:%g", "/dev/gdrdrv")
    done = run("--user", *stat, env=env)
    assert (done.stdout, done.stderr) == ("12345:23456\n", "nvsandbox: isolation user\n")
    facts = "grep -E '^(Cap|NoNewPrivs|Uid|Gid)' /proc/self/status"
    done = run("--user", "--", "sh", "-c", facts)
    assert "CapEff:\t0000000000000000" in done.stdout
    assert "Uid:\t0\t0\t0\t0" in done.stdout
    without = ["setpriv", "--bounding-set", "-setuid", "--inh-caps", "-setuid", COMMAND, "run", "--user", *stat]
    done = subprocess.run(without, capture_output=True, text=True, env=env)
    assert done.stdout == "65534:65534\n"
    assert done.stderr.startswith(
        "nvsandbox: isolation user, and ids of others are shown as 65534 (mapping them takes "
    )
