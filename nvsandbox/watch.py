# SPDX-License-Identifier: Apache-2.0
"""GPUs and drivers that come and go, as the kernel announces them (uevents).

pyroute2 makes the socket; it is imported when a watch is opened. Reading is done here, for three reasons: pyroute2's
readers do not tell who sent a message, are dead after an overflow, and answer only the thread that made them.
"""

from __future__ import annotations

import enum
import errno
import fcntl
import logging
import math
import os
import select
import socket
import threading
import time
import weakref
from dataclasses import dataclass, field
from typing import Any

from nvsandbox.errors import SandboxClosed, SandboxError

_log = logging.getLogger("nvsandbox")

_FROM_THE_KERNEL = (0, 1)
"""Sender's port and multicast group. Port 0 is the kernel's: a socket of user space is given another one before its
first message leaves. Credentials would say less: a sender outside of our pid namespace has process id 0 there, and in a
user namespace without a root the kernel has user id 65534."""

_MESSAGE_MAX = 16384  # the kernel's limit is 2048 for the properties, and a path

_NVIDIA = "10DE"
_DISPLAY = 0x03  # PCI base class: VGA and 3D controllers, not a card's audio function

_MODULES = frozenset({"nvidia", "nvidia_drm", "nvidia_modeset", "nvidia_peermem", "nvidia_uvm", "nvidia_vgpu_vfio"})

_READ_AT_MOST = 1024
"""Messages that a call reads after its time is up, so that a flood of others' cannot hold it."""

_NS_GET_USERNS = 0xB701
_INITIAL_USER_NAMESPACE = 0xEFFFFFFD  # its inode number, fixed in the kernel's sources


class WatchKind(str, enum.Enum):
    """What has happened."""

    __module__ = "nvsandbox"

    GPU_ADDED = "gpu added"
    GPU_REMOVED = "gpu removed"
    GPU_BOUND = "gpu bound"
    GPU_UNBOUND = "gpu unbound"
    DRIVER_LOADED = "driver loaded"
    DRIVER_UNLOADED = "driver unloaded"
    NODE_ADDED = "node added"
    NODE_REMOVED = "node removed"
    OVERFLOW = "overflow"

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class WatchEvent:
    """One thing that has happened.

    kind: what; ``OVERFLOW`` means that messages were lost, so that everything is to be listed anew.
    time: when it was read, as ``time.monotonic()`` gives it.
    bus_id: of a GPU, as the kernel writes it (``0000:65:00.0``); NVML takes it too.
    driver: the kernel driver that took the GPU (``nvidia``, ``vfio-pci``), or the module (``nvidia``, ``nvidia_uvm``).
    node: path of a device node, and ``minor`` its minor number.
    synthetic: nothing has happened, somebody asked the kernel to announce what is there (``udevadm trigger`` does).
    properties: the kernel's message.
    """

    __module__ = "nvsandbox"

    kind: WatchKind
    time: float
    bus_id: str | None = None
    driver: str | None = None
    node: str | None = None
    minor: int | None = None
    synthetic: bool = False
    properties: dict[str, str] = field(default_factory=dict, hash=False, repr=False)


def parse(message: bytes) -> dict[str, str] | None:
    """The properties of a uevent: ``ACTION@DEVPATH``, then ``KEY=VALUE`` each, all ended by a NUL. None for what is not
    one."""
    head, *pairs = message.split(b"\0")
    properties: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition(b"=")
        if key and equals:
            # The kernel's own come first, and what a device adds does not change them.
            properties.setdefault(key.decode(errors="backslashreplace"), value.decode(errors="backslashreplace"))
    action, path = properties.get("ACTION", ""), properties.get("DEVPATH", "")
    if not action or not path or f"{action}@{path}" != head.decode(errors="backslashreplace"):
        return None
    return properties


def _is_gpu(properties: dict[str, str]) -> bool:
    try:
        base_class = int(properties.get("PCI_CLASS", ""), 16) >> 16
    except ValueError:
        return False
    return properties.get("PCI_ID", "").upper().startswith(_NVIDIA + ":") and base_class == _DISPLAY


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdecimal() else None


