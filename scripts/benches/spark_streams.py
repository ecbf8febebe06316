"""How soon a record is in a micro-batch, and how fast a stream goes on while others write.

latency      from before `send` until `foreachBatch` has the row on the driver; beside it, what a micro-batch of Spark's
             own `rate` source takes from its trigger to its end, with the same `foreachBatch`
sustained    rows a second of a query that has to keep up with a producer at full speed, until it has caught up
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any

from scripts.benches.measure import Bench, Readings, Round, Row, Settings
from scripts.benches.spark_session import Beside, spark_beside

from tidelog.client.admin import NewTopic
from tidelog.testing.failover import percentile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SENDS = 60
LIVE_RECORDS = 3_000_000
PATIENCE_S = 300.0


def _until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {PATIENCE_S:g} s in vain: {what}")
        time.sleep(0.01)


def _latencies(beside: Beside, topic: str, sends: int) -> list[float]:
    """Milliseconds, record by record."""
    from tidelog.spark import read_stream  # noqa: PLC0415

    cluster, rng = beside.cluster, Random(1)
    seen: dict[bytes, float] = {}

    def take(frame: "DataFrame", _number: int) -> None:
        rows, now = frame.select("value").collect(), time.perf_counter()
        seen.update({bytes(row.value): now for row in rows})

    async def send() -> dict[bytes, float]:
        sent: dict[bytes, float] = {}
        async with cluster.client() as client, client.producer() as producer:
            await producer.send(topic, b"first", partition=0)
            await asyncio.to_thread(_until, lambda: b"first" in seen, "the first record is in a batch")
            for number in range(sends):
                await asyncio.sleep(rng.uniform(0.02, 0.2))
                value = b"%d" % number
                sent[value] = time.perf_counter()
                await producer.send(topic, value, partition=0)
        return sent

    beside.runner.run(make(beside, topic, 1))
    frame = read_stream(beside.spark, topic, cluster.bootstrap, startingOffsets="earliest")
    query = frame.writeStream.foreachBatch(take).start()
    try:
        sent = beside.runner.run(send())
        _until(lambda: len(seen) > sends, f"{sends} records are in batches")
    finally:
        query.stop()
    return [(seen[value] - at) * 1000 for value, at in sent.items()]


def _bare_ms(beside: Beside, batches: int) -> float:
    """A micro-batch of a source that is Spark's own."""

    def take(rows: "DataFrame", _number: int) -> None:
        rows.collect()

    frame = beside.spark.readStream.format("rate").option("rowsPerSecond", 20).load()
    query = frame.writeStream.foreachBatch(take).start()
    try:
        _until(lambda: len(_filled(query)) >= batches, "batches of the rate source")
        return median(float(each.durationMs["triggerExecution"]) for each in _filled(query))
    finally:
        query.stop()


def _filled(query: Any) -> list[Any]:
    return [each for each in query.recentProgress if each.numInputRows]


def _sustained(beside: Beside, topic: str, records: int) -> float:
    """Millions of rows a second, from the first to the last of them."""
    from tidelog.spark import read_stream  # noqa: PLC0415

    cluster = beside.cluster
    beside.runner.run(make(beside, topic, 4))
    first, stop = threading.Event(), threading.Event()

    async def write() -> None:
        step = min(10_000, records)
        async with cluster.client() as client, client.producer(batch_size=256 << 10) as producer:
            for begin in range(0, records, step):
                values = [b"%0100d" % number for number in range(begin, begin + step)]
                await producer.send_many(topic, values, partition=begin // step % 4)
                first.set()
                if stop.is_set():
                    return

    frame = read_stream(beside.spark, topic, cluster.bootstrap, startingOffsets="earliest")
    query = frame.writeStream.format("noop").start()
    writer = threading.Thread(target=lambda: asyncio.run(write()))
    try:
        writer.start()
        _until(first.is_set, "something is written")
        began = time.perf_counter()
        _until(
            lambda: sum(each.numInputRows for each in query.recentProgress) >= records, "all rows are read"
        )
        return records / (time.perf_counter() - began) / 1e6
    finally:
        stop.set()
        writer.join()
        query.stop()


async def make(beside: Beside, topic: str, partitions: int) -> None:
    """A topic."""
    async with beside.cluster.client() as client:
        await client.admin.create_topics(NewTopic(topic, partitions, 1))


@contextmanager
def _begin(settings: Settings) -> Iterator[Round]:
    with spark_beside(settings) as beside:

        def take(number: int) -> Readings:
            found = _latencies(beside, f"latency-{number}", settings.count(SENDS, 2))
            return {
                "p50": percentile(found, 0.5),
                "p95": percentile(found, 0.95),
                "bare": _bare_ms(beside, settings.count(6, 1)),
                "live": _sustained(beside, f"live-{number}", settings.count(LIVE_RECORDS, 4000)),
            }

        yield take


BENCH = Bench(
    "streams",
    "a topic as a stream of Spark's: latency and rate (wall time)",
    (
        Row("from `send` to a row in foreachBatch, median", "ms", "p50", "bare", "a bare micro-batch"),
        Row("... 95 of 100", "ms", "p95", "bare", "a bare micro-batch"),
        Row("sustained while a producer writes", "M rows/s", "live"),
    ),
    _begin,
    rounds_max=5,
    part_of="streams",
    also_runs=("tidelog.spark.scan", "tidelog.broker.broker"),
)
