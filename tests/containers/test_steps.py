# SPDX-License-Identifier: Apache-2.0
"""Which step of the ladder a container can have, by its capabilities, its user and its seccomp profile, as the table in
docs/kubernetes.md says."""

from __future__ import annotations

from typing import Any

import pytest
from podman import Podman, containerd_profile

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NOTHING = "--cap-drop all"
NOBODY = "--cap-drop all --user 65534:65534"
ADMIN = "--cap-drop all --cap-add SYS_ADMIN"
SETFCAP = "--cap-drop all --cap-add SETFCAP"
BOUND = "--security-opt no-new-privileges --read-only"

# The options of podman run, and the steps that are possible
PODMAN = [
    (NOTHING, {"guard"}),
    (NOBODY, {"user", "guard"}),
    (f"{NOBODY} {BOUND}", {"user", "guard"}),
    (SETFCAP, {"user", "guard"}),
    (f"{ADMIN} {BOUND}", {"mount", "guard"}),
    ("--privileged", {"mount", "user", "guard"}),
]
CONTAINERD = [(NOBODY, {"guard"}), (SETFCAP, {"guard"}), (f"{NOBODY} {BOUND}", {"guard"})]
CONTAINERD_ADMIN = [(ADMIN, {"mount", "guard"})]

PROBE = """
for step in mount user guard; do
    nvsandbox run --isolation $step -- true 2>/dev/null && run=yes || run=no
    nvsandbox query --isolation $step --simulate h100 >/dev/null 2>&1 && query=yes || query=no
    echo $step $run $query
done
"""


@pytest.mark.parametrize(
    ("cases", "seccomp"),
    [
        (PODMAN, None),
        (CONTAINERD, containerd_profile(set())),
        (CONTAINERD_ADMIN, containerd_profile({"SYS_ADMIN"})),
    ],
    ids=["podman", "containerd", "containerd-admin"],
)
def test_steps(podman: Podman, cases: list[tuple[str, set[str]]], seccomp: dict[str, Any] | None) -> None:
    (podman.files / "probe").write_text(PROBE)
    run = "podman run --rm --network none -v /files/probe:/probe:ro"  # --rootfs: no copy of the image for each
    runs = "\n".join(
        ["image=$(podman image mount nvsandbox)"]
        + [f'echo = {options}\n{run} {options} --rootfs "$image" sh /probe' for options, _ in cases]
    )
    told = [part.splitlines() for part in podman.run(runs, seccomp=seccomp).split("= ")[1:]]
    found = [(options, [line.split() for line in lines]) for options, *lines in told]
    for (options, steps), (again, answers) in zip(cases, found, strict=True):
        assert options == again
        expected = [[step, *(["yes" if step in steps else "no"] * 2)] for step in ("mount", "user", "guard")]
        assert answers == expected, options
