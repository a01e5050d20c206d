# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's device nodes in a ``/dev``, each held against what the driver says: which are wrong, and which should not be
there at all.

:func:`survey` looks and never changes anything. It opens no node, for that could make the kernel load a module.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from nvsandbox import driverfacts, nodefindings, roots
from nvsandbox.driverfacts import DriverFacts
from nvsandbox.nodenames import (
    FOLDERS,
    NUMBER_LINK,
    Finding,
    Node,
    Placement,
    expected,
    is_nvidias,
    is_of_interest,
    name_in_dev,
)

__all__ = ["CONTAINER_DEV_ROOTS", "Finding", "Node", "Survey", "find_dev_root", "is_nvidias", "survey"]

CONTAINER_DEV_ROOTS = ("/run/nvidia/driver/dev",)
"""Where NVIDIA's GPU operator has the ``/dev`` of the container that the driver is in."""


@dataclass(frozen=True)
class Survey:
    """What :func:`survey` found."""

    dev: str
    placement: Placement
    """Where the driver's own nodes are: in this ``/dev`` (``host``), in that of a container (``container``), or no
    driver is loaded (``none``)."""
    dev_root: str | None
    """The folder with the nodes of the driver in a container, else None."""
    driver: DriverFacts
    nodes: tuple[Node, ...]
    """In the order of their paths, links by number last."""
    missing: tuple[Finding, ...] = ()
    """What is not there and could be."""
    unread: tuple[str, ...] = ()
    """Folders that could not be listed, each with why."""
    doubt: str | None = None
    """Why nodes elsewhere were not taken for those of a driver in a container, and what says otherwise."""


_KINDS = {
    stat.S_IFCHR: "char",
    stat.S_IFBLK: "block",
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFLNK: "link",
}


def _look(dev: str, path: str) -> Node | None:
    full = os.path.join(dev, path)
    try:
        status = os.lstat(full)
        target = os.readlink(full) if stat.S_ISLNK(status.st_mode) else None
    except OSError:  # gone meanwhile
        return None
    kind = stat.S_IFMT(status.st_mode)
    device = kind in (stat.S_IFCHR, stat.S_IFBLK)
    return Node(
        path=path,
        kind=_KINDS.get(kind, "unknown"),
        mode=stat.S_IMODE(status.st_mode),
        uid=status.st_uid,
        gid=status.st_gid,
        number=(os.major(status.st_rdev), os.minor(status.st_rdev)) if device else None,
        target=target,
        identity=(status.st_dev, status.st_ino, status.st_rdev, kind),
    )


def _natural(path: str) -> list[object]:
    """nvidia2 comes before nvidia10."""
    return [int(part) if number % 2 else part for number, part in enumerate(re.split(r"([0-9]+)", path))]


def _names(folder: str, unread: list[str]) -> Iterator[str]:
    try:
        yield from os.listdir(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        unread.append(f"{folder}: {error.strerror}")


def _all(dev: str, driver: DriverFacts, unread: list[str]) -> Iterator[Node]:
    names = os.listdir(dev)  # that this fails is the caller's business: nothing could be looked at
    for name in names:
        node = _look(dev, name) if is_of_interest(name) else None
        if node is None:
            continue
        if name not in FOLDERS:
            yield node
        elif node.kind != "folder":
            yield node  # and not what may be behind it
        else:
            inside = (_look(dev, f"{name}/{entry}") for entry in _names(os.path.join(dev, name), unread))
            yield from (node for node in inside if node is not None)
    for name in _names(os.path.join(dev, "char"), unread):
        match = NUMBER_LINK.fullmatch(name)
        if match is None:
            continue
        link = _look(dev, f"char/{name}")
        if link is None:
            continue
        target = "" if link.target is None else name_in_dev(link.target)
        if driver.is_nvidias(int(match[1])) or expected(target) is not None:
            yield link


def find_dev_root(dev: str, dev_root: str | None, others: Iterable[str] = CONTAINER_DEV_ROOTS) -> str | None:
    """The folder with the nodes of a driver in a container: `dev_root` if given, else the first of `others` that has
    any; None if it is `dev` itself, under another name or not."""
    for folder in (dev_root,) if dev_root is not None else others:
        try:
            same = os.path.samefile(folder, dev)
            found = any(expected(name) is not None for name in os.listdir(folder))
        except OSError:
            continue
        if found:
            return None if same else folder
    return None


def _of_the_loaded_driver(dev: str, version: str | None) -> str | None:
    """The loaded driver's NVML in the tree that this /dev is in: the driver was installed there, and needs the nodes.
    One of another version is not its own, as where only NVIDIA's libraries are installed."""
    root, name = os.path.split(os.path.realpath(dev))
    if name != "dev":
        return None
    return next((path for path in roots.installed(root) if version is None or path.endswith(f".so.{version}")), None)


def survey(
    dev: str = "/dev",
    proc: str = "/proc",
    *,
    dev_root: str | None = None,
    others: Iterable[str] = CONTAINER_DEV_ROOTS,
) -> Survey:
    """Looks at NVIDIA's nodes in `dev`.

    Args:
        dev: the folder to look at.
        proc: where the kernel and the driver say what is so.
        dev_root: the folder with the nodes of a driver in a container; None to look in `others`. What is there may be
            left from a container that is gone: it does not count where `dev`'s tree has the loaded driver's library.

    Raises OSError if `dev` cannot be listed or ``proc/devices`` cannot be read.
    """
    driver = driverfacts.read(proc)
    unread: list[str] = []
    root = find_dev_root(dev, dev_root, others) if driver.loaded else None
    doubt = None
    if root is not None and dev_root is None and (library := _of_the_loaded_driver(dev, driver.version)) is not None:
        doubt = (
            f"{root} has nodes too, but {library} is the loaded driver's, so it is taken for the host's own: "
            f"if it is in a container all the same, say --dev-root {root}"
        )
        root = None
    placement: Placement = "none" if not driver.loaded else "host" if root is None else "container"
    order = sorted(_all(dev, driver, unread), key=lambda node: (node.is_number_link, _natural(node.path)))
    nodes = {node.path: node for node in order}
    missing = tuple(nodefindings.missing(nodes, dev, driver)) if placement == "host" else ()
    for node in order:  # links last: what is said of one depends on what is said of its node
        findings = (
            nodefindings.of_link(node, nodes, dev, driver, placement)
            if node.is_number_link
            else nodefindings.of_node(node, dev, driver, placement, root)
        )
        nodes[node.path] = replace(node, findings=tuple(nodefindings.with_what_helps(findings, node, driver)))
    judged = tuple(nodes[node.path] for node in order)
    return Survey(dev, placement, root, driver, judged, missing, tuple(unread), doubt)
