# SPDX-License-Identifier: Apache-2.0
"""The pynvml API bound to a session, made from pynvml's own module.

pynvml's functions find NVML through the global ``nvmlLib``, a ``ctypes.CDLL``. A :class:`Library` takes its place.
For the object that a ``with`` block yields, pynvml's functions are rebuilt over globals of their own in which
``nvmlLib`` is that Library; classes, constants and exceptions are pynvml's own, so that ``except pynvml.NVMLError``
catches what the sandbox raises. Nothing here knows a single NVML function by name but nvmlInit and nvmlShutdown,
which are counted.
"""

from __future__ import annotations

import ctypes
import functools
import os
import types
from collections.abc import Callable
from typing import Any, Protocol

import pynvml

from nvsandbox import _fast, copies, plans, threads
from nvsandbox.errors import SandboxClosed, nvml_error
from nvsandbox.weakly import Weakly

_NVML_ERROR_UNINITIALIZED = 1
_NVML_ERROR_UNKNOWN = 999

_BLOCK_ENDED = "the nvml_isolated() block that this belongs to has ended; open a new one"


class Caller(Protocol):
    """What a Library needs of a session."""

    def has_function(self, name: str) -> bool: ...
    def call(self, name: str, arguments: tuple[Any, ...], returns_string: bool) -> Any: ...
    def hint(self) -> str: ...


