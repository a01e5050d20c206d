# SPDX-License-Identifier: Apache-2.0
"""The parts of the soak program, soak.py, which runs each in a process of its own: ``soak_parts.py PART SCALE SEED``.

Prints one JSON object: counts, figures, and the checks that failed.
"""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import mmap
import os
import random
import select
import signal
import sys
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pynvml

import nvsandbox
from nvsandbox import nvml_isolated

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

import host
from leftovers import MARK, Snapshot
from waiting import until_inside

THREADS = 8

# What is promised, and how much later a thread may come to run where eight of them share two CPUs and one interpreter.
NOTICE = 0.050
SLACK = 0.200

LONGEST = 2.0  # for a call that meets a fault, or a restart, or eight of them in a row

MEMORY_MAX = 1 << 20
PHASES = 10  # after each of them the memory is looked at
# As much work again comes first: until then the threads fill what the C library keeps for each of them, free chunks
# that keep whole pages resident (docs/reliability.md has the curve).
WARM_UP = 10
# From the least of the last looks of the warm-up to the most of the last looks of all: one look that is high by chance
# at the start of what is judged does not hide growth, and one that is low at its end does not either.
LOOKS = 3
PHASES_SHORT = 3  # where there is too little work for that to tell anything
ORPHAN_LIMIT = 0.200
FORK_LIMIT = 30.0


