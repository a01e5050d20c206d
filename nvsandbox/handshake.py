# SPDX-License-Identifier: Apache-2.0
"""What a start says to the worker, and the caller's own proof that the worker is isolated."""

from __future__ import annotations

import errno
import os
from typing import Any

from nvsandbox import packets, roots, simulate
from nvsandbox._core import ffi, lib
from nvsandbox.errors import LibraryNotFound, SandboxStartError
from nvsandbox.native import text
from nvsandbox.options import Options
from nvsandbox.process import PROGRAM


def device_minors(options: Options) -> list[int] | None:
    """The minor numbers of ``devices``, None for all."""
    if options.devices is None:
        return None
    minors = []
    for device in options.devices:
        if isinstance(device, int):
            minors.append(device)
            continue
        minor = roots.device_minor(device)
        if minor is None:
            raise SandboxStartError(
                "devices",
                errno.ENODEV,
                "/proc/driver/nvidia/gpus",
                f"devices={device!r} is not listed by the driver; minor numbers (0 for /dev/nvidia0) always work",
            )
        minors.append(minor)
    return minors


def simulated(options: Options, minors: list[int] | None) -> str | None:
    """The simulator's description, less the GPUs that ``devices`` hides."""
    if options.simulate is None or minors is None:
        return options.simulate
    return simulate.parse(options.simulate).with_minors(minors)


def _libraries(options: Options) -> list[str]:
    if options.simulate is not None:
        return [str(simulate.parse(options.simulate).library)]
    if options.library is not None:
        return [options.library]
    found, looked = roots.library_candidates(options.driver_root)
    if not found:
        raise LibraryNotFound(
            errno.ENOENT,
            options.driver_root,
            f"none was found under driver_root={options.driver_root!r}; is NVIDIA's driver installed there?",
            tuple(f"{path}: does not exist" for path in looked),
        )
    return found


def start_message(options: Options, isolation: str, minors: list[int] | None, description: str | None) -> bytes:
    """START."""
    return packets.start(options, isolation, minors, description, _libraries(options))


def check_version(report: Any) -> None:
    # The worker compares too. Each side does, for the other may be the one that is too old to.
    ours, theirs = text(lib.nvs_core_version()), text(report.build)
    if theirs != ours or report.protocol != lib.NVS_PROTOCOL_VERSION:
        raise SandboxStartError(
            "hello",
            errno.EPROTO,
            str(PROGRAM),
            f"the worker is of version {theirs} (protocol {report.protocol}), its caller of version {ours} "
            f"(protocol {lib.NVS_PROTOCOL_VERSION}): files of two installations are mixed, so reinstall nvsandbox",
        )


_TMPFS_MAGIC = 0x01021994  # linux/magic.h


def verify(report: Any, pid: int, isolation: str) -> None:
    """The parent's own proof of the isolation, from the kernel and not from the worker: another mount namespace
    than ours, a tmpfs of its own on its /dev, no_new_privs and seccomp."""
    status = _status(pid)
    # Without a /proc that knows the worker there is its word alone, which is enough for guard and no more.
    own_proc = status.get(b"PPid") == str(os.getpid()).encode()
    if isolation != "guard":
        _verify_namespace(pid, own_proc)
    if (
        report.seccomp_mode != 2
        or report.no_new_privs != 1
        or (own_proc and (status.get(b"NoNewPrivs", b"1"), status.get(b"Seccomp", b"2")) != (b"1", b"2"))
    ):
        raise SandboxStartError("verification", 0, "", "the worker runs without seccomp or no_new_privs")


def _verify_namespace(pid: int, own_proc: bool) -> None:
    dev = f"/proc/{pid}/root/dev"  # as a path of the worker's leads there
    try:
        theirs = os.stat(f"/proc/{pid}/ns/mnt")
        ours = os.stat("/proc/self/ns/mnt")
        type_ = _file_system(dev)
        own_dev = os.stat(dev).st_dev != _device("/dev")
    except OSError as error:
        raise SandboxStartError(
            "verification",
            error.errno or 0,
            error.filename or "",
            "cannot see whether the worker is isolated; /proc must be mounted",
        ) from error
    if not own_proc:
        raise SandboxStartError(
            "verification",
            0,
            f"/proc/{pid}",
            "this is another process than the worker: /proc is of another pid namespace than this process; mount "
            "one of its own",
        )
    if (theirs.st_ino, theirs.st_dev) == (ours.st_ino, ours.st_dev):
        raise SandboxStartError(
            "verification", 0, f"/proc/{pid}/ns/mnt", "the worker is in this process's mount namespace"
        )
    if type_ != _TMPFS_MAGIC:
        raise SandboxStartError(
            "verification", 0, dev, f"the worker's /dev is no tmpfs (its file system is of type {type_:#x})"
        )
    if not own_dev:
        raise SandboxStartError("verification", 0, dev, "the worker's /dev is this process's own")


def _status(pid: int) -> dict[bytes, bytes]:
    """What the kernel says of the worker; nothing without ``/proc``."""
    try:
        with open(f"/proc/{pid}/status", "rb", buffering=0) as file:
            lines = (file.read() or b"").splitlines()
    except OSError:
        return {}
    return {key: value.strip() for key, _, value in (line.partition(b":") for line in lines)}


def _file_system(path: str) -> int:
    type_ = ffi.new("uint64_t *")
    err = lib.nvs_look_file_system(os.fsencode(path), type_)
    if err:
        raise OSError(err, os.strerror(err), path)
    return int(type_[0])


def _device(path: str) -> int | None:
    """The number of the file system that `path` is on, None if there is no such path."""
    try:
        return os.stat(path).st_dev
    except OSError:
        return None