class Function:
    """Stands for a function of NVML, as a ctypes function object would: ``restype``, ``argtypes`` and ``errcheck``
    work."""

    def __init__(self, library: Library, name: str) -> None:
        self._library = library
        self.__name__ = name
        self.restype: Any = ctypes.c_int
        self.argtypes: Any = None
        self.errcheck: Callable[[Any, Any, tuple[Any, ...]], Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        given = arguments
        if self.argtypes:
            arguments = self._converted(arguments)
        result = self._library._call(self.__name__, arguments, self.restype is ctypes.c_char_p)
        restype = self.restype
        if restype is None:
            result = None
        elif restype is not ctypes.c_int and restype is not ctypes.c_char_p:
            # A C integer of another width or sign, or a callable of the caller's.
            result = restype(result).value if isinstance(restype, type) else restype(result)
        if self.errcheck is not None:
            return self.errcheck(result, self, given)
        return result

    def _converted(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        types_ = tuple(self.argtypes)
        if len(arguments) < len(types_):
            raise TypeError(
                f"this function takes at least {len(types_)} argument{'s' if len(types_) != 1 else ''} "
                f"({len(arguments)} given)"
            )
        converted = []
        for value, kind in zip(arguments, types_, strict=False):
            if isinstance(value, int | bytes) and issubclass(kind, ctypes.c_int.__mro__[1]):
                value = kind(value)
            converted.append(value)
        return (*converted, *arguments[len(types_) :])

    def __repr__(self) -> str:
        return f"<{self.__name__} in the sandbox>"


_libraries: Weakly[Library] = Weakly()


class Library:
    """Takes the place of pynvml's ``nvmlLib``: NVML's functions as attributes, AttributeError for those that it lacks.

    NVML is initialised as long as the session lives. nvmlInit and nvmlShutdown of a user of this Library are counted
    here: a shutdown that is one too many is NVML_ERROR_UNINITIALIZED and takes nothing from anybody else.
    """

    def __init__(self, session: Caller, link: _fast.Link | None = None) -> None:
        self._session = session
        self._link = link
        self._scopes: list[dict[str, Any]] = []  # the globals of functions that are bound to this
        self._inits: list[None] = []  # one for each; and not a number with a lock, for signal handlers call NVML too
        self._closed = False
        # Has the dictionary made that __getattr__ puts functions into, while nobody else has this object. Python 3.11
        # makes it when it is first asked for, and may collect garbage in the middle, which lets other threads run: two
        # that came at that moment made one each, which held the same references, to be freed twice. Python 3.10 has it
        # from the first attribute on, and from 3.12 on no allocation collects.
        vars(self)
        _libraries.add(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvml"):
            self._check_open(name)
            if self._session.has_function(name):
                function = self.__dict__[name] = self.function(name)
                return function
        raise AttributeError(f"the NVML library has no symbol {name!r}")

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def function(self, name: str) -> Any:
        """A function of NVML, whether the library has it or not."""
        function = Function(self, name)
        if self._link is not None and plans.eligible(name):
            return _fast.Function(name, function, self._link)
        return function

    def _check_open(self, name: str) -> None:
        if self._closed:
            raise SandboxClosed(f"{name}: {_BLOCK_ENDED}")

    def _call(self, name: str, arguments: tuple[Any, ...], returns_string: bool) -> Any:
        self._check_open(name)
        if name.startswith("nvmlInit"):
            result = self._session.call(name, arguments, returns_string)
            if result == 0:
                self._inits.append(None)
            return result
        if name == "nvmlShutdown":
            try:
                self._inits.pop()
            except IndexError:
                return _NVML_ERROR_UNINITIALIZED
        result = self._session.call(name, arguments, returns_string)
        if result == _NVML_ERROR_UNKNOWN:
            self._session.hint()  # logs it: plain pynvml's exception has no place for it
        return result

    def _close(self) -> None:
        """Ends this Library, and gives back the initialisations that its users have not."""
        if self._closed:
            return
        self._closed = True
        for name, function in list(self.__dict__.items()):
            if isinstance(function, _fast.Function | Function):
                del self.__dict__[name]
                if isinstance(function, _fast.Function):
                    function.forget()
        scopes, self._scopes = self._scopes, []
        for scope in scopes:
            _end(scope)
        while self._inits:
            try:
                self._inits.pop()
                self._session.call("nvmlShutdown", (), False)
            except (IndexError, pynvml.NVMLError):
                break


_PYNVML = vars(pynvml)


def _rebind(
    function: types.FunctionType, scope: dict[str, Any], done: dict[int, types.FunctionType]
) -> types.FunctionType:
    """`function` over `scope` as its globals; what it closes over and wraps (pynvml's decorators do) too."""
    known = done.get(id(function))
    if known is not None:
        return known
    closure = None
    if function.__closure__ is not None:
        cells = []
        for cell in function.__closure__:
            inner = copies.original(cell.cell_contents, function.__globals__)
            cells.append(cell if inner is None else types.CellType(_rebind(inner, scope, done)))
        closure = tuple(cells)
    rebound = types.FunctionType(function.__code__, scope, function.__name__, function.__defaults__, closure)
    rebound.__kwdefaults__ = function.__kwdefaults__
    rebound.__doc__ = function.__doc__
    rebound.__module__ = function.__module__
    rebound.__qualname__ = function.__qualname__
    if function.__dict__:  # else none is made, for hundreds of functions
        rebound.__dict__.update({key: value for key, value in function.__dict__.items() if key != "__wrapped__"})
        wrapped = copies.original(function.__dict__.get("__wrapped__"), function.__globals__)
        if wrapped is not None:
            rebound.__dict__["__wrapped__"] = _rebind(wrapped, scope, done)  # has the signature, for help() and mocks
    done[id(function)] = rebound
    return rebound


def _end(scope: dict[str, Any]) -> None:
    """Takes the functions out of a block's globals. They refer to each other through these: some hundred kilobytes for
    each block, which would otherwise lie about until the garbage collector comes to them."""
    for name, value in list(scope.items()):
        if isinstance(value, types.FunctionType) and value.__globals__ is scope:
            scope[name] = _ended(name)
    # A function that somebody has kept comes here first, and says which one it is.
    scope["_nvmlGetFunctionPointer"] = _no_pointer


def _no_pointer(name: str) -> Any:
    raise SandboxClosed(f"{name}: {_BLOCK_ENDED}")


@functools.cache
def _ended(name: str) -> Callable[..., Any]:
    """What stands in the place of the function `name` after its block."""

    def ended(*arguments: Any, **named: Any) -> Any:
        raise SandboxClosed(f"{name}: {_BLOCK_ENDED}")

    ended.__name__ = name
    return ended


def _check_return(library: Library) -> Callable[[int], int]:
    """pynvml's ``_nvmlCheckReturn``, with a hint at what is behind an Unknown Error."""

    def check(ret: int) -> int:
        if ret == _NVML_ERROR_UNKNOWN:
            hint = library._session.hint()
            if hint:
                raise nvml_error(ret, hint)
        if ret != 0:
            raise pynvml.NVMLError(ret)
        return ret

    return check


class _Pointers(dict[str, Any]):
    """The functions of `library` by name, as they have been asked for. Its ``__getitem__`` is in C, where pynvml's
    ``_nvmlGetFunctionPointer`` is Python and takes a third of a call; and it does without pynvml's lock, which nobody
    is to hold during a call to the worker (see routing.py)."""

    def __init__(self, library: Library) -> None:
        super().__init__()
        self._library = library

    def __missing__(self, name: str) -> Any:
        try:
            pointer = getattr(self._library, name)
        except AttributeError:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND) from None
        if isinstance(pointer, _fast.Function | Function):  # and not what stands there for a proof
            self[name] = pointer
        return pointer


def draft() -> types.ModuleType:
    """The pynvml API over globals of its own, for :func:`bind`: what takes time and needs no worker, and so can be
    done while one starts."""
    module = types.ModuleType("nvsandbox.nvml", "The pynvml API, bound to a sandbox.")
    scope = module.__dict__
    own = {name: value for name, value in scope.items() if name.startswith("__")}
    originals = copies.main()
    scope.update(originals)
    if originals is not _PYNVML:
        scope.update(_PYNVML)
    scope.update(own)
    done: dict[int, types.FunctionType] = {}
    for name, value in list(scope.items()):
        if (function := copies.original(value, originals)) is not None:
            scope[name] = _rebind(function, scope, done)
    return module


def bind(module: types.ModuleType, library: Library, session: object) -> types.ModuleType:
    """Binds the functions of a :func:`draft` to `library`; ``session`` in it is the session."""
    scope = module.__dict__
    library._scopes.append(scope)
    scope["nvmlLib"] = library
    scope["libLoadLock"] = threads.RLock()
    scope["_nvmlLib_refcount"] = 0
    scope["_nvmlGetFunctionPointer"] = _Pointers(library).__getitem__
    scope["_nvmlCheckReturn"] = _check_return(library)
    scope["session"] = session
    return module


def namespace(library: Library, session: object) -> types.ModuleType:
    """Both in one."""
    return bind(draft(), library, session)


def _after_fork_in_child() -> None:
    # A thread that does not exist here may hold any of these; pynvml holds its own while it looks a symbol up.
    for library in _libraries:
        for scope in library._scopes:
            scope["libLoadLock"] = threads.RLock()


os.register_at_fork(after_in_child=_after_fork_in_child)
