"""Random faults over a cluster under load, and what must be true when they are over.

Each seed draws its own mixture and leaves some faults out: an even mixture hides bugs. The storm lasts for a
while; then everything heals, and within a bound all replicas must agree, every acknowledged record must be there
once, and what consumers read must be what is there.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

from tests.simulation.clients import Address, Client, History, consume, delete, produce
from tests.simulation.cluster import BROKER_PORT, CONTROLLER_PORT, DEFAULTS, QUICK, Cluster
from tests.simulation.storm_faults import Faults
from tests.simulation.users import Reader, Writer
from tidelog.protocol.batch import walk
from tidelog.protocol.errors import (
    DiskFull,
    FencedLeaderEpoch,
    NotLeaderOrFollower,
    StaleBrokerEpoch,
    TidelogError,
    UnknownLeaderEpoch,
)
from tidelog.protocol.io import connect
from tidelog.protocol.messages import ConfigEntry, CreateTopics, CreateTopicsReply, NewTopic
from tidelog.protocol.records import decode
from tidelog.protocol.types import Offset
from tidelog.replication.sessions import Place
from tidelog.testing.simulation.host import Environment, Host
from tidelog.testing.simulation.world import World

TOPIC = "orders"
FENCED = (FencedLeaderEpoch.code, UnknownLeaderEpoch.code, NotLeaderOrFollower.code, StaleBrokerEpoch.code)
"""What a client is told that asks a broker which is no longer, or not yet, the one."""
CALM_S = 30.0
"""After the last fault everything has converged within this time."""


@dataclass(frozen=True, slots=True)
class Weather:
    """What a storm is made of."""

    seconds: float = 20.0
    partitions: int = 2
    producers: int = 3
    consumers: int = 1
    controllers: int = 0
    """How many; 0: as the seed has it."""
    config: tuple[tuple[str, str], ...] = ()
    """Settings of the topic."""
    defaults: bool = False
    """With the timeouts that users get, instead of some that are several times shorter."""
    products: bool | None = None
    """Whether the product's own client writes and reads, or the small one of `clients`; None: as the seed has it."""
    power_cuts: bool = True
    """Unflushed bytes are lost; with `flush.mode=async` at most one broker at a time may lose them."""


