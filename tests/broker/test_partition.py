"""One replica: what it becomes when the cluster decides, and what an answer of its leader does to its log."""

from typing import Any

import pytest

from tests.broker.node import PLACE, Node, records
from tidelog.broker.partition import Partition
from tidelog.protocol.batch import stamp
from tidelog.protocol.errors import DiskFull, NotLeaderOrFollower, OffsetOutOfRange, StorageError
from tidelog.protocol.messages import EpochEnd, PartitionFetched
from tidelog.replication.followership import Append, GoOffline, StartAt, Step, Truncate, Wait
from tidelog.storage.log import Log


@pytest.fixture
def node() -> Node:
    node = Node()
    node.follow(2)
    return node


@pytest.fixture
def partition(node: Node) -> Partition:
    """Follows broker 2, has offsets 0 to 4, and knows 0 to 2 to be committed."""
    for offset in range(4):
        node.partition.carry_out(Append(2, 0), at(offset), 0)
    return node.partition


def at(offset: int, count: int = 1, epoch: int = 0) -> bytes:
    """A batch as a leader sends it."""
    batch = bytearray(records(count))
    stamp(batch, offset, epoch)
    return bytes(batch)


# ── roles ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_state_that_is_older_changes_nothing(node: Node) -> None:
    state = node.partition.state
    assert state is not None
    assert node.partition.adopt(state, node.replicas.around, 0) is False
    assert node.partition.state is state


def test_a_leadership_that_goes_on_keeps_what_it_knows(node: Node) -> None:
    node.lead()
    leadership = node.partition.leadership
    node.adopt(isr=(1, 2))
    assert node.partition.leadership is leadership


def test_the_same_broker_elected_again_knows_of_nobody(node: Node) -> None:
    node.lead()
    node.fill()
    node.lead()
    assert {f.fetch_offset for f in node.partition.leadership.followers.values()} == {-1}  # type: ignore[union-attr]


def test_a_leadership_without_records_leaves_no_trace_in_the_epochs(node: Node) -> None:
    """D1: an entry of its own would go stale when older records come, and make others cut what is committed."""
    node.lead(epoch=1)
    node.produce(acks=1)
    node.lead(epoch=2)
    node.follow(2, epoch=3)
    node.partition.carry_out(Append(1, 0), at(1, epoch=1), 0)
    assert (node.partition.log.end_offset, node.partition.log.epochs.entries) == (2, ((1, 0),))
    node.lead(epoch=4)
    assert node.fetched(2, 2, last_epoch=1).entry.diverging is None


def test_losing_a_leadership_cuts_nothing_and_keeps_the_high_watermark(node: Node) -> None:
    node.lead()
    node.fill(2)
    node.produce(acks=1)
    node.follow(3)
    assert (node.partition.high_watermark, node.partition.log.end_offset) == (2, 3)


def test_without_a_leader_it_follows_nobody(node: Node) -> None:
    node.follow(-1)
    assert node.partition.followership is None
    assert node.replicas.leaders() == set()


def test_what_goes_offline_still_knows_what_is_committed(node: Node) -> None:
    """It is checkpointed, and a high watermark never goes back."""
    node.lead()
    node.fill(2)
    node.partition.go_offline("planted")
    assert node.partition.high_watermark == 2


def test_what_is_offline_takes_no_role_again(node: Node) -> None:
    node.partition.go_offline("planted")
    node.lead()
    assert node.partition.leadership is None
    assert node.replicas.offline() == [PLACE]


# ── following ─────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_committed_is_taken_over_behind_what_was_appended(partition: Partition) -> None:
    partition.carry_out(Append(99, 99), b"", 0)
    assert (partition.high_watermark, partition.log.log_start) == (4, 4)
    partition.carry_out(Append(-1, 0), b"", 0)
    assert partition.high_watermark == 4


def test_batches_that_do_not_continue_the_log_are_left_out_whole(partition: Partition) -> None:
    step = partition.carry_out(Append(9, 3), at(4) + at(6), 0)
    assert isinstance(step, Wait)
    assert (partition.log.end_offset, partition.high_watermark, partition.log.log_start) == (4, 2, 0)


