# SPDX-License-Identifier: Apache-2.0
"""What a start costs, until the first result is there: beside other ways, step by step, and in a large caller.

Also the program that a large caller runs, and a small one to compare it with: ``startup.py GIB THREADS LIBRARY``.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

import host
from measure import Batch, spread
from ways import Missing, PipeWorker, Target, bubblewrapped, forked, fresh_pynvml, manager, rpyc, unshared

if TYPE_CHECKING:
    from bench_parts import Bench

# ---- beside other ways


def _starts(start: Callable[[], float]) -> Batch:
    return lambda times: sum(start() for _ in range(times))


def _start_session(target: Target, transport: str) -> Callable[[], float]:
    from nvsandbox import nvml_isolated

    options = target.options()

    def start() -> float:
        begin = time.perf_counter()
        with nvml_isolated(transport=transport, **options) as nvml:
            nvml.nvmlDeviceGetTemperature(nvml.nvmlDeviceGetHandleByIndex(0), 0)
            return time.perf_counter() - begin

    return start


def _start_direct(target: Target) -> Callable[[], float]:
    nvml = fresh_pynvml()
    os.environ["NVSANDBOX_SIM"] = target.simulate

    def start() -> float:
        with tempfile.TemporaryDirectory() as folder:
            copy = shutil.copy(target.library, folder)  # else it would be loaded once and for all
            nvml._nvmlGetFunctionPointer_cache.clear()
            begin = time.perf_counter()
            nvml.nvmlLib = ctypes.CDLL(copy)
            nvml.nvmlInit()
            nvml.nvmlDeviceGetTemperature(nvml.nvmlDeviceGetHandleByIndex(0), 0)
            seconds = time.perf_counter() - begin
            nvml.nvmlShutdown()
            return seconds

    return start


def _start_true() -> float:
    begin = time.perf_counter()
    subprocess.run(["/bin/true"], check=True, close_fds=False)
    return time.perf_counter() - begin


def _start_worker(target: Target) -> Callable[[], float]:
    def start() -> float:
        begin = time.perf_counter()
        worker = PipeWorker(target)
        worker.ask("temperature", 0)
        seconds = time.perf_counter() - begin
        worker.close()
        return seconds

    return start


def _start_opened(opened: Callable[[Target], Any], target: Target) -> Callable[[], float]:
    def start() -> float:
        begin = time.perf_counter()
        with opened(target) as ask:
            ask("temperature", 0)
            return time.perf_counter() - begin

    return start


def _start_process(ask: Callable[..., Any]) -> Callable[[], float]:
    def start() -> float:
        begin = time.perf_counter()
        ask("temperature", 0)
        return time.perf_counter() - begin

    return start


def compared(bench: Bench) -> None:
    """Until the first temperature is there. Compared with what it takes to run /bin/true, for a start is mostly the
    kernel's work."""
    target = bench.target("null")
    starts: dict[str, Callable[[], float]] = {
        "true": _start_true,
        "direct": _start_direct(target),
        "shm": _start_session(target, "shm"),
        "pipe": _start_session(target, "pipe"),
        "fork": _start_process(forked(target)),
    }
    if not bench.quick:
        starts["worker"] = _start_worker(target)
        starts["manager"] = _start_opened(manager, target)
        for name, make in {
            "rpyc": lambda: _start_opened(rpyc, target),
            "unshare": lambda: _start_process(unshared(target, bench.query)),
            "bwrap": lambda: _start_process(bubblewrapped(target)),
        }.items():
            try:
                start = make()
                start()
                starts[name] = start
            except Missing as error:
                bench.missing[name] = str(error)
    bench.side_by_side(
        "start-up", "library that starts at once", {name: _starts(start) for name, start in starts.items()}, base="true"
    )
    simulated = {"true": _starts(_start_true), "shm": _starts(_start_session(bench.target("h100x8"), "shm"))}
    bench.side_by_side("start-up", "simulator, 8 GPUs", simulated, base="true")


# ---- step by step


@contextlib.contextmanager
def _noting(owner: Any, name: str, times: dict[str, list[tuple[int, int]]]) -> Iterator[None]:
    """Notes when a function of the product begins and ends."""
    function = getattr(owner, name)

    def noting(*arguments: Any, **named: Any) -> Any:
        begin = time.monotonic_ns()
        try:
            return function(*arguments, **named)
        finally:
            times.setdefault(name, []).append((begin, time.monotonic_ns()))

    setattr(owner, name, noting)
    try:
        yield
    finally:
        setattr(owner, name, function)


