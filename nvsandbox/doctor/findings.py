# SPDX-License-Identifier: Apache-2.0
"""What the doctor can find: the ids, which never change their meaning, and how bad each is.

docs/doctor.md has a section for each id; a test compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SEVERITIES = ("ok", "info", "warning", "error")

CATALOGUE: dict[str, str] = {
    # The steps of the ladder, each of them tried, and what stands in their way
    "isolation.possible": "ok",
    "isolation.refused": "info",
    "isolation.only-guard": "warning",
    "isolation.none": "error",
    "isolation.no-cap-sys-admin": "info",
    "isolation.no-cap-mknod": "info",
    "isolation.not-inherited": "warning",
    "isolation.securebits": "warning",
    "isolation.no-new-privs": "info",
    "isolation.seccomp": "info",
    "isolation.lsm": "info",
    "isolation.userns-disabled": "info",
    # The system
    "system.kernel": "ok",
    "system.old-kernel": "info",
    "system.no-landlock": "info",
    "system.memfd-noexec": "info",
    "system.container": "info",
    "system.pid-namespace": "info",
    "system.cgroup": "ok",
    "system.device-rules": "warning",
    "system.one-cpu": "info",
    "system.cpu-quota": "info",
    # The kernel driver and the GPUs
    "driver.loaded": "ok",
    "driver.not-loaded": "error",
    "driver.not-live": "error",
    "driver.nouveau": "warning",
    "driver.wsl": "info",
    "driver.creates-nodes": "info",
    "driver.setuid-modprobe": "info",
    "driver.in-container": "info",
    "driver.other-root": "warning",
    "driver.fabric-manager": "warning",
    "gpu.all-driven": "ok",
    "gpu.none": "warning",
    "gpu.vfio": "info",
    "gpu.unclaimed": "warning",
    "gpu.lost": "error",
    "gpu.numbering": "info",
    # NVIDIA's library
    "library.found": "ok",
    "library.not-found": "error",
    "library.unusable": "warning",
    "library.stub": "warning",
    "library.several": "warning",
    "library.mismatch": "error",
    # Device nodes
    "nodes.clean": "ok",
    "nodes.unwanted": "warning",
    "nodes.wrong": "warning",
    "nodes.no-mig": "warning",
    "nodes.cannot-open": "error",
    "nodes.hang": "error",
    # nvsandbox itself
    "package.whole": "ok",
    "package.mixed": "error",
    "package.worker": "error",
    "package.unbound-pynvml": "error",
    "package.old-pynvml": "warning",
    "package.optional": "info",
    # NVML, asked in the sandbox
    "query.works": "ok",
    "query.simulated": "info",
    "query.skipped": "info",
    "query.slow": "warning",
    "query.hung": "error",
    "query.failed": "error",
    "query.gpu-failed": "error",
    # A check that could not be carried out
    "doctor.unexamined": "warning",
}
"""Each id and its severity."""

PAGE = "docs/doctor.md"


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    ``id`` is one of CATALOGUE; ``what`` says in a line what was found, ``do`` what to do about it ("" where there is
    nothing to do). ``about`` names the thing where an id can be found of several: a path, a GPU's PCI address, a step
    of the ladder. ``facts`` has the details for programs.
    """

    id: str
    what: str
    do: str = ""
    about: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def severity(self) -> str:
        """``"ok"``, ``"info"``, ``"warning"`` or ``"error"``."""
        return CATALOGUE[self.id]

    @property
    def documentation(self) -> str:
        """The section about this id."""
        return f"{PAGE}#{self.id.replace('.', '')}"

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "id": self.id,
            "severity": self.severity,
            "about": self.about,
            "what": self.what,
            "do": self.do,
            "facts": dict(self.facts),
            "documentation": self.documentation,
        }


def worst(findings: list[Finding]) -> str:
    """The highest severity among findings; "ok" where there are none."""
    return max((finding.severity for finding in findings), key=SEVERITIES.index, default="ok")
