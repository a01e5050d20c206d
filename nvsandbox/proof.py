# SPDX-License-Identifier: Apache-2.0
"""The proof that a call goes to the sandbox, made when a block is entered.

That pynvml's globals were exchanged does not say that its functions use them. So one of its public functions is
called, for an answer that nobody but the block's Library can give, and that Library asks its worker, whose reply has
to be the worker's own. NVML has no part in it: nothing is counted, and a library that hangs does so in the first call.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nvsandbox import copies, threads
from nvsandbox.errors import SandboxUnavailable

if TYPE_CHECKING:
    import types

    from nvsandbox.bindings import Library

# Every pynvml has these, with a buffer first and its size after it, and asks for symbols of the same names. The second
# is for a program that has put something of its own in the place of the first, such as a test's mock.
_ASKED = ("nvmlSystemGetNVMLVersion", "nvmlSystemGetDriverVersion")


class _Expected:
    """Stands for a function of NVML in a Library, and gives the answer to the thread that expects it."""

    def __init__(self, library: Library, name: str, reply: bytes, ask: Callable[[], None] | None) -> None:
        self._library = library  # by which the caches of pointers know what is not to outlive the block
        self._name = name
        self._reply = reply
        self._ask = ask
        self._thread: int | None = threads.get_ident()

    def __call__(self, *arguments: Any) -> Any:
        if threads.get_ident() != self._thread:
            return self._library.function(self._name)(*arguments)
        if self._ask is not None:
            self._ask()
        arguments[0].value = self._reply
        return 0

    def end(self) -> None:
        self._thread = None


def _arrives(function: types.FunctionType, name: str, library: Library, ask: Callable[[], None] | None) -> bool:
    reply = f"nvsandbox {time.monotonic_ns():x}".encode()
    expected = _Expected(library, name, reply, ask)
    functions = vars(library)
    before = functions.get(name)
    functions[name] = expected
    try:
        return function() in (reply, reply.decode())
    finally:
        expected.end()
        if before is not None:
            functions[name] = before
        elif functions.get(name) is expected:
            del functions[name]


def _check(scope: copies.Scope, library: Library, ask: Callable[[], None] | None, what: Callable[[], str]) -> None:
    cause: Exception | None = None
    # Twice, for another thread that looks the same name up for the first time may come in between.
    for name in _ASKED * 2:
        function = copies.original(scope.get(name), scope)
        if function is None:
            continue
        try:
            if _arrives(function, name, library, ask):
                return
        except SandboxUnavailable:
            raise
        except Exception as error:
            if ask is not None:
                raise  # the worker's end, or a deadline
            cause = error
    getter: Any = scope.get("_nvmlGetFunctionPointer")
    raise SandboxUnavailable(
        f"a call of {what()} does not come to the sandbox: {' and '.join(_ASKED)} have been replaced, or go past it "
        f"(the module's _nvmlGetFunctionPointer is {getter!r} of {getattr(getter, '__module__', None)!r}); undo that "
        f"before nvsandbox is used, or run the program by `nvsandbox run`"
    ) from cause


def of_arrival(scope: copies.Scope, library: Library) -> None:
    """Raises SandboxUnavailable unless a call of this copy of pynvml comes to `library`."""
    _check(scope, library, None, lambda: copies.described(str(scope.get("__name__"))))


def of_worker(nvml: types.ModuleType, library: Library, ask: Callable[[], None]) -> None:
    """The same for what a block yields, and that `ask` has an answer from the worker. Raises what that raises too."""
    _check(vars(nvml), library, ask, lambda: "the API that the block yields")