_OF_A_GPU = {
    "add": WatchKind.GPU_ADDED,
    "remove": WatchKind.GPU_REMOVED,
    "bind": WatchKind.GPU_BOUND,
    "unbind": WatchKind.GPU_UNBOUND,
}
_OF_A_MODULE = {"add": WatchKind.DRIVER_LOADED, "remove": WatchKind.DRIVER_UNLOADED}
_OF_A_NODE = {"add": WatchKind.NODE_ADDED, "remove": WatchKind.NODE_REMOVED}


def classify(properties: dict[str, str]) -> dict[str, Any] | None:
    """What a uevent says, as arguments of WatchEvent; None where it is not about GPUs."""
    action, subsystem = properties["ACTION"], properties.get("SUBSYSTEM")
    if subsystem == "pci":
        if action in _OF_A_GPU and _is_gpu(properties):
            # At an unbind the kernel has forgotten the driver already.
            driver = properties.get("DRIVER") if action != "remove" else None
            return {"kind": _OF_A_GPU[action], "bus_id": properties.get("PCI_SLOT_NAME"), "driver": driver}
    elif subsystem == "module":
        name = properties["DEVPATH"].rpartition("/")[2]
        if action in _OF_A_MODULE and name in _MODULES:
            return {"kind": _OF_A_MODULE[action], "driver": name}
    elif properties.get("DEVNAME", "").startswith("nvidia") and "MAJOR" in properties and action in _OF_A_NODE:
        node = f"/dev/{properties['DEVNAME']}"
        return {"kind": _OF_A_NODE[action], "node": node, "minor": _number(properties.get("MINOR"))}
    return None


