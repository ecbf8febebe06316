"""The Python client against three brokers that are processes of their own, beside Kafka's Python clients.

    writing    records of 100 B, acks=all, three replicas: one by one (`enqueue`), as columns (`send_many`), by `tidelog.sync`
    bytes      records of 1 KB as columns: acks=all with three replicas, in small and large batches; acks=1 with one
    reading    the same as objects (`async for`, `getmany`) and as columns (`batches`)
    latency    one record at a time; the same while a consumer reads at full speed, in this loop and in another process
    requests   one record each, 64 in flight, with three replicas and with one
    metadata   one record at a time, and many, by a client that knows 5,000 partitions beside one that knows 12

Beside it runs the least that could do such work (`bare`): what GOALS calls the prototype, on this machine and in this round.
Both write to files that go with the round: from the second on the disk has room that it has written to before.

confluent-kafka and aiokafka do the same work in a process of their own against librdkafka's mock cluster in another one,
which keeps 5 MB of a partition in memory and has no replicas: it does much less for an acknowledgement than three brokers
do. So CPU time of the client is what can be compared: it is taken of this process alone. Where they are missing,
the rows say so, and have no reference.
"""

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import quantiles

from scripts.benches import bare, client_peers
from scripts.benches.client_reader import apart, endless
from scripts.benches.measure import Bench, Goal, Readings, Round, Row, Settings
from scripts.benches.sockets import Pipeline, RawPeer, Server, server
from scripts.benches.topics import until_gone

import tidelog.sync
from tidelog.client import Client
from tidelog.client.admin import NewTopic
from tidelog.client.io.consumer import Consumer
from tidelog.protocol.io import connect
from tidelog.protocol.io.runner import fastest_loop
from tidelog.protocol.messages import InitProducerId, PartitionProduce, Produce
from tidelog.protocol.records import encode
from tidelog.testing.cluster import Cluster

VALUE = b"x" * 100
COLUMN = 10_000
MANY = 5000
_TURNS = 6
KILOBYTE = b"x" * 1024
_AT_ONCE = bare.IN_FLIGHT
"""So many calls of `send_many` are under way, a megabyte each: in batches of a megabyte as much as the bare pipeline has."""
_WRITTEN = (NewTopic("write", 12, 3), NewTopic("bytes", 12, 3), NewTopic("bytes-alone", 12, 1))
PEERS = client_peers.interpreter()


