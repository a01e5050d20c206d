# SPDX-License-Identifier: Apache-2.0
"""A caller in a new pid namespace with the old /proc: the number of its worker is another process's there."""

from __future__ import annotations

import subprocess
import sys

from host import can_play_host, require

CODE = """
import nvsandbox
try:
    with nvsandbox.nvml_isolated(simulate="t4", isolation="mount"):
        pass
except nvsandbox.SandboxUnavailable as error:
    print(error)
with nvsandbox.nvml_isolated(simulate="t4") as nvml:
    print(nvml.session.isolation, nvml.nvmlDeviceGetCount())
"""


def test_the_wrong_proc_is_told():
    require(can_play_host(), "needs CAP_SYS_ADMIN, to make a pid namespace")
    done = subprocess.run(
        ["unshare", "--pid", "--fork", sys.executable, "-c", CODE], capture_output=True, text=True, cwd="/", check=True
    )
    told, fallback = done.stdout.splitlines()
    assert "/proc is of another pid namespace than this process" in told
    assert fallback == "guard 1"