class Report:
    """What a part counts, measures and finds wrong."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        """What the limits of time are multiplied by."""
        self.counts: Counter[str] = Counter()
        self.figures: dict[str, str] = {}
        self.failed: list[str] = []
        self._lock = threading.Lock()

    def count(self, what: str, number: int = 1) -> None:
        with self._lock:
            self.counts[what] += number

    def fail(self, why: str) -> None:
        with self._lock:
            if len(self.failed) < 20:
                self.failed.append(why)

    def spread(
        self, name: str, seconds: Iterable[float], limit: float | None = None, usual: float | None = None
    ) -> None:
        """Notes how `seconds` are spread; the longest must not exceed `limit`, nor the median `usual`."""
        ordered = sorted(seconds)
        if not ordered:
            return
        points = {"median": 0.5, "p99": 0.99}
        parts = [f"{key} {ordered[int(share * (len(ordered) - 1))] * 1e3:.1f}" for key, share in points.items()]
        self.figures[name] = f"{', '.join(parts)}, longest {ordered[-1] * 1e3:.1f} ms (of {len(ordered)})"
        if limit is not None and ordered[-1] > limit * self.patience:
            self.fail(f"{name}: {ordered[-1] * 1e3:.1f} ms, allowed are {limit * self.patience * 1e3:.0f}")
        median = ordered[(len(ordered) - 1) // 2]
        if usual is not None and median > usual * self.patience:
            self.fail(f"{name}: median {median * 1e3:.1f} ms, allowed are {usual * self.patience * 1e3:.0f}")

    def progress(self, text: str) -> None:
        print(f"soak:   {text}", file=sys.stderr, flush=True)


_libc = ctypes.CDLL(None)


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        *((f"unused_{index}", ctypes.c_size_t) for index in range(4)),
        ("hblkhd", ctypes.c_size_t),
        *((f"unused_{index}", ctypes.c_size_t) for index in range(4, 6)),
        ("uordblks", ctypes.c_size_t),
        *((f"unused_{index}", ctypes.c_size_t) for index in range(6, 8)),
    ]


class Memory:
    """What memory this process has, looked at after each phase of the work.

    The phases of the warm-up come first, in addition to the others. What the C library keeps for each thread, free as
    it is, counts as in use here; tests/leaks/test_memory.py has the exact figures.
    """

    def __init__(self, scale: float) -> None:
        judged = scale >= 0.2
        self.warm_up = WARM_UP if judged else 0
        self.phases = self.warm_up + (PHASES if judged else PHASES_SHORT)
        self.scale = scale * self.phases / (self.phases - self.warm_up)
        """Of the work with the warm-up."""
        self.resident: list[int] = []
        self.live: list[int] = []

    def look(self) -> None:
        settled()
        gc.collect()
        _libc.malloc_trim(ctypes.c_size_t(0))
        with open("/proc/self/statm", encoding="ascii") as file:
            self.resident.append(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
        _libc.mallinfo2.restype = _Mallinfo
        info = _libc.mallinfo2()
        # Python's own blocks are 512 bytes at most, and come in arenas that the C library does not count as in use.
        self.live.append(info.uordblks + info.hblkhd + sys.getallocatedblocks() * 64)

    def judge(self, report: Report) -> None:
        steps = ", ".join(f"{size / (1 << 20):.1f}" for size in self.resident)
        report.figures["resident memory of the caller, after each part of the work"] = f"{steps} MiB"
        if self.warm_up == 0:
            return
        for what, sizes in (("the resident memory", self.resident), ("what is in use", self.live)):
            warm, judged = sizes[: self.warm_up], sizes[self.warm_up :]
            base = min(warm[-LOOKS:])
            grown = max(judged[-LOOKS:]) - base
            report.figures[f"growth of {what} during the warm-up"] = f"{(base - warm[0]) / 1024:+.0f} KiB"
            report.figures[f"growth of {what} after the warm-up"] = f"{grown / 1024:+.0f} KiB"
            if grown >= MEMORY_MAX:
                report.fail(f"growth of {what} after the warm-up: {grown / 1024:.0f} KiB")


def children() -> list[int]:
    return [pid for pid, (_, parent) in host.processes().items() if parent == os.getpid()]


def settled(limit: float = 15.0) -> Snapshot:
    """A picture of this process when nothing changes any more: workers that were given up end after some seconds."""
    end = time.monotonic() + limit
    before = Snapshot.take()
    while time.monotonic() < end:
        time.sleep(0.25)
        after = Snapshot.take()
        # Threads that end workers belong to the sandbox; looking for others is what the picture is for.
        if after == before and not any("nvsandbox-" in thread.name for thread in threading.enumerate()):
            break
        before = after
    gc.collect()
    return Snapshot.take()


def parted(work: list[Any], phases: int) -> list[list[Any]]:
    size = -(-len(work) // phases)
    return [work[start : start + size] for start in range(0, len(work), size)]


def run_phases(
    work: Callable[[int, list[Any]], None], phases: list[list[Any]], between: Callable[[], None], report: Report
) -> None:
    """The same threads do one phase after the other, and `between` is called after each, when none of them runs."""
    barrier = threading.Barrier(THREADS + 1)

    def run(index: int) -> None:
        for phase in phases:
            try:
                work(index, phase)
            except BaseException as error:
                report.fail(f"thread {index}: {type(error).__name__}: {error}")
            barrier.wait()
            barrier.wait()

    def pauses() -> None:
        for number in range(1, len(phases) + 1):
            barrier.wait()
            report.progress(f"{number} of {len(phases)} parts done")
            between()
            barrier.wait()

    coordinator = threading.Thread(target=pauses, name="coordinator")
    coordinator.start()
    run_threads(run, report)
    coordinator.join()


class Times:
    """Seconds, in memory that is all there from the start, so that it is not taken for what the calls cost."""

    def __init__(self, room: int) -> None:
        self._values = array("d", bytes(8 * room))
        self._count = 0

    def append(self, seconds: float) -> None:
        if self._count < len(self._values):
            self._values[self._count] = seconds
            self._count += 1

    def __iter__(self) -> Iterator[float]:
        return iter(self._values[: self._count])


def run_threads(work: Callable[[int], None], report: Report, number: int = THREADS) -> None:
    def guarded(index: int) -> None:
        try:
            work(index)
        except BaseException as error:
            report.fail(f"thread {index}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=guarded, args=(index,), name=f"caller-{index}") for index in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def compare(before: Snapshot, after: Snapshot, report: Report) -> None:
    left = before.left_by(after)
    report.counts["left behind"] = len(left)
    for line in left:
        report.fail(f"left behind: {line}")


# ---- faults

HANG_TIMEOUT = 0.3
INJECTION_LIMIT = 60.0


# Fault: how many in ten thousand, and the simulated GPUs on which it happens
FAULTS = {
    "kill": (4000, "h100x2"),
    "segv": (1400, "h100x2,crash=nvmlDeviceGetPowerUsage:segv"),
    "abort": (1300, "h100x2,crash=nvmlDeviceGetPowerUsage:abort"),
    "exit": (1300, "h100x2,crash=nvmlDeviceGetPowerUsage:exit"),
    "hang": (300, "h100x2,hang=nvmlDeviceGetPowerUsage"),
    "lost": (1000, "h100x2,lost=1"),
    "garbage": (700, "h100x2,garbage=1"),
}

ENDS = {"segv": (signal.SIGSEGV, None), "abort": (signal.SIGABRT, None), "exit": (None, 0)}


class Target:
    """An open session on which one kind of fault happens."""

    def __init__(self, kind: str, nvml: Any) -> None:
        self.kind = kind
        self.nvml = nvml
        self.handle = nvml.nvmlDeviceGetHandleByIndex(0)
        self.uuid = nvml.nvmlDeviceGetUUID(self.handle)


class Caller:
    """One thread's calls, each of which is checked."""

    def __init__(self, report: Report, draw: random.Random, faults: int) -> None:
        self.report = report
        self.draw = draw
        self.late = Times(faults)  # CallTimeout after its deadline
        self.took = Times(8 * faults)  # all other calls

    def call(self, what: str, function: Callable[..., Any], *arguments: Any, limit: float = 10.0) -> Any:
        """The result of a call, or the NVMLError that it raised."""
        start = time.monotonic()
        try:
            result = function(*arguments)
            self.report.count("calls that returned")
        except pynvml.NVMLError as error:
            result = error
            self.report.count(f"calls that raised {type(error).__name__}")
        took = time.monotonic() - start
        if isinstance(result, nvsandbox.CallTimeout):
            self.late.append(took - limit)
        else:
            self.took.append(took)
        if isinstance(result, nvsandbox.SandboxError) and not isinstance(
            result, nvsandbox.WorkerDied | nvsandbox.CallTimeout
        ):
            self.report.fail(f"{what}: {type(result).__name__}: {result}")
        return result

    def ordinary(self, target: Target) -> Any:
        """A call that has an answer, unless another thread has just ended the worker."""
        found = self.call(target.kind, target.nvml.nvmlDeviceGetUUID, target.handle)
        if found != target.uuid and not isinstance(found, nvsandbox.WorkerDied):
            self.report.fail(f"{target.kind}: {found!r} where {target.uuid} was expected")
        return found

    def fault(self, target: Target) -> None:
        """Injects a fault, again and again until it has reached a worker, and only then counts it: after a worker that
        died without an answer the next one has to wait, and meanwhile there is nothing that could be hit."""
        for _ in range(self.draw.randrange(4)):
            self.ordinary(target)
        end = time.monotonic() + INJECTION_LIMIT
        while not self._inject(target):
            self.report.count("attempts that reached no worker, made again")
            if time.monotonic() > end:
                self.report.fail(f"{target.kind}: no worker was reached within {INJECTION_LIMIT:g} s")
                return
            time.sleep(0.01)
        self.report.count(f"faults: {target.kind}")
        self.report.count("faults")
        self.ordinary(target)

    def _inject(self, target: Target) -> bool:
        """Whether the fault has reached a worker."""
        kind, nvml = target.kind, target.nvml
        if kind == "kill":
            return self._kill(target)
        if kind == "garbage":
            return self._garbage(target)
        if kind == "lost":
            found = self.call(kind, nvml.nvmlDeviceGetHandleByIndex, 1)
            self._expect(kind, found, pynvml.NVMLError_GpuIsLost)
            return isinstance(found, pynvml.NVMLError_GpuIsLost)
        if kind == "hang":
            if not self._present(nvml):
                return False
            found = self.call(kind, nvml.nvmlDeviceGetPowerUsage, target.handle, limit=HANG_TIMEOUT)
            self._expect(kind, found, nvsandbox.CallTimeout, nvsandbox.WorkerDied)
        else:
            found = self.call(kind, nvml.nvmlDeviceGetPowerUsage, target.handle)
            self._expect(kind, found, nvsandbox.WorkerDied)
            if found.sent and (found.signal, found.status) != ENDS[kind]:
                self.report.fail(f"{kind}: {found}")
        return bool(getattr(found, "sent", False))

    def _expect(self, kind: str, found: object, *classes: type) -> None:
        if not isinstance(found, classes):
            self.report.fail(f"{kind}: {type(found).__name__} ({found}) where {classes[0].__name__} was expected")

    def _present(self, nvml: Any) -> bool:
        """Sees to it that there is a worker, so that a call's time is that of the call."""
        try:
            return bool(nvml.session.pid)
        except nvsandbox.WorkerDied:
            return False

    def _kill(self, target: Target) -> bool:
        """SIGKILL to a worker that has answered this thread's call."""
        nvml = target.nvml
        try:
            pid = nvml.session.pid
            pidfd = os.pidfd_open(pid)
        except (nvsandbox.WorkerDied, ProcessLookupError):
            return False
        try:
            if self.ordinary(target) != target.uuid or nvml.session.pid != pid:
                return False
            process = host.processes().get(pid, ("", 0))
            if process[1] != os.getpid() or select.select([pidfd], [], [], 0)[0]:
                return False  # another's who has got its number, or dead already
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            return True
        except (nvsandbox.WorkerDied, ProcessLookupError):
            return False
        finally:
            os.close(pidfd)

    def _garbage(self, target: Target) -> bool:
        try:
            name = target.nvml.nvmlDeviceGetName(target.handle)
            self.report.fail(f"garbage: the name {name!r}")
        except UnicodeDecodeError:  # as with pynvml alone
            self.report.count("calls that raised UnicodeDecodeError")
        return True


