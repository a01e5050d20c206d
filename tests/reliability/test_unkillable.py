# SPDX-License-Identifier: Apache-2.0
"""F1: a driver that does not return leaves its caller in state D, which SIGKILL does not end.

A real state D, made by a file system whose server takes a read and never answers it: see stuck_file.py.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from host import Host, require

READS = """
#include <fcntl.h>
#include <unistd.h>
int nvmlDeviceGetCount_v2 (unsigned *count)
{{
    char byte;
    int fd = open ("{path}", O_RDONLY);

    *count = 1;
    if (fd < 0 || read (fd, &byte, 1) < 0)
        return 999;
    return 0;
}}
int nvmlSystemGetDriverVersion (char *version, unsigned size) {{ version[0] = '1', version[size > 1] = 0; return 0; }}
"""


@pytest.fixture
def stuck(host: Host, readable_folder: Path, compile_library: Any) -> dict[str, str]:
    require(os.path.exists("/dev/fuse"), "needs /dev/fuse")
    folder = readable_folder / "stuck"
    folder.mkdir(exist_ok=True)
    return {
        "server": host.readable(Path(__file__).with_name("stuck_file.py")),
        "folder": str(folder),
        "library": compile_library(READS.format(path=folder / "stuck")),
    }


def test_nothing_waits_for_it(host: Host, stuck: dict[str, str]) -> None:
    """Not the call, nor the next session, nor the end of the block; given-up workers are counted, and limited."""

    def inside(server: str, folder: str, library: str) -> dict[str, Any]:
        import glob
        import subprocess
        import sys
        import time
        from pathlib import Path

        from host import attempt

        from nvsandbox import ending, keeper, nvml_isolated

        ending.DRAIN_LIMIT, ending.STOP_LIMIT, ending.TERM_LIMIT, ending.KILL_LIMIT = 0.2, 0.3, 0.3, 0.3
        found: dict[str, Any] = {"calls": [], "states": []}
        serving = subprocess.Popen(
            [sys.executable, "-S", server, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert serving.stdout is not None
        assert serving.stdin is not None
        assert serving.stdout.readline() == b"ready\n"

        def timed(action: Any) -> tuple[float, Any]:
            start = time.monotonic()
            outcome = attempt(action)
            return time.monotonic() - start, outcome

        def quickest(action: Any) -> tuple[float, Any]:
            return min((timed(action) for _ in range(3)), key=lambda each: each[0])

        def given_up(number: int, open_session: Any) -> int:
            end = time.monotonic() + 10
            while open_session.stats()["abandoned"] < number and time.monotonic() < end:
                time.sleep(0.02)
            return open_session.stats()["abandoned"]

        options = {"library": library, "timeout": 0.5}
        block = nvml_isolated(**options)
        nvml = block.__enter__()
        for number in range(1, keeper.ABANDONED_MAX + 1):
            nvml.nvmlSystemGetDriverVersion()
            pid = nvml.session.pid
            found["calls"].append((*timed(nvml.nvmlDeviceGetCount), given_up(number, nvml.session)))
            found["states"].append(
                [Path(name).read_text().rpartition(")")[2].split()[0] for name in glob.glob(f"/proc/{pid}/task/*/stat")]
            )
        found["one more"] = quickest(nvml.nvmlSystemGetDriverVersion)
        found["close"] = timed(lambda: block.__exit__(None, None, None))
        found["again"] = quickest(lambda: nvml_isolated(**options).__enter__())

        def other() -> int:
            with nvml_isolated(simulate="h100x2") as nvml:
                count: int = nvml.nvmlDeviceGetCount()
                return count

        found["other"] = timed(other)
        serving.stdin.close()
        serving.wait()
        end = time.monotonic() + 10
        while ending.given_up(block._options) and time.monotonic() < end:
            time.sleep(0.02)

        def after() -> Any:
            with nvml_isolated(**options) as nvml:
                return nvml.nvmlSystemGetDriverVersion(), nvml.session.stats()["abandoned"]

        found["after"] = timed(after)
        return found

    found = host.run(inside, **stuck)
    for number, (_, outcome, abandoned) in enumerate(found["calls"], 1):
        assert outcome["type"] == "CallTimeout"
        assert abandoned == number
    assert min(seconds for seconds, _, _ in found["calls"]) < 1  # one may be late on a busy machine
    assert all("D" in states for states in found["states"]), found["states"]
    seconds, outcome = found["one more"]
    assert outcome["type"] == "WorkerDied"
    assert "4 earlier workers cannot be ended even by SIGKILL" in outcome["text"]
    assert seconds < 1
    assert found["close"][0] < 5
    assert found["close"][1]["mro"] == []
    seconds, outcome = found["again"]
    assert outcome["type"] == "SandboxStartError"
    assert "has to be reset" in outcome["text"]
    assert seconds < 1
    assert found["other"][1] == {"mro": [], "result": 2}
    assert found["after"][1] == {"mro": [], "result": ("1", 0)}


def test_the_block_ends_while_a_call_is_stuck(host: Host, stuck: dict[str, str]) -> None:
    """With the limits as they are in use: it takes some seconds, and so does the end of the program."""

    def inside(server: str, folder: str, library: str) -> dict[str, float]:
        import glob
        import subprocess
        import sys
        import threading
        import time
        from pathlib import Path

        from nvsandbox import SandboxError, nvml_isolated

        def is_stuck(pid: int) -> bool:
            return any("request_wait" in Path(name).read_text() for name in glob.glob(f"/proc/{pid}/task/*/wchan"))

        serving = subprocess.Popen(
            [sys.executable, "-S", server, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert serving.stdout is not None
        assert serving.stdin is not None
        assert serving.stdout.readline() == b"ready\n"
        start = time.monotonic()
        program = (
            "import nvsandbox\n"
            f"nvml = nvsandbox.install(library={library!r}, timeout=0.2)\n"
            "try: nvml.nvmlDeviceGetCount()\n"
            "except nvsandbox.CallTimeout: print('timed out', flush=True)\n"
        )
        exiting = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd="/")

        ended: list[float] = []
        with nvml_isolated(library=library, timeout=None) as nvml:

            def call() -> None:
                try:
                    nvml.nvmlDeviceGetCount()
                except SandboxError:
                    ended.append(time.monotonic())

            thread = threading.Thread(target=call)
            thread.start()
            pid = nvml.session.pid
            end = time.monotonic() + 30
            while not (seen := is_stuck(pid)) and time.monotonic() < end:
                time.sleep(0.01)
            closing = time.monotonic()
        closed = time.monotonic()
        thread.join(10)
        assert not thread.is_alive()
        said = exiting.stdout.readline()
        exiting.wait(30)
        exited = time.monotonic()
        serving.stdin.close()
        serving.wait()
        assert seen, "no thread of the worker was seen to wait for the file system, by /proc/PID/task/TID/wchan"
        assert said == b"timed out\n"
        return {"call": ended[0] - closing, "close": closed - closing, "program": exited - start}

    found = host.run(inside, **stuck)
    # The limits add up to 2, to 8, and to 8 and the start of a Python; what is stuck would stay for ever.
    assert found["call"] < 7
    assert found["close"] < 20
    assert found["program"] < 25
