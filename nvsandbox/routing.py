# SPDX-License-Identifier: Apache-2.0
"""Sending plain ``pynvml`` calls to a sandbox while a block is open.

pynvml's functions all get NVML's symbols by ``_nvmlGetFunctionPointer``, which third-party code wraps and copies
(gpustat, nvitop) and which itself goes to the globals ``_nvmlGetFunctionPointer_cache`` and ``nvmlLib``. So these two
are what is exchanged, never a function: code that has already imported pynvml's functions, or wrapped them, goes to
the sandbox too.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pynvml

from nvsandbox import aside
from nvsandbox.bindings import Library

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_PYNVML = vars(pynvml)
_CACHE = "_nvmlGetFunctionPointer_cache"


class _Cache(dict[str, Any]):
    """Takes the place of pynvml's cache of function pointers for good, once a block was open.

    For good, since another thread may stand between pynvml's ``name in cache`` and its ``cache[name]`` when a block
    opens or closes; an exchanged dictionary would make that a KeyError. Without an open block it is pynvml's cache
    and nothing more.
    """

    def __contains__(self, name: object) -> bool:
        routes = _routes
        if not routes:
            return super().__contains__(name)
        # Here, for pynvml would look it up with its lock held: that takes a call to the worker, perhaps the start of a
        # new one, and meanwhile a signal handler that calls NVML would wait for ever, and other threads for it all.
        # What is not there is looked for once more by pynvml, which turns the AttributeError into FunctionNotFound.
        return hasattr(routes[-1].library, str(name))

    def __getitem__(self, name: str) -> Any:
        routes = _routes  # once: another thread may close the last one between two looks
        if routes:
            return routes[-1].library[name]
        try:
            return super().__getitem__(name)
        except KeyError:
            library = _PYNVML["nvmlLib"]
            if library is None:  # the block that this was stored in has ended since
                raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED) from None
            return getattr(library, name)

    def __setitem__(self, name: str, function: Any) -> None:
        # pynvml fills the cache with what it found in nvmlLib. What it found in a sandbox is not to outlive the block.
        if not isinstance(getattr(function, "_library", None), Library):
            super().__setitem__(name, function)


class Route:
    """Plain pynvml calls go to `library` from :meth:`open` on until :meth:`close`, unless a later route is open."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self._refcount = 0

    def open(self) -> None:
        global _routes
        with _lock:
            if sys.meta_path is not None and _guard not in sys.meta_path:
                sys.meta_path.insert(0, _guard)
            _leave()
            _routes = (*_routes, self)
            _enter()

    def close(self) -> None:
        global _routes
        with _lock:
            if self in _routes:
                _leave()
                _routes = tuple(route for route in _routes if route is not self)
                _enter()
                # None when the interpreter finalizes
                if not _routes and _guard in (sys.meta_path or ()):
                    sys.meta_path.remove(_guard)


class _Guard:
    """Stands among the finders of modules while a block is open, and refuses to load pynvml anew: its functions would
    go past the sandbox to the library itself, and its exceptions would not be those that the sandbox raises."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "pynvml" and _routes:
            raise ImportError(
                "pynvml cannot be loaded anew (by importlib.reload, or after its removal from sys.modules) as long as "
                "an nvml_isolated() block is open, or after install(): its calls would go past the sandbox",
                name=fullname,
            )
        return None


_guard = _Guard()

# pynvml is one for the process, and so is where its calls go.
_lock = aside.Lock()
_routes: tuple[Route, ...] = ()  # exchanged whole, for readers take no lock
_direct: tuple[Any, int] = (None, 0)


def _leave() -> None:
    """Takes pynvml's state away for whoever has it now."""
    global _direct
    if not isinstance(_PYNVML.get(_CACHE), _Cache):
        _PYNVML[_CACHE] = _Cache(_PYNVML.get(_CACHE) or {})
    if _routes:
        _routes[-1]._refcount = _PYNVML.get("_nvmlLib_refcount", 0)
    else:
        _direct = (_PYNVML.get("nvmlLib"), _PYNVML.get("_nvmlLib_refcount", 0))


def _enter() -> None:
    """Puts the state of the last route, or of direct use, in place."""
    if _routes:
        _PYNVML["nvmlLib"] = _routes[-1].library
        _PYNVML["_nvmlLib_refcount"] = _routes[-1]._refcount
    else:
        _PYNVML["nvmlLib"], _PYNVML["_nvmlLib_refcount"] = _direct


def _after_fork_in_child() -> None:
    global _lock
    _lock = aside.Lock()
    if _routes:
        # pynvml holds it while it looks a symbol up, and while a block is open it does that in every call.
        _PYNVML["libLoadLock"] = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
