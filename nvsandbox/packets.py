# SPDX-License-Identifier: Apache-2.0
"""START, packed: the same for the worker and for nvsandbox-run."""

from __future__ import annotations

import os
from collections.abc import Sequence

from nvsandbox import isolation as ladder
from nvsandbox import roots
from nvsandbox._core import ffi, lib
from nvsandbox.options import Options


def debugging() -> bool:
    """Whether ``NVSANDBOX_DEBUG`` asks for more to be said."""
    return os.environ.get("NVSANDBOX_DEBUG", "0") not in ("", "0")


def start(
    options: Options,
    isolation: str,
    minors: Sequence[int] | None,
    description: str | None,
    libraries: Sequence[str],
) -> bytes:
    """START and its strings (csrc/protocol.h). `minors` are those of ``devices``, None for all; `description` is the
    simulator's."""
    strings = b"".join(
        os.fsencode(piece) + b"\0"
        for piece in (
            options.driver_root,
            roots.dev_folder(options.driver_root, options.dev_root),
            description or "",
            *libraries,
        )
    )
    packet = ffi.new("struct nvs_start *")
    packet.message.magic = lib.NVS_MAGIC
    packet.message.type = lib.NVS_MSG_START
    packet.protocol = lib.NVS_PROTOCOL_VERSION
    packet.build = ffi.string(lib.nvs_core_version())
    packet.isolation = ladder.CODES[isolation]
    packet.flags = (
        (lib.NVS_START_PRIVILEGED if options.privileged else 0)
        | (lib.NVS_START_SIMULATED if options.simulate is not None else 0)
        | (lib.NVS_START_VERBOSE if debugging() else 0)
        | (lib.NVS_START_DEVICES if minors is not None else 0)
    )
    packet.devices_count = len(minors or ())
    for index, minor in enumerate(minors or ()):
        packet.device_minors[index] = minor
    packet.libraries_count = len(libraries)
    packet.strings_len = len(strings)
    packet.spinning_max = lib.nvs_looking_max()
    return bytes(ffi.buffer(packet)) + strings