def test_a_disk_that_fails_takes_the_replica_offline(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Log, "append_as_follower", failing(StorageError("planted")))
    assert isinstance(partition.carry_out(Append(0, 0), at(4), 0), GoOffline)
    assert partition.offline == "planted"
    with pytest.raises(StorageError):
        partition.led(0)


def failing(error: Exception) -> Any:
    def fails(*_: Any, **__: Any) -> None:
        raise error

    return fails


@pytest.mark.parametrize(
    ("error", "step"), [(StorageError("planted"), GoOffline), (DiskFull("planted"), Wait)]
)
def test_a_cut_that_is_refused_leaves_all_as_it_was(
    partition: Partition, monkeypatch: pytest.MonkeyPatch, error: Exception, step: type
) -> None:
    monkeypatch.setattr(Log, "truncate_to", failing(error))
    assert isinstance(partition.carry_out(Truncate(1, loses_committed=True), b"", 0), step)
    assert (partition.log.end_offset, partition.high_watermark, partition.losses) == (4, 2, [])


def test_a_log_that_ends_within_a_batch_where_its_leader_begins_begins_anew(partition: Partition) -> None:
    """Its last records are of another history, which no epoch tells any more: the leader has deleted its own there."""
    batch = at(3, count=3)
    assert partition.carry_out(Append(-1, 4), batch, 0) == StartAt(4)
    assert (partition.log.log_start, partition.high_watermark, partition.log.end_offset) == (4, 4, 4)
    partition.carry_out(Append(6, 4), batch, 0)
    assert (partition.log.log_start, partition.high_watermark, partition.log.end_offset) == (4, 6, 6)


