# SPDX-License-Identifier: Apache-2.0
"""F6, and odd sets of descriptors: limits of up to 2^30, 0 to 2 closed, numbers beyond what select() can hold."""

from __future__ import annotations

import re
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
from host import require

SESSIONS = """
import json, resource, sys
limit, hard = int(sys.argv[1]), resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, max(hard, limit)))
from nvsandbox import nvml_isolated
def spent():
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in both)
times = []
for _ in range(int(sys.argv[2])):
    start = spent()
    with nvml_isolated(simulate="t4") as nvml:
        nvml.nvmlDeviceGetCount()
    times.append(spent() - start)
print(json.dumps([resource.getrlimit(resource.RLIMIT_NOFILE)[0], min(times)]))
"""


def largest_limit() -> int:
    """What this process can have, at most 2^30: the hard limit, and with CAP_SYS_RESOURCE what the kernel allows."""
    with open("/proc/sys/fs/nr_open") as file:
        kernels = int(file.read())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, kernels))
    except (OSError, ValueError):
        return min(1 << 30, kernels, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return min(1 << 30, kernels)


def test_f6_a_large_limit_of_descriptors_costs_nothing(program: Any) -> None:
    """Closing them one by one would: a million close calls are a quarter of a second, 2^30 are minutes. It is the CPU
    time of the session and its worker that is compared."""
    largest = largest_limit()
    small, large = program(SESSIONS, "256", "5"), program(SESSIONS, str(largest), "5")
    assert [small[0], large[0]] == [256, largest]
    assert large[1] < small[1] + 0.05


@pytest.mark.parametrize("close_range", [True, False], ids=["close_range", "listing"])
def test_f6_no_more_calls_for_a_larger_limit(program: Any, tmp_path: Path, close_range: bool) -> None:
    """The close calls of a whole session, the caller's and the worker's, are as many for every limit, and also where
    the kernel has no close_range."""
    tracer = shutil.which("strace")
    require(tracer, "needs strace")

    def close_calls(limit: int) -> int:
        hidden = [] if close_range else ["-e", "inject=close_range:error=ENOSYS"]
        folder = tmp_path / str(limit)
        folder.mkdir()
        # A log for each thread: in one for all, a call is in two pieces where another thread's comes in between.
        command = [str(tracer), "-ff", "-qq", "-o", str(folder / "calls"), "-e", "trace=close,close_range", *hidden]
        assert program(SESSIONS, str(limit), "1", under=command)[0] == limit
        calls = [line for log in folder.iterdir() for line in log.read_text().splitlines()]
        answer = "0" if close_range else "-1 ENOSYS"
        assert any(re.search(rf"close_range\(4, \d+, 0\) += {answer}", call) for call in calls)
        return len(calls)

    small, large = close_calls(256), close_calls(largest_limit())
    # What Python itself closes varies by a few.
    assert abs(large - small) < 50, (small, large)


@pytest.mark.parametrize("transport", ["shm", "pipe"])
def test_standard_descriptors_closed(program: Any, transport: str) -> None:
    """The sandbox's own descriptors get the numbers 0 to 2 then, and nothing is written to them by mistake."""
    assert program(
        """
        import json, os, sys
        out = os.dup(1)
        for fd in range(3):
            os.close(fd)
        from nvsandbox import nvml_isolated
        with nvml_isolated(simulate="h100x2", transport=sys.argv[1]) as nvml:
            found = [nvml.nvmlDeviceGetCount() for _ in range(3)]
            os.kill(nvml.session.pid, 9)
            try:
                nvml.nvmlDeviceGetCount()
            except Exception as error:
                # Where the death is noticed first, the call goes to a new worker instead.
                assert type(error).__name__ == "WorkerDied", error
            found.append(nvml.nvmlDeviceGetCount())
        os.write(out, json.dumps(found).encode())
        """,
        transport,
    ) == [2, 2, 2, 2]


@pytest.mark.parametrize("transport", ["shm", "pipe"])
def test_descriptors_above_1024(program: Any, transport: str) -> None:
    assert program(
        """
        import json, os, resource, sys
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        held = [os.open("/dev/null", os.O_RDONLY) for _ in range(2000)]
        from nvsandbox import nvml_isolated
        with nvml_isolated(simulate="h100x2", transport=sys.argv[1]) as nvml:
            found = [nvml.nvmlDeviceGetCount()]
            os.kill(nvml.session.pid, 9)
            try:
                nvml.nvmlDeviceGetCount()
            except Exception as error:
                # Where the death is noticed first, the call goes to a new worker instead.
                assert type(error).__name__ == "WorkerDied", error
            found.append(nvml.nvmlDeviceGetCount())
            inside = os.listdir(f"/proc/{nvml.session.pid}/fd")
            found.append(max(map(int, inside)) < 64)
        print(json.dumps(found))
        """,
        transport,
    ) == [2, 2, True]
