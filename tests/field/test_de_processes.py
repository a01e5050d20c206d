# SPDX-License-Identifier: Apache-2.0
"""D, E: process ids, forks, and handles and initialisations that are kept, lost or not balanced."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any

import pynvml
import pytest
from host import Host, require, require_isolation
from waiting import forked

from nvsandbox import StaleHandle, nvml_isolated

STEPS = ["mount", "user", "guard"]


@pytest.mark.parametrize("isolation", STEPS)
def test_d1_pids_are_not_touched(host: Host, isolation: str) -> None:
    """In a pid namespace, as in a container, the list is what NVML says: the host's numbers."""

    def inside_and_outside(isolation: str) -> list[Any]:
        import json
        import os
        import subprocess
        import sys

        code = """if True:
            import json, os, sys
            import nvsandbox
            with nvsandbox.nvml_isolated(simulate="h100x2,frozen=1,procs=20", isolation=sys.argv[1]) as nvml:
                handle = nvml.nvmlDeviceGetHandleByIndex(0)
                pids = [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
                same = os.readlink(f"/proc/{nvml.session.pid}/ns/pid") == os.readlink("/proc/self/ns/pid")
                print(json.dumps([os.getpid(), pids, same, nvml.session.isolation]))
        """
        found = []
        for prefix in ([], ["unshare", "-pf", "--mount-proc", "--kill-child"]):
            command = [*prefix, sys.executable, "-c", code, isolation]
            run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=os.getcwd())
            assert run.stderr == ""
            found.append(json.loads(run.stdout))
        return found

    outside, inside = host.run(inside_and_outside, isolation=isolation)
    assert inside[0] == 1
    assert len(inside[1]) == 20
    assert inside[1] == outside[1]
    assert inside[2:] == outside[2:] == [True, isolation]


@pytest.mark.parametrize("isolation", STEPS)
def test_d2_the_worker_is_in_the_callers_pid_namespace(isolation: str) -> None:
    require_isolation(isolation)
    with nvml_isolated(simulate="t4", isolation=isolation) as nvml:
        theirs = os.readlink(f"/proc/{nvml.session.pid}/ns/pid")
        assert theirs == os.readlink("/proc/self/ns/pid")
        # NVML lists its own user by the number that the caller knows it by.
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        pids = [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        assert pids == [] or os.getpid() in pids or nvml.session.pid in pids


# ---- fork

GPUS = 8


def _check_uuids(nvml: Any, uuids: list[str], calls: int, offset: int) -> None:
    for number in range(calls):
        index = (number + offset) % GPUS
        assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index)) == uuids[index]


@pytest.mark.parametrize("transport", ["shm", "pipe"])
def test_e1_a_forked_child_has_a_worker_of_its_own(transport: str) -> None:
    """It neither uses nor reaps nor kills the parent's, and answers never cross."""
    with nvml_isolated(simulate=f"h100x{GPUS}", transport=transport) as nvml:
        uuids = [nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(i)) for i in range(GPUS)]
        parents = nvml.session.pid
        read, write = os.pipe()

        def child(offset: int) -> None:
            _check_uuids(nvml, uuids, 250, offset)
            mine = nvml.session.pid
            assert mine != parents
            os.write(write, f"{mine}\n".encode())
            pynvml.nvmlInit()
            _check_uuids(pynvml, uuids, 50, offset)
            nvml.session.close()

        children = [forked(lambda offset=offset: child(offset)) for offset in range(4)]
        _check_uuids(nvml, uuids, 1000, 5)
        assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
        os.close(write)
        with open(read) as reader:
            workers = {int(line) for line in reader}
        assert len(workers) == 4
        assert nvml.session.pid == parents
        _check_uuids(nvml, uuids, 100, 0)
        assert nvml.session.stats()["deaths"] == 0
        for pid in workers:
            assert not os.path.exists(f"/proc/{pid}")


def test_e1_a_child_that_does_nothing_leaves_the_parent_alone() -> None:
    with nvml_isolated(simulate="t4") as nvml:
        parents = nvml.session.pid
        for end in (lambda: None, lambda: nvml.session.close(), lambda: nvml.__dict__.clear()):
            assert os.waitpid(forked(end), 0)[1] == 0
            assert nvml.nvmlDeviceGetCount() == 1
            assert nvml.session.pid == parents


def test_e1_a_block_ends_in_the_child() -> None:
    """Both leave the block: each ends its own."""
    read, write = os.pipe()
    with nvml_isolated(simulate="t4") as nvml:
        pid = os.fork()
        if pid == 0:
            os.write(write, bytes([nvml.nvmlDeviceGetCount()]))
        else:
            assert os.read(read, 1) == b"\1"
            assert os.waitpid(pid, os.WNOHANG)[0] in (0, pid)
            assert nvml.nvmlDeviceGetCount() == 1
    if pid == 0:
        os._exit(0)
    os.close(read)
    os.close(write)
    with contextlib.suppress(ChildProcessError):  # it may have been reaped above
        assert os.waitpid(pid, 0)[1] == 0


