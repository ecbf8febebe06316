"""How far groups have come: commits, questions, deletions, expiry and lag; sentences of docs/GROUPS.md."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.broker.groups_desk import IDS, SESSION_MS, Desk
from tests.broker.groups_world import topic_id
from tidelog.broker.groups.lag import UNKNOWN, Ends, Lag, lag_of, total
from tidelog.broker.groups.topics import Topic
from tidelog.protocol.errors import (
    FencedInstanceId,
    FencedMemberEpoch,
    GroupIdNotFound,
    InvalidRequest,
    NonEmptyGroup,
    OffsetMetadataTooLarge,
    PolicyViolation,
    StaleMemberEpoch,
    UnknownMemberId,
    UnknownTopicId,
)
from tidelog.protocol.messages import (
    DeleteGroupOffsets,
    DeleteGroupOffsetsReply,
    DeleteGroupsReply,
    OffsetCommit,
    OffsetCommitReply,
    OffsetFetch,
    OffsetToCommit,
    PartitionIndex,
)

ORDERS = ("orders", 0)
WEEK_MS = 7 * 24 * 3600 * 1000


def alone() -> Desk:
    """Member a has all of `orders`."""
    desk = Desk()
    desk.say("a", 0, ["orders"])
    return desk


def error_of_entry(reply: OffsetCommitReply) -> int:
    assert reply.error == 0
    (entry,) = reply.partitions
    return entry.error


# ── to commit ─────────────────────────────────────────────────────────────────────────────────────────


def test_what_a_member_commits_is_found_again() -> None:
    desk = alone()
    assert error_of_entry(desk.commit("a", 1, {ORDERS: 7}, metadata="so far")) == 0
    (entry,) = desk.shard.fetch(OffsetFetch("g")).partitions
    assert (entry.offset, entry.metadata, entry.commit_ms) == (7, "so far", desk.wall_ms)


def test_the_older_process_of_a_static_member_commits_nothing_more() -> None:
    desk = Desk()
    desk.say("a1", 0, ["orders"], instance="a")
    assert error_of_entry(desk.commit("a1", 1, {ORDERS: 3}, instance="a")) == 0
    desk.say("a1", -2, instance="a")
    desk.say("a2", 0, ["orders"], instance="a")
    assert desk.commit("a1", 1, {ORDERS: 7}, instance="a").error == FencedInstanceId.code
    assert desk.offset(*ORDERS) == 3
    assert error_of_entry(desk.commit("a2", 1, {ORDERS: 4}, instance="a")) == 0


def test_a_commit_of_an_older_epoch_is_refused() -> None:
    desk = alone()
    desk.commit("a", 1, {ORDERS: 7})
    assert desk.commit("a", 0, {ORDERS: 3}).error == StaleMemberEpoch.code
    assert desk.commit("a", 2, {ORDERS: 3}).error == FencedMemberEpoch.code
    assert desk.offset(*ORDERS) == 7


def test_a_commit_of_who_was_put_out_is_refused() -> None:
    desk = alone()
    desk.say("b", 0, ["orders"])
    desk.say("a", -1)
    assert desk.commit("a", 1, {ORDERS: 3}).error == UnknownMemberId.code


def test_nobody_commits_what_another_member_has() -> None:
    desk = alone()
    desk.commit("a", 1, {ORDERS: 7})
    desk.say("b", 0, ["orders"])
    reply = desk.commit("b", 2, {ORDERS: 3})
    assert error_of_entry(reply) == InvalidRequest.code
    assert reply.partitions[0].message == "orders-0 is a's: only it commits"


def test_who_is_asked_to_give_up_commits_until_it_has() -> None:
    desk = alone()
    desk.say("b", 0, ["orders"])
    desk.say("a", 1)
    pending = [index for _, indexes in desk.group.current("a").pending for index in indexes]
    (first, _) = pending
    assert error_of_entry(desk.commit("a", 1, {("orders", first): 9})) == 0
    desk.say("a", 1, owned=desk.has("a"))
    desk.say("b", 2)
    assert desk.commit("a", 1, {("orders", first): 3}).error == StaleMemberEpoch.code
    assert error_of_entry(desk.commit("a", 2, {("orders", first): 3})) == InvalidRequest.code
    assert desk.offset("orders", first) == 9


def test_a_late_commit_changes_nothing_and_is_no_error() -> None:
    desk = alone()
    desk.commit("a", 1, {ORDERS: 9}, sequence=5)
    reply = desk.commit("a", 1, {ORDERS: 4, ("orders", 1): 2}, sequence=4)
    assert [entry.error for entry in reply.partitions] == [0, 0]
    assert (desk.offset(*ORDERS), desk.offset("orders", 1)) == (9, 2)
    desk.commit("a", 1, {ORDERS: 4}, sequence=6)
    assert desk.offset(*ORDERS) == 4, "a newer commit may go back: somebody has asked for it"


def test_refusals_of_single_partitions_leave_the_others() -> None:
    desk = alone()
    entries = (
        OffsetToCommit(topic_id(9), 0, 1),
        OffsetToCommit(IDS["orders"], 4, 1),
        OffsetToCommit(IDS["orders"], 0, -1),
        OffsetToCommit(IDS["orders"], 1, 1, metadata="ä" * 2049),
        OffsetToCommit(IDS["orders"], 2, 1, metadata="ä" * 2048),
    )
    decision = desk.write(desk.shard.commit(OffsetCommit("g", entries, "a", 1), desk.wall_ms))
    assert isinstance(decision.reply, OffsetCommitReply)
    assert [entry.error for entry in decision.reply.partitions] == [
        UnknownTopicId.code,
        UnknownTopicId.code,
        InvalidRequest.code,
        OffsetMetadataTooLarge.code,
        0,
    ]


def test_a_partition_is_named_once() -> None:
    desk = alone()
    entries = (OffsetToCommit(IDS["orders"], 0, 1), OffsetToCommit(IDS["orders"], 0, 2))
    decision = desk.shard.commit(OffsetCommit("g", entries, "a", 1), desk.wall_ms)
    assert isinstance(decision.reply, OffsetCommitReply)
    assert decision.reply.error == InvalidRequest.code


# ── without members ───────────────────────────────────────────────────────────────────────────────────


def test_an_operator_resets_a_group_that_nobody_is_in() -> None:
    desk = alone()
    desk.commit("a", 1, {ORDERS: 7})
    assert desk.commit("", -1, {ORDERS: 0}).error == NonEmptyGroup.code
    desk.say("a", -1)
    assert error_of_entry(desk.commit("", -1, {ORDERS: 2}, validate_only=True)) == 0
    assert desk.offset(*ORDERS) == 7, "only asked"
    assert error_of_entry(desk.commit("", -1, {ORDERS: 2})) == 0
    assert desk.offset(*ORDERS) == 2


def test_offsets_are_kept_for_a_group_that_never_had_members() -> None:
    desk = Desk()
    assert error_of_entry(desk.commit("", -1, {ORDERS: 2})) == 0
    assert desk.group.state.empty_since_ms == desk.wall_ms


def test_who_is_no_member_and_says_an_id_commits_in_order() -> None:
    desk = Desk()
    assert error_of_entry(desk.commit("by hand", -1, {ORDERS: 20}, sequence=2)) == 0
    assert error_of_entry(desk.commit("by hand", -1, {ORDERS: 10}, sequence=1)) == 0, "it was held up"
    assert desk.offset(*ORDERS) == 20
    assert error_of_entry(desk.commit("by hand", -1, {ORDERS: 5}, sequence=3)) == 0
    assert desk.offset(*ORDERS) == 5, "it went back on purpose"
    asked = OffsetFetch("g", member_id="by hand")
    assert [each.offset for each in desk.shard.fetch(asked).partitions] == [5]
    desk.say("a", 0, ["orders"])
    assert desk.commit("by hand", -1, {ORDERS: 30}, sequence=4).error == NonEmptyGroup.code
    assert desk.offset(*ORDERS) == 5


def test_a_member_of_a_group_that_nobody_knows_is_refused() -> None:
    assert Desk().commit("a", 1, {ORDERS: 2}).error == GroupIdNotFound.code


# ── to ask ────────────────────────────────────────────────────────────────────────────────────────────


def test_partitions_that_appear_after_the_group_began_are_read_from_their_start() -> None:
    """KAFKA-20539: else `latest` loses what was written before the consumer heard of them."""
    desk = Desk()
    desk.say("a", 0, ["orders", "later"])
    desk.topics.put(Topic(IDS["orders"], "orders", 5))
    desk.topics.put(Topic(topic_id(9), "later", 1))
    desk.say("a", 1)
    desk.say("a", 2, ["orders", "later", "events"])
    asked = tuple(
        PartitionIndex(*place) for place in ((IDS["orders"], 3), (IDS["orders"], 4), (topic_id(9), 0))
    )
    reply = desk.shard.fetch(OffsetFetch("g", (*asked, PartitionIndex(IDS["events"], 0))))
    assert [entry.offset for entry in reply.partitions] == [-1] * 4
    assert [entry.from_beginning for entry in reply.partitions] == [False, True, True, False]


def test_a_member_that_asks_says_its_epoch() -> None:
    desk = alone()
    assert desk.shard.fetch(OffsetFetch("g", (), "a", 1)).error == 0
    assert desk.shard.fetch(OffsetFetch("g", (), "a", 0)).error == StaleMemberEpoch.code
    assert desk.shard.fetch(OffsetFetch("g", (), "b", 1)).error == UnknownMemberId.code


def test_only_what_is_committed_is_told() -> None:
    desk = alone()
    request = OffsetCommit("g", (OffsetToCommit(IDS["orders"], 0, 7),), "a", 1)
    decision = desk.shard.commit(request, 0)
    desk.shard.written(decision, 99, 0)
    assert desk.offset(*ORDERS) == -1
    assert desk.shard.rests_on("g") == 99
    desk.shard.commit_to(99)
    assert desk.offset(*ORDERS) == 7
    assert desk.shard.rests_on("g") == 0


# ── to forget ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_group_with_members_is_not_deleted() -> None:
    desk = alone()
    desk.commit("a", 1, {ORDERS: 7})

    def delete() -> int:
        reply = desk.write(desk.shard.delete_group("g")).reply
        assert isinstance(reply, DeleteGroupsReply)
        return reply.groups[0].error

    assert delete() == NonEmptyGroup.code
    desk.say("a", -1)
    assert delete() == 0
    assert desk.shard.current.get("g") is None
    assert delete() == GroupIdNotFound.code


def test_a_group_is_not_deleted_while_a_static_member_may_come_back() -> None:
    desk = Desk()
    desk.say("a", 0, ["orders"], instance="one")
    desk.commit("a", 1, {ORDERS: 7})
    desk.say("a", -2, instance="one")

    def delete() -> int:
        reply = desk.write(desk.shard.delete_group("g")).reply
        assert isinstance(reply, DeleteGroupsReply)
        return reply.groups[0].error

    assert delete() == NonEmptyGroup.code
    assert desk.commit("", -1, {ORDERS: 0}).error == NonEmptyGroup.code
    desk.wait(SESSION_MS)
    assert delete() == 0


def test_offsets_of_topics_that_members_want_are_not_deleted() -> None:
    desk = alone()
    desk.commit("a", 1, {ORDERS: 7, ("events", 0): 3})
    request = DeleteGroupOffsets("g", (PartitionIndex(IDS["orders"], 0), PartitionIndex(IDS["events"], 0)))
    reply = desk.write(desk.shard.delete_offsets(request)).reply
    assert isinstance(reply, DeleteGroupOffsetsReply)
    assert [entry.error for entry in reply.partitions] == [PolicyViolation.code, 0]
    assert (desk.offset(*ORDERS), desk.offset("events", 0)) == (7, -1)


def expire(desk: Desk) -> None:
    for decision in desk.shard.expire(desk.wall_ms):
        desk.write(decision)


def test_offsets_are_kept_as_long_as_somebody_consumes_their_topic() -> None:
    desk = alone()
    desk.commit("a", 1, {ORDERS: 7, ("events", 0): 3})
    desk.wall_ms += 10 * WEEK_MS
    expire(desk)
    assert (desk.offset(*ORDERS), desk.offset("events", 0)) == (7, -1)


def test_offsets_are_kept_for_a_week_after_the_last_one_has_left() -> None:
    """KAFKA-8069, 13636: not since the commit, which may be older than the group's last day."""
    desk = alone()
    desk.commit("a", 1, {ORDERS: 7})
    desk.wall_ms += 10 * WEEK_MS
    desk.say("a", -1)
    desk.wall_ms += WEEK_MS - 1
    expire(desk)
    assert desk.offset(*ORDERS) == 7
    desk.wall_ms += 1
    expire(desk)
    assert desk.shard.current.get("g") is None, "and with the last one the group"
    assert desk.shard.committed.get("g") is None


