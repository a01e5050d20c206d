# SPDX-License-Identifier: Apache-2.0
"""The device nodes: the side effect that this project is about must be the simulator's too."""

from __future__ import annotations

from typing import Any


def nvidia(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """What has appeared or changed: path to (mode, rdev) or link target."""
    changed = {path: facts for path, facts in after.items() if before.get(path) != facts}
    return {path: facts[5] or (int(facts[0], 8), facts[1]) for path, facts in changed.items()}


def initialise(description: str, umask: int = 0o077, times: int = 1) -> tuple[Any, Any]:
    import os

    import host
    from simhelp import p, use

    os.umask(umask)
    before = host.listing()
    for _ in range(times):
        use(description)
        p.nvmlShutdown()
    return before, host.listing()


NODE, FOLDER = 0o020000, 0o040000


def test_nodes_and_links(sim: Any) -> None:
    made = nvidia(*sim(initialise, description="l40sx2"))
    char = made.pop("/dev/char", None)
    assert char is None or char[0] & 0o170000 == FOLDER
    assert made == {
        "/dev/nvidiactl": (NODE | 0o666, (195, 255)),
        "/dev/nvidia0": (NODE | 0o666, (195, 0)),
        "/dev/nvidia1": (NODE | 0o666, (195, 1)),
        "/dev/char/195:255": "../nvidiactl",
        "/dev/char/195:0": "../nvidia0",
        "/dev/char/195:1": "../nvidia1",
    }


def test_nodes_of_64_gpus(sim: Any) -> None:
    made = nvidia(*sim(initialise, description="gb200x64,mig=1g.23gb*7"))
    for minor in range(64):
        assert made[f"/dev/nvidia{minor}"] == (NODE | 0o666, (195, minor))
        assert made[f"/dev/char/195:{minor}"] == f"../nvidia{minor}"
    caps = [path for path in made if path.startswith("/dev/nvidia-caps/")]
    assert len(caps) == 2 + 64 * 7 * 2


def test_capabilities_of_mig(sim: Any) -> None:
    made = nvidia(*sim(initialise, description="h100x2,mig=3g.40gb+1g.10gb"))
    caps = {path.rpartition("nvidia-cap")[2]: facts for path, facts in made.items() if "/nvidia-caps/" in path}
    # 3 + 135 for each GPU + 9 for each GPU instance, the compute instances behind it.
    first, second = {"21", "22", "66", "67"}, {"156", "157", "201", "202"}
    assert set(caps) == {"1", "2"} | first | second
    assert caps["1"] == (NODE | 0o400, (235, 1))
    assert caps["2"] == (NODE | 0o444, (235, 2))
    assert caps["202"] == (NODE | 0o444, (235, 202))
    assert made["/dev/char/235:202"] == "../nvidia-caps/nvidia-cap202"


def test_minor_numbers_are_not_indexes(sim: Any) -> None:
    made = nvidia(*sim(initialise, description="t4x3,minors=2+0+5"))
    assert {path for path in made if path.startswith("/dev/nvidia")} == {
        "/dev/nvidiactl",
        "/dev/nvidia0",
        "/dev/nvidia2",
        "/dev/nvidia5",
    }


def test_hidden_gpus_have_no_node(sim: Any) -> None:
    made = nvidia(*sim(initialise, description="t4x4,visible=1+3"))
    assert {path for path in made if path.startswith("/dev/nvidia")} == {
        "/dev/nvidiactl",
        "/dev/nvidia1",
        "/dev/nvidia3",
    }


def test_a_right_node_is_kept_and_a_wrong_one_replaced(sim: Any) -> None:
    def again() -> list[Any]:
        import os
        import stat

        from simhelp import use

        os.mknod("/dev/nvidiactl", stat.S_IFCHR | 0o600, os.makedev(195, 255))
        os.chmod("/dev/nvidiactl", 0o666)
        os.mknod("/dev/nvidia0", stat.S_IFCHR, os.makedev(195, 7))
        right = os.stat("/dev/nvidiactl").st_ino
        use("t4")
        wrong = os.stat("/dev/nvidia0")
        return [os.stat("/dev/nvidiactl").st_ino == right, wrong.st_rdev == os.makedev(195, 0), oct(wrong.st_mode)]

    assert sim(again) == [True, True, "0o20666"]


def test_the_driver_may_forbid_it(sim: Any) -> None:
    def forbidden() -> Any:
        import host
        from simhelp import p, use

        # /proc/driver exists everywhere, /proc/driver/nvidia only with the driver.
        host.mount("tmpfs", "/proc/driver", "tmpfs")
        import os

        os.mkdir("/proc/driver/nvidia")
        with open("/proc/driver/nvidia/params", "w") as file:
            file.write("Mobile: 4294967295\nModifyDeviceFiles: 0\nDeviceFileUID: 0\n")
        before = host.listing()
        use("h100x2,mig=1g.10gb")
        return before == host.listing(), p.nvmlDeviceGetCount()

    import os

    import host as stand_in

    stand_in.require(os.path.isdir("/proc/driver"), "needs /proc/driver")
    assert sim(forbidden) == (True, 2)


def test_without_the_right_to_make_nodes_it_goes_on(sim: Any) -> None:
    def nobody() -> Any:
        import os

        import host
        from simhelp import p, use

        os.setresuid(65534, 65534, 65534)
        before = host.listing()
        use("h100x2")
        return before == host.listing(), p.nvmlDeviceGetCount()

    assert sim(nobody) == (True, 2)


def test_instances_made_later_get_their_nodes(sim: Any) -> None:
    def later() -> Any:
        import os

        from simhelp import gpu, use

        p = use("a100,mig=1g.5gb")
        before = set(os.listdir("/dev/nvidia-caps"))
        instance = p.nvmlDeviceCreateGpuInstance(gpu(), 14)
        between = set(os.listdir("/dev/nvidia-caps"))
        p.nvmlGpuInstanceCreateComputeInstance(instance, 1)
        return before, between - before, set(os.listdir("/dev/nvidia-caps")) - between

    before, instance, compute = sim(later)
    assert len(before) == 4
    assert (len(instance), len(compute)) == (1, 1)
