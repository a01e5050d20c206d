# SPDX-License-Identifier: Apache-2.0
"""A machine with NVIDIA's nodes, as folders: its /dev, its /proc, and the /dev of a driver in a container."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from host import require

MAJORS = {"nvidia": 195, "nvidia-modeset": 195, "nvidiactl": 195, "nvidia-uvm": 511, "nvidia-caps": 510}
OTHERS = {"mem": 1, "tty": 4, "input": 13}


class Machine:
    """Makes the files that a test needs. All paths are below one folder, so that nothing real is looked at."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dev = folder / "dev"
        self.proc = folder / "proc"
        self.driver_dev = folder / "run" / "driver" / "dev"
        for path in (self.dev / "char", self.proc, self.driver_dev):
            path.mkdir(parents=True)
        self.devices(OTHERS)

    def devices(self, majors: dict[str, int]) -> None:
        lines = "".join(f"{major:3} {name}\n" for name, major in majors.items())
        (self.proc / "devices").write_text(f"Character devices:\n{lines}\nBlock devices:\n259 blkext\n")

    def driver(self, *minors: int, majors: dict[str, int] | None = None, params: str | None = None) -> None:
        """A loaded driver with these GPUs."""
        base = self.proc / "driver" / "nvidia"
        (base / "gpus").mkdir(parents=True, exist_ok=True)
        (base / "version").write_text(
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version: 12\n"
        )
        (base / "params").write_text(
            params or "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n"
        )
        for minor in minors:
            folder = base / "gpus" / f"0000:{minor:02x}:00.0"
            folder.mkdir(exist_ok=True)
            (folder / "information").write_text(f"Model: \t NVIDIA H100\nDevice Minor: \t {minor}\n")
        self.devices({**OTHERS, **(MAJORS if majors is None else majors)})

    def capability(self, path: str, minor: int, mode: int) -> None:
        file = self.proc / "driver" / "nvidia" / "capabilities" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n")

    def node(self, name: str, major: int, minor: int, *, mode: int = 0o666, link: bool = False, dev: str = "") -> Path:
        """A node, and the link by its number."""
        folder = Path(dev or self.dev)
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        os.mknod(path, stat.S_IFCHR | mode, os.makedev(major, minor))
        path.chmod(mode)
        if link:
            (folder / "char" / f"{major}:{minor}").symlink_to(f"../{name}")
        return path

    def usual_nodes(self, *minors: int, dev: str = "", link: bool = True) -> None:
        self.node("nvidiactl", 195, 255, link=link, dev=dev)
        for minor in minors:
            self.node(f"nvidia{minor}", 195, minor, link=link, dev=dev)

    def container_driver(self, *minors: int) -> None:
        """The driver is in a container, with nodes of its own."""
        self.driver(*minors)
        self.usual_nodes(*minors, dev=str(self.driver_dev), link=False)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    try:
        os.mknod(tmp_path / "trial", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        (tmp_path / "trial").unlink()
        made = True
    except PermissionError:
        made = False
    require(made, "needs CAP_MKNOD, to make device nodes")
    return Machine(tmp_path)
