"""The option `rack`: tasks read from the replica beside them, which is a process of its own in another rack than the leader.

Who has served is what brokers say of themselves: bytes that they have sent since they started. All of a topic's replicas
have everything before that is counted, so what leaders send meanwhile is no replication.
"""

import asyncio
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import World
from tests.spark.test_losses import planned
from tidelog.client.admin import NewTopic
from tidelog.spark import read_stream, read_topic
from tidelog.testing.processes import child_environment

pytestmark = pytest.mark.slow

VALUE = b"%0100d"
RECORDS = 100_000
LEADER, NEARBY = 1, 2
ROOT = Path(__file__).resolve().parents[2]


def made(world: World, topic: str, records: int = RECORDS) -> str:
    """A topic of broker 1's that brokers 2 and 3 follow, with that many records that all three have."""

    async def write() -> None:
        await world.client.admin.create_topics(
            NewTopic(topic, assignment=[[LEADER, NEARBY, 3]], configs={"min.insync.replicas": 3})
        )
        async with world.client.producer() as producer:
            for first in range(0, records, 50_000):
                values = [VALUE % number for number in range(first, min(first + 50_000, records))]
                await producer.send_many(topic, values)

    world.run(write())
    return topic


class Sent:
    """What each broker sends from now on."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._before = {broker: world.sent_bytes(broker) for broker in (LEADER, NEARBY)}

    def since(self, broker: int) -> int:
        """Bytes."""
        return self._world.sent_bytes(broker) - self._before[broker]


@pytest.mark.parametrize(
    ("rack", "server", "other"), [("rack-2", NEARBY, LEADER), ("rack-9", LEADER, NEARBY)]
)
def test_a_batch_is_read_from_the_replica_in_its_rack_or_else_from_the_leader(
    spark: SparkSession, world: World, rack: str, server: int, other: int
) -> None:
    topic = made(world, f"batch-in-{rack}")
    sent = Sent(world)
    frame = read_topic(spark, topic, world.bootstrap, rack=rack)
    assert tuple(frame.selectExpr("count(*)", "count(distinct offset)").collect()[0]) == (RECORDS, RECORDS)
    assert sent.since(server) > RECORDS * 100
    assert sent.since(other) < RECORDS * 10


def test_a_stream_is_read_from_the_replica_in_its_rack(spark: SparkSession, world: World) -> None:
    topic = made(world, "stream-in-rack")
    sent, rows = Sent(world), []
    frame = read_stream(spark, topic, world.bootstrap, startingOffsets="earliest", rack="rack-2")
    query = (
        frame.writeStream.foreachBatch(lambda batch, _number: rows.append(batch.count()))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)
    assert sum(rows) == RECORDS
    assert sent.since(NEARBY) > RECORDS * 100
    assert sent.since(LEADER) < RECORDS * 10


def test_what_the_replica_has_and_is_not_committed_is_not_read(spark: SparkSession, world: World) -> None:
    """Broker 2 has the records, broker 3 is in sync and has them not: they lie above the high watermark."""
    topic = made(world, "uncommitted-in-rack", 10)

    async def write_uncommitted(over: asyncio.Event) -> None:
        async with world.client.producer() as producer:
            await producer.send(
                topic, VALUE % 10
            )  # connected, so that there is no time for broker 3 to be given up
            await world.cluster.pause(3)
            try:
                before = _bytes_of(world, topic, NEARBY)
                task = asyncio.create_task(producer.send(topic, VALUE % 11))
                async with asyncio.timeout(30):
                    while _bytes_of(world, topic, NEARBY) == before:  # noqa: ASYNC110 -- a file tells nobody
                        await asyncio.sleep(0.005)
                assert not task.done(), "broker 3 does not have it: it is not committed"
                written.set()
                await over.wait()
                assert not task.done(), "broker 3 was given up while this was read"
            finally:
                await world.cluster.resume(3)
            await task

    def count() -> int:
        return read_topic(spark, topic, world.bootstrap, rack="rack-2").count()

    assert count() == 10  # and what Spark has to start for it is there
    over, written = asyncio.Event(), threading.Event()
    writing = asyncio.run_coroutine_threadsafe(write_uncommitted(over), world._loop)
    try:
        assert written.wait(60), writing.result(0)
        assert count() == 11
    finally:
        world._loop.call_soon_threadsafe(over.set)
        writing.result(60)
    assert count() == 12


def _bytes_of(world: World, topic: str, broker: int) -> int:
    files = (world.cluster.nodes[f"b{broker}"].spec.directory / f"{topic}-0").glob("*.log")
    return sum(file.stat().st_size for file in files)


def test_when_the_replica_is_killed_the_rest_comes_from_the_leader(world: World) -> None:
    count = 600_000
    topic = made(world, "killed-in-rack", count)
    reader, tasks = planned(world, topic, rack="rack-2", minPartitions="1")
    [task] = tasks
    sent = Sent(world)
    with closing(reader.read(task)) as batches:
        read = [next(batches)]
        assert sent.since(NEARBY) > read[0].nbytes // 2
        at_the_leader = Sent(world)
        world.run(world.cluster.kill(NEARBY))
        try:
            read += batches
        finally:
            world.run(world.cluster.start(NEARBY))
            world.run(world.cluster.wait_ready())
    offsets = [offset for batch in read for offset in batch.column("offset").to_pylist()]
    assert offsets == list(range(count))
    # At most what was prefetched, and what was on its way, was not asked for again.
    assert at_the_leader.since(LEADER) > count * 100 // 2


def test_a_read_that_is_left_open_does_not_keep_its_process(world: World) -> None:
    program = f"""
from tests.spark.test_losses import planned

class There:
    bootstrap = {world.bootstrap!r}

reader, tasks = planned(There, {made(world, "left-open")!r})
batches = reader.read(tasks[0])
print(next(batches).num_rows > 0)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
        env=child_environment(),
    )
    assert (ran.returncode, ran.stdout) == (0, "True\n"), ran.stderr
