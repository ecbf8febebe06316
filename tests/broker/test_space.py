"""A broker whose disk has too little room: what it refuses, what goes on, and whom it asks to lead (ADR 103)."""

import asyncio
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from tests.broker.node import PLACE, TOPIC_ID, Node, records
from tests.broker.test_produce import fill_the_disk
from tests.protocol.io.peers import until
from tidelog.broker.flusher import BATCHES_MAX, Flusher, FlushSettings
from tidelog.broker.space import LOOK_BYTES, look_at
from tidelog.broker.upkeep import Upkeep, UpkeepSettings
from tidelog.protocol.errors import DiskFull, NotLeaderOrFollower, OutOfOrderSequenceNumber
from tidelog.protocol.records import encode
from tidelog.protocol.types import TopicPartition
from tidelog.storage.cleaning import Plan, Said
from tidelog.storage.config import LogConfig
from tidelog.storage.files import Directory
from tidelog.storage.flushing import SEGMENTS_AT_ONCE, Flush
from tidelog.storage.log import Log
from tidelog.storage.log_compaction import CompactsElsewhere
from tidelog.storage.reserve import Reserve
from tidelog.storage.retention import remove


@pytest.fixture
def node() -> Node:
    node = Node()
    node.lead()
    return node


def low(node: Node) -> None:
    """Its disk is."""
    node.partition.room.min_free = 1000
    node.partition.room.look(10)


def test_below_the_mark_records_are_refused_with_the_way_out(node: Node) -> None:
    node.fill(2)
    low(node)
    asked = node.produce()
    assert asked.error == DiskFull.code
    assert "10 bytes free, records are taken again from 1500 on: make room" in asked.entry.message
    assert node.partition.log.end_offset == 2


def test_who_does_not_lead_says_so_first(node: Node) -> None:
    low(node)
    node.follow(2)
    assert node.produce().error == NotLeaderOrFollower.code


def test_a_retry_of_what_is_there_is_answered_and_what_it_may_not_be_is_said(node: Node) -> None:
    first = bytes(records(1, producer_id=7, producer_epoch=0, base_sequence=0))
    node.produce(first)
    node.fetched(2, 1)
    node.fetched(3, 1)
    low(node)
    again = node.produce(first)
    node.fetched(2, 1)
    node.turn()
    assert (again.error, again.entry.base_offset) == (0, 0)
    assert (
        node.produce(bytes(records(1, producer_id=7, producer_epoch=0, base_sequence=1))).error
        == DiskFull.code
    )
    wrong = node.produce(bytes(records(1, producer_id=7, producer_epoch=0, base_sequence=9)))
    assert wrong.error == OutOfOrderSequenceNumber.code


def test_a_retry_of_what_is_there_is_answered_also_when_another_batch_did_not_fit(node: Node) -> None:
    first, second = (bytes(records(1, producer_id=7, producer_epoch=0, base_sequence=n)) for n in (0, 1))
    node.produce(first)
    node.fetched(2, 1)
    node.fetched(3, 1)
    fill_the_disk(node)
    assert node.produce(second).error == DiskFull.code
    assert node.partition.log.is_full
    low(node)
    again = node.produce(first)
    assert (again.error, again.entry.base_offset) == (0, 0)
    assert node.produce(second).error == DiskFull.code


def test_groups_commits_go_on_so_that_whoever_reads_goes_on(node: Node) -> None:
    low(node)
    node.partition.name = TopicPartition("__consumer_offsets", 0)
    node.partition.produce(records(), -1, -1, now_ms=node.now_ms, wall_ms=node.now_ms)
    assert node.partition.log.end_offset == 1


def test_others_are_asked_to_lead_only_where_somebody_is_in_sync(node: Node) -> None:
    assert (node.replicas.low_space, node.replicas.unwritable()) == (False, [])
    low(node)
    assert node.replicas.low_space
    assert node.replicas.unwritable() == [node.partition.state.place]  # type: ignore[union-attr]
    node.adopt(isr=(1,))
    assert node.replicas.unwritable() == []
    node.follow(2)
    assert (node.replicas.low_space, node.replicas.unwritable()) == (True, [])


