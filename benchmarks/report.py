# SPDX-License-Identifier: Apache-2.0
"""A run as Markdown, charts, and a pyperf suite."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headline import headline
from ways import TITLES
from workloads import WORKLOADS

Summary = dict[str, Any]
Entry = dict[str, Any]

_TITLES = {
    **TITLES,
    "true": "/bin/true, for comparison",
    "exchange": "a cache line from CPU to CPU and back",
    "library": "the library itself",
    "untimed": "the same, no call timed",
    "difference": "difference, round by round",
    "in-caller": "caller",
    "in-worker": "worker",
    "between": "both",
}
_BASES = {"direct": "direct", "true": "/bin/true", "small caller": "small caller"}


def entries(summary: Summary, part: str, case: str | None = None) -> list[Entry]:
    return [e for e in summary["results"] if e["part"] == part and (case is None or e["case"] == case)]


def find(summary: Summary, part: str, case: str, way: str) -> Entry | None:
    for entry in entries(summary, part, case):
        if entry["way"] == way:
            return entry
    return None


def _quantity(value: float, unit: str) -> str:
    if unit == "s":
        for factor, name in ((1e6, "µs"), (1e3, "ms"), (1.0, "s")):
            if value * factor < 1000 or name == "s":
                break
        return f"{_digits(value * factor)} {name}"
    if unit == "calls/s":
        return f"{value / 1000:.0f} k/s" if value >= 10_000 else f"{value / 1000:.1f} k/s"
    return f"{value:g} {unit}"


def _digits(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def _measured(entry: Entry) -> str:
    if entry["n"] == 1:
        return _quantity(entry["median"], entry["unit"])
    width = (entry["q3"] - entry["q1"]) / entry["median"] if entry["median"] else 0.0
    return f"{_quantity(entry['median'], entry['unit'])} (±{50 * width:.0f} %)"


def _ratio(entry: Entry) -> str:
    if "ratio" not in entry or entry["way"] == entry.get("base"):
        return ""
    return _figures(entry["ratio"])


# ---- targets


def _ratio_of(part: str, case: str) -> Callable[[Summary], dict[str, float] | None]:
    def measured(summary: Summary) -> dict[str, float] | None:
        entry = find(summary, part, case, "shm")
        return entry["ratio"] if entry and "ratio" in entry else None

    return measured


def _median_of(part: str, case: str, factor: float = 1.0) -> Callable[[Summary], dict[str, float] | None]:
    def measured(summary: Summary) -> dict[str, float] | None:
        entry = find(summary, part, case, "shm")
        return {key: entry[key] * factor for key in ("median", "q1", "q3")} if entry else None

    return measured


def _scrape(summary: Summary) -> dict[str, float] | None:
    for entry in entries(summary, "scrape"):
        if entry["way"] == "shm":
            ratio: dict[str, float] = entry["ratio"]
            return ratio
    return None


def _big_caller(summary: Summary) -> dict[str, float] | None:
    for entry in entries(summary, "start-up"):
        if entry["way"] == "shm" and entry.get("base") == "small caller":
            ratio: dict[str, float] = entry["ratio"]
            return ratio
    return None


def _histogram(summary: Summary) -> dict[str, float] | None:
    entry = find(summary, "latency histogram", "one call in eight timed", "difference")
    return {key: entry[key] * 1e9 for key in ("median", "q1", "q3")} if entry else None


def _idle(summary: Summary) -> dict[str, float] | None:
    ticks = [entry["median"] for entry in entries(summary, "idle") if entry["way"] == "shm"]
    return {"median": max(ticks), "q1": min(ticks), "q3": max(ticks)} if ticks else None


def _fastest_other(summary: Summary) -> dict[str, float] | None:
    own = find(summary, "calls, null", "temperature", "shm")
    others = [
        entry
        for entry in entries(summary, "calls, null", "temperature")
        if entry["way"] in ("worker", "rpyc", "manager", "fork", "unshare", "bwrap")
    ]
    if own is None or not others:
        return None
    best = min(others, key=lambda entry: float(entry["median"]))
    return {
        "median": best["median"] / own["median"],
        "q1": best["q1"] / own["q3"],
        "q3": best["q3"] / own["q1"],
    }


TARGETS: list[tuple[str, float, bool, Callable[[Summary], dict[str, float] | None]]] = [
    ("temperature / direct, NVML doing nothing", 1.5, False, _ratio_of("calls, null", "temperature")),
    *[
        (f"{WORKLOADS[key].title} / direct, NVML doing nothing", 2.0, False, _ratio_of("calls, null", key))
        for key in ("name", "memory", "processes", "fields")
    ],
    ("temperature / direct, NVML taking 20 µs", 1.15, False, _ratio_of("slow NVML", "busy 20 us")),
    ("temperature / direct, NVML taking 200 µs", 1.05, False, _ratio_of("slow NVML", "busy 200 us")),
    ("temperature / direct, NVML taking 2 ms", 1.01, False, _ratio_of("slow NVML", "busy 2 ms")),
    ("throughput of 4 threads / direct with 4", 0.8, True, _ratio_of("threads", "4 threads")),
    ("scrape of 8 GPUs / direct", 1.6, False, _scrape),
    ("start to first result, ms", 3.0, False, _median_of("start-up", "library that starts at once", 1e3)),
    ("start with a big caller / with a small one", 1.2, False, _big_caller),
    ("worker's private memory above the library's, MiB", 1.0, False, _median_of("memory", "null", 1 / 1024)),
    ("processor time while idle, ticks", 0.0, False, _idle),
    ("timing calls for the histogram, ns a call", 50.0, False, _histogram),
    ("fastest other isolation / nvsandbox", 20.0, True, _fastest_other),
]


def targets(summary: Summary) -> list[tuple[str, str, str, str]]:
    """Target, limit, measured, whether it holds."""
    rows = []
    for text, limit, more, measured in TARGETS:
        found = measured(summary)
        bound = f"{'at least' if more else 'at most'} {limit:g}"
        if found is None:
            rows.append((text, bound, "not measured", ""))
            continue
        holds = found["median"] >= limit if more else found["median"] <= limit
        rows.append((text, bound, _figures(found), "yes" if holds else "**no**"))
    return rows


# ---- the distance of the CPUs


def by_distance(summary: Summary) -> list[list[str]]:
    """Case, rounds, a cache line's way between the CPUs, ratio to a direct call; for near CPUs and for far ones."""
    rows = []
    for entry in summary["results"]:
        if entry["way"] != "shm" or entry["part"] != "calls, null":
            continue
        for name, found in entry.get("distance", {}).items():
            if found["n"] < 3:  # says nothing
                continue
            exchange = {key: found["exchange"][key] * 1e9 for key in ("median", "q1", "q3")}
            rows.append([_case(entry["case"]), name, str(found["n"]), _figures(exchange), _figures(found["ratio"])])
    return rows


