# SPDX-License-Identifier: Apache-2.0
"""The copies of pynvml in this process: where functions look for the library, whatever module they are called by.

There may be several: the package ``pynvml`` up to 11.5.3 has its functions in ``pynvml.nvml`` and re-exports them,
other packages bring copies of their own (py3nvml, vendored ones), and a module that was removed from ``sys.modules``
and imported again is two. What a function uses are its ``__globals__``, so these are what is looked for, never a name
of a module.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator
from typing import Any

import pynvml

from nvsandbox.errors import SandboxUnavailable

Scope = dict[str, Any]

_NEEDED = (
    "nvmlLib",
    "libLoadLock",
    "_nvmlLib_refcount",
    "_nvmlCheckReturn",
    "_nvmlGetFunctionPointer",
    "_nvmlGetFunctionPointer_cache",
)
_OURS = (  # what nvsandbox's own code uses, and old versions do not have
    "NVMLError_ArgumentVersionMismatch",
    "NVML_FI_DEV_MEMORY_TEMP",
    "NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    "c_nvmlComputeInstance_t",
    "c_nvmlGpuInstance_t",
)
_LIBRARY = "libnvidia-ml"
_INSTALL = "pip uninstall pynvml; pip install --force-reinstall nvidia-ml-py"


def unwrapped(value: Any) -> types.FunctionType | None:
    """The function behind functools.wraps(); None where there is none."""
    for _ in range(8):
        if type(value) is not types.FunctionType:  # which has no subclasses; asked thousands of times for each block
            return None
        inner = value.__dict__.get("__wrapped__")
        if inner is None:
            return value
        value = inner
    return None


def original(value: Any, scope: Scope) -> types.FunctionType | None:
    """The function of pynvml, whose globals are `scope`, behind `value`, which another library may have replaced by a
    wrapper of its own."""
    for _ in range(8):
        if type(value) is not types.FunctionType:  # which has no subclasses; asked 2500 times for each block
            return None
        if value.__globals__ is scope:
            return value
        value = getattr(value, "__wrapped__", None)
    return None


def _loads(code: types.CodeType) -> bool:
    """Whether this code, or a function in it, names the library's file."""
    return any(
        constant.startswith(_LIBRARY)
        if isinstance(constant, str)
        else isinstance(constant, types.CodeType) and _loads(constant)
        for constant in code.co_consts
    )


def _scope_of(function: types.FunctionType) -> Scope | None:
    """The globals of what loads the library when `function`, an nvmlInit, is called; None if it loads none itself."""
    seen: set[int] = set()
    waiting = [function]
    while waiting:
        one = waiting.pop()
        if id(one.__code__) in seen:
            continue
        seen.add(id(one.__code__))
        if _loads(one.__code__):
            return one.__globals__
        called = (unwrapped(one.__globals__.get(name)) for name in one.__code__.co_names)
        waiting += [each for each in called if each is not None]
    return None


def scope_in(names: Scope) -> Scope | None:
    """The globals of the copy of pynvml that a module with these names is, or has functions of."""
    loader = names.get("_LoadNvmlLibrary")
    if type(loader) is types.FunctionType:
        return loader.__globals__
    function = unwrapped(names.get("nvmlInit"))
    return None if function is None else _scope_of(function)


def found() -> list[Scope]:
    """All that the modules of this process have; the first is ``pynvml``'s own.

    Raises SandboxUnavailable, naming the module, where one could not be bound.
    """
    scopes = [main()]
    for module in list(sys.modules.values()):  # thousands, in some programs
        names = module.__dict__ if type(module) is types.ModuleType else _names_of(module)
        if "nvmlInit" in names:
            _add(scopes, names)
        if "pynvml" in names:  # one that was taken out of sys.modules, but is in use
            _add(scopes, _names_of(names["pynvml"]))
    return scopes


def _names_of(module: Any) -> Scope:
    try:
        # Not getattr: that would load what importlib.util.LazyLoader has put off.
        names = object.__getattribute__(module, "__dict__")
    except (AttributeError, TypeError):  # anything may stand in sys.modules
        return {}
    return names if type(names) is dict else {}


def _add(scopes: list[Scope], names: Scope) -> None:
    scope = scope_in(names)
    if scope is not None and not any(scope is known for known in scopes):
        check(scope, str(scope.get("__name__")))
        scopes.append(scope)


def main() -> Scope:
    """The copy that ``pynvml`` is. Raises SandboxUnavailable where it cannot be bound."""
    present = sys.modules.get("pynvml", pynvml)
    if not isinstance(present, types.ModuleType):
        raise SandboxUnavailable(
            f"sys.modules['pynvml'] is {present!r}, no module: plain pynvml calls cannot be sent to the sandbox as "
            f"long as it is there (is it a test's mock? Simulated GPUs need none: nvsandbox.testing.simulated())"
        )
    scope = scope_in(vars(pynvml))
    if scope is None:
        raise SandboxUnavailable(
            f"{described('pynvml')} has no nvmlInit that loads NVML, so that its calls cannot be sent to the sandbox: "
            f"{_INSTALL}"
        )
    check(scope, "pynvml")
    return scope


def check(scope: Scope, module: str) -> None:
    """Raises SandboxUnavailable where the functions of `scope`, found in `module`, cannot be bound."""
    missing = [name for name in _NEEDED if name not in scope]
    if missing:
        remedy = _INSTALL if module == "pynvml" else "have it use nvidia-ml-py, or run the program by `nvsandbox run`"
        raise SandboxUnavailable(
            f"{described(module)} cannot be bound to the sandbox, and its calls would go past it: it lacks "
            f"{', '.join(missing)}, which nvidia-ml-py has; {remedy}"
        )


def check_for_commands() -> None:
    """Raises SandboxUnavailable where pynvml is too old for nvsandbox's own queries."""
    main()
    missing = [name for name in _OURS if not hasattr(pynvml, name)]
    if missing:
        raise SandboxUnavailable(
            f"{described('pynvml')} is too old for nvsandbox's own queries: it lacks {', '.join(missing)}; {_INSTALL}"
        )


def described(module: str) -> str:
    """A module in words: its name, file, and the distribution that brought it."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if not isinstance(file, str):
        return f"the module {module}"
    return f"the module {module} ({', '.join([file, *_distributions(file)])})"


def _distributions(file: str) -> Iterator[str]:
    """Those that have this file; looked up only where something is wrong, for it takes long."""
    import importlib.metadata

    for one in importlib.metadata.distributions():
        name = os.path.relpath(file, str(one.locate_file("")))
        if f"\n{name}," in f"\n{one.read_text('RECORD')}":
            yield f"of the distribution {one.name} {one.version}"


__all__ = ["Scope", "check", "check_for_commands", "described", "found", "main", "original", "scope_in", "unwrapped"]
