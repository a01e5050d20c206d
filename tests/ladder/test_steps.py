# SPDX-License-Identifier: Apache-2.0
"""Which step of the isolation ladder is taken where, and what the worker may do at each."""

from __future__ import annotations

from typing import Any

import pytest
from host import NOBODY, Host

CAP_SYS_ADMIN = 1 << 21
CAP_MKNOD = 1 << 27


def look(**options: Any) -> dict[str, Any]:
    """A session, from outside: from the kernel, not from what it says of itself."""
    import os

    import host

    import nvsandbox

    try:
        with nvsandbox.nvml_isolated(simulate="h100x4", **options) as nvml:
            pid = nvml.session.pid
            return {
                "isolation": nvml.session.isolation,
                "count": nvml.nvmlDeviceGetCount(),
                "privileges": host.privileges(pid),
                "own_privileges": host.privileges(),
                "namespaces": host.namespaces(pid),
                "own_namespaces": host.namespaces(),
                "dev": host.mount_at("/dev", pid),
                "nodes": [str(node) for node in nvml.session.dev_nodes()],
                "descriptors": host.descriptors(pid),
                "own_descriptors": [os.readlink(f"/proc/self/fd/{n}") for n in range(3)],
                "session": os.getsid(pid),
                "own_session": os.getsid(0),
                "pid": pid,
                "core_limit": [
                    line for line in open(f"/proc/{pid}/limits").read().splitlines() if line.startswith("Max core")
                ],
                "cwd": os.readlink(f"/proc/{pid}/cwd"),
            }
    except nvsandbox.SandboxError as error:
        return host.outcome(error)


WHERE = [
    pytest.param("mount", None, "as here", id="root"),
    pytest.param("user", NOBODY, "as here", id="nobody"),
    pytest.param("guard", NOBODY, "refused", id="nobody-refused"),
    pytest.param("guard", NOBODY, "none left", id="nobody-none-left"),
]


@pytest.mark.parametrize(("expected", "uid", "user_namespaces"), WHERE)
def test_auto_takes_the_first_that_works(
    host_with_nobody: Host, expected: str, uid: int | None, user_namespaces: str
) -> None:
    found = host_with_nobody.run(look, uid=uid, user_namespaces=user_namespaces)
    assert found["isolation"] == expected
    assert found["count"] == 4
    isolated = found["namespaces"]["mnt"] != found["own_namespaces"]["mnt"]
    assert isolated == (expected != "guard")
    assert (found["namespaces"]["user"] != found["own_namespaces"]["user"]) == (expected == "user")


@pytest.mark.parametrize(
    ("isolation", "uid"),
    [("mount", None), ("user", None), ("guard", None), ("user", NOBODY), ("guard", NOBODY)],
)
@pytest.mark.parametrize("privileged", [False, True])
def test_what_the_worker_may_do(host_with_nobody: Host, isolation: str, uid: int | None, privileged: bool) -> None:
    found = host_with_nobody.run(look, uid=uid, isolation=isolation, privileged=privileged)
    assert found["isolation"] == isolation
    worker = found["privileges"]
    kept = CAP_MKNOD if isolation == "mount" else 0
    if privileged and uid is None and isolation != "user":
        kept |= CAP_SYS_ADMIN
    assert int(worker["CapEff"], 16) == kept
    assert int(worker["CapPrm"], 16) == kept
    assert int(worker["CapInh"], 16) == int(worker["CapAmb"], 16) == 0
    if uid is None or isolation == "user":  # emptying the bounding set needs CAP_SETPCAP
        assert int(worker["CapBnd"], 16) == kept
    assert (worker["NoNewPrivs"], worker["Seccomp"]) == ("1", "2")
    assert worker["Uid"] == found["own_privileges"]["Uid"], "the caller's user, mapped to itself"
    assert worker["Gid"] == found["own_privileges"]["Gid"]
    # What NVML says about processes is about the caller's pid namespace.
    for name in ("pid", "net", "ipc", "uts", "cgroup"):
        assert found["namespaces"][name] == found["own_namespaces"][name]
    if isolation != "guard":
        assert found["dev"][0] == "tmpfs"
        assert found["namespaces"]["mnt"] != found["own_namespaces"]["mnt"]