@pytest.mark.parametrize("why", ["it is being flushed", "the disk is full"])
def test_a_cut_that_had_to_wait_is_made_when_it_can_be(
    partition: Partition, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """The leader says the same once more: that is no truncation without progress."""
    flush = partition.log.begin_flush() if why == "it is being flushed" else None
    with monkeypatch.context() as planted:
        if flush is None:
            planted.setattr(Log, "truncate_to", failing(DiskFull("planted")))
        assert isinstance(parted_at(partition, 3), Wait)
    if flush is not None:
        flush.run()
        partition.log.end_flush(flush)
    assert isinstance(parted_at(partition, 3), Truncate)
    assert (partition.offline, partition.log.end_offset) == (None, 3)


def parted_at(partition: Partition, end: int) -> Step:
    """Ask, be told that the logs part there, and do what that means."""
    following, view = partition.followership, partition.view()
    assert following is not None
    told = PartitionFetched(*PLACE, diverging=EpochEnd(0, end), log_start=0)
    return partition.carry_out(following.on_fetched(following.ask(view), told, view), b"", 0)


def test_a_cut_below_what_is_committed_is_told_as_a_loss(partition: Partition) -> None:
    partition.carry_out(Truncate(1, loses_committed=True), b"", 0)
    assert (partition.log.end_offset, partition.high_watermark) == (1, 1)
    assert [(loss.first, loss.end) for loss in partition.losses] == [(1, 2)]


def test_nothing_is_cut_while_it_is_flushed(partition: Partition) -> None:
    flush = partition.log.begin_flush()
    assert flush is not None
    assert isinstance(partition.carry_out(Truncate(3, loses_committed=False), b"", 0), Wait)
    assert isinstance(partition.carry_out(StartAt(9), b"", 0), Wait)
    assert partition.log.end_offset == 4
    flush.run()
    partition.log.end_flush(flush)
    partition.carry_out(StartAt(9), b"", 0)
    assert (partition.log.log_start, partition.log.end_offset, partition.high_watermark) == (9, 9, 9)


def test_a_log_may_begin_within_a_batch_but_not_while_it_is_flushed(partition: Partition) -> None:
    partition.carry_out(StartAt(11), b"", 0)
    flush = partition.log.begin_flush()
    assert flush is not None
    assert isinstance(partition.carry_out(Append(11, 11), at(10, 3), 0), Wait)
    flush.run()
    partition.log.end_flush(flush)
    partition.carry_out(Append(12, 11), at(10, 3), 0)
    assert (partition.log.log_start, partition.log.end_offset, partition.high_watermark) == (11, 13, 12)


# ── both ──────────────────────────────────────────────────────────────────────────────────────────────


def test_only_a_leader_deletes(node: Node) -> None:
    with pytest.raises(NotLeaderOrFollower):
        node.partition.delete_before(0)


def test_the_low_watermark_waits_for_who_has_not_said_where_it_begins(node: Node) -> None:
    node.lead()
    node.fill(2)
    node.partition.delete_before(2)
    assert node.partition.low_watermark == 0
    node.fetched(2, 2, log_start=2)
    node.fetched(3, 2, log_start=1)
    assert node.partition.low_watermark == 1
    node.lead()
    assert node.partition.low_watermark == -1


def test_the_low_watermark_waits_for_the_dead_only_where_they_may_lead(node: Node) -> None:
    node.lead()
    node.fill(2)
    node.partition.delete_before(2)
    node.fetched(2, 2, log_start=2)
    node.register(3, fenced=True)
    assert node.partition.low_watermark == 0
    node.adopt(isr=(1, 2))
    assert node.partition.low_watermark == 2
    node.adopt(isr=(1,), elr=(2, 3))
    assert node.partition.low_watermark == 0


def test_the_low_watermark_does_not_wait_for_who_lives_and_is_no_member(node: Node) -> None:
    """Before it joins it will have deleted as much (ADR 0079)."""
    node.lead(isr=(1, 2))
    node.produce(acks=1)
    node.fetched(2, 1)
    node.fetched(3, 0)
    node.partition.delete_before(1)
    node.fetched(2, 1, log_start=1)
    assert node.partition.low_watermark == 1


def test_a_log_start_counts_when_it_is_on_the_disk(partition: Partition) -> None:
    """ADR 0079: else a kill brings back what a client was told to be deleted."""
    partition.carry_out(Append(4, 3), b"", 0)
    assert (partition.log.log_start, partition.saved_log_start) == (3, 0)
    partition.log_start_saved(3, partition.begun_anew)
    assert partition.saved_log_start == 3


def test_a_log_that_begins_anew_begins_on_the_disk_as_well(partition: Partition) -> None:
    partition.carry_out(StartAt(9), b"", 0)
    assert partition.saved_log_start == 9


def test_what_was_being_saved_before_a_log_began_anew_is_not_saved(partition: Partition) -> None:
    partition.carry_out(Append(4, 3), b"", 0)
    before = partition.begun_anew
    partition.carry_out(StartAt(1), b"", 0)
    partition.log_start_saved(3, before)
    assert partition.saved_log_start == 1


def test_an_empty_log_of_somebody_unknown_is_told_where_to_begin(node: Node) -> None:
    """ADR 0071: what it lacks may be more than was deleted."""
    node.lead(isr=(1, 2))
    node.fill(3)
    node.partition.delete_before(1)
    entry = node.fetched(3, 2, last_epoch=-1, epoch=node.lead(isr=(1, 2)).leader_epoch).entry
    assert (entry.error, entry.refetch_from) == (OffsetOutOfRange.code, 1)
    assert node.fetched(3, 1, last_epoch=-1).error == 0


@pytest.mark.parametrize("written_since", [0, 2])
def test_who_ends_where_the_log_starts_in_an_epoch_that_is_deleted_begins_anew(
    node: Node, written_since: int
) -> None:
    """ADR 116: below that it may hold what was never committed, and nothing here is left to compare it with."""
    older = node.lead(isr=(1, 2)).leader_epoch
    node.fill(3)
    node.partition.delete_before(3)
    node.lead(isr=(1, 2))
    for _ in range(written_since):
        node.produce(acks=1)
    entry = node.fetched(3, 3, last_epoch=older).entry
    assert (entry.error, entry.refetch_from) == (OffsetOutOfRange.code, 3)
    assert node.fetched(2, 3, last_epoch=older).error == 0, "whoever is in sync has all that was deleted"
    assert node.fetched(3, 3, last_epoch=-1).error == 0
    assert node.fetched(3, 3, last_epoch=older).error == 0, "what it has was compared in this leadership"


def test_who_ends_where_the_log_starts_in_an_epoch_of_the_log_goes_on(node: Node) -> None:
    epoch = node.lead(isr=(1, 2)).leader_epoch
    node.fill(5)
    node.partition.delete_before(3)
    assert node.fetched(3, 3, last_epoch=epoch).error == 0
