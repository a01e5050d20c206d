# SPDX-License-Identifier: Apache-2.0
"""The parts of the suite, each of which bench.py runs in a process of its own: ``bench_parts.py PART SETTINGS``, with
the settings as JSON.

Prints one JSON object: "results", a list of measurements, and "missing", what could not be measured and why. A
measurement has a part, a case and a way; a unit; median, quartiles and how many figures they are of; and its ratio to
the direct call in the same rounds (or to what "base" names), with quartiles too.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

import host
import startup
from exchange import NEAR_NS, meter
from measure import Batch, batch, interleave, latencies, percentiles, ratio, spread
from ways import PipeWorker, Target, ThreadGroup, Ways
from workloads import SCRAPE, WORKLOADS

LANES = ["shm", "routed"]
CLOSE = ["direct", *LANES, "pipe"]
OTHERS = ["worker", "rpyc", "manager", "fork", "unshare", "bwrap"]


class Bench:
    """Settings, and what has been measured so far."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.quick: bool = settings["quick"]
        self.rounds = 5 if self.quick else settings["rounds"]
        self.batch = 0.001 if self.quick else 0.004
        self.libraries: dict[str, str] = settings["libraries"]
        self.query: str = settings["query"]
        self.exchange: str = settings["exchange"]
        self.only: list[str] | None = settings["ways"]
        self.real: bool = settings["real"]
        self.results: list[dict[str, Any]] = []
        self.missing: dict[str, str] = {}

    def target(self, name: str) -> Target:
        """``null``, ``null-20us``, ``real`` (the driver's), or what the simulator is to simulate."""
        if name in self.libraries:
            return Target(self.libraries[name])
        return Target(self.libraries["sim"], name)

    def ways(self, target: str, names: list[str]) -> Ways:
        names = [name for name in names if self.only is None or name in self.only]
        return Ways(self.target(target), names, self.query)

    def add(self, part: str, case: str, way: str, unit: str, figures: list[float], **more: Any) -> None:
        self.results.append(
            {"part": part, "case": case, "way": way, "unit": unit, "n": len(figures), **spread(figures), **more}
        )

    def side_by_side(
        self, part: str, case: str, batches: dict[str, Batch], *, base: str = "direct", rounds: int = 0, per: int = 1
    ) -> None:
        """Measures and notes; `per`: how many calls are in what a batch repeats. With an "exchange" among the batches
        the ratios of rounds with near CPUs are told apart from those with far ones."""
        found = interleave(batches, rounds or self.rounds, self.batch)
        exchange = found.get("exchange", {})
        for way, values in found.items():
            figures = [value / per for value in values.values()]
            more: dict[str, Any] = {}
            if way in LANES and exchange:
                more["distance"] = {
                    name: of_rounds(numbers, exchange, values, found[base])
                    for name, numbers in by_distance(exchange).items()
                }
            self.add(part, case, way, "s", figures, base=base, ratio=ratio(values, found[base]), **more)

    def distance(self, ways: Ways) -> dict[str, Batch]:
        """A batch that hands a cache line between the CPUs that this thread and the session's worker are on; none where
        that is not possible."""
        if not self.exchange or "shm" not in ways.names:
            return {}
        read = meter(self.exchange, ways.module("shm").session.pid)

        def hand_over(times: int) -> float:
            taken = read(times)
            if taken is None:
                raise RuntimeError("there were two CPUs, and now there is one")
            return taken

        return {} if read(10) is None else {"exchange": hand_over}

    def note_missing(self, ways: Ways) -> None:
        self.missing.update(ways.missing)


def by_distance(exchange: dict[int, float]) -> dict[str, list[int]]:
    """Which rounds found the CPUs near each other, and which far apart."""
    near = [number for number, seconds in exchange.items() if seconds * 1e9 <= NEAR_NS]
    far = [number for number in exchange if number not in near]
    return {name: numbers for name, numbers in (("near", near), ("far", far)) if numbers}


def of_rounds(
    numbers: list[int], exchange: dict[int, float], values: dict[int, float], base: dict[int, float]
) -> dict[str, Any]:
    chosen = {number: values[number] for number in numbers if number in values}
    apart = [exchange[number] for number in numbers]
    return {"n": len(chosen), "exchange": spread(apart), **({"ratio": ratio(chosen, base)} if chosen else {})}


# ---- calls one after the other


def calls(bench: Bench, target: str) -> None:
    part = f"calls, {target.partition(',')[0]}"
    with bench.ways(target, CLOSE + OTHERS) as ways:
        bench.note_missing(ways)
        apart = bench.distance(ways)
        for key in WORKLOADS:
            bench.side_by_side(part, key, {name: batch(*ways.function(name, key)) for name in ways.names} | apart)


