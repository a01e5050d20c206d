# SPDX-License-Identifier: Apache-2.0
"""The exceptions: what they are to code that knows pynvml only, and that they survive pickling and sets."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pynvml
import pytest

import nvsandbox
from nvsandbox import errors

ALL: list[tuple[Exception, type[Exception] | None, dict[str, Any], str]] = [
    (nvsandbox.SandboxError("text"), None, {}, "text"),
    (nvsandbox.SandboxUnavailable("no", (("mount", "why"),)), None, {"attempts": (("mount", "why"),)}, "no"),
    (
        nvsandbox.SandboxStartError("tmpfs on /dev", 13, "/dev", "cannot mount"),
        None,
        {"step": "tmpfs on /dev", "errno": 13, "path": "/dev", "detail": "cannot mount"},
        "tmpfs on /dev: cannot mount [/dev]: Permission denied (errno 13)",
    ),
    (
        nvsandbox.SandboxStartError("devices", 0, "", "devices=[3]: none"),
        None,
        {"step": "devices"},
        "devices=[3]: none",
    ),
    (nvsandbox.SandboxStartError("hello"), None, {"errno": 0, "path": ""}, "hello: failed"),
    (
        nvsandbox.LibraryNotFound(2, "/x", "none", ("/x: none", "/y: stub")),
        pynvml.NVMLError_LibraryNotFound,
        {"tried": ("/x: none", "/y: stub"), "step": "library", "errno": 2},
        "no usable libnvidia-ml.so.1: none; simulated GPUs need none: simulate='h100x8'; tried:"
        "\n  /x: none\n  /y: stub",
    ),
    (nvsandbox.SandboxClosed("over"), pynvml.NVMLError_Uninitialized, {}, "over"),
    (
        nvsandbox.WorkerDied("nvmlInit", 11, None),
        pynvml.NVMLError_Unknown,
        {"call": "nvmlInit", "signal": 11, "status": None},
        "the NVML worker process is gone (in nvmlInit): it was ended by SIGSEGV",
    ),
    (
        nvsandbox.WorkerDied("", None, 3),
        pynvml.NVMLError_Unknown,
        {"call": "", "signal": None, "status": 3},
        "the NVML worker process is gone: it exited with status 3",
    ),
    (
        nvsandbox.WorkerDied("x", 99, None),
        pynvml.NVMLError_Unknown,
        {"signal": 99},
        "the NVML worker process is gone (in x): it was ended by signal 99",
    ),
    (
        nvsandbox.CallTimeout("nvmlDeviceGetName", 1.5),
        pynvml.NVMLError_Timeout,
        {"call": "nvmlDeviceGetName", "limit": 1.5},
        "nvmlDeviceGetName did not return within 1.5 s; its worker process is being ended",
    ),
    (
        nvsandbox.StaleHandle("f"),
        pynvml.NVMLError_InvalidArgument,
        {"call": "f"},
        "f: this handle is not of the worker",
    ),
    (errors.nvml_error(9, "a hint"), pynvml.NVMLError_DriverNotLoaded, {}, "Driver Not Loaded (a hint)"),
    (errors.nvml_error(9, ""), pynvml.NVMLError_DriverNotLoaded, {}, "Driver Not Loaded"),
    (errors.nvml_error(12345, "odd"), pynvml.NVMLError, {}, "(odd)"),
]


@pytest.mark.parametrize(
    ("error", "base", "attributes", "text"), ALL, ids=[f"{type(row[0]).__name__}-{n}" for n, row in enumerate(ALL)]
)
class TestEvery:
    def test_what_it_is(
        self, error: Exception, base: type[Exception] | None, attributes: dict[str, Any], text: str
    ) -> None:
        assert text in str(error)
        assert {key: getattr(error, key) for key in attributes} == attributes
        if base is None:
            assert not isinstance(error, pynvml.NVMLError)
            return
        with pytest.raises(base):
            raise error
        code = base.value if hasattr(base, "value") and base is not pynvml.NVMLError else None
        if code is not None:
            assert error.value == code  # type: ignore[attr-defined]

    def test_pickle_and_copy(
        self, error: Exception, base: type[Exception] | None, attributes: dict[str, Any], text: str
    ) -> None:
        for other in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
            assert type(other).__name__ == type(error).__name__
            assert str(other) == str(error)
            assert {key: getattr(other, key) for key in attributes} == attributes
            if base is not None:
                assert isinstance(other, base)

    def test_hash(self, error: Exception, base: type[Exception] | None, attributes: dict[str, Any], text: str) -> None:
        assert error in {error}
        assert {error: 1}[error] == 1

    def test_traceback(
        self, error: Exception, base: type[Exception] | None, attributes: dict[str, Any], text: str
    ) -> None:
        """Rendering it (with exceptions that cannot be hashed, traceback used to fail) says what it is."""
        import traceback

        try:
            try:
                raise error
            except Exception as cause:
                raise RuntimeError("outer") from cause
        except RuntimeError as outer:
            rendered = "".join(traceback.format_exception(outer))
        assert text.splitlines()[0] in rendered


def test_the_root() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert {kind.__name__ for kind in kinds} == set(errors.__all__)
    for kind in kinds:
        assert issubclass(kind, nvsandbox.SandboxError)
        assert getattr(nvsandbox, kind.__name__) is kind
        assert kind.__module__ == "nvsandbox"
        assert kind.__doc__


def test_importing_touches_nothing() -> None:
    """R8: no library is loaded, no process or thread started, where there is no driver at all; nor is a descriptor
    opened, but for what a bare `import ctypes` keeps open (one, with Debian's Python 3.14)."""
    import subprocess
    import sys

    code = (
        "import ctypes, os, threading\n"
        "before = set(os.listdir('/proc/self/fd')); import nvsandbox, nvsandbox.testing\n"
        "import pynvml\n"
        "assert pynvml.nvmlLib is None\n"
        "assert 'nvidia-ml' not in open('/proc/self/maps').read()\n"
        "assert threading.active_count() == 1\n"
        "assert set(os.listdir('/proc/self/fd')) == before\n"
        "assert open(f'/proc/self/task/{os.getpid()}/children').read() == ''\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd="/")
