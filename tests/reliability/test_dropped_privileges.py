# SPDX-License-Identifier: Apache-2.0
"""Programs that drop their privileges while they have a worker, and then may not signal it any more."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from host import require

PROGRAM = """
import json, logging, os, signal, sys
from nvsandbox import ending, nvml_isolated
from nvsandbox.process import Process
ending.STOP_LIMIT = ending.TERM_LIMIT = 0.3
stopped, pipe = json.loads(sys.argv[1])
said = []
class Handler(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())
logging.getLogger("nvsandbox").addHandler(Handler())
if not pipe:  # as where there is no /proc
    Process.open_kill_pipe = lambda self: -1
with nvml_isolated(simulate="t4") as nvml:
    assert nvml.nvmlDeviceGetCount() == 1
    pid = nvml.session.pid
    if stopped:  # as a worker that a library, or a signal of its own, has stopped
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    if not pipe:
        told, tell = os.pipe()
        helper = os.fork()
        if helper == 0:  # it keeps the privileges with which to end what is left
            os.close(tell)
            os.read(told, 1)
            os.kill(pid, signal.SIGKILL)
            os._exit(0)
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    try:
        os.kill(pid, 0)
        raise SystemExit("the worker can still be signalled, so that this shows nothing")
    except PermissionError:
        pass
"""


def test_leaving_ends_a_worker_that_is_stopped(program: Callable[..., Any]) -> None:
    """T5: leaving raised PermissionError, and a worker of root's was left behind."""
    require(os.geteuid() == 0, "needs root, to drop it")
    assert program(PROGRAM + "print(json.dumps([os.path.exists(f'/proc/{pid}'), said]))", "[true, true]") == [False, []]


def test_leaving_ends_a_worker_that_answers(program: Callable[..., Any]) -> None:
    require(os.geteuid() == 0, "needs root, to drop it")
    assert program(PROGRAM + "print(json.dumps([os.path.exists(f'/proc/{pid}'), said]))", "[false, true]") == [
        False,
        [],
    ]


def test_what_cannot_be_ended_is_given_up(program: Callable[..., Any]) -> None:
    """T5: without the pipe over which it can be ended all the same."""
    require(os.geteuid() == 0, "needs root, to drop it")
    end = """
os.close(tell)
assert os.waitpid(helper, 0)[1] == 0
os.waitpid(pid, 0)
print(json.dumps(said))
"""
    (said,) = program(PROGRAM + end, "[true, false]")
    assert "this process has dropped the privileges for it); it is given up" in said
