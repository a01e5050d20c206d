# SPDX-License-Identifier: Apache-2.0
"""Arguments that no call can carry: refused before anything of them is copied, as an error of NVML's."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tracemalloc

import pynvml
import pytest
from host import require

from nvsandbox import nvml_isolated

COUNT = 2_000_000  # processes: pynvml makes room for twice as many, of 24 bytes each
SOURCE = f"""
int nvmlInitWithFlags (unsigned flags) {{ (void)flags; return 0; }}
int nvmlInit_v2 (void) {{ return 0; }}
int nvmlShutdown (void) {{ return 0; }}
int nvmlSystemGetCudaDriverVersion (int *version) {{ *version = 12080; return 0; }}
int nvmlDeviceGetComputeRunningProcesses_v3 (void *device, unsigned *count, void *infos)
{{
    (void)device; (void)infos;
    *count = {COUNT};
    return {pynvml.NVML_ERROR_INSUFFICIENT_SIZE};
}}
"""


@pytest.fixture
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc") or ""
    require(compiler, "needs a C compiler")
    path = tmp_path_factory.mktemp("counts") / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)], input=SOURCE, text=True, check=True)
    return str(path)


def test_a_count_that_cannot_be(library: str) -> None:
    """T2: what pynvml allocates for it is all that is allocated, and the error is one of NVML's that says why."""
    with nvml_isolated(library=library) as nvml:
        tracemalloc.start()
        try:
            with pytest.raises(pynvml.NVMLError_Memory) as caught:
                nvml.nvmlDeviceGetComputeRunningProcesses(None)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        size = (2 * COUNT + 5) * ctypes.sizeof(pynvml.c_nvmlProcessInfo_v2_t)
        assert size < peak < 1.1 * size
        assert "nvmlDeviceGetComputeRunningProcesses_v3" in str(caught.value)
        assert f"{size + 4} bytes" in str(caught.value)  # with the count itself
        assert nvml.nvmlSystemGetCudaDriverVersion() == 12080
        assert nvml.session.stats()["deaths"] == 0


def test_bytes_are_measured_as_well(library: str) -> None:
    """T2: whatever the memory is that an argument refers to."""
    with nvml_isolated(library=library) as nvml:
        function = nvml._nvmlGetFunctionPointer("nvmlDeviceGetComputeRunningProcesses_v3")
        large = bytes(64 << 20)
        array = (ctypes.c_ubyte * (64 << 20)).from_buffer(bytearray(large))
        pointer = ctypes.cast(array, ctypes.POINTER(ctypes.c_ubyte))
        for argument in (large, array, ctypes.byref(array), pointer):
            with pytest.raises(pynvml.NVMLError_Memory):
                function(None, argument, None)
