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
    try:
        with nvml_isolated(timeout=10) as nvml:
            handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
            uuids = [nvml.nvmlDeviceGetUUID(handle) for handle in handles]
    except (SandboxError, pynvml.NVMLError) as error:  # no driver, for one
        print(f"no GPUs: {error}")
    else:
        print(f"{len(uuids)} GPUs: {', '.join(uuids)}")


def main() -> None:
    with watch() as events:  # before the first listing, so that nothing is missed
        publish()
        for event in events:
            print(f"{event.kind}: {event.bus_id or event.driver or event.node or 'list anew'}")
            while (event := events.get(SETTLE)) is not None:
                print(f"{event.kind}: {event.bus_id or event.driver or event.node or 'list anew'}")
            publish()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
