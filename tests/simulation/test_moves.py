"""Partitions that are moved about by chance while brokers and controllers die: nothing is lost, everything arrives."""

import asyncio
from random import Random

import pytest

from tests.simulation.directed import TOPIC, read_all
from tests.simulation.probe import Probe
from tests.simulation.test_admin import Office
from tidelog.protocol.errors import TidelogError
from tidelog.protocol.messages import (
    AlterReassignments,
    ElectLeaders,
    PartitionMove,
    PartitionProduce,
    Produce,
    ProduceReply,
    Request,
)
from tidelog.protocol.records import encode
from tidelog.protocol.settings import CLUSTER, MOVE_RATE
from tidelog.protocol.types import BrokerId
from tidelog.replication.sessions import Place
from tidelog.testing.simulation.world import World

BROKERS = 5


class Removal:
    """Orders, deaths and records by chance; what was acknowledged is remembered."""

    def __init__(self, seed: int, world: World) -> None:
        self.rng = Random(seed)
        self.office = Office(world, brokers=BROKERS)
        mode = self.rng.choice(["async", "group"])
        self.places = self.office.create((1, 2, 3), (2, 3, 4), (5, 1, 4), flush_mode=mode)
        self.acknowledged: dict[Place, list[bytes]] = {place: [] for place in self.places}
        self.number = 0
        self.written = False
        self.dead_controller: int | None = None
        self.office.host.spawn(self.write(self.office.client))

    async def write(self, client: Probe) -> None:
        """One record after the other, each once: what is not acknowledged may be there or not."""
        rng = Random(self.number)
        while not self.written:
            place = rng.choice(self.places)
            self.number += 1
            value = b"%06d|" % self.number + b"x" * rng.choice([10, 200, 1500])
            batch = bytes(encode([value], now_ms=0))
            try:
                address = await client.leader(TOPIC, place)
                entry = PartitionProduce(*place, len(batch))
                reply, _ = await client.ask(address, Produce(-1, 1000, (entry,)), batch)
                assert isinstance(reply, ProduceReply)
                if not reply.partitions[0].error:
                    self.acknowledged[place].append(value)
                    await asyncio.sleep(0.02)
                    continue
            except TidelogError:
                pass
            await client.trouble(TOPIC, place)

    def order(self, request: Request) -> None:
        """Give an order; what becomes of it is seen later."""

        async def giving() -> None:
            try:
                client = self.office.client
                alive = self.office.cluster.alive()
                if alive:
                    await client.ask(self.office.addresses[self.rng.choice(alive)], request)
            except TidelogError:
                pass

        self.office.host.spawn(giving())

    def move(self) -> None:
        place = self.rng.choice(self.places)
        count = self.rng.choice([1, 2, 2, 3, 3, 3])
        target = tuple(map(BrokerId, self.rng.sample(range(1, BROKERS + 1), count)))
        cancels = self.rng.random() < 0.2
        rate = self.rng.choice([None, 0, 3000, 50_000])
        move = PartitionMove(*place, None if cancels else target)
        self.order(AlterReassignments((move,), throttle_bytes_s=rate, timeout_ms=2000))

    def kill_or_start(self) -> None:
        cluster = self.office.cluster
        number = self.rng.randint(1, BROKERS)
        if cluster.hosts[number].alive:
            cluster.hosts[number].kill()
        else:
            cluster.start(number)

    def kill_or_start_controller(self) -> None:
        cluster = self.office.cluster
        if self.dead_controller is not None:
            cluster.start_controller(self.dead_controller)
            self.dead_controller = None
        elif cluster.active is not None:
            self.dead_controller = cluster.active[0]
            cluster.quorum[self.dead_controller].kill()

    def storm(self, steps: int) -> None:
        for _ in range(steps):
            [what] = self.rng.choices(
                [self.move, self.kill_or_start, self.kill_or_start_controller, self.elect], [6, 3, 1, 1]
            )
            what()
            self.office.cluster.pass_time(self.rng.expovariate(1.5))

    def elect(self) -> None:
        self.order(ElectLeaders(timeout_ms=2000))

    def calm(self) -> None:
        """Everybody is alive, and every move ends."""
        self.written = True
        cluster = self.office.cluster
        if self.dead_controller is not None:
            self.kill_or_start_controller()
        for number, host in cluster.hosts.items():
            if not host.alive:
                cluster.start(number)
        while (CLUSTER, "", MOVE_RATE) in cluster.image.configs:
            self.order(AlterReassignments((), throttle_bytes_s=0, timeout_ms=2000))
            cluster.pass_time(1)
        cluster.until(self.arrived, 120)

    def arrived(self) -> bool:
        cluster = self.office.cluster
        return (
            cluster.active is not None and self.office.all_alive() and all(map(self.is_settled, self.places))
        )

    def is_settled(self, place: Place) -> bool:
        state = self.office.state(place)
        return (
            not state.adding
            and not state.removing
            and set(state.isr) == set(state.replicas)
            and self.office.keeps(place) >= set(state.replicas)
        )

    def directories_agree(self) -> bool:
        """Whether exactly those have a partition's directory that keep it; what was set aside has another name."""
        return all(
            (f"{TOPIC}-{place[1]}" in broker.data.first.directory.names())
            == (number in self.office.state(place).replicas)
            for place in self.places
            for number, broker in self.office.cluster.brokers.items()
        )

    def check(self) -> None:
        """Nothing that was acknowledged is lost, doubled or out of order, and who was left keeps nothing."""
        self.office.cluster.until(self.directories_agree, 5)
        self.office.cluster.until(self.office.cluster.converged, 10)
        self.office.cluster.compare()
        for place in self.places:
            found = self.office.do(lambda client, place=place: read_all(client, place))  # type: ignore[misc]
            assert len(set(found)) == len(found)
            kept = set(found)
            lost = [value for value in self.acknowledged[place] if value not in kept]
            assert not lost, f"{len(lost)} of {len(self.acknowledged[place])} were acknowledged and are lost"
            assert [value for value in found if value in set(self.acknowledged[place])] == self.acknowledged[
                place
            ]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_what_is_moved_about_arrives_and_nothing_is_lost(seed: int) -> None:
    with World(seed).running() as world:
        removal = Removal(seed, world)
        removal.storm(40)
        removal.calm()
        removal.check()
