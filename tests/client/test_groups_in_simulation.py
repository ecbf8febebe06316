"""The real consumer as a member of a group, in a simulated cluster whose brokers die: each seed is another history.

What applications see: a partition has one owner at a time, commits never go back, nothing is committed that nobody has
processed, every record is processed, and a group is even again soon after the last change.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest

from tests.client.simulated import Stage
from tests.client.test_groups import fill, member, shared, take
from tests.client.test_groups_in_hand import everything
from tidelog.client.admin import NewTopic
from tidelog.client.config import client_config
from tidelog.client.io.client import Client
from tidelog.client.io.consumer import Consumer
from tidelog.protocol.errors import (
    CoordinatorNotAvailable,
    FencedMemberEpoch,
    RequestTimedOut,
    TidelogError,
    UnreleasedInstanceId,
)
from tidelog.protocol.types import TopicPartition
from tidelog.testing.simulation.world import World

PARTITIONS = 6
RECORDS = 150
SEEDS = range(4)


class Application:
    """One member, its client and what it does with records."""

    def __init__(self, run: "Run", name: str) -> None:
        self.name = name
        self.run = run
        self.rng = Random(run.rng.getrandbits(32))
        self.client = run.client()
        self.stop = asyncio.Event()
        self.done = False
        self.failure: TidelogError | None = None
        self.consumer: Consumer | None = None
        self.in_hand: set[TopicPartition] = set()

    async def live(self) -> None:
        """Process until told to stop."""
        try:
            async with (
                self.client as client,
                client.consumer(
                    "orders",
                    group="g",
                    auto_offset_reset="earliest",
                    auto_commit_interval_ms=500,
                    session_timeout_ms=6000,
                    on_assigned=self.assigned,
                    on_revoked=self.revoked,
                    on_lost=self.gone,
                ) as consumer,
            ):
                self.consumer = consumer
                while not self.stop.is_set():
                    found = await consumer.getmany(timeout=0.2, max_records=self.rng.randint(1, 8))
                    self.in_hand = set(found)
                    await asyncio.sleep(self.rng.uniform(0, 0.1))
                    self.in_hand = set()
                    for name, records in found.items():
                        self.run.processed[name.partition].update(record.offset for record in records)
        except TidelogError as error:
            self.failure = error
        finally:
            self.done = True

    async def assigned(self, names: list[TopicPartition]) -> None:
        """It is the one owner of these."""
        for name in names:
            owner = self.run.owners.get(name)
            if owner is not None and owner.owns(name):
                self.run.wrong.append(f"{name} was given to {self.name}, and {owner.name} has it")
            self.run.owners[name] = self
        await asyncio.sleep(self.rng.uniform(0, 0.05))

    def revoked(self, names: list[TopicPartition]) -> None:
        """It is to give these up: nothing of them is in hand."""
        if taken := self.in_hand & set(names):
            self.run.wrong.append(f"{taken} were taken from {self.name}, which had not done with them")
        self.gone(names)

    def gone(self, names: list[TopicPartition]) -> None:
        """It is owner of these no more."""
        for name in names:
            if self.run.owners.get(name) is self:
                del self.run.owners[name]

    def owns(self, _name: TopicPartition) -> bool:
        """Whether it believes so, as far as it can know."""
        return not self.done and self.consumer is not None and self.consumer.state != "losing"


class Run:
    """One seed."""

    def __init__(self, world: World, seed: int) -> None:
        self.rng = Random(seed)
        self.stage = Stage(world)
        self.cluster = self.stage.cluster
        self.members: list[Application] = []
        self.owners: dict[TopicPartition, Application] = {}
        self.processed: dict[int, set[int]] = defaultdict(set)
        self.committed: dict[TopicPartition, int] = {}
        self.wrong: list[str] = []
        self.looked = 0
        self.stopping = False

    def client(self) -> Client:
        """A client whose chances are the seed's."""
        options = {"request_timeout_ms": 3000, "connect_timeout_ms": 1000}
        return Client(client_config(self.stage.bootstrap, options), Random(self.rng.getrandbits(32)))

    def join(self) -> None:
        member = Application(self, f"member-{len(self.members)}-{self.rng.randrange(1000)}")
        self.members.append(member)
        self.stage.host.spawn(member.live())

    def leave(self) -> None:
        member = self.members.pop(self.rng.randrange(len(self.members)))
        self.stage.host.spawn(self._stop(member))

    @staticmethod
    async def _stop(member: Application) -> None:
        member.stop.set()

    async def prepare(self, client: Client) -> None:
        """A topic with records."""
        await client.admin.create_topics(NewTopic("orders", PARTITIONS, 3, {"min.insync.replicas": 2}))
        async with client.producer() as producer:
            for index in range(PARTITIONS):
                await producer.send_many("orders", [b"v"] * RECORDS, partition=index)

    async def look(self) -> None:
        """What is committed: it never goes back, and was processed."""
        async with self.client() as client:
            while not self.stopping:
                try:
                    told = await client.admin.committed_offsets("g", timeout=3)
                except TidelogError:
                    continue
                for name, entry in told.items():
                    before = self.committed.get(name, 0)
                    if entry.offset < before:
                        self.wrong.append(f"{name}: {before} was committed, now it is {entry.offset}")
                    missing = set(range(entry.offset)) - self.processed[name.partition]
                    if missing:
                        self.wrong.append(
                            f"{name}: {entry.offset} is committed, {missing} were not processed"
                        )
                    self.committed[name] = entry.offset
                self.looked += 1
                await asyncio.sleep(0.1)

    def is_even(self) -> bool:
        """Whether everybody has a share, and nobody has another's."""
        shares = [set(each.consumer.assignment()) if each.consumer else set() for each in self.members]
        sizes = list(map(len, shares))
        stable = all(each.consumer is not None and each.consumer.state == "stable" for each in self.members)
        return (
            stable and sum(sizes) == len(set().union(*shares)) == PARTITIONS and max(sizes) - min(sizes) <= 1
        )

    def is_read(self) -> bool:
        """Whether every record was processed."""
        return all(len(self.processed[index]) == RECORDS for index in range(PARTITIONS))