def part_faults(report: Report, scale: float, draw: random.Random) -> None:
    memory = Memory(scale)
    plan = [kind for kind, (number, _) in FAULTS.items() for _ in range(max(1, round(number * memory.scale)))]
    draw.shuffle(plan)
    callers = [Caller(report, random.Random(draw.random()), len(plan)) for _ in range(THREADS)]
    outside = settled()
    with ExitStack() as stack:
        targets = {}
        for kind, (_, description) in FAULTS.items():
            options = {"restart": 1_000_000, "timeout": HANG_TIMEOUT if kind == "hang" else 10.0}
            targets[kind] = Target(kind, stack.enter_context(nvml_isolated(simulate=description, **options)))

        def work(index: int, faults: list[str]) -> None:
            for kind in faults[index::THREADS]:
                callers[index].fault(targets[kind])

        with Maximum(lambda: len(children())) as workers:
            run_phases(work, parted(plan, memory.phases), memory.look, report)
        stats = [target.nvml.session.stats() for target in targets.values()]
    compare(outside, settled(), report)
    memory.judge(report)
    if report.counts["faults"] != len(plan):
        report.fail(f"{report.counts['faults']} faults of {len(plan)} that were planned")
    for key in ("deaths", "restarts", "timeouts", "abandoned"):
        report.counts[f"workers: {key}"] = sum(each[key] for each in stats)
    report.counts["workers at the same time, at most"] = workers.value
    late = [late for each in callers for late in each.late]
    report.spread("CallTimeout after the deadline", late, NOTICE + SLACK, NOTICE)
    report.spread("all other calls", [took for each in callers for took in each.took], LONGEST)


