# SPDX-License-Identifier: Apache-2.0
"""Sending plain ``pynvml`` calls to a sandbox while a block is open.

pynvml's functions all get NVML's symbols by ``_nvmlGetFunctionPointer``, which third-party code wraps and copies
(gpustat, nvitop) and which itself goes to the globals ``_nvmlGetFunctionPointer_cache`` and ``nvmlLib``. So these two
are what is exchanged, never a function: code that has already imported pynvml's functions, or wrapped them, goes to
the sandbox too. Each copy of pynvml in this process has globals of its own (see copies.py), and in each they are
exchanged. Then a call proves for each that it comes to the sandbox (see proof.py).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pynvml

from nvsandbox import aside, copies, proof, threads
from nvsandbox.bindings import Library
from nvsandbox.errors import SandboxUnavailable

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_CACHE = "_nvmlGetFunctionPointer_cache"
_COPIES_NAMES = ("nvml", "nvidia_smi")


class _Cache(dict[str, Any]):
    """Takes the place of pynvml's cache of function pointers for good, once a block was open.

    For good, since another thread may stand between pynvml's ``name in cache`` and its ``cache[name]`` when a block
    opens or closes; an exchanged dictionary would make that a KeyError. Without an open block it is pynvml's cache
    and nothing more.
    """

    def __init__(self, scope: copies.Scope) -> None:
        super().__init__(scope.get(_CACHE) or {})
        self._scope = scope

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
            library = self._scope["nvmlLib"]
            if library is None:  # the block that this was stored in has ended since
                raise self._scope["NVMLError"](pynvml.NVML_ERROR_UNINITIALIZED) from None
            return getattr(library, name)

    def __setitem__(self, name: str, function: Any) -> None:
        # pynvml fills the cache with what it found in nvmlLib. What it found in a sandbox is not to outlive the block.
        if not isinstance(getattr(function, "_library", None), Library):
            super().__setitem__(name, function)


class _Copy:
    """A copy of pynvml, and what it has while no block is open."""

    def __init__(self, scope: copies.Scope) -> None:
        self.scope = scope
        self._direct: tuple[Any, int] = (scope["nvmlLib"], scope["_nvmlLib_refcount"])
        scope[_CACHE] = _Cache(scope)

    def leave(self) -> None:
        """Takes its state away for whoever has it now."""
        if not isinstance(self.scope.get(_CACHE), _Cache):  # it was reloaded
            self.scope[_CACHE] = _Cache(self.scope)
        count = self.scope.get("_nvmlLib_refcount", 0)
        if _routes:
            _routes[-1].refcounts[self] = count
        else:
            self._direct = (self.scope.get("nvmlLib"), count)

    def enter(self) -> None:
        """Puts the state of the last route, or of direct use, in place."""
        if _routes:
            self.scope["nvmlLib"] = _routes[-1].library
            self.scope["_nvmlLib_refcount"] = _routes[-1].refcounts.get(self, 0)
        else:
            self.scope["nvmlLib"], self.scope["_nvmlLib_refcount"] = self._direct


class Route:
    """Plain pynvml calls go to `library` from :meth:`open` on until :meth:`close`, unless a later route is open."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.refcounts: dict[_Copy, int] = {}

    def open(self) -> None:
        """Raises SandboxUnavailable where calls of a copy of pynvml would not come to the sandbox."""
        global _routes
        with _lock:
            for scope in copies.found():
                _know(scope)
            if sys.meta_path is not None and _guard not in sys.meta_path:
                sys.meta_path.insert(0, _guard)
            for copy in _copies:
                copy.leave()
            _routes = (*_routes, self)
            for copy in _copies:
                copy.enter()
            try:
                for copy in _copies:
                    proof.of_arrival(copy.scope, self.library)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        global _routes
        with _lock:
            if self in _routes:
                for copy in _copies:
                    copy.leave()
                _routes = tuple(route for route in _routes if route is not self)
                for copy in _copies:
                    copy.enter()
                # None when the interpreter finalizes
                if not _routes and _guard in (sys.meta_path or ()):
                    sys.meta_path.remove(_guard)


def _know(scope: copies.Scope) -> None:
    """Takes a copy up among those that are sent to the sandbox, for good: who has its functions may have taken them
    out of its module."""
    if not any(copy.scope is scope for copy in _copies):
        _copies.append(_Copy(scope))
        _copies[-1].enter()


def _adopt(module: ModuleType) -> None:
    """Sends a module that was imported, or reloaded, while a block is open to the sandbox, if it is a copy of
    pynvml."""
    scope = copies.scope_in(vars(module))
    if scope is None:
        return
    copies.check(scope, module.__name__)
    with _lock:
        if not _routes:
            return
        _know(scope)
        for copy in _copies:
            if copy.scope is scope and not isinstance(scope[_CACHE], _Cache):
                scope[_CACHE] = _Cache(scope)
                copy.enter()
        proof.of_arrival(scope, _routes[-1].library)


class _Adopting:
    """A module's loader, and what a copy of pynvml needs after it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        try:
            _adopt(module)
        except SandboxUnavailable as error:
            raise ImportError(str(error), name=module.__name__) from error


class _Guard:
    """Stands among the finders of modules while a block is open, and refuses to load pynvml anew: its functions would
    go past the sandbox to the library itself, and its exceptions would not be those that the sandbox raises. Other
    copies of pynvml, which are known by their names, are sent to the sandbox when they have been loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "pynvml" and _routes:
            raise ImportError(
                "pynvml cannot be loaded anew (by importlib.reload, or after its removal from sys.modules) as long as "
                "an nvml_isolated() block is open, or after install(): its calls would go past the sandbox",
                name=fullname,
            )
        if _routes and any(part in fullname for part in _COPIES_NAMES):
            for finder in list(sys.meta_path):
                find = None if finder is self else getattr(finder, "find_spec", None)
                spec: ModuleSpec | None = None if find is None else find(fullname, path, target)
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):
                        spec.loader = _Adopting(spec.loader)  # type: ignore[assignment]
                    return spec
        return None


_guard = _Guard()

# pynvml is one for the process, and so is where its calls go.
_lock = aside.Lock()
_routes: tuple[Route, ...] = ()  # exchanged whole, for readers take no lock
_copies: list[_Copy] = []


def _after_fork_in_child() -> None:
    global _lock
    _lock = aside.Lock()
    if _routes:
        # pynvml holds it while it looks a symbol up, and while a block is open it does that in every call.
        for copy in _copies:
            copy.scope["libLoadLock"] = threads.allocate_lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
