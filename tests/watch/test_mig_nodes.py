# SPDX-License-Identifier: Apache-2.0
"""MIG instances that come, go and come again under a running worker: it sees them, and their nodes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import host
import pytest

from nvsandbox import nvml_isolated

PROFILE = 19  # 1g.10gb on an H100
LAYOUT = "h100,mig=3g.40gb"


def capabilities(nvml: Any) -> dict[str, tuple[int, int]]:
    """The capability nodes in the worker's /dev: name to major and minor."""
    nodes = nvml.session.dev_nodes()
    return {node.rpartition("/")[2]: (node.major, node.minor) for node in nodes if "/nvidia-caps/" in node}


def mig_uuids(nvml: Any, gpu: Any) -> set[str]:
    found = set()
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            found.add(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)))
        except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):  # none, or gone between the two calls
            continue
    return found


@pytest.fixture
def nvml() -> Iterator[Any]:
    host.require(host.can_play_host(), "needs CAP_SYS_ADMIN, which changing MIG does too")
    with nvml_isolated(simulate=LAYOUT, isolation="mount", privileged=True) as nvml:
        yield nvml


def test_nodes_of_instances_come_with_them(nvml: Any) -> None:
    outside = host.listing("/dev")
    pid = nvml.session.pid
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    before = capabilities(nvml)
    assert {"nvidia-cap1", "nvidia-cap2"} < set(before)  # config and monitor

    instance = nvml.nvmlDeviceCreateGpuInstance(gpu, PROFILE)
    with_gpu_instance = capabilities(nvml)
    assert len(with_gpu_instance) == len(before) + 1
    nvml.nvmlGpuInstanceCreateComputeInstance(instance, nvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE)
    with_both = capabilities(nvml)
    assert len(with_both) == len(before) + 2
    assert before.items() < with_gpu_instance.items() < with_both.items()
    for name, (major, minor) in with_both.items():
        assert (major, name) == (before["nvidia-cap1"][0], f"nvidia-cap{minor}")

    assert nvml.session.pid == pid
    assert host.listing("/dev") == outside


def test_instances_destroyed_and_made_again(nvml: Any) -> None:
    pid = nvml.session.pid
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    first = mig_uuids(nvml, gpu)
    assert len(first) == 1
    for _ in range(20):
        instance = nvml.nvmlDeviceCreateGpuInstance(gpu, PROFILE)
        compute = nvml.nvmlGpuInstanceCreateComputeInstance(instance, nvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE)
        assert len(mig_uuids(nvml, gpu) - first) == 1
        number = nvml.nvmlGpuInstanceGetInfo(instance).id
        assert number == nvml.nvmlGpuInstanceGetInfo(nvml.nvmlDeviceGetGpuInstanceById(gpu, number)).id
        nvml.nvmlComputeInstanceDestroy(compute)
        nvml.nvmlGpuInstanceDestroy(instance)
        assert mig_uuids(nvml, gpu) == first
        with pytest.raises(nvml.NVMLError):
            nvml.nvmlGpuInstanceGetInfo(instance)
    assert nvml.session.pid == pid
    assert nvml.session.stats()["deaths"] == 0


def test_mig_switched_off_and_on() -> None:
    host.require(host.can_play_host(), "needs CAP_SYS_ADMIN, which changing MIG does too")
    with nvml_isolated(simulate="h100", isolation="mount", privileged=True) as nvml:
        pid = nvml.session.pid
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        before = capabilities(nvml)
        for _ in range(3):
            nvml.nvmlDeviceSetMigMode(gpu, 1)
            instance = nvml.nvmlDeviceCreateGpuInstance(gpu, PROFILE)
            compute = nvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
            assert len(mig_uuids(nvml, gpu)) == 1
            assert len(capabilities(nvml)) >= len(before) + 2
            nvml.nvmlComputeInstanceDestroy(compute)
            nvml.nvmlGpuInstanceDestroy(instance)
            nvml.nvmlDeviceSetMigMode(gpu, 0)
            assert nvml.nvmlDeviceGetMigMode(gpu) == [0, 0]
        assert nvml.session.pid == pid


def test_a_monitor_beside_the_change(nvml: Any) -> None:
    """Threads that list all the while see the instance that stays, and the one that comes and goes or not."""
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    first = mig_uuids(nvml, gpu)
    stop = threading.Event()
    sizes: set[int] = set()
    errors: list[BaseException] = []

    def monitor() -> None:
        try:
            while not stop.is_set():
                seen = mig_uuids(nvml, gpu)
                assert first <= seen
                sizes.add(len(seen))
                capabilities(nvml)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=monitor) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(50):
            instance = nvml.nvmlDeviceCreateGpuInstance(gpu, PROFILE)
            compute = nvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
            nvml.nvmlComputeInstanceDestroy(compute)
            nvml.nvmlGpuInstanceDestroy(instance)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not errors
    assert sizes <= {1, 2}


@pytest.mark.parametrize("isolation", ["user", "guard"])
def test_where_no_node_can_be_made(isolation: str) -> None:
    """NVML answers for the new instance; there is no node for it, neither in the worker's /dev nor outside."""
    host.require(host.can_play_host(), "needs CAP_SYS_ADMIN, which changing MIG does too")
    outside = host.listing("/dev")
    with nvml_isolated(simulate=LAYOUT, isolation=isolation, privileged=True) as nvml:
        nodes = nvml.session.dev_nodes()
        gpu = nvml.nvmlDeviceGetHandleByIndex(0)
        change: Callable[[], Any] = lambda: nvml.nvmlDeviceCreateGpuInstance(gpu, PROFILE)  # noqa: E731
        if isolation == "user":  # the capability is good in its own user namespace alone
            with pytest.raises(nvml.NVMLError_NoPermission):
                change()
        else:
            nvml.nvmlGpuInstanceCreateComputeInstance(change(), 0)
            assert len(mig_uuids(nvml, gpu)) == 2
        assert nvml.session.dev_nodes() == nodes
    assert host.listing("/dev") == outside
