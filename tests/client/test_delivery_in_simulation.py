"""The real producer and consumer against a simulated cluster in which leaders die: what was acknowledged is there once.

Each seed is another history: who produces how, what fails when, and what the network does.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from tests.client.simulated import Stage
from tests.simulation.storm_faults import Faults
from tidelog.client.admin import NewTopic
from tidelog.client.config import client_config
from tidelog.client.io.client import Client
from tidelog.client.io.consumer import Consumer
from tidelog.client.io.producer import Delivery, Producer
from tidelog.client.options import ProducerConfig
from tidelog.protocol.errors import DeliveryError, TidelogError
from tidelog.testing.simulation.world import World

TOPIC = "orders"
PARTITIONS = 3


@dataclass
class History:
    """What was sent and what became of it, and what was read."""

    sent: dict[str, list[tuple[int, bytes]]] = field(default_factory=dict)
    """Each producer's records in order, with their partitions."""
    acknowledged: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    failed: Counter[str] = field(default_factory=Counter)
    read: dict[tuple[int, int], bytes] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def check(self, final: dict[int, dict[int, bytes]]) -> list[str]:
        """What contradicts the log that is there at the end."""
        wrong = list(self.wrong)
        for partition, log in final.items():
            times = Counter(log.values())
            wrong += [f"{value!r} is there {count} times" for value, count in times.items() if count > 1]
            places = {value: offset for offset, value in log.items()}
            for name, records in self.sent.items():
                mine = [places[value] for where, value in records if where == partition and value in places]
                if mine != sorted(mine):
                    wrong.append(f"what {name} sent to partition {partition} is out of order: {mine}")
        for value, (partition, offset) in self.acknowledged.items():
            log = final[partition]
            if (log.get(offset) != value) if offset >= 0 else (value not in log.values()):
                wrong.append(f"acknowledged {value!r} is not at {offset} of partition {partition}")
        for (partition, offset), value in self.read.items():
            if final[partition].get(offset) != value:
                wrong.append(f"{value!r} was read at {offset} of {partition} and is not there")
        return wrong


