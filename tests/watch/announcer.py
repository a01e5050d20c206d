# SPDX-License-Identifier: Apache-2.0
"""A kernel that announces what a test wants.

In a network namespace of its own a thread hands the kernel a uevent, which the kernel then announces there, and nowhere
else, as its own (since 4.18): to a listener it is no different from a GPU's.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import host

import nvsandbox

CLONE_NEWNET = 0x40000000
NETLINK_KOBJECT_UEVENT = 15
KERNEL = (0, 0)
EVERYBODY = (0, 1)

GPU = {"SUBSYSTEM": "pci", "PCI_CLASS": "30200", "PCI_ID": "10DE:2330", "PCI_SLOT_NAME": "0000:65:00.0"}
GPU_PATH = "/devices/pci0000:60/0000:65:00.0"


def message(action: str, path: str, **properties: str) -> bytes:
    """A uevent as the kernel writes it."""
    lines = [f"{action}@{path}", f"ACTION={action}", f"DEVPATH={path}"]
    return "".join(f"{line}\0" for line in [*lines, *(f"{key}={value}" for key, value in properties.items())]).encode()


class Announcer:
    """Opens watches in its network namespace, and announces there. Usable as a context manager."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, initializer=host.unshare, initargs=(CLONE_NEWNET,))
        self._socket: socket.socket = self.call(socket.socket, socket.AF_NETLINK, socket.SOCK_DGRAM,
                                                NETLINK_KOBJECT_UEVENT)  # fmt: skip

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """What the function returns, in the thread that is in the namespace."""
        return self._thread.submit(function, *arguments, **options).result()

    def watch(self, **options: Any) -> nvsandbox.watch:
        watch: nvsandbox.watch = self.call(nvsandbox.watch, **options)
        return watch

    def announce(self, action: str, path: str, **properties: str) -> None:
        self.announce_raw(message(action, path, **properties))

    def announce_raw(self, data: bytes) -> None:
        self._socket.sendto(struct.pack("=IHHII", 16 + len(data), 16, 1, 0, 0) + data, KERNEL)

    def fake(self, data: bytes, to: tuple[int, int] = EVERYBODY) -> None:
        """Sends what only the kernel should."""
        self._socket.sendto(data, to)

    def close(self) -> None:
        self._socket.close()
        self._thread.shutdown()

    def __enter__(self) -> Announcer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
