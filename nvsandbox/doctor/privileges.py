# SPDX-License-Identifier: Apache-2.0
"""What this process may do: capabilities, no_new_privs, seccomp, Linux security modules."""

from __future__ import annotations

from collections.abc import Iterator

from nvsandbox.doctor.findings import Finding
from nvsandbox.doctor.places import Places, fields, read
from nvsandbox.isolation import CAP_MKNOD, CAP_SYS_ADMIN

_CAP_SETFCAP = 31
_SECURE_NOROOT = 1  # the first bit of securebits: an execve as root gives no capabilities; capabilities(7)


def status(places: Places) -> dict[str, str]:
    """The lines of this process's ``/proc/self/status``."""
    return fields(read(f"{places.proc}/self/status"))


def _sets(lines: dict[str, str]) -> dict[str, int]:
    """The capability sets as bit masks."""
    names = {"effective": "CapEff", "permitted": "CapPrm", "bounding": "CapBnd", "ambient": "CapAmb"}
    return {name: int(lines[key], 16) for name, key in names.items() if key in lines}


def may_mount(places: Places) -> bool:
    """Whether this process has CAP_SYS_ADMIN."""
    return bool(_sets(status(places)).get("effective", 0) >> CAP_SYS_ADMIN & 1)


def is_root_without_setfcap(places: Places) -> bool:
    """Whether this is root, and may not map itself into a user namespace; user_namespaces(7)."""
    lines = status(places)
    return lines.get("Uid", "").startswith("0") and not _sets(lines).get("effective", 0) >> _CAP_SETFCAP & 1


def _how_to_get(sets: dict[str, int], uid: int, capability: int, name: str) -> str:
    if not sets.get("bounding", 0) >> capability & 1:
        return f"give the container {name} (podman, docker: --cap-add {name}; a pod: capabilities.add: [{name}])"
    if uid != 0:
        return "run as root; the bounding set has the capability"
    return "the bounding set has it: whoever started this process dropped it"


def capabilities(places: Places) -> Iterator[Finding]:
    """What of the capabilities the steps of the ladder need is missing."""
    lines = status(places)
    sets = _sets(lines)
    if "effective" not in sets:
        raise ValueError("/proc/self/status has no line CapEff")
    uid = int(lines.get("Uid", "0").split()[1]) if lines.get("Uid") else 0
    facts = {name: f"{mask:016x}" for name, mask in sets.items()}
    effective = sets["effective"]
    if not effective >> CAP_SYS_ADMIN & 1:
        yield Finding(
            "isolation.no-cap-sys-admin",
            "this process lacks CAP_SYS_ADMIN, which isolation 'mount' needs",
            _how_to_get(sets, uid, CAP_SYS_ADMIN, "SYS_ADMIN"),
            facts=facts,
        )
    elif uid != 0 and not sets.get("ambient", 0) >> CAP_SYS_ADMIN & 1:
        yield Finding(
            "isolation.not-inherited",
            f"this process of user {uid} has CAP_SYS_ADMIN, and the programs that it starts will not",
            "put it into the ambient set (a pod cannot: run as root there), or run as root",
            facts=facts,
        )
    if effective >> CAP_SYS_ADMIN & 1 and not effective >> CAP_MKNOD & 1:
        yield Finding(
            "isolation.no-cap-mknod",
            "without CAP_MKNOD the sandbox binds the nodes that there are; those of MIG devices that are made while it "
            "runs stay out",
            _how_to_get(sets, uid, CAP_MKNOD, "MKNOD"),
            facts=facts,
        )


def securebits(places: Places) -> Iterator[Finding]:
    """Whether an execve as root gives capabilities. Only python-prctl tells, and only of this process."""
    if not places.live:
        return
    try:
        import prctl
    except ImportError:
        return  # package.optional says so
    yield from judge_securebits(int(prctl.get_securebits()), int(status(places).get("Uid", "0 0").split()[1]))


def judge_securebits(bits: int, uid: int) -> Iterator[Finding]:
    """What securebits mean for a worker that this user starts."""
    if uid == 0 and bits & _SECURE_NOROOT:
        yield Finding(
            "isolation.securebits",
            f"securebits are {bits:#x}: programs that root starts get no capabilities, the worker neither",
            "start nvsandbox without SECBIT_NOROOT (systemd: SecureBits=), or give it ambient capabilities",
            facts={"securebits": bits},
        )


def restrictions(places: Places) -> Iterator[Finding]:
    """no_new_privs and seccomp filters that this process runs under."""
    lines = status(places)
    if lines.get("NoNewPrivs") == "1":
        yield Finding(
            "isolation.no-new-privs",
            "no_new_privs is set: setuid programs (nvidia-modprobe) do nothing; the sandbox needs none",
        )
    if lines.get("Seccomp", "0") != "0":
        count = lines.get("Seccomp_filters", "1")
        yield Finding(
            "isolation.seccomp",
            f"this process runs under {count} seccomp filter(s), as containers have",
            "where a step of the ladder is refused although it has its capabilities, let the profile allow unshare, "
            "mount and umount2 (or run with it unconfined)",
            facts={"mode": int(lines["Seccomp"]), "filters": int(count)},
        )


def security_modules(places: Places) -> Iterator[Finding]:
    """The AppArmor profile or SELinux context of this process."""
    for path, module in (("apparmor/current", "AppArmor"), ("current", "")):
        try:
            text = (read(f"{places.proc}/self/attr/{path}") or "").strip("\0\n ")
        except OSError:  # EINVAL: no module answers
            continue
        if not text:
            continue
        name = module or ("SELinux" if text.count(":") >= 3 else "AppArmor")
        enforcing = read(f"{places.sys}/fs/selinux/enforce")
        if text == "unconfined" or "unconfined_t" in text or (name == "SELinux" and enforcing == "0"):
            return
        yield Finding(
            "isolation.lsm",
            f"{name} confines this process: {text}",
            "where mounting is refused although there is CAP_SYS_ADMIN, run it unconfined (a pod: "
            + ("appArmorProfile.type: Unconfined)" if name == "AppArmor" else "seLinuxOptions.type: spc_t)"),
            facts={"module": name, "context": text},
        )
        return


def user_namespaces(places: Places) -> Iterator[Finding]:
    """The sysctls that keep unprivileged users from making user namespaces."""
    for name, wrong, value, meaning in (
        ("user/max_user_namespaces", "0", "a number such as 10000", "no user namespaces at all"),
        ("user/max_mnt_namespaces", "0", "a number such as 10000", "no mount namespaces at all"),
        ("kernel/unprivileged_userns_clone", "0", "1", "none for unprivileged users"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "0", "only for programs whose AppArmor profile says so"),
    ):
        text = read(f"{places.proc}/sys/{name}")
        if text is None or text.strip() != wrong:
            continue
        sysctl = name.replace("/", ".")
        yield Finding(
            "isolation.userns-disabled",
            f"sysctl {sysctl} is {wrong}: {meaning}",
            f"for isolation 'user', sysctl -w {sysctl}={value.removeprefix('a number such as ')}",
            about=sysctl,
        )
