# SPDX-License-Identifier: Apache-2.0
"""What other code, or the system, does to a sandbox from outside."""

from __future__ import annotations

import importlib
import os
import resource
import sys
from typing import Any

import pynvml
import pytest
from host import Host

from nvsandbox import SandboxError, WorkerDied, nvml_isolated


def test_a_node_that_goes_while_nodes_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """FileNotFoundError came through."""
    lstat = os.lstat

    def vanishing(path: Any, **options: Any) -> os.stat_result:
        if str(path).endswith("/nvidia1"):
            raise FileNotFoundError(2, "No such file or directory", path)
        return lstat(path, **options)

    def forbidden(path: Any, **options: Any) -> os.stat_result:
        raise PermissionError(13, "Permission denied", path)

    with nvml_isolated(simulate="h100x2") as nvml:
        before = nvml.session.dev_nodes()
        gone = [node for node in before if node.endswith("/nvidia1")]
        if nvml.session.isolation == "mount":
            assert len(gone) == 1
        monkeypatch.setattr(os, "lstat", vanishing)
        assert nvml.session.dev_nodes() == [node for node in before if node not in gone]
        if before:
            monkeypatch.setattr(os, "lstat", forbidden)
            with pytest.raises(SandboxError, match="cannot list the worker's /dev: Permission denied"):
                nvml.session.dev_nodes()


def test_pynvml_is_not_loaded_anew_in_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain calls went to the library itself from then on, and made nodes on the host."""
    finders = list(sys.meta_path)
    with nvml_isolated(simulate="t4"):
        with nvml_isolated(simulate="t4"), pytest.raises(ImportError, match="its calls would go past the sandbox"):
            importlib.reload(pynvml)
        with monkeypatch.context() as patch:
            patch.delitem(sys.modules, "pynvml")
            with pytest.raises(ImportError, match="its calls would go past the sandbox"):
                importlib.import_module("pynvml")
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetCount() == 1
    assert sys.meta_path == finders


def test_a_filter_that_kills_for_a_step(host: Host) -> None:
    """With "auto" the next step is taken, as where the step's system call fails. It raised WorkerDied."""

    def inside() -> Any:
        import signal

        import host as stand_in

        from nvsandbox import WorkerDied, nvml_isolated

        stand_in._filter([("unshare", None, 0, 0x80000000)])  # SECCOMP_RET_KILL_PROCESS
        with nvml_isolated(simulate="t4") as nvml:
            found = [nvml.session.isolation, nvml.nvmlDeviceGetCount()]
        for asked in ("mount", "user"):
            try:
                with nvml_isolated(simulate="t4", isolation=asked):
                    pass
            except WorkerDied as error:
                found.append(error.signal == signal.SIGSYS)
        return found

    assert host.run(inside) == ["guard", 1, True, True]


def test_too_small_a_stack_is_named() -> None:
    """It was a SIGSEGV and no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (8192, hard))
    try:
        with pytest.raises(WorkerDied, match=r"RLIMIT_STACK, ulimit -s"):
            nvml_isolated(simulate="t4").__enter__()
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))
