# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's nodes in /dev and under the dev root: whether they should be there, are right, and can be opened."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

from nvsandbox import diagnose, driverfacts, hostnodes
from nvsandbox.doctor import system
from nvsandbox.doctor.findings import Finding
from nvsandbox.doctor.places import Places
from nvsandbox.nodenames import counted, why_kept

_LIMIT = 1.0  # seconds for all of them; a GPU without persistence mode is not waited for
_OPENED_MAX = 64

# A program of its own: the open of a wedged GPU's node never returns, and a thread in it would keep this process from
# ending. O_NONBLOCK keeps the driver from setting the GPU up first.
_OPENER = """
import json, os, sys
for path in sys.argv[1:]:
    err = 0
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY))
    except OSError as error:
        err = error.errno
    print(json.dumps([path, err]), flush=True)
"""


def surveys(places: Places) -> list[hostnodes.Survey]:
    """The host's /dev, and the dev root where that is another folder."""
    folder = places.dev_folder
    others = [places.inside(path) for path in hostnodes.CONTAINER_DEV_ROOTS]
    apart = not os.path.exists(places.dev) or not os.path.samefile(folder, places.dev)
    found = [hostnodes.survey(places.dev, places.proc, dev_root=folder if apart else None, others=others)]
    if apart:
        # Held against the driver only: its nodes are where they should be.
        found.append(hostnodes.survey(folder, places.proc, others=()))
    return found


def _removal(survey: hostnodes.Survey, unwanted: Sequence[hostnodes.Node]) -> str:
    kept = sum(why_kept(node, survey.driver) is not None for node in unwanted)
    if kept == len(unwanted):
        return "to be removed by hand"
    return f"nvsandbox nodes --clean removes {f'all but {kept} of them' if kept else 'them'}"


def nodes(places: Places) -> Iterator[Finding]:
    """Nodes that should not be there, and nodes that are not as the driver has them."""
    clean = True
    count = 0
    for survey in surveys(places):
        count += len(survey.nodes)
        unwanted = [node for node in survey.nodes if node.unwanted]
        if unwanted and survey.dev == places.dev:
            clean = False
            shown = ", ".join(node.path for node in unwanted[:4]) + (", …" if len(unwanted) > 4 else "")
            reason = next(finding.what for finding in unwanted[0].findings if finding.unwanted)
            yield Finding(
                "nodes.unwanted",
                f"{counted(unwanted)} of NVIDIA's should not be in {survey.dev}: {shown} ({reason})",
                f"nvsandbox nodes says more and which containers they break; {_removal(survey, unwanted)}",
                about=survey.dev,
                facts={"nodes": {node.path: [finding.id for finding in node.findings] for node in unwanted}},
            )
        wrong = [
            (node.path, finding)
            for node in survey.nodes
            for finding in node.findings
            if finding.severity != "info" and (not finding.unwanted or survey.dev != places.dev)
        ]
        if not system.container_kind(places):  # which may have been given some of the GPUs
            wrong += [("", finding) for finding in survey.missing if finding.severity != "info"]
        if wrong:
            clean = False
            path, first = wrong[0]
            more = f", and {len(wrong) - 1} more such" if len(wrong) > 1 else ""
            yield Finding(
                "nodes.wrong",
                f"{os.path.join(survey.dev, path).rstrip('/')}: {first.what}{more}",
                first.remedy,
                about=survey.dev,
                facts={"findings": [[path, finding.id, finding.what] for path, finding in wrong]},
            )
    if clean:
        yield Finding(
            "nodes.clean",
            f"{count} of NVIDIA's nodes and links, all as they should be" if count else "no NVIDIA nodes in /dev",
            facts={"nodes": count},
        )


def mig(places: Places) -> Iterator[Finding]:
    """MIG instances whose capability nodes are missing where NVML may not make them."""
    survey = surveys(places)[-1]
    if survey.driver.modify_device_files is not False:
        return
    there = {node.path for node in survey.nodes}
    absent = [
        capability.path
        for minor, capability in sorted(survey.driver.capabilities.items())
        if "/gi" in capability.path and f"nvidia-caps/nvidia-cap{minor}" not in there
    ]
    if absent:
        more = f", and {len(absent) - 1} more" if len(absent) > 1 else ""
        yield Finding(
            "nodes.no-mig",
            f"the nodes of MIG instances are missing in {survey.dev}/nvidia-caps: {absent[0]}{more}",
            "make them with nvidia-modprobe -f, or give the container the MIG devices that it is to see",
            about=survey.dev,
            facts={"capabilities": absent},
        )


def openable(places: Places) -> Iterator[Finding]:
    """Nodes that this process cannot open, and why. None is opened without a driver that serves it."""
    facts = driverfacts.read(places.proc)
    majors = set(facts.majors.values())
    wanted = []
    for node in surveys(places)[-1].nodes:
        control = node.path in ("nvidiactl", "nvidia-uvm") or node.path.removeprefix("nvidia").isdigit()
        if control and node.kind == "char" and node.number is not None and node.number[0] in majors:
            wanted.append(os.path.join(places.dev_folder, node.path))
    if not wanted or not places.live:
        return
    results, hung = try_to_open(wanted[:_OPENED_MAX])
    for path, err in results.items():
        if err:
            yield Finding(
                "nodes.cannot-open",
                f"{path} cannot be opened ({errno.errorcode.get(err, err)})",
                diagnose.reason(err),
                about=path,
                facts={"errno": err},
            )
    if hung is not None:
        yield Finding(
            "nodes.hang",
            f"opening {hung} did not return within {_LIMIT:g} s",
            "the GPU may be wedged: see the kernel log for XID errors; without persistence mode the driver may only be "
            "slow (nvidia-smi -pm 1)",
            about=hung,
        )


def try_to_open(paths: list[str]) -> tuple[dict[str, int], str | None]:
    """The error number of opening each path (0 for none), and the path at which it hung."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _OPENER, *paths],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    hung = False
    try:
        output, _ = process.communicate(timeout=_LIMIT)
    except subprocess.TimeoutExpired as error:
        hung = True
        raw = error.stdout or b""
        output = raw.decode() if isinstance(raw, bytes) else raw
        process.kill()
        try:
            process.communicate(timeout=0.2)
        except subprocess.TimeoutExpired:
            # In state D: nothing ends it, and nobody waits for it.
            assert process.stdout is not None
            process.stdout.close()
    results = dict(json.loads(line) for line in output.splitlines())
    left = [path for path in paths if path not in results]
    return results, left[0] if hung and left else None
