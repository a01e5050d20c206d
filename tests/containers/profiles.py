# SPDX-License-Identifier: Apache-2.0
"""What ``seccompProfile: {type: RuntimeDefault}`` means to the runtimes, from themselves: the profiles that they give a
container of certain capabilities."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Iterable
from typing import Any

from podman import Podman

Profile = dict[str, Any]
"""As the runtime specification has it, under linux.seccomp."""

UNCONFINED: Profile = {"defaultAction": "SCMP_ACT_ALLOW"}

# Making a container, which is not started, takes the daemon and nothing else. The profile follows from the
# capabilities, as for a pod.
CONTAINERD = """
mkdir -p /run/containerd-here/rootfs
cat >/run/containerd-here/config.toml <<'END'
version = 2
root = "/run/containerd-here/root"
state = "/run/containerd-here/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "/run/containerd-here/socket"
END
containerd --config /run/containerd-here/config.toml --log-level error &
daemon=$!
trap 'kill $daemon; wait $daemon' EXIT
ctr () { command ctr --address /run/containerd-here/socket "$@"; }
for attempt in $(seq 100); do
    ! ctr version >/dev/null 2>&1 || break
    sleep 0.1
done
add='ADD'
drop=$(ctr oci spec | grep -o 'CAP_[A-Z_]*' | sort -u)
for name in $add; do drop=$(grep -vx $name <<<"$drop"); done # what is dropped stays so
options=$(printf -- '--cap-drop %s ' $drop)
[[ -z $add ]] || options+=$(printf -- '--cap-add %s ' $add)
ctr containers create --rootfs --seccomp $options /run/containerd-here/rootfs one true
ctr containers info --spec one
"""


class Profiles:
    """The default profiles of the runtimes in podman's tree."""

    def __init__(self, podman: Podman) -> None:
        self._podman = podman
        self._containerd = functools.cache(self._ask_containerd)
        self._crio = functools.cache(self._make_crio)

    def containerd(self, capabilities: Iterable[str] = ()) -> Profile:
        """containerd's own, for a container with these capabilities and no others."""
        return copy.deepcopy(self._containerd(frozenset(capabilities)))

    def _ask_containerd(self, capabilities: frozenset[str]) -> Profile:
        add = " ".join(f"CAP_{name}" for name in sorted(capabilities))
        spec = json.loads(self._podman.run(CONTAINERD.replace("ADD", add)))
        has = spec["process"]["capabilities"].get("bounding") or []
        assert {name.removeprefix("CAP_") for name in has} == capabilities
        profile: Profile = spec["linux"]["seccomp"]
        return profile

    def crio(self) -> Profile:
        """CRI-O's. It is podman's but for ``unshare``, which takes CAP_SYS_ADMIN there.

        Source: CRI-O's internal/config/seccomp/seccomp.go; there is no CRI-O in Debian 13 to ask.
        """
        return copy.deepcopy(self._crio())

    def _make_crio(self) -> Profile:
        profile: Profile = json.loads(self._podman.run("cat /usr/share/containers/seccomp.json"))
        (rule,) = (rule for rule in profile["syscalls"] if "unshare" in rule["names"] and not rule.get("includes"))
        rule["names"].remove("unshare")
        profile["syscalls"].append(
            {"names": ["unshare"], "action": "SCMP_ACT_ALLOW", "args": [], "includes": {"caps": ["CAP_SYS_ADMIN"]}}
        )
        return profile


def allowing(profile: Profile, names: Iterable[str]) -> Profile:
    """The profile and these system calls, whatever their arguments."""
    wider = copy.deepcopy(profile)
    wanted = set(names)
    for rule in wider["syscalls"]:
        rule["names"] = [name for name in rule["names"] if name not in wanted]
    wider["syscalls"] = [rule for rule in wider["syscalls"] if rule["names"]]
    wider["syscalls"].append({"names": sorted(wanted), "action": "SCMP_ACT_ALLOW"})
    return wider
