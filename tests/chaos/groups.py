"""A group on real processes: members come, go and crash at random while brokers are killed (docs/CHAOS.md).

    members ──► process ──► ledger ◄── what is committed, asked again and again: never more than was processed

At the end everybody has a share within seconds, every record was processed, and all of that is committed.
"""

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.chaos.run import SETTINGS
from tidelog.client import Client
from tidelog.client.admin import NewTopic
from tidelog.client.io.consumer import Consumer
from tidelog.protocol.errors import TidelogError
from tidelog.protocol.types import TopicPartition
from tidelog.testing import Cluster

SESSION_MS = 6000
GROUP_SETTINGS = {
    **SETTINGS,
    "group.consumer.session.timeout.ms": SESSION_MS,
    "group.consumer.heartbeat.interval.ms": 2000,
}
CONVERGED_S = 5.0
PAUSES = 0.25
"""How often a broker is stopped for a while, with its connections open, instead of killed."""
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Size:
    """How large a storm is."""

    members: int
    """It begins with so many, and never has more."""
    partitions: int
    seconds: float


class Ledger:
    """What was written, what was processed, and whether what is committed was processed before."""

    def __init__(self) -> None:
        self.written: dict[int, int] = defaultdict(int)
        """How many records of each partition are acknowledged."""
        self.processed: dict[int, set[int]] = defaultdict(set)
        self.times = 0
        """How many records were processed, again and again included."""
        self.checked = 0
        self._complete: dict[int, int] = defaultdict(int)
        """Up to where everything was processed."""

    def complete(self, partition: int) -> int:
        """The first offset that nobody has processed."""
        at, done = self._complete[partition], self.processed[partition]
        while at in done:
            at += 1
        self._complete[partition] = at
        return at

    @property
    def missing(self) -> dict[int, int]:
        """Records that were acknowledged, and nobody has processed, by partition."""
        counts = {each: count - self.complete(each) for each, count in self.written.items()}
        return {each: count for each, count in counts.items() if count > 0}

    def check(self, committed: dict[TopicPartition, int]) -> None:
        """Nothing is committed that nobody has processed."""
        for name, offset in committed.items():
            assert offset <= self.complete(name.partition), (
                f"{name}: {offset} is committed, {self.complete(name.partition)} was not processed"
            )
        self.checked += len(committed)


class Member:
    """A process of the application, as a task with a client of its own."""

    def __init__(self, cluster: Cluster, ledger: Ledger, rng: Random) -> None:
        self._ledger = ledger
        self._rng = rng
        self._client: Client = cluster.client()
        self.consumer: Consumer | None = None
        self.failure: TidelogError | None = None
        self._stop = asyncio.Event()
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            async with (
                self._client as client,
                client.consumer(
                    "orders", group="g", auto_offset_reset="earliest", auto_commit_interval_ms=300
                ) as consumer,
            ):
                self.consumer = consumer
                while not self._stop.is_set():
                    await self._process(consumer)
        except TidelogError as error:
            self.failure = error

    async def _process(self, consumer: Consumer) -> None:
        """Some records, in one way or another; what is in hand when this process crashes was not processed."""
        found = await consumer.getmany(timeout=0.2, max_records=self._rng.randint(1, 50))
        await asyncio.sleep(self._rng.uniform(0, 0.02))
        for name, records in found.items():
            self._ledger.processed[name.partition].update(record.offset for record in records)
            self._ledger.times += len(records)

    async def leave(self) -> None:
        """Stop in order."""
        self._stop.set()
        await self.task

    async def crash(self) -> None:
        """Say nothing more to anybody."""
        self._client.connections.abort()
        for task in list(self._client._tasks):
            task.cancel()
        self.task.cancel()
        await asyncio.wait([self.task])

    @property
    def is_member(self) -> bool:
        return self.consumer is not None and self.consumer.state in {"stable", "revoking"}

    @property
    def is_stable(self) -> bool:
        return self.consumer is not None and self.consumer.state == "stable"


