# SPDX-License-Identifier: Apache-2.0
"""B, C, G: what NVML answers when it is at its worst. The API is as pynvml, without the sandbox, has it."""

from __future__ import annotations

from typing import Any

import pynvml
import pytest
from host import Host, require_isolation

from nvsandbox import nvml_isolated, simulate


def both(description: str, library: str, calls: list[str], transports: list[str]) -> list[list[dict[str, Any]]]:
    """Runs on a stand-in: what each of `calls` (source text over `n`, the module, and `h`, its handles) does with plain
    pynvml and then in the sandbox, over each transport."""
    import ctypes
    import os

    import host
    import pynvml

    from nvsandbox import nvml_isolated

    def plain(value: Any) -> Any:
        if isinstance(value, ctypes.Structure | ctypes.Union):
            return {"bytes": bytes(value)} | {
                name: plain(getattr(value, name))
                for name, kind, *_ in value._fields_
                if not isinstance(kind, type(ctypes.POINTER(ctypes.c_int)))
            }
        if isinstance(value, ctypes.Array | list | tuple):
            return [plain(item) for item in value]
        if isinstance(value, pynvml.c_nvmlDevice_t):
            return "handle"
        if isinstance(value, pynvml.nvmlFriendlyObject):
            return vars(value)
        return value

    def all_of(n: Any) -> list[dict[str, Any]]:
        h = [host.attempt(lambda i=i: n.nvmlDeviceGetHandleByIndex(i)).get("result") for i in range(4)]
        return [host.attempt(lambda call=call: plain(eval(call, {"n": n, "h": h, "ctypes": ctypes}))) for call in calls]

    def names(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**each, "mro": [name for name in each["mro"] if name[:4] in ("NVML", "Unic")]} for each in found]

    found = []
    for transport in transports:
        with nvml_isolated(simulate=description, transport=transport) as nvml:
            found.append(names(all_of(nvml)))
        with nvml_isolated(simulate=description, transport=transport):
            pynvml.nvmlInit()
            found.append(names(all_of(pynvml)))
    os.environ["NVSANDBOX_SIM"] = description
    pynvml.nvmlLib = ctypes.CDLL(library)
    pynvml.nvmlInit()
    direct = names(all_of(pynvml))
    pynvml.nvmlShutdown()
    return [direct, *found]


def compare(host: Host, description: str, calls: list[str]) -> list[dict[str, Any]]:
    """What each call does with plain pynvml, having found that it does the same in the sandbox."""
    library = str(simulate.parse(description).library)
    direct, *sandboxed = host.run(
        both, description=description + ",frozen=1", library=library, calls=calls, transports=["shm", "pipe"]
    )
    for each in sandboxed:
        assert each == direct
    return direct


def test_b1_garbage_in_names(host: Host) -> None:
    """Every other field is still there, and the raw bytes of this one."""
    name, raw, memory, uuid = compare(
        host,
        "h100x2,garbage=1",
        [
            "n.nvmlDeviceGetName(h[0])",
            "(lambda b: (n._nvmlGetFunctionPointer('nvmlDeviceGetName')(h[0], b, ctypes.c_uint(96)), b.raw))"
            "(ctypes.create_string_buffer(96))",
            "n.nvmlDeviceGetMemoryInfo(h[0]).total",
            "n.nvmlDeviceGetUUID(h[1])",
        ],
    )
    assert name["mro"][0] == "UnicodeDecodeError"
    code, content = raw["result"]
    assert code == 0
    assert b"\xf8" in content
    assert b"\0" not in content
    assert memory["result"] > 2**36
    assert uuid["result"].startswith("GPU-")


def test_c1_not_available_is_all_ones(host: Host) -> None:
    memory, used, rates = compare(
        host,
        "h100,na=1",
        [
            "n.nvmlDeviceGetMemoryInfo(h[0]).total",
            "n.nvmlDeviceGetMemoryInfo(h[0], version=n.nvmlMemory_v2).used",
            "n.nvmlDeviceGetUtilizationRates(h[0]).gpu",
        ],
    )
    assert (memory["result"], used["result"]) == (2**64 - 1, 2**64 - 1)
    assert rates["result"] == 2**32 - 1


