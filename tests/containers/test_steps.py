# SPDX-License-Identifier: Apache-2.0
"""Which step of the ladder a container can have, by its capabilities, its user and its seccomp profile, as the table in
docs/kubernetes.md says; and that nothing in the table is more than a step needs."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from podman import Podman
from profiles import Profile, Profiles, allowing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NOTHING = "--cap-drop all"
NOBODY = "--cap-drop all --user 65534:65534"
ADMIN = "--cap-drop all --cap-add SYS_ADMIN"
SETFCAP = "--cap-drop all --cap-add SETFCAP"
BOUND = "--security-opt no-new-privileges --read-only"

# As a runtime starts a container of another user: what was added is in the bounding set alone. podman makes it ambient.
AS_NOBODY = "setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all --ambient-caps=-all --"

PROBE = """
for step in mount user guard auto; do
    nvsandbox run --isolation $step -- true 2>/dev/null && run=yes || run=no
    nvsandbox-run --isolation $step -- true 2>/dev/null && direct=yes || direct=no
    nvsandbox query --isolation $step --simulate h100 >/dev/null 2>&1 && query=yes || query=no
    echo $step $run $direct $query
done
"""


def possible(podman: Podman, cases: Sequence[tuple[str, Profile | None, str]]) -> list[set[str]]:
    """For each container (options of podman run, seccomp profile or podman's own, what starts the program): the steps
    that are possible, by all three ways to a sandbox."""
    (podman.files / "probe").write_text(PROBE)
    # In the same root folder, for a copy for each would take longer than the rest.
    script = ["image=$(podman mount $(podman create nvsandbox))"]
    for index, (options, profile, start) in enumerate(cases):
        if profile is not None:
            (podman.files / f"{index}.json").write_text(json.dumps(profile))
            options += f" --security-opt seccomp=/files/{index}.json"
        mounts = "-v /files/probe:/probe:ro"
        script += ["echo =", f'podman run --rm --network none {mounts} {options} --rootfs "$image" {start} sh /probe']
    found = []
    for told in podman.run("\n".join(script)).split("=\n")[1:]:
        answers = {step: set(ways) for step, *ways in map(str.split, told.splitlines())}
        assert answers.keys() == {"mount", "user", "guard", "auto"}
        assert answers.pop("auto") == {"yes"}, "guard is possible everywhere"
        assert all(len(ways) == 1 for ways in answers.values()), f"the ways to a sandbox differ: {told}"
        found.append({step for step, ways in answers.items() if ways == {"yes"}})
    return found


PODMAN = [
    (NOTHING, {"guard"}),
    (NOBODY, {"user", "guard"}),
    (f"{NOBODY} {BOUND}", {"user", "guard"}),
    (SETFCAP, {"user", "guard"}),
    (f"{ADMIN} {BOUND}", {"mount", "guard"}),
]
OTHERS = [(NOBODY, {"guard"}), (SETFCAP, {"guard"}), (f"{NOBODY} {BOUND}", {"guard"}), (ADMIN, {"mount", "guard"})]


def test_with_podmans_profile(podman: Podman) -> None:
    cases = [*PODMAN, ("--privileged", {"mount", "user", "guard"})]
    assert possible(podman, [(options, None, "") for options, _ in cases]) == [steps for _, steps in cases]


def test_with_containerds_profile(podman: Podman, profiles: Profiles) -> None:
    added = {"SYS_ADMIN", "SETFCAP"}
    cases = [(options, profiles.containerd(added & set(options.split())), "") for options, _ in OTHERS]
    assert possible(podman, cases) == [steps for _, steps in OTHERS]


def test_with_crios_profile(podman: Podman, profiles: Profiles) -> None:
    cases = [(options, profiles.crio(), "") for options, _ in OTHERS]
    assert possible(podman, cases) == [steps for _, steps in OTHERS]


CALLS = ("mount", "unshare")
"""What a profile must allow for a /dev of one's own."""


def test_nothing_that_a_step_needs_can_be_left_out(podman: Podman, profiles: Profiles) -> None:
    """Each step with just what the table says, from there on without each of these."""
    strict = profiles.containerd()
    enough = allowing(strict, CALLS)
    without = [allowing(strict, set(CALLS) - {call}) for call in CALLS]
    cases = [
        ("guard", f"{NOBODY} {BOUND}", strict, "", True),
        ("user", f"{NOBODY} {BOUND}", enough, "", True),
        *(("user", f"{NOBODY} {BOUND}", profile, "", False) for profile in without),
        ("user", f"{SETFCAP} {BOUND}", enough, "", True),
        ("user", f"{NOTHING} {BOUND}", enough, "", False),
        ("mount", f"{ADMIN} {BOUND}", enough, "", True),
        *(("mount", f"{ADMIN} {BOUND}", profile, "", False) for profile in without),
        ("mount", f"{NOTHING} {BOUND}", enough, "", False),
        ("mount", f"{ADMIN} --cap-add SETUID --cap-add SETGID", enough, AS_NOBODY, False),
    ]
    found = possible(podman, [(options, profile, start) for _, options, profile, start, _ in cases])
    told = [(step, options, step in steps) for (step, options, *_), steps in zip(cases, found, strict=True)]
    assert told == [(step, options, works) for step, options, _, _, works in cases]


def test_making_nodes_takes_cap_mknod_too(podman: Podman) -> None:
    """At the step mount, in the program's own /dev."""
    make = "nvsandbox run --isolation mount -- mknod /dev/nvidiactl c 195 255"
    out = podman.run(
        f"""
        for add in '--cap-add MKNOD' ''; do
            podman run --rm --network none {ADMIN} $add --entrypoint sh nvsandbox -c '{make} 2>&1 && echo made'
        done || true
        """
    )
    made, refused = out.splitlines()
    assert made == "made"
    assert "Operation not permitted" in refused


def test_a_node_is_no_use_without_the_device_cgroup(podman: Podman) -> None:
    """A device that runtimes do not allow by themselves, as they do not a GPU's: why there is privileged or a runtime
    class. Opening this one for writing needs no privilege."""
    use = "mknod /dev/kmsg-too c 1 11 && : >/dev/kmsg-too"
    out = podman.run(
        f"""
        for how in '--cap-add all' --privileged; do
            podman run --rm --network none $how --entrypoint nvsandbox nvsandbox run --isolation mount -- \\
                sh -c '{use}' && echo opened || echo refused
        done 2>&1
        """
    )
    assert [line for line in out.splitlines() if line in ("opened", "refused")] == ["refused", "opened"]
    assert "Operation not permitted" in out