class Storm:
    """See the module."""

    def __init__(self, cluster: Cluster, size: Size, seed: int) -> None:
        self.cluster = cluster
        self.size = size
        self.seed = seed
        self.rng = Random(seed)
        self.ledger = Ledger()
        self.members: list[Member] = []
        self.joined = self.left = self.crashed = self.killed = self.paused = 0
        self.peak = 0
        """How many were members of the group at once, as they say themselves."""
        self.converged_s = -1.0
        """How long the group took to converge after the last change; -1: it has not."""
        self._writing = True

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {count}" for name, count in self.counts.items())
        return (
            f"seed {self.seed}: {counts}; at most {self.peak} at once, converged in {self.converged_s:.2f} s"
        )

    @property
    def counts(self) -> dict[str, int]:
        """What has happened, and how often."""
        return {
            "joined": self.joined,
            "left": self.left,
            "crashed": self.crashed,
            "killed": self.killed,
            "stopped": self.paused,
            "written": sum(self.ledger.written.values()),
            "processed": self.ledger.times,
            "checked": self.ledger.checked,
        }

    def join(self) -> None:
        assert len(self.members) < self.size.members, "it never has more"
        self.members.append(Member(self.cluster, self.ledger, Random(self.rng.random())))
        self.joined += 1

    async def leave(self) -> None:
        member = self.members.pop(self.rng.randrange(len(self.members)))
        self.left += 1
        await member.leave()
        assert member.failure is None, member.failure

    async def write(self, client: Client) -> None:
        async with client.producer(linger_ms=1) as producer:
            while self._writing:
                partition = self.rng.randrange(self.size.partitions)
                landed = await producer.send_many("orders", [b"v"] * 20, partition=partition)
                end = max(each.offset for each in landed) + 1
                self.ledger.written[partition] = max(end, self.ledger.written[partition])
                await asyncio.sleep(0.01)

    async def look(self, client: Client) -> None:
        """What is committed was processed: asked again and again."""
        while True:
            try:
                told = await client.admin.committed_offsets("g", timeout=5)
            except TidelogError:
                told = {}  # its coordinator has just died
            self.ledger.check({name: entry.offset for name, entry in told.items()})
            self.peak = max(self.peak, sum(each.is_member for each in self.members))
            await asyncio.sleep(0.2)

    async def kill(self, until_s: float) -> None:
        """Kill or stop one broker after the other, each when all are there."""
        loop = asyncio.get_running_loop()
        while loop.time() < until_s:
            victim = self.rng.randint(1, 3)
            if self.rng.random() < PAUSES:
                await self.cluster.pause(victim)
                self.paused += 1
                await asyncio.sleep(self.rng.uniform(1, 5))
                await self.cluster.resume(victim)
            else:
                await self.cluster.kill(victim)
                self.killed += 1
                await asyncio.sleep(self.rng.uniform(0.3, 2))
                await self.cluster.start(victim)
            await self.cluster.wait_ready()
            await asyncio.sleep(self.rng.uniform(1, 3))

    async def change(self, until_s: float) -> None:
        """Let members come, go and crash; the last crash is a session before the end."""
        loop = asyncio.get_running_loop()
        while loop.time() < until_s:
            await asyncio.sleep(self.rng.uniform(0.2, 20 / self.size.members))
            may_crash = loop.time() < until_s - SESSION_MS / 1000
            roll = self.rng.random()
            if len(self.members) < 2 or (roll < 0.6 and len(self.members) < self.size.members):
                self.join()
            elif roll < 0.88 or not may_crash:
                await self.leave()
            else:
                self.crashed += 1
                await self.members.pop(self.rng.randrange(len(self.members))).crash()

    async def converge(self) -> float:
        """How long it takes from now until everybody has a share, and nobody has another's."""
        began = asyncio.get_running_loop().time()
        await self.until(self._is_shared, "the group converges")
        return asyncio.get_running_loop().time() - began

    def _is_shared(self) -> bool:
        shares = [len(each.consumer.assignment()) if each.consumer else 0 for each in self.members]
        everybody = {name for each in self.members if each.consumer for name in each.consumer.assignment()}
        return (
            all(each.is_stable for each in self.members)
            and sum(shares) == len(everybody) == self.size.partitions
            and max(shares) - min(shares) <= 1
        )

    async def until(self, condition: object, what: str) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + PATIENCE_S
        while not condition():  # type: ignore[operator]
            for each in self.members:
                assert each.failure is None, f"{what}: {each.failure}"
            if loop.time() > end:
                raise AssertionError(f"waited {PATIENCE_S} s in vain: {what}: {await self.state()}")
            await asyncio.sleep(0.02)

    async def state(self) -> str:
        """What the members and their coordinator say of the group."""
        own = [
            f"{each.consumer.state} {sorted(name.partition for name in each.consumer.assignment())}"
            if each.consumer
            else f"not started: {each.task}"
            for each in self.members
        ]
        async with self.cluster.client() as client:
            (told,) = await client.admin.describe_groups("g")
        return f"members: {own}; coordinator: {told}; missing: {self.ledger.missing}"

    async def run(self) -> None:
        """All of it."""
        topic = NewTopic("orders", self.size.partitions, 3, {"min.insync.replicas": 2})
        async with self.cluster.client() as client:
            await client.admin.create_topics(topic)
            writing = asyncio.create_task(self.write(client))
            looking = asyncio.create_task(self.look(client))
            try:
                for _ in range(self.size.members):
                    self.join()
                await self.until(lambda: self.peak == self.size.members, "everybody is a member")
                end_s = asyncio.get_running_loop().time() + self.size.seconds
                await asyncio.gather(self.kill(end_s), self.change(end_s))
                if len(self.members) == self.size.members:
                    await self.leave()
                self.join()
                self.converged_s = await self.converge()
                self._writing = False
                await writing
                await self.until(lambda: not self.ledger.missing, "every record is processed")
                if looking.done():
                    await looking  # it has found something
                while self.members:
                    await self.leave()
            finally:
                looking.cancel()
                writing.cancel()
                await asyncio.gather(writing, looking, return_exceptions=True)
            told = await client.admin.committed_offsets("g")
        ends = {name.partition: entry.offset for name, entry in told.items()}
        assert ends == dict(self.ledger.written), "all that was processed is committed at the end"


async def storm(size: Size, seed: int, directory: Path | str) -> Storm:
    """A cluster's life; what did not hold is raised as an AssertionError."""
    async with Cluster(3, 1, processes=True, settings=GROUP_SETTINGS, directory=directory) as cluster:
        found = Storm(cluster, size, seed)
        await found.run()
    assert found.converged_s < CONVERGED_S, found
    assert found.killed + found.paused >= 2, found
    assert found.ledger.checked, found
    return found
