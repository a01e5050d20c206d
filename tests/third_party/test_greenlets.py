# SPDX-License-Identifier: Apache-2.0
"""Programs whose standard library gevent or eventlet have patched: calls by greenlets and by the system's threads."""

from __future__ import annotations

import subprocess
import sys

import pytest

GEVENT = """
import gevent.monkey
if order == "patched before":
    gevent.monkey.patch_all()
import nvsandbox, pynvml
if order == "patched after":
    gevent.monkey.patch_all()
import gevent
from gevent.threadpool import ThreadPool

def in_greenlets(function, count):
    return [greenlet.get(timeout=30) for greenlet in [gevent.spawn(function) for _ in range(count)]]

pool = ThreadPool(4)

def in_threads(function, count):
    return [result.get(timeout=30) for result in [pool.spawn(function) for _ in range(count)]]

def done():
    pool.kill()
pause = gevent.sleep
"""
EVENTLET = """
import eventlet
if order == "patched before":
    eventlet.monkey_patch()
import nvsandbox, pynvml
if order == "patched after":
    eventlet.monkey_patch()
from eventlet import tpool

def in_greenlets(function, count):
    return [thread.wait() for thread in [eventlet.spawn(function) for _ in range(count)]]

def in_threads(function, count):
    return [thread.wait() for thread in [eventlet.spawn(tpool.execute, function) for _ in range(count)]]

def done():
    tpool.killall()
pause = eventlet.sleep
"""
PROGRAM = """
import sys
order, transport = sys.argv[1:]
{library}
import os

nvml = nvsandbox.install(simulate="h100x4", transport=transport)

def ask():
    pause(0)
    count = nvml.nvmlDeviceGetCount()
    pause(0)
    name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(3))
    return count, name, nvml.nvmlSystemGetDriverVersion() != ""

def kill(pid):
    os.kill(pid, 9)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

right = (4, "NVIDIA H100 80GB HBM3", True)
for _ in range(2):
    assert in_greenlets(ask, 20) == [right] * 20
    assert in_threads(ask, 20) == [right] * 20
assert nvml.session.stats()["deaths"] == 0
# A worker that dies is replaced, whoever meets it.
kill(nvml.session.pid)
assert in_threads(ask, 8) == [right] * 8
kill(nvml.session.pid)
assert in_greenlets(ask, 8) == [right] * 8
with nvsandbox.nvml_isolated(simulate="t4", transport=transport) as other:
    assert in_threads(other.nvmlDeviceGetCount, 8) == [1] * 8
nvml.session.close()
done()
print("ok")
"""


@pytest.mark.parametrize("transport", ["shm", "pipe"])
@pytest.mark.parametrize("order", ["patched before", "patched after", "not patched"])
@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_calls_of_greenlets_and_of_threads(library: str, order: str, transport: str) -> None:
    """S4: 1 to 16 of 40 calls ended in greenlet.error, which is no NVMLError, or in a needless WorkerDied."""
    pytest.importorskip(library)
    code = PROGRAM.format(library=GEVENT if library == "gevent" else EVENTLET)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, order, transport], capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
