#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lists the GPUs, and again whenever one of them or the driver comes or goes: what a DRA driver does to publish its
resources. End it with Ctrl-C."""

from __future__ import annotations

import contextlib

import pynvml

from nvsandbox import SandboxError, nvml_isolated, watch

SETTLE = 0.5  # seconds; GPUs and modules come in groups


def publish() -> None:
    uuids: list[str] = []
    lost: list[str] = []
    try:
        with nvml_isolated(timeout=10) as nvml:
            for index in range(nvml.nvmlDeviceGetCount()):
                try:
                    uuids.append(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index)))
                except pynvml.NVMLError as error:  # this GPU alone: it has fallen off the bus, for one
                    lost.append(f"GPU {index}: {error}")
    except (SandboxError, pynvml.NVMLError) as error:  # no driver, for one
        say(f"no GPUs: {error}")
    else:
        count = f"{len(uuids)} of {len(uuids) + len(lost)}" if lost else f"{len(uuids)}"
        say("; ".join([f"{count} GPUs: {', '.join(uuids)}", *lost]))


def say(line: str) -> None:
    print(line, flush=True)  # a pipe, as a log is one, would have it when the buffer is full


def main() -> None:
    with watch() as events:  # before the first listing, so that nothing is missed
        publish()
        for event in events:
            say(f"{event.kind}: {event.bus_id or event.driver or event.node or 'list anew'}")
            while (event := events.get(SETTLE)) is not None:
                say(f"{event.kind}: {event.bus_id or event.driver or event.node or 'list anew'}")
            publish()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
