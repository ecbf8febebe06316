"""ListOffsets, EpochEnds and DeleteRecords through the real handlers (design 5.5, 2.15)."""

from typing import Any

import pytest

from tests.broker.node import PLACE, TOPIC_ID, Asked, Node, records
from tidelog.protocol.errors import (
    DamagedLog,
    FencedLeaderEpoch,
    InvalidRequest,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    OffsetOutOfRange,
    PolicyViolation,
    RequestTimedOut,
    StorageError,
    TidelogError,
    UnknownLeaderEpoch,
    UnknownTopicId,
)
from tidelog.protocol.messages import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    DeleteBefore,
    DeleteRecords,
    EpochEnds,
    EpochQuery,
    Leader,
    ListOffsets,
    OffsetQuery,
)
from tidelog.protocol.types import BrokerId
from tidelog.storage.log import Log


@pytest.fixture
def node() -> Node:
    """Broker 1 leads in epoch 1; offsets 0 to 3 have the times 100, 300, 200 and 400, the last is not committed."""
    node = Node()
    node.lead()
    for time in (100, 300, 200):
        node.produce(records(1, now_ms=time), 1)
    for follower in (2, 3):
        node.fetched(follower, 3)
    node.produce(records(1, now_ms=400), 1)
    return node


def offset(node: Node, timestamp: int, *, replica: bool = False, epoch: int = -1) -> Any:
    query = OffsetQuery(*PLACE, timestamp, epoch)
    return node.ask(ListOffsets((query,), replica=replica)).entry


# ── offsets ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("timestamp", "found"),
    [
        (EARLIEST, (0, -1, 0)),
        (LATEST, (3, -1, 0)),
        (MAX_TIMESTAMP, (1, 300, 0)),
        (0, (0, 100, 0)),
        (101, (1, 300, 0)),
        (300, (1, 300, 0)),
        (301, (-1, -1, -1)),
    ],
)
def test_a_client_finds_what_is_committed(node: Node, timestamp: int, found: tuple[int, int, int]) -> None:
    answer = offset(node, timestamp)
    assert (answer.offset, answer.timestamp, answer.leader_epoch) == found


@pytest.mark.parametrize(
    ("timestamp", "found"), [(LATEST, 4), (MAX_TIMESTAMP, 3), (301, 3), (401, -1), (EARLIEST, 0)]
)
def test_a_replica_finds_everything(node: Node, timestamp: int, found: int) -> None:
    assert offset(node, timestamp, replica=True, epoch=0).offset == found


def test_an_empty_log_has_no_latest_time(node: Node) -> None:
    node.adopt(place=(TOPIC_ID, 1))
    query = OffsetQuery(TOPIC_ID, 1, MAX_TIMESTAMP)
    assert node.ask(ListOffsets((query,))).entry.offset == -1


@pytest.mark.parametrize("timestamp", [LATEST, MAX_TIMESTAMP, 301, 401])
def test_a_new_leader_does_not_guess_what_is_committed(node: Node, timestamp: int) -> None:
    node.lead()
    assert offset(node, timestamp).error == OffsetNotAvailable.code
    assert offset(node, timestamp, replica=True, epoch=1).error == 0


@pytest.mark.parametrize("timestamp", [EARLIEST, 150])
def test_a_new_leader_answers_what_it_knows(node: Node, timestamp: int) -> None:
    node.lead()
    assert offset(node, timestamp).error == 0


def test_records_that_are_deleted_are_not_found(node: Node) -> None:
    node.partition.delete_before(2)
    assert [offset(node, timestamp).offset for timestamp in (EARLIEST, 0, MAX_TIMESTAMP)] == [2, 2, 2]


@pytest.mark.parametrize(
    ("epoch", "replica", "error"),
    [(0, False, FencedLeaderEpoch), (2, False, UnknownLeaderEpoch), (-1, True, FencedLeaderEpoch)],
)
def test_who_asks_in_another_leadership_is_refused(
    node: Node, epoch: int, replica: bool, error: type[TidelogError]
) -> None:
    node.lead()
    assert offset(node, LATEST, replica=replica, epoch=epoch).error == error.code


def test_a_client_needs_a_leader_with_a_lease_and_hears_who_leads(node: Node) -> None:
    node.replicas.lease_until_ms = -1
    assert offset(node, EARLIEST).error == NotLeaderOrFollower.code
    assert offset(node, EARLIEST, replica=True, epoch=0).error == 0
    node.replicas.lease_until_ms = 1 << 60
    node.follow(2)
    assert offset(node, EARLIEST).current_leader == Leader(BrokerId(2), 1)


