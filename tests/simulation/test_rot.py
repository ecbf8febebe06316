"""Disks that rot under a cluster: what is damaged is found, handed over and mended, and nobody reads it (ADR 105).

Every fifth of the storms of test_storms.py lets disks rot.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from tests.simulation.invariants import Violation, pure_epochs
from tests.simulation.rotting import SCRUBBED, RottingCluster, is_whole, rotting_storm, storm_before_starts
from tests.simulation.stage import new_world
from tests.simulation.storms import Storm, Weather
from tests.storage.test_late_damage import rot_head
from tests.storage.test_recovery import filled
from tidelog.broker.partition import Partition
from tidelog.broker.scrubbing import ScrubSettings
from tidelog.protocol.errors import DamagedLog
from tidelog.protocol.types import BrokerId
from tidelog.storage.checkpoints import LEADER_EPOCHS
from tidelog.testing.simulation.seeds import run_seed

CALM = Weather(seconds=0, partitions=1, producers=1, consumers=1, controllers=1, power_cuts=False)


class Calm(Storm):
    """Clients, and nothing that goes wrong but what a test does."""

    settings: dict[str, Any] = SCRUBBED

    def make_cluster(self, controllers: int) -> RottingCluster:
        return RottingCluster(self.world, controllers, self.settings)

    @property
    def place(self) -> tuple[bytes, int]:
        (place,) = self.cluster.image.partitions
        return place

    def replica(self, number: int) -> Partition:
        return self.cluster.replicas()[number, self.place]

    @property
    def leader(self) -> int:
        return int(self.cluster.image.partitions[self.place].leader)

    def rot(self, number: int, segment: int = 0) -> None:
        """Flip a bit in the middle of a closed segment."""
        log = self.replica(number).log
        chosen = log.segments[segment]
        self.cluster.hosts[number].disk.rot(f"{log.directory.path}/{chosen.name}", chosen.size // 2, 3)

    def begin(self) -> None:
        """Write until every replica has some closed segments that are flushed."""
        self.create_topic()
        self.start_clients()
        self.cluster.until(
            lambda: all(
                each.log.recovery_point
                > each.log.segments[min(2, len(each.log.segments) - 1)].base_offset
                > 0
                for each in self.cluster.replicas().values()
            ),
            60,
        )

    def end(self) -> None:
        """All is well again, and what was acknowledged is there."""
        self._stop.set()
        self.cluster.until(self.is_well, 30)
        self.account()

    def is_well(self) -> bool:
        whole = all(is_whole(each.log) for each in self.cluster.replicas().values())
        return whole and self.cluster.converged()


@contextmanager
def calm(**scrub: Any) -> Iterator[Calm]:
    """A cluster of three brokers under load."""
    world = new_world()
    with world.running():
        storm = type(
            "Scrubbed", (Calm,), {"settings": {**SCRUBBED, "scrub": ScrubSettings(**scrub)}} if scrub else {}
        )
        stage = storm(world, CALM)
        stage.deletions_per_s = 0
        stage.begin()
        yield stage


def others(stage: Calm) -> list[int]:
    return [number for number in (1, 2, 3) if number != stage.leader]


# ── one bit ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_follower_that_rots_is_mended_from_its_leader() -> None:
    with calm() as stage:
        number, leader = others(stage)[0], stage.leader
        stage.rot(number)
        stage.cluster.until(lambda: stage.replica(number).repairs, 10)
        assert stage.leader == leader
        stage.end()
        assert is_whole(stage.replica(number).log)


def test_a_leader_that_rots_lets_another_lead_and_is_mended_as_its_follower() -> None:
    with calm() as stage:
        leader = stage.leader
        stage.rot(leader)
        stage.cluster.until(lambda: stage.leader != leader, 10)
        stage.cluster.until(lambda: stage.replica(leader).repairs, 10)
        stage.end()


def test_what_nobody_scrubs_is_found_by_who_reads_it() -> None:
    with calm(enable=False) as stage:
        leader = stage.leader
        stage.rot(leader)
        assert not is_whole(stage.replica(leader).log)
        stage.cluster.until(lambda: stage.replica(leader).repairs, 20)
        stage.end()


def test_a_round_reads_no_faster_than_it_may() -> None:
    with calm(bytes_s=2000, interval_ms=1) as stage:
        broker = stage.cluster.brokers[1]
        before, began = broker.scrubbing.scrubbed_bytes, stage.world.now
        stage.cluster.pass_time(20)
        read = broker.scrubbing.scrubbed_bytes - before
        assert 0 < read <= 2000 * (stage.world.now - began) + 4096


@pytest.mark.parametrize("leads", [True, False])
def test_what_only_the_next_start_reads_is_copied_anew_and_no_operator_helps(leads: bool) -> None:
    """An index has spared the head a look, and then somebody wants to know the epochs of all batches (ADR 12)."""
    with calm(enable=False) as stage:
        number = stage.leader if leads else others(stage)[0]
        log, host = stage.replica(number).log, stage.cluster.hosts[number]
        base = rot_head(host.disk, log, 0)
        host.kill()
        host.disk.medium.change(host.disk.medium.directory_at(log.directory.path), (LEADER_EPOCHS, None))
        stage.cluster.start(number)
        stage.cluster.until(lambda: (number, stage.place) in stage.cluster.replicas(), 10)
        (found,) = (each for each in stage.cluster.brokers[number].data.report.found.values() if each.damage)
        assert f"it ends at offset {base}, below its recovery point" in found.damage[1]
        stage.end()
        assert number in stage.cluster.image.partitions[stage.place].isr


# ── who has nobody to lean on ─────────────────────────────────────────────────────────────────────────


def alone(stage: Calm) -> int:
    """Kill the followers; the leader rots, and is the only one in sync."""
    leader = stage.leader
    for number in others(stage):
        stage.cluster.hosts[number].kill()
    stage.cluster.until(lambda: stage.cluster.image.partitions[stage.place].isr == (leader,), 20)
    stage.rot(leader)
    stage.cluster.until(lambda: stage.replica(leader).damage, 10)
    return leader


def test_who_is_alone_goes_on_leading_and_the_cluster_knows() -> None:
    with calm() as stage:
        leader = alone(stage)
        end = stage.replica(leader).log.end_offset
        stage.cluster.until(lambda: stage.cluster.image.brokers[BrokerId(leader)].damaged == {stage.place}, 5)
        stage.cluster.pass_time(5)
        assert stage.leader == leader
        assert stage.replica(leader).repairs == 0
        assert stage.replica(leader).log.end_offset >= end, "not one byte is given up"


def test_who_was_alone_hands_over_as_soon_as_another_who_has_everything_is_back() -> None:
    with calm() as stage:
        leader = alone(stage)
        for number in (1, 2, 3):
            if number != leader:
                stage.cluster.start(number)
        stage.cluster.until(lambda: stage.leader not in {leader, -1}, 20)
        stage.cluster.until(lambda: stage.replica(leader).repairs, 20)
        stage.cluster.until(lambda: not stage.cluster.image.brokers[BrokerId(leader)].damaged, 20)
        stage.end()


# ── who watches ───────────────────────────────────────────────────────────────────────────────────────


def test_a_batch_whose_reach_has_rotted_is_damage_and_no_wrong_epoch() -> None:
    """It stands below the log's start, and seems to reach beyond: its head cannot tell, its body's checksum can."""
    host = filled(40)
    log = host.log
    log.raise_log_start(log.epochs.entries[1].start + 2)
    pure_epochs((1, 1), log)
    segment = next(each for each in log.segments if each.next_offset > log.log_start)
    at = next(at for at, header in segment.headers_from(0) if header.leader_epoch == 0)
    host.disk.rot(f"{log.directory.path}/{segment.name}", at + 28, 4)  # its last_offset_delta
    with pytest.raises(DamagedLog, match="does not match its checksum"):
        pure_epochs((1, 1), log)


def test_an_epoch_that_no_batch_has_is_a_violation() -> None:
    log = filled(40).log
    log.epochs.assign(9, log.end_offset)
    with pytest.raises(Violation, match="PureEpochs"):
        pure_epochs((1, 1), log)


# ── storms ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_clusters_whose_disks_rot_come_through_short_storms() -> None:
    """As many as it takes: not every short storm has a moment in which a bit may flip."""
    flipped = 0
    for seed in range(8, 28):
        outcome = run_seed(partial(rotting_storm, weather=Weather(seconds=6, power_cuts=False)), seed)
        assert outcome.failure is None, outcome.failure
        flipped += outcome.counts.get("bits flipped", 0)
        if flipped > 1:
            break
    assert flipped > 1


@pytest.mark.slow
def test_starts_that_meet_rot_open_what_is_whole_and_lose_nothing() -> None:
    """As many as it takes for two that do: not in every short storm a bit flips where a start reads."""
    met = 0
    for seed in range(3, 23):
        outcome = run_seed(partial(storm_before_starts, weather=Weather(seconds=8, power_cuts=False)), seed)
        assert outcome.failure is None, outcome.failure
        met += outcome.counts["logs cut at a start"] > 0
        if met == 2:
            break
    assert met == 2