def _figures(found: dict[str, float]) -> str:
    return f"{_digits(found['median'])} ({_digits(found['q1'])} to {_digits(found['q3'])})"


DISTANCE_HEAD = ["nvsandbox / direct, NVML doing nothing", "CPUs", "rounds", "cache line over and back, ns", "ratio"]


# ---- Markdown


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)] + [""]


def _exchange(summary: Summary) -> list[str]:
    """Between the CPUs, before and after each part: on virtual machines it changes."""
    known = {part: times for part, times in summary.get("exchange_ns", {}).items() if None not in times}
    if not known:
        return []
    every = ", ".join(f"{part} {before} and {after}" for part, (before, after) in known.items())
    return ["", f"A cache line from one CPU to another and back, ns, before and after each part: {every}."]


def _distances(summary: Summary) -> list[str]:
    rows = by_distance(summary)
    if not rows:
        return []
    return ["By the distance of the two CPUs in each round, in the same run:", "", *_table(DISTANCE_HEAD, rows)]


def markdown(summary: Summary) -> str:
    where = summary["machine"]
    known = ", ".join(f"{name} {version}" for name, version in summary["versions"].items())
    lines = [
        "# What a call costs",
        "",
        f"{summary['date']}, {where['cpus']} CPUs ({where['cpu']}), Linux {where['kernel']}, Python {where['python']}, "
        f"load at the start {where['load']}; {known}; {summary['seconds']} s."
        + (" A quick run: the figures scatter." if summary["quick"] else ""),
        *_exchange(summary),
        "",
        "Medians; ± is half the distance of the quartiles. Ratios are medians, with quartiles, of the ratios in each "
        "round. docs/performance.md says how it is measured.",
        "",
        "## Targets",
        "",
        *_table(["what", "target", "measured", "holds"], [list(row) for row in targets(summary)]),
        *_distances(summary),
    ]
    parts: dict[str, None] = dict.fromkeys(entry["part"] for entry in summary["results"])
    for part in parts:
        found = entries(summary, part)
        lines += [f"## {part[0].upper()}{part[1:]}", ""]
        if "percentiles" in found[0]:
            points = list(found[0]["percentiles"])
            rows = [
                [e["case"], _TITLES[e["way"]], *[_quantity(e["percentiles"][point], "s") for point in points]]
                for e in found
            ]
            lines += _table(["", "way", *points], rows)
        elif len({e["case"] for e in found}) > 2 and "ratio" in found[0]:
            lines += _matrix(found)
        else:
            bases = {_BASES[e["base"]] for e in found if "base" in e}
            head = ["", "way", "median", *([f"/ {' or '.join(sorted(bases))}"] if bases else [])]
            rows = [
                [_case(e["case"]), _TITLES[e["way"]], _measured(e) + _more(e), *([_ratio(e)] if bases else [])]
                for e in found
            ]
            lines += _table(head, rows)
    if summary["missing"]:
        rows = [[_TITLES[way], reason] for way, reason in summary["missing"].items()]
        lines += ["## Not measured", "", *_table(["way", "why"], rows)]
    lines += [f"Failed: {failure}." for failure in summary["failed"]]
    return "\n".join(lines).rstrip() + "\n"


