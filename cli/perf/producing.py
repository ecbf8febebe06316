"""How `tidelog perf produce` measures: records as fast as they are taken, or at a rate, until all are acknowledged.

What it keeps true: what is counted was acknowledged; the clock runs from the first record after the warm-up to the last
acknowledgement. The time of a record is taken from before it is handed over, so that waiting for room is in it, and of at
most one record per millisecond, so that the taking costs nothing that could be measured.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from tidelog.cli.asking import child_settings, known_topics
from tidelog.cli.perf.figures import ACKNOWLEDGED, Measured, Show
from tidelog.cli.perf.histogram import Histogram
from tidelog.cli.perf.running import Run
from tidelog.cli.terminal import many
from tidelog.client.options import ProducerConfig
from tidelog.protocol.errors import DeliveryError, TidelogError

if TYPE_CHECKING:
    from tidelog.client import Client
    from tidelog.client.io.producer import Delivery, Producer

_LETTERS: Final = b"abcdefghijklmnopqrstuvwxyz0123456789"
_DIFFERENT: Final = 1000
_ROOM: Final = 4 << 20
"""Values are made before: so many, or as many as take so many bytes."""
_SAMPLE_S: Final = 0.001
_BREATH: Final = 1000
"""After so many records others may run, Ctrl-C among them, also when the producer has always room."""
_COLUMN: Final = 10_000
_COLUMN_SIZE: Final = 1 << 20
_AT_ONCE: Final = 4
"""Columns of so many records, or of so many bytes, so many at once."""
_LAST_S: Final = 2.0
"""How long what is under way may take after an interrupt."""


class Wanted(NamedTuple):
    """What is to be written."""

    topic: str
    records: int
    size: int
    warm_up: int
    rate: float | None
    """Records per second; None: as fast as they are taken."""
    columns: bool
    settings: dict[str, Any]
    every_s: float


def values_of(size: int, seed: int = 0) -> list[bytes]:
    """Different values of that size: letters and digits by chance, which compress a little, as text does."""
    rng = Random(seed)
    return [
        bytes(rng.choices(_LETTERS, k=size)) for _ in range(max(min(_ROOM // max(size, 1), _DIFFERENT), 1))
    ]


async def measure(ctx: click.Context, client: "Client", wanted: Wanted, show: Show) -> Run:
    """Write the records, and say what it took."""
    [topic] = await known_topics(client, wanted.topic)
    run = Run(Measured("produce", topic.name), show, wanted.every_s)
    settings = child_settings(ctx, ProducerConfig, wanted.settings)
    try:
        async with client.producer(config=settings) as producer:
            await _Producing(producer, wanted, run).run()
    except DeliveryError as error:
        # Told by their number already, unless nothing else was wrong.
        run.measured.why = run.measured.why or error.message
    return run


class _Producing:
    """One run of the command."""

    def __init__(self, producer: "Producer", wanted: Wanted, run: Run) -> None:
        self._producer = producer
        self._wanted = wanted
        self._run = run
        self._values = values_of(wanted.size)
        self._timing: set[asyncio.Task[None]] = set()
        self._latency = Histogram()
        self._failed: TidelogError | None = None
        self._before: dict[str, float] = {}
        """What the producer had counted when the warm-up was over."""

    async def run(self) -> None:
        wanted, run = self._wanted, self._run
        run.measured.latencies[ACKNOWLEDGED] = Histogram()
        if wanted.warm_up:
            click.echo(f"warming up with {many(wanted.warm_up, 'record')}", err=True)
            await self._write(wanted.warm_up)
        self._latency = run.measured.latencies[ACKNOWLEDGED]
        self._before = dict(self._producer.metrics())
        await run.measure(self._write(wanted.records), self._look)
        if run.measured.interrupted or run.measured.why:
            with suppress(DeliveryError):  # those are counted, and were told of
                await self._producer.close(_LAST_S)
        for task in self._timing:
            task.cancel()

    async def _write(self, records: int) -> None:
        """So many, until all of them are acknowledged or one has failed."""
        if self._wanted.columns:
            await self._columns(records)
        else:
            await self._one_by_one(records)
        if self._failed is None:
            await self._producer.flush()
        if self._failed is not None:
            raise self._failed

    async def _one_by_one(self, records: int) -> None:
        producer, topic, values = self._producer, self._wanted.topic, self._values
        different = len(values)
        began_s = next_s = time.perf_counter()
        for number in range(records):
            now_s = time.perf_counter()
            if self._wanted.rate is not None:
                now_s = await self._when_due(began_s + number / self._wanted.rate, now_s)
            delivery = await producer.enqueue(topic, values[number % different])
            if now_s >= next_s:
                next_s = now_s + _SAMPLE_S
                self._time(delivery, now_s)
                if self._failed is not None:
                    return
            if not number % _BREATH:
                await asyncio.sleep(0)

    async def _columns(self, records: int) -> None:
        """Some columns at once, so that there is always one that the brokers have not answered."""
        most = max(min(_COLUMN, _COLUMN_SIZE // max(self._wanted.size, 1)), 1)
        pieces = [(first, min(most, records - first)) for first in range(0, records, most)]
        left = iter(pieces)
        began_s = time.perf_counter()

        async def work() -> None:
            for first, count in left:
                now_s = time.perf_counter()
                if self._wanted.rate is not None:
                    now_s = await self._when_due(began_s + first / self._wanted.rate, now_s)
                await self._producer.send_many(self._wanted.topic, self._column(count))
                self._took(now_s)

        tasks = [asyncio.create_task(work(), name="perf-columns") for _ in range(_AT_ONCE)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _column(self, count: int) -> Sequence[bytes]:
        values = self._values
        return (values * -(-count // len(values)))[:count]

    async def _when_due(self, due_s: float, now_s: float) -> float:
        if due_s <= now_s:
            return now_s
        await asyncio.sleep(due_s - now_s)
        return time.perf_counter()

    def _time(self, delivery: "Delivery", began_s: float) -> None:
        async def wait() -> None:
            try:
                await delivery
            except TidelogError as error:
                self._failed = self._failed or error
            else:
                self._took(began_s)

        task = asyncio.create_task(wait(), name="perf-time")
        self._timing.add(task)
        task.add_done_callback(self._timing.discard)

    def _took(self, began_s: float) -> None:
        ms = (time.perf_counter() - began_s) * 1000
        self._latency.add(ms)
        self._run.meter.latency(ms)

    def _look(self) -> None:
        """The producer counts what was acknowledged."""
        now, before, meter = self._producer.metrics(), self._before, self._run.meter
        meter.records = int(now["producer_records"] - before["producer_records"])
        meter.size = meter.records * self._wanted.size
        self._run.measured.failed = int(now["producer_failed_records"] - before["producer_failed_records"])
