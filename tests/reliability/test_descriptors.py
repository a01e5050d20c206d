# SPDX-License-Identifier: Apache-2.0
"""F6, and odd sets of descriptors: a limit of a million, 0 to 2 closed, numbers beyond what select() can hold."""

from __future__ import annotations

import resource
from typing import Any

import pytest

TIMED = """
import json, os, resource, sys, time
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, max(hard, limit)))
from nvsandbox import nvml_isolated
times = []
for _ in range(5):
    start = time.monotonic()
    with nvml_isolated(simulate="t4") as nvml:
        nvml.nvmlDeviceGetCount()
        times.append(time.monotonic() - start)
print(json.dumps([resource.getrlimit(resource.RLIMIT_NOFILE)[0], min(times)]))
"""


def test_f6_a_large_limit_of_descriptors_costs_nothing(program: Any) -> None:
    """Closing them one by one would: a million close calls are a quarter of a second, 2^30 are minutes."""
    with open("/proc/sys/fs/nr_open") as file:
        largest = int(file.read())
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    largest = min(1 << 20, largest, largest if hard == resource.RLIM_INFINITY else hard)
    small, large = program(TIMED, "256"), program(TIMED, str(largest))
    assert [small[0], large[0]] == [256, largest]
    assert large[1] < small[1] + 0.05


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
