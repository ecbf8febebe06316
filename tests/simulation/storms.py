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
from typing import Any, TypeVar

from tests.simulation.cluster import BROKER_PORT, DEFAULTS, QUICK, Cluster
from tests.simulation.history import Address, History
from tests.simulation.probe import Poking, Probe
from tests.simulation.storm_faults import Faults
from tests.simulation.users import Operator, Reader, Writer
from tidelog.client.admin import NewTopic
from tidelog.protocol.batch import walk
from tidelog.protocol.errors import (
    DiskFull,
    FencedLeaderEpoch,
    NotLeaderOrFollower,
    UnknownLeaderEpoch,
)
from tidelog.protocol.records import decode
from tidelog.protocol.types import Epoch, Offset
from tidelog.replication.sessions import Place
from tidelog.testing.simulation.host import Host
from tidelog.testing.simulation.world import World

U = TypeVar("U")

TOPIC = "orders"
FENCED = (FencedLeaderEpoch, UnknownLeaderEpoch, NotLeaderOrFollower)
"""What is told to whom asks a broker which is no longer, or not yet, the one."""
CALM_S = 30.0
"""After the last fault everything has converged within this time."""


@dataclass(frozen=True, slots=True)
class Weather:
    """What a storm is made of."""

    seconds: float = 20.0
    partitions: int = 2
    producers: int = 2
    consumers: int = 1
    controllers: int = 0
    """How many; 0: as the seed has it."""
    config: tuple[tuple[str, str], ...] = ()
    """Settings of the topic."""
    defaults: bool = False
    """With the timeouts that users get, instead of some that are several times shorter."""
    probed_per_s: float = 6.0
    """How often a probe asks what no product's client would."""
    power_cuts: bool = True
    """Unflushed bytes are lost; with `flush.mode=async` at most one broker at a time may lose them."""


class Storm:
    """One seed's cluster, clients and faults."""

    look_every_s = 0.05
    """How often it looks whether all is well again: to look after each event costs as much as the event."""

    def __init__(self, world: World, weather: Weather) -> None:
        self.world = world
        self.rng = world.rng
        self.weather = weather
        world.network.conditions.cut_probability = (
            0.03  # a segment or a read: what it means has tests of its own
        )
        controllers = weather.controllers or self.rng.choice([1, 1, 3, 3, 5])
        self.cluster = self.make_cluster(controllers)
        for host in (*self.cluster.hosts.values(), *self.cluster.quorum.values()):
            host.disk.by_page = self.rng.random() < 0.3
            world.counts["disks that lose pages"] += host.disk.by_page
        oracle = self.cluster.oracle
        self.history = History(
            leads=self._address_of_leader,
            committed=oracle.end,
            begins=oracle.begins,
            deleted=oracle.deletion_acknowledged,
            now_s=lambda: world.now,
            lease_s=self.cluster.config["broker_session_timeout_ms"] / 1000,
        )
        self.deletions_per_s = self.rng.choice([0, 0.2, 0.5, 2])
        """How often somebody deletes records; in some storms nobody does."""
        self._stop = asyncio.Event()
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
            self.cluster.pass_time(self.rng.expovariate(1.5))
            self.faults.strike()
            if self.rng.random() < 0.1:
                self.cluster.compare()
        self.faults.heal()
        self._stop.set()
        self.cluster.pass_time(1)
        self.faults.start_the_halted()
        self._until(lambda: not any(user.alive for user in self.users), CALM_S)
        self._until(self.converged, CALM_S * (4 if self.weather.defaults else 1))
        self.account()

    def _until(self, condition: Callable[[], bool], seconds: float) -> None:
        self.cluster.until(condition, seconds, every_s=self.look_every_s)

    def create_topic(self) -> None:
        """A topic with three replicas everywhere."""
        operator = self._user(Operator, "admin")
        topic = NewTopic(TOPIC, self.weather.partitions, 3, dict(self.weather.config))
        # In one of three, preferred leaders get their partitions back while the storm lasts.
        often = {"leader.imbalance.check.interval.seconds": "1"} if self.world.seed % 3 == 0 else {}
        host = Host(operator.name, self.world)
        host.start(lambda _env: operator.create(topic, often))
        self._until(lambda: not host.alive and self.cluster.converged(), 30)

    def start_clients(self) -> None:
        """Who writes, who reads and who deletes, each on a host of its own, with the product's client; and a probe."""
        for number in range(self.weather.producers):
            writer = self._user(Writer, f"p{number}")
            self._start(writer.name, partial(writer.produce, TOPIC, self._stop))
        for number in range(self.weather.consumers):
            reader = self._user(Reader, f"r{number}")
            self._start(reader.name, partial(reader.consume, TOPIC, self._stop))
        if self.deletions_per_s:
            operator = self._user(Operator, "d0")
            self._start(operator.name, partial(operator.delete, TOPIC, self.deletions_per_s, self._stop))
        if self.weather.probed_per_s:
            poking = Poking(self._user(Probe, "q0"), TOPIC, self._stop, self._full_leaders)
            self._start("q0", partial(poking.run, self.weather.probed_per_s))

    def _user(self, kind: Callable[[str, list[Address], Random, History], U], name: str) -> U:
        brokers = [(host.machine.address, BROKER_PORT) for host in self.cluster.hosts.values()]
        return kind(name, brokers, Random(self.rng.getrandbits(64)), self.history)

    def _start(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        host = Host(name, self.world)
        host.start(lambda _env: work())
        self.users.append(host)

    def _full_leaders(self) -> list[tuple[Address, Place]]:
        low = {
            n
            for n, broker in self.cluster.brokers.items()
            if broker.serving and any(d.room.low for d in broker.data.all)
        }
        return [
            ((self.cluster.hosts[number].machine.address, BROKER_PORT), place)
            for (number, place), partition in self.cluster.replicas().items()
            if number in low and partition.leadership is not None
        ]

    def _address_of_leader(self, place: Place, epoch: Epoch) -> Address | None:
        life = self.cluster.oracle.leader(place, epoch)
        return (self.cluster.hosts[life[0]].machine.address, BROKER_PORT) if life is not None else None

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
        for broker in self.cluster.brokers.values():
            broker.observer.image.check()
        final, starts = {}, {}
        for place in self.cluster.oracle.committed:
            final[place] = records(self.cluster, place)
            starts[place] = self._begins(place)
        wrong = self.history.check(final, starts)
        assert not wrong, "\n".join(wrong[:10])
        self.world.counts["acknowledged"] += self.history.acknowledged
        self.world.counts["read"] += self.history.reads
        self.world.counts["deletions"] += self.history.deletions_told
        self.world.counts["fenced requests"] += sum(self.history.errors[error.name()] for error in FENCED)
        self.world.counts["refused for want of room"] += self.history.errors[DiskFull.name()]
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


def storm(world: World, weather: Weather | None = None) -> None:
    """The scenario of a seed, as `run_seed` takes it: every other one with a topic that is flushed in groups."""
    weather = weather or Weather()
    if world.seed % 2:
        weather = replace(weather, config=(*weather.config, ("flush.mode", "group")))
    Storm(world, weather).run()