def flusher(node: Node, told: list[bool], min_free: int) -> Flusher:
    return Flusher(
        node.replicas,
        node.context.clocks,
        FlushSettings(min_free_bytes=min_free),
        flushed=lambda _: None,
        room_changed=lambda: told.append(node.partition.room.low),
    )


async def test_a_disk_that_fills_fast_is_looked_at_before_the_second_is_over(node: Node) -> None:
    told: list[bool] = []
    looking = flusher(node, told, 1000)
    node.disk.capacity = node.disk.medium.used + 999
    looking.appended(node.partition, LOOK_BYTES - 1)
    assert told == []
    looking.appended(node.partition, 1)
    assert told == [True]
    node.disk.capacity = 1 << 40
    looking.appended(node.partition, LOOK_BYTES)
    assert told == [True, False]


async def test_what_did_not_fit_is_low_space_until_it_is_tried_again(node: Node) -> None:
    told: list[bool] = []
    looking = flusher(node, told, 0)
    node.disk.capacity = node.disk.medium.used + 10
    assert node.produce().error == DiskFull.code
    looking.appended(node.partition, LOOK_BYTES)
    assert told == [True]
    node.disk.capacity = 1 << 40
    looking.appended(node.partition, LOOK_BYTES)
    assert told == [True], "no log has been written to since"
    node.replicas.probe(node.now_ms, node.now_ms)
    looking.appended(node.partition, LOOK_BYTES)
    assert told == [True, False]


def test_a_log_that_is_full_and_offline_keeps_nobody_else_from_writing_when_there_is_room() -> None:
    node, other = Node(), (b"orders---orders-", 1)
    node.lead()
    node.lead(place=other)
    node.disk.capacity = node.disk.medium.used + 10
    assert node.produce().error == DiskFull.code
    node.partition.go_offline("one block of it cannot be read")
    node.disk.capacity = 1 << 40
    node.replicas.probe(node.now_ms, node.now_ms)
    look_at(node.data, 0)
    assert not node.data.room.low
    assert node.produce(place=other, acks=1).error == 0


async def test_what_could_be_made_at_last_is_told_to_those_who_copy_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidelog.broker.flusher._PROBE_S", 0.001)
    node = Node()
    node.disk.capacity = 0
    node.follow(2)
    assert PLACE in node.replicas.missing
    told: list[object] = []
    looking = Flusher(
        node.replicas,
        node.context.clocks,
        FlushSettings(min_free_bytes=0),
        flushed=lambda _: None,
        hosted=told.append,
        adopted=lambda: told.append("adopted"),
    )
    task = asyncio.create_task(looking.probe())
    node.disk.capacity = 1 << 40
    await until(lambda: "adopted" in told, "they are told")
    task.cancel()
    assert told == [node.partition, "adopted"]


# ── flushes ───────────────────────────────────────────────────────────────────────────────────────────


async def test_a_log_of_very_many_segments_is_flushed_to_its_end() -> None:
    """A flush takes the oldest of them; nothing more may come that would ask for another one."""
    node = Node(config=LogConfig(segment_bytes=1024))
    node.lead(flush_group=True)
    flushing = Flusher(node.replicas, node.context.clocks, FlushSettings(), flushed=lambda _: None)
    for _ in range(200):
        node.produce(bytes(encode([b"x" * 300], [b"k"], now_ms=0)), acks=1)
    assert len(node.partition.log.segments) > 2 * SEGMENTS_AT_ONCE
    task = asyncio.create_task(flushing.run())
    flushing.appended(node.partition, 1)
    log = node.partition.log
    await until(lambda: log.durable_offset == log.end_offset, "all of it is durable")
    flushing.stop()
    await task


async def test_so_many_batches_are_flushed_however_small_they_are() -> None:
    """A restart looks at each: a tail of 64 MiB of single records would take it seconds."""
    node = Node()
    node.lead()
    flushing = Flusher(node.replicas, node.context.clocks, FlushSettings(), flushed=lambda _: None)
    node.produce(bytes(encode([b"x"], [b"k"], now_ms=0)), acks=1)
    log, task = node.partition.log, asyncio.create_task(flushing.run())
    flushing.appended(node.partition, 100, BATCHES_MAX - 1)
    flushing.appended(node.partition, 100)
    await until(lambda: log.recovery_point == log.end_offset, "all of it is durable, and a restart knows it")
    flushing.stop()
    await task


