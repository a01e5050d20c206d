# SPDX-License-Identifier: Apache-2.0
"""``--id``: GPUs by index, UUID, PCI bus id or serial number, as nvidia-smi takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import pynvml

from nvsandbox.asking import bus_id_ways, gpu_asker, gpu_count
from nvsandbox.errors import CallTimeout
from nvsandbox.topology import normal


def indexes(nvml: Any, ids: Sequence[str] | None) -> list[int] | None:
    """The indexes of the GPUs that are meant, in the order in which they are named. None for all of them.

    Raises UsageError for one that there is not, and NVMLError if not even the GPUs' number can be had.
    """
    if ids is None:
        return None
    count = gpu_count(nvml)
    known: dict[str, int] = {str(index): index for index in range(count)}
    if any(id_ not in known for id_ in ids):
        for index in range(count):
            for name in _names(nvml, index):
                known.setdefault(name.lower(), index)
    chosen: list[int] = []
    for id_ in ids:
        found = known.get(id_.lower(), known.get(_bus_id(id_)))
        if found is None:
            raise click.UsageError(
                f"--id {id_}: no GPU has it. Expected an index ({f'0 to {count - 1}' if count else 'there are none'}), "
                "a UUID (GPU-…), a PCI bus id or a serial number: nvsandbox query lists them"
            )
        if found not in chosen:
            chosen.append(found)
    return chosen


def _bus_id(text: str) -> str:
    try:
        return normal(text)
    except ValueError:
        return text


def _names(nvml: Any, index: int) -> list[str]:
    # A GPU that does not answer is not what is meant, as far as can be told.
    try:
        asker = gpu_asker(nvml, index, [])
        ways = [[lambda: asker.text("nvmlDeviceGetUUID", asker.handle)], bus_id_ways(asker)]
        ways.append([lambda: asker.text("nvmlDeviceGetSerial", asker.handle)])
    except pynvml.NVMLError_Uninitialized:
        raise
    except pynvml.NVMLError:
        return []
    names: list[str] = []
    for way in ways:
        try:
            names.append(asker.attempt(*way))
        except pynvml.NVMLError_Uninitialized:
            raise
        except CallTimeout:
            break  # it would hang in the next question too
        except pynvml.NVMLError:
            continue
    return [*names, *(normal(name) for name in names if name.count(":") == 2)]
