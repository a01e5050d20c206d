# SPDX-License-Identifier: Apache-2.0
"""A library that writes to the worker's control connection, from GO on: it decides nothing, and nobody waits for it."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from pathlib import Path

import pynvml
import pytest
from host import require

from nvsandbox import SandboxStartError, SandboxUnavailable, nvml_isolated

ROOT = Path(__file__).resolve().parents[2]
SOURCE = r"""
#include <string.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>
#include "protocol.h"
static struct nvs_failed failed;
static void say (unsigned type, unsigned step, const char *detail)
{
    memset (&failed, 0, sizeof failed);
    failed.message.magic = NVS_MAGIC;
    failed.message.type = type;
    failed.error.step = step;
    snprintf (failed.error.detail, sizeof failed.error.detail, "%s", detail);
    (void)send (NVS_CONTROL_FD, &failed, sizeof failed, 0);
}
__attribute__ ((constructor)) static void loaded (void) { AT_LOAD; }
int nvmlInitWithFlags (unsigned flags) { (void)flags; return 0; }
int nvmlInit_v2 (void) { return 0; }
int nvmlShutdown (void) { return 0; }
int nvmlDeviceGetCount_v2 (unsigned *count) { *count = 3; AT_CALL; return 0; }
"""


def build(folder: Path, at_load: str = "(void)say", at_call: str = "(void)say") -> str:
    compiler = shutil.which("cc") or ""
    require(compiler, "needs a C compiler")
    path = folder / "libnvidia-ml.so.1"
    command = [compiler, "-shared", "-fPIC", f"-I{ROOT / 'csrc'}", '-DNVSANDBOX_VERSION=""', f"-DAT_LOAD={at_load}"]
    command += [f"-DAT_CALL={at_call}", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=SOURCE, text=True, check=True)
    return str(path)


@pytest.mark.parametrize("step", ["MOUNT_NS", "USER_NS", "SECCOMP", "CHECK", "VERIFY", "DEV_TMPFS", "HELLO"])
def test_the_ladder_is_not_left_on_the_librarys_word(tmp_path: Path, step: str) -> None:
    """S5: it said that a step of the isolation had failed, and `auto` went down to guard."""
    library = build(tmp_path, at_load=f'say (NVS_MSG_FAILED, NVS_STEP_{step}, "refused")')
    with pytest.raises(SandboxStartError) as caught:
        nvml_isolated(library=library).__enter__()
    assert not isinstance(caught.value, SandboxUnavailable)
    assert "when that is over" in str(caught.value)


def test_texts_of_the_library_move_no_cursor(tmp_path: Path) -> None:
    """U19: what it says of a failure of its own is text for terminals."""
    library = build(tmp_path, at_load=r'say (NVS_MSG_FAILED, NVS_STEP_INIT, "\033[2J\nroot: all is well")')
    with pytest.raises(SandboxStartError) as caught:
        nvml_isolated(library=library).__enter__()
    assert str(caught.value).isprintable()


STRAY = {
    "packets of no bytes": "for (int i = 0; i < 20; i++) (void)send (NVS_CONTROL_FD, &failed, 0, 0)",
    "a packet that is none": "(void)send (NVS_CONTROL_FD, &failed, 5, 0)",
    "READY once more": 'say (NVS_MSG_READY, 0, "")',
    "a step down": 'say (NVS_MSG_FAILED, NVS_STEP_MOUNT_NS, "refused")',
    "the end of the connection": "(void)shutdown (NVS_CONTROL_FD, SHUT_RDWR)",
}


@pytest.mark.parametrize("stray", STRAY)
def test_a_broken_protocol_is_a_death(tmp_path: Path, stray: str) -> None:
    """T3: it cost 4.1 s with a limit of one, and every later call too, of a worker that lived on. A channel of another
    thread's is what reads the connection."""
    library = build(tmp_path, at_call=STRAY[stray])
    with nvml_isolated(library=library, timeout=5) as nvml:
        assert nvml.nvmlDeviceGetCount() == 3
        first = nvml.session.pid
        begun = time.monotonic()
        nvml.session.keeper.worker._channels.lane = None  # as in a thread that has no channel yet
        with contextlib.suppress(pynvml.NVMLError):
            nvml.nvmlSystemGetDriverVersion()
        assert time.monotonic() - begun < 5
        assert nvml.session.pid != first
        assert nvml.session.stats()["deaths"] >= 1
        with pytest.raises(pynvml.NVMLError_FunctionNotFound):
            nvml.nvmlSystemGetDriverVersion()
