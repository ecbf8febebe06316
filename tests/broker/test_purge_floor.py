"""Who may have kept what a tombstone deleted begins anew, once (2.6 #8; C7)."""

import pytest

from tests.broker.node import Node
from tidelog.protocol.errors import OffsetOutOfRange
from tidelog.protocol.types import BrokerId

FLOOR = 5


@pytest.fixture
def node() -> Node:
    node = Node()
    node.lead()
    node.fill(8)
    node.partition.log.purge_floor = FLOOR
    return node


def test_who_ends_below_the_floor_begins_anew_at_the_logs_start(node: Node) -> None:
    asked = node.fetched(2, 3)
    assert (asked.error, asked.entry.refetch_from) == (OffsetOutOfRange.code, 0)
    assert node.partition.leadership is not None
    assert node.partition.leadership.followers[BrokerId(2)].fetch_offset == 8, (
        "nothing is noted of such a fetch"
    )


def test_who_ends_at_the_floor_or_above_has_seen_every_tombstone(node: Node) -> None:
    assert not node.fetched(2, FLOOR).error
    assert not node.fetched(2, 7).error


def test_a_copy_from_the_beginning_is_let_through_to_its_end(node: Node) -> None:
    asked = node.fetched(2, 0)
    assert (asked.error, asked.entry.purge_floor) == (0, FLOOR), "what the leader lacks, the copy lacks"
    assert [node.fetched(2, offset).error for offset in (2, 4, 6)] == [0, 0, 0]
    assert node.fetched(3, 2).error == OffsetOutOfRange.code, "that was another follower's copy"


def test_a_copy_of_an_older_floor_or_another_process_or_leader_begins_anew(node: Node) -> None:
    node.fetched(2, 0)
    node.partition.log.purge_floor = FLOOR + 1
    assert node.fetched(2, 3).error == OffsetOutOfRange.code
    node.fetched(2, 0)
    node.lead()
    assert node.fetched(2, 3).error == OffsetOutOfRange.code


def test_a_log_that_was_never_compacted_has_no_floor() -> None:
    node = Node()
    node.lead()
    node.fill(3)
    assert not node.fetched(2, 1).error
