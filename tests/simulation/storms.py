"""Random faults over a cluster under load, and what must be true when they are over.

Each seed draws its own mixture and leaves some faults out: an even mixture hides bugs. The storm lasts for a
while; then everything heals, and within a bound all replicas must agree, every acknowledged record must be there
once, and what consumers read must be what is there.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from tests.simulation.clients import Client, History, consume, produce
from tests.simulation.cluster import BROKER_PORT, CONTROLLER_PORT, DEFAULTS, QUICK, Cluster
from tidelog.protocol.batch import walk
from tidelog.protocol.errors import (
    FencedLeaderEpoch,
    NotLeaderOrFollower,
    StaleBrokerEpoch,
    TidelogError,
    UnknownLeaderEpoch,
)
from tidelog.protocol.io import connect
from tidelog.protocol.messages import ConfigEntry, CreateTopics, CreateTopicsReply, NewTopic
from tidelog.protocol.records import decode
from tidelog.protocol.types import BrokerId
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
    config: tuple[tuple[str, str], ...] = ()
    """Settings of the topic."""
    defaults: bool = False
    """With the timeouts that users get, instead of some that are several times shorter."""
    power_cuts: bool = True
    """Unflushed bytes are lost; with `flush.mode=async` at most one broker at a time may lose them."""


class Storm:
    """One seed's cluster, clients and faults."""

    def __init__(self, world: World, weather: Weather) -> None:
        self.world = world
        self.rng = world.rng
        self.weather = weather
        self.cluster = Cluster(world, config=DEFAULTS if weather.defaults else QUICK)
        self.history = History(committed=self.cluster.oracle.end)
        self._dark: tuple[int, int] | None = None
        """The broker that lost power last, and in which of its lives."""
        self._stop = asyncio.Event()
        self._restarts: list[tuple[float, Callable[[], None]]] = []
        faults: dict[Callable[[], None], float] = {
            self.kill: 3,
            self.kill_leader: 3,
            self.pause: 2,
            self.cut: 2,
            self.cut_one_way: 2,
            self.kill_controller: 1,
            self.cut_off_controller: 1,
            self.kill_all: 0.3,
            self.cut_off_leader: 6,
        }
        if weather.power_cuts:
            faults[self.cut_power] = 1
            if ("flush.mode", "group") in weather.config:
                faults[self.cut_all_power] = 0.5
        self._faults = {fault: weight * self.rng.choice([0, 1, 1, 3]) for fault, weight in faults.items()}

    # ── the course of it ──────────────────────────────────────────────────────────────────────────

    def run(self) -> None:
        """The whole life: calm, storm, calm, and the account."""
        self.create_topic()
        self.start_clients()
        self.cluster.pass_time(1)
        end = self.world.now + self.weather.seconds
        while self.world.now < end:
            self.cluster.pass_time(self.rng.expovariate(1.2))
            self._bring_back()
            if any(self._faults.values()):
                self.world.chosen(self._faults)()
            if self.rng.random() < 0.1:
                self.cluster.compare()
        self.heal()
        self._stop.set()
        self.cluster.pass_time(1)
        self.cluster.until(self.cluster.converged, CALM_S * (4 if self.weather.defaults else 1))
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
        for number in range(self.weather.producers):
            name = f"p{number}"
            client = partial(Client, name, brokers, Random(self.rng.getrandbits(64)), self.history)
            Host(name, self.world).start(partial(_produce, client, self._stop, 1_000_000 * (number + 1)))
        for number in range(self.weather.consumers):
            name = f"r{number}"
            client = partial(Client, name, brokers, Random(self.rng.getrandbits(64)), self.history)
            Host(name, self.world).start(partial(_consume, client, self._stop))

    def heal(self) -> None:
        """The last fault is over."""
        self.world.network.heal()
        for _, back in self._restarts:
            back()
        self._restarts.clear()

    def account(self) -> None:
        """All replicas are the same; what was acknowledged is there; what was read is there."""
        self.cluster.compare()
        final = {}
        for place in self.cluster.oracle.committed:
            final[place] = records(self.cluster, place)
        wrong = self.history.check(final)
        assert not wrong, "\n".join(wrong[:10])
        self.world.counts["acknowledged"] += self.history.acknowledged
        self.world.counts["read"] += self.history.reads
        self.world.counts["fenced requests"] += sum(self.history.errors[str(code)] for code in FENCED)
        self.world.counts.update(self.cluster.oracle.counts)

    # ── faults ────────────────────────────────────────────────────────────────────────────────────

    def _later(self, seconds: float, back: Callable[[], None]) -> None:
        self._restarts.append((self.world.now + seconds, back))

    def _bring_back(self) -> None:
        due = [back for at, back in self._restarts if at <= self.world.now]
        self._restarts = [(at, back) for at, back in self._restarts if at > self.world.now]
        for back in due:
            back()

    def _start_again(self, number: int) -> None:
        if not self.cluster.hosts[number].alive:
            self.cluster.start(number)

    def kill(self) -> None:
        """SIGKILL for some broker."""
        alive = self.cluster.alive()
        if alive:
            self._kill(self.rng.choice(alive))

    def kill_leader(self) -> None:
        """SIGKILL for a broker that leads something."""
        leaders = sorted({n for (n, _), p in self.cluster.replicas().items() if p.leadership is not None})
        if leaders:
            self._kill(self.rng.choice(leaders))

    def _kill(self, number: int) -> None:
        self.world.counts["killed"] += 1
        self.cluster.hosts[number].kill()
        self._later(self.rng.uniform(0.05, 5), partial(self._start_again, number))

    def kill_all(self) -> None:
        """SIGKILL for every process of the cluster at once (I-24)."""
        self.world.counts["all killed"] += 1
        for number in self.cluster.alive():
            self._kill(number)
        self.kill_controller()

    def cut_power(self) -> None:
        """A broker's machine loses power, and what was not flushed: in `async` one at a time (I-25).

        The next one may only when the last one is in sync again everywhere.
        """
        if self._dark is not None and not self._in_sync(*self._dark):
            return
        number = self.rng.choice(sorted(self.cluster.hosts))
        self._dark = number, self.cluster.hosts[number].life
        self.world.counts["power cut"] += 1
        self.cluster.hosts[number].power_cut()
        self._later(self.rng.uniform(0.1, 4), partial(self._start_again, number))

    def cut_all_power(self) -> None:
        """Every machine loses power at once: in `group` nothing acknowledged may be lost (I-25)."""
        self.world.counts["all power cut"] += 1
        for number, host in self.cluster.hosts.items():
            host.power_cut()
            self._later(self.rng.uniform(0.1, 4), partial(self._start_again, number))
        self.cluster.controller.power_cut()
        self._later(self.rng.uniform(0.05, 3), self._start_controller)

    def cut_off_leader(self) -> None:
        """A leader and its followers do not reach each other, and clients still reach it: it fills up in vain."""
        leaders = sorted({n for (n, _), p in self.cluster.replicas().items() if p.leadership is not None})
        if leaders:
            self.world.counts["leader cut off"] += 1
            leader = self.cluster.hosts[self.rng.choice(leaders)]
            seconds = self.rng.uniform(1.8, 4.5)
            for other in (*self.cluster.hosts.values(), self.cluster.controller):
                if other is not leader:
                    self.world.network.partition(leader.name, other.name)
                    self._later(seconds, partial(self.world.network.heal, leader.name, other.name))

    def _in_sync(self, number: int, than: int) -> bool:
        """Whether a later life of that broker than this one is in every ISR."""
        broker = self.cluster.brokers.get(number)
        image = self.cluster.controllers[-1].working
        return (
            self.cluster.hosts[number].life > than
            and broker is not None
            and broker.serving
            and self.cluster.controller.alive
            and image.live_epoch(BrokerId(number)) == broker.replicas.around.my_epoch
            and all(number in state.isr for state in image.partitions.values())
        )

    def pause(self) -> None:
        """SIGSTOP, and SIGCONT some time later."""
        alive = self.cluster.alive()
        if alive:
            host = self.cluster.hosts[self.rng.choice(alive)]
            self.world.counts["paused"] += 1
            host.stop()
            self._later(self.rng.uniform(0.1, 5), host.resume)

    def _pair(self) -> tuple[Host, Host]:
        hosts = [*self.cluster.hosts.values(), self.cluster.controller]
        one, other = self.rng.sample(hosts, 2)
        return one, other

    def cut(self) -> None:
        """Two hosts do not reach each other for a while."""
        one, other = self._pair()
        self.world.counts["cut"] += 1
        self.world.network.partition(one.name, other.name)
        self._later(self.rng.uniform(0.1, 6), partial(self.world.network.heal, one.name, other.name))

    def cut_one_way(self) -> None:
        """One host does not reach another, which still reaches it."""
        one, other = self._pair()
        self.world.counts["cut one way"] += 1
        self.world.network.partition(one.name, other.name, both=False)
        self._later(self.rng.uniform(0.1, 6), partial(self.world.network.heal, one.name, other.name))

    def kill_controller(self) -> None:
        """SIGKILL for the controller."""
        if self.cluster.controller.alive:
            self.world.counts["controller killed"] += 1
            self.cluster.controller.kill()
            self._later(self.rng.uniform(0.05, 3), self._start_controller)

    def _start_controller(self) -> None:
        if not self.cluster.controller.alive:
            self.cluster.start_controller()

    def cut_off_controller(self) -> None:
        """Nobody reaches the controller for a while."""
        self.world.counts["controller cut off"] += 1
        for host in self.cluster.hosts.values():
            self.world.network.partition(host.name, self.cluster.controller.name)
            heal = partial(self.world.network.heal, host.name, self.cluster.controller.name)
            self._later(self.rng.uniform(0.1, 4), heal)


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


def storm(world: World, weather: Weather | None = None) -> None:
    """The scenario of a seed, as `run_seed` takes it: every other one with a topic that is flushed in groups."""
    weather = weather or Weather()
    if world.seed % 2:
        weather = replace(weather, config=(*weather.config, ("flush.mode", "group")))
    Storm(world, weather).run()
