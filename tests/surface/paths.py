# SPDX-License-Identifier: Apache-2.0
"""Which way a session's calls go: the short one (csrc/fast/fast.c), or by the marshaller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Paths:
    """Counts the calls of functions that are run through it: the short way has a counter of its own in the session's
    link, and whatever goes by the marshaller goes through the session's `call`."""

    def __init__(self, session: Any) -> None:
        self._link = session.link
        self._marshalled: list[str] = []
        call = session.call

        def noting(name: str, *rest: Any) -> Any:
            self._marshalled.append(name)
            return call(name, *rest)

        session.call = noting
        self.found: dict[str, Any] = {}

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, after whose calls `found` says how many calls of NVML went the short way, and which did not."""

        def call(*given: Any) -> Any:
            before = self._link.calls
            self._marshalled.clear()
            try:
                return function(*given)
            finally:
                self.found = {"short": self._link.calls - before, "marshalled": list(self._marshalled)}

        return call
