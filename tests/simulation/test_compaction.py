"""Compacted topics in simulated clusters: what is deleted stays deleted, whoever was away, and nobody waits for it (I-41)."""

from collections import Counter
from typing import Any

import pytest

from tests.simulation.cluster import with_config
from tests.simulation.directed import Town, deliver
from tidelog.broker.fetcher import FetchSettings
from tidelog.broker.flusher import FlushSettings
from tidelog.broker.partition import Partition
from tidelog.broker.upkeep import UpkeepSettings
from tidelog.protocol.batch import walk
from tidelog.protocol.records import decode
from tidelog.storage.log import Log
from tidelog.testing.simulation.world import World

QUICK = {"flush": FlushSettings(300, 64 << 10, 300, 300), "upkeep": UpkeepSettings(check_interval_ms=300)}
"""Logs are durable and looked at several times a second."""
COMPACTED = {
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": "0",
    "delete_retention_ms": "2000",
    "segment_bytes": "1024",
    "file_delete_delay_ms": "0",
}


class Keyed(Town):
    """A compacted topic, and what its keys stand for by all that was acknowledged."""

    def __init__(self, world: World, *, config: dict[str, Any] | None = None, **topic: str) -> None:
        settings = {**COMPACTED, **topic}
        super().__init__(world, config=with_config(**{**QUICK, **(config or {})}), **settings)  # type: ignore[arg-type]  # settings
        self.known: dict[bytes, bytes] = {}

    def put(self, key: bytes, value: bytes | None) -> int:
        """This key has another value from now on, or none; the record's offset."""
        offset = self.do(lambda client: deliver(client, self.place, [value], [key]))
        self.known.pop(key, None)
        if value is not None:
            self.known[key] = value
        return offset

    def compact_and_purge(self, above: int) -> None:
        """Others are written, until whoever leads has dropped a tombstone above that offset."""
        for number in range(200):
            if self.partition(self.leader() or 0).log.purge_floor > above:
                return
            self.put(b"other", b"%d" % number + b"." * 100)
            self.cluster.pass_time(0.1)
        raise AssertionError("no tombstone goes")

    def check(self) -> None:
        """All replicas are in sync, and know what was acknowledged and nothing that was deleted."""
        self.converge()
        for number in self.cluster.alive():
            assert folded(self.partition(number).log) == self.known, f"broker {number} knows something else"


def folded(log: Log) -> dict[bytes, bytes]:
    """What the keys stand for by that log."""
    known: dict[bytes, bytes] = {}
    at = log.log_start
    while at < log.end_offset:
        piece = log.read(at, 1 << 20)
        for position, _ in walk(piece.data):
            columns = decode(piece.data, position)
            for key, value in zip(columns.keys, columns.values, strict=True):
                assert key is not None
                known.pop(key, None)
                if value is not None:
                    known[key] = value
        at = piece.next_offset
    return known


def left(log: Log) -> list[str]:
    """The files that have left that log and are still there."""
    return [name for name in log.directory.names() if name.endswith(".deleted")]


# ── who was away ──────────────────────────────────────────────────────────────────────────────────────


def test_who_was_away_while_a_tombstone_went_begins_anew_and_keeps_nothing_that_was_deleted(
    world: World,
) -> None:
    town = Keyed(world)
    town.put(b"k", b"v")
    town.converge()
    away = town.others()[0]
    town.cluster.hosts[away].kill()
    town.compact_and_purge(above=town.put(b"k", None))
    town.cluster.start(away)
    town.check()
    assert b"k" not in town.known
    assert town.partition(away).begun_anew == 1


@pytest.mark.slow
def test_who_begins_anew_comes_to_the_end_though_tombstones_go_faster_than_it_copies(world: World) -> None:
    quick = {
        "flush": FlushSettings(30, 1024, 30, 30),
        "upkeep": UpkeepSettings(check_interval_ms=50),
        "fetch": FetchSettings(max_wait_ms=500, timeout_ms=1000, partition_max_bytes=300),
    }
    town = Keyed(world, config=quick, delete_retention_ms="0")
    for number in range(300):
        town.put(b"%d" % number, b"v" * 100)
    town.converge()
    away = town.others()[0]
    town.cluster.hosts[away].kill()
    town.compact_and_purge(above=town.put(b"0", None))
    town.cluster.start(away)
    for number in range(1, 200):
        town.put(b"%d" % number, None)
        town.put(b"%d" % (number + 300), b"v" * 100)
    assert away in isr(town)
    assert town.partition(away).begun_anew == 1
    town.check()


def test_who_has_begun_anew_leads_with_the_floor_that_it_was_told(world: World) -> None:
    """It purged no tombstone itself, and has to send those away who may lack one."""
    town = Keyed(world, min_insync_replicas="1")
    town.put(b"k", b"v")
    town.converge()
    first, (second, third) = town.leader() or 0, town.others()
    for number in (second, third):
        town.cluster.hosts[number].kill()
    town.compact_and_purge(above=town.put(b"k", None))
    town.cluster.start(second)
    leads_instead(town, first, second)
    town.cluster.start(third)
    town.cluster.until(lambda: third in isr(town), 20)
    assert town.partition(third).begun_anew == 1
    town.cluster.start(first)
    town.check()


