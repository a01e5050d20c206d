# SPDX-License-Identifier: Apache-2.0
"""The ways to call NVML that are compared: in this process, through nvsandbox, and as people isolate it otherwise.

Each of the others is built as well as we know how: workers stay for the whole run, hold their handles, and are sent
small tuples; results come as builtins; whatever starts a process per query starts it by vfork or posix_spawn, and
nothing is imported that is not needed. All of them keep the host's ``/dev`` clean, for without that there is no reason
to have them: each has a mount namespace of its own with a tmpfs on ``/dev``.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import multiprocessing
import multiprocessing.managers
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from workloads import WORKLOADS, general

HERE = Path(__file__).resolve().parent
_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 0x4000, 1 << 18

TITLES = {
    "direct": "direct pynvml, in this process",
    "shm": "nvsandbox, shared memory",
    "routed": "nvsandbox, shared memory, by plain pynvml",
    "pipe": "nvsandbox, pipe",
    "worker": "multiprocessing worker (spawn), Pipe",
    "rpyc": "rpyc, unix socket",
    "manager": "multiprocessing.managers proxy",
    "fork": "fork for each call",
    "unshare": "unshare -m, C program for each query",
    "bwrap": "bubblewrap, Python for each query",
}


class Missing(Exception):
    """A way that is not possible here; the text says why."""


@dataclass(frozen=True)
class Target:
    """The NVML that is measured: a library, and for the simulator what it simulates."""

    library: str
    simulate: str = ""

    def options(self) -> dict[str, Any]:
        """For nvml_isolated."""
        if self.simulate:
            return {"simulate": self.simulate}
        return {"library": self.library}


def private_dev() -> None:
    """Moves this process to a mount namespace of its own with an empty /dev, as each isolated worker has to."""
    if os.environ.get("BENCH_PRIVATE_DEV") == "0":
        return  # with a driver's nodes NVML needs them, and nothing is measured on a host that must stay clean
    libc = ctypes.CDLL(None, use_errno=True)
    if (
        libc.unshare(_CLONE_NEWNS) != 0
        or libc.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None) != 0
        or libc.mount(b"tmpfs", b"/dev", b"tmpfs", ctypes.c_ulong(0), b"mode=755") != 0
    ):
        raise OSError(ctypes.get_errno(), "a private /dev")


def load(target: Target, *, own_copy: bool = False) -> Any:
    """A pynvml of its own, which is not initialised: the module a second time, with `target` as its library.

    Sessions take over the plain `pynvml` module; this one stays direct. With `own_copy` the library is loaded once
    more, with a state of its own.
    """
    module = fresh_pynvml()
    os.environ["NVSANDBOX_SIM"] = target.simulate
    if own_copy:
        with tempfile.TemporaryDirectory() as folder:
            module.nvmlLib = ctypes.CDLL(shutil.copy(target.library, folder))
    else:
        module.nvmlLib = ctypes.CDLL(target.library)
    return module


def fresh_pynvml() -> Any:
    """The module a second time, without a library."""
    found = importlib.util.find_spec("pynvml")
    assert found is not None
    assert found.origin is not None
    name = f"pynvml_{len(sys.modules)}"
    spec = importlib.util.spec_from_file_location(name, found.origin)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # where it looks itself up as it is loaded
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]  # a sandbox would bind it, as all copies of pynvml that it finds
    return module


class Answers:
    """What runs in each worker of the other ways: looks a request up and answers in builtins."""

    def __init__(self, target: Target) -> None:
        self._nvml = load(target)
        self._nvml.nvmlInit()
        self._handles = [self._nvml.nvmlDeviceGetHandleByIndex(i) for i in range(self._nvml.nvmlDeviceGetCount())]
        self._known = {
            key: (getattr(self._nvml, workload.function), workload.arguments, workload.plain)
            for key, workload in WORKLOADS.items()
        }

    def ask(self, key: str, index: int) -> Any:
        function, arguments, plain = self._known[key]
        return plain(function(self._handles[index], *arguments))

    def any(self, function: str, index: int, arguments: tuple[Any, ...]) -> Any:
        """For functions that are not in the table; an NVMLError comes as its number."""
        try:
            return general(getattr(self._nvml, function)(self._handles[index], *arguments))
        except self._nvml.NVMLError as error:
            return -error.value


# ---- a worker, and a pipe


def _serve_pipe(connection: Connection, target: Target) -> None:
    private_dev()
    answers = Answers(target)
    loads, dumps, receive, send = pickle.loads, pickle.dumps, connection.recv_bytes, connection.send_bytes
    while True:
        try:
            request = loads(receive())
        except EOFError:
            return
        result = answers.ask(*request) if len(request) == 2 else answers.any(*request)
        send(dumps(result, 5))


class PipeWorker:
    """A spawned process that stays, at the other end of a Pipe. One caller at a time."""

    def __init__(self, target: Target) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve_pipe, args=(theirs, target), daemon=True)
        self._process.start()
        theirs.close()
        self._send, self._receive = self._connection.send_bytes, self._connection.recv_bytes

    def ask(self, key: str, index: int) -> Any:
        # Not connection.send: that makes a pickler with a table of its own for each message.
        self._send(pickle.dumps((key, index), 5))
        return pickle.loads(self._receive())

    def any(self, function: str, index: int, arguments: tuple[Any, ...]) -> Any:
        self._send(pickle.dumps((function, index, arguments), 5))
        return pickle.loads(self._receive())

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def close(self) -> None:
        self._connection.close()
        self._process.join()


# ---- a manager


class _Manager(multiprocessing.managers.BaseManager):
    pass


_Manager.register("Answers", Answers, exposed=("ask",))


@contextlib.contextmanager
def manager(target: Target) -> Iterator[Callable[..., Any]]:
    """A proxy's method; each thread gets a connection of its own."""
    served = _Manager(ctx=multiprocessing.get_context("spawn"))
    served.start(initializer=private_dev)
    try:
        yield served.Answers(target).ask  # type: ignore[attr-defined]
    finally:
        served.shutdown()


