# SPDX-License-Identifier: Apache-2.0
"""Which device nodes the CDI specs of a machine hand out, and under which names.

Source: the Container Device Interface's specification, version 1.0: files ``*.json``, ``*.yaml`` and ``*.yml`` in
``/etc/cdi`` and ``/var/run/cdi``, whose ``deviceNodes`` have a ``path`` in the container and a ``hostPath``, which is
the same where it is left out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
_SIZE_MAX = 16 << 20


@dataclass(frozen=True)
class HandedOut:
    """A device node in a CDI spec."""

    file: str
    device: str
    """``nvidia.com/gpu=0``; ``nvidia.com/gpu`` where all devices of the spec have it."""
    path: str
    """In the container."""
    host_path: str


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
    with open(file, "rb") as stream:
        data = stream.read(_SIZE_MAX + 1)
    if len(data) > _SIZE_MAX:
        raise ValueError(f"larger than {_SIZE_MAX >> 20} MiB, which no CDI spec is")
    if file.endswith(".json"):
        return json.loads(data)
    import yaml  # here, for nothing else needs it

    try:
        # The parser in C is ten times as fast, and not in every build.
        return yaml.load(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _nodes(file: str, spec: Any) -> Iterator[HandedOut]:
    if not isinstance(spec, dict) or not isinstance(spec.get("kind"), str):
        raise ValueError("no CDI spec: an object with a kind was expected")
    kind = spec["kind"]
    yield from _edits(file, kind, spec)
    for device in _list(spec, "devices"):
        if isinstance(device, dict):
            yield from _edits(file, f"{kind}={device.get('name')}", device)


def _edits(file: str, device: str, holder: dict[str, Any]) -> Iterator[HandedOut]:
    edits = holder.get("containerEdits")
    for node in _list(edits, "deviceNodes") if isinstance(edits, dict) else ():
        path = node.get("path") if isinstance(node, dict) else None
        if isinstance(path, str):
            host_path = node.get("hostPath")
            yield HandedOut(file, device, path, host_path if isinstance(host_path, str) and host_path else path)


def _list(holder: dict[str, Any], key: str) -> list[Any]:
    value = holder.get(key)
    return value if isinstance(value, list) else []
