# SPDX-License-Identifier: Apache-2.0
"""One question to NVML in a Python of its own: ``query.py KEY INDEX`` prints the answer as JSON."""

import ctypes
import json
import os
import sys

import pynvml
from workloads import WORKLOADS

workload = WORKLOADS[sys.argv[1]]
pynvml.nvmlLib = ctypes.CDLL(os.environ["BENCH_LIBRARY"])
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(int(sys.argv[2]))
print(json.dumps(workload.plain(getattr(pynvml, workload.function)(handle, *workload.arguments))))
pynvml.nvmlShutdown()