def _matrix(found: list[Entry]) -> list[str]:
    """Ways down, cases across."""
    cases = list(dict.fromkeys(e["case"] for e in found))
    rows = []
    for way in dict.fromkeys(e["way"] for e in found):
        cells = {e["case"]: e for e in found if e["way"] == way}
        row = [_TITLES[way]]
        for case in cases:
            entry = cells.get(case)
            factor = f", {_digits(entry['ratio']['median'])}x" if entry and _ratio(entry) else ""
            row.append(f"{_measured(entry)}{factor}" if entry else "")
        rows.append(row)
    bases = {_BASES[e["base"]] for e in found if "base" in e}
    return _table([f"x: times {' or '.join(sorted(bases))}", *map(_case, cases)], rows)


def _case(case: str) -> str:
    case = WORKLOADS[case].title if case in WORKLOADS else case
    return "1 thread" if case == "1 threads" else case.replace(" us", " µs")


def _more(entry: Entry) -> str:
    if "running_us" in entry:
        return f", {entry['running_us']} µs"
    return f" of {entry['private']:g} KiB private" if "private" in entry else ""


_MARKS = ("<!-- targets -->\n", "<!-- end of targets -->\n")


def filled(page: str, summary: Summary) -> str:
    """`page` with the table of targets of this run between its two marks."""
    before, _, rest = page.partition(_MARKS[0])
    _, _, after = rest.partition(_MARKS[1])
    where = summary["machine"]
    rows = [list(row) for row in targets(summary)]
    lines = [
        f"{summary['date']}, {where['cpus']} CPUs ({where['cpu']}), Linux {where['kernel']}, Python {where['python']}:",
        *_exchange(summary),
        "",
        *_table(["what", "target", "measured (quartiles)", "holds"], rows),
        *_distances(summary),
    ]
    return before + _MARKS[0] + "\n".join(lines) + _MARKS[1] + after


# ---- charts

_COLOURS = {"direct": "#8c8c8c", "shm": "#2a7f3f", "routed": "#5fb37a", "pipe": "#2b6cb0", "worker": "#c05621",
            "rpyc": "#8a63b8", "manager": "#d69e2e"}  # fmt: skip


def _one_call(summary: Summary) -> list[Entry]:
    """One temperature by each way."""
    return [e for e in entries(summary, "calls, null", "temperature") if e["way"] not in ("routed", "exchange")]


def charts(summary: Summary, folder: Path) -> str:
    """Draws what was measured; returns why not, if so."""
    found = _one_call(summary)
    if found:
        (folder / "headline.svg").write_text(headline(found, _TITLES, lambda seconds: _quantity(seconds, "s")))
    try:
        import matplotlib
    except ImportError:
        return "no charts: matplotlib is not installed"
    matplotlib.use("svg")
    # Text stays text, and nothing of the moment is in the file: a chart changes when its figures do.
    matplotlib.rcParams.update(
        {"svg.fonttype": "none", "svg.hashsalt": "nvsandbox", "font.size": 10, "axes.spines.top": False,
         "axes.spines.right": False}
    )  # fmt: skip
    for name, draw in {
        "calls": _chart_calls,
        "ratios": _chart_ratios,
        "slow": _chart_slow,
        "percentiles": _chart_percentiles,
        "threads": _chart_threads,
        "startup": _chart_startup,
        "gpus": lambda figure, s: _chart_line(figure, s, "number of GPUs", "GPUs", "µs for one call of a scrape"),
        "payload": lambda figure, s: _chart_line(
            figure, s, "size of a process list", "processes in the list", "µs for a list", log=True
        ),
    }.items():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7.2, 3.6), layout="constrained")
        if draw(figure, summary):
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None})
    return ""


def _bars(figure: Any, found: list[Entry], title: str) -> bool:
    if not found:
        return False
    axes = figure.subplots()
    found = sorted(found, key=lambda e: -e["median"])
    axes.barh(
        [_TITLES[e["way"]] for e in found],
        [e["median"] * 1e6 for e in found],
        color=[_COLOURS.get(e["way"], "#b0a18f") for e in found],
    )
    for row, entry in enumerate(found):
        axes.annotate(_quantity(entry["median"], "s"), (entry["median"] * 1e6, row), xytext=(3, 0),
                      textcoords="offset points", va="center", fontsize=9)  # fmt: skip
    axes.set_xscale("log")
    axes.margins(x=0.15)
    axes.set_xlabel("µs, logarithmic")
    axes.set_title(title, fontsize=10, loc="left")
    return True


