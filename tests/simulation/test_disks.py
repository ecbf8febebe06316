"""Brokers with two disks each, of which one fails or is replaced: what lies on the other goes on (ADR 106)."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.cluster import with_config
from tests.simulation.directed import TOPIC, Town, deliver
from tests.simulation.invariants import Violation
from tidelog.broker.flusher import FlushSettings
from tidelog.broker.upkeep import UpkeepSettings
from tidelog.controller import liveness
from tidelog.controller.election import Loss
from tidelog.controller.image import BrokerState, PartitionState
from tidelog.protocol.messages import RegisterBroker
from tidelog.replication.sessions import Place
from tidelog.storage.crashes import CrashKind
from tidelog.storage.swap import Swap
from tidelog.testing.simulation.disk import SimulatedDisk
from tidelog.testing.simulation.world import World

OTHER = "clicks"


class TwoDisks(Town):
    """Each topic's partition lies on another disk: `orders` on the second one of each broker, `clicks` on the first."""

    def __init__(
        self, world: World, flush_mode: str = "async", *, config: dict[str, Any] | None = None, **topic: str
    ) -> None:
        super().__init__(world, config=config, disks=2, flush_mode=flush_mode, **topic)  # type: ignore[arg-type]  # settings
        self.clicks = self.make(OTHER)
        self.heard = 0
        for number, broker in self.cluster.brokers.items():
            where = {log.topic: broker.data.of(log) for log in broker.data.logs}
            assert where[TOPIC] is broker.data.all[1], number
            assert where[OTHER] is broker.data.first, number

    def click(self) -> None:
        """Ten more records in the other topic, acknowledged."""
        self.heard += 10
        self.do(lambda client: deliver(client, self.clicks, [b"click"] * 10, topic=OTHER))

    def leader_of(self, place: Place) -> int:
        return self.cluster.image.partitions[place].leader

    def isr_of(self, place: Place) -> tuple[int, ...]:
        return self.cluster.image.partitions[place].isr

    def second(self, number: int) -> SimulatedDisk:
        return self.cluster.hosts[number].more_disks[0]

    def takes_note(self, number: int) -> bool:
        return len(self.cluster.brokers[number].data.serving) == 1

    def replace_second(self, number: int) -> None:
        """Another disk, with nothing on it, and a start."""
        host = self.cluster.hosts[number]
        host.kill()
        host.more_disks.clear()
        host.add_disk()
        self.cluster.start(number)


def test_a_disk_that_dies_takes_only_what_lies_on_it(world: World) -> None:
    town = TwoDisks(world)
    town.produce(20)
    number = town.leader_of(town.place)
    town.second(number).broken = True
    town.produce(20)
    town.cluster.until(lambda: number not in town.isr_of(town.place), 10)
    assert town.leader_of(town.place) != number
    assert town.cluster.hosts[number].alive
    assert number in town.isr_of(town.clicks)
    town.click()
    broker = town.cluster.brokers[number]
    assert [each.offline is None for each in broker.replicas.partitions.values()].count(False) == 1
    assert town.read() == town.sent


def test_a_flush_that_fails_once_closes_the_directory_for_good(world: World) -> None:
    """Its disk seems to be well again: nothing there is believed until the next start."""
    town = TwoDisks(world, flush_mode="group")
    number = town.leader_of(town.place)
    town.second(number).fail_flush()
    town.produce(20)
    town.cluster.until(lambda: town.takes_note(number), 10)
    town.cluster.pass_time(5)
    assert town.cluster.brokers[number].replicas.partitions[town.place].offline is not None
    assert number not in town.isr_of(town.place)
    town.cluster.hosts[number].kill()
    town.cluster.start(number)
    town.converge()
    lives = [data.life.last_end for data in town.cluster.brokers[number].data.all]
    assert lives == [CrashKind.PROCESS, CrashKind.PROCESS]
    assert list(dict.fromkeys(town.read())) == town.sent, "whoever was refused has sent it once more"


