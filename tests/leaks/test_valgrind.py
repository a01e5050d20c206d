# SPDX-License-Identifier: Apache-2.0
"""The caller's half under valgrind, with a Python around it: it reads and writes no memory that is not its own, and
decides by none that nobody has written."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from host import require

SESSIONS = """
import pynvml
from nvsandbox import nvml_isolated
for transport in ("shm", "pipe"):
    with nvml_isolated(simulate="h100x2", transport=transport) as nvml:
        for index in range(nvml.nvmlDeviceGetCount()):
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            for _ in range(5):  # by the marshaller, then the short way
                nvml.nvmlDeviceGetTemperature(gpu, 0)
                nvml.nvmlDeviceGetName(gpu)
                nvml.nvmlDeviceGetMemoryInfo(gpu)
                nvml.nvmlDeviceGetComputeRunningProcesses(gpu)
        try:
            nvml.nvmlDeviceGetHandleByIndex(99)
        except pynvml.NVMLError_InvalidArgument:
            print(transport)
"""

# To find where ctypes objects keep their address, all words of some are compared with it, and ctypes does not fill
# every one of them in.
SUPPRESSED = """
{
   calibrate looks at every word of an object
   Memcheck:Cond
   fun:calibrate
   obj:*python*
}
"""


def test_a_session_is_clean(tmp_path: Path) -> None:
    valgrind = shutil.which("valgrind")
    require(valgrind, "needs valgrind")
    log, suppressed = tmp_path / "log", tmp_path / "suppressed"
    suppressed.write_text(SUPPRESSED)
    # Python's own allocator would hide what is done to its objects.
    environment = {**os.environ, "PYTHONMALLOC": "malloc", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [str(valgrind), "-q", "--error-exitcode=97", f"--log-file={log}", f"--suppressions={suppressed}"]
    done = subprocess.run(
        [*command, sys.executable, "-c", SESSIONS], capture_output=True, text=True, check=False, cwd="/",
        env=environment, timeout=240,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "shm\npipe\n"), (done.stderr, log.read_text())
