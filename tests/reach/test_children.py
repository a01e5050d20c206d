# SPDX-License-Identifier: Apache-2.0
"""Children and subinterpreters of a process that called install(): pynvml is in a sandbox there too.

The simulator's library is within their reach, and a call that went past the sandbox would make nodes in the stand-in
host's /dev, which is watched.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from host import Host

from nvsandbox.options import make
from nvsandbox.simulate import parse
from nvsandbox.surroundings import environment

PROGRAM = r'''
import host, json, os, subprocess, sys

def count(_=None):
    import pynvml
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetCount()

CHILD = "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())"

def by(way):
    import concurrent.futures, multiprocessing
    if way in ("spawn", "forkserver", "fork"):
        with multiprocessing.get_context(way).Pool(1) as pool:
            return pool.map(count, [0])[0]
    if way == "futures":
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
            return pool.submit(count).result()
    if way == "untouched":
        code = "import os, sys; print(int('nvsandbox' in sys.modules or 'pynvml' in sys.modules))"
    elif way == "names first":
        code = "from nvsandbox.errors import WorkerDied; from nvsandbox import nvml_isolated; " + CHILD
    elif way == "session first":
        code = "import nvsandbox.session; " + CHILD
    elif way == "grandchild":
        code = f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', {CHILD!r}]).returncode)"
    elif way == "again":
        code = f"""
try:
    import pynvml
except ImportError:
    pass
{CHILD}"""
    elif way == "subinterpreter":
        try:
            import _interpreters as interpreters
        except ImportError:
            import _xxsubinterpreters as interpreters
        to = os.memfd_create("answer")
        inside = f"""
import os
try:
    import pynvml
    pynvml.nvmlInit()
    answer = str(pynvml.nvmlDeviceGetCount())
except ImportError as error:
    answer = "ImportError: " + str(error)
os.write({to}, answer.encode())
"""
        interpreter = interpreters.create()
        failed = interpreters.run_string(interpreter, inside)
        assert failed is None, failed
        interpreters.destroy(interpreter)
        os.lseek(to, 0, 0)
        return os.read(to, 100000).decode()
    else:
        code = CHILD
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return int(done.stdout) if done.returncode == 0 else done.stderr

if __name__ == "__main__":
    import nvsandbox
    way, options = sys.argv[1], json.loads(sys.argv[2])
    with host.watching() as watch:
        nvsandbox.install(simulate="t4x3", **options)
        if way == "cannot":
            os.environ["NVSANDBOX_INSTALL"] = os.environ["NVSANDBOX_INSTALL"].replace("t4x3", "none-such")
        if way == "again":
            os.environ["NVSANDBOX_INSTALL"] = '{"of_another_version": 1}'
        said = by(way)
    print(json.dumps({"said": said, "seen": [path for path in watch.seen if not path.startswith("/dev/shm/")]}))
'''


def started(way: str, options: str, library: str, program: str, switch: str) -> dict[str, Any]:
    import json
    import os
    import subprocess
    import sys

    environment = {**os.environ, "LD_LIBRARY_PATH": os.path.dirname(library), "NVSANDBOX_SIM": "h100x2"}
    environment |= {"PYTHONPATH": os.path.dirname(program), "NVSANDBOX_INHERIT": switch}
    done = subprocess.run(
        [sys.executable, program, way, options], env=environment, capture_output=True, text=True, check=False, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def outcome(host: Host, way: str, options: str = "{}", switch: str = "") -> dict[str, Any]:
    program = host.folder / "children_program.py"
    program.write_text(PROGRAM)
    library = str(parse("h100x2").library)
    found: dict[str, Any] = host.run(
        started, way=way, options=options, library=library, program=str(program), switch=switch
    )
    return found


WAYS = ["subprocess", "grandchild", "names first", "session first", "spawn", "forkserver", "fork", "futures"]


@pytest.mark.parametrize("way", WAYS)
def test_children_follow(host: Host, way: str) -> None:
    """S3: the worker that the child gets has the parent's options."""
    assert outcome(host, way) == {"said": 3, "seen": []}


@pytest.mark.parametrize(("options", "switch"), [('{"inherit": false}', ""), ("{}", "0")])
def test_children_that_are_not_to_follow_use_nvml_directly(host: Host, options: str, switch: str) -> None:
    """S3: and that this is seen on the host shows that the tests above could fail."""
    found = outcome(host, "subprocess", options, switch)
    assert found["said"] == 2
    assert found["seen"]


def test_a_child_without_pynvml_imports_nothing(host: Host) -> None:
    """S3"""
    assert outcome(host, "untouched")["said"] == 0


@pytest.mark.parametrize("way", ["cannot", "again"])
def test_a_child_that_cannot_have_a_sandbox_has_no_pynvml(host: Host, way: str) -> None:
    """S3: an error, at the second import as well, and never direct use."""
    found = outcome(host, way)
    assert "ImportError: pynvml was to run in a sandbox" in str(found["said"])
    assert found["seen"] == []


def test_a_subinterpreter_follows_or_is_refused(host: Host) -> None:
    """S3"""
    found = outcome(host, "subinterpreter")
    assert found["said"] == "3" or found["said"].startswith("ImportError: "), found
    assert found["seen"] == []


def test_the_command_chooses_its_sandboxes_itself() -> None:
    """S3: also as a child of a program whose options it could not use."""
    command = [sys.executable, "-m", "nvsandbox", "query", "--simulate", "t4", "--json"]
    inherited = {**os.environ, "NVSANDBOX_INSTALL": '{"of_another_version": 1}'}
    done = subprocess.run(command, env=inherited, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr


def test_a_program_under_run_inherits_no_second_sandbox() -> None:
    """S3"""
    assert environment([b"A=1", b"NVSANDBOX_INSTALL={}"], make({}, {}), None) == [b"A=1"]
