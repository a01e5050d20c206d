# SPDX-License-Identifier: Apache-2.0
"""nvsandbox's own installation: whether its parts are of one version and can run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

from nvsandbox import _fast
from nvsandbox._core import lib
from nvsandbox.doctor.findings import Finding
from nvsandbox.doctor.places import Places
from nvsandbox.native import text

_OPTIONAL = {
    "python-prctl": "the doctor then cannot see securebits",
    "pyroute2": "nvsandbox.watch() then does not work",
}
_BUNDLES_PYNVML_BEFORE = 12  # the distribution "pynvml" had a module of its own until then


def _worker_version(path: str) -> str:
    """What the worker program says of itself. Raises OSError or ValueError where it cannot be run."""
    done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=5, check=False)
    words = done.stdout.split()
    if done.returncode != 0 or len(words) < 2:
        raise ValueError(f"it ended with status {done.returncode}: {(done.stderr or done.stdout).strip()[:200]}")
    return words[1]


def installation(places: Places) -> Iterator[Finding]:
    """The package's parts, and the Python packages that it uses."""
    program = os.path.join(places.package, "nvsandbox-worker")
    versions = {"_core": text(lib.nvs_core_version()), "_fast": str(_fast.version)}
    if "nvsandbox" in places.distributions:
        versions["the installed package"] = places.distributions["nvsandbox"]
    try:
        versions["nvsandbox-worker"] = _worker_version(program)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        yield Finding(
            "package.worker",
            f"the worker program {program} cannot be run: {reason}",
            _worker_remedy(program),
            about=program,
        )
    if len(set(versions.values())) > 1:
        parts = ", ".join(f"{name} {version}" for name, version in versions.items())
        yield Finding(
            "package.mixed",
            f"parts of nvsandbox are of different versions: {parts}",
            "install it anew (pip install --force-reinstall nvsandbox)",
            facts=versions,
        )
    elif "nvsandbox-worker" in versions:
        pynvml = places.distributions.get("nvidia-ml-py", "of unknown version")
        yield Finding(
            "package.whole",
            f"nvsandbox {versions['_core']}, nvidia-ml-py {pynvml}",
            facts={**versions, "nvidia-ml-py": places.distributions.get("nvidia-ml-py")},
        )
    yield from _python_packages(places)


def _worker_remedy(program: str) -> str:
    if not os.path.exists(program):
        return "install nvsandbox anew"
    if not os.access(program, os.X_OK):
        try:
            noexec = bool(os.statvfs(program).f_flag & os.ST_NOEXEC)
        except OSError:
            noexec = False
        if noexec:
            return "its file system is mounted noexec: install nvsandbox elsewhere, or mount it with exec"
        return f"chmod a+rx {program}, and let its folders be searched by this user"
    return "install nvsandbox anew, for this processor and C library"


def _python_packages(places: Places) -> Iterator[Finding]:
    if places.unbound:
        what, _, remedy = places.unbound.partition("; ")
        yield Finding("package.unbound-pynvml", f"no sandbox can be opened here: {what}", remedy)
    old = places.distributions.get("pynvml", "")
    major = old.partition(".")[0]
    if major.isdigit() and int(major) < _BUNDLES_PYNVML_BEFORE:
        yield Finding(
            "package.old-pynvml",
            f"the package pynvml {old} brings a module pynvml of its own, in the place of nvidia-ml-py's: functions "
            f"and constants of newer drivers are missing",
            "pip uninstall pynvml; pip install --force-reinstall nvidia-ml-py",
        )
    for name, without in _OPTIONAL.items():
        if name not in places.distributions:
            yield Finding(
                "package.optional",
                f"{name} is not installed: {without}",
                f"pip install {'nvsandbox[prctl]' if name == 'python-prctl' else name}, if that matters",
                about=name,
            )
