# SPDX-License-Identifier: Apache-2.0
"""E1, and what else makes processes: fork under load, multiprocessing, prefork servers, daemons, subprocesses."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pynvml
import pytest
from host import has_ended
from waiting import forked, until, workers_of

from nvsandbox import nvml_isolated


def _status(pid: int, limit: float = 60.0) -> int | str:
    """Exit status of a child, or "hangs"."""
    pidfd = os.pidfd_open(pid)
    try:
        if not select.select([pidfd], [], [], limit)[0]:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "hangs"
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        os.close(pidfd)


@pytest.mark.parametrize("plain", [False, True], ids=["bound", "plain"])
def test_e1_forks_while_other_threads_call(plain: bool) -> None:
    """Whichever locks they hold at the time are not there for ever in the child."""
    with nvml_isolated(simulate="h100x8") as nvml:
        api = pynvml if plain else nvml
        uuids = [nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(8)]
        stop = threading.Event()
        wrong: list[str] = []

        def load(index: int) -> None:
            while not stop.is_set():
                found = api.nvmlDeviceGetUUID(api.nvmlDeviceGetHandleByIndex(index))
                if found != uuids[index]:
                    wrong.append(found)
                api.nvmlInit()
                api.nvmlShutdown()

        def child(number: int) -> None:
            pynvml.nvmlInit()
            assert api.nvmlDeviceGetUUID(api.nvmlDeviceGetHandleByIndex(number % 8)) == uuids[number % 8]
            nvml.session.close()

        threads = [threading.Thread(target=load, args=(index,)) for index in range(8)]
        for thread in threads:
            thread.start()
        try:
            statuses = [_status(forked(lambda number=number: child(number))) for number in range(25)]
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert statuses == [0] * 25
        assert wrong == []


def test_e1_a_thousand_calls_interleaved_over_many_processes() -> None:
    """Each answer is checked: a name with the number of its GPU and of its seed in it."""
    with nvml_isolated(simulate="h100x8") as nvml:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(8)]
        tokens = [nvml.nvmlDeviceGetUUID(handle) for handle in handles]

        def calls() -> None:
            for number in range(1000):
                index = (number * 7 + os.getpid()) % 8
                assert nvml.nvmlDeviceGetUUID(handles[index]) == tokens[index]
            nvml.session.close()

        children = [forked(calls) for _ in range(4)]
        for number in range(1000):
            assert nvml.nvmlDeviceGetUUID(handles[number % 8]) == tokens[number % 8]
        assert [_status(pid) for pid in children] == [0] * 4
        assert nvml.session.stats()["deaths"] == 0


def test_a_child_does_not_keep_a_worker_of_its_parent() -> None:
    """Forked while another thread starts a worker; the parent is killed, the child lives on."""

    def parent(ready: int) -> None:
        starting = threading.Thread(target=lambda: nvml_isolated(simulate="t4,init_ms=1500").__enter__(), daemon=True)
        starting.start()
        time.sleep(0.5)
        child = os.fork()
        if child == 0:
            os.close(0)
            time.sleep(60)
            os._exit(0)
        os.write(ready, f"{child}\n".encode())
        starting.join()
        time.sleep(60)

    read, write = os.pipe()
    pid = forked(lambda: parent(write))
    os.close(write)
    child = int(os.read(read, 64))
    os.close(read)
    try:
        until(lambda: workers_of(pid))
        workers = workers_of(pid)
        assert len(workers) == 1
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert until(lambda: not any(_is_worker(worker) for worker in workers))
    finally:
        os.kill(child, signal.SIGKILL)


def _is_worker(pid: int) -> bool:
    import host

    return host.processes().get(pid, ("", 0))[0].startswith("nvsandbox-work") and not host.has_ended(pid)


MULTIPROCESSING = """
import json, multiprocessing, os, sys
import nvsandbox, pynvml

def work(index):
    with nvsandbox.nvml_isolated(simulate="h100x4") as nvml:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        found = {nvml.nvmlDeviceGetUUID(handle) for _ in range(100)}
        return index, list(found), nvml.session.pid, os.getpid()

