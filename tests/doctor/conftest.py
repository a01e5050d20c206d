# SPDX-License-Identifier: Apache-2.0
"""A machine as folders, which a test spoils in one way."""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path
from typing import Any

import pytest
from host import require

from nvsandbox.doctor import Places
from nvsandbox.options import Options

LIBRARY = "libnvidia-ml.so.1"
ALL_CAPABILITIES = 0x1FFFFFFFFFF
VERSION = "550.54.15"
MACHINES = {"x86_64": 62, "aarch64": 183}


class Machine:
    """A healthy one: root with all capabilities, a recent kernel, one GPU, its driver, its library; no nodes yet."""

    triplet = f"{os.uname().machine}-linux-gnu"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.options: dict[str, Any] = {}
        self.changed: dict[str, Any] = {"cpus": 4, "landlock_abi": 7}
        self.status(ALL_CAPABILITIES)
        self.file("proc/sys/kernel/osrelease", "6.12.1-generic\n")
        self.file("proc/sys/user/max_user_namespaces", "10000\n")
        self.file("proc/self/cgroup", "0::/\n")
        self.link("proc/self/ns/pid", "pid:[4026531836]")
        self.driver()
        self.gpu("0000:65:00.0", 0)
        self.library(f"usr/lib/{self.triplet}/libnvidia-ml.so.{VERSION}")
        self.link(f"usr/lib/{self.triplet}/{LIBRARY}", f"libnvidia-ml.so.{VERSION}")
        (folder / "dev").mkdir()

    def places(self, **more: Any) -> Places:
        at = self.folder
        return Places(
            options=Options(**self.options),
            root=str(at),
            proc=f"{at}/proc",
            sys=f"{at}/sys",
            dev=f"{at}/dev",
            **{**self.changed, **more},
        )

    def file(self, path: str, text: str) -> Path:
        full = self.folder / path
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_text(text)
        return full

    def link(self, path: str, target: str) -> None:
        full = self.folder / path
        full.parent.mkdir(parents=True, exist_ok=True)
        full.unlink(missing_ok=True)
        full.symlink_to(target)

    def status(self, effective: int, *, bounding: int = ALL_CAPABILITIES, uid: int = 0, **more: str) -> None:
        lines = {
            "Uid": f"{uid}\t{uid}\t{uid}\t{uid}",
            **dict.fromkeys(("CapPrm", "CapEff"), f"{effective:016x}"),
            "CapBnd": f"{bounding:016x}",
            "CapAmb": f"{0:016x}",
            "NoNewPrivs": "0",
            "Seccomp": "0",
            **more,
        }
        self.file("proc/self/status", "".join(f"{name}:\t{value}\n" for name, value in lines.items()))

    # ---- the driver

    def driver(self, version: str = VERSION, kind: str = "NVIDIA UNIX x86_64 Kernel Module") -> None:
        self.file(
            "proc/devices", "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n\nBlock devices:\n259 blkext\n"
        )
        self.file("proc/driver/nvidia/version", f"NVRM version: {kind}  {version}  Tue Mar  5 22:23:56 UTC 2024\n")
        self.file("sys/module/nvidia/initstate", "live\n")

    def no_driver(self) -> None:
        self.file("proc/devices", "Character devices:\n  1 mem\n\nBlock devices:\n259 blkext\n")
        for path in ("proc/driver/nvidia/version", "sys/module/nvidia/initstate"):
            (self.folder / path).unlink(missing_ok=True)
        for file in list(self.folder.glob("proc/driver/nvidia/gpus/*/information")):
            file.unlink()
            file.parent.rmdir()

    def gpu(self, address: str, minor: int | None, holder: str = "nvidia") -> None:
        """A GPU on the bus, and unless `minor` is None in the driver's list."""
        self.file(f"sys/bus/pci/devices/{address}/vendor", "0x10de\n")
        self.file(f"sys/bus/pci/devices/{address}/class", "0x030200\n")
        if holder:
            self.link(f"sys/bus/pci/devices/{address}/driver", f"../../../bus/pci/drivers/{holder}")
        if minor is not None:
            self.file(
                f"proc/driver/nvidia/gpus/{address}/information", f"Model: \t NVIDIA H100\nDevice Minor: \t {minor}\n"
            )

    def off_the_bus(self, address: str) -> None:
        folder = self.folder / "sys/bus/pci/devices" / address
        for path in list(folder.iterdir()):
            path.unlink()
        folder.rmdir()

    # ---- files

    def library(self, path: str, *, inside: str = "", bits: int = 2, machine: int | None = None) -> None:
        """A file that begins as a shared library does, and has a version inside."""
        number = MACHINES[os.uname().machine] if machine is None else machine
        head = b"\x7fELF" + bytes([bits, 1, 1]) + bytes(9) + struct.pack("<HH", 3, number) + bytes(44)
        self.file(path, "").write_bytes(head + f"\0{inside}\0".encode())

    def no_library(self) -> None:
        for path in list((self.folder / "usr/lib" / self.triplet).iterdir()):
            path.unlink()

    def node(self, path: str, major: int, minor: int, mode: int = 0o666) -> str:
        full = self.folder / path
        full.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.mknod(full, stat.S_IFCHR | mode, os.makedev(major, minor))
        except PermissionError:
            require(False, "needs CAP_MKNOD, for a stand-in with device nodes")
        full.chmod(mode)
        return str(full)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)
