"""How `tidelog consume` reads: from the offsets that a range means now, until it ends, is interrupted or not read.

What it keeps true: what is in the range is shown once, in the order of each partition, as soon as it is there; a range
that ends, ends: at offsets that were fixed at the beginning, also where the last of them hold no record any more. When
nobody reads stdout any more the command is over, also while nothing comes.
"""

import asyncio
import logging
import select
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from tidelog.cli.asking import Unhealthy, child_settings, known_topics
from tidelog.cli.consume.filters import Keep
from tidelog.cli.consume.formats import Show
from tidelog.cli.consume.ranges import Extent, Range, extent, times
from tidelog.cli.names import require_partitions
from tidelog.cli.terminal import many
from tidelog.client.options import ConsumerConfig
from tidelog.protocol.types import NO_BROKER, TopicPartition

if TYPE_CHECKING:
    from tidelog.client import Client
    from tidelog.client.cluster import Topic
    from tidelog.client.io.consumer import Consumer
    from tidelog.client.records import RecordBatch

logger = logging.getLogger(__name__)

QUIET_S: Final = 0.25
"""After so long without a record it is looked at whether there will be any."""
_FEW: Final = 5
SILENT_S: Final = 3.0
"""After so long without any answer whoever waits is told that it is not the program that hangs."""


class Wanted(NamedTuple):
    """What is to be read."""

    topic: str
    partitions: tuple[int, ...]
    """Empty: all."""
    range: Range
    most: int | None
    keep: Keep | None
    silent_s: float
    ends: bool
    """End where the partitions end now, whatever the range says."""


class Tally(NamedTuple):
    """What was read."""

    records: int
    interrupted: bool
    note: str = ""
    """What is said behind the number."""


async def read(
    ctx: click.Context, client: "Client", wanted: Wanted, show: Show, flush: Callable[[], None]
) -> Tally:
    """Show the records; a signal ends it, with what was shown so far."""
    reading = _Reading(client, wanted, show, flush)
    try:
        [topic] = await known_topics(client, wanted.topic)
        extents = await _extents(ctx, client, wanted, topic)
        _tell_of_ends(extents)
        settings = child_settings(ctx, ConsumerConfig, {"auto.offset.reset": "earliest"})
        async with client.consumer(config=settings) as consumer:
            await reading.run(consumer, extents, len(topic.partitions))
    except asyncio.CancelledError:
        return Tally(reading.records, interrupted=True)
    return Tally(reading.records, interrupted=False)


async def _extents(
    ctx: click.Context, client: "Client", wanted: Wanted, topic: "Topic"
) -> dict[TopicPartition, tuple[Extent, int]]:
    """The range in offsets, and where the reading begins: not beyond the end."""
    numbers = require_partitions(topic, wanted.partitions, ctx)
    names = [TopicPartition(topic.name, number) for number in numbers]
    starts = await client.admin.list_offsets(names, "earliest")
    ends = await client.admin.list_offsets(names, "latest")
    looked_up = {at: await client.admin.list_offsets(names, at) for at in times(wanted.range)}
    found = {}
    for name in names:
        start, end = starts[name].offset, max(ends[name].offset, starts[name].offset)
        one = extent(wanted.range, start, end, {at: told[name].offset for at, told in looked_up.items()})
        if wanted.ends and one.stop is None:
            one = Extent(one.begin, max(end, one.begin))
        found[name] = one, min(one.begin, end)
    return found


def _tell_of_ends(extents: dict[TopicPartition, tuple[Extent, int]]) -> None:
    """Say where the partitions end, if the range begins behind all of them: a mistyped offset looks like an empty topic."""
    beyond = {name: end for name, (one, end) in extents.items() if one.begin > end}
    if len(beyond) == len(extents):
        ends = ", ".join(f"{name} ends at {end}" for name, end in list(beyond.items())[:_FEW])
        more = f", and {many(len(beyond) - _FEW, 'other')} as well" if len(beyond) > _FEW else ""
        begins = min(one.begin for one, _ in extents.values())
        click.echo(f"{ends}{more}: the range begins behind that, at {begins}", err=True)