class _Bench:
    """A cluster, a client of it, and what one round takes of them."""

    def __init__(
        self, settings: Settings, directory: Path, cluster: Cluster, client: Client, rpc: Server
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._cluster = cluster
        self._client = client
        self._rpc = rpc
        self._records = settings.count(500_000, 2000)

    async def prepare(self) -> None:
        """Topics, and records to read."""
        admin = self._client.admin
        await admin.create_topics(NewTopic("read", 12, 1), NewTopic("one", 1, 3), NewTopic("alone", 1, 1))
        async with self._client.producer() as producer:
            for _ in range(max(self._records // COLUMN, 1)):
                await producer.send_many("read", [VALUE] * COLUMN)
        many = self._settings.count(MANY, 50)
        await admin.create_topics(NewTopic("many", many, 1), timeout=120)

    async def begin(self) -> None:
        """Make the topics that a round writes much to, and that go again with it: the disk has the room for them then."""
        await self._client.admin.create_topics(*_WRITTEN)

    async def end(self) -> None:
        """Let them go."""
        for topic in _WRITTEN:
            await self._client.admin.delete_topics(topic.name)
            await until_gone(self._directory, topic.name)

    async def take(self) -> Readings:
        """All rows once."""
        readings = await self._writing() | await self._bytes()
        readings |= await self._reading()
        readings |= await self._latency()
        for topic in ("one", "alone"):
            readings |= await self._requests(topic)
        return readings | await self._metadata()

    async def _writing(self) -> Readings:
        count = self._records
        async with self._client.producer(linger_ms=5) as producer:
            await producer.send("write", VALUE)

            async def enqueue() -> int:
                for _ in range(count):
                    _ = await producer.enqueue("write", VALUE)
                await producer.flush()
                return count

            async def send_many() -> int:
                # Two at a time: one is encoded while the other one is on its way.
                async def half() -> None:
                    for _ in range(max(count // COLUMN // 2, 1)):
                        await producer.send_many("write", [VALUE] * COLUMN)

                await asyncio.gather(half(), half())
                return max(count // COLUMN // 2, 1) * 2 * COLUMN

            return await _timed("enqueue", enqueue) | await _timed("send_many", send_many)

    async def _bytes(self) -> Readings:
        """Megabytes of values a second."""
        values, calls = [KILOBYTE] * 1000, self._settings.count(14, 1)
        readings: Readings = {}
        for name, topic, acks, batch_size in (
            ("bytes 64K", "bytes", "all", 65_536),
            ("bytes 1M", "bytes", "all", 1 << 20),
            ("bytes alone", "bytes-alone", 1, bare.BATCH_BYTES),
        ):
            sized = {"batch_size": batch_size, "max_request_size": 4 << 20}
            async with self._client.producer(acks=acks, config=sized) as producer:
                await producer.send_many(topic, values)  # it warms up
                began = time.perf_counter()

                async def some(producer: tidelog.Producer = producer, topic: str = topic) -> None:
                    for _ in range(calls):
                        await producer.send_many(topic, values)

                await asyncio.gather(*(some() for _ in range(_AT_ONCE)))
                seconds = time.perf_counter() - began
            readings[name] = calls * _AT_ONCE * len(values) * len(KILOBYTE) / seconds / 1e6
        return readings

    async def _reading(self) -> Readings:
        readings: Readings = {}
        for name, way in (("async for", _one_by_one), ("getmany", _lists), ("batches", _columns)):
            async with self._client.consumer("read", auto_offset_reset="earliest") as consumer:
                readings |= await _timed(name, partial(way, consumer, self._records))
        return readings

    async def _latency(self) -> Readings:
        count = self._settings.count(500, 5)
        async with self._client.producer() as producer:

            async def send() -> None:
                await producer.send("one", VALUE)

            alone = await _latencies("send", send, count)
            reading = asyncio.create_task(endless(self._client, "read"))
            beside = await _latencies("beside", send, count)
            reading.cancel()
            await asyncio.wait([reading])
            async with apart(self._cluster.bootstrap, "read", self._settings.children):
                beside |= await _latencies("apart", send, count)
        connection = await connect("127.0.0.1", self._rpc.port)

        async def call() -> None:
            await connection.call(InitProducerId())

        call_alone = await _latencies("rpc", call, count)
        connection.close()
        await connection.wait_closed()
        return alone | beside | call_alone

    async def _requests(self, topic: str) -> Readings:
        count = self._settings.count(20_000, 100)
        known = await self._client.topic(topic)
        data = encode([VALUE], now_ms=time.time_ns() // 1_000_000)
        request = Produce(-1, 30_000, (PartitionProduce(known.id, 0, len(data)),))
        connection = await self._client.connection(known.partitions[0].leader)
        seconds = await Pipeline(connection, request, (data,)).run(count, 64)
        return {f"requests {topic}": count / seconds / 1000}

    async def _metadata(self) -> Readings:
        """What it costs to know many partitions: both clients live as long as the other, and take turns in pieces.

        One after the other they would be measured at other times of the machine, and the one that has just learned
        5,000 partitions with caches that are full of them.
        """
        count, records = self._settings.count(100, 2), self._settings.count(40_000, 100)
        taken: dict[str, list[float]] = {"few": [], "lots": []}
        cpu = dict.fromkeys(taken, 0.0)
        async with AsyncExitStack() as stack:
            producers: dict[str, tidelog.Producer] = {}
            for name in taken:
                client = await stack.enter_async_context(self._cluster.client())
                producers[name] = await stack.enter_async_context(client.producer())
                if name == "lots":
                    await client.topic("many")
                    await producers[name].send("many", VALUE)
            for turn in range(_TURNS + 1):
                for name in taken if turn % 2 else reversed(taken):
                    times, seconds = await _one_turn(producers[name], count, records)
                    if turn:  # the first one warms up
                        taken[name] += times
                        cpu[name] += seconds
        readings: Readings = {}
        for name, times in taken.items():
            readings |= _quantiles(name, times)
            readings[f"{name} enqueue cpu"] = cpu[name] / (_TURNS * records) * 1e6
        return readings

    def blocking(self) -> Readings:
        """`tidelog.sync`, from this thread."""
        count = self._records
        with tidelog.sync.connect(self._cluster.bootstrap) as client, client.producer() as producer:
            producer.enqueue("write", VALUE).result()
            cpu, began = time.process_time(), time.perf_counter()
            for _ in range(count):
                producer.enqueue("write", VALUE)
            producer.flush()
            readings = _rates("sync enqueue", count, cpu, began)
            hops = self._settings.count(2000, 10)
            began = time.perf_counter()
            for _ in range(hops):
                producer.metrics()
            readings["sync hop"] = (time.perf_counter() - began) / hops * 1e6
            consumer = client.consumer("read", auto_offset_reset="earliest")
            for name in ("sync batches", "sync for"):
                consumer.seek_to_beginning()
                cpu, began, got = time.process_time(), time.perf_counter(), 0
                for more in consumer.batches() if name == "sync batches" else consumer:
                    got += len(more) if isinstance(more, tidelog.RecordBatch) else 1
                    if got >= self._records:
                        break
                readings |= _rates(name, got, cpu, began)
        return readings


async def _one_by_one(consumer: Consumer, count: int) -> int:
    got = 0
    async for record in consumer:
        got += record.value is not None
        if got >= count:
            break
    return got


async def _lists(consumer: Consumer, count: int) -> int:
    got = 0
    while got < count:
        found = await consumer.getmany(timeout=1, max_records=COLUMN)
        got += sum(map(len, found.values()))
    return got


async def _columns(consumer: Consumer, count: int) -> int:
    got = 0
    async for batch in consumer.batches():
        got += len(batch.values)
        if got >= count:
            break
    return got


async def _timed(name: str, work: Callable[[], Awaitable[int]]) -> Readings:
    cpu, began = time.process_time(), time.perf_counter()
    return _rates(name, await work(), cpu, began)


def _rates(name: str, count: int, cpu: float, began: float) -> Readings:
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {name: count / wall / 1e6, f"{name} cpu": cpu / count * 1e6}


async def _one_turn(producer: tidelog.Producer, count: int, records: int) -> tuple[list[float], float]:
    """How long each of so many records took, in ms; and the CPU of so many that were not waited for, in seconds."""
    taken = []
    for _ in range(count):
        began = time.perf_counter_ns()
        await producer.send("alone", VALUE)
        taken.append((time.perf_counter_ns() - began) / 1e6)
    cpu = time.process_time()
    for _ in range(records):
        _ = await producer.enqueue("alone", VALUE)
    await producer.flush()
    return taken, time.process_time() - cpu


async def _latencies(name: str, work: Callable[[], Awaitable[None]], count: int) -> Readings:
    taken = []
    for _ in range(count):
        began = time.perf_counter_ns()
        await work()
        taken.append((time.perf_counter_ns() - began) / 1e6)
    return _quantiles(name, taken)


def _quantiles(name: str, taken: list[float]) -> Readings:
    cuts = quantiles(taken, n=100)
    return {f"{name} p50": cuts[49], f"{name} p99": cuts[98]}


def _in_millions(readings: dict[str, float]) -> Readings:
    return {name: value if name.endswith("cpu") else value / 1000 for name, value in readings.items()}


@contextmanager
def _begin(settings: Settings) -> Iterator[Round]:
    directory = settings.directory / "client"
    if PEERS is None:
        print(f"bench: {_ABSENT}", file=sys.stderr)
    with (
        server("raw", settings) as raw,
        server("product", settings) as rpc,
        client_peers.mock(PEERS) if PEERS else nullcontext("") as address,
        asyncio.Runner(loop_factory=fastest_loop()) as runner,
    ):
        stack = AsyncExitStack()
        try:
            bench = runner.run(_open(stack, settings, directory, rpc))

            def take(_number: int) -> Readings:
                runner.run(bench.begin())
                os.sync()  # what was removed before is gone from the disk as well
                readings = runner.run(bench.take()) | bench.blocking()
                runner.run(bench.end())
                os.sync()
                with (
                    bare.bare(directory / "three", 3, settings.children) as least,
                    bare.bare(directory / "alone", 1, settings.children) as alone,
                ):
                    readings |= runner.run(bare.measure(least, alone, settings.count, settings.children))
                peer = RawPeer(raw.port)
                pieces = settings.count(2000, 10)
                seconds = peer.send(65_536, pieces)
                large = settings.count(200, 4)
                readings["raw bytes"] = large * (1 << 20) / peer.send(1 << 20, large) / 1e6
                peer.close()
                readings["raw"] = pieces * 65_536 / len(VALUE) / seconds / 1e6
                if PEERS:
                    count = settings.count(200_000, 10_000)
                    readings |= _in_millions(client_peers.measure(PEERS, address, count))
                return readings

            yield take
        finally:
            runner.run(stack.aclose())


async def _open(stack: AsyncExitStack, settings: Settings, directory: Path, rpc: Server) -> _Bench:
    cluster = await stack.enter_async_context(Cluster(3, 1, processes=True, directory=directory))
    for node in cluster.nodes.values():
        settings.children.add(node.process.pid)  # type: ignore[attr-defined]
    client = await stack.enter_async_context(cluster.client())
    bench = _Bench(settings, directory, cluster, client, rpc)
    await bench.prepare()
    return bench


_ABSENT = (
    "confluent-kafka and aiokafka are not there: their rows are OPEN "
    "(pip install 'tidelog[bench]', or name an interpreter that has them in TIDELOG_BENCH_PEERS)"
)
_RATE, _CPU = "M records/s", "us"
_BARE = "a bare pipeline"
_PROTOTYPE = Goal("ratio", True, 0.7, "GOALS: 70 % of a prototype")


def _bare(figure: str, reference: str, unit: str = _RATE, name: str = "... beside a bare pipeline") -> Row:
    """A row beside the least that does such work."""
    return Row(name, unit, figure, reference, _BARE, _PROTOTYPE)


def _peer(name: str, unit: str, figure: str, reference: str, beside: str, goal: Goal) -> Row:
    """A row beside another client, or one that says that there is none."""
    if PEERS:
        return Row(name, unit, figure, reference, beside, goal)
    return Row(f"{name} (OPEN: {beside} is not installed)", unit, figure)


ROWS = (
    Row("enqueue", _RATE, "enqueue", "raw", "raw loopback", Goal("figure", True, 1.7, "GOALS S1")),
    _bare("enqueue", "bare enqueue"),
    _peer(
        "... CPU of the client per record",
        _CPU,
        "enqueue cpu",
        "produce cpu",
        "confluent produce",
        Goal("ratio", False, 1, "GOALS S1"),
    ),
    _peer(
        "... beside aiokafka",
        _CPU,
        "enqueue cpu",
        "aio send cpu",
        "aiokafka send",
        Goal("ratio", False, 0.2, "GOALS S1"),
    ),
    Row("send_many", _RATE, "send_many", "raw", "raw loopback", Goal("figure", True, 3, "GOALS S2")),
    _bare("send_many", "bare columns"),
    _peer(
        "... beside confluent",
        _RATE,
        "send_many",
        "produce_batch",
        "confluent produce_batch",
        Goal("ratio", True, 1.5, "GOALS S2"),
    ),
    _peer(
        "... CPU of the client per record",
        _CPU,
        "send_many cpu",
        "produce_batch cpu",
        "confluent produce_batch",
        Goal("ratio", False, 0.67, "GOALS S2"),
    ),
    *(
        Row(name, "MB/s", figure, "raw bytes", "raw loopback", goal)
        for name, figure, goal in (
            ("1 KB, 3 replicas, batches of 64 KB", "bytes 64K", Goal("figure", True, 380, "GOALS S3")),
            ("... as a part of the loopback's rate", "bytes 64K", Goal("ratio", True, 0.1, "GOALS S3")),
            ("... batches of 1 MB", "bytes 1M", Goal("figure", True, 628, "GOALS S3")),
            ("... as a part of it, batches of 1 MB", "bytes 1M", Goal("ratio", True, 0.1, "GOALS S3")),
            ("1 KB, 1 replica, acks=1", "bytes alone", Goal("ratio", True, 0.3, "GOALS S4")),
        )
    ),
    _bare("bytes 64K", "bare 64K", "MB/s", "... 3 replicas, 64 KB, beside a bare pipeline"),
    _bare("bytes 1M", "bare 1M", "MB/s", "... 3 replicas, 1 MB, beside a bare pipeline"),
    _bare("bytes alone", "bare alone", "MB/s", "... 1 replica, beside a bare pipeline"),
    Row("a bare pipeline, 1 replica", "MB/s", "bare alone", "raw bytes", "raw loopback"),
    Row("async for", _RATE, "async for", "raw", "raw loopback", Goal("figure", True, 4, "GOALS S5")),
    _bare("async for", "bare read objects"),
    *(
        _peer(
            f"... beside {beside}", _RATE, "async for", name, beside, Goal("ratio", True, bound, "GOALS S5")
        )
        for name, beside, bound in (
            ("consume", "confluent consume(10k)", 1.5),
            ("poll", "confluent poll", 2.5),
            ("aio for", "aiokafka async for", 7),
        )
    ),
    *(
        _peer(
            f"... CPU, beside {beside}",
            _CPU,
            "async for cpu",
            f"{name} cpu",
            beside,
            Goal("ratio", False, bound, "GOALS S5"),
        )
        for name, beside, bound in (
            ("consume", "confluent consume(10k)", 0.67),
            ("poll", "confluent poll", 0.4),
            ("aio for", "aiokafka async for", 0.14),
        )
    ),
    Row("getmany", _RATE, "getmany", "raw", "raw loopback"),
    Row("batches", _RATE, "batches", "raw", "raw loopback", Goal("figure", True, 14, "GOALS S6")),
    _bare("batches", "bare read columns"),
    _peer(
        "... beside confluent",
        _RATE,
        "batches",
        "consume",
        "confluent consume(10k)",
        Goal("ratio", True, 5, "GOALS S6"),
    ),
    _peer(
        "... CPU, beside confluent",
        _CPU,
        "batches cpu",
        "consume cpu",
        "confluent consume(10k)",
        Goal("ratio", False, 0.2, "GOALS S6"),
    ),
    Row(
        "send, one at a time, p50",
        "ms",
        "send p50",
        "rpc p50",
        "bare call",
        Goal("ratio", False, 4, "GOALS S7"),
    ),
    Row(
        "... p50 by itself", "ms", "send p50", "rpc p50", "bare call", Goal("figure", False, 0.5, "GOALS S7")
    ),
    Row("... p99", "ms", "send p99", "rpc p99", "bare call", Goal("figure", False, 2, "GOALS S7")),
    Row("... p50 beside a bare pipeline", "ms", "send p50", "bare send p50", _BARE),
    Row(
        "... p99 during a full-speed consume",
        "ms",
        "beside p99",
        "send p99",
        "without",
        Goal("ratio", False, 2, "issue 6"),
    ),
    Row(
        "... the consumer in a process of its own, p99",
        "ms",
        "apart p99",
        "send p99",
        "without",
    ),
    Row("... a bare pipeline's, the consumer so, p99", "ms", "bare beside p99", "bare send p99", "without"),
    Row(
        "... what sharing the loop costs: p99 with it in this one",
        "ms",
        "beside p99",
        "apart p99",
        "in its own",
        Goal("ratio", False, 1.5, "this bench"),
    ),
    Row(
        "requests of one record, 3 replicas",
        "k/s",
        "requests one",
        "requests alone",
        "1 replica",
        Goal("figure", True, 40, "GOALS S9"),
    ),
    Row("... 1 replica", "k/s", "requests alone", goal=Goal("figure", True, 80, "GOALS S9")),
    _bare("requests one", "bare requests", "k/s", "... 3 replicas, beside a bare pipeline"),
    _bare("requests alone", "bare requests alone", "k/s", "... 1 replica, beside a bare pipeline"),
    Row(
        "send, 5,000 partitions known, p50",
        "ms",
        "lots p50",
        "few p50",
        "12 known",
        Goal("ratio", False, 1.1, "issue 6"),
    ),
    Row(
        "... enqueue, CPU",
        _CPU,
        "lots enqueue cpu",
        "few enqueue cpu",
        "12 known",
        Goal("ratio", False, 1.1, "issue 6"),
    ),
    Row(
        "tidelog.sync: enqueue",
        _RATE,
        "sync enqueue",
        "enqueue",
        "awaited",
        Goal("figure", True, 0.3, "this bench"),
    ),
    Row("... for record in consumer", _RATE, "sync for", "async for", "awaited"),
    Row("... batches", _RATE, "sync batches", "batches", "awaited"),
    Row("... one hop", _CPU, "sync hop"),
)
BENCH = Bench(
    "client",
    "the client against three brokers, beside Kafka's clients (wall time, and CPU of the client alone)",
    ROWS,
    _begin,
    rounds_max=5,
    also_runs=(
        "scripts.benches.client_peers",
        "scripts.benches.client_reader",
        "tidelog.testing.node",
        "tidelog.cli.main",
    ),
)
