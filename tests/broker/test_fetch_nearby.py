"""Fetches from a replica nearby: who is sent where, and what a follower shows (design 2.11, 2.13)."""

from typing import Any

import pytest

from tests.broker.node import Asked, Node, records
from tidelog.protocol.errors import (
    FencedLeaderEpoch,
    NotLeaderOrFollower,
    OffsetNotAvailable,
    OffsetOutOfRange,
    ReplicaNotAvailable,
    TidelogError,
    UnknownLeaderEpoch,
)

SIZE = len(records(1))


@pytest.fixture
def node() -> Node:
    node = Node()
    node.lead()
    return node


@pytest.fixture
def racks(node: Node) -> Node:
    """Broker n stands in rack n; everybody has two records."""
    for number in (1, 2, 3):
        node.register(number, rack=f"r{number}")
    node.fill(2)
    return node


def test_a_consumer_is_sent_to_its_rack_at_once_and_given_nothing(racks: Node) -> None:
    for offset in (0, 2):
        asked = racks.consume(offset, client_rack="r3")
        assert (asked.entry.preferred_read_replica, asked.data, asked.error) == (3, b"", 0)


@pytest.mark.parametrize("rack", ["", "r1", "r9"])
def test_nobody_is_sent_away_without_need(racks: Node, rack: str) -> None:
    asked = racks.consume(0, client_rack=rack)
    assert asked.entry.preferred_read_replica == -1
    assert len(asked.data) == 2 * SIZE


def test_nobody_is_sent_to_who_is_fenced_behind_out_of_sync_or_lacks_the_beginning(racks: Node) -> None:
    racks.fetched(3, 2, log_start=1)
    assert racks.consume(0, client_rack="r3").entry.preferred_read_replica == -1
    racks.produce(acks=1)
    assert racks.consume(3, client_rack="r3", wait_ms=0).entry.preferred_read_replica == -1
    racks.adopt(isr=(1, 2))
    assert racks.consume(2, client_rack="r3", wait_ms=0).entry.preferred_read_replica == -1
    racks.register(2, fenced=True, rack="r2")
    assert racks.consume(2, client_rack="r2", wait_ms=0).entry.preferred_read_replica == -1


def test_of_two_the_one_that_has_more_and_then_the_first(racks: Node) -> None:
    racks.register(3, rack="r2")
    assert racks.consume(0, client_rack="r2").entry.preferred_read_replica == 2
    racks.produce(acks=1)
    racks.fetched(3, 3)
    assert racks.consume(0, client_rack="r2").entry.preferred_read_replica == 3


def test_a_follower_is_never_sent_away(racks: Node) -> None:
    assert racks.fetched(2, 0, client_rack="r3").entry.preferred_read_replica == -1


@pytest.fixture
def following(racks: Node) -> Node:
    """Broker 1 follows broker 2 and has just heard from it: it has two records, one is known to be committed."""
    partition = racks.follow(2, epoch=1)
    partition.heard_from_leader(racks.now_ms)
    partition._follower_hwm = 1
    return racks


def nearby(node: Node, offset: int, **more: Any) -> Asked:
    return node.consume(offset, client_rack="r1", epoch=more.pop("epoch", 1), wait_ms=0, **more)


def test_a_follower_shows_what_it_knows_to_be_committed(following: Node) -> None:
    asked = nearby(following, 0)
    assert (len(asked.data), asked.entry.high_watermark) == (SIZE, 1)
    assert (nearby(following, 2).error, nearby(following, 2).data) == (0, b"")


def test_a_follower_says_no_to_who_takes_it_for_the_leader(following: Node) -> None:
    assert following.consume(0, epoch=1).error == NotLeaderOrFollower.code


@pytest.mark.parametrize(("epoch", "error"), [(0, FencedLeaderEpoch), (2, UnknownLeaderEpoch)])
def test_a_follower_serves_its_own_leadership_only(
    following: Node, epoch: int, error: type[TidelogError]
) -> None:
    assert nearby(following, 0, epoch=epoch).error == error.code


def test_behind_the_end_of_a_follower_nothing_is_out_of_range(following: Node) -> None:
    assert nearby(following, 3).error == OffsetNotAvailable.code
    following.partition.log.raise_log_start(1)
    assert nearby(following, 0).error == OffsetOutOfRange.code


def test_a_follower_that_has_not_heard_from_its_leader_shows_nothing(following: Node) -> None:
    following.wait(10_001)
    assert nearby(following, 0).error == ReplicaNotAvailable.code
    following.follow(3)
    assert nearby(following, 0, epoch=2).error == ReplicaNotAvailable.code


# ── what is committed reaches followers in time ───────────────────────────────────────────────────────


def test_while_consumers_read_nearby_followers_hear_soon_what_is_committed(racks: Node) -> None:
    racks.consume(0, client_rack="r3")
    opened = racks.fetched(3, 2, session_epoch=0).answer.session_id
    racks.produce(acks=1)
    racks.fetched(2, 3)
    asked = racks.follower_fetch(3, 3, session_id=opened, session_epoch=1)
    racks.turn()
    racks.wait(99)
    assert asked.waits
    racks.wait(1)
    assert asked.entry.high_watermark == 3


def test_otherwise_nobody_is_woken_for_it(racks: Node) -> None:
    asked = racks.follower_fetch(3, 2)
    racks.wait(499)
    assert asked.waits
    assert racks.deadlines == [racks.now_ms + 1], "and no timer was set for it"


def test_the_hurry_ends_when_nobody_can_be_reading_nearby_any_more(racks: Node) -> None:
    racks.consume(0, client_rack="r3")
    racks.wait(300_000)
    asked = racks.follower_fetch(3, 2)
    racks.wait(499)
    assert asked.waits
