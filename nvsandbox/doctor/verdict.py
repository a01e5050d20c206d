# SPDX-License-Identifier: Apache-2.0
"""The findings in plain words: what will work, and what to do first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nvsandbox.doctor.findings import Finding
from nvsandbox.isolation import LADDER

_FIRST_MAX = 3

# What explains most comes first; what is not listed follows in the order of its finding.
_ORDER = (
    "package.mixed",
    "package.worker",
    "isolation.none",
    "driver.not-loaded",
    "driver.not-live",
    "driver.other-root",
    "library.mismatch",
    "library.not-found",
    "nodes.cannot-open",
    "nodes.hang",
    "query.failed",
    "query.hung",
)

# What another finding already says, better.
_FOLLOWS = {
    "query.failed": ("isolation.none", "library.not-found", "library.mismatch", "nodes.cannot-open", "package.worker"),
    "library.not-found": ("driver.other-root", "driver.not-loaded"),
    "isolation.none": ("package.worker", "package.mixed"),
    "gpu.none": ("driver.not-loaded",),
}


@dataclass(frozen=True)
class Verdict:
    """What it comes to. None where it could not be told."""

    isolation: str | None
    """The step that ``isolation="auto"`` takes here."""
    can_query: bool | None
    """Whether NVML answers in the sandbox."""
    dev_is_clean: bool | None
    """Whether /dev has no NVIDIA nodes that should not be there."""
    sentences: tuple[str, ...]
    first: tuple[str, ...]
    """What to do first, at most three."""

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "isolation": self.isolation,
            "can_query": self.can_query,
            "dev_is_clean": self.dev_is_clean,
            "sentences": list(self.sentences),
            "do_first": list(self.first),
        }


def verdict(findings: Sequence[Finding]) -> Verdict:
    """What the findings come to."""
    ids = {finding.id for finding in findings}
    possible = [finding.about for finding in findings if finding.id == "isolation.possible"]
    isolation = next((step for step in LADDER if step in possible), None)
    can_query = True if "query.works" in ids else False if ids & {"query.failed", "query.skipped"} else None
    clean = False if "nodes.unwanted" in ids else True if ids & {"nodes.clean", "nodes.wrong"} else None
    return Verdict(
        isolation, can_query, clean, tuple(_sentences(findings, ids, isolation, can_query, clean)), _first(findings)
    )


def _sentences(
    findings: Sequence[Finding], ids: set[str], isolation: str | None, can_query: bool | None, clean: bool | None
) -> list[str]:
    said = []
    if isolation is not None:
        said.append(f"Isolation: auto takes '{isolation}' here.")
    elif "isolation.none" in ids:
        said.append("Isolation: none is possible here.")
    if can_query is not None:
        works = next((finding.what for finding in findings if finding.id == "query.works"), "")
        said.append(f"GPUs: {works}." if can_query else f"GPUs: cannot be queried{_because(findings)}.")
    elif ids & {"query.slow", "query.hung"}:
        said.append("GPUs: NVML had not answered when this ended.")
    if clean is not None:
        said.append("/dev: no NVIDIA node is there that should not be." if clean else "/dev: NVIDIA nodes pollute it.")
    return said


def _because(findings: Sequence[Finding]) -> str:
    errors = [finding.id for finding in findings if finding.severity == "error" and finding.id in _ORDER]
    return f" ({min(errors, key=_ORDER.index)})" if errors else ""


def _first(findings: Sequence[Finding]) -> tuple[str, ...]:
    ids = {finding.id for finding in findings}
    bad = [
        finding
        for finding in findings
        if finding.severity in ("error", "warning")
        and finding.do
        and not any(better in ids for better in _FOLLOWS.get(finding.id, ()))
    ]
    bad.sort(key=lambda f: (f.severity != "error", _ORDER.index(f.id) if f.id in _ORDER else len(_ORDER)))
    lines = dict.fromkeys(f"{finding.id}: {finding.do}" for finding in bad)
    return tuple(lines)[:_FIRST_MAX]
