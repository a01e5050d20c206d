# SPDX-License-Identifier: Apache-2.0
"""The cases of cases.py that concern the driver, GPUs, libraries and nodes."""

from __future__ import annotations

from typing import Any

from nvsandbox.doctor import Finding, verdict

from .cases import case, found_in, only


@case("driver.loaded")
def open_driver(machine: Any) -> list[Finding]:
    machine.driver(kind="NVIDIA UNIX Open Kernel Module for x86_64")
    found = found_in(machine)
    assert only(found, "driver.loaded").facts == {"version": "550.54.15", "open": True}
    return found


@case("driver.not-loaded")
def no_driver(machine: Any) -> None:
    machine.no_driver()


@case("driver.not-live")
def going(machine: Any) -> list[Finding]:
    machine.file("proc/devices", "Character devices:\n  1 mem\n")
    assert "/proc/devices" in only(found_in(machine), "driver.not-live").what
    machine.file("sys/module/nvidia/initstate", "going\n")
    return found_in(machine)


@case("driver.nouveau")
def nouveau(machine: Any) -> None:
    machine.no_driver()
    machine.off_the_bus("0000:65:00.0")
    machine.gpu("0000:65:00.0", None, "nouveau")


@case("driver.wsl")
def wsl(machine: Any) -> list[Finding]:
    machine.no_driver()
    machine.off_the_bus("0000:65:00.0")
    machine.file("proc/sys/kernel/osrelease", "5.15.153.1-microsoft-standard-WSL2\n")
    assert "missing" in only(found_in(machine), "driver.wsl").what
    machine.file("dev/dxg", "")
    found = found_in(machine)
    # None of what would be wrong elsewhere is.
    assert not [finding for finding in found if finding.severity in ("warning", "error")]
    return found


@case("driver.creates-nodes")
def creates_nodes(machine: Any) -> None:
    machine.file("proc/driver/nvidia/params", "ModifyDeviceFiles: 1\n")


@case("driver.setuid-modprobe")
def modprobe(machine: Any) -> list[Finding]:
    helper = machine.file("usr/bin/nvidia-modprobe", "#!/bin/sh\n")
    helper.chmod(0o755)
    assert "driver.setuid-modprobe" not in {finding.id for finding in found_in(machine)}
    helper.chmod(0o4755)
    return found_in(machine)


@case("driver.other-root")
def other_root(machine: Any) -> list[Finding]:
    machine.no_library()
    machine.library("run/nvidia/driver/usr/lib64/libnvidia-ml.so.1", inside="550.54.15")
    found = found_in(machine)
    assert verdict(found).first[0].startswith("driver.other-root: --driver-root /run/nvidia/driver")
    return found


@case("driver.in-container")
def another_tree(machine: Any) -> None:
    machine.library("run/nvidia/driver/usr/lib64/libnvidia-ml.so.1", inside="550.54.15")


@case("driver.fabric-manager")
def fabric_manager(machine: Any) -> list[Finding]:
    machine.file("proc/driver/nvidia-nvswitch/devices/0000:05:00.0", "")
    machine.file("proc/77/comm", "nv-fabricmanage\n")  # the kernel keeps fifteen characters
    assert "driver.fabric-manager" not in {finding.id for finding in found_in(machine)}
    machine.file("proc/77/comm", "bash\n")
    return found_in(machine)


@case("gpu.none")
def no_gpu(machine: Any) -> None:
    machine.no_driver()
    machine.off_the_bus("0000:65:00.0")


@case("gpu.vfio")
def vfio(machine: Any) -> list[Finding]:
    machine.gpu("0000:66:00.0", None, "vfio-pci")
    found = found_in(machine)
    assert only(found, "gpu.vfio").about == "0000:66:00.0"
    return found


@case("gpu.unclaimed")
def unclaimed(machine: Any) -> list[Finding]:
    machine.gpu("0000:66:00.0", None, "")
    found = found_in(machine)
    assert only(found, "gpu.unclaimed").about == "0000:66:00.0"
    return found


@case("gpu.lost")
def lost(machine: Any) -> list[Finding]:
    machine.gpu("0000:66:00.0", None)
    machine.gpu("0000:67:00.0", 1)
    machine.off_the_bus("0000:67:00.0")
    found = found_in(machine)
    assert [finding.about for finding in found if finding.id == "gpu.lost"] == ["0000:66:00.0", "0000:67:00.0"]
    return found


@case("gpu.numbering")
def numbering(machine: Any) -> list[Finding]:
    machine.gpu("0000:65:00.0", 2)
    machine.gpu("0000:66:00.0", 0)
    machine.gpu("0000:67:00.0", 5)
    found = found_in(machine)
    assert list(only(found, "gpu.numbering").facts["minors"].values()) == [2, 0, 5]
    return found


