# SPDX-License-Identifier: Apache-2.0
"""MODE HOLDER ACTION: a program that holds NVML in some way and does something with it as the interpreter ends.

MODE is "direct", for pynvml over the simulator's library in this process, or "sandboxed". What it prints, and its exit
status, must not depend on that.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import signal
import sys
import threading
import time
import weakref

mode, holder, action = sys.argv[1:]
early = []
if holder == "atexit registered before":  # so that it runs after nvsandbox's own
    atexit.register(lambda: early[0].act())

import pynvml  # noqa: E402

if mode == "sandboxed":
    from nvsandbox import nvml_isolated
else:
    import ctypes

    library = ctypes.CDLL(os.environ["SIMULATOR"])

    @contextlib.contextmanager
    def nvml_isolated(**options):
        pynvml.nvmlLib = library
        pynvml.nvmlInit()
        yield pynvml
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


class Holder:
    """Does the action when it is asked to, once."""

    def __init__(self):
        self.block = nvml_isolated(simulate="t4")
        self.nvml = self.block.__enter__()
        assert self.nvml.nvmlDeviceGetCount() == 1
        self.done = False

    def act(self):
        if self.done:
            return
        self.done = True
        with contextlib.suppress(pynvml.NVMLError):
            if action == "call":
                self.nvml.nvmlDeviceGetCount()
                pynvml.nvmlDeviceGetCount()
            elif action == "close":
                self.block.__exit__(None, None, None)
            elif action == "enter":
                with nvml_isolated(simulate="a100") as other:
                    other.nvmlDeviceGetCount()


class AtItsEnd(Holder):
    def __del__(self):
        self.act()


def hold_in_generator():
    with nvml_isolated(simulate="t4") as nvml:
        held = Holder()
        try:
            yield nvml
        finally:
            held.act()


class Stack:
    def __init__(self):
        self.stack = contextlib.ExitStack()
        self.held = Holder()
        self.stack.enter_context(nvml_isolated(simulate="t4"))
        self.stack.callback(self.held.act)

    def __del__(self):
        self.stack.close()


def loop(held):
    while True:
        held.done = False
        held.act()
        time.sleep(0.001)


if holder == "module global":
    held = AtItsEnd()
elif holder == "generator":
    held = hold_in_generator()
    next(held)
elif holder == "ExitStack":
    held = Stack()
elif holder == "thread-local":
    local = threading.local()
    local.held = AtItsEnd()
elif holder == "lru_cache":
    cached = functools.lru_cache(AtItsEnd)
    cached()
elif holder == "atexit registered before":
    early.append(Holder())
elif holder == "atexit registered after":
    held = Holder()
    atexit.register(held.act)
elif holder == "weakref.finalize":
    held = Holder()
    subject = type("Subject", (), {})()
    weakref.finalize(subject, held.act)
elif holder == "cycle":
    held = AtItsEnd()
    held.me = held
    del held
elif holder == "daemon threads":
    for _ in range(3):
        threading.Thread(target=loop, args=(Holder(),), daemon=True).start()
    time.sleep(0.05)
elif holder == "signal":
    held = Holder()

    def handler(number, frame):
        held.act()
        sys.exit(3)

    signal.signal(signal.SIGTERM, handler)
    os.kill(os.getpid(), signal.SIGTERM)
    while True:
        pynvml.nvmlDeviceGetCount()
elif holder == "os._exit":
    held = Holder()
    held.act()
    os._exit(4)
elif holder == "forked child":
    held = Holder()
    child = os.fork()
    if child == 0:
        if mode == "sandboxed":  # NVML itself is not to be used over a fork
            held.act()
        sys.exit(5)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) + 1)
elif holder == "session closed before":
    held = AtItsEnd()
    if mode == "sandboxed":
        held.nvml.session.close()
else:
    raise AssertionError(holder)
