# SPDX-License-Identifier: Apache-2.0
"""How each finding is brought about: a healthy machine is spoilt in one way; or, where no stand-in can be spoilt so, by
what finds it. A case returns what was found, or None for what the whole examination finds."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nvsandbox import doctor
from nvsandbox.doctor import Finding, Places, ladder, nodes, package, privileges, query, verdict
from nvsandbox.errors import SandboxStartError
from nvsandbox.options import Options

SYS_ADMIN, MKNOD = 1 << 21, 1 << 27
ALL = 0x1FFFFFFFFFF

Case = Callable[[Any], "list[Finding] | None"]
CASES: dict[str, Case] = {}


def case(id_: str) -> Callable[[Case], Case]:
    def add(spoil: Case) -> Case:
        assert id_ not in CASES
        CASES[id_] = spoil
        return spoil

    return add


def found_in(machine: Any) -> list[Finding]:
    return list(doctor.examine(machine.places()).findings)


def only(found: list[Finding], id_: str) -> Finding:
    (one,) = [finding for finding in found if finding.id == id_]
    return one


def climbed(machine: Any, *refused: str) -> list[Finding]:
    """The ladder, with these steps refused."""

    def attempt(options: Options, step: str) -> SandboxStartError | None:
        return SandboxStartError("mount namespace", errno.EPERM, "", "refused") if step in refused else None

    return list(ladder.tried(machine.places(live=True), attempt))


def as_is(machine: Any) -> None:
    pass


for healthy in ("system.kernel", "gpu.all-driven", "package.whole"):
    case(healthy)(as_is)


@case("isolation.possible")
def every_step(machine: Any) -> list[Finding]:
    found = climbed(machine)
    assert [finding.about for finding in found] == ["mount", "user", "guard"]
    return found


@case("isolation.refused")
def no_mount(machine: Any) -> list[Finding]:
    machine.status(ALL & ~SYS_ADMIN)
    found = climbed(machine, "mount")
    assert "SYS_ADMIN" in found[0].do
    assert (found[0].about, found[0].facts["errno"]) == ("mount", errno.EPERM)
    assert verdict(found).isolation == "user"
    return found


@case("isolation.only-guard")
def guard_alone(machine: Any) -> list[Finding]:
    machine.file("proc/sys/user/max_user_namespaces", "0\n")
    found = climbed(machine, "mount", "user")
    assert "user.max_user_namespaces=10000" in found[-1].do
    assert verdict(found).isolation == "guard"
    return found


@case("isolation.none")
def no_step(machine: Any) -> list[Finding]:
    found = climbed(machine, "mount", "user", "guard")
    assert verdict(found).isolation is None
    return found


@case("isolation.no-cap-sys-admin")
def no_sys_admin(machine: Any) -> list[Finding]:
    machine.status(0, uid=1000)
    assert only(found_in(machine), "isolation.no-cap-sys-admin").do.startswith("run as root")
    machine.status(ALL & ~SYS_ADMIN, bounding=ALL & ~SYS_ADMIN)
    found = found_in(machine)
    assert "--cap-add SYS_ADMIN" in only(found, "isolation.no-cap-sys-admin").do
    return found


@case("isolation.no-cap-mknod")
def no_mknod(machine: Any) -> None:
    machine.status(ALL & ~MKNOD)


@case("isolation.not-inherited")
def capabilities_of_a_user(machine: Any) -> list[Finding]:
    machine.status(SYS_ADMIN | MKNOD, uid=1000, CapAmb=f"{SYS_ADMIN | MKNOD:016x}")
    assert "isolation.not-inherited" not in {finding.id for finding in found_in(machine)}
    machine.status(SYS_ADMIN | MKNOD, uid=1000)
    return found_in(machine)


@case("isolation.securebits")
def no_root(machine: Any) -> list[Finding]:
    assert not list(privileges.judge_securebits(1, 1000))
    assert not list(privileges.judge_securebits(0, 0))
    return list(privileges.judge_securebits(1, 0))


@case("isolation.no-new-privs")
def no_new_privs(machine: Any) -> None:
    machine.status(ALL, NoNewPrivs="1")


@case("isolation.seccomp")
def filtered(machine: Any) -> None:
    machine.status(ALL, Seccomp="2", Seccomp_filters="3")


@case("isolation.lsm")
def confined(machine: Any) -> list[Finding]:
    machine.file("proc/self/attr/current", "unconfined\n")
    assert "isolation.lsm" not in {finding.id for finding in found_in(machine)}
    machine.file("proc/self/attr/current", "system_u:system_r:container_t:s0:c1,c2\0")
    assert "SELinux" in only(found_in(machine), "isolation.lsm").what
    machine.file("proc/self/attr/current", "containers-default-0.57.4 (enforce)\n")
    assert "AppArmor" in only(found_in(machine), "isolation.lsm").what
    return found_in(machine)


@case("isolation.userns-disabled")
def sysctls(machine: Any) -> list[Finding]:
    machine.file("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "0\n")
    machine.file("proc/sys/kernel/unprivileged_userns_clone", "0\n")
    found = found_in(machine)
    assert only(found, "isolation.userns-disabled").about == "kernel.unprivileged_userns_clone"
    return found


# ---- the system


@case("system.old-kernel")
def old_kernel(machine: Any) -> None:
    machine.file("proc/sys/kernel/osrelease", "4.18.0-553.el8_10.x86_64\n")


@case("system.no-landlock")
def no_landlock(machine: Any) -> None:
    machine.changed["landlock_abi"] = 0


@case("system.memfd-noexec")
def memfd_noexec(machine: Any) -> None:
    machine.file("proc/sys/vm/memfd_noexec", "2\n")


@case("system.container")
def in_a_container(machine: Any) -> list[Finding]:
    machine.file("proc/self/cgroup", "0::/\n")
    machine.changed["environment"] = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert only(found_in(machine), "system.container").facts == {"kind": "kubernetes"}
    machine.file("run/.containerenv", "")
    machine.changed["environment"] = {"container": "podman"}
    assert only(found_in(machine), "system.container").facts == {"kind": "podman"}
    machine.file("proc/self/cgroup", "0::/kubepods.slice/cri-containerd-0123.scope\n")
    return found_in(machine)


@case("system.pid-namespace")
def pid_namespace(machine: Any) -> None:
    machine.link("proc/self/ns/pid", "pid:[4026532871]")


@case("system.cgroup")
def cgroup(machine: Any) -> None:
    machine.file("proc/self/cgroup", "5:devices:/pod\n0::/\n")
    machine.file("sys/fs/cgroup/devices/pod/devices.list", "c 1:3 rwm\nc 195:* rw\n")


@case("system.device-rules")
def device_rules(machine: Any) -> None:
    machine.file("proc/self/cgroup", "5:devices:/pod\n0::/\n")
    machine.file("sys/fs/cgroup/devices/devices.list", "c 1:3 rwm\nc 5:* rwm\n")


@case("system.one-cpu")
def one_cpu(machine: Any) -> None:
    machine.changed["cpus"] = 1


@case("system.cpu-quota")
def cpu_quota(machine: Any) -> list[Finding]:
    machine.file("sys/fs/cgroup/cpu.max", "max 100000\n")
    assert "system.cpu-quota" not in {finding.id for finding in found_in(machine)}
    machine.file("sys/fs/cgroup/cpu.max", "20000 100000\n")
    assert only(found_in(machine), "system.cpu-quota").facts == {"cpus": 0.2}
    (machine.folder / "sys/fs/cgroup/cpu.max").unlink()
    machine.file("proc/self/cgroup", "2:cpu,cpuacct:/pod\n")
    machine.file("sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us", "50000\n")
    return found_in(machine)


# ---- nvsandbox itself, and NVML in its sandbox


@case("package.mixed")
def mixed(machine: Any) -> list[Finding]:
    program = machine.file("package/nvsandbox-worker", "#!/bin/sh\necho nvsandbox-worker 0.0.9\n")
    program.chmod(0o755)
    machine.changed["package"] = str(program.parent)
    found = list(package.installation(machine.places()))
    assert found[0].facts["nvsandbox-worker"] == "0.0.9"
    return found


@case("package.worker")
def worker_program(machine: Any) -> list[Finding]:
    program = machine.file("package/nvsandbox-worker", "#!/bin/sh\nexit 1\n")
    machine.changed["package"] = str(program.parent)

    def found() -> Iterator[Finding]:
        return package.installation(machine.places())

    program.chmod(0o755)
    assert "status 1" in next(found()).what
    program.chmod(0o644)
    not_executable = next(found())
    assert "chmod" in not_executable.do
    program.unlink()
    assert next(found()).do == "install nvsandbox anew"
    return [not_executable]


@case("package.unbound-pynvml")
def unbound_pynvml(machine: Any) -> list[Finding]:
    machine.changed["unbound"] = "the module pynvml (/x, of the distribution pynvml 8.0.4) cannot; pip uninstall pynvml"
    found = found_in(machine)
    assert only(found, "package.unbound-pynvml").do == "pip uninstall pynvml"
    return found


@case("package.old-pynvml")
def old_pynvml(machine: Any) -> list[Finding]:
    machine.changed["distributions"] = {"pynvml": "13.0.1"}
    assert "package.old-pynvml" not in {finding.id for finding in found_in(machine)}
    machine.changed["distributions"] = {"pynvml": "11.5.3"}
    return found_in(machine)


@case("package.optional")
def optional(machine: Any) -> list[Finding]:
    machine.changed["distributions"] = {"pyroute2": "0.9.4"}
    found = found_in(machine)
    assert only(found, "package.optional").about == "python-prctl"
    return found


def ask(wait: float = 20, enough: bool = False, **options: Any) -> list[Finding]:
    return list(query.query(Places(options=Options(**options), live=True), wait, enough=enough))


@case("query.works")
def answers(machine: Any) -> list[Finding]:
    found = ask(simulate="h100x3,garbage=1")
    assert only(found, "query.works").facts["gpus"] == 3
    assert verdict(found).can_query is True
    return found


@case("query.simulated")
def simulated(machine: Any) -> list[Finding]:
    machine.options["simulate"] = "h100"
    machine.no_driver()
    assert "driver.not-loaded" not in {finding.id for finding in found_in(machine)}
    return ask(simulate="h100")


@case("query.skipped")
def not_asked(machine: Any) -> list[Finding]:
    machine.no_driver()
    return list(query.query(machine.places(live=True), 1))


@case("query.slow")
def slow(machine: Any) -> list[Finding]:
    found = ask(wait=0.1, simulate="h100,init_ms=500")
    assert verdict(found).can_query is None
    return found


@case("query.hung")
def answers_too_late(machine: Any) -> list[Finding]:
    """The same where the user has said how long it may take."""
    found = ask(wait=0.1, enough=True, simulate="h100,init_ms=500")
    assert verdict(found).can_query is None
    assert verdict(found).first[0].startswith("query.hung: ")
    return found


@case("query.failed")
def fails(machine: Any) -> list[Finding]:
    found = ask(simulate="h100,crash=nvmlSystemGetDriverVersion")
    assert verdict(found).can_query is False
    assert only(found, "query.failed").facts == {"type": "WorkerDied"}
    assert "the kernel log" in only(found, "query.failed").do
    return found


@case("query.gpu-failed")
def one_is_lost(machine: Any) -> list[Finding]:
    found = ask(simulate="h100x4,lost=1")
    assert only(found, "query.gpu-failed").about == "1"
    assert only(found, "query.works").facts["gpus"] == 3
    return found


@case("doctor.unexamined")
def unreadable(machine: Any) -> list[Finding]:
    """A folder where a file of the kernel's should be."""
    (machine.folder / "proc/sys/kernel/osrelease").unlink()
    (machine.folder / "proc/sys/kernel/osrelease").mkdir()
    found = found_in(machine)
    assert "the kernel" in {finding.about for finding in found if finding.id == "doctor.unexamined"}
    assert "library.found" in {finding.id for finding in found}  # the other checks went on
    return found


def of_the_first_driver(machine: Any) -> Places:
    """The stand-in's driver is that of the memory devices: opening a node that nothing serves is then answered by
    the kernel without looking for a module."""
    machine.file("proc/devices", "Character devices:\n  1 nvidia\n")
    places: Places = machine.places(live=True)
    return places


@case("nodes.cannot-open")
def cannot_open(machine: Any) -> list[Finding]:
    path = machine.node("dev/nvidia0", 1, 200)
    machine.node("dev/nvidia1", 195, 1)  # which no driver serves here: not opened
    (one,) = nodes.openable(of_the_first_driver(machine))
    assert one.about == path
    assert one.facts["errno"] in (errno.ENXIO, errno.EACCES)  # EACCES where the folder is mounted nodev
    return [one]


@case("nodes.hang")
def hangs(machine: Any) -> list[Finding]:
    """As if the open did not return; test_here.py has one that really does not."""
    path = machine.node("dev/nvidia0", 1, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nodes, "_OPENER", "import time; time.sleep(60)")
        patch.setattr(nodes, "_LIMIT", 0.1)
        found = list(nodes.openable(of_the_first_driver(machine)))
    assert [finding.about for finding in found] == [path]
    return found