@case("library.found")
def alternatives(machine: Any) -> list[Finding]:
    """By Debian's alternatives alone, which are absolute links, with nothing but .so.1 at their end."""
    machine.no_library()
    machine.library("usr/lib/nvidia/current/libnvidia-ml.so.1", inside="550.54.15")
    machine.link(f"usr/lib/{machine.triplet}/libnvidia-ml.so.1", "/etc/alternatives/glx--libnvidia-ml.so.1")
    machine.link("etc/alternatives/glx--libnvidia-ml.so.1", "/usr/lib/nvidia/current/libnvidia-ml.so.1")
    found = found_in(machine)
    one = only(found, "library.found")
    assert one.facts["version"] == "550.54.15"
    assert "alternatives" in one.what
    return found


@case("library.not-found")
def no_library(machine: Any) -> list[Finding]:
    machine.options["library"] = str(machine.folder / "none.so")
    (one,) = [finding for finding in found_in(machine) if finding.id.startswith("library.")]
    assert "none.so" in one.what
    del machine.options["library"]
    machine.no_library()
    return found_in(machine)


@case("library.unusable")
def unusable(machine: Any) -> list[Finding]:
    machine.library("usr/lib64/libnvidia-ml.so.1", bits=1)
    machine.library("usr/lib/libnvidia-ml.so.1", machine=243)
    machine.file("usr/local/nvidia/lib64/libnvidia-ml.so.1", "INPUT(libnvidia-ml.so)")
    found = [finding for finding in found_in(machine) if finding.id == "library.unusable"]
    problems = [finding.what.removeprefix(f"{finding.about} ") for finding in found]
    assert [problem[:16] for problem in problems] == ["is a 32-bit libr", "is for another p", "is not a shared "]
    return found


@case("library.stub")
def stub(machine: Any) -> list[Finding]:
    machine.library("usr/local/cuda/lib64/stubs/libnvidia-ml.so.1")
    machine.changed["environment"] = {"LD_LIBRARY_PATH": "/usr/local/cuda/lib64/stubs:relative"}
    found = found_in(machine)
    assert "library.unusable" not in {finding.id for finding in found}
    assert "stubs" not in only(found, "library.found").about
    return found


@case("library.several")
def several(machine: Any) -> list[Finding]:
    """The second is one that only the loader's configuration leads to."""
    machine.file("etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n")
    machine.file("etc/ld.so.conf.d/old.conf", "# left over\n/opt/old\n")
    machine.library("opt/old/libnvidia-ml.so.535.161.07")
    machine.link("opt/old/libnvidia-ml.so.1", "libnvidia-ml.so.535.161.07")
    found = found_in(machine)
    assert "535.161.07" in only(found, "library.several").what
    return found


@case("library.mismatch")
def mismatch(machine: Any) -> list[Finding]:
    machine.driver("550.90.07")
    found = found_in(machine)
    assert only(found, "library.mismatch").facts == {"library": "550.54.15", "kernel": "550.90.07"}
    return found


@case("nodes.clean")
def clean(machine: Any) -> list[Finding]:
    machine.node("dev/nvidiactl", 195, 255)
    machine.node("dev/nvidia0", 195, 0)
    found = found_in(machine)
    assert only(found, "nodes.clean").facts == {"nodes": 2}
    return found


@case("nodes.unwanted")
def polluted(machine: Any) -> list[Finding]:
    """The driver is in a container, with its library; NVML has left a copy of its nodes on the host."""
    machine.no_library()
    for path, minor in (("nvidiactl", 255), ("nvidia0", 0)):
        machine.node(f"run/nvidia/driver/dev/{path}", 195, minor)
    machine.node("dev/nvidiactl", 195, 255)
    found = found_in(machine)
    assert "nodes.wrong" not in {finding.id for finding in found}
    assert list(only(found, "nodes.unwanted").facts["nodes"]) == ["nvidiactl"]
    assert verdict(found).dev_is_clean is False
    return found


@case("nodes.wrong")
def wrong(machine: Any) -> list[Finding]:
    """Those of a dev root that is named."""
    machine.node("driver/dev/nvidia0", 195, 7)
    machine.options["dev_root"] = str(machine.folder / "driver")
    found = found_in(machine)
    assert verdict(found).dev_is_clean is True
    return found


@case("nodes.no-mig")
def no_mig(machine: Any) -> list[Finding]:
    machine.node("dev/nvidiactl", 195, 255)
    machine.node("dev/nvidia0", 195, 0)
    text = "DeviceFileMinor: 12\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
    machine.file("proc/driver/nvidia/capabilities/gpu0/mig/gi1/access", text)
    assert "nodes.no-mig" not in {finding.id for finding in found_in(machine)}
    machine.file("proc/driver/nvidia/params", "ModifyDeviceFiles: 0\n")
    found = found_in(machine)
    assert only(found, "nodes.no-mig").facts == {"capabilities": ["gpu0/mig/gi1/access"]}
    machine.node("dev/nvidia-caps/nvidia-cap12", 510, 12, 0o444)
    assert "nodes.no-mig" not in {finding.id for finding in found_in(machine)}
    return found
