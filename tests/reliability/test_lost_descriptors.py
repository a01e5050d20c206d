# SPDX-License-Identifier: Apache-2.0
"""A program that closes all descriptors, as daemons do, and goes on: files of its own get the numbers that the sandbox
had, and neither is anything of them spoilt nor does the sandbox stay broken."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, socket, sys, threading
from nvsandbox import nvml_isolated

transport, then = sys.argv[1:3]
with nvml_isolated(simulate="h100x2", transport=transport) as nvml:
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    for _ in range(3):
        nvml.nvmlDeviceGetTemperature(gpu, 0)
    first = nvml.session.pid
    os.closerange(3, 1024)
    # Takes all numbers that the sandbox may have had: a connection of the program's at each.
    pairs = [socket.socketpair() for _ in range(40)]
    children = [os.pidfd_open(os.getpid()) for _ in range(3)]
    if then == "a call":
        assert nvml.nvmlDeviceGetCount() == 2
        assert nvml.nvmlDeviceGetTemperature(gpu, 0) > 0
    elif then == "a new thread":
        found = []
        thread = threading.Thread(target=lambda: found.append(nvml.nvmlDeviceGetCount()))
        thread.start()
        thread.join()
        assert found == [2]
    elif then == "the worker's death":
        os.kill(first, 9)
        assert nvml.nvmlDeviceGetCount() == 2
for number, (one, other) in enumerate(pairs):
    other.setblocking(False)
    one.sendall(b"%d" % number)
    assert other.recv(100) == b"%d" % number, (number, "something else was written into the program's connection")
    one.close(), other.close()
for descriptor in children:
    os.close(descriptor)
# Its end was told by the end of the connection.
import time
end = time.monotonic() + 20
while os.path.exists(f"/proc/{first}") and time.monotonic() < end:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        pass
    time.sleep(0.01)
assert not os.path.exists(f"/proc/{first}"), "the first worker is still there"
print("ok")
"""


@pytest.mark.parametrize("then", ["the end", "a call", "a new thread", "the worker's death"])
@pytest.mark.parametrize("transport", ["shm", "pipe"])
def test_nothing_of_the_programs_is_touched(transport: str, then: str) -> None:
    """S8: STOP was written into the program's own connection, which was shut down and closed, and its number reused."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, transport, then], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
