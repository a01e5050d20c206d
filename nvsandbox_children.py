# SPDX-License-Identifier: Apache-2.0
"""In the children of a process that called ``nvsandbox.install()``: pynvml goes to a sandbox there too.

``install()`` puts its options into the environment variable NVSANDBOX_INSTALL. nvsandbox_children.pth, which Python
reads when it starts, calls :func:`follow` where that is set. Nothing is started before pynvml is imported.

A module of its own beside the package, for every Python that starts with the variable imports it.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from typing import Any

VARIABLE = "NVSANDBOX_INSTALL"  # as in nvsandbox/inheriting.py, which is not imported here: it would import the package


def follow() -> None:
    """Has ``install()`` called when pynvml, or a copy of it, is imported."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def stay() -> None:
    """For a program that chooses its sandboxes by itself, such as the command nvsandbox."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)


def _install() -> None:
    import json
    import os

    text = os.environ.get(VARIABLE, "")
    if _finder not in sys.meta_path or not text:
        return
    try:
        from nvsandbox.blocks import install

        install(**json.loads(text))
    except Exception as error:
        sys.modules.pop("pynvml", None)  # whoever catches this and imports it again is not to get it without a sandbox
        raise ImportError(
            f"pynvml was to run in a sandbox, as in the parent of this process, which called nvsandbox.install(), and "
            f"that cannot be opened here: {error} (to do without in children: nvsandbox.install(inherit=False) in the "
            f"parent, or {VARIABLE}= in the child's environment)",
            name="pynvml",
        ) from error
    stay()


class _Loader:
    """A module's own loader, and what comes after it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: Any) -> None:
        module.__loader__ = module.__spec__.loader = self._loader
        # nvsandbox itself imports pynvml. It is asked for a sandbox when all that it was importing is complete.
        outermost = get_ident() not in _finder.importing
        _finder.importing.add(get_ident())
        try:
            self._loader.exec_module(module)
        finally:
            if outermost:
                _finder.importing.discard(get_ident())
        if outermost and "pynvml" in sys.modules:
            _install()


class _Finder:
    def __init__(self) -> None:
        self.importing: set[int] = set()  # threads that import what is followed by install()

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if get_ident() in self.importing:
            return None
        if fullname == "pynvml" or (fullname.startswith("nvsandbox.") and not fullname.startswith("nvsandbox._")):
            for finder in list(sys.meta_path):
                find = None if finder is self else getattr(finder, "find_spec", None)
                spec = None if find is None else find(fullname, path, target)
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):
                        spec.loader = _Loader(spec.loader)
                    return spec
        elif "nvml" in fullname and "pynvml" not in sys.modules and not fullname.startswith("pynvml"):
            __import__("pynvml")  # a copy of pynvml is sent to the sandbox when there is one
        return None


_finder: Any = _Finder()
