# SPDX-License-Identifier: Apache-2.0
"""Which process this is, so that a forked child is told apart from its parent."""

from __future__ import annotations

import os

_forks = 0


def this_process() -> tuple[int, int]:
    """Another one in each process of a line of forks.

    A process id alone is not enough: the first process of a PID namespace, such as a container's, has the same one as a
    child of it that is the first of a new PID namespace. And os.fork() alone is not: C code forks by itself.
    """
    return os.getpid(), _forks


def _after_fork_in_child() -> None:
    global _forks
    _forks += 1


# Whoever asks in a hook of its own has imported this before, and such hooks run in the order that they were made in.
os.register_at_fork(after_in_child=_after_fork_in_child)
