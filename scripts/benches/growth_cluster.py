"""Three brokers and a controller, processes of their own, while something grows: partitions, records, producers.

    partitions  more and more of them, and what is produced to 10 beside them (columns of records of 100 B, four `send_many`
                at a time, for two seconds), and CPU time of the busiest broker while nobody asks for anything
    records     1 MB of values in a `send_many`, four at a time, in records of each size; the same records read as columns
    producers   so many producers in one process, each of which waits for its acknowledgement before it goes on: with one
                record of 100 B, and with 1,000

Everything has three replicas and acks=all. References, in the same round: raw loopback between two processes, bare calls,
brokers without topics, and the smallest size.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scripts.benches.measure import Bench, Goal, Readings, Round, Row, Settings
from scripts.benches.processes import cpu_s
from scripts.benches.sockets import Pipeline, RawPeer, Server, server
from scripts.benches.topics import PATIENCE_S, until_gone

from tidelog.client import Client
from tidelog.client.admin import NewTopic
from tidelog.protocol.io import connect
from tidelog.protocol.io.runner import fastest_loop
from tidelog.protocol.messages import InitProducerId
from tidelog.testing.cluster import Cluster

PARTITIONS = (10, 100, 1000, 10_000)
RECORDS = (10, 100, 1000, 10_000, 100_000, 1_000_000)
PRODUCERS = (1, 4, 16, 64)
PRODUCED = "{:,} partitions: produced to 10"
LOOPBACK = "{:,} partitions: raw loopback meanwhile"
IDLE = "{:,} partitions: idle, the busiest broker"
EMPTY = "no topics: idle, the busiest broker"
MADE = "{:,} partitions: made"
EVERYWHERE = "{:,} partitions: every replica has its log"
WRITTEN = "{:,} B: written"
READ = "{:,} B: read"
ONE = "{:,} producers: one record each"
MANY = "{:,} producers: 1,000 records each"
_SMALL = b"x" * 100
_COLUMN = 10_000
_AT_ONCE = 4
_SECTION_BYTES = 200_000_000
_TOPIC_MOST = 1000
"""More than that are made as several topics."""


class World:
    """The cluster, a client of it, and what machines can do at best."""

    def __init__(
        self,
        settings: Settings,
        directory: Path,
        cluster: Cluster,
        client: Client,
        raw: Server,
        rpc: Server,
    ) -> None:
        self.settings = settings
        self.client = client
        self.directory = directory
        self._cluster = cluster
        self._raw = raw
        self._rpc = rpc

    def loopback(self) -> float:
        """MB/s in pieces of 1 MB."""
        peer, count = RawPeer(self._raw.port), self.settings.count(500, 2)
        try:
            return count * (1 << 20) / peer.send(1 << 20, count) / 1e6
        finally:
            peer.close()

    async def calls(self, at_once: int) -> float:
        """Thousands of bare calls a second."""
        connection, count = await connect("127.0.0.1", self._rpc.port), self.settings.count(20_000, 50)
        try:
            return count / await Pipeline(connection, InitProducerId(), ()).run(count, at_once) / 1000
        finally:
            connection.close()
            await connection.wait_closed()

    async def until_everywhere(self, partitions: int) -> None:
        """Every broker has all of these logs: a topic is usable when its leaders have them."""
        over = time.perf_counter() + PATIENCE_S
        for broker in range(1, 4):
            while len(list((self.directory / f"broker-{broker}").glob("of-*-[0-9]*"))) < partitions:
                if time.perf_counter() > over:
                    raise RuntimeError(
                        f"broker {broker} has not made {partitions:,} logs in {PATIENCE_S:g} s"
                    )
                await asyncio.sleep(0.2)

    async def idle(self) -> float:
        """Per cent of a core that the busiest broker has while nobody asks for anything, this client neither."""
        pids = [node.process.pid for name, node in self._cluster.nodes.items() if name[0] == "b"]  # type: ignore[attr-defined]
        await asyncio.sleep(self.settings.count(5, 0))
        before, began = {pid: cpu_s(pid) for pid in pids}, time.perf_counter()
        await asyncio.sleep(self.settings.count(100, 2) / 10)
        wall = time.perf_counter() - began
        return max(cpu_s(pid) - before[pid] for pid in pids) / wall * 100

    async def for_a_while(self, work: Callable[[int], Coroutine[Any, Any, int]], at_once: int) -> float:
        """What so many tasks together have done, a second, each beginning anew until time is over."""
        await work(0)
        over = time.perf_counter() + self.settings.count(20, 1) / 10
        began = time.perf_counter()

        async def again(number: int) -> int:
            done = await work(number)
            while time.perf_counter() < over:
                done += await work(number)
            return done

        done = await asyncio.gather(*map(again, range(at_once)))
        return sum(done) / (time.perf_counter() - began)


# ── partitions ────────────────────────────────────────────────────────────────────────────────────────


async def _partitions(world: World) -> Readings:
    readings: Readings = {"empty": await world.idle()}
    await _produce(world)  # everybody warms up
    there = 0
    for size in PARTITIONS:
        wanted = world.settings.count(size, 10 + 2 * PARTITIONS.index(size))
        began = time.perf_counter()
        topics = [
            NewTopic(f"of-{size}-{first}", min(_TOPIC_MOST, wanted - first), 3)
            for first in range(there, wanted, _TOPIC_MOST)
        ]
        for topic in topics:
            await world.client.admin.create_topics(topic, timeout=600)
        readings[f"made {size}"] = time.perf_counter() - began
        there = wanted
        await world.until_everywhere(there)
        readings[f"everywhere {size}"] = time.perf_counter() - began
        readings[f"idle {size}"] = await world.idle()
        readings[f"raw {size}"] = world.loopback()
        readings[f"rate {size}"] = await _produce(world)
    return readings


async def _produce(world: World) -> float:
    """MB/s to the ten partitions of a topic of its own, which goes again: a disk takes long to write where it never has."""
    topic = "produced"
    await world.client.admin.create_topics(NewTopic(topic, PARTITIONS[0], 3))
    async with world.client.producer() as producer:

        async def send(_number: int) -> int:
            await producer.send_many(topic, [_SMALL] * _COLUMN)
            return _COLUMN * len(_SMALL)

        rate = await world.for_a_while(send, _AT_ONCE) / 1e6
    await world.client.admin.delete_topics(topic)
    await until_gone(world.directory, topic)
    return rate


def _partition_rows() -> Iterator[Row]:
    for size in PARTITIONS:
        part = 0.8 if size <= 1000 else 0.6
        goal = Goal("ratio", True, part, "C5") if size > PARTITIONS[0] else None
        yield Row(
            PRODUCED.format(size), "MB/s", f"rate {size}", f"rate {PARTITIONS[0]}", "10 partitions", goal
        )
    for size in PARTITIONS:
        goal = Goal("figure", False, 5.0, "C5") if size == 1000 else None
        yield Row(IDLE.format(size), "% of a core", f"idle {size}", goal=goal)
    yield Row(EMPTY, "% of a core", "empty")
    for size in PARTITIONS:
        yield Row(LOOPBACK.format(size), "MB/s", f"raw {size}")
    for size in PARTITIONS:
        yield Row(MADE.format(size), "s", f"made {size}")
    for size in PARTITIONS:
        yield Row(EVERYWHERE.format(size), "s", f"everywhere {size}")


# ── records ───────────────────────────────────────────────────────────────────────────────────────────


async def _records(world: World) -> Readings:
    readings: Readings = {}
    for size in RECORDS:
        readings[f"raw {size}"] = world.loopback()
        topic = f"of-{size}"
        await world.client.admin.create_topics(NewTopic(topic, 4, 3))
        column = [b"x" * size] * max(1_000_000 // size, 1)
        total = world.settings.count(min(_SECTION_BYTES, 2_000_000 * size), 2_000_000)
        columns = max(total // (size * len(column)) // _AT_ONCE, 1) * _AT_ONCE
        async with world.client.producer(batch_size=1 << 20) as producer:

            async def send(left: Iterator[int], column: list[bytes] = column, topic: str = topic) -> None:
                for at in left:
                    await producer.send_many(topic, column, partition=at % 4)

            await producer.send_many(topic, column, partition=0)
            began, left = time.perf_counter(), iter(range(columns))
            await asyncio.gather(*(send(left) for _ in range(_AT_ONCE)))
            written = columns * len(column) * size
            readings[f"write {size}"] = written / (time.perf_counter() - began) / 1e6
        began, got = time.perf_counter(), 0
        async with world.client.consumer(topic, auto_offset_reset="earliest") as consumer:
            async for batch in consumer.batches():
                got += len(batch.values) * size
                if got >= written:
                    break
        readings[f"read {size}"] = got / (time.perf_counter() - began) / 1e6
        await world.client.admin.delete_topics(topic)
    return readings


def _record_rows() -> Iterator[Row]:
    for what, words in (("write", WRITTEN), ("read", READ)):
        for size in RECORDS:
            yield Row(words.format(size), "MB/s", f"{what} {size}", f"raw {size}", "raw loopback")


# ── producers ─────────────────────────────────────────────────────────────────────────────────────────


async def _producers(world: World) -> Readings:
    readings: Readings = {}
    topic = "producers"
    await world.client.admin.create_topics(NewTopic(topic, 4, 3))
    for size in PRODUCERS:
        readings[f"calls {size}"] = await world.calls(size)
        async with AsyncExitStack() as stack:
            sending = [await stack.enter_async_context(world.client.producer()) for _ in range(size)]

            async def one(who: int, sending: list[Any] = sending) -> int:
                await sending[who].send(topic, _SMALL, partition=who % 4)
                return 1

            async def many(who: int, sending: list[Any] = sending) -> int:
                await sending[who].send_many(topic, [_SMALL] * 1000, partition=who % 4)
                return 1000

            readings[f"one {size}"] = await world.for_a_while(one, size) / 1000
            readings[f"many {size}"] = await world.for_a_while(many, size) / 1000
    return readings


def _producer_rows() -> Iterator[Row]:
    for size in PRODUCERS:
        yield Row(
            ONE.format(size), "k records/s", f"one {size}", f"calls {size}", "bare calls, as many at once"
        )
    for size in PRODUCERS:
        yield Row(MANY.format(size), "k records/s", f"many {size}", f"many {PRODUCERS[0]}", "one producer")


# ── the benches ───────────────────────────────────────────────────────────────────────────────────────


def _bench(
    section: str,
    about: str,
    rows: Iterator[Row],
    take: Callable[[World], Coroutine[Any, Any, Readings]],
) -> Bench:
    """In each round a cluster of its own: what the last one has made is not in the way."""

    @contextmanager
    def begin(settings: Settings) -> Iterator[Round]:
        with (
            server("raw", settings) as raw,
            server("product", settings) as rpc,
            asyncio.Runner(loop_factory=fastest_loop()) as runner,
        ):

            async def take_one(own: Path) -> Readings:
                async with (
                    Cluster(3, 1, processes=True, directory=own) as cluster,
                    cluster.client() as client,
                ):
                    for node in cluster.nodes.values():
                        settings.children.add(node.process.pid)  # type: ignore[attr-defined]
                    return await take(World(settings, own, cluster, client, raw, rpc))

            def round_of_its_own(_number: int) -> Readings:
                with TemporaryDirectory(prefix=f"growth-{section}-", dir=settings.directory) as own:
                    return runner.run(take_one(Path(own)))

            yield round_of_its_own

    return Bench(
        f"growth-{section}",
        about,
        tuple(rows),
        begin,
        5,
        ("tidelog.testing.node", "tidelog.cli.main"),
        part_of="growth",
    )


BY_PARTITIONS = _bench(
    "partitions", "10 to 10,000 partitions in the cluster (wall time)", _partition_rows(), _partitions
)
BY_RECORDS = _bench("records", "records of 10 B to 1 MB (wall time)", _record_rows(), _records)
BY_PRODUCERS = _bench("producers", "1 to 64 producers at once (wall time)", _producer_rows(), _producers)