class Maximum:
    """The largest value of something while a block runs, looked at ten times in a second."""

    def __init__(self, look: Callable[[], int]) -> None:
        self.value = 0
        self._look = look

    def __enter__(self) -> Maximum:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="maximum")
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._end.wait(0.1):
            self.value = max(self.value, self._look())

    def __exit__(self, *exc: object) -> None:
        self._end.set()
        self._thread.join()


# ---- notice


def part_notice(report: Report, scale: float, draw: random.Random) -> None:
    rounds = max(2, round(100 * scale))
    before = settled()
    description = "h100,hang=nvmlDeviceGetPowerUsage"
    for what, limit in (("death", 20.0), ("deadline", 0.2)):
        times: list[float] = []
        others: list[float] = []
        with nvml_isolated(simulate=description, restart=1_000_000, timeout=limit) as nvml:
            handle = nvml.nvmlDeviceGetHandleByIndex(0)
            for _ in range(rounds):
                _blocked_callers(nvml, handle, what, limit, draw, times, others, report)
        limits = (NOTICE + SLACK, NOTICE)
        report.spread(f"from the {what} to the exception in the caller", times, *limits)
        report.spread(f"from the {what} to WorkerDied in the others that were in this worker", others, *limits)
    compare(before, settled(), report)


def _blocked_callers(
    nvml: Any,
    handle: Any,
    what: str,
    limit: float,
    draw: random.Random,
    times: list[float],
    others: list[float],
    report: Report,
) -> None:
    """All threads are in a call that hangs; the worker is killed, or the deadline of one of them passes."""
    ended: list[tuple[float, BaseException | None]] = []
    started: list[float] = []
    pid = nvml.session.pid
    nvml.nvmlDeviceGetUUID(handle)

    def call(index: int) -> None:
        # With deadlines, one caller's is first.
        started.append(time.monotonic())
        error: BaseException | None = None
        try:
            if what == "deadline" and index > 0:
                with nvml.session.deadline(limit * 20):
                    nvml.nvmlDeviceGetPowerUsage(handle)
            else:
                nvml.nvmlDeviceGetPowerUsage(handle)
        except pynvml.NVMLError as caught:
            error = caught
        ended.append((time.monotonic(), error))

    def killer() -> None:
        until_inside(pid, THREADS)
        time.sleep(draw.random() / 20)
        moment.append(time.monotonic())
        os.kill(pid, signal.SIGKILL)

    moment: list[float] = []
    if what == "death":
        thread = threading.Thread(target=killer)
        thread.start()
        run_threads(call, report)
        thread.join()
    else:
        run_threads(call, report)
    first = moment[0] if moment else min(started) + limit
    for end, error in ended:
        if what == "deadline" and isinstance(error, nvsandbox.CallTimeout):
            times.append(end - first)
        elif isinstance(error, nvsandbox.WorkerDied):
            (times if what == "death" else others).append(end - first)
        else:
            report.fail(f"{what}: {type(error).__name__}: {error}")
    report.count(f"{what}s")


