# SPDX-License-Identifier: Apache-2.0
"""Which session blocks with equal options share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nvsandbox import aside
from nvsandbox.options import Options

if TYPE_CHECKING:
    from nvsandbox.session import NVMLSession


class Registry:
    """The sessions of this process that a new block may share. Whoever looks or changes holds ``lock``, and does so
    aside (aside.py)."""

    def __init__(self) -> None:
        self.lock = aside.Lock()
        self.sessions: dict[Options, NVMLSession] = {}

    def forget(self, session: NVMLSession) -> None:
        """Has nobody share this session any more."""
        with self.lock:
            if self.sessions.get(session.options) is session:
                del self.sessions[session.options]

    def after_fork_in_child(self) -> None:
        # Locks may be held by threads that do not exist here.
        self.lock = aside.Lock()


registry = Registry()

os.register_at_fork(after_in_child=registry.after_fork_in_child)