@contextmanager
def running(seed: int) -> Iterator[Run]:
    with World(seed).running() as world:
        yield Run(world, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_members_of_a_group_whose_brokers_die_share_without_loss(seed: int) -> None:
    with running(seed) as run:
        cluster, rng = run.cluster, run.rng
        run.stage.run(run.prepare)
        for _ in range(3):
            run.join()
        run.stage.host.spawn(run.look())
        cluster.until(run.is_even, 20)
        for _ in range(3):
            victim = rng.choice(cluster.alive())
            cluster.hosts[victim].kill()
            if rng.random() < 0.6 or len(run.members) < 2:
                run.join()
            else:
                run.leave()
            cluster.pass_time(rng.uniform(0.2, 3))
            cluster.start(victim)
            cluster.pass_time(rng.uniform(0.5, 3))
        run.join()
        began = cluster.world.now
        cluster.until(run.is_even, 10)
        assert cluster.world.now - began < 5
        cluster.until(run.is_read, 60)
        assert [each.failure for each in run.members if each.failure] == []
        members = list(run.members)
        while run.members:
            run.leave()
        cluster.until(lambda: all(each.done for each in members), 20)
        cluster.until(lambda: sum(run.committed.values()) == PARTITIONS * RECORDS, 10)
        run.stopping = True
        cluster.pass_time(1)
        assert run.wrong == []
        assert run.looked > 10


class Reader:
    """An application that has chosen its partitions itself, and that ends and begins anew now and then."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.rng = Random(run.rng.getrandbits(32))
        self.done = False
        self.failures: list[TidelogError] = []

    async def live(self) -> None:
        """Process until all is read, in many lives."""
        async with self.run.client() as client:
            while not self.run.is_read():
                try:
                    await self.read(client)
                except TidelogError as error:
                    self.failures.append(error)
        self.done = True

    async def read(self, client: Client) -> None:
        """One life: it begins where the one before has committed."""
        consumer = client.consumer(group="g", auto_offset_reset="earliest", auto_commit_interval_ms=200)
        consumer.assign([("orders", index) for index in range(PARTITIONS)])
        async with consumer:
            for _ in range(self.rng.randint(5, 30)):
                found = await consumer.getmany(timeout=0.2, max_records=self.rng.randint(1, 30))
                await asyncio.sleep(self.rng.uniform(0, 0.05))
                for name, records in found.items():
                    self.run.processed[name.partition].update(record.offset for record in records)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_who_chooses_partitions_goes_on_where_it_was_though_brokers_die(seed: int) -> None:
    with running(seed) as run:
        cluster, rng, reader = run.cluster, run.rng, Reader(run)
        run.stage.run(run.prepare)
        run.stage.host.spawn(reader.live())
        run.stage.host.spawn(run.look())
        for _ in range(3):
            victim = rng.choice(cluster.alive())
            cluster.hosts[victim].kill()
            cluster.pass_time(rng.uniform(0.2, 3))
            cluster.start(victim)
            cluster.pass_time(rng.uniform(0.5, 3))
        cluster.until(lambda: reader.done, 60)
        cluster.until(lambda: sum(run.committed.values()) == PARTITIONS * RECORDS, 10)
        run.stopping = True
        cluster.pass_time(1)
        assert reader.failures == []
        assert run.wrong == []
        assert run.looked > 3


# ── what takes its time ───────────────────────────────────────────────────────────────────────────────

# In virtual time: a machine that gives a process no turn for a while has its time-outs end before any answer.


def test_a_group_that_cannot_be_joined_is_told_in_time_and_why() -> None:
    async def join(client: Client) -> float:
        await client.admin.create_topics(NewTopic("orders", replication_factor=1))
        consumer = client.consumer("orders", group="g", default_api_timeout_ms=700)
        began = world.now
        with pytest.raises(CoordinatorNotAvailable, match=r"could not be joined in 700 ms: .*factor"):
            await consumer.getone()
        seconds = world.now - began
        await consumer.close()
        return seconds

    with World(5).running() as world:
        stage = Stage(world, brokers=1, controllers=1)  # groups need three brokers there
        assert 0.699 <= stage.run(join) < 0.71


@pytest.fixture
def stage() -> Iterator[Stage]:
    """Three brokers, and a topic `orders` of four partitions with 50 records in each."""

    async def prepare(client: Client) -> None:
        await client.admin.create_topics(NewTopic("orders", partitions=4))
        await fill(client, 50)

    with World(5).running() as world:
        stage = Stage(world)
        stage.run(prepare)
        yield stage


def test_the_second_process_of_an_instance_is_told_and_the_first_one_goes_on(stage: Stage) -> None:
    async def live(client: Client) -> None:
        async with stage.client() as others, member(client, instance_id="one") as first:
            assert len(await take(first, 20)) == 20
            with pytest.raises(UnreleasedInstanceId, match="is alive, or was until"):
                async with member(others, instance_id="one", default_api_timeout_ms=1000):
                    pass
            assert len(await take(first, 180)) == 180
            assert first.state == "stable"
            [group] = await client.admin.describe_groups("g")
            assert [one.instance_id for one in group.members] == ["one"]

    stage.run(live)


def test_what_is_in_hand_for_too_long_is_read_again_and_nobody_is_put_out(stage: Stage) -> None:
    lost: list[list[TopicPartition]] = []

    async def live(client: Client) -> None:
        first = member(client, rebalance_timeout_ms=400, on_lost=lost.append)
        await everything(first)
        async with stage.client() as other, member(other) as second:
            await shared(first, second)
            assert (first.state, lost) == ("stable", [])
            seen = await take(second, 1)
            assert TopicPartition("orders", seen[0].partition) in second.assignment()
        with pytest.raises(FencedMemberEpoch, match="not this member's"):
            await first.commit({TopicPartition("nowhere", 0): 3})
        await first.close()

    stage.run(live)


def test_who_has_taken_its_time_and_then_listens_slowly_is_not_put_out(stage: Stage) -> None:
    given_s: list[float] = []
    lost: list[list[TopicPartition]] = []

    async def slow(_names: list[TopicPartition]) -> None:
        began_s = stage.world.now
        try:
            await asyncio.Event().wait()
        finally:
            given_s.append(stage.world.now - began_s)

    async def live(client: Client) -> None:
        first = member(client, rebalance_timeout_ms=2000, on_revoked=slow, on_lost=lost.append)
        await everything(first)
        async with stage.client() as other, member(other) as second:
            await shared(first, second)
            assert 0.199 <= given_s[0] < 0.21, "all of it together is less than the two seconds"
            assert lost == []
            with pytest.raises(RequestTimedOut, match="on_revoked has not returned in 200 ms"):
                await take(first, 1)
            await first.close()

    stage.run(live)
