# SPDX-License-Identifier: Apache-2.0
"""What is the matter with a node: each of NVIDIA's nodes held against what the driver says."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from nvsandbox.driverfacts import DriverFacts
from nvsandbox.nodenames import (
    FOLDERS,
    ExpectedNode,
    Finding,
    Node,
    Placement,
    expected,
    is_nvidias,
    link_leads_to,
    why_kept,
)

_NO_DRIVER = "NVIDIA's driver is not loaded, so it leads nowhere; whoever called NVML here left it behind"


def with_what_helps(findings: Iterable[Finding], node: Node, driver: DriverFacts) -> Iterator[Finding]:
    """The findings of a node or link, that promise no removal where there is none."""
    kept = why_kept(node, driver)
    for finding in findings:
        if kept is None or not finding.unwanted or finding.id == "node.wrong-type":
            yield finding
        else:
            by_hand = "find out what made it, and remove it by hand: nvsandbox nodes leaves it alone, for "
            yield replace(finding, remedy=by_hand + kept)


def of_node(node: Node, dev: str, driver: DriverFacts, placement: Placement, root: str | None) -> Iterator[Finding]:
    if node.path == "dxg":
        yield Finding(
            "node.wsl", "info", "the GPU interface of Windows' WSL, which is no node of NVIDIA's", "none needed"
        )
        return
    name = expected(node.path)
    if node.kind != "char" and (name is not None or node.path in FOLDERS):
        # A folder in its place is what container runtimes leave that were to mount a node that was not there.
        yield Finding(
            "node.wrong-type",
            "error",
            f"a {node.kind} where a {'folder' if node.path in FOLDERS else 'character device'} should be",
            "find out what made it, and remove it by hand: it is never removed from here",
            unwanted=True,
        )
        return
    if name is None:
        yield Finding("node.unknown-name", "info", "no name of a node that is known here", "left alone")
        return
    yield from _number_findings(node, name, driver)
    yield from _place_findings(node, name, driver, placement, root)
    if placement == "host":
        yield from _permission_findings(node, os.path.join(dev, node.path), name, driver)


def _number_findings(node: Node, name: ExpectedNode, driver: DriverFacts) -> Iterator[Finding]:
    assert node.number is not None
    major, minor = node.number
    right = {driver.majors[key] for key in name.drivers if key in driver.majors}
    if name.major is not None:
        right = {name.major}
    should = None
    if right and major not in right:
        should = f"{'/'.join(map(str, sorted(right)))}:{'N' if name.minor is None else name.minor}"
    elif name.minor is not None and minor != name.minor:
        should = f"{major}:{name.minor}"
    if should is not None:
        owner = driver.other_majors.get(major)
        yield Finding(
            "node.wrong-number",
            "error",
            f"it is {major}:{minor} and should be {should}" + (f"; {major} is {owner}'s" if owner is not None else ""),
            "left from before the driver was loaded again, or made by hand: remove it, the driver's tools make it anew",
            unwanted=True,
        )
    elif driver.loaded and not right:
        yield Finding(
            "node.no-module",
            "warning",
            f"no loaded module is {' or '.join(name.drivers[:1])}, so it leads nowhere",
            f"load the module if it is needed: nothing serves {major}:{minor}",
        )


def _place_findings(
    node: Node, name: ExpectedNode, driver: DriverFacts, placement: Placement, root: str | None
) -> Iterator[Finding]:
    if placement == "none":
        yield Finding("node.no-driver", "warning", _NO_DRIVER, "nvsandbox nodes --clean", unwanted=True)
    elif placement == "container":
        yield Finding(
            "node.driver-in-container",
            "warning",
            f"the driver is in a container and has its nodes in {root}; this is a copy that NVML left",
            "nvsandbox nodes --clean",
            unwanted=True,
        )
    if name.gpu is not None and driver.gpus and name.gpu not in driver.gpus:
        yield Finding(
            "node.no-gpu",
            "warning",
            f"the driver has no GPU with minor number {name.gpu}, but {', '.join(map(str, sorted(driver.gpus)))}",
            "the GPU is gone, or bound to another driver such as vfio-pci; the node is used again when it comes back"
            if driver.gpus_complete
            else "this container is not shown all GPUs",
        )
    if name.drivers == ("nvidia-caps",) and driver.capabilities and name.minor not in driver.capabilities:
        yield Finding(
            "node.no-capability",
            "info",
            f"the driver has no capability {name.minor} now: its MIG instance is gone",
            "none needed: it is used again when such an instance is made",
        )


def _permission_findings(node: Node, path: str, name: ExpectedNode, driver: DriverFacts) -> Iterator[Finding]:
    mode = uid = gid = None
    if name.with_params and driver.modify_device_files:
        mode, uid, gid = driver.mode, driver.uid, driver.gid
    elif name.drivers == ("nvidia-caps",) and name.minor in driver.capabilities:
        mode = driver.capabilities[name.minor].mode
    if mode is not None and node.mode != mode:
        yield Finding(
            "node.wrong-mode",
            "warning",
            f"its mode is {node.mode:04o}, the driver wants {mode:04o}",
            f"chmod {mode:04o} {shlex.quote(path)}",
        )
    if uid is not None and gid is not None and (node.uid, node.gid) != (uid, gid):
        yield Finding(
            "node.wrong-owner",
            "warning",
            f"its owner is {node.uid}:{node.gid}, the driver wants {uid}:{gid}",
            f"chown {uid}:{gid} {shlex.quote(path)}",
        )


def of_link(
    link: Node, nodes: Mapping[str, Node], dev: str, driver: DriverFacts, placement: Placement
) -> Iterator[Finding]:
    if link.target is None:
        yield Finding(
            "link.wrong-type", "error", f"a {link.kind} where a link should be", "find out what made it", unwanted=False
        )
        return
    inside = link_leads_to(link, dev)
    end = None if inside is None else nodes.get(inside)
    number = link.path.removeprefix("char/")
    if inside is not None:
        there = None if end is None or end.number is None else f"{end.number[0]}:{end.number[1]}"
        exists = end is not None or os.path.lexists(os.path.join(dev, inside))
    else:
        seen = _outside(link.target, dev)
        if seen is None:
            return
        exists, there = seen
    if not exists:
        yield Finding(
            "link.dangling",
            "warning",
            "what it leads to does not exist",
            "runc with systemd's cgroups looks devices up by these links: nvsandbox nodes --clean removes it",
            unwanted=True,
        )
    elif there != number:
        yield Finding(
            "link.stale",
            "warning",
            f"{link.target} is {'no device' if there is None else there}, not {number}",
            "nvsandbox nodes --clean removes it",
            unwanted=True,
        )
    elif inside is not None and (placement != "host" or (end is not None and end.unwanted)):
        yield Finding(
            "link.to-unwanted-node",
            "warning",
            "it leads to a node that should not be there",
            "nvsandbox nodes --clean removes both"
            if end is not None and is_nvidias(end, driver)
            else "it goes with that node, which has to be removed by hand",
            unwanted=True,
        )


def _outside(target: str, dev: str) -> tuple[bool, str | None] | None:
    """Of a link that leads out of the /dev, such as to a driver container's: whether its end exists, and the number.
    None where that cannot be seen: of a host's /dev that is mounted in a container, without what is around it."""
    if not target.startswith("/"):
        return False, None
    # The root that the /dev belongs to comes first.
    around = os.path.join(os.path.dirname(os.path.abspath(dev)), target.lstrip("/"))
    for path in (around, target):
        try:
            status = os.stat(path)
        except OSError:
            continue
        device = stat.S_ISCHR(status.st_mode)
        return True, f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}" if device else None
    return (False, None) if os.path.abspath(dev) == "/dev" else None


def missing(nodes: Mapping[str, Node], dev: str, driver: DriverFacts) -> Iterator[Finding]:
    wanted = ["nvidiactl", *(f"nvidia{minor}" for minor in sorted(driver.gpus))]
    for path in wanted:
        if path not in nodes:
            by_itself = driver.modify_device_files is not False
            yield Finding(
                "node.missing",
                "info" if by_itself else "warning",
                f"{os.path.join(dev, path)} does not exist",
                "it is made when NVML or CUDA is first used"
                if by_itself
                else "ModifyDeviceFiles is 0: it has to be made",
            )
    for path, node in nodes.items():
        if node.is_number_link or node.kind != "char" or node.number is None or expected(path) is None:
            continue
        if driver.is_nvidias(node.number[0]) and f"char/{node.number[0]}:{node.number[1]}" not in nodes:
            yield Finding(
                "link.missing",
                "info",
                f"{os.path.join(dev, 'char')}/{node.number[0]}:{node.number[1]} for {path} does not exist",
                "containers under systemd's cgroups may lose the device: on the host, "
                "nvidia-ctk system create-dev-char-symlinks",
            )