def _one_start(target: Target) -> list[tuple[str, str, int]]:
    """What a start's time went to, one thing after the other: step, whose time it was, nanoseconds."""
    from nvsandbox import blocks, control, handshake, nvml_isolated, process

    times: dict[str, list[tuple[int, int]]] = {}
    with contextlib.ExitStack() as stack:
        for owner, name in (
            (process.Process, "spawn"), (control.Control, "receive"), (handshake, "verify"), (blocks, "draft"),
        ):  # fmt: skip
            stack.enter_context(_noting(owner, name, times))
        begin = time.monotonic_ns()
        with nvml_isolated(transport="shm", **target.options()) as nvml:
            entered = time.monotonic_ns()
            handle = nvml.nvmlDeviceGetHandleByIndex(0)
            found = time.monotonic_ns()
            nvml.nvmlDeviceGetTemperature(handle, 0)
            end = time.monotonic_ns()
            worker = nvml.session.keeper.worker
            program, worker_steps = worker.began_ns, dict(worker.step_ns)
    spawned, isolated, ready = times["spawn"][0], times["receive"][0][1], times["receive"][1]
    verified = times["verify"][0]
    library = {name: worker_steps.pop(name) for name in ("library", "initialisation")}
    in_turn = [
        ("options, capabilities, sockets", "in-caller", spawned[0] - begin),
        # One step, which the return of posix_spawn does not part: the program is executed before, and on another CPU
        # it may be in its main by the time that the caller goes on.
        ("spawn: posix_spawn, then the program's loader and C library", "between", program - spawned[0]),
        *[(name, "in-worker", nanoseconds) for name, nanoseconds in worker_steps.items()],
        ("ISOLATED: message and wake-up", "between", isolated - program - sum(worker_steps.values())),
        ("verification", "in-caller", verified[1] - verified[0]),
        *[(name, "in-worker", nanoseconds) for name, nanoseconds in library.items()],
        ("GO and READY: messages and wake-ups", "between", ready[1] - verified[1] - sum(library.values())),
        ("binding and routing", "in-caller", entered - ready[1]),
        ("first call: a lane, its thread, looking names up", "between", found - entered),
        ("second call", "between", end - found),
    ]
    drafted = times["draft"][0]
    return [
        *in_turn,
        ("all of it", "between", sum(step[2] for step in in_turn)),
        (
            "of the caller's, while the worker starts: posix_spawn, until it returns",
            "in-caller",
            spawned[1] - spawned[0],
        ),
        ("of the caller's, while the worker starts: pynvml's functions anew", "in-caller", drafted[1] - drafted[0]),
    ]


def steps(bench: Bench) -> None:
    """Where the time goes, by the worker's own report and the times between."""
    target = bench.target("null")
    for _ in range(3):
        _one_start(target)
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(5 if bench.quick else 60):
        for step, whose, nanoseconds in _one_start(target):
            found.setdefault((step, whose), []).append(nanoseconds / 1e9)
    for (step, whose), figures in found.items():
        bench.add("start-up, step by step", step, whose, "s", figures)


# ---- large callers


@contextlib.contextmanager
def _caller(gib: int, threads: int, library: str) -> Iterator[Callable[[str], list[float]]]:
    """A process of such a size, which is asked for the seconds that three starts in a row take it."""
    command = [sys.executable, __file__, str(gib), str(threads), library]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        output, answers = process.stdin, process.stdout
        answers.readline()

        def ask(way: str) -> list[float]:
            output.write(f"{way}\n")
            output.flush()
            figures: list[float] = json.loads(answers.readline())
            return figures

        yield ask
        output.close()


def big_callers(bench: Bench) -> None:
    """A start where the caller is large and has many threads, beside the same in a small caller: both live all the
    time, and are asked in turn."""
    gib = 1 if bench.quick else 8
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 30
    if available < gib + 2:
        gib = max(1, available - 2)
    library = bench.target("null").library
    with _caller(0, 0, library) as small, _caller(gib, 200, library) as big:
        for way, rounds in {"shm": 5 if bench.quick else 40, "fork": 3 if bench.quick else 10}.items():
            both = [(statistics.median(small(way)), statistics.median(big(way))) for _ in range(rounds)]
            bench.add("start-up", "small caller, for comparison", way, "s", [one for one, _ in both])
            bench.add(
                "start-up", f"caller with {gib} GiB of memory and 200 threads", way, "s", [other for _, other in both],
                base="small caller", ratio=spread([other / one for one, other in both]),
            )  # fmt: skip


def _be_caller(gib: int, threads: int, library: str) -> None:
    host.play_host()
    memory = mmap.mmap(-1, gib << 30 or 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for offset in range(0, len(memory), 4096):
        memory[offset] = 1
    stop = threading.Event()
    waiting = [threading.Thread(target=stop.wait) for _ in range(threads)]
    for thread in waiting:
        thread.start()
    target = Target(library)
    starts = {"shm": _start_session(target, "shm"), "fork": _start_process(forked(target))}
    for start in starts.values():
        start()
    print("ready", flush=True)
    for way in sys.stdin:
        gc.collect()
        print(json.dumps([starts[way.strip()]() for _ in range(3)]), flush=True)
    stop.set()
    for thread in waiting:
        thread.join()
    memory.close()


if __name__ == "__main__":
    _be_caller(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
