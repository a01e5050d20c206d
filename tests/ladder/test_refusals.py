# SPDX-License-Identifier: Apache-2.0
"""A security module or a container's profile lets one step of the set-up pass and refuses the next.

Whatever is refused: nothing is mounted or made outside, an explicit step is not stepped down from, and where the worker
does run, it is isolated.
"""

from __future__ import annotations

from typing import Any

import pytest
from host import Host


def refused(isolation: str, call: str, number: int, err: int) -> dict[str, Any]:
    """A session while the `number`-th `call` of each worker is refused; 0: none is, and they are counted."""
    import os

    import host

    import nvsandbox

    with nvsandbox.nvml_isolated(simulate="h100x2"):
        pass  # what Python imports late and opens, while it holds its lock, would wait for itself below
    listing, table = host.listing(), host.mounts()
    counts: dict[int, int] = {}

    def decide(name: str, _: int, arguments: tuple[int, ...], pid: int) -> int:
        if name == "openat" and not host.text_at(pid, arguments[1]).endswith("_map"):
            return 0
        counts[pid] = counts.get(pid, 0) + 1
        return err if counts[pid] == number else 0

    host.Supervisor((call,), decide)
    found: dict[str, Any] = {}
    with host.watching() as watch:
        try:
            with nvsandbox.nvml_isolated(simulate="h100x2", isolation=isolation) as nvml:
                session = nvml.session
                found["isolation"] = session.isolation
                found["count"] = nvml.nvmlDeviceGetCount()
                found["dev"] = host.mount_at("/dev", session.pid)
                found["own_namespace"] = host.namespaces(session.pid)["mnt"] == host.namespaces()["mnt"]
                found["seccomp"] = host.privileges(session.pid)["Seccomp"]
        except nvsandbox.SandboxError as error:
            found["error"] = host.outcome(error)
    found["children"] = [p for p, (_, parent) in host.processes().items() if parent == os.getpid()]
    found["calls"] = max(counts.values(), default=0)
    found["same"] = (host.listing() == listing, host.mounts() == table, watch.seen)
    return found


MOUNTS = {"mount": 5, "user": 18}
"""More than the set-up makes of each: what is above its number is the case in which nothing is refused."""


EVERY = [
    *[(isolation, "mount", n) for isolation, most in MOUNTS.items() for n in range(1, most + 1)],
    ("mount", "unshare", 1),
    ("user", "unshare", 1),
    *[("user", "openat", n) for n in range(1, 3)],  # uid_map, gid_map
    *[("mount", "mknodat", n) for n in (1, 3)],
]


@pytest.mark.parametrize("isolation", MOUNTS)
def test_every_mount_is_met(host: Host, isolation: str) -> None:
    found = host.run(refused, isolation=isolation, call="mount", number=0, err=0)
    assert found["isolation"] == isolation
    assert 2 < found["calls"] < MOUNTS[isolation]


@pytest.mark.parametrize(
    ("isolation", "call", "number", "shared_root"),
    [*[(*case, True) for case in EVERY], *[(*case, False) for case in EVERY if case[2] < 3]],
)
def test_nothing_happens_outside(host: Host, isolation: str, call: str, number: int, shared_root: bool) -> None:
    found = host.run(refused, isolation=isolation, call=call, number=number, err=13, shared_root=shared_root)
    assert found["same"] == (True, True, [])
    assert found["children"] == []
    error = found.get("error")
    if error is not None:
        assert error["type"] in ("SandboxUnavailable", "SandboxStartError")
        assert "errno 13" in error["text"]
        if error["type"] == "SandboxUnavailable":
            assert [step for step, _ in error["attempts"]] == [isolation]
    else:
        # What was refused is of no account (a terminal, a node that is bound where it cannot be made).
        assert found["isolation"] == isolation
        assert found["dev"][0] == "tmpfs"
        assert not found["own_namespace"]
        assert found["count"] == 2
    if (call, number) in {("mount", 1), ("mount", 2), ("unshare", 1)}:
        assert error is not None, "propagation, the tmpfs and the namespace are not optional"


@pytest.mark.parametrize(("call", "number"), [("unshare", 1), ("mount", 1), ("mount", 2)])
def test_auto_goes_on_with_a_step_that_works(host: Host, call: str, number: int) -> None:
    """Each worker's call is refused, so in the end it is the step that needs none."""
    found = host.run(refused, isolation="auto", call=call, number=number, err=1)
    assert found["isolation"] == "guard"
    assert found["seccomp"] == "2"
    assert found["count"] == 2
    assert found["same"] == (True, True, [])


def claimed(call: str) -> dict[str, Any]:
    """A refusal that looks like success: some sandboxes answer 0 to what they do not carry out."""
    import host

    import nvsandbox

    listing, table = host.listing(), host.mounts()

    class Liar(host.Supervisor):
        def _answer(self, err: int) -> tuple[int, int]:
            return 0, 0

    Liar((call,), lambda *_: 0)
    found: dict[str, Any] = {}
    with host.watching() as watch:
        for isolation in ("mount", "user"):
            try:
                with nvsandbox.nvml_isolated(simulate="h100x2", isolation=isolation):
                    found[isolation] = "ran"
            except nvsandbox.SandboxError as error:
                found[isolation] = type(error).__name__
    found["same"] = (host.listing() == listing, host.mounts() == table, watch.seen)
    return found


@pytest.mark.parametrize("shared_root", [False, True], ids=["private", "shared"])
@pytest.mark.parametrize("call", ["unshare", "mount"])
def test_success_is_not_taken_for_proof(host: Host, call: str, shared_root: bool) -> None:
    found = host.run(claimed, call=call, shared_root=shared_root)
    assert found["mount"] in ("SandboxUnavailable", "SandboxStartError")
    assert found["user"] in ("SandboxUnavailable", "SandboxStartError")
    assert found["same"] == (True, True, [])
