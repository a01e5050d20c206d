# SPDX-License-Identifier: Apache-2.0
"""Listening, to the kernel: what it announces arrives, what others say does not, and every wait ends."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import host
import pytest
from announcer import GPU, GPU_PATH, Announcer, message
from host import NOBODY, require
from waiting import forked, prompt

import nvsandbox
from nvsandbox import SandboxClosed, SandboxError, WatchEvent, WatchKind

module = importlib.import_module("nvsandbox.watch")
SOON = 20.0
"""Seconds within which what is announced must have arrived."""


def in_child(work: Callable[[], object]) -> None:
    """Runs it in a forked process."""
    pid = forked(work)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_gpu_comes_and_goes(kernel: Announcer) -> None:
    with kernel.watch(timeout=SOON) as events:
        begin = time.monotonic()
        kernel.announce("add", "/module/nvidia", SUBSYSTEM="module")
        kernel.announce("add", GPU_PATH, **GPU)
        kernel.announce("bind", GPU_PATH, DRIVER="nvidia", **GPU)
        kernel.announce("unbind", GPU_PATH, **GPU)
        kernel.announce("remove", GPU_PATH, **GPU)
        kernel.announce("remove", "/module/nvidia", SUBSYSTEM="module")
        found = [next(events) for _ in range(6)]
    assert [event.kind.name for event in found] == [
        "DRIVER_LOADED",
        "GPU_ADDED",
        "GPU_BOUND",
        "GPU_UNBOUND",
        "GPU_REMOVED",
        "DRIVER_UNLOADED",
    ]
    assert {event.bus_id for event in found[1:5]} == {"0000:65:00.0"}
    assert [event.driver for event in found] == ["nvidia", None, "nvidia", None, None, "nvidia"]
    assert not any(event.synthetic for event in found)
    assert found[1].properties["PCI_ID"] == "10DE:2330"
    assert "SEQNUM" in found[1].properties  # which the kernel adds
    assert begin <= found[0].time <= found[-1].time <= time.monotonic()


def test_others_messages_are_ignored(kernel: Announcer, caplog: pytest.LogCaptureFixture) -> None:
    with kernel.watch() as events, caplog.at_level("DEBUG", logger="nvsandbox"):
        with socket.socket(fileno=os.dup(events.fileno())) as same:
            port = same.getsockname()[0]
        fake = message("remove", GPU_PATH, **GPU)
        kernel.fake(fake)  # to the group
        kernel.fake(fake, (port, 0))  # to it alone
        kernel.announce("add", GPU_PATH, **GPU)
        event = events.get(SOON)
        assert event is not None
        assert event.kind is WatchKind.GPU_ADDED
        assert events.get(0.05) is None
    assert caplog.text.count("not the kernel") == 2


def test_rubbish_from_the_kernel_is_passed_over(kernel: Announcer) -> None:
    with kernel.watch() as events:
        for data in (b"", b"\0\0\0", b"\xff" * 300, b"add@", b"a" * 2048, os.urandom(512)):
            kernel.announce_raw(data)
        kernel.announce("add", GPU_PATH, **GPU)
        event = events.get(SOON)
        assert event is not None
        assert event.kind is WatchKind.GPU_ADDED


def test_a_real_device_announced_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through sysfs. What is written to a device's uevent file makes the kernel announce it, and changes nothing."""
    devices = [path for path in Path("/sys/bus/pci/devices").glob("*/uevent") if os.access(path, os.W_OK)]
    require(devices, "needs a PCI device whose uevent file may be written")
    device = devices[0]
    facts = dict(line.split("=", 1) for line in device.read_text().splitlines())
    monkeypatch.setattr(module, "_NVIDIA", facts["PCI_ID"].partition(":")[0])
    monkeypatch.setattr(module, "_DISPLAY", int(facts["PCI_CLASS"], 16) >> 16)
    ours = "11111111-2222-4333-8444-555555555555"
    with nvsandbox.watch(timeout=SOON) as events:
        device.write_text(f"add {ours} BY=test")
        event = next(event for event in events if event.properties.get("SYNTH_UUID") == ours)
    assert event.kind is WatchKind.GPU_ADDED
    assert event.bus_id == facts["PCI_SLOT_NAME"]
    assert event.synthetic
    assert event.properties["SYNTH_ARG_BY"] == "test"


