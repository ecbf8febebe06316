"""Three replicas that compact by themselves, one of them the leader: what was deleted stays deleted on all (C7, I-41).

The rule that a leader keeps is written here as replication will have it: who begins at the log's start is noted with
the floor of that moment; who ends below the floor and was not noted with it begins anew; a new leader has noted nobody.
"""

from dataclasses import dataclass, field
from random import Random

import pytest

from tests.storage.compacted import KEYS, Compacted, Written, values
from tidelog.testing.simulation.faults import Killed, PowerCut

THREE = range(3)


@dataclass
class Replicas:
    """A partition with three replicas; records count when two have them."""

    rng: Random
    keeps_floor: bool = True
    replicas: list[Compacted] = field(init=False)
    leader: int = 0
    truth: list[Written] = field(default_factory=list)
    noted: dict[int, int] = field(default_factory=dict)
    complete: set[int] = field(default_factory=lambda: set(THREE))
    """Those that are not copying afresh."""

    def __post_init__(self) -> None:
        self.replicas = [Compacted(Random(self.rng.randrange(1 << 30))) for _ in THREE]

    def ends(self) -> list[int]:
        return sorted(self.replicas[one].log.end_offset for one in self.complete)

    @property
    def committed(self) -> int:
        return self.ends()[-2] if len(self.complete) > 1 else 0

    def append(self) -> None:
        leads = self.replicas[self.leader]
        before = len(leads.records)
        leads.append(keys=self.rng.choices(KEYS[:7], k=self.rng.randrange(1, 4)), tombstones=0.5)
        self.truth += leads.records[before:]

    def fetch(self, one: int) -> None:
        mine, leads = self.replicas[one].log, self.replicas[self.leader].log
        at, floor = mine.end_offset, leads.purge_floor
        if one == self.leader or at == leads.end_offset:
            return
        taken = min(floor, 0)
        if at <= leads.log_start:
            self.noted[one] = taken = floor
        elif self.keeps_floor and at < floor and self.noted.get(one) != floor:
            self.complete.discard(one)
            mine.truncate_fully_and_start_at(leads.log_start)
            self.replicas[one].durable = leads.log_start
            return
        if taken > mine.purge_floor:
            mine.purge_floor = taken
            self.replicas[one].node.data.write_purge_floors().run()
        piece = leads.read(at, self.rng.choice([1, 300, 3000]))
        mine.append_as_follower(piece.data, 1 << 20, self.replicas[one].now_ms, gaps=floor >= 0)
        if mine.end_offset >= max(self.committed, floor):
            self.complete.add(one)

    def elect(self) -> None:
        able = [one for one in self.complete if self.replicas[one].log.end_offset >= self.committed]
        self.leader = self.rng.choice(able)
        self.noted.clear()
        leads = self.replicas[self.leader]
        epoch = max(replica.log.epochs.latest for replica in self.replicas) + 1
        leads.epoch = max(epoch, max(replica.epoch for replica in self.replicas) + 1)
        end = leads.log.end_offset
        self.truth = [record for record in self.truth if record.offset < end]
        leads.records, leads.heads = [], []
        leads.adopt()
        for replica in self.replicas:
            if replica.log.end_offset > end:
                replica.log.truncate_to(end, replica.now_ms)
                replica.durable = min(replica.durable, replica.log.end_offset)

    def compact(self, one: int) -> None:
        replica = self.replicas[one]
        replica.now_ms += self.rng.choice([400, 1500])
        replica.log.roll()
        replica.flush()
        replica.durable = min(self.committed, replica.log.end_offset)
        replica.compact(self.rng.choice([600, 100_000]))

    def crash(self, one: int) -> None:
        replica = self.replicas[one]
        replica.flush()
        replica.records = [Written(replica.log.end_offset - 1, None, None, 0)]
        replica.start(self.rng.choice([Killed, PowerCut]))
        if one == self.leader:
            self.noted.clear()

    def live(self, steps: int) -> None:
        away = -1
        for step in range(steps):
            if step % 60 == 0:  # one does not fetch for a while
                away = self.rng.choice([one for one in THREE if one != self.leader])
            one = self.rng.choice(THREE)
            what = self.rng.choices(["append", "fetch", "compact", "elect", "crash"], [6, 8, 5, 0.3, 0.5])[0]
            if what == "fetch" and one == away:
                continue
            if what in ("append", "elect"):
                getattr(self, what)()
            else:
                getattr(self, what)(one)
        self.check()

    def check(self) -> None:
        """When all have caught up, all know the same, and that is what was written."""
        for one in THREE:
            for _ in range(10_000):
                if self.replicas[one].log.end_offset == self.replicas[self.leader].log.end_offset:
                    break
                self.fetch(one)
            assert values(self.replicas[one].read()) == values(self.truth), (
                f"replica {one} knows something else"
            )


@pytest.mark.parametrize("first", range(0, 24, 6))
def test_replicas_that_compact_by_themselves_agree_on_what_was_deleted(first: int) -> None:
    for seed in range(first, first + 6):
        Replicas(Random(seed)).live(180)


def away_while_a_tombstone_goes(*, keeps_floor: bool) -> Replicas:
    """The third has the record, and not the tombstone, which the others do not have any more."""
    three = Replicas(Random(1), keeps_floor)
    leads = three.replicas[0]

    def write(key: bytes, tombstones: float, *followers: int) -> None:
        before = len(leads.records)
        leads.append(keys=[key], tombstones=tombstones)
        three.truth += leads.records[before:]
        for one in followers:
            while three.replicas[one].log.end_offset < leads.log.end_offset:
                three.fetch(one)

    write(b"a", 0, 1, 2)
    write(b"a", 1, 1)
    for _ in range(3):
        write(b"b", 0, 1)
        for _ in range(2):
            three.compact(0)
            leads.now_ms += 2000
    assert leads.log.purge_floor == 2
    return three


def test_a_replica_that_was_away_while_a_tombstone_went_begins_anew() -> None:
    three = away_while_a_tombstone_goes(keeps_floor=True)
    three.check()
    assert three.replicas[2].log.purge_floor == 2


def test_without_the_floor_it_would_keep_what_was_deleted() -> None:
    with pytest.raises(AssertionError, match="replica 2 knows something else"):
        away_while_a_tombstone_goes(keeps_floor=False).check()


def test_who_has_copied_gaps_in_the_middle_says_so_when_it_leads() -> None:
    """Its leader has purged no tombstone; whoever copies from it later has to believe the gaps."""
    three = Replicas(Random(1))
    leads = three.replicas[0]

    def write(key: bytes, times: int) -> None:
        before = len(leads.records)
        for _ in range(times):
            leads.append(keys=[key], tombstones=0)
        three.truth += leads.records[before:]

    write(b"a", 1)
    three.fetch(1)
    write(b"b", 60)
    leads.roll()
    leads.durable = leads.log.end_offset
    leads.compact()
    assert leads.log.purge_floor == 0
    while three.replicas[1].log.end_offset < leads.log.end_offset:
        three.fetch(1)
    three.replicas[1].start(Killed)
    assert three.replicas[1].log.purge_floor == 0
    three.leader = 1
    three.check()
