# SPDX-License-Identifier: Apache-2.0
"""Which device nodes the CDI specs of a machine hand out, and under which names.

Source: the Container Device Interface's specification, version 1.0: files ``*.json``, ``*.yaml`` and ``*.yml`` in
``/etc/cdi`` and ``/var/run/cdi``, whose ``deviceNodes`` have a ``path`` in the container and a ``hostPath``, which is
the same where it is left out.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from nvsandbox.roots import resolve_in_root

DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
_SIZE_MAX = 4 << 20
_NODES_MAX = 100_000
"""Per spec: aliases of YAML make billions out of a few lines."""
_YAML_NULLS = ("", "~", "null", "Null", "NULL")


@dataclass(frozen=True)
class HandedOut:
    """A device node in a CDI spec."""

    file: str
    device: str
    """``nvidia.com/gpu=0``; ``nvidia.com/gpu`` where all devices of the spec have it."""
    path: str
    """In the container."""
    host_path: str


def directories(dev: str = "/dev") -> tuple[str, ...]:
    """The folders with the CDI specs of the tree that `dev` is in, as of a host's that is mounted in a container. This
    system's own where it is called other than ``dev``, and nobody can tell."""
    root, name = os.path.split(os.path.realpath(dev))
    if name != "dev" or root == "/":
        return DIRECTORIES
    # With links followed in that tree: /var/run is one to /run, which would be this system's.
    found = (resolve_in_root(root, folder) for folder in DIRECTORIES)
    return tuple(folder for folder in found if folder is not None)


def handed_out(directories: Iterable[str] = DIRECTORIES) -> tuple[list[HandedOut], list[str]]:
    """The device nodes of all specs, and what could not be read, each with why. A folder that is not there has none."""
    nodes: list[HandedOut] = []
    unread: list[str] = []
    for folder in directories:
        try:
            names = sorted(os.listdir(folder))
        except FileNotFoundError:
            continue
        except OSError as error:
            unread.append(f"{folder}: {error.strerror}")
            continue
        for name in names:
            if not name.endswith((".json", ".yaml", ".yml")):
                continue
            file = os.path.join(folder, name)
            try:
                nodes.extend(_nodes(file, _parsed(file)))
            except OSError as error:
                unread.append(f"{file}: {error.strerror}")
            except (ValueError, RecursionError) as error:
                unread.append(f"{file}: {' '.join(str(error).split())}")
    return nodes, unread


def _parsed(file: str) -> Any:
    data = _read(file)
    if len(data) > _SIZE_MAX:
        raise ValueError(f"larger than {_SIZE_MAX >> 20} MiB, which no CDI spec is")
    if file.endswith(".json"):
        return json.loads(data)
    import yaml  # here, for nothing else needs it

    try:
        # All scalars as text, for nothing else is looked at: what tags ask for is not made, and cannot fail. The parser
        # in C is ten times as fast, and not in every build.
        return yaml.load(data, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _read(file: str) -> bytes:
    # Looked at first: to open a device node can load a module, and a FIFO would wait for somebody who writes.
    if not stat.S_ISREG(os.stat(file).st_mode):
        raise ValueError("a CDI spec is a file, and this is none")
    fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as stream:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("it was replaced while it was looked at")
        return stream.read(_SIZE_MAX + 1)


def _nodes(file: str, spec: Any) -> Iterator[HandedOut]:
    if not isinstance(spec, dict) or not isinstance(spec.get("kind"), str):
        raise ValueError("no CDI spec: an object with a kind was expected")
    kind = spec["kind"]
    left = _NODES_MAX
    for name, holder in [(kind, spec), *((None, device) for device in _list(spec, "devices"))]:
        if not isinstance(holder, dict):
            continue
        nodes = _device_nodes(holder)
        left -= len(nodes)
        if left < 0:
            raise ValueError(f"more than {_NODES_MAX} device nodes, which no CDI spec has")
        yield from _edits(file, name or f"{kind}={holder.get('name')}", nodes)


def _device_nodes(holder: dict[str, Any]) -> list[Any]:
    edits = holder.get("containerEdits")
    return _list(edits, "deviceNodes") if isinstance(edits, dict) else []


def _edits(file: str, device: str, nodes: list[Any]) -> Iterator[HandedOut]:
    for node in nodes:
        path = node.get("path") if isinstance(node, dict) else None
        if isinstance(path, str):
            host_path = node.get("hostPath")
            named = isinstance(host_path, str) and host_path not in _YAML_NULLS
            yield HandedOut(file, device, path, host_path if named else path)


def _list(holder: dict[str, Any], key: str) -> list[Any]:
    value = holder.get(key)
    return value if isinstance(value, list) else []