def test_a_wall_clock_that_jumps_back_forgets_nothing() -> None:
    desk = alone()
    desk.commit("a", 1, {ORDERS: 7})
    desk.say("a", -1)
    desk.wall_ms -= 100 * WEEK_MS
    expire(desk)
    assert desk.offset(*ORDERS) == 7


def test_offsets_of_a_deleted_topic_are_forgotten_and_not_inherited() -> None:
    desk = alone()
    desk.commit("a", 1, {ORDERS: 7})
    desk.topics.put(Topic(topic_id(9), "orders", 4))
    expire(desk)
    assert desk.shard.fetch(OffsetFetch("g")).partitions == ()


# ── lag ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("offset", "ends", "consumed_ms", "expected"),
    [
        (5, Ends(0, 5), -1, Lag(0, 0)),
        (5, Ends(0, 8, 1000), -1, Lag(3, 9000)),
        (5, Ends(0, 8, 99_000), -1, Lag(3, 0)),  # written by a clock that goes before
        (5, Ends(0, 8), 4000, Lag(3, 6000, at_most=True)),
        (5, Ends(0, 8), -1, Lag(3, -1)),
        (5, Ends(7, 8, 1000), 4000, Lag(1, 9000, lost=2)),
        (5, Ends(7, 8), 4000, Lag(1, -1, lost=2)),
        (5, Ends(9, 9), -1, Lag(0, 0, lost=4)),
        (5, Ends(0, 4), -1, Lag(0, 0)),  # the leader has not heard how much is committed
        (5, Ends(0, -1), -1, UNKNOWN),
        (5, None, -1, UNKNOWN),
        (-1, Ends(0, 8), -1, UNKNOWN),
    ],
)
def test_lag(offset: int, ends: Ends | None, consumed_ms: int, expected: Lag) -> None:
    assert lag_of(offset, ends, 10_000, consumed_ms) == expected


@given(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))
def test_every_record_of_the_log_is_consumed_lag_or_lost(offset: int, start: int, length: int) -> None:
    lag = lag_of(offset, Ends(start, start + length), 0)
    assert lag.records == max(start + length - max(offset, start), 0)
    assert lag.records + lag.lost >= start + length - offset
    assert lag.records >= 0


def test_the_lag_of_a_group_is_the_sum_and_the_longest_time() -> None:
    lags = [Lag(3, 5000), Lag(4, 9000, lost=1), UNKNOWN, Lag(0, 0)]
    assert total(lags) == (Lag(7, 9000, 1), 1)
    assert total([*lags, Lag(2, -1)]) == (Lag(9, -1, 1), 1), (
        "what waits for nobody knows how long may be the longest"
    )
    assert total([Lag(0, 0), Lag(1000, -1)]) == (Lag(1000, -1), 0)
    assert total([Lag(1, 5, at_most=True), Lag(1, 4)])[0].at_most
    assert total([UNKNOWN]) == (UNKNOWN, 1)
