# SPDX-License-Identifier: Apache-2.0
"""A set that keeps nothing alive."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Weakly(Generic[_T]):
    """Objects, as long as somebody else has them. weakref.WeakSet runs Python code when one goes: an exception that a
    signal handler raises there (KeyboardInterrupt) is lost. This looks for what is gone when something is added."""

    def __init__(self) -> None:
        self._references: list[weakref.ref[_T]] = []

    def add(self, thing: _T) -> None:
        for reference in list(self._references):
            if reference() is None:
                with contextlib.suppress(ValueError):  # another thread has
                    self._references.remove(reference)
        self._references.append(weakref.ref(thing))

    def __iter__(self) -> Iterator[_T]:
        for reference in list(self._references):
            thing = reference()
            if thing is not None:
                yield thing
