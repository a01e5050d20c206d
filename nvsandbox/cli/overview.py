# SPDX-License-Identifier: Apache-2.0
"""``nvsandbox query``: identity, memory, load, temperature and power of the GPUs, and their MIG devices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from nvsandbox import inventory
from nvsandbox.cli import listing
from nvsandbox.cli.listing import Report
from nvsandbox.cli.view import about


class Overview:
    """The GPUs with these indexes, or all. `processes` is for programs alone."""

    appends = False

    def __init__(self, indexes: Sequence[int] | None, processes: bool) -> None:
        self._indexes = indexes
        self._processes = processes

    def read(self, nvml: Any) -> Report:
        # In this order, for the worker may be another one afterwards.
        origin = about(nvml)
        gpus = inventory.gpus(nvml, processes=self._processes, indexes=self._indexes)
        return Report(origin, inventory.system(nvml), gpus)

    def lines(self, data: Report) -> Iterable[str]:
        return listing.plain(data)

    def styled(self, data: Report, console: Any) -> None:
        listing.table(data, console)

    def problems(self, data: Report) -> Iterable[str]:
        return listing.problems(data)

    def as_json(self, data: Report) -> dict[str, Any]:
        return {
            **data.about,
            **asdict(data.system),
            "totals": data.totals(),
            "gpus": [asdict(gpu) for gpu in data.gpus],
        }
