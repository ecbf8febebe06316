"""What grows with what, as curves: which rows of the sections' benches are which points, and the pictures of kept runs.

    growth-partitions   10 to 10,000 partitions in the cluster: producing to 10 of them, CPU of an idle broker
    growth-records      records of 10 B to 1 MB: written and read
    growth-producers    1 to 64 producers
    growth-log          logs of 1 to 100 GB, sparse: opened, read at the end, looked up by time

Each section takes its own references, is kept by itself, and has its pictures in docs/growth: drawn from what was kept last
(`scripts/bench --pages`), with the day, the commit and the load of others below.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from scripts.benches import growth_cluster, growth_log
from scripts.benches.picture import Axis, Line, draw

Kept = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of a picture: at each size, a row of a bench."""

    name: str
    rows: Mapping[int, str]
    what: Literal["figure", "reference"] = "figure"
    times: float = 1.0
    """Of what was measured, where a goal is a part of it."""
    level: bool = False
    """As it was at the smallest size, all along."""
    bound: float | None = None
    """A goal that is no row: the same at all of these sizes."""


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture of one section."""

    file: str
    section: str
    title: str
    x: Axis
    y: Axis
    curves: tuple[Curve, ...]


def _by(sizes: Iterable[int], words: str) -> dict[int, str]:
    return {size: words.format(size) for size in sizes}


_PARTITIONS = Axis("partitions in the cluster, three replicas of each")
_RECORD = Axis("bytes in a record")
_PRODUCERS = Axis("producers at once")
_LOG = Axis("size of the log (GB)")
_OF = growth_cluster
PLOTS = (
    Plot(
        "partitions-throughput.svg",
        "growth-partitions",
        "Producing to 10 partitions while the cluster has many",
        _PARTITIONS,
        Axis("MB/s acknowledged by all in sync"),
        (
            Curve("produced", _by(_OF.PARTITIONS, _OF.PRODUCED)),
            Curve("raw loopback meanwhile", _by(_OF.PARTITIONS, _OF.LOOPBACK)),
            Curve(
                "the goal: 80 % of 10 partitions'",
                _by(_OF.PARTITIONS[:3], _OF.PRODUCED),
                times=0.8,
                level=True,
            ),
        ),
    ),
    Plot(
        "partitions-idle.svg",
        "growth-partitions",
        "A broker while nothing happens",
        _PARTITIONS,
        Axis("% of a core, of the busiest broker"),
        (
            Curve("idle", _by(_OF.PARTITIONS, _OF.IDLE)),
            Curve("without any topic", _by(_OF.PARTITIONS, _OF.EMPTY), level=True),
            Curve("the goal, up to 1,000: 5 %", dict.fromkeys(_OF.PARTITIONS[:3], ""), bound=5.0),
        ),
    ),
    Plot(
        "records.svg",
        "growth-records",
        "Records of all sizes, three replicas, acks=all",
        _RECORD,
        Axis("MB/s of values"),
        (
            Curve("written", _by(_OF.RECORDS, _OF.WRITTEN)),
            Curve("read", _by(_OF.RECORDS, _OF.READ)),
            Curve("raw loopback, pieces of 1 MB", _by(_OF.RECORDS, _OF.WRITTEN), "reference"),
        ),
    ),
    Plot(
        "producers.svg",
        "growth-producers",
        "Many producers at once, three replicas, acks=all",
        _PRODUCERS,
        Axis("thousands of records/s"),
        (
            Curve("one record at a time", _by(_OF.PRODUCERS, _OF.ONE)),
            Curve("1,000 records at a time", _by(_OF.PRODUCERS, _OF.MANY)),
            Curve("bare calls, as many at once", _by(_OF.PRODUCERS, _OF.ONE), "reference"),
        ),
    ),
    Plot(
        "log-opening.svg",
        "growth-log",
        "Opening a log",
        _LOG,
        Axis("ms"),
        (
            Curve("after SIGKILL", _by(growth_log.SIZES, growth_log.KILLED)),
            Curve("after a clean stop", _by(growth_log.SIZES, growth_log.STOPPED)),
            Curve("the tail written and flushed", _by(growth_log.SIZES, growth_log.KILLED), "reference"),
        ),
    ),
    Plot(
        "log-reading.svg",
        "growth-log",
        "Reading from a log that is open",
        _LOG,
        Axis("us"),
        (
            Curve("64 KB at the end", _by(growth_log.SIZES, growth_log.END)),
            Curve("the offset of a time", _by(growth_log.SIZES, growth_log.TIME)),
            Curve("pread of 64 KB", _by(growth_log.SIZES, growth_log.END), "reference"),
        ),
    ),
)


def pictures(runs: Iterable[Kept]) -> Iterator[tuple[str, str]]:
    """Files and what is in them, by the last run of each section; of a section that was never kept there is none."""
    last: dict[str, tuple[Kept, Kept]] = {}
    for run in runs:
        for name, bench in run["benches"].items():
            last[name] = run, bench
    for plot in PLOTS:
        if plot.section in last:
            run, bench = last[plot.section]
            rows = {row["name"]: row for row in bench["rows"]}
            lines = [_line(curve, rows) for curve in plot.curves]
            yield plot.file, draw(plot.title, plot.x, plot.y, lines, _caption(plot, run, bench))


def _line(curve: Curve, rows: Mapping[str, Kept]) -> Line:
    def value(name: str) -> float:
        if curve.bound is not None:
            return curve.bound
        row = rows[name]
        return float((row if curve.what == "figure" else row["reference"])["median"]) * curve.times

    points = [(float(size), value(name)) for size, name in curve.rows.items()]
    if curve.level:
        points = [(size, points[0][1]) for size, _ in points]
    held = curve.level or curve.bound is not None or curve.what == "reference"
    return Line(curve.name, tuple(points), reference=held)


def _caption(plot: Plot, run: Kept, bench: Kept) -> str:
    load = bench["foreign_cores"]
    busy = f", {median(load):.2g} of {run['machine']['cores']} cores busy with others" if load else ""
    return f"scripts/bench {plot.section}, {run['date'][:10]}, commit {run['commit'][:8]}{busy}"


def write_pictures(runs: Iterable[Kept], directory: Path) -> list[str]:
    """Draw all of them; their names."""
    drawn = list(pictures(runs))
    if drawn:
        directory.mkdir(parents=True, exist_ok=True)
    for file, content in drawn:
        (directory / file).write_text(content, encoding="utf-8")
    return [file for file, _ in drawn]
