# SPDX-License-Identifier: Apache-2.0
"""Which nodes of a host make cri-o refuse privileged containers, and for what.

cri-o refuses a privileged container that is given a device whose path in the container exists on the host, while the
device itself is another file there: the container would see the host's. Its words are "privileged container was
configured with a device container path that already exists on the host". Whether a path exists is asked with links
followed, so that a dangling link does no harm, and a folder in a node's place does.

Source: ``specAddContainerConfigDevices`` in cri-o's ``internal/factory/container/device.go``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace

from nvsandbox import cdi
from nvsandbox.hostnodes import Survey
from nvsandbox.nodenames import Finding, Node

ID = "node.blocks-privileged"
_SHOWN = 3


def add(survey: Survey, directories: Iterable[str] = cdi.DIRECTORIES) -> tuple[Survey, list[str]]:
    """The survey with a finding for each node that makes cri-o refuse privileged containers; and what of the CDI specs
    could not be read."""
    handed_out, unread = cdi.handed_out(directories)
    ways: dict[str, list[str]] = {}
    for node in handed_out:
        path, host_path = os.path.normpath(node.path), os.path.normpath(node.host_path)
        if path.startswith("/dev/") and path != host_path:
            ways.setdefault(path.removeprefix("/dev/"), []).append(
                f"CDI device {node.device} in {node.file} hands out {host_path} as {path}"
            )
    nodes = tuple(_with_finding(node, survey, ways.get(node.path, [])) for node in survey.nodes)
    return replace(survey, nodes=nodes), unread


def _with_finding(node: Node, survey: Survey, ways: list[str]) -> Node:
    if node.is_number_link:
        return node
    plugin = survey.dev_root is not None and os.path.lexists(os.path.join(survey.dev_root, node.path))
    # As cri-o looks: with links followed.
    if not (ways or plugin) or not os.path.exists(os.path.join(survey.dev, node.path)):
        return node
    what = "where cri-o runs the containers, it refuses privileged containers that ask for it"
    if ways:
        more = f"; and {len(ways) - _SHOWN} more" if len(ways) > _SHOWN else ""
        what += f": {'; '.join(ways[:_SHOWN])}{more}"
    if plugin:
        given = f"if a device plugin hands out {survey.dev_root}/{node.path} as /dev/{node.path}"
        what += f"{'; and' if ways else ''} {given}, which was not looked for"
    remedy = next(
        (finding.remedy for finding in node.findings if finding.unwanted),
        "make the CDI spec anew: the driver's nodes are the host's" if ways else "find out what made it",
    )
    finding = Finding(ID, "error" if ways else "warning", what, remedy)
    return replace(node, findings=(*node.findings, finding))
