# SPDX-License-Identifier: Apache-2.0
"""The GPUs on the PCI bus, who drives them, and whether the driver has them all."""

from __future__ import annotations

import os
from collections.abc import Iterator

from nvsandbox import driverfacts
from nvsandbox.doctor import driver
from nvsandbox.doctor.findings import Finding
from nvsandbox.doctor.places import Places, names, read

_NVIDIA = 0x10DE
_DISPLAY = 0x03  # the PCI base class of VGA and 3D controllers


def on_the_bus(places: Places) -> dict[str, str]:
    """PCI addresses of NVIDIA's GPUs, and the driver that has each ("" for none).

    Source: ``/sys/bus/pci/devices`` of Linux.
    """
    base = f"{places.sys}/bus/pci/devices"
    found = {}
    for address in names(base):
        vendor, kind = (read(f"{base}/{address}/{file}") for file in ("vendor", "class"))
        if vendor is None or kind is None:
            continue
        if int(vendor, 16) == _NVIDIA and int(kind, 16) >> 16 == _DISPLAY:
            try:
                found[address.lower()] = os.path.basename(os.readlink(f"{base}/{address}/driver"))
            except OSError:
                found[address.lower()] = ""
    return found


def listed(places: Places) -> dict[str, int | None]:
    """The GPUs of the kernel driver: PCI address to minor number, None where that is not said."""
    minors = {bus: minor for minor, bus in driverfacts.read(places.proc).gpus.items()}
    return {bus.lower(): minors.get(bus) for bus in names(f"{places.proc}/driver/nvidia/gpus")}


def _held(address: str, holder: str) -> Finding | None:
    """A GPU that NVIDIA's driver does not have, by what has it."""
    facts = {"driver": holder}
    if holder.startswith("vfio"):
        return Finding(
            "gpu.vfio",
            f"GPU {address} is passed through to virtual machines ({holder}): NVML does not see it",
            "nothing, if that is meant; ask for it no more often than for others",
            about=address,
            facts=facts,
        )
    if holder in ("nouveau", "nova", "nova_core"):
        return Finding(
            "driver.nouveau",
            f"GPU {address} is driven by {holder}, which has no NVML",
            f"blacklist {holder} and load NVIDIA's driver",
            about=address,
            facts=facts,
        )
    if holder != "nvidia":
        return Finding(
            "gpu.unclaimed",
            f"GPU {address} has {'no driver' if not holder else 'the driver ' + holder}",
            "bind it to NVIDIA's driver (see the kernel log for why it refused it: unsupported, or no memory windows)",
            about=address,
            facts=facts,
        )
    return None


def gpus(places: Places) -> Iterator[Finding]:
    """Bus, driver and its list against each other."""
    bus, known = on_the_bus(places), listed(places)
    if not bus and not known:
        if not driver.is_wsl(places):
            yield Finding(
                "gpu.none",
                "there is no NVIDIA GPU on the PCI bus",
                "on a virtual machine, see whether a GPU is passed to it; simulated ones need none (--simulate h100x8)",
            )
        return
    good = 0
    for address, holder in bus.items():
        held = _held(address, holder)
        if held is not None:
            yield held
        elif address in known:
            good += 1
        elif driver.kernel_version(places) is not None:
            yield Finding(
                "gpu.lost",
                f"GPU {address} is bound to NVIDIA's driver, which does not list it: its set-up failed",
                "see the kernel log for it (dmesg | grep -i -e nvrm -e xid)",
                about=address,
            )
    for address in sorted(known.keys() - bus.keys()) if bus else ():
        yield Finding(
            "gpu.lost",
            f"the driver lists GPU {address}, which is not on the PCI bus any more",
            "see the kernel log for XID 79; a reset of the machine brings it back",
            about=address,
        )
    if good and good == len(bus):
        yield Finding("gpu.all-driven", f"{good} GPU{'s' * (good != 1)} on the PCI bus, all in the driver's list")
    yield from _numbering(known)


def _numbering(known: dict[str, int | None]) -> Iterator[Finding]:
    by_bus = [minor for _, minor in sorted(known.items())]
    if any(minor is not None and minor != index for index, minor in enumerate(by_bus)):
        yield Finding(
            "gpu.numbering",
            f"NVML's indexes and the numbers of /dev/nvidiaN differ: in PCI order the nodes are {by_bus}",
            "name GPUs by UUID; devices= and --devices take minor numbers",
            facts={"minors": dict(sorted(known.items()))},
        )
