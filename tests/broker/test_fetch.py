"""Fetch, by followers and consumers: what is checked, what is answered and when (design 2.6, 2.11, 2.12, 2.13)."""

import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from tests.broker.node import PLACE, Asked, Node, records
from tidelog.broker.replicas import Replicas
from tidelog.broker.requests import fetch
from tidelog.protocol import records as batches
from tidelog.protocol.errors import (
    FencedLeaderEpoch,
    FetchSessionIdNotFound,
    InvalidFetchSessionEpoch,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    StaleBrokerEpoch,
    StorageError,
    TidelogError,
    UnknownLeaderEpoch,
    UnknownTopicId,
)
from tidelog.protocol.messages import EndWait, EpochEnd, Fetch, FetchReply, Leader, PartitionFetch
from tidelog.protocol.types import BrokerId, Epoch
from tidelog.replication.throttle import Throttle
from tidelog.storage.log import Log

OTHER = (PLACE[0], 1)
THIRD = (PLACE[0], 2)
SIZE = len(records(1))
DECODERS = (batches.decode, batches.columns_of, batches.records, batches.recompressed, batches.thinned)


@pytest.fixture
def node() -> Node:
    node = Node()
    node.lead()
    return node


# ── followers: what is checked, in this order ─────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        ({"epoch": 0, "follower": 9}, FencedLeaderEpoch),
        ({"epoch": -1}, FencedLeaderEpoch),
        ({"epoch": 9, "follower": 9}, UnknownLeaderEpoch),
        ({"follower": 9}, UnknownLeaderEpoch),
        ({"broker_epoch": 19, "offset": 99}, StaleBrokerEpoch),
        ({"offset": 1, "last_epoch": 99}, OffsetOutOfRange),
        ({"offset": 99, "last_epoch": -1}, OffsetOutOfRange),
    ],
)
def test_a_follower_is_refused_at_once_by_the_first_check_that_fails(
    node: Node, ask: dict[str, Any], error: type[TidelogError]
) -> None:
    node.fill(4)
    node.lead()
    node.partition.log.raise_log_start(2)
    asked = node.follower_fetch(ask.pop("follower", 2), ask.pop("offset", 4), **ask)
    assert asked.error == error.code


def test_a_fetch_of_an_earlier_leadership_lets_nobody_join_or_commit() -> None:
    """C-model: what 3 had then, it has cut off since under another leader, and the old fetch arrives late."""
    node = Node()
    node.lead(min_isr=3)
    for _ in range(3):
        node.produce(acks=1)
    node.follow(2, isr=(2, 3), elr=(1,))
    node.lead(isr=(1,), elr=(2, 3), min_isr=2)
    leadership = node.partition.leadership
    assert leadership is not None
    for epoch in (0, -1):
        assert node.fetched(3, 3, epoch=epoch, last_epoch=0).error == FencedLeaderEpoch.code
        assert leadership.followers[BrokerId(3)].fetch_offset == -1, "and nothing is noted"
    sent = leadership.alteration()
    if sent is not None:
        node.adopt(isr=tuple(member for member, _ in sent.members), elr=())
    assert (node.partition.state.isr, node.partition.high_watermark) == ((1,), 0)  # type: ignore[union-attr]


def test_epochs_come_before_who_leads(node: Node) -> None:
    node.follow(2, epoch=3)
    errors = [node.follower_fetch(3, 0, epoch=epoch).error for epoch in (2, 4, 3)]
    assert errors == [FencedLeaderEpoch.code, UnknownLeaderEpoch.code, NotLeaderOrFollower.code]


def test_who_asks_the_wrong_broker_hears_who_leads(node: Node) -> None:
    node.follow(2, epoch=3)
    assert node.consume(0).entry.current_leader == Leader(BrokerId(2), 3)


def test_a_follower_needs_no_lease_of_its_leader(node: Node) -> None:
    node.replicas.lease_until_ms = -1
    assert not node.fetched(2, 0).error
    assert node.consume(0).error == NotLeaderOrFollower.code


def test_logs_that_part_are_told_at_once_and_nothing_is_noted(node: Node) -> None:
    node.fill(2)
    node.lead()
    node.produce(acks=1)
    asked = node.follower_fetch(2, 5, last_epoch=0)
    assert asked.entry.diverging == EpochEnd(0, 2)
    assert (asked.entry.high_watermark, asked.data) == (-1, b"")
    assert node.partition.leadership.followers[BrokerId(2)].fetch_offset == -1  # type: ignore[union-attr]


