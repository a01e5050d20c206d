# SPDX-License-Identifier: Apache-2.0
"""The private /dev: what it shows, and that nothing crosses its border but what should."""

from __future__ import annotations

from typing import Any

import pytest
from host import NOBODY, Host

from nvsandbox import simulate


def contents(isolation: str) -> dict[str, Any]:
    import os
    import stat

    import host

    import nvsandbox

    with nvsandbox.nvml_isolated(simulate="t4", isolation=isolation) as nvml:
        root = f"/proc/{nvml.session.pid}/root"
        found = host.listing(f"{root}/dev")
        kinds = {}
        for path, (mode, rdev, *_, target) in found.items():
            kinds[path.removeprefix(root)] = (stat.filemode(int(mode, 8)), rdev, target)
        return {"kinds": kinds, "flags": host.mounts(nvml.session.pid), "shm": os.access(f"{root}/dev/shm", os.W_OK)}


@pytest.mark.parametrize(("isolation", "uid"), [("mount", None), ("user", None), ("user", NOBODY)])
def test_what_every_library_may_expect_is_there(host_with_nobody: Host, isolation: str, uid: int | None) -> None:
    found = host_with_nobody.run(contents, isolation=isolation, uid=uid)
    kinds = found["kinds"]
    numbers = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
    for name, number in numbers.items():
        assert kinds[f"/dev/{name}"][:2] == ("crw-rw-rw-", number)
    for name in ("fd", "stdin", "stdout", "stderr", "ptmx"):
        assert kinds[f"/dev/{name}"][0].startswith("l")
    assert kinds["/dev/pts"][0].startswith("d")
    assert kinds["/dev/shm"][0] == "drwxrwxrwt"
    assert found["shm"]
    others = {path for path in kinds if path.count("/") == 2} - {f"/dev/{name}" for name in numbers}
    others -= {f"/dev/{name}" for name in ("fd", "stdin", "stdout", "stderr", "ptmx", "pts", "shm", "char")}
    assert all(path.startswith("/dev/nvidia") for path in others)


def shared_folder() -> None:
    import os

    import host

    os.mkdir("/dev/shm/outside", 0o755)
    host.mount("outside", "/dev/shm/outside", "tmpfs")


def across(isolation: str) -> dict[str, Any]:
    """A mount made outside while the worker runs, and one made inside."""
    import os
    import subprocess
    import tempfile

    import host

    import nvsandbox

    folder = tempfile.mkdtemp(prefix="across-")
    host.mount("between", folder, "tmpfs")
    host.mount("none", folder, flags=host.MS_SHARED)
    os.mkdir(f"{folder}/later")
    os.mkdir(f"{folder}/inside")
    try:
        with nvsandbox.nvml_isolated(simulate="t4", isolation=isolation) as nvml:
            pid = nvml.session.pid
            host.mount("later", f"{folder}/later", "tmpfs")
            arrived = host.mount_at(f"{folder}/later", pid)
            at = host.mount_at(folder, pid)
            before = host.mounts()
            made = -1
            if isolation == "mount":
                command = ["nsenter", "-t", str(pid), "-m", "mount", "-t", "tmpfs", "inside", f"{folder}/inside"]
                made = subprocess.run(command, check=False).returncode
            inside = host.mount_at(f"{folder}/inside", pid)
            unchanged = host.mounts() == before
            shared = [line for line in host.mounts(pid) if " shared:" in line.partition(" - ")[0]]
            host.umount(f"{folder}/later")
            gone = host.mount_at(f"{folder}/later", pid)
    finally:
        host.umount(folder)
        os.rmdir(folder)
    return {
        "arrived": arrived,
        "at": at,
        "made": made,
        "inside": inside,
        "unchanged": unchanged,
        "shared": shared,
        "gone": gone,
    }


@pytest.mark.parametrize("isolation", ["mount", "user"])
@pytest.mark.parametrize("shared_root", [False, True])
def test_mounts_arrive_and_none_goes_out(host: Host, isolation: str, shared_root: bool) -> None:
    found = host.run(across, isolation=isolation, shared_root=shared_root)
    assert found["arrived"][0] == "tmpfs", "a driver container's later mounts are seen"
    assert any(field.startswith("master:") for field in found["at"][1])
    assert found["shared"] == []
    assert found["gone"] is None
    assert found["unchanged"]
    if isolation == "mount":
        assert found["made"] == 0
        assert found["inside"][0] == "tmpfs"


# ---- NVIDIA's nodes


def four_gpus() -> None:
    """Nodes as a driver makes them, on the host, and the kernel's list of drivers."""
    import os
    import stat

    import host

    def node(path: str, major: int, minor: int, mode: int = 0o666) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.mknod(path, mode | stat.S_IFCHR, os.makedev(major, minor))
        os.chmod(path, mode)

    def nodes(root: str) -> None:
        for minor in range(4):
            node(f"{root}/nvidia{minor}", 195, minor)
            os.makedirs(f"{root}/char", exist_ok=True)
            os.symlink(f"../nvidia{minor}", f"{root}/char/195:{minor}")
        node(f"{root}/nvidiactl", 195, 255)
        node(f"{root}/nvidia-modeset", 195, 254)
        node(f"{root}/nvidia-uvm", 510, 0)
        node(f"{root}/nvidia-uvm-tools", 510, 1)
        node(f"{root}/nvidia-caps/nvidia-cap1", 235, 1, 0o400)
        node(f"{root}/nvidia-caps/nvidia-cap2", 235, 2, 0o444)
        node(f"{root}/nvidia-caps-imex-channels/channel0", 236, 0, 0o600)
        node(f"{root}/nvidia-nvswitch0", 234, 0)
        node(f"{root}/sda", 8, 0, 0o660)
        node(f"{root}/nvidia9-not", 195, 9)

    nodes("/dev")
    nodes("/dev/shm/driver/dev")
    os.unlink("/dev/shm/driver/dev/nvidia3")
    with open("/dev/shm/devices", "w") as file:
        file.write(
            "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n234 nvidia-nvswitch\n235 nvidia-caps\n"
            "236 nvidia-caps-imex-channels\n510 nvidia-uvm\n\nBlock devices:\n  8 sd\n"
        )
    os.chmod("/dev/shm/devices", 0o444)
    host.mount("/dev/shm/devices", "/proc/devices", flags=host.MS_BIND)


