# SPDX-License-Identifier: Apache-2.0
"""Handles that outlive their worker.

A handle is a token of the worker that gave it out. When that worker is gone, the tokens of devices and units that
came from an index, a UUID, a serial number or a PCI bus id are asked for again in the new one, by UUID wherever there
was one: an index may mean another GPU by then. Everything else (event sets, GPM samples, GPU instances) had a state
that is gone with the worker: StaleHandle.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from typing import Any

import pynvml

from nvsandbox import threads
from nvsandbox.marshal import pointed_handle

_GIVES = re.compile(r"nvml(Device|Unit)Get(\w*Handle\w*By\w+|DeviceHandleFromMigDeviceHandle)$")
_KEPT_MAX = 512

Invoke = Callable[[str, tuple[Any, ...]], int]
"""Calls a function of NVML in the present worker: its name, ctypes arguments; gives the nvmlReturn_t."""


class Recipes:
    """How each handle was come by, and what stands for it in the present worker."""

    def __init__(self) -> None:
        self._lock = threads.RLock()
        # A token of any worker of this session to (function, type of the handle, what it takes before the handle).
        self._recipes: dict[int, tuple[str, Any, tuple[Any, ...]]] = {}
        # Each worker gives out new tokens for the same few devices.
        self._same: dict[tuple[str, Any, tuple[Any, ...]], tuple[str, Any, tuple[Any, ...]]] = {}

    def after_fork(self) -> None:
        """In a forked child: the lock may be held by a thread that does not exist there."""
        self._lock = threads.RLock()

    def remember(self, name: str, arguments: tuple[Any, ...], invoke: Invoke) -> None:
        """Notes where the handle in the last of `arguments` came from, after a successful call of `name`."""
        if not _GIVES.search(name):
            return
        found = pointed_handle(arguments[-1])
        if found is None or found[1] == 0 or found[1] in self._recipes:
            return
        kind, token = found
        recipe = self._as_given(name, kind, arguments)
        if recipe is None or "ByIndex" in name:
            # One more call, once for each handle: what has an index in the next worker may be another GPU.
            recipe = self._by_uuid(kind, token, invoke) or recipe
        if recipe is not None:
            with self._lock:
                while len(self._recipes) >= _KEPT_MAX:
                    del self._recipes[next(iter(self._recipes))]
                if len(self._same) >= _KEPT_MAX:
                    self._same.clear()
                self._recipes[token] = self._same.setdefault(recipe, recipe)

    @staticmethod
    def _by_uuid(kind: Any, token: int, invoke: Invoke) -> tuple[str, Any, tuple[Any, ...]] | None:
        if kind is not pynvml.c_nvmlDevice_t:
            return None
        handle = ctypes.cast(token, kind)
        uuid = ctypes.create_string_buffer(96)  # NVML_DEVICE_UUID_V2_BUFFER_SIZE
        if invoke("nvmlDeviceGetUUID", (handle, uuid, ctypes.c_uint(len(uuid)))) != 0:
            return None
        return "nvmlDeviceGetHandleByUUID", kind, (uuid.value,)

    @staticmethod
    def _as_given(name: str, kind: Any, arguments: tuple[Any, ...]) -> tuple[str, Any, tuple[Any, ...]] | None:
        """The same call again, where its arguments are but a number or a string. A lost GPU has no UUID to ask for."""
        plain = []
        for argument in arguments[:-1]:
            value = getattr(argument, "value", argument)
            if not isinstance(value, int | bytes):
                return None
            plain.append(value)
        return name, kind, tuple(plain)

    def revive(self, tokens: set[int], present: dict[int, int], invoke: Invoke) -> bool:
        """Asks the present worker for what the stale ones of `tokens` stand for, and notes it in `present`.

        Whether there is now something else in `present` for at least one of them.
        """
        # Another thread may have been faster.
        revived = any(present.get(token, token) != token for token in tokens)
        for token in tokens:
            recipe = self._recipes.get(token)
            if recipe is None or token in present:
                continue
            name, kind, arguments = recipe
            handle = kind()
            if invoke(name, (*arguments, ctypes.byref(handle))) != 0:
                continue
            new = ctypes.cast(handle, ctypes.c_void_p).value or 0
            if new and new != token:
                with self._lock:
                    # The first to be forgotten are those that nobody has used for longest.
                    self._recipes.pop(token, None)
                    self._recipes[token] = recipe
                present[token] = new
                revived = True
        return revived
