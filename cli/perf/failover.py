"""How `tidelog perf failover` runs, and what it prints."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import click

from tidelog.cli.perf.figures import tells
from tidelog.cli.perf.running import NOTHING_YET, UNTIL_THEN
from tidelog.cli.stopping import stopped_in_order
from tidelog.cli.terminal import Table, Writer
from tidelog.testing.cluster import Cluster
from tidelog.testing.failover import Failover, kill_controllers, kill_leaders, percentile

BROKERS: Final = 3
CONTROLLERS: Final = 3
LEADERS: Final = "leader of a partition"
ACTIVE: Final = "active controller"


class Show(Protocol):
    """How figures are shown."""

    def one(self, kind: str, taken: Failover) -> None:
        """A kill, as soon as it is over."""
        ...

    def all(self, taken: Mapping[str, Sequence[Failover]]) -> None:
        """Every kill, by kind."""
        ...


async def measure(ctx: click.Context, topic: str, kills: int, controller_kills: int, show: Show) -> bool:
    """Kill so many of each, on a cluster of its own that has this topic. Whether it was interrupted."""
    taken: dict[str, list[Failover]] = {}
    interrupted = False

    def over(kind: str) -> Callable[[Failover], None]:
        def said(one: Failover) -> None:
            taken.setdefault(kind, []).append(one)
            show.one(kind, one)

        return said

    with stopped_in_order(ctx):
        try:
            async with Cluster(BROKERS, CONTROLLERS, processes=True) as cluster:
                if kills:
                    await kill_leaders(cluster, kills, topic=topic, said=over(LEADERS))
                if controller_kills:
                    await kill_controllers(cluster, controller_kills, said=over(ACTIVE))
        except asyncio.CancelledError:
            interrupted = True
    show.all(taken)
    if interrupted:
        click.echo(UNTIL_THEN if taken else NOTHING_YET, err=True)
    return interrupted


class Text:
    """For people: each kill on stderr while it goes on, then a table."""

    def one(self, kind: str, taken: Failover) -> None:
        """A kill."""
        click.echo(f"killed {taken.node}, the {kind}: {taken.ms:.0f} ms", err=True)

    def all(self, taken: Mapping[str, Sequence[Failover]]) -> None:
        """The table."""
        writer = Writer()
        table = Table(writer, ("KILLED", ">KILLS", ">MEDIAN", ">95 %", ">LONGEST"))
        for kind, kills in taken.items():
            median, most, longest = (f"{value:.0f} ms" for value in figures(kills))
            table.row(kind, str(len(kills)), median, most if tells(len(kills), 0.95) else "-", longest)
        table.end()
        writer.flush()


class JsonLines:
    """For programs: a line per kill, and one per kind."""

    def __init__(self) -> None:
        self._writer = Writer()

    def one(self, kind: str, taken: Failover) -> None:
        """A kill."""
        self._line({"type": "kill", "kind": kind, "node": taken.node, "ms": round(taken.ms, 1)})

    def all(self, taken: Mapping[str, Sequence[Failover]]) -> None:
        """Each kind."""
        for kind, kills in taken.items():
            median, most, longest = (round(value, 1) for value in figures(kills))
            self._line(
                {
                    "type": "failover",
                    "kind": kind,
                    "kills": len(kills),
                    "median_ms": median,
                    "p95_ms": most,
                    "longest_ms": longest,
                }
            )

    def _line(self, fields: Mapping[str, object]) -> None:
        self._writer.line(json.dumps(fields))
        self._writer.flush()


def figures(kills: Sequence[Failover]) -> tuple[float, float, float]:
    """Median, 95th percentile and longest."""
    times = [kill.ms for kill in kills]
    return percentile(times, 0.5), percentile(times, 0.95), max(times)


LAYOUTS: Final[Mapping[str, Callable[[], Show]]] = {"text": Text, "json": JsonLines}
