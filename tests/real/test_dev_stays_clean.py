# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's own library, without a driver: used directly it makes a node in the host's /dev; in the sandbox, at every
step of the ladder, it does not."""

from __future__ import annotations

from typing import Any

import pytest
from host import NOBODY, Host

pytestmark = pytest.mark.real


def direct(library: str) -> dict[str, Any]:
    import ctypes

    import host
    import pynvml

    before = host.listing()
    watch = host.Watch()
    pynvml.nvmlLib = ctypes.CDLL(library)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raised = host.outcome(error)
    after = host.listing()
    return {
        "raised": raised,
        "new": {path: facts for path, facts in after.items() if path not in before},
        "events": watch.events(),
    }


def sandboxed(library: str, isolation: str) -> dict[str, Any]:
    import host
    import pynvml

    import nvsandbox

    before = host.listing()
    watch = host.Watch()
    state = host.state_of_process()
    raised = []
    for _ in range(3):
        try:
            with nvsandbox.nvml_isolated(library=library, isolation=isolation):
                pass
        except pynvml.NVMLError as error:
            raised.append(host.outcome(error) | {"is": isinstance(error, pynvml.NVMLError_DriverNotLoaded)})
    return {
        "raised": raised,
        "before": before,
        "after": host.listing(),
        "events": watch.events(),
        "state_before": state,
        "state_after": host.state_of_process(),
    }


def test_direct_use_makes_a_node(host: Host, real_library: str) -> None:
    """The bug. It also shows that what the other tests look with does see it."""
    found = host.run(direct, library=real_library)
    assert "NVMLError_DriverNotLoaded" in found["raised"]["mro"]
    mode, rdev, *_ = found["new"]["/dev/nvidiactl"]
    assert (mode, rdev) == (oct(0o20666), (195, 255))
    assert found["new"]["/dev/char/195:255"][-1] == "../nvidiactl"
    assert "/dev/nvidiactl" in found["events"]


STEPS = [
    pytest.param("mount", None, id="mount-root"),
    pytest.param("user", None, id="user-root"),
    pytest.param("guard", None, id="guard-root"),
    pytest.param("auto", None, id="auto-root"),
    pytest.param("user", NOBODY, id="user-nobody"),
    pytest.param("guard", NOBODY, id="guard-nobody"),
    pytest.param("auto", NOBODY, id="auto-nobody"),
]


@pytest.mark.parametrize(("isolation", "uid"), STEPS)
def test_sandboxed_use_makes_none(host_with_nobody: Host, real_library: str, isolation: str, uid: int | None) -> None:
    found = host_with_nobody.run(sandboxed, library=real_library, isolation=isolation, uid=uid)
    assert [raised["is"] for raised in found["raised"]] == [True, True, True]
    assert "Driver Not Loaded" in found["raised"][0]["text"]
    assert found["events"] == []
    assert found["after"] == found["before"]
    assert found["state_after"] == found["state_before"]


def test_auto_without_user_namespaces(host_with_nobody: Host, real_library: str) -> None:
    found = host_with_nobody.run(
        sandboxed, library=real_library, isolation="auto", uid=NOBODY, user_namespaces="refused"
    )
    assert [raised["is"] for raised in found["raised"]] == [True, True, True]
    assert "'guard'" in found["raised"][0]["text"]
    assert found["events"] == []
    assert found["after"] == found["before"]