async def test_what_has_nothing_new_is_not_looked_at_when_much_is_new_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of ten thousand partitions each was, whenever 64 MiB were new: a fifth of a broker's time."""
    node = Node()
    node.lead()
    node.lead(place=(TOPIC_ID, 1))
    looked_at: list[Log] = []
    begin_flush = Log.begin_flush

    def looking(log: Log) -> Flush | None:
        looked_at.append(log)
        return begin_flush(log)

    monkeypatch.setattr(Log, "begin_flush", looking)
    flushing = Flusher(node.replicas, node.context.clocks, FlushSettings(), flushed=lambda _: None)
    node.produce(bytes(encode([b"x"], [b"k"], now_ms=0)), acks=1)
    log, task = node.partition.log, asyncio.create_task(flushing.run())
    flushing.appended(node.partition, FlushSettings().flush_bytes)
    await until(lambda: log.recovery_point == log.end_offset, "all of it is durable, and a restart knows it")
    flushing.stop()
    await task
    assert looked_at == [log]


# ── compaction ────────────────────────────────────────────────────────────────────────────────────────


def dirty() -> Node:
    """A node whose log would be worth a compaction."""
    node = Node(
        config=LogConfig(segment_bytes=1024, index_interval_bytes=256, cleanup_policy="compact"),
    )
    node.lead()
    for _ in range(40):
        node.produce(bytes(encode([b"x" * 100], [b"k"], now_ms=0)), acks=1)
    for follower in (2, 3):
        node.fetched(follower, 40)
    node.partition.log.flush()
    node.data.write_recovery_points().run()
    return node


def upkeep(node: Node, elsewhere: CompactsElsewhere | None = None) -> Upkeep:
    async def saved() -> bool:
        return True

    return Upkeep(
        node.replicas, node.context.clocks, UpkeepSettings(), save_log_starts=saved, elsewhere=elsewhere
    )


async def test_no_compaction_begins_where_what_it_writes_may_not_fit() -> None:
    node = dirty()
    keeping, log = upkeep(node), node.partition.log
    largest = max(segment.size for segment in log.segments)
    node.disk.capacity = node.disk.medium.used + largest - 1
    before = node.disk.operations
    await keeping._compact()
    assert (keeping.compactions, node.disk.operations) == (0, before)
    node.disk.capacity += 1 << 20
    await keeping._compact()
    assert keeping.compactions == 1


async def test_a_compaction_goes_on_only_while_the_next_group_fits_as_well() -> None:
    """What it has replaced is still there for a while."""
    node = dirty()
    keeping, log = upkeep(node), node.partition.log
    before, largest = log.size, max(segment.size for segment in log.segments)
    node.disk.capacity = node.disk.medium.used + largest + 600
    await keeping._compact()
    assert (keeping.compactions, log.size < before) == (0, True), "some groups are done"
    assert largest - 600 < node.data.directory.free_space() < largest
    remove(keeping.leftovers.due(1 << 60))
    await keeping._compact()
    assert keeping.compactions == 1


class Child:
    """Another process, which never has an end; meanwhile some of the reserve is given."""

    moved_bytes = 0
    pause_s = 0.0

    def __init__(self, reserve: Reserve) -> None:
        self.reserve = reserve
        self.said = 0
        self.abandoned = False

    def begin(self, directory: Directory, plan: Plan, bytes_per_second: int) -> "Child":
        return self

    def steps(self) -> Iterator[Said]:
        while True:
            self.said += 1
            if self.said == 5:
                self.reserve.give(1)
            yield None

    def abandon(self) -> None:
        self.abandoned = True

    def close(self) -> None:
        pass


async def test_a_compaction_ends_when_some_of_the_reserve_is_out_and_none_begins() -> None:
    """The other process writes to the disk itself: what was given would be gone."""
    node = dirty()
    node.data.reserve = reserve = Reserve(node.disk.open_directory(), 16_000, nullcontext())
    assert reserve.take_back()
    child = Child(reserve)
    keeping = upkeep(node, child)
    await keeping._compact()
    assert (child.said, child.abandoned, node.partition.log.compaction) == (5, True, None)
    await keeping._compact()
    assert child.said == 5
