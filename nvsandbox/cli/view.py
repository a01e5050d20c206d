# SPDX-License-Identifier: Apache-2.0
"""What a query can show: it is read through the sandbox, and then written for people or for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import nvsandbox
from nvsandbox.asking import Failure

_GPU_IS_LOST = 15
_LOST = "the kernel log has its XID error (dmesg | grep -i xid); as a rule a reset or a reboot brings it back"


class View(Protocol):
    """One way to look at the GPUs."""

    appends: bool
    """Whether its lines are records of one table, so that repetitions go on where the last one ended."""

    def read(self, nvml: Any) -> Any:
        """All that is shown. Raises NVMLError and SandboxError where there is nothing to show."""

    def lines(self, data: Any) -> Iterable[str]:
        """For files, pipes and grep."""

    def styled(self, data: Any, console: Any) -> None:
        """For a terminal: printed on a rich console."""

    def problems(self, data: Any) -> Iterable[str]:
        """What could not be read and why, for stderr."""

    def as_json(self, data: Any) -> dict[str, Any]:
        """The object for programs."""


def about(nvml: Any) -> dict[str, Any]:
    """What every JSON object begins with."""
    session = nvml.session
    return {
        "nvsandbox_version": nvsandbox.__version__,
        "isolation": session.isolation,
        "library": session.library,
        "simulate": session.options.simulate,
    }


def of_gpu(whole: Failure | None, errors: Sequence[Failure]) -> list[Failure]:
    """A GPU's failures. Why it cannot be queried is said once, and not for the field where that was found as well."""
    if whole is None:
        return list(errors)
    return [*(failure for failure in errors if failure.message != whole.message), whole]


def told(failures: Iterable[tuple[str, Sequence[Failure]]]) -> Iterator[str]:
    """Failures with where they were, in words; the same thing in several places once."""
    seen: dict[tuple[str, int, str], list[str]] = {}
    for where, some in failures:
        for failure in some:
            seen.setdefault((failure.field, failure.code, failure.message), []).append(where)
    for (field, code, message), places in seen.items():
        what = "cannot be queried" if field == "gpu" else f"no {field}"
        if (field, code) == ("gpu", _GPU_IS_LOST):
            message += f"; {_LOST}"
        text = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in message)
        yield f"{', '.join(dict.fromkeys(places))}: {what}: {text}"
