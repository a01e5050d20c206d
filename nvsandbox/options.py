# SPDX-License-Identifier: Apache-2.0
"""The options of a sandbox: their defaults, from the environment too, and their validation."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nvsandbox import isolation as ladder
from nvsandbox import pci, restarts
from nvsandbox import simulate as simulation
from nvsandbox._core import lib

TRANSPORTS = ("auto", "shm", "pipe")

_UUID = re.compile(r"GPU-[0-9a-fA-F-]{8,}")
_NODE = re.compile(r"(?:/dev/)?nvidia([0-9]+)")


@dataclass(frozen=True)
class Recycle:
    """When a worker is replaced: after so many calls, or at so much resident memory; one of the two."""

    calls: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Options:
    """What a sandbox is started with. Equal options share a worker."""

    driver_root: str = "/"
    dev_root: str | None = None
    library: str | None = None
    isolation: str = "auto"
    devices: tuple[int | str, ...] | None = None
    privileged: bool = False
    timeout: float | None = 30.0
    restart: bool | int = restarts.DEFAULT
    transport: str = "auto"
    simulate: str | None = None
    recycle_after: Recycle | None = None


def _wrong(name: str, value: object, expected: str) -> ValueError:
    return ValueError(f"{name}={value!r}: expected {expected}")


def _wrong_type(name: str, value: object, expected: str) -> TypeError:
    return TypeError(f"{name}={value!r} is of type {type(value).__name__}: expected {expected}")


def _path(name: str, value: object, what: str) -> str:
    if not isinstance(value, str | os.PathLike):
        raise _wrong_type(name, value, f"a path, {what}")
    path = os.fspath(value)
    if not isinstance(path, str):
        path = os.fsdecode(path)
    if not path or "\0" in path:
        raise _wrong(name, value, f"a path, {what}")
    try:
        os.fsencode(path)
        return os.path.abspath(path)
    except UnicodeEncodeError:
        raise _wrong(name, value, f"a path, {what}, in characters that file names can have") from None
    except FileNotFoundError:
        raise _wrong(
            name, value, f"a path, {what}; a relative one means nothing here: the working directory is gone"
        ) from None


def _folder(name: str, value: object, what: str) -> str:
    path = _path(name, value, what)
    if not os.path.isdir(path):
        problem = "is not a folder" if os.path.exists(path) else "does not exist"
        raise ValueError(f"{name}={path!r} {problem}: expected {what}")
    return path


def _driver_root(value: object) -> str:
    return _folder(
        "driver_root", value, "the root of the tree that holds NVIDIA's driver, such as '/' or '/run/nvidia/driver'"
    )


def _dev_root(value: object) -> str | None:
    if value is None:
        return None
    return _folder("dev_root", value, "the root whose dev/ holds the NVIDIA nodes, such as '/' or '/run/nvidia/driver'")


def _library(value: object) -> str | None:
    return None if value is None else _path("library", value, "the file to load as libnvidia-ml.so.1")


def _one_of(name: str, choices: tuple[str, ...]) -> Callable[[object], str]:
    def check(value: object) -> str:
        if not isinstance(value, str) or value not in choices:
            raise _wrong(name, value, f"one of {', '.join(map(repr, choices))}")
        return value

    return check


def _flag(name: str) -> Callable[[object], bool]:
    def check(value: object) -> bool:
        if not isinstance(value, bool):
            raise _wrong_type(name, value, "True or False")
        return value

    return check


def _device(value: object) -> int | str:
    expected = (
        "device minor numbers (0 for /dev/nvidia0), node names ('nvidia0'), UUIDs ('GPU-…') or PCI bus ids "
        "('0000:65:00.0')"
    )
    if isinstance(value, bool):
        raise _wrong_type("devices", value, expected)
    if isinstance(value, int):
        if not 0 <= value < 250:  # 254 and 255 are nvidia-modeset and nvidiactl
            raise _wrong("devices", value, f"{expected}; a minor number is 0 to 249")
        return value
    if isinstance(value, str):
        node = _NODE.fullmatch(value)
        if node:
            return _device(int(node[1]))
        if value.isascii() and value.isdigit():
            return _device(int(value))
        if _UUID.fullmatch(value) or pci.address(value) is not None:
            return value
    raise _wrong("devices", value, expected)


def _devices(value: object) -> tuple[int | str, ...] | None:
    if value is None:
        return None
    if isinstance(value, str | bytes | int) or not isinstance(value, Iterable):
        raise _wrong_type("devices", value, "a list, such as [0, 2] or ['GPU-…'], or None for all")
    chosen = tuple(sorted({_device(item) for item in value}, key=str))
    if len(chosen) > lib.NVS_DEVICES_MAX:
        raise _wrong("devices", f"{len(chosen)} devices", f"at most {lib.NVS_DEVICES_MAX}")
    return chosen


def _timeout(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong_type("timeout", value, "seconds, or None for no limit")
    if not value > 0:
        raise _wrong("timeout", value, "seconds above 0, or None for no limit")
    # What goes beyond a float (an int can) is no limit either.
    return None if value > sys.float_info.max else float(value)


def _restart(value: object) -> bool | int:
    if isinstance(value, bool):
        # Not True, which Python takes for 1: that would be equal to one restart in a minute, and share its worker.
        return restarts.DEFAULT if value else False
    if not isinstance(value, int):
        raise _wrong_type("restart", value, "True, False, or how many restarts are allowed in a minute")
    if not 0 < value <= 1_000_000:
        raise _wrong("restart", value, "True, False, or how many restarts are allowed in a minute (1 to 1000000)")
    return value


_SIZE = re.compile(r"([0-9]{1,12})(KiB|MiB|GiB)")


def _recycle_after(value: object) -> Recycle | None:
    expected = "a number of calls, an amount of resident memory such as '256MiB', or None"
    if value is None or isinstance(value, Recycle):
        return value
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise _wrong_type("recycle_after", value, expected)
    if isinstance(value, int):
        if value < 1:
            raise _wrong("recycle_after", value, expected)
        return Recycle(calls=value)
    if value.isascii() and value.isdigit():
        return _recycle_after(int(value))
    size = _SIZE.fullmatch(value)
    if size is None or int(size[1]) == 0:
        raise _wrong("recycle_after", value, expected)
    return Recycle(memory_bytes=int(size[1]) << {"KiB": 10, "MiB": 20, "GiB": 30}[size[2]])


def _simulate(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise _wrong_type("simulate", value, "a description such as 'h100x8', or None")
    return simulation.parse(value).text


_CHECKS: dict[str, Callable[[object], Any]] = {
    "driver_root": _driver_root,
    "dev_root": _dev_root,
    "library": _library,
    "isolation": _one_of("isolation", ladder.CHOICES),
    "devices": _devices,
    "privileged": _flag("privileged"),
    "timeout": _timeout,
    "restart": _restart,
    "transport": _one_of("transport", TRANSPORTS),
    "simulate": _simulate,
    "recycle_after": _recycle_after,
}


def _env_flag(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError("expected 1 or 0")


def _env_restart(text: str) -> bool | int:
    if text.isascii() and text.isdigit() and text not in ("0", "1"):
        return int(text)
    try:
        return _env_flag(text)
    except ValueError:
        raise ValueError("expected 1, 0, or how many restarts are allowed in a minute") from None


def _env_timeout(text: str) -> float | None:
    try:
        return None if text.lower() == "none" else float(text)
    except ValueError:
        raise ValueError("expected seconds, such as 5, or none for no limit") from None


_ENVIRONMENT: dict[str, tuple[tuple[str, ...], Callable[[str], object]]] = {
    "driver_root": (("NVSANDBOX_DRIVER_ROOT", "NVIDIA_DRIVER_ROOT"), str),
    "dev_root": (("NVSANDBOX_DEV_ROOT",), str),
    "library": (("NVSANDBOX_LIBRARY",), str),
    "isolation": (("NVSANDBOX_ISOLATION",), str),
    "devices": (("NVSANDBOX_DEVICES",), lambda text: text.split(",")),
    "privileged": (("NVSANDBOX_PRIVILEGED",), _env_flag),
    "timeout": (("NVSANDBOX_TIMEOUT",), _env_timeout),
    "restart": (("NVSANDBOX_RESTART",), _env_restart),
    "transport": (("NVSANDBOX_TRANSPORT",), str),
    "simulate": (("NVSANDBOX_SIMULATE",), str),
    "recycle_after": (("NVSANDBOX_RECYCLE_AFTER",), str),
}

# DRA drivers and operators set it for all their containers, and mean the host's.
_HOST_ROOT = (
    "; in a container this variable is often a path on the host: say with NVSANDBOX_DRIVER_ROOT where that root is "
    "mounted here"
)


def _from_environment(name: str, environment: Mapping[str, str]) -> tuple[bool, object]:
    variables, convert = _ENVIRONMENT[name]
    for variable in variables:
        text = environment.get(variable, "")
        if text:
            try:
                return True, _CHECKS[name](convert(text))
            except (ValueError, TypeError) as error:
                remedy = _HOST_ROOT if variable == "NVIDIA_DRIVER_ROOT" else ""
                raise ValueError(f"environment variable {variable}={text!r}: {error}{remedy}") from None
    return False, None


def make(given: Mapping[str, object], environment: Mapping[str, str] | None = None) -> Options:
    """Options from keyword arguments, with defaults from the environment for those that are not given.

    Raises TypeError for an unknown option or a value of the wrong type and ValueError for a wrong value; the message
    names the value, what was expected and where it came from.
    """
    environment = os.environ if environment is None else environment
    unknown = set(given) - set(_CHECKS)
    if unknown:
        raise TypeError(f"unknown option {sorted(unknown)[0]!r}: expected one of {', '.join(_CHECKS)}")
    values: dict[str, Any] = {}
    for name, check in _CHECKS.items():
        if name in given:
            values[name] = check(given[name])
        else:
            # What the caller chose in code decides: a library of its own is not simulated because the environment
            # says so.
            if name == "simulate" and given.get("library") is not None:
                continue
            if name == "library" and given.get("simulate") is not None:
                continue
            present, value = _from_environment(name, environment)
            if present:
                values[name] = value
    options = Options(**values)
    if options.simulate is not None and options.library is not None:
        raise ValueError(
            f"simulate={options.simulate!r} and library={options.library!r} are mutually exclusive: the simulator is a "
            f"library of its own"
        )
    for device in options.devices or ():
        # They would be looked up in the driver's /proc, which knows nothing of simulated GPUs.
        if options.simulate is not None and isinstance(device, str):
            raise ValueError(
                f"devices={device!r}: with simulate={options.simulate!r} expected device minor numbers, which are the "
                f"GPUs' indexes unless minors= says otherwise"
            )
    if options.simulate is not None and options.devices is not None:
        minors = [device for device in options.devices if isinstance(device, int)]
        try:
            simulation.parse(options.simulate).with_minors(minors)
        except ValueError as error:
            raise ValueError(f"devices={minors}: {error}") from None
    return options