def test_who_has_copied_what_a_compaction_left_can_be_copied_from(world: World) -> None:
    """No tombstone went, so that nobody has to begin anew; offsets are missing all the same."""
    town = Keyed(world, min_insync_replicas="1")
    town.put(b"k", b"v")
    town.converge()
    first, (second, third) = town.leader() or 0, town.others()
    for number in (second, third):
        town.cluster.hosts[number].kill()
    for number in range(31):
        town.put(b"other", b"%d" % number)
    log = town.partition(first).log
    town.cluster.until(lambda: log.first_dirty == log.segments[-1].base_offset > 0, 10)
    assert log.purge_floor == 0
    town.cluster.start(second)
    leads_instead(town, first, second)
    newest = town.partition(second).log.segments[-1]
    assert newest.base_offset == 1, "its gaps are where it compacts nothing itself"
    town.cluster.start(third)
    town.cluster.until(lambda: third in isr(town), 20)
    town.cluster.start(first)
    town.check()


def isr(town: Town) -> tuple[int, ...]:
    return town.cluster.image.partitions[town.place].isr


def leads_instead(town: Town, first: int, second: int) -> None:
    """The second catches up, and then the first is killed."""
    town.cluster.until(lambda: second in isr(town), 20)
    town.cluster.hosts[first].kill()
    town.cluster.until(lambda: town.leader() == second, 20)


# ── beside all else ───────────────────────────────────────────────────────────────────────────────────


def test_what_is_old_goes_while_a_large_log_is_compacted(world: World) -> None:
    """Compaction may take hours; on a disk that fills, retention has to go on meanwhile."""
    town = Keyed(world, config={"upkeep": UpkeepSettings(check_interval_ms=300, compaction_bytes_s=10)})
    other = town.make("clicks", segment_bytes="1024", file_delete_delay_ms="0", retention_bytes="2000")
    for _ in range(20):
        town.put(b"k", b"v" * 100)
    leader = town.leader() or 0
    log = town.partition(leader).log
    town.cluster.until(lambda: log.compaction is not None, 10)
    for _ in range(50):
        town.do(lambda client: deliver(client, other, [b"x" * 100], topic="clicks"))
    clicks = [broker.replicas.partitions[other].log for broker in town.cluster.brokers.values()]
    town.cluster.until(lambda: max(each.size for each in clicks) < 5000, 10)
    town.cluster.until(lambda: not any(map(left, clicks)), 10)
    assert log.compaction is not None
    assert town.cluster.brokers[leader]._upkeep.compactions == 0


# ── storms ────────────────────────────────────────────────────────────────────────────────────────────

KEYS = [b"key %d" % number for number in range(30)]

STORMY = {"flush_mode": "group", "min_insync_replicas": "1", "delete_retention_ms": "300"}


def storm(seed: int, rounds: int = 12) -> Counter[str]:
    """Keys come, change and go; brokers do as well, one or two at a time; in the end all know the same."""
    counts: Counter[str] = Counter()
    with World(seed).running() as world:
        rng, town = world.rng, Keyed(world, **STORMY)  # type: ignore[arg-type]  # settings
        for _ in range(rounds):
            for _ in range(rng.randrange(5, 20)):
                deleted = rng.random() < 0.3
                town.put(rng.choice(KEYS), None if deleted else b"v" * rng.choice([1, 150]))
            town.cluster.pass_time(rng.uniform(0, 2))
            dark = [number for number, host in town.cluster.hosts.items() if not host.alive]
            for number in rng.sample([1, 2, 3], rng.choice([0, 1, 1, 2])):
                if number in dark:
                    town.cluster.start(number)
                elif len(town.cluster.alive()) > 1 and isr(town) != (number,):
                    count_copies(town, number, counts)
                    host = town.cluster.hosts[number]
                    rng.choice([host.kill, host.kill, host.power_cut])()
                    counts["ends"] += 1
        for number, host in town.cluster.hosts.items():
            if not host.alive:
                town.cluster.start(number)
        town.check()
        for number in town.cluster.alive():
            count_copies(town, number, counts)
    return counts


def count_copies(town: Keyed, number: int, counts: Counter[str]) -> None:
    """What has become of that broker's replica in this life."""
    broker = town.cluster.brokers.get(number)
    if broker is not None and broker.serving and town.place in broker.replicas.partitions:
        counts["compactions"] += broker._upkeep.compactions
        counts["copies begun anew"] += town.partition(number).begun_anew
        counts["purged"] += town.partition(number).log.purge_floor > 0


def storms(seeds: range) -> Counter[str]:
    return sum((storm(seed) for seed in seeds), Counter())


@pytest.mark.slow
@pytest.mark.parametrize("first", [1, 5])
def test_whoever_comes_and_goes_every_replica_ends_with_what_the_keys_stand_for(first: int) -> None:
    counts = storms(range(first, first + 4))
    assert counts["ends"] > 10
    assert counts["compactions"] > 60
    assert counts["copies begun anew"] > 5
    assert counts["purged"] > 15


# ── planted bugs ──────────────────────────────────────────────────────────────────────────────────────


def test_storms_find_out_who_tells_nobody_to_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """That a copy takes over what was purged is shown in `tests.rules`: storms make up for it by compacting copies."""
    monkeypatch.setattr(Partition, "_check_purged", lambda *_: None)
    with pytest.raises(AssertionError, match="knows something else"):
        storms(range(1, 10))