class Run:
    """One seed: a cluster, its faults, producers and a consumer."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = Random(seed)
        self.stage = Stage(world)
        self.history = History()
        self.stopping = False
        self.clients: list[Client] = []

    def client(self) -> Client:
        """A client whose chances are the seed's."""
        options = {"request_timeout_ms": 1500, "connect_timeout_ms": 1000}
        return Client(client_config(self.stage.bootstrap, options), Random(self.rng.getrandbits(32)))

    async def produce(self, name: str) -> None:
        """Send records in all ways that there are, until told to stop."""
        rng, sent = self.rng, self.history.sent.setdefault(name, [])
        async with self.client() as client:
            config = ProducerConfig(
                batch_size=150,
                linger_ms=rng.choice([0, 5, 50]),
                delivery_timeout_ms=rng.choice([2500, 6000]),
                request_timeout_ms=1200,
                buffer_memory=3000,
                max_in_flight=rng.choice([1, 3, 5]),
            )
            producer = Producer(client, config, wall_ms=lambda: int(self.world.now * 1000))
            under_way: list[tuple[bytes, Delivery]] = []
            while not self.stopping:
                partition = rng.randrange(PARTITIONS)
                values = [
                    b"%s:%06d" % (name.encode(), len(sent) + at) for at in range(rng.choice([1, 1, 5, 30]))
                ]
                if rng.random() < 0.3:
                    sent += [(partition, value) for value in values]
                    await self.send_many(producer, partition, values)
                else:
                    for value in values:
                        sent.append((partition, value))
                        under_way.append((value, await producer.enqueue(TOPIC, value, partition=partition)))
                if rng.random() < 0.3:
                    await self.settle(under_way)
                await asyncio.sleep(rng.expovariate(20))
            await self.settle(under_way)
            try:
                await producer.close(timeout=20)
            except DeliveryError as error:
                self.history.wrong.append(f"{name} was told at the end, not before: {error}")

    async def send_many(self, producer: Producer, partition: int, values: list[bytes]) -> None:
        """All at once; of what fails nothing is known."""
        try:
            landed = await producer.send_many(TOPIC, values, partition=partition)
        except TidelogError as error:
            self.history.failed[error.name()] += len(values)
            return
        for value, metadata in zip(values, landed, strict=True):
            self.history.acknowledged[value] = metadata.partition, metadata.offset

    async def settle(self, under_way: list[tuple[bytes, Delivery]]) -> None:
        """Wait for what became of these."""
        for value, delivery in under_way:
            try:
                metadata = await delivery
            except TidelogError as error:
                self.history.failed[error.name()] += 1
            else:
                self.history.acknowledged[value] = metadata.partition, metadata.offset
        under_way.clear()

    async def consume(self) -> None:
        """Read as it comes, in several ways; offsets follow one another."""
        history = self.history
        async with self.client() as client, client.consumer(TOPIC, auto_offset_reset="earliest") as consumer:
            following: dict[int, int] = {}
            while not self.stopping:
                for record in await self.some(consumer):
                    if record.offset != following.get(record.partition, 0):
                        before = following.get(record.partition)
                        history.wrong.append(
                            f"{record.partition}: {record.offset} was read, {before} follows"
                        )
                    following[record.partition] = record.offset + 1
                    assert record.value is not None
                    history.read[record.partition, record.offset] = record.value

    async def some(self, consumer: Consumer) -> list[Any]:
        """A few records, one way or another."""
        if self.rng.random() < 0.5:
            found = await consumer.getmany(timeout=0.2, max_records=self.rng.choice([1, 7, 500]))
            return [record for records in found.values() for record in records]
        try:
            async with asyncio.timeout(self.rng.choice([0.01, 0.3])):
                return [await consumer.getone()]
        except TimeoutError:
            return []

    async def everything(self) -> dict[int, dict[int, bytes]]:
        """All that is there at the end."""
        found: dict[int, dict[int, bytes]] = {index: {} for index in range(PARTITIONS)}
        async with self.client() as client, client.consumer(TOPIC, auto_offset_reset="earliest") as consumer:
            ends = await consumer.end_offsets(consumer.assignment())
            for name, end in ends.items():
                while await consumer.position(name) < end:
                    for records in (await consumer.getmany(timeout=1)).values():
                        found[records[0].partition] |= {each.offset: each.value or b"" for each in records}
        return found

    def go(self, seconds: float, harm: Callable[[], None], every_s: float) -> list[str]:
        """The whole history; what is wrong with it."""

        async def create() -> None:
            async with self.client() as client:
                new = NewTopic(TOPIC, partitions=PARTITIONS, replication_factor=3)
                await client.admin.create_topics(new)

        self.stage.do(create)
        done: list[str] = []
        for name in ("p1", "p2"):
            self.stage.host.spawn(self._until_done(name, self.produce(name), done))
        self.stage.host.spawn(self._until_done("c", self.consume(), done))
        end = self.world.now + seconds
        while self.world.now < end:
            self.stage.cluster.pass_time(every_s)
            harm()
        return done

    async def _until_done(self, name: str, work: Any, done: list[str]) -> None:
        try:
            await work
        finally:
            done.append(name)

    def finish(self, done: list[str]) -> None:
        """Everything is well again: let all end, read what is there, and compare."""
        self.stopping = True
        self.stage.cluster.until(lambda: len(done) == 3, 60)
        final = self.stage.do(self.everything, 60)
        assert self.history.check(final) == []
        assert self.history.acknowledged, self.history.failed
        assert self.history.read


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A world of that seed; errors that nobody caught fail the test."""
    with World(request.param).running() as world:
        yield world


@pytest.mark.slow
@pytest.mark.parametrize("world", range(1, 4), indirect=True)
def test_while_leaders_are_killed_what_is_acknowledged_is_there_once_and_in_order(world: World) -> None:
    run = Run(world, world.seed)
    killed: list[int] = []

    def kill_a_leader() -> None:
        for number in killed:
            run.stage.cluster.start(number)
        killed.clear()
        if world.rng.random() < 0.7:
            leaders = {
                int(state.leader)
                for state in run.stage.cluster.image.partitions.values()
                if state.leader != -1
            }
            if leaders:
                number = world.rng.choice(sorted(leaders))
                run.stage.cluster.hosts[number].kill()
                killed.append(number)

    done = run.go(15, kill_a_leader, 1.5)
    for number in killed:
        run.stage.cluster.start(number)
    run.finish(done)


@pytest.mark.slow
@pytest.mark.parametrize("world", range(11, 15), indirect=True)
def test_in_a_storm_what_is_acknowledged_is_there_once_and_in_order(world: World) -> None:
    run = Run(world, world.seed)
    faults = Faults(world, run.stage.cluster, power_cuts=False, grouped=False, forgive=lambda: None)

    def strike() -> None:
        faults.strike()
        for number in run.stage.cluster.hosts:
            world.network.heal(f"b{number}", "client")
            if world.rng.random() < 0.2:  # what the broker has written, it cannot tell
                world.network.partition(f"b{number}", "client", both=False)

    done = run.go(20, strike, 0.5)
    faults.heal()
    run.finish(done)