def failing(index):
    with nvsandbox.nvml_isolated(simulate="h100x4,crash=nvmlDeviceGetPowerUsage") as nvml:
        nvml.nvmlDeviceGetPowerUsage(nvml.nvmlDeviceGetHandleByIndex(index))

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    with nvsandbox.nvml_isolated(simulate="h100x4") as nvml:
        uuids = [nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(4)]
        with context.Pool(3) as pool:
            found = pool.map(work, [0, 1, 2, 3] * 3)
            try:
                pool.apply(failing, (0,))
                error = ""
            except nvsandbox.WorkerDied as caught:  # pickled on its way
                error = str(caught)
            pool.close()
            pool.join()
        assert all(answers == [uuids[index]] for index, answers, _, _ in found), found
        workers = {worker for _, _, worker, _ in found}
        assert nvml.session.pid not in workers
        assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(2)) == uuids[2]
    print(json.dumps([error, nvml.session.stats()["deaths"]]))
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(program: Any, tmp_path: Any, method: str) -> None:
    path = tmp_path / "main.py"  # what spawns imports it again
    path.write_text(MULTIPROCESSING)
    done = subprocess.run([sys.executable, "-W", "ignore", str(path), method], capture_output=True, timeout=60, cwd="/")
    assert done.returncode == 0, done.stderr.decode()
    assert b"SIGSEGV" in done.stdout


def test_prefork_server(program: Any) -> None:
    """As gunicorn with preload: opened in the master, used in the workers, which are killed and replaced."""
    found = program(
        """
        import json, os, signal, sys, time
        import nvsandbox

        nvml = nvsandbox.install(simulate="h100x8")
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(8)]
        uuids = [nvml.nvmlDeviceGetUUID(handle) for handle in handles]
        master = nvml.session.pid

        def serve(number, end):
            answers = [nvml.nvmlDeviceGetUUID(handle) for handle in handles for _ in range(10)]
            os.write(end, json.dumps([answers == [uuid for uuid in uuids for _ in range(10)], nvml.session.pid])
                     .encode() + b"\\n")
            time.sleep(60)

        def start(number):
            pid = os.fork()
            if pid == 0:
                try:
                    serve(number, end)
                finally:
                    os._exit(1)
            return pid

        read, end = os.pipe()
        lines = os.fdopen(read)
        servers = [start(number) for number in range(4)]
        results = [json.loads(lines.readline()) for _ in servers]
        os.kill(servers[0], signal.SIGKILL)
        os.waitpid(servers[0], 0)
        servers[0] = start(0)
        results.append(json.loads(lines.readline()))
        assert nvml.nvmlDeviceGetCount() == 8
        for server in servers:
            os.kill(server, signal.SIGKILL)
            os.waitpid(server, 0)
        assert nvml.session.pid == master
        end = time.monotonic() + 30
        while True:
            left = [pid for _, pid in results if os.path.exists(f"/proc/{pid}")
                    and open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "Z"]
            if not left or time.monotonic() > end:
                break
            time.sleep(0.02)
        print(json.dumps([[fine for fine, _ in results], len({pid for _, pid in results} - {master}), left]))
        """
    )
    assert found == [[True] * 5, 5, []]


def test_daemon(program: Any) -> None:
    """Opened before the program daemonises by a double fork and closes all descriptors."""
    found = program(
        """
        import json, os
        import nvsandbox, pynvml

        read, write = os.pipe()
        nvsandbox.install(simulate="h100x2")
        assert pynvml.nvmlDeviceGetCount() == 2
        pid = os.fork()
        if pid == 0:
            os.setsid()
            if os.fork() > 0:
                os._exit(0)
            os.chdir("/")
            for fd in range(64):
                if fd != write:
                    try:
                        os.close(fd)
                    except OSError:
                        pass
            for _ in range(3):
                os.open("/dev/null", os.O_RDWR)
            try:
                names = [pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(2)]
                os.write(write, json.dumps(names).encode())
            except BaseException as error:
                os.write(write, json.dumps(repr(error)).encode())
            nvsandbox.install(simulate="h100x2").session.close()
            os._exit(0)
        os.waitpid(pid, 0)
        os.close(write)
        with os.fdopen(read) as file:
            print(file.read())
        """
    )
    assert [name[:11] for name in found] == ["NVIDIA H100"] * 2