def test_damage_is_noted_and_has_a_name_that_travels(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise DamagedLog("planted")

    monkeypatch.setattr(Log, "offset_for_time", fails)
    assert offset(node, 5).error == StorageError.code
    assert node.partition.damage
    assert not node.partition.offline, "what can be read is served"


# ── ends of epochs ────────────────────────────────────────────────────────────────────────────────────


def ends(node: Node, epoch: int, current: int = -1) -> Any:
    return node.ask(EpochEnds((EpochQuery(*PLACE, epoch, current),))).entry


def test_an_epoch_ends_where_the_next_begins_committed_or_not(node: Node) -> None:
    node.lead(epoch=2)
    node.produce(acks=1)
    found = [(ends(node, epoch).epoch, ends(node, epoch).end_offset) for epoch in (0, 1, 2, 9)]
    assert found == [(0, 4), (0, 4), (2, 5), (2, 5)]


def test_only_a_leader_knows_where_epochs_end(node: Node) -> None:
    node.follow(2)
    assert ends(node, 0).error == NotLeaderOrFollower.code
    assert ends(node, 0).current_leader == Leader(BrokerId(2), 1)
    assert ends(node, 0, 0).error == FencedLeaderEpoch.code


# ── deletion ──────────────────────────────────────────────────────────────────────────────────────────


def delete(node: Node, before: int, timeout_ms: int = 1000) -> Asked:
    return node.ask(DeleteRecords((DeleteBefore(*PLACE, before),), timeout_ms))


def save(node: Node) -> None:
    """The log starts are on disk."""
    while node.saves:
        node.saves.pop()()
    node.turn()


def follow_deletion(node: Node, start: int) -> None:
    for follower in (2, 3):
        node.fetched(follower, 4, log_start=start)
    node.turn()


@pytest.mark.parametrize(("before", "start"), [(2, 2), (-1, 3), (3, 3), (0, 0)])
def test_a_deletion_waits_for_the_disk_and_for_everybody(node: Node, before: int, start: int) -> None:
    asked = delete(node, before)
    assert node.partition.log.log_start == start
    follow_deletion(node, start)
    assert asked.waits
    save(node)
    assert asked.entry.low_watermark == start


def test_a_follower_that_follows_ends_the_waiting_at_once(node: Node) -> None:
    asked = delete(node, 2)
    save(node)
    node.fetched(2, 3, log_start=2)
    node.turn()
    assert asked.waits
    node.fetched(3, 3, log_start=2)
    node.turn()
    assert not asked.error


def test_what_was_deleted_before_is_deleted(node: Node) -> None:
    delete(node, 2)
    asked = delete(node, 1)
    follow_deletion(node, 2)
    save(node)
    assert asked.entry.low_watermark == 2


def test_nothing_is_deleted_that_is_not_committed(node: Node) -> None:
    assert delete(node, 4).error == OffsetOutOfRange.code
    assert not node.saves, "and nothing is written for it"


def test_what_is_not_followed_in_time_is_not_known(node: Node) -> None:
    asked = delete(node, 2, timeout_ms=100)
    save(node)
    node.wait(100)
    assert asked.error == RequestTimedOut.code


@pytest.mark.parametrize("decision", [{"leader": 2, "leader_epoch": 1}, {"leader_epoch": 1}])
def test_another_leadership_ends_the_waiting(node: Node, decision: dict[str, Any]) -> None:
    asked = delete(node, 2)
    save(node)
    node.adopt(**decision)
    node.turn()
    assert asked.error == NotLeaderOrFollower.code


@pytest.mark.parametrize(("policy", "error"), [("compact", PolicyViolation.code), ("compact,delete", 0)])
def test_a_topic_that_is_only_compacted_keeps_its_records(node: Node, policy: str, error: int) -> None:
    node.image.configs["topic", "orders", "cleanup.policy"] = policy
    asked = delete(node, 2)
    follow_deletion(node, 2)
    save(node)
    assert asked.error == error


def test_the_leader_is_named_before_the_policy(node: Node) -> None:
    node.image.configs["cluster", "", "cleanup.policy"] = "compact"
    node.follow(2)
    assert delete(node, 2).error == NotLeaderOrFollower.code


def test_a_partition_is_named_once(node: Node) -> None:
    with pytest.raises(InvalidRequest):
        node.ask(DeleteRecords((DeleteBefore(*PLACE, 1), DeleteBefore(*PLACE, 2))))


def test_some_may_be_deleted_and_others_not(node: Node) -> None:
    asked = node.ask(DeleteRecords((DeleteBefore(b"?" * 16, 0, 1), DeleteBefore(*PLACE, 1))))
    follow_deletion(node, 1)
    save(node)
    assert [entry.error for entry in asked.answer.partitions] == [UnknownTopicId.code, 0]