# ---- rpyc


def _serve_rpyc(path: str, target: Target) -> None:
    import logging

    import rpyc
    from rpyc.utils.server import OneShotServer

    private_dev()
    answers = Answers(target)

    class Service(rpyc.Service):  # type: ignore[misc]
        exposed_ask = staticmethod(answers.ask)

    OneShotServer(Service, socket_path=path, logger=logging.getLogger("quiet")).start()


@contextlib.contextmanager
def rpyc(target: Target) -> Iterator[Callable[..., Any]]:
    """A remote function over a unix socket; builtins travel by value."""
    try:
        from rpyc.utils.factory import unix_connect
    except ImportError as error:
        raise Missing("rpyc is not installed") from error
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/socket"
        process = multiprocessing.get_context("spawn").Process(target=_serve_rpyc, args=(path, target), daemon=True)
        process.start()
        end = time.monotonic() + 30
        while not os.path.exists(path) and process.is_alive() and time.monotonic() < end:
            time.sleep(0.005)
        connection = None
        while connection is None:
            try:
                connection = unix_connect(path)
            except ConnectionRefusedError:  # bound, and not listening yet
                time.sleep(0.005)
        try:
            yield connection.root.ask
        finally:
            connection.close()
            process.join()


# ---- a process for each call


def forked(target: Target) -> Callable[..., Any]:
    """A fork of this process for each call. NVML must not be initialised before a fork, so the child does that."""
    nvml = load(target, own_copy=True)

    def ask(key: str, index: int) -> Any:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                private_dev()
                workload = WORKLOADS[key]
                nvml.nvmlInit()
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                result = workload.plain(getattr(nvml, workload.function)(handle, *workload.arguments))
                data = pickle.dumps(result, 5)
                while data:
                    data = data[os.write(writer, data) :]
                nvml.nvmlShutdown()
                status = 0
            finally:
                os._exit(status)
        os.close(writer)
        pieces = []
        while piece := os.read(reader, 1 << 20):
            pieces.append(piece)
        os.close(reader)
        if os.waitpid(child, 0)[1] != 0:
            raise RuntimeError("the forked child failed")
        return pickle.loads(b"".join(pieces))

    return ask


def _tuples(value: Any) -> Any:
    return tuple([_tuples(item) for item in value]) if isinstance(value, list) else value


def _asked(command: list[str], environment: dict[str, str]) -> Any:
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True, close_fds=False)
    return _tuples(json.loads(done.stdout))


def unshared(target: Target, query: str) -> Callable[..., Any]:
    """``unshare -m``, a tmpfs on /dev, and then a C program that asks NVML one thing."""
    program = shutil.which("unshare")
    if program is None:
        raise Missing("unshare (util-linux) is not installed")
    if not query:
        raise Missing("no C compiler for the program that asks")
    environment = {**os.environ, "NVSANDBOX_SIM": target.simulate}
    script = 'mount -t tmpfs none /dev && exec "$@"'
    if environment.get("BENCH_PRIVATE_DEV") == "0":
        script = 'exec "$@"'
    head = [program, "-m", "--propagation", "private", "/bin/sh", "-c", script, "sh", query, target.library]

    def ask(key: str, index: int) -> Any:
        return _asked([*head, key, str(index)], environment)

    return ask


