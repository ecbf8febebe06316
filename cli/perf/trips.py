"""How `tidelog perf latency` measures: one record at a time, until it is acknowledged, and until a consumer has it.

What it keeps true: nothing else is under way from here while a record is, so that what is measured is the way and no queue.
Each partition has its turn, so that each leader is in it.
"""

import asyncio
import os
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from tidelog.cli.asking import child_settings, known_topics
from tidelog.cli.perf.figures import ACKNOWLEDGED, CONSUMED, Measured, Show
from tidelog.cli.perf.histogram import Histogram
from tidelog.cli.perf.producing import values_of
from tidelog.cli.perf.running import Run
from tidelog.cli.terminal import many
from tidelog.client.options import ProducerConfig
from tidelog.protocol.errors import RequestTimedOut, TidelogError
from tidelog.protocol.types import TopicPartition

if TYPE_CHECKING:
    from tidelog.client import Client
    from tidelog.client.io.consumer import Consumer
    from tidelog.client.io.producer import Producer

MARK_SIZE: Final = 16
"""What a value begins with: whose it is and which, so that other records in the topic do no harm."""


class Wanted(NamedTuple):
    """What is to be sent."""

    topic: str
    records: int
    size: int
    warm_up: int
    timeout_s: float
    """How long a record may be on its way."""
    settings: dict[str, Any]
    every_s: float


async def measure(ctx: click.Context, client: "Client", wanted: Wanted, show: Show) -> Run:
    """Send the records, and say what each took."""
    [topic] = await known_topics(client, wanted.topic)
    names = [TopicPartition(topic.name, number) for number in range(len(topic.partitions))]
    settings = child_settings(ctx, ProducerConfig, wanted.settings)
    measured = Measured("latency", topic.name, latencies={ACKNOWLEDGED: Histogram(), CONSUMED: Histogram()})
    run = Run(measured, show, wanted.every_s)
    async with client.consumer() as consumer, client.producer(config=settings) as producer:
        consumer.assign(names)
        await consumer.seek_to_end(*names)
        await _Trips(producer, consumer, wanted, run, len(names)).run()
    return run


class _Trips:
    """One run of the command."""

    def __init__(
        self, producer: "Producer", consumer: "Consumer", wanted: Wanted, run: Run, partitions: int
    ) -> None:
        self._producer = producer
        self._consumer = consumer
        self._wanted = wanted
        self._run = run
        self._partitions = partitions
        self._mine = os.urandom(MARK_SIZE // 2)
        self._rest = values_of(wanted.size - MARK_SIZE)
        self._sent = 0
        self._awaited = b""
        self._broken: TidelogError | None = None
        """What the reading ended with."""
        self._arrival: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        reading = asyncio.create_task(self._read(), name="perf-reader")
        try:
            if self._wanted.warm_up:
                click.echo(f"warming up with {many(self._wanted.warm_up, 'record')}", err=True)
                await self._trips(self._wanted.warm_up)
            await self._run.measure(self._trips(self._wanted.records, counted=True))
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _trips(self, records: int, *, counted: bool = False) -> None:
        for _ in range(records):
            acknowledged_ms, consumed_ms = await self._trip()
            if counted:
                latencies, meter = self._run.measured.latencies, self._run.meter
                latencies[ACKNOWLEDGED].add(acknowledged_ms)
                latencies[CONSUMED].add(consumed_ms)
                meter.latency(consumed_ms)
                meter.records += 1
                meter.size += self._wanted.size

    async def _trip(self) -> tuple[float, float]:
        """There, and back."""
        if self._broken is not None:
            raise self._broken
        self._awaited = self._mine + self._sent.to_bytes(MARK_SIZE // 2)
        self._arrival = asyncio.get_running_loop().create_future()
        partition, value = self._sent % self._partitions, self._rest[self._sent % len(self._rest)]
        self._sent += 1
        began_s = time.perf_counter()
        await self._producer.send(self._wanted.topic, self._awaited + value, partition=partition)
        acknowledged_s = time.perf_counter()
        try:
            async with asyncio.timeout(self._wanted.timeout_s):
                arrived_s = await self._arrival
        except TimeoutError:
            raise RequestTimedOut(
                f"{self._wanted.topic}-{partition}: a record was acknowledged, and no consumer had it after "
                f"{self._wanted.timeout_s:g} s"
            ) from None
        return (acknowledged_s - began_s) * 1000, (arrived_s - began_s) * 1000

    async def _read(self) -> None:
        try:
            async for record in self._consumer:
                if self._awaited and (record.value or b"").startswith(self._awaited):
                    self._awaited = b""
                    if not self._arrival.done():
                        self._arrival.set_result(time.perf_counter())
        except TidelogError as error:
            self._broken = error
            if not self._arrival.done():
                self._arrival.set_exception(error)