def delays(bench: Bench) -> None:
    """An NVML whose calls take their time: busy (the do-nothing library with a delay), and asleep (simulator)."""
    cases = [("busy 20 us", "null-20us"), ("busy 200 us", "null-200us"), ("busy 2 ms", "null-2ms")]
    cases += [("asleep 200 us", "h100x1,latency_us=200"), ("asleep 2 ms", "h100x1,latency_us=2000")]
    for case, target in cases:
        with bench.ways(target, ["direct", "shm", "pipe", "worker"]) as ways:
            bench.side_by_side(
                "slow NVML", case, {name: batch(*ways.function(name, "temperature")) for name in ways.names}
            )


def single(bench: Bench, target: str) -> None:
    """Each call timed alone: percentiles."""
    with bench.ways(target, ["direct", "shm", "pipe", "worker", "rpyc", "manager"]) as ways:
        bench.note_missing(ways)
        for case, blocks, size, pause in [("in a row", 40, 500, 0.0), ("each after 2 ms of rest", 10, 30, 0.002)]:
            found: dict[str, list[float]] = {name: [] for name in ways.names}
            for _ in range(3 if bench.quick else blocks):
                for name in ways.names:
                    function, arguments = ways.function(name, "temperature")
                    latencies(function, arguments, 10)
                    found[name] += latencies(function, arguments, size, pause)
            for name, values in found.items():
                bench.add("single calls", case, name, "s", values, percentiles=percentiles(values))


def histogram(bench: Bench) -> None:
    """What it costs that calls are timed, for the histogram in ``session.stats()``: one session, with and without; and
    if each call were timed, which is more than anybody pays."""
    never = 1 << 62
    with bench.ways("null", ["shm"]) as ways:
        link = ways.module("shm").session.link
        function, arguments = ways.function("shm", "temperature")
        run = batch(function, arguments)

        def some(after: int) -> Batch:
            def set_first(times: int) -> float:
                link.timed_after = after
                return run(times)

            return set_first

        def each(after: int) -> Batch:
            def call() -> None:
                link.timed_after = after
                function(*arguments)

            return batch(call)

        for case, how in {"one call in eight timed": some, "each call timed": each}.items():
            found = interleave({"shm": how(1), "untimed": how(never)}, 3 * bench.rounds, bench.batch)
            for way, values in found.items():
                bench.add("latency histogram", case, way, "s", [*values.values()])
            extra = [seconds - found["untimed"][number] for number, seconds in found["shm"].items()]
            bench.add("latency histogram", case, "difference", "s", extra)


# ---- threads


def threads(bench: Bench) -> None:
    cases = [(f"{count} threads", "null", count) for count in (1, 2, 4, 8)]
    cases += [("4 threads, NVML asleep 200 us", "h100x8,latency_us=200", 4)]
    for case, target, count in cases:
        workers: list[PipeWorker] = []
        groups: dict[str, ThreadGroup] = {}
        with bench.ways(target, ["direct", "shm", "pipe", "worker"]) as ways:
            try:
                for name in ways.names:
                    functions = []
                    for i in range(count):
                        if name == "worker":  # one for each thread: with one for all, they would wait for each other
                            workers.append(PipeWorker(bench.target(target)))
                            functions.append(_bound(workers[-1].ask, ("temperature", i)))
                        else:
                            functions.append(_bound(*ways.function(name, "temperature", i)))
                    groups[name] = ThreadGroup(functions)
                found: dict[str, dict[int, float]] = {name: {} for name in groups}
                seconds = 0.03 if bench.quick else 0.15
                for group in groups.values():
                    group.rate(0.02)
                for number in range(4 if bench.quick else 10):
                    for name, group in groups.items():
                        found[name][number] = group.rate(seconds)
            finally:
                for group in groups.values():
                    group.close()
                for worker in workers:
                    worker.close()
        for name, values in found.items():
            bench.add(
                "threads",
                case,
                name,
                "calls/s",
                [*values.values()],
                base="direct",
                ratio=ratio(values, found["direct"]),
            )