def bubblewrapped(target: Target) -> Callable[..., Any]:
    """``bwrap`` with a /dev of its own, and in it a Python that imports pynvml and asks one thing."""
    program = shutil.which("bwrap")
    if program is None:
        raise Missing("bubblewrap is not installed")
    environment = {**os.environ, "NVSANDBOX_SIM": target.simulate, "BENCH_LIBRARY": target.library}
    bind = ["--bind", "/", "/", "--dev", "/dev"]
    if environment.get("BENCH_PRIVATE_DEV") == "0":
        for name in os.listdir("/dev"):
            if name.startswith("nvidia"):
                bind += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    head = [program, *bind, sys.executable, str(HERE / "query.py")]
    tried = subprocess.run([program, *bind, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        raise Missing(f"bubblewrap does not work here: {tried.stderr.strip()[:120]}")

    def ask(key: str, index: int) -> Any:
        return _asked([*head, key, str(index)], environment)

    return ask


# ---- all of them


class Ways:
    """Opened ways to one target. ``functions(key, index)`` has for each a function and its arguments; what is missing
    is in ``missing`` with the reason."""

    def __init__(self, target: Target, names: list[str], query: str = "") -> None:
        self.target = target
        self.missing: dict[str, str] = {}
        self._asks: dict[str, Callable[..., Any]] = {}
        self._modules: dict[str, Any] = {}
        self._handles: dict[str, list[Any]] = {}
        self._query = query
        self._stack = contextlib.ExitStack()
        self._names = names

    def __enter__(self) -> Ways:
        # Those that fork or spawn come first, while this process is small.
        order = ["worker", "rpyc", "manager", "fork", "unshare", "bwrap", "direct", "pipe", "shm", "routed"]
        for name in sorted(self._names, key=order.index):
            try:
                getattr(self, f"_open_{name}")()
            except Missing as error:
                self.missing[name] = str(error)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def names(self) -> list[str]:
        return [name for name in self._names if name not in self.missing]

    def module(self, name: str) -> Any:
        """The pynvml of a way that has one in this process."""
        return self._modules[name]

    def handles(self, name: str) -> list[Any]:
        return self._handles[name]

    @property
    def worker(self) -> PipeWorker:
        return self._worker

    def function(self, name: str, key: str, index: int = 0) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """What is called, and with what, to have the answer to `key`."""
        if name in self._asks:
            return self._asks[name], (key, index)
        workload = WORKLOADS[key]
        return getattr(self._modules[name], workload.function), (self._handles[name][index], *workload.arguments)

    def answer(self, name: str, key: str, index: int = 0) -> Any:
        """The answer to `key` in builtins, the same whichever way it came."""
        function, arguments = self.function(name, key, index)
        result = function(*arguments)
        return result if name in self._asks else WORKLOADS[key].plain(result)

    def _use(self, name: str, nvml: Any) -> None:
        self._modules[name] = nvml
        self._handles[name] = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]

    def _open_direct(self) -> None:
        nvml = load(self.target)
        nvml.nvmlInit()
        self._stack.callback(nvml.nvmlShutdown)
        self._use("direct", nvml)

    def _isolated(self, transport: str) -> Any:
        from nvsandbox import nvml_isolated

        return self._stack.enter_context(nvml_isolated(transport=transport, **self.target.options()))

    def _open_shm(self) -> None:
        self._use("shm", self._isolated("shm"))

    def _open_pipe(self) -> None:
        self._use("pipe", self._isolated("pipe"))

    def _open_routed(self) -> None:
        import pynvml

        self._isolated("shm")
        pynvml.nvmlInit()
        self._stack.callback(pynvml.nvmlShutdown)
        self._use("routed", pynvml)

    def _open_worker(self) -> None:
        self._worker = PipeWorker(self.target)
        self._stack.callback(self._worker.close)
        self._asks["worker"] = self._worker.ask

    def _open_manager(self) -> None:
        self._asks["manager"] = self._stack.enter_context(manager(self.target))

    def _open_rpyc(self) -> None:
        self._asks["rpyc"] = self._stack.enter_context(rpyc(self.target))

    def _open_fork(self) -> None:
        self._asks["fork"] = forked(self.target)

    def _open_unshare(self) -> None:
        self._asks["unshare"] = unshared(self.target, self._query)

    def _open_bwrap(self) -> None:
        self._asks["bwrap"] = bubblewrapped(self.target)


class ThreadGroup:
    """Threads that stay and call in bursts, all at once."""

    def __init__(self, calls: list[Callable[[], Any]]) -> None:
        """`calls`: one function for each thread."""
        self._barrier = threading.Barrier(len(calls) + 1)
        self._seconds = 0.0
        self._counts = [0] * len(calls)
        self._threads = [threading.Thread(target=self._run, args=(i, call)) for i, call in enumerate(calls)]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int, call: Callable[[], Any]) -> None:
        while True:
            self._barrier.wait()
            if self._seconds == 0:
                return
            end = time.perf_counter() + self._seconds
            count = 0
            while time.perf_counter() < end:
                for _ in range(10):
                    call()
                count += 10
            self._counts[number] = count
            self._barrier.wait()

    def rate(self, seconds: float) -> float:
        """Calls per second, of all threads together."""
        self._seconds = seconds
        start = time.perf_counter()
        self._barrier.wait()
        self._barrier.wait()
        return sum(self._counts) / (time.perf_counter() - start)

    def close(self) -> None:
        self._seconds = 0.0
        self._barrier.wait()
        for thread in self._threads:
            thread.join()