def test_subprocesses_inherit_nothing() -> None:
    def inherited() -> list[str]:
        command = [sys.executable, "-c", "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))"]
        ways: tuple[dict[str, Any], ...] = ({}, {"close_fds": False}, {"preexec_fn": lambda: None})
        return [subprocess.run(command, capture_output=True, check=True, **way).stdout.decode() for way in ways]

    before = inherited()
    with nvml_isolated(simulate="t4") as nvml, nvml_isolated(simulate="t4", transport="pipe") as other:
        assert nvml.nvmlDeviceGetCount() == other.nvmlDeviceGetCount() == 1
        assert inherited() == before
        assert nvml.nvmlDeviceGetCount() == other.nvmlDeviceGetCount() == 1


def test_a_program_that_becomes_another() -> None:
    """By exec, which closes what the sandbox holds: the worker ends as after any end of its caller."""
    code = """
import os
import nvsandbox
print(nvsandbox.install(simulate="t4").session.pid, flush=True)
os.execvp("cat", ["cat"])
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/"
    ) as program:
        assert program.stdout is not None
        worker = int(program.stdout.readline())
        assert until(lambda: has_ended(worker))
        assert program.poll() is None
        assert program.communicate(b"still there")[0] == b"still there"


FORKS_IN_C = """
import ctypes, os, sys, threading
import nvsandbox
from nvsandbox import worker

hooks = sys.argv[1]
python, libc = ctypes.pythonapi, ctypes.PyDLL(None)
nvml = nvsandbox.install(simulate="t4x2")
device = nvml.nvmlDeviceGetHandleByIndex(1)
right = [nvml.nvmlDeviceGetName(device) for _ in range(3)]
if hooks == "afterwards, while a worker starts":
    threading.Thread(target=lambda: worker._fork_lock.acquire()).start()
if hooks == "all":
    python.PyOS_BeforeFork()
child = libc.fork()
if child == 0:
    if hooks != "none":
        python.PyOS_AfterFork_Child()
    assert [nvml.nvmlDeviceGetName(device) for _ in range(3)] == right
    # One to its own worker, and none to the parent's.
    mine = [fd for fd in os.listdir("/proc/self/fd") if "socket:" in os.path.realpath(f"/proc/self/fd/{fd}")]
    print("child", len(mine), flush=True)
    nvml.session.close()
    os._exit(0)
if hooks == "all":
    python.PyOS_AfterFork_Parent()
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
assert [nvml.nvmlDeviceGetName(device) for _ in range(3)] == right
print("parent", nvml.session.stats()["deaths"], flush=True)
nvml.session.close()
os._exit(0)
"""


@pytest.mark.parametrize("hooks", ["none", "afterwards", "afterwards, while a worker starts", "all"])
def test_a_fork_by_c_code(hooks: str) -> None:
    """uWSGI forks by itself, and tells Python of it only if it is asked to, and only afterwards. The child's first call
    was a SIGSEGV: the lanes of its parent are not there."""
    done = subprocess.run(
        [sys.executable, "-c", FORKS_IN_C, hooks],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        cwd="/",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["child 1", "child 0", "parent 0"]


NUMBER_ONE = """
import ctypes, os, sys
from nvsandbox import nvml_isolated

libc = ctypes.CDLL(None, use_errno=True)
assert os.getpid() == 1
with nvml_isolated(simulate="t4") as nvml:
    device = nvml.nvmlDeviceGetHandleByIndex(0)
    for _ in range(3):
        nvml.nvmlDeviceGetName(device)
    parents = nvml.session.pid
    if libc.unshare(0x20000000) != 0:  # CLONE_NEWPID: for the children from here on
        sys.exit(f"unshare: {os.strerror(ctypes.get_errno())}")
    child = os.fork()
    if child == 0:
        assert os.getpid() == 1
        print(nvml.nvmlDeviceGetName(device), nvml.nvmlDeviceGetCount(), flush=True)
        nvml.session.close()
        os._exit(0)
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    print(nvml.nvmlDeviceGetName(device), nvml.session.pid == parents, nvml.session.stats()["deaths"])
"""


@pytest.mark.usefixtures("host")  # for what it needs: CAP_SYS_ADMIN
def test_a_child_with_the_number_of_its_parent() -> None:
    """The first process of a container, whose child is the first of another PID namespace: both have process id 1."""
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", NUMBER_ONE],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["Tesla T4 1", "child 0", "Tesla T4 True 0"]
