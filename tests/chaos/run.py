"""A cluster of real processes under load and faults, and what its clients were told (docs/CHAOS.md).

    producers ──► the topic ──► consumers          faults come one after the other (`weather`)
        └───────► ledger ◄───────┘                 at the end everything is read once more, and judged

The clients are the product's own, with its defaults but for shorter time-outs. Producers are idempotent and wait for
all replicas, except for one that is content with the leader: its records may be lost, but not after somebody has read
them, and so it shows whether anybody reads what is not committed.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, TypeVar

from tests.chaos.ledger import Ledger, Stream
from tests.chaos.weather import FAULTS, Fault, Forecast
from tidelog.client.admin import NewTopic
from tidelog.protocol.errors import TidelogError
from tidelog.protocol.io import connect
from tidelog.protocol.messages import Hello, Metadata, MetadataReply
from tidelog.testing import Cluster
from tidelog.testing.ports import HOST

T = TypeVar("T")

TOPIC: Final = "chaos"
PARTITIONS: Final = 6
RECORD_BYTES: Final = 100
REQUEST_MS: Final = 2_000
PATIENCE_S: Final = 60.0
"""How long anything may take that is bound to happen: until records are acknowledged again, until replicas are in sync."""
POLL_S: Final = 0.05
ASK_MS: Final = 1_000
"""How long a broker that is asked behind its proxy may take to answer."""

SETTINGS: Final = {
    "broker.heartbeat.interval.ms": 500,
    "broker.session.timeout.ms": 3000,
    "quorum.fetch.timeout.ms": 1000,
    "quorum.election.timeout.ms": 500,
    "replica.lag.time.max.ms": 3000,
    "replica.fetch.wait.max.ms": 250,
}
"""Three times as fast as by default, so that a minute holds every fault."""


class Stalled(AssertionError):
    """Something that was bound to happen did not."""


@dataclass(slots=True)
class Report:
    """What a run has seen."""

    seconds: float = 0.0
    faults: "Counter[str]" = field(default_factory=Counter)
    acknowledged: int = 0
    unknown: int = 0
    read: int = 0
    there: int = 0
    elections: int = 0
    errors: "Counter[str]" = field(default_factory=Counter)
    longest_gap_s: float = 0.0
    """The longest that no record at all was acknowledged."""

    def lines(self) -> list[str]:
        """As people read it."""
        faults = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        errors = ", ".join(f"{name} {count}" for name, count in self.errors.most_common()) or "none"
        return [
            f"{self.seconds:.0f} s: {self.acknowledged:,} acknowledged, {self.unknown:,} unknown",
            f"{self.read:,} read, {self.there:,} there at the end",
            f"faults: {faults}",
            f"leader epochs begun: {self.elections}",
            f"longest without an acknowledgement: {self.longest_gap_s:.1f} s",
            f"errors that clients gave up with: {errors}",
        ]


class Run:
    """One run: `storm`, then `judge`."""

    def __init__(
        self,
        cluster: Cluster,
        seed: int,
        *,
        faults: Sequence[Fault] = FAULTS,
        min_isr: int = 2,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.cluster: Any = cluster
        self.rng = Random(seed)
        self.session_s = SETTINGS["broker.session.timeout.ms"] / 1000
        self.request_s = REQUEST_MS / 1000
        self.controllers = sum(name[0] == "c" for name in cluster.nodes)
        self.ledger = Ledger()
        self.report = Report()
        self.forecast = Forecast(Random(seed), faults)
        self._min_isr = min_isr
        self._patience_s = patience_s
        self._brokers = [node.spec.number for node in cluster.nodes.values() if node.spec.is_broker]
        self._client: Any
        self._stop = asyncio.Event()
        self._acknowledged = 0
        self._moved = asyncio.Event()
        self._last_ack = time.monotonic()
        self._failed: BaseException | None = None

    # ── what faults need to know ──────────────────────────────────────────────────────────────────

    def brokers(self) -> Sequence[int]:
        """All of them."""
        return self._brokers

    async def leader(self) -> int:
        """The broker that leads one of the topic's partitions, by chance which."""
        partition = self.rng.randrange(PARTITIONS)

        async def led() -> int | None:
            found: int | None = await self.cluster.leader_of(TOPIC, partition)
            return found

        return await self._until(led, f"somebody leads {TOPIC}-{partition}")

    async def active_controller(self) -> int:
        """The controller that decides."""

        async def active() -> int | None:
            try:
                described = await self._client.admin.describe_quorum(timeout=5)
            except TidelogError:
                return None
            return described.leader_id if described.leader_id >= 0 else None

        return await self._until(active, "a controller is active")

    async def progress(self, records: int) -> None:
        """Until clients have had so many more acknowledgements."""
        target = self._acknowledged + records
        deadline = time.monotonic() + self._patience_s
        while self._acknowledged < target:
            self._raise_failure()
            self._moved.clear()
            left = deadline - time.monotonic()
            if left <= 0:
                raise Stalled(
                    f"{target - self._acknowledged} acknowledgements are missing after {self._patience_s:g} s; "
                    f"{await self._state()}"
                )
            try:
                async with asyncio.timeout(left):
                    await self._moved.wait()
            except TimeoutError:
                continue

    async def isr(self) -> list[set[int]]:
        """Who is in sync, partition by partition: as the broker knows that has heard most, of those that answer."""

        async def members() -> list[set[int]] | None:
            brokers = [node for node in self.cluster.nodes.values() if node.spec.is_broker]
            asked = (_described(node.spec.port) for node in brokers if node.state == "running")
            told = [reply for reply in await asyncio.gather(*asked) if reply is not None]
            newest = max(told, key=lambda reply: reply.metadata_offset, default=None)
            if newest is None or newest.topics[0].error:
                return None
            return [set(partition.isr) for partition in newest.topics[0].partitions]

        return await self._until(members, "a broker says who is in sync")

    async def without(self, broker: int) -> None:
        """Until that broker is in sync nowhere any more."""

        async def out() -> bool | None:
            return None if any(broker in members for members in await self.isr()) else True

        await self._until(out, f"broker {broker} is in sync nowhere")

    async def whole(self) -> None:
        """Until every replica of every partition is in sync again."""

        async def in_sync() -> bool | None:
            try:
                (topic,) = await self._client.admin.describe_topics(TOPIC, timeout=5)
            except TidelogError:
                return None
            whole = all(len(p.isr) == len(p.replicas) and p.leader >= 0 for p in topic.partitions)
            return whole or None

        await self._until(in_sync, "every replica is in sync")

    async def _until(self, look: Callable[[], Awaitable[T | None]], what: str) -> T:
        deadline = time.monotonic() + self._patience_s
        while (found := await look()) is None:
            self._raise_failure()
            if time.monotonic() > deadline:
                raise Stalled(f"waited {self._patience_s:g} s in vain until {what}; {await self._state()}")
            await asyncio.sleep(POLL_S)
        return found

    async def _state(self) -> str:
        """What the cluster says of itself, for who waits in vain."""
        try:
            (topic,) = await self._client.admin.describe_topics(TOPIC, timeout=5)
        except TidelogError as error:
            return f"no broker describes the topic: {error}"
        return "; ".join(f"{p.index}: leader {p.leader}, in sync {p.isr}" for p in topic.partitions)

    def _raise_failure(self) -> None:
        if self._failed is not None:
            raise self._failed

    # ── load ──────────────────────────────────────────────────────────────────────────────────────

    async def storm(self, seconds: float, records: int, said: Callable[[str], None] = lambda _: None) -> None:
        """Load and faults for at least so long, until every fault has come and so many records are acknowledged.

        There is a report also of one that fails: then it is needed most.
        """
        began = time.monotonic()
        try:
            await self._storm(seconds, records, said, began)
        finally:
            self._sum_up(time.monotonic() - began)

    async def _storm(self, seconds: float, records: int, said: Callable[[str], None], began: float) -> None:
        topic = NewTopic(TOPIC, PARTITIONS, 3, {"min.insync.replicas": self._min_isr})
        async with AsyncExitStack() as stack:
            self._client = await stack.enter_async_context(self.cluster.client(client_id="chaos-watch"))
            await self._client.admin.create_topics(topic, timeout=30)
            async with asyncio.TaskGroup() as load:
                tasks = [
                    *(load.create_task(self._watched(self._produce(n))) for n in range(3)),
                    load.create_task(self._watched(self._produce(3, unsafe=True))),
                    *(load.create_task(self._watched(self._consume(f"reader {n}"))) for n in range(2)),
                ]
                await self.progress(1)
                for fault in self.forecast.rounds():
                    said(f"{time.monotonic() - began:6.1f} s  {self._acknowledged:9,}  {fault.__name__}")
                    await fault(self)
                    await self.progress(1)
                    await self.whole()
                    enough = time.monotonic() - began >= seconds and self._acknowledged >= records
                    if enough and self.forecast.has_had_all:
                        break
                self._stop.set()
                _, late = await asyncio.wait(tasks, timeout=self._patience_s)
                if late:
                    raise Stalled(f"{len(late)} clients do not end")
        self._raise_failure()

    def _sum_up(self, seconds: float) -> None:
        self.report.seconds = seconds
        self.report.faults = self.forecast.came
        self.report.acknowledged, self.report.unknown = self.ledger.acknowledged, self.ledger.unknown
        self.report.read = self.ledger.seen

    async def _watched(self, work: Any) -> None:
        """Whatever a client fails with, the run is told."""
        try:
            await work
        except BaseException as error:
            self._failed = self._failed or error
            self._moved.set()
            raise

    async def _produce(self, number: int, *, unsafe: bool = False) -> None:
        rng = Random(number)
        streams = [self.ledger.stream(partition, unsafe=unsafe) for partition in range(PARTITIONS)]
        options: dict[str, Any] = {"acks": 1} if unsafe else {}
        async with (
            self.cluster.client(client_id=f"chaos-{number}") as client,
            client.producer(delivery_timeout_ms=20_000, request_timeout_ms=REQUEST_MS, **options) as producer,
            asyncio.TaskGroup() as group,
        ):
            for stream in streams:
                group.create_task(self._fill(producer, stream, rng, pause_s=0.5 if unsafe else 0.1))

    async def _fill(self, producer: Any, stream: Stream, rng: Random, pause_s: float) -> None:
        """Send one stream, some records at a time, as fast as they are acknowledged and no faster than the pause."""
        while not self._stop.is_set():
            first, count = len(stream.offsets), rng.choice((1, 5, 50, 100))
            values = [stream.next_value(RECORD_BYTES) for _ in range(count)]
            try:
                landed = await producer.send_many(TOPIC, values, partition=stream.partition)
            except TidelogError as error:
                self.report.errors[type(error).__name__] += 1
                continue
            for run in landed.runs:
                stream.acknowledged(first + run.first, run.offset, run.count)
            if not stream.unsafe:
                self._count(count)
            await asyncio.sleep(rng.uniform(0, pause_s))

    def _count(self, records: int) -> None:
        now = time.monotonic()
        self.report.longest_gap_s = max(self.report.longest_gap_s, now - self._last_ack)
        self._last_ack = now
        self._acknowledged += records
        self._moved.set()

    async def _consume(self, name: str) -> None:
        reads = [self.ledger.reader(name, partition) for partition in range(PARTITIONS)]
        async with (
            self.cluster.client(client_id=f"chaos-{name.replace(' ', '-')}") as client,
            client.consumer(TOPIC, auto_offset_reset="earliest") as consumer,
        ):
            while not self._stop.is_set():
                async for batch in consumer.batches(timeout=0.5):
                    for offset, value in zip(batch.offsets, batch.values, strict=True):
                        reads[batch.partition].saw(offset, value or b"")

    # ── judgement ─────────────────────────────────────────────────────────────────────────────────

    async def judge(self) -> None:
        """Read everything once more from the whole cluster, and compare it with what everybody was told."""
        async with self.cluster.client(client_id="chaos-judge") as client:
            (topic,) = await client.admin.describe_topics(TOPIC, timeout=10)
            self.report.elections = sum(partition.leader_epoch for partition in topic.partitions)
            for partition in range(PARTITIONS):
                records = await self._all_of(client, partition)
                self.report.there += self.ledger.judge(partition, records)

    async def _all_of(self, client: Any, partition: int) -> list[tuple[int, bytes]]:
        """Every record of a partition."""
        found: list[tuple[int, bytes]] = []
        async with client.consumer(auto_offset_reset="earliest") as consumer:
            place = (TOPIC, partition)
            consumer.assign([place])
            end = (await consumer.end_offsets([place]))[place]
            while consumer.assignment() and await consumer.position(place) < end:
                before = len(found)
                async for batch in consumer.batches(timeout=self._patience_s):
                    found += zip(batch.offsets, (value or b"" for value in batch.values), strict=True)
                    if batch.next_offset >= end:
                        break
                if len(found) == before:
                    raise Stalled(f"{TOPIC}-{partition} ends at {end}, read up to {found[-1:]}")
        return found


async def _described(port: int) -> MetadataReply | None:
    """The topic as the broker knows it that listens there, whatever is wrong with its network; None: it does not say."""
    try:
        connection = await connect(HOST, port, Hello(client_id="chaos-watch"), timeout_ms=ASK_MS)
        try:
            reply, _ = await connection.call(Metadata(names=(TOPIC,)), timeout_ms=ASK_MS)
        finally:
            connection.abort()
    except TidelogError:
        return None
    assert isinstance(reply, MetadataReply), reply
    return reply