def shown(**options: Any) -> dict[str, Any]:
    import stat

    import host
    import pynvml

    import nvsandbox

    before = host.listing()
    with host.watching() as watch:
        with nvsandbox.nvml_isolated(**options) as nvml:
            root = f"/proc/{nvml.session.pid}/root/dev"
            found = {
                path.removeprefix(root + "/"): (stat.filemode(int(mode, 8)), rdev, target)
                for path, (mode, rdev, *_, target) in host.listing(root).items()
                if "nvidia" in path or "195:" in path or "sda" in path or "imex" in path
            }
            nodes = [(str(node), node.major, node.minor, node.mode) for node in nvml.session.dev_nodes()]
            opened = {}
            for name in ("nvidia0", "nvidiactl"):
                try:
                    open(f"{root}/{name}").close()
                except OSError as error:
                    opened[name] = error.errno
            assert pynvml.nvmlLib is not None
    return {
        "found": found,
        "nodes": nodes,
        "opened": opened,
        "events": watch.seen,
        "same": host.listing() == before,
    }


ALL = {
    **{f"nvidia{minor}": ("crw-rw-rw-", (195, minor)) for minor in range(4)},
    "nvidiactl": ("crw-rw-rw-", (195, 255)),
    "nvidia-modeset": ("crw-rw-rw-", (195, 254)),
    "nvidia-uvm": ("crw-rw-rw-", (510, 0)),
    "nvidia-uvm-tools": ("crw-rw-rw-", (510, 1)),
    "nvidia-caps/nvidia-cap1": ("cr--------", (235, 1)),
    "nvidia-caps/nvidia-cap2": ("cr--r--r--", (235, 2)),
    "nvidia-caps-imex-channels/channel0": ("crw-------", (236, 0)),
    "nvidia-nvswitch0": ("crw-rw-rw-", (234, 0)),
}


def check_nodes(found: dict[str, Any], expected: dict[str, Any]) -> None:
    devices = {name: facts[:2] for name, facts in found["found"].items() if facts[0].startswith("c")}
    assert devices == expected
    links = {name: facts[2] for name, facts in found["found"].items() if facts[0].startswith("l")}
    gpus = [name for name in expected if name.removeprefix("nvidia").isdigit()]
    links.pop("char/195:255", None)  # NVML makes this one itself, where it can
    assert links == {f"char/195:{name.removeprefix('nvidia')}": f"../{name}" for name in gpus}
    assert found["same"]
    assert found["events"] == []
    listed = {name.removeprefix("/dev/"): (major, minor) for name, major, minor, _ in found["nodes"]}
    assert listed == {name: rdev for name, (_, rdev) in expected.items()}


# The library is the simulator's in all of them, but only with simulate= does the worker know.
@pytest.mark.parametrize("how", ["simulate", "library"])
@pytest.mark.parametrize(("isolation", "uid"), [("mount", None), ("user", None), ("user", NOBODY)])
class TestNodes:
    @pytest.fixture
    def options(self, host_with_nobody: Host, how: str, isolation: str) -> dict[str, Any]:
        if how == "simulate":
            return {"simulate": "h100x3", "isolation": isolation}
        return {"library": host_with_nobody.readable(simulate.parse("h100").library), "isolation": isolation}

    def test_of_the_host(self, host_with_nobody: Host, options: dict[str, Any], uid: int | None) -> None:
        found = host_with_nobody.run(shown, setup=four_gpus, uid=uid, **options)
        check_nodes(found, ALL)

    def test_of_some_gpus(self, host_with_nobody: Host, options: dict[str, Any], uid: int | None) -> None:
        found = host_with_nobody.run(shown, setup=four_gpus, uid=uid, devices=[0, 2], **options)
        check_nodes(found, {name: facts for name, facts in ALL.items() if name not in ("nvidia1", "nvidia3")})

    def test_of_a_driver_root(self, host_with_nobody: Host, options: dict[str, Any], uid: int | None) -> None:
        found = host_with_nobody.run(shown, setup=four_gpus, uid=uid, driver_root="/dev/shm/driver", **options)
        check_nodes(found, {name: facts for name, facts in ALL.items() if name != "nvidia3"})

    def test_of_a_dev_root(self, host_with_nobody: Host, options: dict[str, Any], uid: int | None) -> None:
        found = host_with_nobody.run(shown, setup=four_gpus, uid=uid, dev_root="/dev/shm/driver/dev", **options)
        check_nodes(found, {name: facts for name, facts in ALL.items() if name != "nvidia3"})
