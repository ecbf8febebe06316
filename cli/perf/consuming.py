"""How `tidelog perf consume` measures: a topic from its start, as columns or one record after the other.

What it keeps true: what is counted was in the hands of the program, decoded, every value looked at; the clock runs from
the first question to the brokers, or from the end of the warm-up, to the last record.
"""

import asyncio
import time
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import click

from tidelog.cli.asking import Unhealthy, child_settings, known_topics
from tidelog.cli.perf.figures import Measured, Show
from tidelog.cli.perf.running import Run
from tidelog.cli.terminal import many
from tidelog.client.options import ConsumerConfig
from tidelog.protocol.types import TopicPartition

if TYPE_CHECKING:
    from tidelog.client import Client
    from tidelog.client.io.consumer import Consumer
    from tidelog.client.records import RecordBatch

_QUIET_S: Final = 0.25
"""After so long without a record it is looked at whether there will be any."""


class Wanted(NamedTuple):
    """What is to be read."""

    topic: str
    records: int | None
    """None: what is there."""
    warm_up: int
    one_by_one: bool
    silent_s: float
    every_s: float


async def measure(ctx: click.Context, client: "Client", wanted: Wanted, show: Show) -> Run:
    """Read the records, and say what it took."""
    [topic] = await known_topics(client, wanted.topic)
    names = [TopicPartition(topic.name, number) for number in range(len(topic.partitions))]
    starts = await client.admin.list_offsets(names, "earliest")
    ends = await client.admin.list_offsets(names, "latest")
    settings = child_settings(ctx, ConsumerConfig, {"auto.offset.reset": "earliest"})
    run = Run(Measured("consume", topic.name), show, wanted.every_s)
    left = {name: ends[name].offset for name in names if ends[name].offset > starts[name].offset}
    async with client.consumer(config=settings) as consumer:
        consumer.assign(left if wanted.records is None else names)
        for name in names if wanted.records is not None else left:
            consumer.seek(name, starts[name].offset)
        await run.measure(_Consuming(consumer, wanted, run, left).run())
    return run


class _Consuming:
    """One run of the command."""

    def __init__(
        self, consumer: "Consumer", wanted: Wanted, run: Run, left: dict[TopicPartition, int]
    ) -> None:
        self._consumer = consumer
        self._wanted = wanted
        self._run = run
        self._left = left
        """Where the partitions end of which there is more to read, if all that is there is wanted."""
        self._warm_up = wanted.warm_up
        self._most = wanted.records

    async def run(self) -> None:
        began_s = heard_s = time.perf_counter()
        while not self._done():
            async for batch in self._consumer.batches(timeout=_QUIET_S):
                heard_s = time.perf_counter()
                self._take(batch)
                if self._run.measured.first_ms is None:
                    self._run.measured.first_ms = (time.perf_counter() - began_s) * 1000
                if self._done():
                    return
                await asyncio.sleep(0)  # Ctrl-C and the lines want their turn
            await self._look_for_ends()
            if time.perf_counter() - heard_s > self._wanted.silent_s:
                raise self._silence()

    def _done(self) -> bool:
        if self._most is not None:
            return self._run.meter.records >= self._most
        return not self._left

    def _take(self, batch: "RecordBatch") -> None:
        if self._most is None:
            name = TopicPartition(batch.topic, batch.partition)
            if batch.next_offset >= self._left.get(name, 0):
                self._left.pop(name, None)
        warm, rest = (
            batch.split(self._warm_up) if self._warm_up and len(batch) > self._warm_up else (batch, None)
        )
        if self._warm_up:
            self._read(warm)
            self._warm_up -= len(warm)
            if self._warm_up:
                return
            self._run.begin()
            if rest is None:
                return
            batch = rest
        meter = self._run.meter
        if self._most is not None and len(batch) > self._most - meter.records:
            batch, _ = batch.split(self._most - meter.records)
        meter.size += self._read(batch)
        meter.records += len(batch)

    def _read(self, batch: "RecordBatch") -> int:
        """Have each value in hand; how many bytes they are, with their keys."""
        if not self._wanted.one_by_one:
            return _size(batch.values) + _size(batch.keys)
        return sum(len(record.value or b"") + len(record.key or b"") for record in batch)

    async def _look_for_ends(self) -> None:
        """Behind the last record of a partition may be offsets that hold none: they have been compacted."""
        for name, end in list(self._left.items()):
            if self._most is None and await self._consumer.position(name) >= end:
                del self._left[name]

    def _silence(self) -> Unhealthy:
        read = self._run.meter.records
        wanted = f" of {self._most:,}" if self._most is not None else ""
        return Unhealthy(
            f"{many(read, 'record')}{wanted} read, and no other for {self._wanted.silent_s:g} s: "
            f"{'write more, or leave out -n to read what is there' if wanted else '`tidelog cluster health` says what is wrong'}"
        )


def _size(column: list[bytes | None]) -> int:
    """Of all of them; nothing has none."""
    try:
        return sum(map(len, cast("list[bytes]", column)))  # by far the most columns have no None
    except TypeError:
        return sum(len(each) for each in column if each is not None)