def test_e1_multiprocessing_by_fork(host: Host) -> None:
    """In a process of its own: the pool keeps threads and a tracker that are none of ours."""

    def pool(gpus: int) -> Any:
        import multiprocessing
        import warnings

        import nvsandbox

        warnings.simplefilter("ignore")
        with nvsandbox.nvml_isolated(simulate=f"h100x{gpus}") as nvml:
            uuids = [nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(i)) for i in range(gpus)]

            def work(connection: Any, index: int) -> None:
                found = {nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index)) for _ in range(50)}
                connection.send((found, nvml.session.pid))

            context = multiprocessing.get_context("fork")
            ends, processes = [], []
            for index in range(gpus):
                ours, theirs = context.Pipe()
                process = context.Process(target=work, args=(theirs, index))
                process.start()
                theirs.close()
                ends.append(ours)
                processes.append(process)
            found = [end.recv() for end in ends]
            for process in processes:
                process.join(20)
            return uuids, found, nvml.session.pid, [process.exitcode for process in processes]

    uuids, found, parents, codes = host.run(pool, gpus=4)
    assert codes == [0] * 4
    assert [answer for answer, _ in found] == [{uuid} for uuid in uuids]
    assert len({parents, *(pid for _, pid in found)}) == 5


# ---- handles and initialisations


@pytest.mark.parametrize("transport", ["shm", "pipe"])
def test_e3_handles_kept_over_a_shutdown(transport: str) -> None:
    """The simulator gives new values each time and aborts on one that it does not know, as a crash would."""
    options = {"simulate": "h100x2,strict_handles=1", "transport": transport}
    with nvml_isolated(**options) as nvml:
        kept = nvml.nvmlDeviceGetHandleByIndex(1)
        assert nvml.nvmlDeviceGetName(kept).startswith("NVIDIA H100")
    with nvml_isolated(**options) as nvml:
        pid = nvml.session.pid
        for call in (nvml.nvmlDeviceGetName, nvml.nvmlDeviceGetMemoryInfo, nvml.nvmlDeviceGetUUID):
            with pytest.raises(StaleHandle) as caught:
                call(kept)
            assert isinstance(caught.value, pynvml.NVMLError_InvalidArgument)
            assert caught.value.call.startswith("nvmlDeviceGet")
            assert "get a new one" in str(caught.value)
        assert nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(1)).startswith("NVIDIA H100")
        assert nvml.session.pid == pid


def test_e3_handles_kept_over_plain_shutdown_and_init() -> None:
    """The sandbox stays initialised while its block is open: a user's shutdown invalidates nothing for the others."""
    with nvml_isolated(simulate="h100x2,strict_handles=1") as nvml:
        pid = nvml.session.pid
        pynvml.nvmlInit()
        kept = pynvml.nvmlDeviceGetHandleByIndex(1)
        pynvml.nvmlShutdown()
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetName(kept).startswith("NVIDIA H100")
        pynvml.nvmlShutdown()
        assert nvml.session.pid == pid


def test_e3_handles_of_instances_that_were_destroyed() -> None:
    """Slots are used again, and then a kept handle is not the new one's."""
    require(os.geteuid() == 0, "creating MIG instances needs root")
    with nvml_isolated(simulate="h100,mig=1g.10gb*2,strict_handles=1", privileged=True) as nvml:
        pid = nvml.session.pid
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        mig = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)
        event_set = nvml.nvmlEventSetCreate()
        nvml.nvmlEventSetFree(event_set)
        nvml.nvmlEventSetFree(nvml.nvmlEventSetCreate())
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            nvml.nvmlEventSetFree(event_set)
        assert nvml.nvmlDeviceGetUUID(mig).startswith("MIG-")
        assert nvml.session.pid == pid


def test_e5_unbalanced_init_and_shutdown() -> None:
    """Counted for each user; nobody closes another's."""
    with nvml_isolated(simulate="t4") as nvml, nvml_isolated(simulate="t4") as other:
        pid = nvml.session.pid
        for _ in range(3):
            with pytest.raises(pynvml.NVMLError_Uninitialized):
                pynvml.nvmlShutdown()
        for _ in range(3):
            pynvml.nvmlInit()
        for _ in range(3):
            pynvml.nvmlShutdown()
        for user in (pynvml, nvml, other):
            with pytest.raises(pynvml.NVMLError_Uninitialized):
                user.nvmlShutdown()
        nvml.nvmlInit()
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            other.nvmlShutdown()
        nvml.nvmlShutdown()
        assert nvml.nvmlDeviceGetCount() == other.nvmlDeviceGetCount() == 1
        assert nvml.session.pid == pid
        for _ in range(5):
            nvml.nvmlInit()  # and never shut down
    with nvml_isolated(simulate="t4") as nvml:
        with pytest.raises(pynvml.NVMLError_Uninitialized):
            nvml.nvmlShutdown()


def test_e5_unbalanced_in_threads() -> None:
    """Users of one worker, each with its own block: one that shuts down too often takes nothing from the others."""
    wrong: list[BaseException] = []

    def user(extra: int) -> None:
        try:
            with nvml_isolated(simulate="t4") as mine:
                for _ in range(30):
                    mine.nvmlInit()
                    for _ in range(extra + 1):
                        with contextlib.suppress(pynvml.NVMLError_Uninitialized):
                            mine.nvmlShutdown()
                    assert mine.nvmlDeviceGetCount() == 1
        except BaseException as error:
            wrong.append(error)

    with nvml_isolated(simulate="t4") as nvml:
        pid = nvml.session.pid
        threads = [threading.Thread(target=user, args=(extra,)) for extra in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert wrong == []
        assert nvml.nvmlDeviceGetCount() == 1
        assert nvml.session.pid == pid