def _chart_calls(figure: Any, summary: Summary) -> bool:
    found = _one_call(summary)
    return _bars(figure, found, "One nvmlDeviceGetTemperature, NVML doing nothing")


def _chart_startup(figure: Any, summary: Summary) -> bool:
    found = [e for e in entries(summary, "start-up", "library that starts at once") if e["way"] != "direct"]
    return _bars(figure, found, "From nothing to the first answer")


def _grouped(figure: Any, found: list[Entry], ways: list[str], value: Callable[[Entry], float], label: str) -> Any:
    cases = list(dict.fromkeys(e["case"] for e in found))
    axes = figure.subplots()
    width = 0.8 / len(ways)
    for i, way in enumerate(ways):
        cells = {e["case"]: e for e in found if e["way"] == way}
        axes.bar(
            [number + i * width for number, case in enumerate(cases) if case in cells],
            [value(cells[case]) for case in cases if case in cells],
            width,
            label=_TITLES[way],
            color=_COLOURS.get(way, "#b0a18f"),
        )
    middles = [number + 0.4 - width / 2 for number in range(len(cases))]
    axes.set_xticks(middles, [_case(case).replace(" (", "\n(") for case in cases], fontsize=8)
    axes.set_ylabel(label)
    figure.legend(loc="outside upper left", ncols=2, fontsize=8, frameon=False)
    return axes


def _chart_ratios(figure: Any, summary: Summary) -> bool:
    found = entries(summary, "calls, null")
    if not found:
        return False
    axes = _grouped(figure, found, ["shm", "routed", "pipe", "worker"], lambda e: e["ratio"]["median"],
                    "times a direct call")  # fmt: skip
    axes.set_yscale("log")
    axes.axhline(1, color="#444444", linewidth=0.8)
    return True


def _chart_slow(figure: Any, summary: Summary) -> bool:
    found = [e for e in entries(summary, "slow NVML") if e["case"].startswith("busy")]
    if not found:
        return False
    axes = _grouped(figure, found, ["shm", "pipe", "worker"], lambda e: e["ratio"]["median"], "times a direct call")
    axes.axhline(1, color="#444444", linewidth=0.8)
    return True


def _chart_percentiles(figure: Any, summary: Summary) -> bool:
    found = entries(summary, "single calls", "in a row")
    if not found:
        return False
    axes = figure.subplots()
    for entry in found:
        points = entry["percentiles"]
        axes.plot(list(points), [value * 1e6 for value in points.values()], marker="o", label=_TITLES[entry["way"]],
                  color=_COLOURS.get(entry["way"]))  # fmt: skip
    axes.set_yscale("log")
    axes.set_ylabel("µs, logarithmic")
    figure.legend(loc="outside upper left", ncols=2, fontsize=8, frameon=False)
    return True


def _chart_threads(figure: Any, summary: Summary) -> bool:
    found = [e for e in entries(summary, "threads") if "asleep" not in e["case"]]
    if not found:
        return False
    _grouped(figure, found, ["direct", "shm", "pipe", "worker"], lambda e: e["median"] / 1e3, "thousand calls a second")
    return True


def _chart_line(figure: Any, summary: Summary, part: str, across: str, up: str, log: bool = False) -> bool:
    found = entries(summary, part)
    if not found:
        return False
    axes = figure.subplots()
    for way in dict.fromkeys(e["way"] for e in found):
        line = [(int(e["case"]), e["median"] * 1e6) for e in found if e["way"] == way]
        axes.plot(*zip(*line, strict=True), marker="o", label=_TITLES[way], color=_COLOURS.get(way))
    if log:
        axes.set_xscale("log")
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    figure.legend(loc="outside upper left", ncols=2, fontsize=8, frameon=False)
    return True


# ---- pyperf


def pyperf_suite(summary: Summary, folder: Path) -> str:
    """The timings for pyperf's own tools: median and quartiles of each, for every figure would make a large file."""
    try:
        import pyperf
    except ImportError:
        return "no pyperf.json.gz: pyperf is not installed"
    benchmarks = []
    for entry in summary["results"]:
        if entry["unit"] != "s" or min(entry["q1"], entry["median"], entry["q3"]) <= 0:
            continue
        name = f"{entry['part']}: {entry['case']}: {entry['way']}"
        run = pyperf.Run([entry["q1"], entry["median"], entry["q3"]], metadata={"name": name, "unit": "second"},
                         collect_metadata=False)  # fmt: skip
        benchmarks.append(pyperf.Benchmark([run]))
    if benchmarks:
        pyperf.BenchmarkSuite(benchmarks).dump(str(folder / "pyperf.json.gz"), replace=True)
    return ""
