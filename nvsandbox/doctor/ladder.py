# SPDX-License-Identifier: Apache-2.0
"""The steps of the isolation ladder, each tried with a real worker that is ended before it would load NVML."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import replace

from nvsandbox.doctor import privileges
from nvsandbox.doctor.findings import Finding
from nvsandbox.doctor.places import Places
from nvsandbox.errors import SandboxStartError
from nvsandbox.isolation import LADDER
from nvsandbox.options import Options
from nvsandbox.worker import Worker


class _Trial(Worker):
    """A worker that isolates itself, with the real dev root's nodes, proves it, and goes no further."""

    def _load(self, deadline: float, go_on: Callable[[], None]) -> None:
        pass


def attempt(options: Options, step: str) -> SandboxStartError | None:
    """Why a step is not possible, None where it is. Raises OSError where this process lacks what a start needs."""
    try:
        # Some library must be named, and none is ever loaded.
        trial = _Trial(replace(options, simulate=None, devices=None, library="/none"), step)
    except SandboxStartError as error:
        return error
    trial.stop(grace=False)
    return None


_MEANING = {
    "mount": "a /dev of its own; NVML can even make nodes there",
    "user": "a /dev of its own in a user namespace; setters and new MIG devices are out of reach",
    "guard": "no /dev of its own: NVML sees the host's, and is kept from making nodes in it",
}


def _needed(step: str, error: SandboxStartError, places: Places) -> str:
    """The least that would make a step possible."""
    refused = error.errno in (errno.EPERM, errno.EACCES)
    if step == "mount":
        if not privileges.may_mount(places):
            return (
                "CAP_SYS_ADMIN (run as root; podman, docker: --cap-add SYS_ADMIN; a pod: capabilities.add: [SYS_ADMIN])"
            )
        if refused:
            return "a seccomp profile and an AppArmor or SELinux policy that let CAP_SYS_ADMIN unshare and mount"
    if step == "user":
        for finding in privileges.user_namespaces(places):
            return finding.do
        if error.step == "id map" and privileges.is_root_without_setfcap(places):
            return "CAP_SETFCAP, without which root cannot be mapped (since Linux 5.12), or another user than root"
        if refused and error.step == "user namespace":
            return "a seccomp profile that allows unshare (in containers), and a root folder that is no chroot"
        if refused:
            return "an AppArmor or SELinux policy that allows mounts in user namespaces"
    if step == "guard" and error.step == "seccomp":
        return "the seccomp system call, which this kernel or a filter refuses"
    return "that this step succeeds: see the reason"


def tried(places: Places, attempt: Callable[[Options, str], SandboxStartError | None] = attempt) -> Iterator[Finding]:
    """Which steps are possible here. `attempt` is what tries one."""
    if not places.live:
        return
    refused = {}
    for step in LADDER:
        error = attempt(places.options, step)
        if error is None:
            yield Finding("isolation.possible", f"isolation '{step}' works here: {_MEANING[step]}", about=step)
            continue
        refused[step] = error
        yield Finding(
            "isolation.refused",
            f"isolation '{step}' is not possible here: {error}",
            f"it needs {_needed(step, error, places)}",
            about=step,
            facts={"step": error.step, "errno": error.errno, "path": error.path},
        )
    if set(refused) == set(LADDER):
        yield Finding("isolation.none", "no isolation is possible here", f"{_least(refused, places)}")
    elif set(refused) == {"mount", "user"}:
        yield Finding(
            "isolation.only-guard",
            "only 'guard' is possible here: devices= cannot hide GPUs, and a driver in a container cannot be reached",
            _least(refused, places),
        )


def _least(refused: dict[str, SandboxStartError], places: Places) -> str:
    ways = [f"for '{step}': {_needed(step, refused[step], places)}" for step in ("mount", "user") if step in refused]
    return "; or ".join(ways)