def _bound(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[[], Any]:
    return lambda: function(*arguments)


# ---- scrapes


def _scrapes(ways: Ways) -> tuple[dict[str, Batch], int]:
    """For each way what asks everything of every GPU; and of how many calls that is."""
    scrapes: dict[str, Batch] = {}
    count = 0
    for name in ways.names:
        if name == "worker":
            requests = [(function, i, args) for i in range(count // len(SCRAPE)) for function, args in SCRAPE]
            scrapes[name] = batch(_ask_all, (ways.worker.any, requests))
            continue
        nvml = ways.module(name)
        todo = [(getattr(nvml, f), (handle, *args)) for handle in ways.handles(name) for f, args in SCRAPE]
        count = len(todo)
        scrapes[name] = batch(_call_all, (todo, nvml.NVMLError))
    return scrapes, count


def _call_all(todo: list[tuple[Callable[..., Any], tuple[Any, ...]]], error: type[Exception]) -> None:
    for function, arguments in todo:
        try:  # noqa: SIM105 - contextlib.suppress would cost as much as a call
            function(*arguments)
        except error:
            pass


def _ask_all(ask: Callable[..., Any], requests: list[tuple[Any, ...]]) -> None:
    for request in requests:
        ask(*request)


def scrape(bench: Bench, target: str) -> None:
    with bench.ways(target, ["direct", "shm", "pipe", "worker"]) as ways:
        scrapes, count = _scrapes(ways)
        gpus = count // len(SCRAPE)
        bench.side_by_side("scrape", f"{gpus} GPUs, {count} calls", scrapes)


def scaling(bench: Bench) -> None:
    for gpus in (1, 8, 16, 64):
        with bench.ways(f"h100x{gpus}", ["direct", "shm", "pipe"]) as ways:
            scrapes, count = _scrapes(ways)
            bench.side_by_side("number of GPUs", f"{gpus}", scrapes, per=count)
    for size in (1, 10, 100, 1000, 5000):
        with bench.ways(f"h100x1,frozen=1,procs={size}", ["direct", "shm", "pipe", "worker"]) as ways:
            batches = {name: batch(*ways.function(name, "processes")) for name in ways.names}
            bench.side_by_side("size of a process list", f"{size}", batches)


# ---- memory and processor time


def _private_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:")))


def memory(bench: Bench) -> None:
    """Private memory (Private_Clean and Private_Dirty in smaps_rollup) of the worker after each question has been
    asked once, less what the NVML library itself takes: what the same questions add to a C program's private memory,
    from before it loads the library until they are answered."""
    for case, target in [("null", "null"), ("simulator, 8 GPUs", "h100x8,frozen=1,procs=100")]:
        what = bench.target(target)
        own = 0
        if bench.query:
            command = [bench.query, what.library, "private", "0"]
            environment = {**os.environ, "NVSANDBOX_SIM": what.simulate}
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
            before, after = json.loads(done.stdout)
            own = after - before
        bench.add("memory", case, "library", "KiB", [own])
        with bench.ways(target, ["shm", "pipe", "worker"]) as ways:
            for name in ways.names:
                for key in WORKLOADS:
                    ways.answer(name, key)
                pid = ways.worker.pid if name == "worker" else ways.module(name).session.pid
                private = _private_kib(pid)
                bench.add("memory", case, name, "KiB", [private - own], private=private, library=own)


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _running_ns(pid: int) -> int:
    found = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):
            found += int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
    return found


def idle(bench: Bench) -> None:
    """Processor time of a session that has been in use by four threads and is not now."""
    seconds = 2 if bench.quick else 10
    with bench.ways("null", ["shm", "pipe"]) as ways:
        for name in ways.names:
            function, arguments = ways.function(name, "temperature")
            group = ThreadGroup([_bound(function, arguments) for _ in range(4)])
            group.rate(0.05)
            pids = {"caller": os.getpid(), "worker": ways.module(name).session.pid}
            time.sleep(0.1)
            before = {who: (_ticks(pid), _running_ns(pid)) for who, pid in pids.items()}
            time.sleep(seconds)
            for who, pid in pids.items():
                bench.add(
                    "idle", f"{who}, {seconds} s", name, "ticks", [_ticks(pid) - before[who][0]],
                    running_us=(_running_ns(pid) - before[who][1]) // 1000,
                )  # fmt: skip
            group.close()


PARTS: dict[str, Callable[[Bench], None]] = {
    "calls-null": lambda bench: calls(bench, "null"),
    "calls-sim": lambda bench: calls(bench, "h100x8,frozen=1,procs=100"),
    "calls-real": lambda bench: calls(bench, "real"),
    "delays": delays,
    "histogram": histogram,
    "single": lambda bench: single(bench, "null"),
    "threads": threads,
    "scrape": lambda bench: scrape(bench, "h100x8"),
    "scrape-real": lambda bench: scrape(bench, "real"),
    "scaling": scaling,
    "startup": startup.compared,
    "startup-steps": startup.steps,
    "startup-big": startup.big_callers,
    "memory": memory,
    "idle": idle,
}


def main() -> None:
    settings = json.loads(sys.argv[2])
    if host.can_play_host():
        host.play_host()
    elif not settings["real"]:
        sys.exit("needs CAP_SYS_ADMIN: direct calls must not touch the real /dev")
    bench = Bench(settings)
    PARTS[sys.argv[1]](bench)
    json.dump({"results": bench.results, "missing": bench.missing}, sys.stdout)


if __name__ == "__main__":
    main()