def test_an_overflow_is_an_event_and_not_the_end(kernel: Announcer) -> None:
    with kernel.watch(timeout=SOON) as events:
        with socket.socket(fileno=os.dup(events.fileno())) as same:
            same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # the kernel makes this its least
        for _ in range(100):
            kernel.announce("add", GPU_PATH, **GPU)
        kinds = [next(events).kind]
        while (event := events.get(0.2)) is not None:
            kinds.append(event.kind)
        assert WatchKind.OVERFLOW in kinds
        assert len(kinds) < 100
        kernel.announce("remove", GPU_PATH, **GPU)
        assert next(events).kind is WatchKind.GPU_REMOVED


def test_what_is_announced_arrives_at_once(kernel: Announcer) -> None:
    with kernel.watch() as events:

        def seconds() -> float:
            begin = time.monotonic()
            kernel.announce("add", GPU_PATH, **GPU)
            assert events.get(SOON) is not None
            return time.monotonic() - begin

        prompt(seconds, 0.2)


def test_the_end_of_patience(kernel: Announcer) -> None:
    with kernel.watch(timeout=0.1) as events:

        def seconds() -> float:
            begin = time.monotonic()
            assert list(events) == []
            return time.monotonic() - begin

        assert seconds() >= 0.1
        prompt(seconds, 1)
        kernel.announce("add", GPU_PATH, **GPU)
        assert [event.kind for event in events] == [WatchKind.GPU_ADDED]  # it goes on
        assert events.get(0) is None


def test_what_does_not_matter_does_not_prolong_a_wait(kernel: Announcer) -> None:
    with kernel.watch(timeout=0.3) as events:
        stop = threading.Event()

        def chatter() -> None:
            while not stop.wait(0.01):
                kernel.announce("change", "/devices/x", SUBSYSTEM="net")

        def seconds() -> float:
            begin = time.monotonic()
            assert list(events) == []
            return time.monotonic() - begin

        thread = threading.Thread(target=chatter)
        thread.start()
        try:
            prompt(seconds, 2)
        finally:
            stop.set()
            thread.join()


def test_closing_ends_every_wait(kernel: Announcer) -> None:
    def seconds() -> float:
        events = kernel.watch()
        results: list[Any] = []

        def iterate() -> None:
            results.append(list(events))

        def get() -> None:
            try:
                events.get()
            except SandboxClosed:
                results.append("closed")

        threads = [threading.Thread(target=function) for function in (iterate, get) * 4]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
        assert not events.closed
        begin = time.monotonic()
        events.close()
        for thread in threads:
            thread.join(SOON)
        took = time.monotonic() - begin
        assert sorted(results, key=str) == [[]] * 4 + ["closed"] * 4
        events.close()
        assert events.closed
        assert list(events) == []
        for call in (events.get, events.fileno):
            with pytest.raises(SandboxClosed, match="watch was closed"):
                call()
        return took

    prompt(seconds, 1)


def test_one_that_is_forgotten_closes_itself(kernel: Announcer) -> None:
    before = host.descriptors()
    watch = kernel.watch()
    assert len(host.descriptors()) == len(before) + 2
    del watch
    assert host.descriptors() == before


def test_a_signal_handler_may_close_it(kernel: Announcer) -> None:
    events = kernel.watch()

    def close(number: int, frame: FrameType | None) -> None:
        events.close()

    old = signal.signal(signal.SIGALRM, close)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        assert list(events) == []
    finally:
        signal.signal(signal.SIGALRM, old)


def test_keyboard_interrupt_leaves_it(kernel: Announcer) -> None:
    with kernel.watch() as events:
        timer = threading.Timer(0.1, signal.pthread_kill, [threading.get_ident(), signal.SIGINT])

        def wait() -> None:
            timer.start()  # not before, for it may come at once
            next(events)

        with pytest.raises(KeyboardInterrupt):
            wait()
        timer.join()
        kernel.announce("add", GPU_PATH, **GPU)
        assert events.get(SOON) is not None


