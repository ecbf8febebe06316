"""A storm in which disks rot: bits flip in closed segments of living replicas, one replica at a time.

The next bit flips when the last damage is healed and everybody is in sync again: so of every committed record there is
a good copy all the time. Bits flip below the recovery point only: what is above it a restart takes for a torn tail.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.simulation.cluster import Cluster, with_config
from tests.simulation.invariants import Committed, Life, Oracle, Violation
from tests.simulation.storm_faults import Faults
from tests.simulation.storms import Storm, Weather, storm
from tidelog.broker.flusher import FlushSettings
from tidelog.broker.partition import Partition
from tidelog.broker.scrubbing import ScrubSettings
from tidelog.protocol.errors import DamagedLog
from tidelog.protocol.types import Offset
from tidelog.replication.sessions import Place
from tidelog.storage.checkpoints import LEADER_EPOCHS
from tidelog.storage.log import Log
from tidelog.storage.producer_snapshots import SUFFIX
from tidelog.storage.scrubbing import Scrub
from tidelog.storage.segment import Segment
from tidelog.testing.simulation.world import World

SCRUBBED: dict[str, Any] = with_config(
    scrub=ScrubSettings(interval_ms=1000, bytes_s=1 << 20), flush=FlushSettings(300, 64 << 10, 700, 3000)
)


class TolerantOracle(Oracle):
    """Compares what can be read: what is damaged may be unreadable, and must not be wrong."""

    def compare(self, life: Life, place: Place, partition: Partition) -> None:
        try:
            super().compare(life, place, partition)
        except DamagedLog:
            self.counts["logs that could not be read whole"] += 1

    def _same_bytes(
        self, life: Life, partition: Partition, known: Committed, start: Offset, end: Offset
    ) -> None:
        try:
            super()._same_bytes(life, partition, known, start, end)
        except DamagedLog:
            self.counts["logs that could not be read whole"] += 1


class RottingCluster(Cluster):
    """A cluster that is scrubbed, and watched while it is mended."""

    kind_of_oracle = TolerantOracle

    def __init__(self, world: World, controllers: int = 1, config: dict[str, Any] | None = None) -> None:
        self._repairs: dict[tuple[Life, Place], int] = {}
        self._seen: set[Life] = set()
        super().__init__(world, controllers=controllers, config=config or SCRUBBED)

    def _look_at(self, number: int) -> None:
        """Who is cut for damage is nobody that the controllers count on, not even those that know most."""
        broker, host = self.brokers.get(number), self.hosts[number]
        if broker is not None and broker.serving and host.alive:
            if (number, host.life) not in self._seen:
                self._seen.add((number, host.life))
                found = broker.data.report.found.values()
                self.oracle.counts["logs cut at a start"] += sum(bool(log.damage) for log in found)
            for place, partition in broker.replicas.partitions.items():
                at = (number, host.life), place
                if partition.repairs > self._repairs.get(at, 0):
                    self._repairs[at] = partition.repairs
                    self.oracle.counts["logs mended"] += 1
                    self._nobody_counts_on(number, place, partition)
        super()._look_at(number)

    def _nobody_counts_on(self, number: int, place: Place, partition: Partition) -> None:
        state = self.image.partitions[place]
        if number in {*state.isr, *state.elr, state.leader}:
            raise Violation(f"RepairedOutside: {number} {partition} was cut for damage, and {state} holds")


def is_whole(log: Log) -> bool:
    """Whether every checksum of a log is right, seen from outside."""
    for segment in log.segments:
        scrub = Scrub(segment)
        while (wanted := scrub.wanted) is not None:
            for _ in scrub.check(segment.read_at(*wanted)):
                pass
        if scrub.problem is not None:
            return False
    return True


class Rot(Faults):
    """Processes and networks fail, and now and then a bit flips."""

    def __init__(self, world: World, cluster: Cluster, forgive: Callable[[], None]) -> None:
        super().__init__(world, cluster, power_cuts=False, grouped=False, forgive=forgive)
        self._harmed = 0
        for fault in (self.fill_disk, self.fill_disk_of_controller, self.cut_power_of_controller):
            self._faults.pop(fault, None)
        self._faults[self.rot] = 2 * sum(self._faults.values()) or 1

    def rot(self) -> None:
        """A bit flips, where nothing else is wrong."""
        if not self.is_healed():
            return
        rng, replicas = self.rng, self.cluster.replicas()
        found = [
            (number, partition, segment)
            for (number, _), partition in replicas.items()
            for segment in partition.log.segments[:-1]
            if partition.log.log_start < segment.next_offset <= partition.log.recovery_point
            and segment.next_offset <= partition.high_watermark
        ]
        if found:
            led = [each for each in found if each[1].leadership is not None]
            number, partition, segment = rng.choice(led if led and rng.random() < 0.5 else found)
            self.world.counts["bits flipped"] += 1
            self.world.counts["bits flipped at the leader"] += partition.leadership is not None
            self.harm(number, partition, segment)

    def harm(self, number: int, partition: Partition, segment: Segment) -> None:
        """Flip one, anywhere in that segment."""
        rng, path = self.rng, f"{partition.log.directory.path}/{segment.name}"
        self.cluster.hosts[number].disk.rot(path, rng.randrange(segment.size), rng.randrange(8))

    def is_healed(self) -> bool:
        """Whether every replica is there, in sync and whole."""
        replicas, states = self.cluster.replicas(), self.cluster.image.partitions
        return (
            bool(states)
            and len(replicas) == 3 * len(states)
            and all(set(state.isr) == set(state.replicas) for state in states.values())
            and all(each.damage is None and is_whole(each.log) for each in replicas.values())
        )


class RotBeforeStarts(Rot):
    """A bit flips in a head, and the next start reads it: the process ends, and what would spare it that is lost."""

    def harm(self, number: int, partition: Partition, segment: Segment) -> None:
        """Flip one, and start the broker anew."""
        rng, host, path = self.rng, self.cluster.hosts[number], partition.log.directory.path
        head = rng.choice([at for at, _ in segment.headers_from(0)])
        host.disk.rot(f"{path}/{segment.name}", head + rng.randrange(20), rng.randrange(8))
        host.kill()
        directory = host.disk.medium.directory_at(path)
        epochs_too = rng.random() < 0.7
        for name in list(directory.entries):
            if name.endswith(SUFFIX) or (name == LEADER_EPOCHS and epochs_too):
                host.disk.medium.change(directory, (name, None))
        self.cluster.start(number)


class RottingStorm(Storm):
    """One seed's cluster, clients and faults, with disks that rot."""

    def make_cluster(self, controllers: int) -> Cluster:
        return RottingCluster(self.world, controllers)

    rot: type[Rot] = Rot

    def make_faults(self) -> Faults:
        return self.rot(self.world, self.cluster, self._forgive)

    look_every_s = 0.2
    """It takes reading everything."""

    def converged(self) -> bool:
        """The replicas agree, and each is whole."""
        faults = self.faults
        assert isinstance(faults, Rot)
        return super().converged() and faults.is_healed()


def rotting_storm(world: World, weather: Weather | None = None) -> None:
    """The scenario of a seed."""
    weather = weather or Weather(power_cuts=False)
    RottingStorm(world, weather).run()


class StormBeforeStarts(RottingStorm):
    """The same, with rot that starts meet."""

    rot = RotBeforeStarts


def storm_before_starts(world: World, weather: Weather) -> None:
    """The scenario of a seed."""
    StormBeforeStarts(world, weather).run()


def rots(seed: int) -> bool:
    """Whether disks rot in the storm of that seed, where some do: every fifth."""
    return seed % 5 == 0


def storm_that_may_rot(world: World, weather: Weather) -> None:
    """The scenario of a seed: what rots has no power cuts as well, and is scrubbed more often than by default."""
    if rots(world.seed) and not weather.defaults:
        rotting_storm(world, replace(weather, power_cuts=False))
    else:
        storm(world, weather)
