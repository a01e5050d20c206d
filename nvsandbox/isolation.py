# SPDX-License-Identifier: Apache-2.0
"""The isolation ladder: which steps there are, and which can be tried here."""

from __future__ import annotations

from nvsandbox._core import ffi, lib

LADDER = ("mount", "user", "guard")
CHOICES = ("auto", *LADDER)

CODES: dict[str, int] = {
    "mount": lib.NVS_ISOLATION_MOUNT,
    "user": lib.NVS_ISOLATION_USER,
    "guard": lib.NVS_ISOLATION_GUARD,
}

CAP_SYS_ADMIN = 21
CAP_MKNOD = 27


def effective_capabilities() -> int | None:
    """This thread's effective capabilities as a bit mask, or None where the kernel does not tell."""
    mask = ffi.new("uint64_t *")
    return None if lib.nvs_look_capabilities(mask) else int(mask[0])


def has_sys_admin() -> bool:
    """Whether this process may make mount namespaces. True where the kernel does not tell: trying it does."""
    mask = effective_capabilities()
    return mask is None or bool(mask >> CAP_SYS_ADMIN & 1)


def steps(isolation: str) -> tuple[str, ...]:
    """The steps of the ladder to try for an ``isolation=`` option, in order."""
    if isolation == "auto":
        return LADDER if has_sys_admin() else LADDER[1:]
    return (isolation,)


REMEDIES = {
    "mount": (
        "isolation='mount' needs CAP_SYS_ADMIN, which this process does not have: run as root, add SYS_ADMIN to the "
        "container's capabilities, or use isolation='auto'"
    ),
    "user": "isolation='user' needs unprivileged user namespaces",
    "guard": "isolation='guard' needs seccomp",
}
