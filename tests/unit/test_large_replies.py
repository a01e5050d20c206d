# SPDX-License-Identifier: Apache-2.0
"""Replies that do not fit a lane, for the strings that the library put into them: the function runs once."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess

import pynvml
import pytest
from host import require

from nvsandbox import WorkerDied, marshal, nvml_isolated
from nvsandbox._core import lib

# Each call of nvmlGpmMetricsGet counts, and puts a text of its own of `length` bytes behind each name.
LIBRARY = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "metrics.h"
static unsigned calls, length = 1;
int nvmlInitWithFlags (unsigned flags) { (void)flags; return 0; }
int nvmlInit_v2 (void) { return 0; }
int nvmlShutdown (void) { return 0; }
int nvmlSystemGetCudaDriverVersion (int *version) { *version = (int)calls; return 0; }
int nvmlSystemGetNVMLVersion (char *text, unsigned size) { (void)size; length = (unsigned)atoi (text); return 0; }
static const char *text_of (unsigned number)
{
    char *text = malloc (length + 1);
    memset (text, 'a' + number % 26, length);
    snprintf (text, length + 1, "%u", number);
    text[strlen (text)] = ' ';
    text[length] = 0;
    return text;
}
int nvmlGpmMetricsGet (struct get *get)
{
    calls++;
    for (unsigned i = 0; i < COUNT; i++) {
        get->metrics[i].names[0] = text_of (3 * i);
        get->metrics[i].names[1] = text_of (3 * i + 1);
        get->metrics[i].names[2] = text_of (3 * i + 2);
    }
    return 0;
}
"""
HEADER = """
#define COUNT %d
struct metric { unsigned id, result; double value; const char *names[3]; };
struct get { unsigned version, count; void *samples[2]; struct metric metrics[COUNT]; };
"""
COUNT = pynvml.c_nvmlGpmMetricsGet_t.metrics.size // ctypes.sizeof(pynvml.c_nvmlGpmMetric_t)
LARGE = 4000  # 3 * COUNT of these are several times what a lane holds


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc") or ""
    require(compiler, "needs a C compiler")
    folder = tmp_path_factory.mktemp("large")
    (folder / "metrics.h").write_text(HEADER % COUNT)
    path = folder / "libnvidia-ml.so.1"
    command = [compiler, "-shared", "-fPIC", "-I", str(folder), "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=LIBRARY, text=True, check=True)
    return str(path)


def get_metrics(nvml: object) -> list[bytes]:
    get = pynvml.c_nvmlGpmMetricsGet_t()
    assert nvml.nvmlGpmMetricsGet(get) is get  # type: ignore[attr-defined]
    return [
        getattr(get.metrics[i].metricInfo, name) for i in range(COUNT) for name, _ in pynvml.c_metricInfo_t._fields_
    ]


def expected(length: int) -> list[bytes]:
    texts = []
    for number in range(3 * COUNT):
        head = b"%d " % number
        texts.append(head + bytes([ord("a") + number % 26]) * (length - len(head)))
    return texts


def set_length(nvml: object, length: int) -> None:
    text = ctypes.create_string_buffer(str(length).encode(), 80)
    assert pynvml._nvmlGetFunctionPointer("nvmlSystemGetNVMLVersion")(text, 80) == 0


@pytest.mark.parametrize("transport", ["shm", "pipe"])
def test_a_reply_that_does_not_fit_is_fetched(library: str, transport: str) -> None:
    """Defect 2: the function has run when it is found that its reply is too large; it does not run again."""
    assert 3 * COUNT * LARGE > 2 * lib.NVS_LANE_FRAME
    with nvml_isolated(library=library, transport=transport) as nvml:
        for calls, length in enumerate((8, LARGE, LARGE, 8), 1):
            set_length(nvml, length)
            assert get_metrics(nvml) == expected(length)
            assert nvml.nvmlSystemGetCudaDriverVersion() == calls
        assert nvml.session.stats()["deaths"] == 0


def test_a_death_while_it_is_fetched_is_one_of_a_call_that_ran(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect 2: it is not repeated in the next worker either."""
    fetch_frame = marshal.fetch_frame

    with nvml_isolated(library=library, transport="shm") as nvml:
        set_length(nvml, LARGE)
        worker = nvml.session.pid

        def kill_first(offset: int) -> bytearray:
            os.kill(worker, signal.SIGKILL)
            return fetch_frame(offset)

        monkeypatch.setattr(marshal, "fetch_frame", kill_first)
        with pytest.raises(WorkerDied) as caught:
            get_metrics(nvml)
        assert caught.value.sent
        assert nvml.nvmlSystemGetCudaDriverVersion() == 0  # the next worker's library has not run it