def test_other_records_up_to_the_same_end_commit_nothing(node: Node) -> None:
    """I-10: by their end alone these logs would be the same."""
    node.fill(2)
    node.lead()
    node.produce(acks=1)
    told = [node.fetched(follower, 3, last_epoch=0).entry.diverging for follower in (2, 3)]
    assert (told, node.partition.high_watermark) == ([EpochEnd(0, 2)] * 2, 2)


def test_a_new_leader_tells_no_high_watermark_before_it_knows_it(node: Node) -> None:
    node.produce(acks=1)
    node.lead()
    assert node.fetched(2, 0).entry.high_watermark == -1
    node.fetched(3, 1)
    assert node.fetched(2, 1).entry.high_watermark == 1


# ── followers: when it is answered ────────────────────────────────────────────────────────────────────


def test_a_follower_waits_for_the_next_record(node: Node) -> None:
    asked = node.follower_fetch(2, 0)
    assert asked.waits
    node.produce(acks=1)
    assert asked.waits, "never inside the change that makes it possible"
    node.turn()
    assert len(asked.data) == SIZE


def test_a_follower_is_answered_once_for_all_records_of_a_burst(node: Node) -> None:
    waiting = node.follower_fetch(2, 0)
    for _ in range(3):
        node.produce(acks=1)
    assert waiting.waits
    node.turn()
    assert len(waiting.data) == 3 * len(records(1))


def test_a_follower_that_waits_is_not_looked_at_because_more_is_committed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.produce(acks=1)
    node.follower_fetch(2, 1)
    looks: list[Any] = []
    look = fetch._Waiting.try_complete

    def looked(self: fetch._Waiting) -> bool:
        looks.append(self.request)
        return look(self)

    monkeypatch.setattr(fetch._Waiting, "try_complete", looked)
    node.fetched(3, 1)
    node.turn()
    assert node.partition.high_watermark == 1
    assert not looks