def test_c3_field_values_each_with_its_own_code(host: Host) -> None:
    ids = [pynvml.NVML_FI_DEV_POWER_INSTANT, *range(1, 10), 999]
    (found,) = compare(
        host,
        "h100,fields=mixed",
        [f"[(v.fieldId, v.nvmlReturn, v.valueType, bytes(v.value)) for v in n.nvmlDeviceGetFieldValues(h[0], {ids})]"],
    )
    values = found["result"]
    assert [value[0] for value in values] == ids
    assert len({value[1] for value in values}) > 1  # return codes
    assert len({value[2] for value in values}) > 2  # types


GROWING = ["n.nvmlDeviceGetComputeRunningProcesses(h[0])", "n.nvmlDeviceGetComputeRunningProcesses(h[1])"]


@pytest.mark.parametrize("knobs", ["grow=1", "procs=0", "procs=5000", "insufficient=1", "grow=1,procs=40"])
def test_c9_lists_that_grow(host: Host, knobs: str) -> None:
    found, _ = compare(host, f"h100x2,{knobs}", GROWING)
    if "procs=0" in knobs:
        assert found["result"] == []
    elif "procs=5000" in knobs:
        assert len(found["result"]) == 5000
    elif "insufficient" in knobs:
        assert "NVMLError_InsufficientSize" in found["mro"]


def test_g1_one_lost_gpu_does_not_hide_the_others(host: Host) -> None:
    calls = ["n.nvmlDeviceGetCount()"]
    calls += [f"n.nvmlDeviceGetHandleByIndex({i})" for i in range(4)]
    calls += [f"n.nvmlDeviceGetName(h[{i}])" for i in range(4)]
    count, *rest = compare(host, "h100x4,lost=1", calls)
    assert count["result"] == 4
    handles, names = rest[:4], rest[4:]
    for index in (0, 2, 3):
        assert handles[index]["mro"] == []
        assert names[index]["result"].startswith("NVIDIA H100")
    assert "NVMLError_GpuIsLost" in names[1]["mro"] or "NVMLError_GpuIsLost" in handles[1]["mro"]


@pytest.mark.parametrize("isolation", ["mount", "user"])
def test_g2_nodes_by_minor_number_names_by_uuid(isolation: str) -> None:
    """NVML's index, the node's number, and the order of either are three things."""
    require_isolation(isolation)
    description = "h100x3,minors=2+0+5"

    def look(**options: Any) -> tuple[list[str], dict[str, int]]:
        with nvml_isolated(simulate=description, isolation=isolation, **options) as nvml:
            handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
            nodes = [node for node in nvml.session.dev_nodes() if node[len("/dev/nvidia") :].isdigit()]
            assert all(int(node[len("/dev/nvidia") :]) == node.minor for node in nodes)
            return [str(node) for node in nodes], {
                nvml.nvmlDeviceGetUUID(handle): nvml.nvmlDeviceGetMinorNumber(handle) for handle in handles
            }

    nodes, minors = look()
    assert list(minors.values()) == [2, 0, 5]
    if isolation == "mount":  # in a user namespace nothing can be made, and there is nothing to bind
        assert nodes == ["/dev/nvidia0", "/dev/nvidia2", "/dev/nvidia5"]
    for chosen in ([2], [0, 5], [5, "nvidia2"]):
        numbers = {int(str(item).removeprefix("nvidia")) for item in chosen}
        some_nodes, some = look(devices=chosen)
        assert some == {uuid: minor for uuid, minor in minors.items() if minor in numbers}
        if isolation == "mount":
            assert some_nodes == [f"/dev/nvidia{number}" for number in sorted(numbers)]
