# SPDX-License-Identifier: Apache-2.0
"""What isolation is possible on this machine, and what is wrong with its driver, libraries and nodes.

:func:`examine` looks and changes nothing: it makes no node, loads no module, and opens a node only where a loaded
driver serves it. Importing has no effects.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nvsandbox.doctor import driver, gpus, ladder, libraries, nodes, package, privileges, system
from nvsandbox.doctor import query as query_
from nvsandbox.doctor.findings import CATALOGUE, SEVERITIES, Finding, worst
from nvsandbox.doctor.places import Places
from nvsandbox.doctor.verdict import Verdict, verdict
from nvsandbox.errors import SandboxError

__all__ = ["CATALOGUE", "SEVERITIES", "Finding", "Places", "Report", "Verdict", "examine", "verdict"]

WAIT = 1.0
"""Seconds that NVML gets to answer, unless the caller says otherwise."""

Check = Callable[[Places], Iterator[Finding]]

# In the order of the report. Each with what it is about, for when it fails.
_ALWAYS: tuple[tuple[str, Check], ...] = (
    ("the isolation ladder", ladder.tried),
    ("capabilities", privileges.capabilities),
    ("securebits", privileges.securebits),
    ("no_new_privs and seccomp", privileges.restrictions),
    ("Linux security modules", privileges.security_modules),
    ("user namespaces", privileges.user_namespaces),
    ("the kernel", system.kernel),
    ("the container", system.container),
    ("cgroups", system.cgroups),
    ("nvsandbox's installation", package.installation),
)
_OF_THE_DRIVER: tuple[tuple[str, Check], ...] = (
    ("the kernel driver", driver.loaded),
    ("what makes nodes", driver.node_makers),
    ("driver roots", driver.where),
    ("the fabric manager", driver.fabric_manager),
    ("GPUs on the PCI bus", gpus.gpus),
    ("libraries", libraries.libraries),
    ("device nodes", nodes.nodes),
    ("nodes of MIG instances", nodes.mig),
    ("opening device nodes", nodes.openable),
)


@dataclass(frozen=True)
class Report:
    """What :func:`examine` found."""

    findings: tuple[Finding, ...]
    verdict: Verdict

    @property
    def severity(self) -> str:
        """The worst of the findings: ``"ok"``, ``"info"``, ``"warning"`` or ``"error"``."""
        return worst(list(self.findings))


def carry_out(name: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """What a check finds; that it fails is a finding too."""
    try:
        yield from check()
    except Exception as error:  # whatever it is, the other checks go on
        yield Finding(
            "doctor.unexamined",
            f"{name}: could not be examined: {type(error).__name__}: {error}",
            "run the doctor as root, or report this if it already does",
            about=name,
            facts={"type": type(error).__name__},
        )


def examine(places: Places, wait: float | None = None) -> Report:
    """Examines a machine. With simulated GPUs (``simulate=`` of the options) what concerns a driver is left out.

    Args:
        places: where to look; ``Places.here(options)`` is this machine.
        wait: seconds that NVML gets to answer; past them is an error. None: WAIT, and a warning, for a start can
            take longer where nothing is wrong.

    Raises SandboxError where there is no ``/proc``: nothing can be said then.
    """
    if not os.path.exists(f"{places.proc}/self/status"):
        raise SandboxError(f"cannot examine anything without /proc ({places.proc}/self/status): mount it")
    checks = _ALWAYS if places.options.simulate is not None else _ALWAYS + _OF_THE_DRIVER
    found = [finding for name, check in checks for finding in carry_out(name, lambda check=check: check(places))]  # type: ignore[misc]
    found += carry_out("NVML", lambda: query_.query(places, WAIT if wait is None else wait, enough=wait is not None))
    return Report(tuple(found), verdict(found))