def _seconds(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(
            f"timeout={value!r} is of type {type(value).__name__}: expected seconds, or None to wait for ever"
        )
    if not value >= 0:
        raise ValueError(f"timeout={value!r}: expected seconds, 0 or more, or None to wait for ever")
    return None if math.isinf(value) else float(value)


def _refuse_where_nothing_arrives() -> None:
    """The kernel announces devices only to network namespaces that the initial user namespace owns (since 4.18), and
    says nothing to those who listen in another: they would wait for ever."""
    try:
        # Not /proc/self, which is the first thread.
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        owner = fcntl.ioctl(here, _NS_GET_USERNS)
    except OSError:
        return  # EPERM: owned from further out than we can see, as where only the user namespace is new
    finally:
        os.close(here)
    number = os.fstat(owner).st_ino
    os.close(owner)
    if number != _INITIAL_USER_NAMESPACE:
        raise SandboxError(
            "the kernel announces no devices in this network namespace, since it belongs to a user namespace of its "
            "own (those of rootless containers do, and of pods with hostUsers: false): run this with the host's "
            "network, or without a user namespace"
        )


def _open_socket() -> socket.socket:
    try:
        from pyroute2.netlink.uevent import MONITOR_GROUP_KERNEL, AsyncUeventSocket
    except ImportError as error:
        raise SandboxError(f"nvsandbox.watch needs pyroute2 0.9.4 or later: pip install pyroute2 ({error})") from error
    _refuse_where_nothing_arrives()
    try:
        # UeventSocket is this with an event loop run by hand, which is refused where one is running already. A copy
        # of the descriptor is the same socket, and outlives pyroute2's thread-bound owner.
        maker = AsyncUeventSocket()
        try:
            own = socket.socket(fileno=os.dup(maker.socket.fileno()))
        finally:
            maker.close()
        try:
            own.setblocking(False)
            own.bind((0, MONITOR_GROUP_KERNEL))
        except BaseException:
            own.close()
            raise
    except OSError as error:
        raise SandboxError(f"cannot listen to the kernel's uevents: {error.strerror} (errno {error.errno})") from error
    return own


class watch:  # noqa: N801 - used as a function
    """What happens to GPUs and their drivers from now on::

        with watch() as events:
            publish(list_gpus())
            for event in events:
                publish(list_gpus())

    An iterator of :class:`WatchEvent`, to be opened before the first listing, so that nothing is missed between
    the two. Needs no privileges. It may be closed from another thread, which ends the iteration; use from several
    threads divides the events among them. A forked child listens anew, with an OVERFLOW first.

    timeout: seconds to wait for each event; past them the iteration ends, and may be taken up again. None: no limit.

    Raises TypeError or ValueError for a wrong timeout and SandboxError where one cannot listen: without pyroute2, or
    in a network namespace where the kernel announces no devices.
    """

    _closed = True  # until it is open, for __del__

    def __init__(self, *, timeout: float | None = None) -> None:
        self._timeout = _seconds(timeout)
        self._lock = threading.RLock()  # a signal handler may close what it has interrupted
        self._readers = 0
        self._inherited = self._missed = False
        self._socket = _open_socket()
        try:
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except BaseException:
            self._socket.close()
            raise
        self._closed = False
        _watches.add(self)

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    def fileno(self) -> int:
        """A descriptor that is readable when something has happened, for selectors and event loops: then call
        ``get(0)`` until it gives None."""
        with self._lock:
            self._check()
            return self._socket.fileno()

    def get(self, timeout: float | None = None) -> WatchEvent | None:
        """The next event, or None where `timeout` seconds have passed without one. SandboxClosed once it is closed,
        also from another thread while this waits."""
        limit = _seconds(timeout)
        with self._lock:
            self._check()
            self._readers += 1
            if self._missed:
                self._missed = False
                self._readers -= 1
                return WatchEvent(WatchKind.OVERFLOW, time.monotonic())
        try:
            return self._wait(None if limit is None else time.monotonic() + limit)
        finally:
            with self._lock:
                self._readers -= 1
                if self._closed and self._readers == 0:
                    self._release()

    def close(self) -> None:
        """Ends the iteration, in all threads. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._readers:
                # The last of them closes the descriptors: their numbers must not be another file's meanwhile.
                os.eventfd_write(self._wake, 1)
            else:
                self._release()

    def __iter__(self) -> watch:
        return self

    def __next__(self) -> WatchEvent:
        try:
            event = self.get(self._timeout)
        except SandboxClosed:
            raise StopIteration from None
        if event is None:
            raise StopIteration
        return event

    def __enter__(self) -> watch:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._closed:
            self.close()

    # ---- inside

    def _release(self) -> None:
        self._socket.close()
        os.close(self._wake)

    def _check(self) -> None:
        """With the lock: that it is open, and in a forked child a socket of its own, for what parent and child read
        from one is divided between them."""
        if self._closed:
            raise SandboxClosed("this watch was closed")
        if self._inherited:
            own = _open_socket()
            os.dup2(own.fileno(), self._socket.fileno(), inheritable=False)  # users may have stored the number
            own.close()
            os.close(self._wake)
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._inherited = False
            self._missed = True

    def _wait(self, deadline: float | None) -> WatchEvent | None:
        poll = select.poll()
        poll.register(self._socket.fileno(), select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        late_reads = 0
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            late_reads += left == 0
            ready = poll.poll(None if left is None else math.ceil(min(left, 3600.0) * 1000))
            if self._closed:
                raise SandboxClosed("this watch was closed")
            if ready:
                event = self._read()
                if event is not None:
                    return event
            if left == 0 and (not ready or late_reads > _READ_AT_MOST):
                return None

    def _read(self) -> WatchEvent | None:
        try:
            message, _, flags, sender = self._socket.recvmsg(_MESSAGE_MAX)
        except BlockingIOError:  # another thread has it
            return None
        except OSError as error:
            if error.errno == errno.ENOBUFS:
                return WatchEvent(WatchKind.OVERFLOW, time.monotonic())
            raise SandboxError(f"cannot read uevents: {error.strerror} (errno {error.errno})") from error
        if sender != _FROM_THE_KERNEL:
            _log.debug("ignored a uevent that port %s sent, not the kernel", sender)
            return None
        if flags & socket.MSG_TRUNC:
            return WatchEvent(WatchKind.OVERFLOW, time.monotonic())
        properties = parse(message)
        facts = None if properties is None else classify(properties)
        if properties is None or facts is None:
            return None
        synthetic = "SYNTH_UUID" in properties
        return WatchEvent(time=time.monotonic(), synthetic=synthetic, properties=properties, **facts)


_watches: weakref.WeakSet[watch] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for one in list(_watches):
        one._lock = threading.RLock()  # a thread that does not exist here may hold it
        if one._closed and one._readers:
            one._release()
        one._readers = 0
        one._inherited = True


os.register_at_fork(after_in_child=_after_fork_in_child)

__all__ = ["WatchEvent", "WatchKind", "watch"]