def test_threads_divide_the_events(kernel: Announcer) -> None:
    with kernel.watch() as events:
        seen: list[WatchEvent] = []
        threads = [threading.Thread(target=lambda: seen.extend(events)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for number in range(40):
            kernel.announce("add", GPU_PATH, **{**GPU, "PCI_SLOT_NAME": f"0000:{number:02x}:00.0"})
        end = time.monotonic() + SOON
        while len(seen) < 40 and time.monotonic() < end:
            time.sleep(0.01)
        events.close()
        for thread in threads:
            thread.join()
        assert len({event.bus_id for event in seen}) == len(seen) == 40


def test_in_an_event_loop(kernel: Announcer) -> None:
    """Opened and read in one."""

    async def main() -> WatchEvent | None:
        with nvsandbox.watch() as events:
            arrived = asyncio.Event()
            asyncio.get_running_loop().add_reader(events.fileno(), arrived.set)
            kernel.announce("add", GPU_PATH, **GPU)
            await asyncio.wait_for(arrived.wait(), SOON)
            asyncio.get_running_loop().remove_reader(events.fileno())
            return events.get(0)

    event = kernel.call(asyncio.run, main())
    assert event.kind is WatchKind.GPU_ADDED


def test_a_forked_child_listens_anew(kernel: Announcer) -> None:
    """Each of the two gets every event."""
    with kernel.watch() as events:
        told, tell = os.pipe()

        def child() -> None:
            number = events.fileno()
            os.write(tell, b"x")
            first, second = events.get(SOON), events.get(SOON)
            assert first is not None
            assert second is not None
            assert (first.kind, second.kind) == (WatchKind.OVERFLOW, WatchKind.GPU_ADDED)
            assert events.fileno() == number
            events.close()

        def announce() -> None:
            os.read(told, 1)
            kernel.announce("add", GPU_PATH, **GPU)

        # From the thread that is in the namespace, which is where the child then is.
        announcing = threading.Thread(target=announce)
        announcing.start()
        kernel.call(in_child, child)
        announcing.join()
        os.close(told)
        os.close(tell)
        event = events.get(SOON)
        assert event is not None
        assert event.kind is WatchKind.GPU_ADDED
        assert events.get(0) is None


def test_it_crosses_no_exec(kernel: Announcer) -> None:
    with kernel.watch() as events:
        assert not os.get_inheritable(events.fileno())


def test_without_privileges(kernel: Announcer) -> None:
    ready = select.epoll()

    def nobody() -> None:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        with nvsandbox.watch() as events:
            kernel._socket.close()  # the privileged one
            (release, announced) = (os.write(tell, b"x"), events.get(SOON))
            assert release == 1
            assert announced is not None
            assert announced.kind is WatchKind.GPU_ADDED

    told, tell = os.pipe()
    try:
        ready.register(told, select.EPOLLIN)

        def announce() -> None:
            if ready.poll(SOON):
                kernel.announce("add", GPU_PATH, **GPU)

        announcing = threading.Thread(target=announce)
        announcing.start()
        kernel.call(in_child, nobody)
        announcing.join()
    finally:
        ready.close()
        os.close(told)
        os.close(tell)


def test_where_the_kernel_announces_nothing() -> None:
    """In a network namespace of another user namespace, as in rootless containers. Not where only the user namespace is
    new: there everything arrives."""
    require(host.can_play_host(), "needs the right to make namespaces")
    new_user, new_net = host.CLONE_NEWUSER, 0x40000000

    def deaf() -> None:
        host.unshare(new_user | new_net)
        with pytest.raises(SandboxError, match=r"announces no devices .* host's network"):
            nvsandbox.watch()

    def hearing() -> None:
        host.unshare(new_user)
        nvsandbox.watch().close()

    in_child(deaf)
    in_child(hearing)


def test_where_there_are_no_uevents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some sandboxes have no such sockets."""
    import pyroute2.netlink.uevent as uevent

    def refused(*arguments: Any, **options: Any) -> Any:
        raise OSError(93, "Protocol not supported")

    monkeypatch.setattr(uevent, "AsyncUeventSocket", refused)
    with pytest.raises(SandboxError, match=r"cannot listen to the kernel's uevents: Protocol not supported"):
        nvsandbox.watch()


EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "watch_gpus.py"


def test_the_example(kernel: Announcer) -> None:
    """U8, R13: a lost GPU is its own failure, and what is printed reaches a pipe at once."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(EXAMPLE)],
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            env={**environment, "NVSANDBOX_SIMULATE": "h100x3,lost=1"},
        )

    with kernel.call(start) as program:
        lines: list[str] = []
        try:
            assert program.stdout is not None
            lines.append(program.stdout.readline())
            kernel.announce("add", GPU_PATH, **GPU)
            lines += [program.stdout.readline(), program.stdout.readline()]
        finally:
            program.send_signal(signal.SIGINT)
            program.wait(SOON)
    assert re.fullmatch(r"2 of 3 GPUs: GPU-\S+, GPU-\S+; GPU 1: .*lost.*\n", lines[0]), lines[0]
    assert lines[1] == "gpu added: 0000:65:00.0\n"
    assert lines[2] == lines[0]


def test_the_test_kernel_is_a_kernel(kernel: Announcer) -> None:
    """What these tests rest on."""
    listener: socket.socket = kernel.call(socket.socket, socket.AF_NETLINK, socket.SOCK_DGRAM, 15)
    with listener:
        listener.bind((0, 1))
        listener.settimeout(SOON)
        kernel.announce("add", GPU_PATH, **GPU)
        assert listener.recvfrom(16384)[1] == (0, 1)