class Storm:
    """One seed's cluster, clients and faults."""

    def __init__(self, world: World, weather: Weather) -> None:
        self.world = world
        self.rng = world.rng
        self.weather = weather
        controllers = weather.controllers or self.rng.choice([1, 3, 3, 3, 5])
        self.cluster = self.make_cluster(controllers)
        oracle = self.cluster.oracle
        self.history = History(
            committed=oracle.end,
            begins=oracle.begins,
            deleted=oracle.deletion_acknowledged,
            now_s=lambda: world.now,
            lease_s=self.cluster.config["broker_session_timeout_ms"] / 1000,
        )
        self.deletions_per_s = self.rng.choice([0, 0.2, 0.5, 2])
        """How often somebody deletes records; in some storms nobody does."""
        self._stop = asyncio.Event()
        self.products = world.seed % 4 >= 2 if weather.products is None else weather.products
        """Whether the product's own client is used: so each flush mode is met by both."""
        self.users: list[Host] = []
        """The hosts of its applications."""
        self.faults = self.make_faults()
        self.history.distrusted = self.faults.deletions_may_come_back

    def make_cluster(self, controllers: int) -> Cluster:
        """What the storm is over."""
        config = DEFAULTS if self.weather.defaults else QUICK
        return Cluster(self.world, controllers=controllers, config=config)

    def make_faults(self) -> Faults:
        """What it does."""
        return Faults(
            self.world,
            self.cluster,
            power_cuts=self.weather.power_cuts,
            grouped=("flush.mode", "group") in self.weather.config,
            forgive=self._forgive,
        )

    # ── the course of it ──────────────────────────────────────────────────────────────────────────

    def run(self) -> None:
        """The whole life: calm, storm, calm, and the account."""
        self.create_topic()
        self.start_clients()
        self.cluster.pass_time(1)
        end = self.world.now + self.weather.seconds
        while self.world.now < end:
            self.cluster.pass_time(self.rng.expovariate(1.2))
            self.faults.strike()
            if self.rng.random() < 0.1:
                self.cluster.compare()
        self.faults.heal()
        self._stop.set()
        self.cluster.pass_time(1)
        self.cluster.until(lambda: not any(user.alive for user in self.users), CALM_S)
        self.cluster.until(self.converged, CALM_S * (4 if self.weather.defaults else 1))
        self.account()

    def create_topic(self) -> None:
        """A topic with three replicas everywhere."""
        made: list[CreateTopicsReply] = []

        async def create(_env: Environment) -> None:
            while not made:
                try:
                    connection = await connect(self.cluster.controller.machine.address, CONTROLLER_PORT)
                    epoch = self.cluster.controllers[-1].epoch
                    topic = NewTopic(
                        TOPIC,
                        self.weather.partitions,
                        3,
                        configs=tuple(ConfigEntry(key, value) for key, value in self.weather.config),
                    )
                    reply, _ = await connection.call(CreateTopics((topic,), quorum_epoch=epoch))
                    assert isinstance(reply, CreateTopicsReply)
                    if not reply.error and not reply.topics[0].error:
                        made.append(reply)
                except TidelogError:
                    pass
                await asyncio.sleep(0.1)

        Host("admin", self.world).start(create)
        self.cluster.until(lambda: made and self.cluster.converged(), 30)

    def start_clients(self) -> None:
        """Producers and consumers, each on a host of its own."""
        brokers = [(host.machine.address, BROKER_PORT) for host in self.cluster.hosts.values()]
        if self.products:
            self._start_users(brokers)
        else:
            self._start_small_clients(brokers)
        if self.deletions_per_s:
            client = partial(Client, "d0", brokers, Random(self.rng.getrandbits(64)), self.history)
            Host("d0", self.world).start(partial(_delete, client, self._stop, self.deletions_per_s))

    def _start_users(self, brokers: list[Address]) -> None:
        for number in range(self.weather.producers):
            writer = Writer(f"p{number}", brokers, Random(self.rng.getrandbits(64)), self.history)
            self._start_user(writer.name, partial(writer.produce, TOPIC, self._stop))
        for number in range(self.weather.consumers):
            reader = Reader(f"r{number}", brokers, Random(self.rng.getrandbits(64)), self.history)
            self._start_user(reader.name, partial(reader.consume, TOPIC, self._stop))

    def _start_user(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        host = Host(name, self.world)
        host.start(lambda _env: work())
        self.users.append(host)

    def _start_small_clients(self, brokers: list[Address]) -> None:
        for number in range(self.weather.producers):
            name = f"p{number}"
            client = partial(Client, name, brokers, Random(self.rng.getrandbits(64)), self.history)
            Host(name, self.world).start(partial(_produce, client, self._stop, 1_000_000 * (number + 1)))
        for number in range(self.weather.consumers):
            name = f"r{number}"
            client = partial(Client, name, brokers, Random(self.rng.getrandbits(64)), self.history)
            Host(name, self.world).start(partial(_consume, client, self._stop))

    def converged(self) -> bool:
        """The replicas agree, and each has deleted what its leader has."""
        if not self.cluster.converged():
            return False
        replicas = self.cluster.replicas()
        begins = {place: p.log.log_start for (_, place), p in replicas.items() if p.leadership is not None}
        return all(p.log.log_start >= begins[place] for (_, place), p in replicas.items())

    def _forgive(self) -> None:
        """A disk has lost its log starts: what was deleted may come back."""
        self.history.forgive()
        self.cluster.oracle.forgive_deletions()

    def account(self) -> None:
        """All replicas are the same; what was acknowledged is there; what was read is there."""
        self.cluster.compare()
        final, starts = {}, {}
        for place in self.cluster.oracle.committed:
            final[place] = records(self.cluster, place)
            starts[place] = self._begins(place)
        wrong = self.history.check(final, starts)
        assert not wrong, "\n".join(wrong[:10])
        self.world.counts["acknowledged"] += self.history.acknowledged
        self.world.counts["read"] += self.history.reads
        self.world.counts["deletions"] += self.history.deletions_told
        self.world.counts["fenced requests"] += sum(self.history.errors[str(code)] for code in FENCED)
        self.world.counts["refused for want of room"] += self.history.errors[str(DiskFull.code)]
        self.world.counts.update(self.cluster.oracle.counts)

    def _begins(self, place: Place) -> Offset:
        """Below it records may be gone; every replica begins behind what was deleted, and none behind what was asked."""
        known, asked = self.cluster.oracle.committed[place], self.history.asked.get(place, 0)
        starts = {n: p.log.log_start for (n, at), p in self.cluster.replicas().items() if at == place}
        assert all(known.deleted <= start <= asked for start in starts.values()), (
            f"logs begin at {starts}: {known.deleted} was deleted, {asked} was asked for (I-76, I-77)"
        )
        return max([*starts.values(), *(end for _, end in known.unseen)])


def records(cluster: Cluster, place: Place) -> dict[int, bytes]:
    """Every committed record of a partition at the end, by offset."""
    found: dict[int, bytes] = {}
    for batch in cluster.oracle.committed[place].batches.values():
        for at, header in walk(batch):
            columns = decode(batch[at : at + header.size])
            for offset, value in zip(columns.offsets, columns.values, strict=True):
                assert value is not None
                found[offset] = value
    return found


async def _produce(
    client: Callable[[], Client], stop: asyncio.Event, first_id: int, _env: Environment
) -> None:
    await produce(client(), TOPIC, stop=stop, first_id=first_id)


async def _consume(client: Callable[[], Client], stop: asyncio.Event, _env: Environment) -> None:
    await consume(client(), TOPIC, stop=stop)


async def _delete(client: Callable[[], Client], stop: asyncio.Event, per_s: float, _env: Environment) -> None:
    await delete(client(), TOPIC, stop=stop, per_s=per_s)


def storm(world: World, weather: Weather | None = None) -> None:
    """The scenario of a seed, as `run_seed` takes it: every other one with a topic that is flushed in groups."""
    weather = weather or Weather()
    if world.seed % 2:
        weather = replace(weather, config=(*weather.config, ("flush.mode", "group")))
    Storm(world, weather).run()