def test_a_disk_that_dies_while_a_log_there_is_compacted_takes_only_what_lies_on_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not remove what the compaction has written, either."""
    town = TwoDisks(
        world,
        config=with_config(
            upkeep=UpkeepSettings(check_interval_ms=300), flush=FlushSettings(300, 64 << 10, 700, 300)
        ),
        cleanup_policy="compact",
        segment_bytes="1024",
        min_cleanable_dirty_ratio="0",
    )
    struck: list[int] = []
    commit = Swap.commit

    def dies(swap: Swap) -> None:
        number = next(n for n in town.cluster.hosts if town.partition(n).log is swap._log)
        if not struck:
            struck.append(number)
            town.second(number).broken = True
        commit(swap)

    monkeypatch.setattr(Swap, "commit", dies)
    for _ in range(10):
        town.do(lambda client: deliver(client, town.place, [b"v" * 100] * 2, [b"a", b"b"]))
    town.cluster.until(lambda: struck, 10)
    (number,) = struck
    town.cluster.until(lambda: number not in town.isr_of(town.place), 10)
    assert town.cluster.hosts[number].alive
    assert number in town.isr_of(town.clicks)
    town.click()


def test_the_first_disk_ends_the_process(world: World) -> None:
    town = TwoDisks(world)
    number = town.leader_of(town.place)
    town.cluster.hosts[number].disk.fail_flush()
    town.click()
    town.cluster.until(lambda: not town.cluster.hosts[number].alive, 10)
    assert town.cluster.hosts[number].exit_code == 70


def test_a_new_disk_gets_its_replicas_from_their_leaders(world: World) -> None:
    town = TwoDisks(world)
    town.produce(50)
    town.click()
    number = town.leader_of(town.place)
    town.second(number).broken = True
    town.cluster.until(lambda: town.takes_note(number), 10)
    town.produce(20)
    town.replace_second(number)
    town.converge()
    broker = town.cluster.brokers[number]
    assert broker.replicas.partitions[town.place].log.end_offset == 70
    assert broker.data.of(broker.replicas.partitions[town.place].name) is broker.data.all[1]
    assert town.read() == town.sent


@pytest.mark.parametrize("mode", ["async", "group"])
def test_a_replica_that_came_back_with_a_new_disk_is_never_elected_for_what_it_has_lost(
    world: World, mode: str
) -> None:
    """It was the last one in sync of what lay there; and it is still, of what lies on its other disk."""
    town = TwoDisks(world, flush_mode=mode)
    town.produce(20)
    town.click()
    keeper = town.leader_of(town.place)
    others = [number for number in town.cluster.hosts if number != keeper]
    for number in others:
        town.cluster.hosts[number].kill()
    for place in (town.place, town.clicks):
        town.cluster.until(lambda place=place: town.isr_of(place) == (keeper,), 20)  # type: ignore[misc]
    town.replace_second(keeper)
    town.cluster.until(lambda: town.leader_of(town.clicks) == keeper, 20)
    town.cluster.pass_time(5)
    state = town.cluster.image.partitions[town.place]
    assert keeper not in {state.leader, *state.isr, *state.elr}
    for number in others:
        town.cluster.start(number)
    town.converge()
    assert town.read() == town.sent


def test_a_disk_that_was_left_out_for_a_while_is_not_believed(world: World) -> None:
    town = TwoDisks(world)
    town.produce(20)
    number = town.leader_of(town.place)
    host = town.cluster.hosts[number]
    (left_out,) = host.more_disks
    host.kill()
    host.more_disks.clear()
    town.cluster.start(number)
    town.converge()
    town.produce(20)
    host.kill()
    host.more_disks.append(left_out)
    town.cluster.start(number)
    town.converge()
    broker = town.cluster.brokers[number]
    assert broker.data.of(broker.replicas.partitions[town.place].name) is broker.data.first
    assert len(broker.data.report.stray) == 1
    assert town.read() == town.sent


def test_an_orderly_stop_without_a_disk_that_has_failed_says_so_of_the_others(world: World) -> None:
    town = TwoDisks(world)
    town.produce(20)
    number = town.leader_of(town.place)
    town.second(number).broken = True
    town.cluster.until(lambda: town.takes_note(number), 10)
    town.cluster.stop(number)
    town.second(number).broken = False
    town.cluster.start(number)
    town.converge()
    ends = [data.life.last_end for data in town.cluster.brokers[number].data.all]
    assert ends == [CrashKind.CLEAN, CrashKind.PROCESS]
    assert town.read() == town.sent


# ── a storm ───────────────────────────────────────────────────────────────────────────────────────────


class Storm:
    """Random ends of disks, processes and machines; one disk at a time is lost for good, as min.insync.replicas allows."""

    def __init__(self, world: World) -> None:
        self.town = TwoDisks(world, flush_mode=world.rng.choice(["async", "group"]))
        self.rng = world.rng
        self.counts: Counter[str] = Counter()
        self.victim = 0

    def round(self) -> None:
        """A disk has a bad day, brokers come and go meanwhile, and in the end all are back."""
        town, rng = self.town, self.rng
        self.victim = victim = rng.choice([1, 2, 3])
        disk = town.second(victim)
        how = rng.choice(["flush fails", "dies", "dies and is replaced", "is left out"])
        self.counts[how] += 1
        if how == "flush fails":
            disk.fail_flush(rng.randrange(1, 6))
        else:
            disk.broken = True
        self.meanwhile()
        alone = rng.random() < 0.4
        for number in {1, 2, 3} - {victim} if alone else rng.sample([1, 2, 3], rng.randrange(3)):
            town.cluster.hosts[number].kill()
            self.counts["kills"] += 1
            if alone:  # whoever is left is the last one in sync, wherever it can be
                town.cluster.pass_time(rng.uniform(2, 5))
            elif rng.random() < 0.7:
                self.meanwhile()
                town.cluster.start(number) if number != victim else None
        self.counts["noticed"] += self.noticed(victim)
        host = town.cluster.hosts[victim]
        host.kill()
        disk.forget_flush_failures()
        disk.broken = False
        if how == "dies and is replaced":
            host.more_disks.clear()
            host.add_disk()
        elif how == "is left out":
            host.more_disks.clear()
            town.cluster.start(victim)
            town.cluster.pass_time(rng.uniform(0, 5))
            self.counts["started without it"] += town.cluster.brokers[victim].serving
            host.kill()
            host.more_disks.append(disk)
        if alone:
            self.counts["alone"] += 1
            town.cluster.start(victim)
            town.cluster.pass_time(rng.uniform(0, 5))
        for number, each in town.cluster.hosts.items():
            if not each.alive:
                town.cluster.start(number)
        town.converge(60)
        self.counts["set aside"] += len(town.cluster.brokers[victim].data.report.stray)

    def meanwhile(self) -> None:
        """Some time, in which it is produced where that is possible."""
        if self.rng.random() < 0.7 and len({*self.town.cluster.alive()} - {self.victim}) > 1:
            self.town.produce(10)
        self.town.cluster.pass_time(self.rng.uniform(0, 3))

    def noticed(self, number: int) -> bool:
        broker = self.town.cluster.brokers.get(number)
        return self.town.cluster.hosts[number].alive and broker is not None and len(broker.data.serving) == 1


def run_storm(seed: int) -> None:
    with World(seed).running() as world:
        storm = Storm(world)
        for _ in range(4):
            storm.town.produce(10)
            storm.round()
        storm.town.produce(10)
        assert list(dict.fromkeys(storm.town.read())) == storm.town.sent, storm.counts


def run_storms(seeds: Iterable[int]) -> None:
    for seed in seeds:
        run_storm(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_whatever_becomes_of_single_disks_nothing_that_was_acknowledged_is_lost(seed: int) -> None:
    run_storm(seed)


def test_a_controller_that_misses_no_disk_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    loss_of = liveness.loss_of

    def planted(
        known: BrokerState | None, request: RegisterBroker, gone: Collection[Place]
    ) -> Callable[[PartitionState], Loss | None]:
        there = tuple(disk.directory_id for disk in request.directories)
        return loss_of(replace(known, directories=there) if known is not None else None, request, gone)

    monkeypatch.setattr(liveness, "loss_of", planted)
    # Until the last one in sync gets a new disk, and comes back before the others: 66 is where it was seen last.
    with pytest.raises(Violation, match="LeaderCompleteness"):
        run_storms((66, *range(40, 100)))
