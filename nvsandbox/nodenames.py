# SPDX-License-Identifier: Apache-2.0
"""The names of NVIDIA's device nodes, and what a node of such a name should be.

Source of the numbers: NVIDIA's kernel driver, which has 195 for itself and gets its other majors as it is loaded;
``/proc/devices`` says which.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from nvsandbox.driverfacts import NVIDIA_MAJOR, DriverFacts

Severity = Literal["info", "warning", "error"]
Placement = Literal["host", "container", "none"]

FOLDERS = ("nvidia-caps", "nvidia-caps-imex-channels")


@dataclass(frozen=True)
class Finding:
    """What is the matter with one node, link or folder."""

    id: str
    """Stable: ``node.wrong-number``."""
    severity: Severity
    what: str
    remedy: str
    unwanted: bool = False
    """Whether it means that the thing should not be there."""


@dataclass(frozen=True)
class Node:
    """Something in a ``/dev`` that has the name of one of NVIDIA's nodes, or is a link to one by number."""

    path: str
    """Below the ``/dev``: ``nvidia0``, ``nvidia-caps/nvidia-cap1``, ``char/195:0``."""
    kind: str
    """``char``, ``block``, ``file``, ``folder``, ``fifo``, ``socket``, ``link``."""
    mode: int
    """Permission bits."""
    uid: int
    gid: int
    number: tuple[int, int] | None
    """Major and minor of a device, else None."""
    target: str | None
    """What a link says, else None."""
    identity: tuple[int, int, int, int]
    """st_dev, st_ino, st_rdev and the type bits of st_mode: the same file is the same in all four."""
    findings: tuple[Finding, ...] = ()

    @property
    def unwanted(self) -> bool:
        """Whether it should not be there."""
        return any(finding.unwanted for finding in self.findings)

    @property
    def is_number_link(self) -> bool:
        """Whether it is one of ``char/MAJOR:MINOR``."""
        return self.path.startswith("char/")


@dataclass(frozen=True)
class ExpectedNode:
    """What a node of some name should be."""

    drivers: tuple[str, ...]
    """Its driver's names in /proc/devices, over the releases."""
    minor: int | None = None
    major: int | None = None
    """Where it is fixed."""
    gpu: int | None = None
    """Which GPU's, by minor number."""
    with_params: bool = False
    """Whether mode and owner are those of the driver's parameters."""


_FRONT = ("nvidia", "nvidia-frontend", "nvidiactl")
_FIXED = {
    "nvidiactl": ExpectedNode(_FRONT, 255, NVIDIA_MAJOR, with_params=True),
    "nvidia-modeset": ExpectedNode(("nvidia-modeset", *_FRONT), 254, NVIDIA_MAJOR, with_params=True),
    "nvidia-uvm": ExpectedNode(("nvidia-uvm",), 0, with_params=True),
    "nvidia-uvm-tools": ExpectedNode(("nvidia-uvm",), 1, with_params=True),
    "nvidia-nvlink": ExpectedNode(("nvidia-nvlink",), 0),
    "nvidia-nvswitchctl": ExpectedNode(("nvidia-nvswitch",), 255),
}
_NUMBERED: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = (
    (re.compile(r"nvidia-caps/nvidia-cap([0-9]+)"), ("nvidia-caps",)),
    (re.compile(r"nvidia-caps-imex-channels/channel([0-9]+)"), ("nvidia-caps-imex-channels",)),
    (re.compile(r"nvidia-nvswitch([0-9]+)"), ("nvidia-nvswitch",)),
)
_LOOSE: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = (
    (re.compile(r"nvidia-vgpu\w*"), ("nvidia-vgpu-vfio", "nvidia-vgpu", "nvidia-vgpuctl")),
    (re.compile(r"nvidia-fs[0-9]*"), ("nvidia-fs",)),
    (re.compile(r"gdrdrv[0-9]*"), ("gdrdrv",)),
)
_GPU = re.compile(r"nvidia(0|[1-9][0-9]{0,6})")
NUMBER_LINK = re.compile(r"([0-9]{1,7}):([0-9]{1,8})")


def expected(path: str) -> ExpectedNode | None:
    """What a node of this path below ``/dev`` should be; None if it is no name of NVIDIA's."""
    if path in _FIXED:
        return _FIXED[path]
    if match := _GPU.fullmatch(path):
        number = int(match[1])
        return ExpectedNode(_FRONT, number, NVIDIA_MAJOR, gpu=number, with_params=True)
    for pattern, drivers in _NUMBERED:
        if match := pattern.fullmatch(path):
            return ExpectedNode(drivers, int(match[1]))
    for pattern, drivers in _LOOSE:
        if pattern.fullmatch(path):
            return ExpectedNode(drivers)
    return None


def is_of_interest(name: str) -> bool:
    """Names at the top of /dev. One that begins as NVIDIA's do and is not known is listed, and left alone."""
    return name.startswith(("nvidia", "gdrdrv")) or name == "dxg"


def counted(nodes: Sequence[Node]) -> str:
    """``2 nodes and 1 link``."""
    links = sum(node.is_number_link for node in nodes)
    numbers = ((len(nodes) - links, "node"), (links, "link"))
    return " and ".join(f"{number} {what}{'' if number == 1 else 's'}" for number, what in numbers if number)


def why_kept(node: Node, driver: DriverFacts) -> str | None:
    """Why this may not be removed, whoever has it open or not; None if it is NVIDIA's."""
    if is_nvidias(node, driver):
        return None
    if node.is_number_link:
        return "its name and target are not both NVIDIA's"
    if node.kind != "char":
        return f"it is a {node.kind}, and only device nodes are removed from here: find out what made it"
    number = "" if node.number is None else f"{node.number[0]}:{node.number[1]}"
    owner = driver.other_majors.get(-1 if node.number is None else node.number[0], "another driver")
    return f"{number} is no number of NVIDIA's but of {owner}"


def is_nvidias(node: Node, driver: DriverFacts) -> bool:
    """Whether this is one of NVIDIA's by its name and by its type and number, or a link by number that names one of
    those: the only things that may ever be removed."""
    if node.is_number_link:
        match = NUMBER_LINK.fullmatch(node.path.removeprefix("char/"))
        target = node.target or ""
        named = target.isprintable() and expected(name_in_dev(target)) is not None
        return node.kind == "link" and match is not None and named and driver.may_be_nvidias(int(match[1]))
    known = expected(node.path) is not None
    return known and node.kind == "char" and node.number is not None and driver.may_be_nvidias(node.number[0])


def name_in_dev(target: str) -> str:
    """A link's target as a path below its ``/dev``: ``nvidia0`` of ``../nvidia0`` and of ``/any/dev/nvidia0``."""
    parts = target.split("/")
    return "/".join(parts[-2:]) if len(parts) > 1 and parts[-2] in FOLDERS else parts[-1]


def link_leads_to(link: Node, dev: str) -> str | None:
    """The path below `dev` that a link in ``char`` names, without following further links; None if outside."""
    target = link.target or ""
    path = os.path.normpath(os.path.join("/dev/char", target))
    for root in ("/dev/", os.path.join(dev, "")):
        if path.startswith(root):
            return path[len(root) :]
    return None
