# SPDX-License-Identifier: Apache-2.0
"""A virtual machine, for what can only be tried with a kernel of one's own: that modules load, that settings of the
whole system change. QEMU emulates it without any privilege or virtualisation, with a kernel of Debian's
(scripts/vm-kernel), and it sees this machine's files read-only: what is installed and built here runs there.

    machine = Machine(folder, kernel_folder())
    result = machine.run(function, argument=value)
"""

from __future__ import annotations

import contextlib
import inspect
import json
import lzma
import os
import pickle
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import host
import pytest

HERE = Path(__file__).parent
SCRIPTS = HERE.parents[1] / "scripts"
NEEDED = ("virtio_pci", "9pnet_virtio", "9p")
"""The modules without which the guest would not find its files. Some kernels have some of them built in."""


def kernel_folder(release: str | None = None) -> Path:
    """Debian's kernel of a release (NVSANDBOX_TEST_VM_KERNEL, else bookworm); skips where there is none, and where
    something else is missing that a machine takes."""
    if platform.machine() != "x86_64":  # which CI cannot change
        pytest.skip("the virtual machine is an x86-64")
    for tool in ("qemu-system-x86_64", "cpio", "cc"):
        host.require(shutil.which(tool), f"needs {tool}, for a virtual machine")
    release = release or os.environ.get("NVSANDBOX_TEST_VM_KERNEL", "bookworm")
    found = subprocess.run([SCRIPTS / "vm-kernel", release], check=False, capture_output=True, text=True)
    host.require(found.returncode == 0, f"needs a kernel for the virtual machine: {found.stderr.strip()[-500:]}")
    return Path(found.stdout.strip())


class Machine:
    """Boots a guest for each function that it runs. `folder` is for the initramfs."""

    def __init__(self, folder: Path, kernel: Path) -> None:
        self._kernel = kernel / "vmlinuz"
        self._initramfs = _initramfs(folder, kernel)

    def run(self, function: Callable[..., Any], *, timeout: float = 300, **arguments: Any) -> Any:
        """What `function(**arguments)` returns, in builtins, from a guest that has just booted; it is root there.

        The function stands alone, as those that :class:`host.Host` runs: it travels as source text and imports what it
        uses, tests/host.py as ``host``. In the guest files can be made in /run (the temporary folder), /dev and /proc;
        everything else is this machine's, read-only.
        """
        spec = {
            "function": textwrap.dedent(inspect.getsource(function)),
            "name": function.__name__,
            "arguments": arguments,
            "result_fd": 3,
        }
        with tempfile.TemporaryDirectory(prefix="vm-") as name:
            exchange = Path(name)
            (exchange / "spec").write_text(json.dumps(spec))
            program = shlex.join([sys.executable, str(HERE.parent / "host.py"), "call"])
            (exchange / "start").write_text(
                "export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/ TMPDIR=/run PYTHONDONTWRITEBYTECODE=1\n"
                "exec >/mnt/log 2>&1 </dev/null\n"
                f'exec {program} "$(cat /mnt/spec)" 3>/mnt/result\n'
            )
            try:
                # It ends with this process's own time, not with the guest's.
                subprocess.run(self._qemu(exchange), check=False, capture_output=True, timeout=timeout)
                state = "ended"
            except subprocess.TimeoutExpired:
                state = f"was ended after {timeout} s"
            with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError):
                return pickle.loads((exchange / "result").read_bytes())
            said = [_text(exchange / part) for part in ("console", "log")]
            raise AssertionError(f"{function.__name__}: the guest {state} without a result:\n" + "\n".join(said))

    def _qemu(self, exchange: Path) -> list[str]:
        return [
            *("qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-m", "768", "-nodefaults", "-no-user-config"),
            *("-display", "none", "-no-reboot", "-serial", f"file:{exchange / 'console'}"),
            *("-kernel", str(self._kernel), "-initrd", str(self._initramfs)),
            *("-append", "console=ttyS0 quiet panic=-1 rdinit=/init"),
            *_share("root", "/", "readonly=on,multidevs=remap"),
            *_share("exchange", str(exchange), "readonly=off"),
        ]


def _share(tag: str, path: str, how: str) -> list[str]:
    return [
        *("-fsdev", f"local,id={tag},path={path},security_model=none,{how}"),
        *("-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
    ]


def _text(path: Path) -> str:
    return path.read_text(errors="replace")[-4000:] if path.exists() else f"no {path.name}"


def _initramfs(folder: Path, kernel: Path) -> Path:
    """Init and the needed modules, named in the order in which they can be loaded."""
    tree = folder / "initramfs"
    (tree / "modules").mkdir(parents=True)
    compile_init = ["cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Os", "-static", "-o", tree / "init"]
    subprocess.run([*compile_init, HERE / "init.c"], check=True)
    modules = {name: module for needed in NEEDED for name, module in _with_dependencies(kernel, needed)}
    for number, module in enumerate(modules.values()):
        (tree / "modules" / f"{number:02}.ko").write_bytes(module)
    listing = "".join(f"{path.relative_to(tree)}\n" for path in sorted(tree.rglob("*")))
    image = folder / "initramfs.cpio"
    with image.open("wb") as file:
        command = ["cpio", "--quiet", "--create", "--format=newc"]
        subprocess.run(command, input=listing.encode(), stdout=file, cwd=tree, check=True)
    return image


def _with_dependencies(kernel: Path, name: str) -> Iterator[tuple[str, bytes]]:
    """The modules that are files, those that others need before these."""
    module = _module(kernel, name)
    if module is None:
        return
    found = re.search(rb"\0depends=([^\0]*)\0", module)
    for needed in found[1].decode().split(",") if found else []:
        if needed:
            yield from _with_dependencies(kernel, needed)
    yield name, module


def _module(kernel: Path, name: str) -> bytes | None:
    for path in kernel.iterdir():
        if path.name.partition(".ko")[0].replace("-", "_") == name:
            data = path.read_bytes()
            return lzma.decompress(data) if path.suffix == ".xz" else data
    return None