class _Reading:
    """One run of the command."""

    def __init__(self, client: "Client", wanted: Wanted, show: Show, flush: Callable[[], None]) -> None:
        self.records = 0
        self._client = client
        self._wanted = wanted
        self._show = show
        self._flush = flush
        self._left: dict[TopicPartition, Extent] = {}
        """Partitions of which more is wanted."""
        self._silence = Silence(client)

    async def run(
        self, consumer: "Consumer", extents: dict[TopicPartition, tuple[Extent, int]], known: int
    ) -> None:
        """Read these extents of a topic with so many partitions."""
        self._left = {
            name: one for name, (one, _) in extents.items() if one.stop is None or one.begin < one.stop
        }
        consumer.assign(self._left)
        for name, (_, stop) in self._left.items():
            at = extents[name][1]
            logger.info("consume.begins partition=%s offset=%d stop=%s", name, at, stop)
            consumer.seek(name, at)
        loop = asyncio.get_running_loop()
        heard_s = looked_s = loop.time()
        while self._left:
            async for batch in consumer.batches(timeout=QUIET_S):
                heard_s = loop.time()
                if heard_s - looked_s > QUIET_S:
                    looked_s, known = heard_s, self._take_new_partitions(consumer, known)
                ended = self._take(batch)
                self._flush()
                if self.records == self._wanted.most:
                    return
                if ended:
                    consumer.assign(self._left)
                if not self._left:
                    return
            if nobody_reads():
                return
            known = self._take_new_partitions(consumer, known)
            await self._look_for_ends(consumer)
            self._silence.look(consumer, self._left, loop.time())
            if loop.time() - heard_s > self._wanted.silent_s:
                await self._give_up_if_more_is_due(consumer)

    def _take_new_partitions(self, consumer: "Consumer", known: int) -> int:
        """Read partitions that have been added since from their start, where all are read for ever; how many there are."""
        wanted = self._wanted
        count = len(self._client.cluster.partitions(wanted.topic))
        if count > known and not wanted.partitions and not wanted.ends and wanted.range.stop is None:
            new = [TopicPartition(wanted.topic, number) for number in range(known, count)]
            self._left |= dict.fromkeys(new, Extent(0, None))
            consumer.assign(self._left)
            for name in new:
                consumer.seek(name, 0)
        return max(count, known)

    def _take(self, batch: "RecordBatch") -> bool:
        """Show what is wanted of a batch; whether its partition has come to its end."""
        wanted, name = self._wanted, TopicPartition(batch.topic, batch.partition)
        begin, stop = self._left[name]
        for record in batch:
            if record.offset < begin or (wanted.keep is not None and not wanted.keep(record)):
                continue
            if stop is not None and record.offset >= stop:
                break
            self._show(record)
            self.records += 1
            if self.records == wanted.most:
                break
        if stop is None or batch.next_offset < stop:
            return False
        del self._left[name]
        return True

    async def _look_for_ends(self, consumer: "Consumer") -> None:
        """Compaction may have taken the last records before the end: then none of them will come."""
        ended = [
            name
            for name, (_, stop) in self._left.items()
            if stop is not None and await consumer.position(name) >= stop
        ]
        for name in ended:
            del self._left[name]
        if ended:
            consumer.assign(self._left)

    async def _give_up_if_more_is_due(self, consumer: "Consumer") -> None:
        for name, (_, stop) in self._left.items():
            if stop is not None:
                at = await consumer.position(name)
                raise Unhealthy(
                    f"{name}: for {self._wanted.silent_s:g} s nothing has come behind offset {at}, and it goes on to "
                    f"{stop}: `tidelog topic describe {name.topic}` shows whether somebody leads it"
                )


class Silence:
    """Says once that it is the cluster that gives nothing: a broker answers twice a second, records or not."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._fetches = -1.0
        self._since_s = asyncio.get_running_loop().time()
        self._told = False

    def look(self, consumer: "Consumer", names: Iterable[TopicPartition], now_s: float) -> None:
        """Nothing has come of these for a while."""
        fetches = consumer.metrics()["consumer_fetches"]
        orphans = [str(name) for name in names if self._client.cluster.leader(*name) == NO_BROKER]
        if fetches != self._fetches and not orphans:
            self._since_s, self._told = now_s, False
        elif now_s - self._since_s >= SILENT_S and not self._told:
            self._told = True
            fact = (
                f"nobody leads {', '.join(orphans[:_FEW])}"
                if orphans
                else f"no broker answers for {SILENT_S:g} s"
            )
            click.echo(f"{fact}: it is tried on; `tidelog cluster health` says what is wrong", err=True)
        self._fetches = fetches


def nobody_reads() -> bool:
    """Whether stdout is a pipe whose reader has gone: `| head` would else wait for a record that it does not want."""
    with suppress(OSError, ValueError, AttributeError):
        watch = select.poll()
        watch.register(sys.stdout.fileno(), 0)
        return any(what & (select.POLLERR | select.POLLHUP) for _, what in watch.poll(0))
    return False
