# SPDX-License-Identifier: Apache-2.0
"""Threads, locks and thread-locals of the operating system's threads, whatever stands in the standard library's place.

gevent and eventlet replace those of ``threading`` and ``_thread`` by ones of their greenlets, whenever a program says
so. What is behind a sandbox is used by all threads of a process, with hubs or without, and waits for a worker that
no hub knows: greenlets' locks raise ``greenlet.error`` there. So the originals are bound here: by name where they have
not been replaced yet, and else from another instance of the built-in module.
"""

from __future__ import annotations

import _thread
import ctypes
import importlib.util
import types
from importlib.machinery import BuiltinImporter
from typing import Any


def _originals() -> Any:
    functions = (_thread.start_new_thread, _thread.get_ident)
    if all(isinstance(function, types.BuiltinFunctionType) for function in functions):
        return _thread
    spec = BuiltinImporter.find_spec("_thread")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # For good: its locks and thread-locals outlive it when the interpreter ends, and ask it for its state then.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))
    return module


_module = _originals()

allocate_lock = _module.allocate_lock
get_ident = _module.get_ident
start_new_thread = _module.start_new_thread
RLock: Any = _module.RLock
local: Any = _module._local


def sleep(seconds: float) -> None:
    """As ``time.sleep``."""
    lock = allocate_lock()
    lock.acquire()
    lock.acquire(timeout=seconds)


class Event:
    """As ``threading.Event``, as far as it is needed: set once."""

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._lock.acquire()
        self._set = False

    def set(self) -> None:
        if not self._set:
            self._set = True
            self._lock.release()

    def wait(self, timeout: float) -> bool:
        """Whether it was set, within `timeout` seconds."""
        if not self._set and self._lock.acquire(timeout=timeout):
            self._lock.release()
        return self._set


__all__ = ["Event", "RLock", "allocate_lock", "get_ident", "local", "sleep", "start_new_thread"]
