"""The log of groups is compacted all the time while a group lives on it: whoever coordinates next loads what counts."""

from collections.abc import Callable, Iterator
from random import Random

import pytest

from tests.broker.test_groups_on_brokers import Play
from tests.rules.rule import Instead
from tests.simulation.cluster import BROKER_PORT
from tidelog.broker.coordinator import Coordinator, partition_of
from tidelog.broker.flusher import FlushSettings
from tidelog.broker.groups.records import GROUPS_TOPIC
from tidelog.broker.partition import Partition
from tidelog.broker.scrubbing import Scrubbing
from tidelog.broker.upkeep import UpkeepSettings
from tidelog.protocol.messages import (
    OffsetCommit,
    OffsetCommitReply,
    OffsetFetch,
    OffsetFetchReply,
    OffsetToCommit,
    PartitionIndex,
)
from tidelog.storage.compaction import Compactor
from tidelog.storage.config import LogConfig
from tidelog.testing.simulation.world import World

SEEDS = (0, 1, 15)
SMALL = {
    "log": LogConfig(segment_bytes=1024, index_interval_bytes=256, retention_ms=-1),
    "flush": FlushSettings(300, 4 << 10, 300, 1000),
    "upkeep": UpkeepSettings(check_interval_ms=200),
}
"""Segments that are full after a few commits, and looked at five times a second."""


def logs_of_groups(play: Play, broker: int) -> Iterator[Partition]:
    for partition in play.cluster.brokers[broker].replicas.partitions.values():
        if partition.name.topic == GROUPS_TOPIC:
            yield partition


def gaps(partition: Partition) -> int:
    """Offsets in sealed segments at which no record stands any more."""
    sealed = partition.log.segments[:-1]
    records = sum(header.record_count for each in sealed for _, header in each.headers_from(0))
    return sealed[-1].next_offset - partition.log.log_start - records if sealed else 0


def is_under_way(play: Play, broker: int) -> bool:
    return any(partition.log.compaction is not None for partition in logs_of_groups(play, broker))


QUIET = next(name for n in range(100) if partition_of(name := f"quiet-{n}", 4) == partition_of("g", 4))
"""A group that lies in the same log as the busy one."""


def commit_quietly(play: Play) -> None:
    """Ten commits, one over the other, of a group that says nothing more after that."""
    place = play.cluster.image.topic_ids["orders"], 0
    for offset in range(10):
        request = OffsetCommit(QUIET, (OffsetToCommit(*place, offset),))
        reply = play.ask(play.cluster.hosts[play.coordinator()], BROKER_PORT, request)
        assert isinstance(reply, OffsetCommitReply)
        assert not reply.error


def check_quiet(play: Play) -> None:
    place = play.cluster.image.topic_ids["orders"], 0
    request = OffsetFetch(QUIET, (PartitionIndex(*place),))
    reply = play.ask(play.cluster.hosts[play.coordinator()], BROKER_PORT, request)
    assert isinstance(reply, OffsetFetchReply)
    assert [each.offset for each in reply.partitions] == [9]


def coordinators_come_and_go(seed: int, turns: int = 3) -> None:
    """Each is killed, in the middle of a compaction where chance wants it so; the next one loads a log full of gaps."""
    rng = Random(seed)
    with World(seed).running() as world:
        play = Play(world, **SMALL)
        for name in "abc":
            play.join(name)
        play.until_content(20)
        commit_quietly(play)
        for turn in range(turns):
            play.cluster.pass_time(rng.uniform(1, 3))
            dead = play.coordinator()
            assert max(map(gaps, logs_of_groups(play, dead))) > 100, "what it coordinates is not compacted"
            if rng.random() < 0.7:
                play.cluster.until(lambda broker=dead: is_under_way(play, broker), 10)  # type: ignore[misc]
            play.cluster.hosts[dead].kill()
            play.cluster.pass_time(4)
            assert play.coordinator() != dead
            play.check_commits()
            check_quiet(play)
            play.cluster.start(dead)
            if turn % 2:
                play.join(f"turn-{turn}")
            play.cluster.pass_time(rng.uniform(1, 3))
        assert play.until_content(10) < 10
        play.check_commits()


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_group_loses_nothing_while_its_log_is_compacted_and_its_coordinators_die(seed: int) -> None:
    coordinators_come_and_go(seed)


# ── planted bugs ──────────────────────────────────────────────────────────────────────────────────────

BUGS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "the first record of a key stays": Instead(
        Compactor,
        "_judge_dirty_part",
        "for group in reversed(self._plan.groups) for source in reversed(group)",
        "for group in self._plan.groups for source in group",
    ),
    "a batch of which nothing stays is taken for the end": Instead(
        Coordinator,
        "_load_slice",
        "columns = decode(read.data, at)",
        "columns = decode(read.data, at)\n            if not len(columns.keys):\n                break",
        (("max(read.next_offset, held.next_offset) if len(read.data) else held.end", "held.end"),),
    ),
    "a segment is scrubbed while its name changes": Instead(
        Scrubbing, "_look", "if segment.stage:", "if False:"
    ),
}


FINDS = (7, 15)
"""The storms that found one of them last are tried first, and the one that ends soonest before the other."""


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_a_storm_finds_the_bug(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[bug](monkeypatch)
    for seed in (*FINDS, *range(10)):
        try:
            coordinators_come_and_go(seed, turns=3)
        except AssertionError:
            return
    pytest.fail(f"a dozen storms did not find: {bug}")
