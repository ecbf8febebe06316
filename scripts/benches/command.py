"""How long `tidelog --help` takes (C4), next to an interpreter that does nothing.

Wall time of whole processes, twenty over the rounds, modules compiled beforehand as after any first use. Where
the goal is missed, the most expensive imports are printed.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from scripts.benches.measure import Bench, Goal, Readings, Round, Row, Settings, interleave, wall_ms

HELP = (sys.executable, "-m", "tidelog", "--help")
NOTHING = (sys.executable, "-c", "pass")
MOST_MS = 150.0


def _run(command: tuple[str, ...]) -> None:
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, timeout=30)


def _cpu_ms() -> float:
    """CPU time of all processes that have been run."""
    used = os.times()
    return (used.children_user + used.children_system) * 1000


def dearest_imports(count: int) -> list[str]:
    """The imports of `tidelog --help` that take longest, what they import included."""
    traced = subprocess.run(
        (sys.executable, "-X", "importtime", *HELP[1:]),
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    rows = [line.removeprefix("import time:").split("|") for line in traced.stderr.splitlines()]
    timed = [(int(row[1]), row[2].strip()) for row in rows if len(row) == 3 and row[1].strip().isdecimal()]
    return [f"{micros / 1000:.1f} ms {name}" for micros, name in sorted(timed, reverse=True)[:count]]


@contextmanager
def _begin(settings: Settings) -> Iterator[Round]:
    each = settings.count(max(20 // settings.rounds, 3), 1)
    seen: list[float] = []

    def take(number: int) -> Readings:
        helping, nothing, began = [], [], _cpu_ms()
        for turn in range(each):
            readings = interleave(
                number + turn,
                {
                    "help": lambda: wall_ms(lambda: _run(HELP)),
                    "nothing": lambda: wall_ms(lambda: _run(NOTHING)),
                },
            )
            helping.append(readings["help"])
            nothing.append(readings["nothing"])
        seen.append(median(helping))
        both = (_cpu_ms() - began) / each
        return {"help": median(helping), "nothing": median(nothing), "cpu": both}

    _run(HELP)
    yield take
    if seen and median(seen) > MOST_MS and not settings.quick:
        print("\n".join(dearest_imports(12)))


ROWS = (
    Row(
        "tidelog --help",
        "ms",
        "help",
        "nothing",
        "an interpreter that does nothing",
        Goal("figure", False, MOST_MS, "C4"),
    ),
    Row("CPU time of both", "ms", "cpu"),
)
BENCH = Bench(
    "command",
    "the command's help (wall time)",
    ROWS,
    _begin,
    also_runs=("tidelog.__main__", "tidelog.cli.main"),
)
