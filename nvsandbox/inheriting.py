# SPDX-License-Identifier: Apache-2.0
"""What ``install()`` leaves to the children of this process: its options, in the environment.

nvsandbox_children.py reads them there.
"""

from __future__ import annotations

import dataclasses
import json
import os

from nvsandbox.options import Options, Recycle

VARIABLE = "NVSANDBOX_INSTALL"
SWITCH = "NVSANDBOX_INHERIT"


def wanted(inherit: object) -> bool:
    """Whether children follow: as the caller says, or else the environment, or else yes."""
    if inherit is None:
        text = os.environ.get(SWITCH, "")
        if text not in ("", "0", "1"):
            raise ValueError(f"environment variable {SWITCH}={text!r}: expected 1 or 0")
        return text != "0"
    if not isinstance(inherit, bool):
        raise TypeError(f"inherit={inherit!r} is of type {type(inherit).__name__}: expected True or False")
    return inherit


def leave(options: Options, inherit: bool) -> None:
    """Leaves the options to children that are started from now on, or sees to it that they get none."""
    if not inherit:
        os.environ.pop(VARIABLE, None)
        return
    # Every one of them, so that no other variable changes them. Paths are absolute already.
    given = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    given["recycle_after"] = _recycle(options.recycle_after)
    os.environ[VARIABLE] = json.dumps(given)


def _recycle(recycle: Recycle | None) -> int | str | None:
    if recycle is None or recycle.memory_bytes is None:
        return None if recycle is None else recycle.calls
    return f"{recycle.memory_bytes >> 10}KiB"
