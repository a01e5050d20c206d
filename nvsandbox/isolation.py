# SPDX-License-Identifier: Apache-2.0
"""The isolation ladder: which steps there are, and which can be tried here."""

from __future__ import annotations

from nvsandbox._core import lib

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
    """This process's effective capabilities as a bit mask, or None without ``/proc``."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("CapEff:"):
                    return int(line.split()[1], 16)
    except (OSError, ValueError, IndexError):
        pass
    return None


def has_sys_admin() -> bool:
    """Whether this process may make mount namespaces. True where ``/proc`` does not tell: trying it does."""
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