def test_what_is_fetched_goes_out_as_it_lies_in_the_log(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody on the way decodes a batch, for a follower or for a consumer."""
    for size in (10, 2000):
        node.produce(records(3, size), acks=1)

    def decoded(*_args: object, **_options: object) -> None:
        raise AssertionError("somebody looked into a batch")

    for name, module in list(sys.modules.items()):
        if name.startswith("tidelog."):
            for called, value in list(vars(module).items()):
                if value in DECODERS:
                    monkeypatch.setattr(module, called, decoded)
    stored = bytes(node.partition.log.read(0, 1 << 20).data)
    assert node.fetched(2, 0).data == stored
    node.fetched(2, 6)
    node.fetched(3, 6)
    assert node.consume(0).data == stored
    with pytest.raises(AssertionError, match="looked into"):
        batches.decode(stored)


def test_a_follower_is_answered_at_its_deadline(node: Node) -> None:
    asked = node.follower_fetch(2, 0, wait_ms=500)
    assert node.deadlines[-1] == node.now_ms + 500
    node.wait(499)
    assert asked.waits
    node.wait(1)
    assert asked.entry.end_offset == 0


def test_who_has_something_else_to_ask_for_is_answered_at_once(node: Node) -> None:
    """A partition that is followed from now on would else wait for the end of a poll that does not name it."""
    asked, other = node.follower_fetch(2, 0), node.follower_fetch(3, 0)
    node.ask(EndWait(), one_way=True, behind=asked)
    assert asked.waits, "never inside the change that makes it possible"
    node.turn()
    assert (asked.waits, other.waits) == (False, True)
    assert len(node.replicas.waiting_fetches) == 1
    node.ask(EndWait(), one_way=True, behind=asked)  # nothing waits there any more: nothing happens
    node.turn()
    node.wait(500)
    assert not other.waits
    assert not node.replicas.waiting_fetches, "whoever was answered is forgotten"


def test_min_bytes_are_waited_for(node: Node) -> None:
    asked = node.follower_fetch(2, 0, min_bytes=2 * SIZE)
    node.produce(acks=1)
    node.turn()
    assert asked.waits
    node.produce(acks=1)
    node.turn()
    assert len(asked.data) == 2 * SIZE


def test_bytes_above_what_a_partition_may_give_do_not_count_as_readable(node: Node) -> None:
    asked = node.follower_fetch(2, 0, min_bytes=2 * SIZE, partition_bytes=SIZE)
    for _ in range(3):
        node.produce(acks=1)
    node.turn()
    assert asked.waits


@pytest.mark.parametrize("decision", [{"leader": 2, "leader_epoch": 1}, {"leader_epoch": 1}, {"leader": -1}])
def test_another_leadership_ends_every_waiting_in_the_same_burst(
    node: Node, decision: dict[str, Any]
) -> None:
    waiting = [node.follower_fetch(2, 0), node.consume(0), node.consume(0, epoch=0)]
    node.adopt(**decision)
    node.turn()
    assert not any(asked.waits for asked in waiting)


def test_a_topic_that_goes_ends_every_waiting(node: Node) -> None:
    waiting = [node.follower_fetch(2, 0), node.consume(0)]
    node.remove()
    node.turn()
    assert [asked.error for asked in waiting] == [UnknownTopicId.code] * 2


def test_a_follower_hears_at_once_where_the_log_begins_now(node: Node) -> None:
    node.fill(2)
    opened = node.fetched(2, 2, session_epoch=0).answer.session_id
    asked = node.follower_fetch(2, 2, session_id=opened, session_epoch=1)
    node.partition.delete_before(1)
    node.replicas.touched(PLACE)
    node.turn()
    assert asked.entry.log_start == 1


def test_nobody_is_answered_who_has_gone(node: Node) -> None:
    asked = node.consume(0)
    asked.closed = True
    node.fill()
    node.turn()
    assert asked.waits


def idles(node: Node, follower: int = 2) -> Callable[..., Asked]:
    """A follower that has everything and says so again and again, in a session."""
    node.fill(2)
    session_id = node.fetched(follower, 2, session_epoch=0).answer.session_id
    numbers = count(1)

    def again(**fields: Any) -> Asked:
        return node.follower_fetch(
            follower, 2, session_id=session_id, session_epoch=next(numbers), **{"last_epoch": 0, **fields}
        )

    again().closed = True
    return again


def test_who_says_what_it_has_said_before_is_in_sync_since_then(node: Node) -> None:
    again = idles(node)
    node.now_ms += 5000
    assert again().waits
    known = node.partition.leadership.followers[BrokerId(2)]  # type: ignore[union-attr]
    assert (known.last_caught_up_ms, known.last_fetch_ms) == (node.now_ms, node.now_ms)


def test_who_says_what_it_has_said_before_is_told_of_its_successor_all_the_same(node: Node) -> None:
    """2.6: another process has its id now."""
    again = idles(node)
    node.image.brokers[BrokerId(2)] = replace(node.image.brokers[BrokerId(2)], epoch=Epoch(99))
    assert again().error == StaleBrokerEpoch.code


def test_who_says_what_it_has_said_before_is_told_of_a_broken_disk_all_the_same(node: Node) -> None:
    again = idles(node)
    node.partition.go_offline("broken")
    assert again().error == StorageError.code


def test_who_says_what_it_has_said_before_waits_no_longer_when_there_is_more(node: Node) -> None:
    again = idles(node)
    asked = again()
    assert asked.waits
    node.produce(acks=1)
    node.turn()
    assert len(asked.data) == SIZE


def test_who_has_everything_of_another_history_is_told_where_it_parts(node: Node) -> None:
    again = idles(node)
    assert again(last_epoch=99).entry.diverging is not None


# ── how much ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_batch_larger_than_all_limits_is_given_whole(node: Node) -> None:
    node.produce(acks=1)
    node.produce(acks=1)
    assert len(node.fetched(2, 0, max_bytes=1, partition_bytes=1).data) == SIZE
    assert len(node.fetched(2, 0, max_bytes=0, partition_bytes=0).data) == SIZE


def test_what_is_asked_for_at_most_is_all_that_is_given(node: Node) -> None:
    for _ in range(5):
        node.produce(acks=1)
    assert len(node.fetched(2, 0, max_bytes=2 * SIZE).data) == 2 * SIZE
    assert len(node.fetched(2, 0, partition_bytes=3 * SIZE).data) == 3 * SIZE


def test_an_answer_fits_into_a_frame_whatever_is_asked_for(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.broker.requests.fetch.FETCH_MAX_BYTES", 2 * SIZE)
    node.fill(5)
    assert len(node.consume(0, max_bytes=2**31 - 1, partition_bytes=2**31 - 1).data) == 2 * SIZE


def test_partitions_take_turns_where_there_is_room_for_one(node: Node) -> None:
    for place in (OTHER, THIRD):
        node.adopt(place=place)
        for _ in range(3):
            node.produce(acks=1, place=place)
    served = [session_fetch(node, turn).answer.partitions[-1].index for turn in range(4)]
    assert served == [1, 2, 1, 2], "partition 0 has nothing, and costs nobody a turn"


def session_fetch(node: Node, turn: int) -> Asked:
    """A follower's fetch from the beginning of three partitions, with room for a single batch."""
    entries = [
        PartitionFetch(*place, 0, SIZE, current_leader_epoch=0, durable_offset=0, log_start=0)
        for place in (PLACE, OTHER, THIRD)
    ]
    fetch = Fetch(
        0,
        1,
        SIZE,
        tuple(entries) if not turn else (),
        session_id=1 if turn else 0,
        session_epoch=turn,
        broker_id=BrokerId(2),
        broker_epoch=20,
    )
    asked = node.ask(fetch)
    with_records = [entry for entry in asked.answer.partitions if entry.records_size]
    assert len(with_records) == 1
    asked.answer = FetchReply(tuple(with_records))
    return asked


def test_an_error_of_the_session_is_one_of_the_whole(node: Node) -> None:
    assert session(node, 7, 1).answer.error == FetchSessionIdNotFound.code
    first = session(node, 0, 0)
    opened = first.answer.session_id
    assert session(node, opened, 2, behind=first).answer.error == InvalidFetchSessionEpoch.code


def session(node: Node, number: int, epoch: int, behind: Asked | None = None) -> Asked:
    return node.consume(0, wait_ms=0, session_id=number, session_epoch=epoch, behind=behind)


# ── consumers ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_consumer_sees_what_is_committed_and_no_more(node: Node) -> None:
    node.fill(2)
    node.produce(acks=1)
    asked = node.consume(0)
    assert len(asked.data) == 2 * SIZE
    assert (asked.entry.high_watermark, asked.entry.last_stable_offset) == (2, 2)
    assert asked.entry.end_offset == -1


def test_a_new_leader_tells_no_consumer_a_high_watermark_before_it_knows_it(node: Node) -> None:
    """KIP-207: the last leader may have told a higher one."""
    node.fill(2)
    node.produce(acks=1)
    node.lead()
    assert [node.consume(0, wait_ms=0).entry.high_watermark for _ in range(2)] == [-1, -1]
    node.fill()
    assert node.consume(0).entry.high_watermark == 4


def test_a_consumer_waits_for_the_high_watermark(node: Node) -> None:
    asked = node.consume(0)
    node.produce(acks=1)
    node.fetched(2, 1)
    node.turn()
    assert asked.waits
    node.fetched(3, 1)
    node.turn()
    assert len(asked.data) == SIZE


def test_what_is_not_committed_yet_is_no_error(node: Node) -> None:
    node.produce(acks=1)
    assert not node.consume(1, wait_ms=0).error


@pytest.mark.parametrize("offset", [0, 5])
def test_a_place_that_is_not_in_the_log_is_told_at_once(node: Node, offset: int) -> None:
    node.fill(4)
    node.partition.log.raise_log_start(2)
    assert node.consume(offset).error == OffsetOutOfRange.code
    assert node.consume(offset, min_bytes=9999).error == OffsetOutOfRange.code


def test_a_consumer_that_names_its_last_epoch_hears_where_the_logs_part(node: Node) -> None:
    node.fill(2)
    node.lead()
    node.fill(2)
    asked = node.consume(3, last_epoch=0)
    assert asked.entry.diverging == EpochEnd(0, 2)
    assert not asked.data


def test_a_lease_that_has_ended_is_noticed_when_the_answer_is_made(node: Node) -> None:
    node.fill()
    node.replicas.lease_until_ms = node.now_ms + 100
    asked = node.consume(1, wait_ms=500)
    node.wait(500)
    assert asked.error == NotLeaderOrFollower.code


def test_a_batch_that_cannot_be_read_takes_the_replica_offline(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.fill()

    def fails(*_: Any) -> None:
        raise StorageError("planted")

    monkeypatch.setattr(Log, "read", fails)
    assert node.consume(0).error == StorageError.code
    assert node.partition.offline


@pytest.mark.parametrize("late", [False, True], ids=["at once", "while it waits"])
def test_who_waits_for_more_bytes_is_answered_when_the_disk_does_not_say_how_many_there_are(
    late: bool,
) -> None:
    node = Node()
    node.lead(isr=(1,), min_isr=1)
    for _ in range(4):
        node.produce()
    asked = node.consume(2, min_bytes=10_000) if late else None
    log = node.partition.log
    log.segments[-1].let_go()
    log.segments[-1]._cursors.clear()
    node.disk.fail_reads(f"{log.directory.path}/{log.segments[-1].name}", 0, 10_000)
    asked = asked or node.consume(2, min_bytes=10_000)
    node.replicas.touched(PLACE)
    node.turn()
    assert asked.error == StorageError.code
    assert node.partition.offline


@pytest.mark.parametrize("until", ["touched", "deadline"])
def test_a_wait_that_meets_an_error_without_a_name_is_answered_with_one_and_over(
    node: Node, monkeypatch: pytest.MonkeyPatch, until: str
) -> None:
    asked = node.consume(0)

    def fails(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(fetch._Waiting, "_enough" if until == "touched" else "_read", fails)
    node.replicas.touched(PLACE)
    with pytest.raises(ZeroDivisionError):
        node.turn() if until == "touched" else node.wait(500)
    assert asked.refused is not None
    assert not node.replicas.waiting_fetches
    assert not len(node.replicas.delayed)


# ── replicas that are being added ─────────────────────────────────────────────────────────────────────


@pytest.fixture
def adding(node: Node) -> Node:
    """Broker 3 is being added, and may take a batch a second."""
    node.context = replace(node.context, throttle=Throttle(SIZE))
    node.adopt(isr=(1, 2), adding=(3,))
    for _ in range(5):
        node.produce(acks=1)
    return node


def test_a_replica_that_is_being_added_waits_for_its_share(adding: Node) -> None:
    assert len(adding.follower_fetch(3, 0).data) == SIZE
    asked = adding.follower_fetch(3, 1)
    adding.wait(499)
    assert asked.waits, "or it would ask again and again"
    adding.wait(1)
    assert len(asked.data) == SIZE, "half of it is owed"
    asked = adding.follower_fetch(3, 2)
    adding.wait(500)
    assert not asked.data


def test_a_replica_in_sync_is_never_throttled(adding: Node) -> None:
    adding.follower_fetch(3, 0)
    assert len(adding.follower_fetch(2, 0).data) == 5 * SIZE
    adding.adopt(isr=(1, 2, 3))
    assert len(adding.follower_fetch(3, 0).data) == 5 * SIZE


# ── in order (ADR 0071) ───────────────────────────────────────────────────────────────────────────────


def test_a_fetch_that_was_held_back_is_not_heard() -> None:
    """Its follower may have begun anew since: what it said it has is gone."""
    node = Node()
    node.lead(isr=(1, 2))
    node.fill(2)
    assert node.fetched(3, 0, fetch_seq=8).answer.error == 0
    assert node.fetched(3, 2, fetch_seq=7).answer.error == InvalidFetchSessionEpoch.code
    assert node.fetched(3, 0, fetch_seq=8).answer.error == InvalidFetchSessionEpoch.code
    leadership = node.partition.leadership
    assert leadership is not None
    assert leadership.followers[BrokerId(3)].fetch_offset == 0


def test_another_process_begins_to_count_again() -> None:
    node = Node()
    node.lead()
    node.fetched(3, 0, fetch_seq=8)
    assert node.fetched(3, 0, fetch_seq=1, broker_epoch=31).answer.error == 0
    assert node.fetched(3, 0, fetch_seq=9).error == StaleBrokerEpoch.code
    assert node.fetched(3, 0, fetch_seq=1, broker_epoch=31).answer.error == InvalidFetchSessionEpoch.code


def test_hearing_fetches_in_any_order_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replicas, "hears", lambda *_: True)
    with pytest.raises(AssertionError):
        test_a_fetch_that_was_held_back_is_not_heard()


def test_nobody_waits_for_longer_than_a_minute_whatever_he_asks_for(node: Node) -> None:
    """What a client that is gone has asked for is remembered for as long."""
    asked = node.consume(0, wait_ms=2**31 - 1)
    node.wait(fetch.WAIT_MAX_MS - 1)
    assert asked.waits
    node.wait(1)
    assert not asked.waits
