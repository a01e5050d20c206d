# SPDX-License-Identifier: Apache-2.0
"""Options and descriptions that are wrong: refused when they are given, by value, with what would be right."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path
from typing import Any

import pytest
from host import Host, require_isolation

from nvsandbox import install, nvml_isolated, simulate
from nvsandbox.testing import simulated

WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"driver_root": "/nonexistent"}, ValueError, r"driver_root='/nonexistent' does not exist: expected the root of"),
    ({"driver_root": "/etc/passwd"}, ValueError, r"driver_root='/etc/passwd' is not a folder: expected the root of"),
    ({"driver_root": ""}, ValueError, r"driver_root='': expected a path, the root of"),
    ({"driver_root": None}, TypeError, r"driver_root=None is of type NoneType: expected a path, the root of"),
    ({"driver_root": "/a\0b"}, ValueError, r"driver_root='/a\\x00b': expected a path"),
    ({"dev_root": "/nonexistent"}, ValueError, r"dev_root='/nonexistent' does not exist: expected the root whose dev/"),
    ({"dev_root": "/etc/passwd"}, ValueError, r"dev_root='/etc/passwd' is not a folder: expected the root whose dev/"),
    ({"dev_root": 7}, TypeError, r"dev_root=7 is of type int: expected a path, the root whose dev/"),
    ({"library": 7}, TypeError, r"library=7 is of type int: expected a path, the file to load as libnvidia-ml.so.1"),
    ({"library": ""}, ValueError, r"library='': expected a path, the file to load"),
    ({"library": "/x/\ud800"}, ValueError, r"library='/x/\\ud800': expected a path, .* that file names can have"),
    ({"isolation": "docker"}, ValueError, r"isolation='docker': expected one of 'auto', 'mount', 'user', 'guard'"),
    ({"isolation": None}, ValueError, r"isolation=None: expected one of 'auto', 'mount', 'user', 'guard'"),
    ({"devices": 0}, TypeError, r"devices=0 is of type int: expected a list, such as \[0, 2\]"),
    ({"devices": "0,1"}, TypeError, r"devices='0,1' is of type str: expected a list"),
    ({"devices": ["gpu0"]}, ValueError, r"devices='gpu0': expected device minor numbers .* UUIDs"),
    ({"devices": [255]}, ValueError, r"devices=255: expected .* a minor number is 0 to 249"),
    ({"devices": [-1]}, ValueError, r"devices=-1: expected .* a minor number is 0 to 249"),
    ({"devices": [True]}, TypeError, r"devices=True is of type bool: expected device minor numbers"),
    ({"privileged": "yes"}, TypeError, r"privileged='yes' is of type str: expected True or False"),
    ({"privileged": 1}, TypeError, r"privileged=1 is of type int: expected True or False"),
    ({"restart": -1}, ValueError, r"restart=-1: expected True, False, or how many restarts are allowed in a minute"),
    ({"restart": 0.5}, TypeError, r"restart=0.5 is of type float"),
    ({"recycle_after": 0}, ValueError, r"recycle_after=0: expected a number of calls, an amount of resident memory"),
    ({"recycle_after": True}, TypeError, r"recycle_after=True is of type bool"),
    ({"recycle_after": "0MiB"}, ValueError, r"recycle_after='0MiB': expected a number of calls"),
    ({"restart": None}, TypeError, r"restart=None is of type NoneType: expected True, False, or how many restarts"),
    ({"timeout": 0}, ValueError, r"timeout=0: expected seconds above 0, or None for no limit"),
    ({"timeout": -1.5}, ValueError, r"timeout=-1.5: expected seconds above 0"),
    ({"timeout": float("nan")}, ValueError, r"timeout=nan: expected seconds above 0"),
    ({"timeout": "30"}, TypeError, r"timeout='30' is of type str: expected seconds, or None for no limit"),
    ({"timeout": True}, TypeError, r"timeout=True is of type bool: expected seconds"),
    ({"transport": "tcp"}, ValueError, r"transport='tcp': expected one of 'auto', 'shm', 'pipe'"),
    ({"transport": 1}, ValueError, r"transport=1: expected one of 'auto', 'shm', 'pipe'"),
    ({"simulate": 8}, TypeError, r"simulate=8 is of type int: expected a description such as 'h100x8', or None"),
    ({"simulate": "h100", "library": "/x"}, ValueError, r"simulate='h100' and library='/x' are mutually exclusive"),
    (
        {"simulate": "h100", "devices": ["GPU-12345678"]},
        ValueError,
        r"devices='GPU-12345678': with simulate='h100' expected",
    ),
    (
        {"simulate": "h100x2", "devices": [5]},
        ValueError,
        r"devices=\[5\]: none of the simulated GPUs has one of these minor numbers; theirs are 0, 1$",
    ),
    ({"drvier_root": "/"}, TypeError, r"unknown option 'drvier_root': expected one of driver_root, dev_root, library"),
]

DESCRIPTIONS = {
    "": r"'' is no GPU that can be simulated; expected one of a100, b200, gb200, h100, h200, l40s, t4, perhaps",
    "h300": r"'h300' is no GPU that can be simulated; expected one of a100, .*as in 'h100x8'",
    "H100": r"'H100' is no GPU that can be simulated",
    "h100x": r"'h100x' is no GPU that can be simulated",
    "h100 x8": r"'h100 x8' is no GPU that can be simulated",
    "h100x0": r"0 GPUs; expected 1 to 64",
    "h100x65": r"65 GPUs; expected 1 to 64",
    "h100,": r"'' is not key=value with a known key; expected one of crash, driver, fields, .*hang",
    "h100,lots=1": r"'lots=1' is not key=value with a known key; expected one of crash",
    "h100,grow": r"'grow' is not key=value with a known key",
    "h100,grow=1,grow=0": r"grow is given twice",
    "h100,grow=yes": r"grow='yes'; expected 0 or 1",
    "h100,seed=-1": r"seed='-1'; expected a number such as 200",
    "h100,seed=99999999999999999999": r"seed='99999999999999999999'; expected a number",
    "h100,lost=": r"lost=''; expected GPU indexes joined by '\+', such as 0\+2",
    "h100x2,lost=0+2": r"lost=0\+2 names GPU 2; there are 0 to 1",
    "h100,visible=1": r"visible=1 names GPU 1; there are 0 to 0",
    "h100,driver=latest": r"driver='latest'; expected a driver version such as 580.95.05",
    "h100,driver=" + "1." * 20 + "1": r"driver is too long; expected up to 31 characters",
    "h100,symbols=v3": r"symbols='v3'; expected v1, v2 or all",
    "h100,hang=cuInit": r"hang='cuInit'; expected the name of an NVML function",
    "h100,hang=nvml" + "X" * 100: r"hang is too long; expected up to 95 characters",
    "h100,crash=nvmlInit:burn": r"crash='nvmlInit:burn'; expected the name of an NVML function, perhaps with :segv",
    "h100,fields=all": r"fields='all'; expected mixed",
    "h100,procs=5001": r"procs=5001; expected 0 to 5000",
    "h100x2,minors=1": r"minors=1; expected 2 different numbers from 0 to 249, one for each GPU",
    "h100x2,minors=3+3": r"minors=3\+3; expected 2 different numbers",
    "h100,minors=255": r"minors=255; expected 1 different number from 0 to 249",
    "t4,mig=1g.10gb": r"Tesla T4 has no MIG; leave mig= out or take one of h100, h200, a100, b200, gb200",
    "h100,mig=": r"mig=''; expected MIG profiles joined by '\+', such as 1g.10gb\*3\+2g.20gb",
    "h100,mig=1g.10gb+": r"mig='1g.10gb\+'; expected MIG profiles joined by",
    "h100,mig=9g.90gb": r"mig='9g.90gb': NVIDIA H100 .* has no profile '9g.90gb'; its profiles are 1g.10gb, .*7g.80gb",
    "a100,mig=1g.5gb+1g.10gb+3g.40gb": r"NVIDIA A100.* has no profile '3g.40gb'; its profiles are 1g.5gb",
    "h100,mig=1g.10gb*8": r"cannot have 8 instances of 1g.10gb; expected 1 to 7",
    "h100,mig=1g.10gb*0": r"cannot have 0 instances of 1g.10gb; expected 1 to 7",
    "h100,mig=1g.10gb+me*2": r"cannot have 2 instances of 1g.10gb\+me; expected at most 1",
    "h100,mig=4g.40gb+4g.40gb": r"cannot have 2 instances of 4g.40gb; expected at most 1",
    "h100,mig=3g.40gb*2+1g.10gb": r"has no room for this layout \(at 1g.10gb\): there are 7 compute and 8 memory",
    "h100,mig=7g.80gb+1g.10gb": r"has no room for this layout \(at 1g.10gb\)",
    "h100," + ",".join(["seed=1"] * 200): r"expected up to 1023",
}


@pytest.mark.parametrize(("given", "kind", "text"), WRONG, ids=[str(row[0])[:60] for row in WRONG])
def test_wrong_option(given: dict[str, Any], kind: type[Exception], text: str) -> None:
    for make in (nvml_isolated, install):
        with pytest.raises(kind, match=f"^{text}"):
            make(**given)


@pytest.mark.parametrize("description", DESCRIPTIONS)
def test_wrong_description(description: str) -> None:
    with pytest.raises(ValueError, match=DESCRIPTIONS[description]) as caught:
        nvml_isolated(simulate=description)
    assert str(caught.value).startswith(f"simulate={description[:20]!r}"[:-1])


def test_wrong_knob_of_testing() -> None:
    with pytest.raises(ValueError, match="'colour=green' is not key=value with a known key"):
        simulated("h100", colour="green")
    with pytest.raises(ValueError, match="'v100x1' is no GPU that can be simulated"):
        simulated("v100")


def test_no_positional_options() -> None:
    with pytest.raises(TypeError, match="positional"):
        nvml_isolated("/")  # type: ignore[call-arg]


ENVIRONMENT = {
    "NVSANDBOX_DRIVER_ROOT": ("/nonexistent", r"driver_root='/nonexistent' does not exist"),
    # U15: it is often the host's
    "NVIDIA_DRIVER_ROOT": (
        "/etc/passwd",
        r"driver_root='/etc/passwd' is not a folder.* with NVSANDBOX_DRIVER_ROOT",
    ),
    "NVSANDBOX_DEV_ROOT": ("/nonexistent", r"dev_root='/nonexistent' does not exist"),
    "NVSANDBOX_ISOLATION": ("chroot", r"isolation='chroot': expected one of 'auto'"),
    "NVSANDBOX_DEVICES": ("0,x", r"devices='x': expected device minor numbers"),
    "NVSANDBOX_PRIVILEGED": ("maybe", r"expected 1 or 0"),
    "NVSANDBOX_TIMEOUT": ("soon", r"could not convert|expected"),
    "NVSANDBOX_RESTART": ("perhaps", r"expected 1, 0, or how many restarts"),
    "NVSANDBOX_RECYCLE_AFTER": ("256MB", r"recycle_after='256MB': expected a number of calls"),
    "NVSANDBOX_TRANSPORT": ("udp", r"transport='udp': expected one of 'auto', 'shm', 'pipe'"),
    "NVSANDBOX_SIMULATE": ("v100", r"'v100' is no GPU that can be simulated"),
}


@pytest.mark.parametrize("variable", ENVIRONMENT)
def test_wrong_environment(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    """The message names the variable: it is not in the code that the user looks at."""
    value, text = ENVIRONMENT[variable]
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=text) as caught:
        nvml_isolated()
    assert str(caught.value).startswith(f"environment variable {variable}={value!r}: ")


def test_wrong_environment_that_is_overruled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVSANDBOX_SIMULATE", "v100")
    with nvml_isolated(simulate="t4") as nvml:
        assert nvml.nvmlDeviceGetCount() == 1


@pytest.mark.parametrize("step", ["mount", "user", "guard"])
def test_dev_root_without_nodes(tmp_path: Path, step: str) -> None:
    """Not wrong: the driver may not be there yet."""
    require_isolation(step)
    (tmp_path / "root" / "dev").mkdir(parents=True)
    for dev_root in (tmp_path, tmp_path / "root", tmp_path / "root" / "dev"):
        with nvml_isolated(simulate="t4", dev_root=dev_root, isolation=step) as nvml:
            assert nvml.nvmlDeviceGetCount() == 1


def layouts() -> list[str]:
    """Some hundred MIG layouts, right and wrong ones."""
    names = list(simulate.mig_profiles("h100"))
    draw = random.Random(1)
    found = [f"{name}*{number}" for name in names for number in range(1, 9)]
    found += ["+".join(pair) for pair in itertools.product(names, repeat=2)]
    for _ in range(300):
        found.append(
            "+".join(draw.choice(names) + draw.choice(["", "", "*2", "*3"]) for _ in range(draw.randint(2, 4)))
        )
    return found


def test_layouts_are_judged_as_the_simulator_does(host: Host) -> None:
    def outcomes(library: str, layouts: list[str]) -> dict[str, int]:
        import ctypes
        import os

        nvml = ctypes.CDLL(library)
        found = {}
        for layout in layouts:
            os.environ["NVSANDBOX_SIM"] = f"h100,mig={layout}"
            found[layout] = nvml.nvmlInit_v2()
            if found[layout] == 0:
                nvml.nvmlShutdown()
        return found

    def refusal(layout: str) -> str:
        try:
            simulate.parse(f"h100,mig={layout}")
        except ValueError as error:
            return str(error)
        return ""

    theirs = host.run(outcomes, library=str(simulate.parse("h100").library), layouts=layouts())
    assert 20 < sum(code == 0 for code in theirs.values()) < len(theirs) - 20
    differ = {
        layout: (code, refusal(layout)) for layout, code in theirs.items() if (code == 0) == bool(refusal(layout))
    }
    assert differ == {}


def test_messages_are_one_line() -> None:
    for given, kind, _ in WRONG:
        with pytest.raises(kind) as caught:
            nvml_isolated(**given)
        assert not re.search(r"\n", str(caught.value))
