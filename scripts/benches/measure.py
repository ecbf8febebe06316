"""How a figure is taken: in rounds, next to its reference, with the load that others put on the machine.

What it keeps true:

* A figure and its reference are taken in the same round, in an order that changes from round to round.
* The ratio of a row is the median of the rounds' ratios, so that a slow minute of the machine cancels out.
* CPU time is taken where work never waits (codecs, the page cache), wall time where it does.
* Whatever a bench makes (files, processes, sockets) is gone when its context ends, by Ctrl-C as well.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Literal

Readings = dict[str, float]
"""What one round has read, by name."""

Round = Callable[[int], Readings]
"""Takes one round; is told which."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What a row should reach, and which page asks for it."""

    of: Literal["figure", "ratio"]
    at_least: bool
    bound: float
    source: str

    def met(self, figure: float, ratio: float | None) -> bool:
        """Whether that reaches it."""
        value = figure if self.of == "figure" else ratio
        assert value is not None, f"a goal for a ratio needs a reference: {self}"
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        sign, times = "≥" if self.at_least else "≤", " x" if self.of == "ratio" else ""
        return f"{sign} {shown(self.bound)}{times} ({self.source})"


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: a reading, and the reading it is held against."""

    name: str
    unit: str
    figure: str
    reference: str = ""
    beside: str = ""
    """The reference in words."""
    goal: Goal | None = None


@dataclass(slots=True)
class Settings:
    """How much is measured, and where."""

    directory: Path
    """On a real disk; removed at the end."""
    rounds: int = 7
    quick: bool = False
    """For function only: as little as shows that it works."""
    children: set[int] = field(default_factory=set)
    """Our own processes, whose load is not foreign."""
    shared: ExitStack = field(default_factory=ExitStack)
    """Ends what benches of one run share, when all of them are done."""

    def count(self, full: int, quick: int) -> int:
        """How often something is done."""
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Bench:
    """Some rows that are taken together."""

    name: str
    about: str
    rows: tuple[Row, ...]
    begin: Callable[[Settings], AbstractContextManager[Round]]
    rounds_max: int = 1000
    """Where a round takes long, a few must do."""
    also_runs: tuple[str, ...] = ()
    """Modules whose code runs in processes of its own."""
    part_of: str = ""
    """The name of all sections together, of which each is measured, kept and taken up again by itself."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A row as it was measured."""

    row: Row
    figures: list[float]
    references: list[float]

    @property
    def figure(self) -> float:
        """The median of the rounds."""
        return median(self.figures)

    @property
    def reference(self) -> float | None:
        """The median of the rounds, where there is a reference."""
        return median(self.references) if self.references else None

    @property
    def ratio(self) -> float | None:
        """The median of the rounds' own ratios."""
        if not self.references:
            return None
        return median(f / r for f, r in zip(self.figures, self.references, strict=True))

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached, where there is one."""
        return self.row.goal.met(self.figure, self.ratio) if self.row.goal else None


@dataclass(frozen=True, slots=True)
class Measured:
    """A bench as it was measured."""

    bench: Bench
    rows: list[Taken]
    foreign: list[float]
    """Cores that others kept busy, per round; empty where the system does not tell."""
    seconds: float


def run(bench: Bench, settings: Settings) -> Measured:
    """Take the rounds of a bench. One more before them warms up and is not counted, unless `quick`."""
    began = time.perf_counter()
    taken: list[Readings] = []
    foreign: list[float] = []
    with bench.begin(settings) as take:
        rounds = 1 if settings.quick else min(settings.rounds, bench.rounds_max)
        warm_up = not settings.quick and bench.rounds_max > rounds
        for number in range(-1 if warm_up else 0, rounds):
            before = foreign_seconds(settings.children), time.perf_counter()
            readings = take(number)
            after = foreign_seconds(settings.children), time.perf_counter()
            if number < 0:
                continue
            taken.append(readings)
            if before[0] is not None and after[0] is not None:
                foreign.append(max(after[0] - before[0], 0.0) / (after[1] - before[1]))
    rows = [
        Taken(
            row,
            [readings[row.figure] for readings in taken],
            [readings[row.reference] for readings in taken] if row.reference else [],
        )
        for row in bench.rows
    ]
    return Measured(bench, rows, foreign, time.perf_counter() - began)


def interleave(number: int, probes: Mapping[str, Callable[[], float]]) -> Readings:
    """Take every probe once, forwards in even rounds and backwards in odd ones."""
    names = list(probes)
    readings = {name: probes[name]() for name in (names if number % 2 == 0 else reversed(names))}
    return {name: readings[name] for name in names}


def cpu_us(work: Callable[[], object], times: int) -> float:
    """CPU time of one call, in microseconds."""
    began = time.process_time_ns()
    for _ in range(times):
        work()
    return (time.process_time_ns() - began) / times / 1000


def wall_ms(work: Callable[[], object]) -> float:
    """How long one call takes, in milliseconds."""
    began = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - began) / 1e6


def foreign_seconds(children: Iterable[int]) -> float | None:
    """CPU time that all other processes of the machine have had, the kernel's own included."""
    if sys.platform != "linux":
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    line = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0]
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, line.split()[1:9])
    mine = sum(os.times()[:4])
    for child in children:
        try:
            fields = Path(f"/proc/{child}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        except FileNotFoundError:
            continue  # it has ended, and what it had is among the times of our children
        mine += (int(fields[11]) + int(fields[12])) / ticks
    return (user + nice + system + irq + softirq + steal) / ticks - mine


def shown(value: float) -> str:
    """A number with as many digits as matter."""
    if value == 0 or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