@pytest.mark.parametrize("isolation", ["mount", "user", "guard"])
def test_what_the_worker_holds_of_its_caller(host: Host, isolation: str) -> None:
    found = host.run(look, isolation=isolation)
    descriptors = found["descriptors"]
    assert [descriptors[n] for n in range(3)] == ["/dev/null"] * 3
    assert "/dev/null" not in found["own_descriptors"][1:], "the caller's output is not /dev/null in this test"
    assert all(
        target.startswith(("/dev/null", "socket:", "anon_inode:", "/memfd:", "/dev/nvidia", "pipe:"))
        for target in descriptors.values()
    ), descriptors
    # One, which came with START: by a byte in it the caller has the kernel end the worker.
    assert sum(target.startswith("pipe:") for target in descriptors.values()) <= 1, descriptors
    assert found["session"] == found["pid"] != found["own_session"], "Ctrl-C does not reach it"
    # 1 and not 0: a core_pattern that is a pipe gets the dump whatever the limit is, but for 1.
    assert found["core_limit"][0].split()[4:6] in (["0", "0"], ["1", "1"])
    assert found["cwd"] == "/"


@pytest.mark.parametrize(
    ("isolation", "user_namespaces", "missing"),
    [
        ("mount", "as here", "CAP_SYS_ADMIN"),
        ("mount", "refused", "CAP_SYS_ADMIN"),
        ("user", "refused", "kernel.unprivileged_userns_clone"),
        ("user", "none left", "user.max_user_namespaces"),
    ],
)
def test_what_was_asked_for_is_never_stepped_down_from(
    host_with_nobody: Host, isolation: str, user_namespaces: str, missing: str
) -> None:
    found = host_with_nobody.run(look, uid=NOBODY, isolation=isolation, user_namespaces=user_namespaces)
    assert found.get("type") == "SandboxUnavailable", found
    assert f"isolation={isolation!r}" in found["text"]
    assert missing in found["text"]
    assert [step for step, _ in found["attempts"]] == [isolation]


@pytest.mark.parametrize("isolation", ["mount", "user", "guard"])
def test_devices_hides_the_others(host: Host, isolation: str) -> None:
    found = host.run(look, isolation=isolation, devices=[0, 2])
    assert found["count"] == 2
    gpus = [node for node in found["nodes"] if node.removeprefix("/dev/nvidia").isdigit()]
    # The simulator makes nodes, as NVML does, where it can.
    assert gpus == (["/dev/nvidia0", "/dev/nvidia2"] if isolation == "mount" else [])


def fifty(isolation: str) -> dict[str, Any]:
    import host

    import nvsandbox

    def once() -> None:
        with nvsandbox.nvml_isolated(simulate="h100x2", isolation=isolation) as nvml:
            assert nvml.nvmlDeviceGetCount() == 2

    once()
    before, listing = host.state_of_process(), host.listing()
    with host.watching() as watch:
        for _ in range(50):
            once()
    return {
        "before": before,
        "after": host.state_of_process(),
        "events": watch.seen,
        "listing_before": listing,
        "listing_after": host.listing(),
    }


@pytest.mark.parametrize(("isolation", "uid"), [("mount", None), ("user", NOBODY), ("guard", NOBODY), ("guard", None)])
def test_fifty_sessions_change_nothing_of_the_caller(host_with_nobody: Host, isolation: str, uid: int | None) -> None:
    """Namespaces, mounts, capabilities, descriptors, children, and the host's /dev."""
    found = host_with_nobody.run(fifty, isolation=isolation, uid=uid)
    assert found["after"] == found["before"]
    assert found["events"] == []
    assert found["listing_after"] == found["listing_before"]