# ---- calls


def part_calls(report: Report, scale: float, draw: random.Random) -> None:
    memory = Memory(scale)
    sessions = max(THREADS, round(2000 * memory.scale))
    calls = max(1000, round(1_000_000 * memory.scale))
    each = -(-calls // sessions)
    before = settled()

    def work(index: int, numbers: list[int]) -> None:
        for number in numbers[index::THREADS]:
            # No two at a time are equal, so that each block has a worker of its own.
            with nvml_isolated(simulate=f"h100x4,seed={index + 1}") as nvml:
                handles = [nvml.nvmlDeviceGetHandleByIndex(gpu) for gpu in range(4)]
                uuids = [nvml.nvmlDeviceGetUUID(handle) for handle in handles]
                if len(set(uuids)) != 4:
                    report.fail(f"the same UUID twice: {uuids}")
                wrong = 0
                for call in range((each - 8) // 4):
                    gpu = (call + number) % 4
                    wrong += nvml.nvmlDeviceGetUUID(handles[gpu]) != uuids[gpu]
                    nvml.nvmlDeviceGetTemperature(handles[gpu], 0)
                    nvml.nvmlDeviceGetMemoryInfo(handles[gpu])
                    wrong += nvml.nvmlDeviceGetCount() != 4
                if wrong:
                    report.fail(f"{wrong} wrong answers in session {number}")
                stats = nvml.session.stats()
                report.count("calls", stats["calls"])
                report.count("errors", stats["errors"] + stats["deaths"] + stats["timeouts"])
                report.count("sessions")

    moments = [time.monotonic()]

    def look() -> None:
        moments.append(time.monotonic())
        memory.look()
        moments.append(time.monotonic())

    run_phases(work, parted(list(range(sessions)), memory.phases), look, report)
    seconds = sum(moments[1::2]) - sum(moments[:-1:2])
    report.figures["calls and sessions in a second, with eight threads"] = (
        f"{report.counts['calls'] / seconds:.0f} and {sessions / seconds:.0f}"
    )
    compare(before, settled(), report)
    memory.judge(report)
    if report.counts["errors"]:
        report.fail(f"{report.counts['errors']} calls failed")


# ---- killed

MOMENTS = ("before", "start", "call", "stop")


def part_killed(report: Report, scale: float, draw: random.Random) -> None:
    """This process becomes the one to which orphans go, so that it sees each of them end."""
    if _libc.prctl(36, 1, 0, 0, 0) != 0:  # PR_SET_CHILD_SUBREAPER
        report.fail("PR_SET_CHILD_SUBREAPER")
    rounds = max(8, round(200 * scale))
    before = settled()
    times: list[float] = []
    for number in range(rounds):
        if number % 50 == 0:
            report.progress(f"caller {number} of {rounds}")
        phase = mmap.mmap(-1, 4096)
        pid = os.fork()
        if pid == 0:
            _caller_to_kill(phase, number)
        # One cycle takes about ten milliseconds.
        time.sleep(0.005 + draw.random() * 0.040)
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        report.count(f"killed in {MOMENTS[phase[0]]}")
        took = _all_ended(pid, killed)
        phase.close()
        if took is None:
            report.fail(f"caller {number}, killed in {MOMENTS[phase[0]]}: a worker is left after 15 s")
        else:
            times.append(took)
    compare(before, settled(), report)
    report.spread("from the end of the caller to that of the last worker", times, ORPHAN_LIMIT)


def _caller_to_kill(phase: mmap.mmap, number: int) -> None:
    try:
        while True:
            phase[0] = 1
            with nvml_isolated(simulate="h100x2", isolation="mount" if number % 4 else "auto") as nvml:
                phase[0] = 2
                end = time.monotonic() + 0.005
                while time.monotonic() < end:
                    nvml.nvmlDeviceGetCount()
                phase[0] = 3
    except BaseException as error:
        print(f"soak: the caller that is to be killed: {error!r}", file=sys.stderr)
    finally:
        os._exit(1)


def _all_ended(caller: int, killed: float) -> float | None:
    """Seconds until there is no descendant any more, counted from the kill; None if there is one after 15."""
    while time.monotonic() - killed < 15.0:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.0005)
        except ChildProcessError:
            return time.monotonic() - killed
    return None


# ---- forks


def part_forks(report: Report, scale: float, draw: random.Random) -> None:
    rounds = max(8, round(1000 * scale))
    before = settled()
    stop = threading.Event()
    times: list[float] = []
    with nvml_isolated(simulate="h100x8") as nvml:
        uuids = [nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(8)]
        pid = nvml.session.pid

        def load(index: int) -> None:
            calls = 0
            api = (nvml, pynvml)[index % 2]  # the block's own, and plain calls that are routed to it
            while not stop.is_set():
                if api.nvmlDeviceGetUUID(api.nvmlDeviceGetHandleByIndex(index)) != uuids[index]:
                    report.fail(f"thread {index}: the answer to another question")
                calls += 1
            report.count("calls under way meanwhile", calls)

        threads = threading.Thread(target=run_threads, args=(load, report))
        threads.start()
        try:
            for number in range(rounds):
                if number % 100 == 0:
                    report.progress(f"fork {number} of {rounds}")
                start = time.monotonic()
                child = os.fork()
                if child == 0:
                    _forked(nvml, (nvml, pynvml)[number % 2], number % 8, uuids)
                if _ended(child, report):
                    report.count("forks")
                    times.append(time.monotonic() - start)
        finally:
            stop.set()
            threads.join()
        if nvml.session.pid != pid or nvml.session.stats()["deaths"]:
            report.fail("the worker of the parent did not outlive its children")
    compare(before, settled(), report)
    report.spread("from the fork to the end of the child, which has started and ended a worker", times)


def _forked(nvml: Any, api: Any, index: int, uuids: list[str]) -> None:
    status = 1
    try:
        found = api.nvmlDeviceGetUUID(api.nvmlDeviceGetHandleByIndex(index))
        status = 0 if found == uuids[index] else 2
        nvml.session.close()
    except BaseException as error:
        print(f"soak: in a forked child: {error!r}", file=sys.stderr)
    finally:
        os._exit(status)


def _ended(child: int, report: Report) -> bool:
    pidfd = os.pidfd_open(child)
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    in_time = bool(poller.poll(FORK_LIMIT * 1000))
    os.close(pidfd)
    if not in_time:
        report.fail(f"a forked child has not ended after {FORK_LIMIT:g} s")
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if in_time and status != 0:
        report.fail(f"a forked child ended with {status}")
    return in_time and status == 0


def main() -> int:
    name, scale, seed, patience = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    logging.getLogger("nvsandbox").setLevel(logging.CRITICAL)  # a line for each fault would be all that one sees
    os.environ[MARK] = str(os.getpid())
    if host.can_play_host():
        host.play_host()
    report = Report(patience)
    parts = {
        "faults": part_faults,
        "notice": part_notice,
        "calls": part_calls,
        "killed": part_killed,
        "forks": part_forks,
    }
    draw = random.Random(f"{seed} {name}")
    parts[name](report, scale, draw)
    counts = dict(sorted(report.counts.items()))
    print(json.dumps({"counts": counts, "figures": report.figures, "failed": report.failed}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
