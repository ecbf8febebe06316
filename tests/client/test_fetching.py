"""What a consumer asks, of whom, and what an answer means: positions move by reading only, nothing is skipped."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.client.consuming import FIRST, ID, ONE, SECOND, TWO, Desk, batch, offsets_asked
from tidelog.client.fetch_sessions import FetchSession, Place
from tidelog.client.fetching import Decode
from tidelog.client.hand import Hand
from tidelog.client.records import RecordBatch
from tidelog.protocol.errors import (
    ConnectionFailed,
    CorruptMessage,
    FetchSessionIdNotFound,
    LogTruncated,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    ReplicaNotAvailable,
    TidelogError,
    UnknownLeaderEpoch,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from tidelog.protocol.messages import EARLIEST, LATEST, EpochEnd, FetchReply, PartitionFetch
from tidelog.protocol.records import decode, decode_packed
from tidelog.protocol.types import BrokerId

# ── asking ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_fetch_names_what_is_wanted_and_the_epoch_that_is_believed_in() -> None:
    asked = Desk().asked()
    assert offsets_asked(asked) == {0: 0, 1: 0}
    assert [entry.current_leader_epoch for entry in asked.request.partitions] == [3, 3]
    assert asked.request.max_wait_ms == 500


def test_a_broker_has_one_fetch_at_a_time() -> None:
    desk = Desk()
    asked = desk.asked()
    assert desk.ask() is None
    desk.answer(asked)
    assert desk.ask() is not None


def test_each_broker_is_asked_for_what_it_leads() -> None:
    desk = Desk(leaders=(1, 2))
    assert offsets_asked(desk.asked(1)) == {0: 0}
    assert offsets_asked(desk.asked(2)) == {1: 0}
    assert desk.fetching.brokers(0) == {ONE, TWO}


def test_the_next_fetch_begins_behind_what_has_come_though_nobody_has_read_it() -> None:
    desk = Desk()
    desk.answer(desk.asked(), batch(0, 5) + batch(5, 2))
    assert offsets_asked(desk.asked())[0] == 7
    assert desk.first.position == 0


def test_what_is_paused_is_not_asked_for() -> None:
    desk = Desk()
    desk.first.paused = True
    assert offsets_asked(desk.asked()) == {1: 0}


def test_a_partition_without_a_leader_wants_metadata() -> None:
    desk = Desk(leaders=(-1, 1))
    assert offsets_asked(desk.asked()) == {1: 0}
    assert desk.fetching.astray == {"orders": None}


def test_who_has_enough_is_left_out_and_the_broker_holds_no_answer_back_meanwhile() -> None:
    desk = Desk(max_partition_fetch_bytes=100)
    desk.answer(desk.asked(), batch(0, 1, size=200))
    asked = desk.asked()
    assert offsets_asked(asked) == {1: 0}
    assert asked.request.max_wait_ms == 0
    desk.answer(asked, index=1)
    assert desk.ask() is None, "and it is not asked all the time"
    assert desk.fetching.wake_ms(desk.now_ms) == desk.now_ms + 20
    assert desk.read() == [0]
    assert desk.fetching.made_room(desk.first)
    assert offsets_asked(desk.asked()) == {0: 1, 1: 0}


def test_all_partitions_together_hold_no_more_than_is_allowed() -> None:
    desk = Desk(prefetch_bytes=300)
    desk.answer(desk.asked(), batch(0, 1, size=300))
    assert desk.ask() is None
    desk.read()
    assert desk.ask() is not None


def test_what_is_paused_keeps_no_room_from_the_others() -> None:
    """Nobody reads it: they would wait until somebody goes on with it."""
    desk = Desk(prefetch_bytes=300)
    desk.answer(desk.asked(), batch(0, 1, size=300))
    desk.first.paused = True
    assert offsets_asked(desk.asked()) == {1: 0}


def test_what_others_have_keeps_no_room_from_those_that_somebody_waits_for() -> None:
    desk = Desk(prefetch_bytes=300)
    desk.answer(desk.asked(), batch(0, 1, size=300))
    desk.fetching.awaited = {SECOND}
    asked = desk.asked()
    assert offsets_asked(asked) == {1: 0}
    desk.answer(asked, batch(0, 1, size=300), index=1)
    assert desk.ask() is None
    desk.fetching.awaited = {FIRST}
    assert desk.ask() is None


def test_what_is_read_one_by_one_is_not_put_back_when_the_log_was_cut_off_below_it() -> None:
    """Else the position would be behind what is new there, and that would never be given."""
    desk = Desk()
    hand = Hand(desk.fetching)
    hand.begin([FIRST, SECOND])
    desk.answer(desk.asked(), batch(0, 10))
    assert [record and record.offset for record in (hand.one_by_one(), hand.one_by_one())] == [0, 1]
    desk.fetching._cut_off(desk.first, 2, 5)
    hand.put_back()
    assert (desk.first.position, desk.first.rest) == (5, None)


# ── answers ───────────────────────────────────────────────────────────────────────────────────────────


def test_records_are_read_in_order_and_the_position_is_behind_them() -> None:
    desk = Desk()
    desk.answer(desk.asked(), batch(0, 3) + batch(3, 2))
    assert desk.read() == [0, 1, 2, 3, 4]
    assert desk.first.position == 5
    assert desk.fetching.buffered_bytes == 0


def test_records_before_the_position_are_left_out() -> None:
    desk = Desk(start=3)
    desk.answer(desk.asked(), batch(0, 5))
    assert desk.read() == [3, 4]


def test_markers_are_passed_and_not_given_to_anybody() -> None:
    desk = Desk()
    desk.answer(desk.asked(), batch(0, 1) + batch(1, 1, control=True))
    assert desk.read() == [0]
    assert desk.first.position == 2


def test_an_answer_that_comes_after_a_seek_is_nothing() -> None:
    desk = Desk()
    asked = desk.asked()
    desk.first.seek(50)
    desk.answer(asked, batch(0, 5))
    assert desk.read() == []
    assert offsets_asked(desk.asked())[0] == 50


def test_an_answer_that_lies_below_is_nothing() -> None:
    desk = Desk(start=10)
    desk.answer(desk.asked(), batch(0, 5))
    assert desk.read() == []
    assert (desk.first.offset, desk.first.position) == (10, 10)


def test_an_answer_for_a_partition_that_is_not_read_any_more_is_nothing() -> None:
    desk = Desk()
    asked = desk.asked()
    desk.fetching.unassign([FIRST])
    desk.answer(asked, batch(0, 5))
    assert list(desk.fetching.readers) == [SECOND]


def test_the_end_is_known_by_the_answers_and_never_goes_back() -> None:
    desk = Desk()
    desk.answer(desk.asked(), high_watermark=7)
    desk.answer(desk.asked(), high_watermark=-1)
    assert desk.first.high_watermark == 7


def test_with_another_leader_the_end_may_be_an_earlier_one() -> None:
    desk = Desk()
    desk.answer(desk.asked(), batch(0, 5), high_watermark=100)
    desk.read()
    late = desk.asked()
    desk.lead(2, 1, epoch=4)
    desk.checked(desk.question(), 3, 5)
    assert desk.first.high_watermark == 100, "until the new one has said something"
    desk.answer(desk.asked(2), high_watermark=6)
    assert desk.first.high_watermark == 6
    assert desk.fetching.lag == 1
    desk.answer(late, high_watermark=100)
    assert desk.first.high_watermark == 6, "what the old one has said last is nothing any more"


@pytest.mark.parametrize("at", [0, 20, 40, 70, -1])
def test_a_damaged_batch_is_an_error_with_its_place_each_time_and_is_not_skipped(at: int) -> None:
    desk = Desk()
    good, bad = batch(0, 2), bytearray(batch(2, 2))
    bad[at] ^= 1
    for _ in range(2):
        if desk.first.offset == 0:
            desk.answer(desk.asked(), good + bytes(bad))
            found = desk.fetching.take(desk.first)
            assert found is not None
            assert list(found.offsets) == [0, 1]
        else:
            desk.answer(desk.asked(), bytes(bad))
        with pytest.raises(TidelogError, match=r"orders-0.* offset 2: .*seek beyond it to skip it"):
            desk.read()
        assert desk.first.position == 2
        assert desk.first.offset == 2


def test_an_answer_without_one_whole_batch_is_an_error() -> None:
    desk = Desk()
    desk.answer(desk.asked(), batch(0, 2)[:70])
    with pytest.raises(CorruptMessage, match="orders-0: the answer at offset 0 holds no whole batch"):
        desk.read()


def test_what_is_given_back_is_read_again() -> None:
    desk = Desk()
    desk.answer(desk.asked(), batch(0, 5) + batch(5, 1))
    found = desk.fetching.take(desk.first)
    assert found is not None
    _, rest = found.split(2)
    assert rest is not None
    desk.fetching.give_back(desk.first, rest)
    assert desk.first.position == 2
    assert desk.read() == [2, 3, 4, 5]


# ── errors ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_broker_that_does_not_lead_is_asked_again_later_and_the_metadata_before() -> None:
    desk = Desk()
    desk.answer(desk.asked(), error=NotLeaderOrFollower.code)
    assert desk.fetching.astray == {"orders": None}
    assert offsets_asked(desk.asked()) == {1: 0}
    desk.lead(2, 1, epoch=4)
    assert offsets_asked(desk.asked(2)) == {0: 0}, "another leader is asked at once"


def test_a_leader_that_is_behind_is_asked_again_later() -> None:
    desk = Desk(leaders=(1,))
    desk.answer(desk.asked(), error=UnknownLeaderEpoch.code)
    assert desk.ask() is None
    assert desk.fetching.wake_ms(desk.now_ms) == desk.now_ms + 10
    assert offsets_asked(desk.asked(after_ms=10)) == {0: 0}


def test_a_lost_answer_is_asked_for_again() -> None:
    desk = Desk()
    asked = desk.asked()
    desk.fetching.lost(asked, ConnectionFailed("cut"), desk.now_ms)
    assert desk.ask() is None
    assert offsets_asked(desk.asked(after_ms=10)) == {0: 0, 1: 0}


def test_an_error_that_nothing_mends_is_told_when_what_is_here_was_read() -> None:
    desk = Desk()
    desk.answer(desk.asked(), batch(0, 1))
    desk.answer(desk.asked(), error=UnsupportedVersion.code, message="too old")
    batch_ = desk.fetching.take(desk.first)
    assert batch_ is not None
    with pytest.raises(UnsupportedVersion, match="orders-0 at offset 1: too old"):
        desk.fetching.take(desk.first)


def test_a_topic_that_is_gone_is_told() -> None:
    desk = Desk()
    desk.fetching.gone("orders")
    with pytest.raises(UnknownTopicOrPartition):
        desk.read()


def test_a_topic_that_was_made_anew_is_not_read_on_as_if_nothing_had_happened() -> None:
    desk = Desk(start=7)
    desk.lead(1, 1, topic_id=b"another-another-")
    with pytest.raises(UnknownTopicId, match="orders-0 was at offset 7 of a topic that was deleted"):
        desk.read()
    desk.first.seek(0)
    assert [entry.topic_id for entry in desk.asked().request.partitions] == [b"another-another-"]


# ── where to begin ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("policy", "which"), [("earliest", EARLIEST), ("latest", LATEST)])
def test_without_a_position_the_leader_is_asked_where_to_begin(policy: str, which: int) -> None:
    desk = Desk(leaders=(1,), start=None, auto_offset_reset=policy)
    assert desk.ask() is None
    question = desk.question()
    assert question.timestamp == which
    assert desk.fetching.questions(desk.now_ms) == {}, "once"
    desk.found(question, 42)
    assert offsets_asked(desk.asked()) == {0: 42}


def test_without_a_policy_there_must_be_a_position() -> None:
    desk = Desk(leaders=(1,), start=None, auto_offset_reset="none")
    with pytest.raises(OffsetOutOfRange, match="orders-0 has no position"):
        desk.read()
    desk.first.seek(5)
    assert offsets_asked(desk.asked()) == {0: 5}


def test_a_question_that_fails_is_asked_again_and_one_from_before_a_seek_is_nothing() -> None:
    desk = Desk(leaders=(1,), start=None)
    question = desk.question()
    desk.fetching.not_answered(question, ConnectionFailed("cut"), desk.now_ms)
    assert desk.fetching.questions(desk.now_ms) == {}
    desk.now_ms += 10
    question = desk.question()
    desk.first.seek(5)
    desk.found(question, 42)
    assert desk.first.position == 5


def test_an_offset_that_was_deleted_is_left_for_where_the_policy_says() -> None:
    for policy, which, end in (("earliest", EARLIEST, 20), ("latest", LATEST, 90)):
        desk = Desk(leaders=(1,), start=5, auto_offset_reset=policy)
        desk.answer(desk.asked(), error=OffsetOutOfRange.code)
        desk.found(desk.question(), 20)
        if which == LATEST:
            question = desk.question()
            assert question.timestamp == LATEST
            desk.found(question, 90)
        assert desk.first.position == end
        [(name, note)] = desk.fetching.notes
        assert (name, "offset 5 is out of range" in note) == (FIRST, True)


def test_an_offset_above_the_end_goes_to_the_end_and_nothing_is_read_twice() -> None:
    desk = Desk(leaders=(1,), start=95)
    desk.answer(desk.asked(), error=OffsetOutOfRange.code)
    desk.found(desk.question(), 0)
    desk.found(desk.question(), 90)
    assert desk.first.position == 90


@pytest.mark.parametrize("policy", ["earliest", "latest"])
def test_what_another_leader_has_not_deleted_is_read_where_the_position_was(policy: str) -> None:
    desk = Desk(leaders=(1,), start=5, auto_offset_reset=policy)
    desk.answer(desk.asked(), error=OffsetOutOfRange.code, message="offset 5 lies below 20")
    desk.lead(2, epoch=4)
    desk.found(desk.question(), 0)
    desk.found(desk.question(), 90)
    assert desk.ask(2) is None, "who is refused again and again does not ask without rest"
    assert offsets_asked(desk.asked(2, after_ms=20)) == {0: 5}
    assert desk.first.position == 5
    assert desk.fetching.notes == []


def test_what_another_leader_holds_again_is_compared_with_what_was_read_before() -> None:
    desk = Desk(leaders=(1,))
    desk.answer(desk.asked(), batch(0, 5))
    assert desk.read() == [0, 1, 2, 3, 4]
    desk.answer(desk.asked(), error=OffsetOutOfRange.code)
    desk.lead(2, epoch=4)
    desk.found(desk.question(), 0)
    desk.found(desk.question(), 90)
    desk.now_ms += 20
    question = desk.question()
    assert question.timestamp is None, "first it is checked against the leader's epochs"
    desk.checked(question, 3, 3)
    assert offsets_asked(desk.asked(2)) == {0: 3}


def test_without_a_policy_an_offset_out_of_range_is_an_error() -> None:
    desk = Desk(leaders=(1,), start=5, auto_offset_reset="none")
    desk.answer(desk.asked(), error=OffsetOutOfRange.code, message="20 is the first")
    with pytest.raises(OffsetOutOfRange, match="orders-0: 20 is the first"):
        desk.read()


# ── truncation (KIP-320) ──────────────────────────────────────────────────────────────────────────────


def reading(**options: Any) -> Desk:
    """Five records were read, two more are here; then another leader."""
    desk = Desk(leaders=(1,), **options)
    desk.answer(desk.asked(), batch(0, 5) + batch(5, 2))
    assert desk.fetching.take(desk.first) is not None
    desk.lead(2, epoch=4)
    return desk


def test_after_a_change_of_leader_the_position_is_checked_before_the_next_fetch() -> None:
    desk = reading()
    assert desk.ask(2) is None
    question = desk.question()
    assert question.timestamp is None
    desk.checked(question, 3, 7)
    assert offsets_asked(desk.asked(2)) == {0: 7}
    assert desk.read() == [5, 6]


def test_what_was_cut_off_and_not_read_is_fetched_again() -> None:
    desk = reading()
    desk.checked(desk.question(), 3, 6)
    assert desk.read() == []
    assert offsets_asked(desk.asked(2)) == {0: 5}


def test_what_was_cut_off_after_it_was_read_is_told_or_goes_by_the_policy() -> None:
    desk = reading()
    desk.checked(desk.question(), 2, 3)
    assert desk.first.position == 3
    assert "cut off at 3 after 5 was read" in desk.fetching.notes[0][1]
    desk = reading(auto_offset_reset="none")
    desk.checked(desk.question(), 2, 3)
    with pytest.raises(LogTruncated, match="up to offset 5 were read, the log parts at 3") as caught:
        desk.read()
    assert caught.value.offset == 3, "where what was read is still there"


def test_the_epoch_of_a_record_is_known_while_its_batch_was_the_last_to_be_read() -> None:
    desk = Desk(leaders=(1,))
    desk.answer(desk.asked(), batch(0, 5) + batch(5, 2))
    assert desk.first.epoch_before(0) == -1
    assert desk.fetching.take(desk.first) is not None
    assert [desk.first.epoch_before(offset) for offset in (0, 1, 5, 6)] == [-1, 3, 3, -1]
    assert desk.fetching.take(desk.first) is not None
    assert [desk.first.epoch_before(offset) for offset in (5, 6, 7)] == [-1, 3, 3]


def test_a_leader_that_says_where_logs_part_is_believed() -> None:
    desk = Desk(leaders=(1,), auto_offset_reset="none")
    desk.answer(desk.asked(), batch(0, 5))
    desk.read()
    asked = desk.asked()
    assert asked.request.partitions[0].last_fetched_epoch == 3
    desk.answer(asked, diverging=EpochEnd(2, 3))
    with pytest.raises(LogTruncated):
        desk.read()


# ── replicas nearby ───────────────────────────────────────────────────────────────────────────────────


def nearby() -> Desk:
    """The leader has said that broker 2 stands nearer."""
    desk = Desk(leaders=(1,), rack="a")
    asked = desk.asked()
    assert asked.request.client_rack == "a"
    desk.answer(asked, preferred_read_replica=BrokerId(2))
    return desk


def test_a_replica_nearby_is_read_from_for_five_minutes() -> None:
    desk = nearby()
    assert desk.ask(1) is None
    asked = desk.asked(2)
    assert asked.request.client_rack == "a"
    desk.answer(asked, batch(0, 2))
    assert desk.read() == [0, 1]
    assert desk.ask(1, after_ms=300_000) is not None


@pytest.mark.parametrize("error", [ReplicaNotAvailable, NotLeaderOrFollower])
def test_a_replica_that_fails_is_left_for_the_leader_which_is_not_asked_for_it_for_a_while(
    error: type[TidelogError],
) -> None:
    desk = nearby()
    desk.answer(desk.asked(2), error=error.code)
    asked = desk.asked(1, after_ms=10)
    assert asked.request.client_rack == ""
    desk.answer(asked)
    assert desk.asked(1, after_ms=5000).request.client_rack == "a"


def test_a_replica_that_lacks_an_offset_says_nothing_about_the_log() -> None:
    desk = nearby()
    desk.answer(desk.asked(2), error=OffsetOutOfRange.code)
    assert desk.first.question is None
    assert offsets_asked(desk.asked(1)) == {0: 0}


# ── sessions ──────────────────────────────────────────────────────────────────────────────────────────


def test_within_a_session_only_what_has_changed_is_said() -> None:
    desk = Desk()
    desk.answer(desk.asked(), batch(0, 2), session=9)
    asked = desk.asked()
    assert (asked.request.session_id, asked.request.session_epoch) == (9, 1)
    assert [entry.index for entry in asked.request.partitions] == [0]
    desk.answer(asked, session=9)
    desk.first.paused = True
    asked = desk.asked()
    assert [entry.index for entry in asked.request.forget] == [0]
    desk.answer(asked, index=1, session=9)
    desk.first.paused = False
    assert [entry.index for entry in desk.asked().request.partitions] == [0]


def test_after_an_error_of_the_session_everything_is_said_again() -> None:
    desk = Desk()
    desk.answer(desk.asked(), session=9)
    asked = desk.asked()
    refusal = FetchReply(error=FetchSessionIdNotFound.code, message="9 is not known")
    desk.fetching.answered(asked, refusal, b"", desk.now_ms)
    asked = desk.asked(after_ms=10)
    assert (asked.request.session_id, asked.request.session_epoch) == (0, 0)
    assert len(asked.request.partitions) == 2


WANTED = st.dictionaries(st.integers(0, 4), st.integers(0, 3), max_size=5)


@given(st.lists(st.tuples(WANTED, st.sampled_from(["kept", "none", "lost"])), max_size=20))
def test_a_broker_with_a_session_knows_what_is_wanted(rounds: list[tuple[dict[int, int], str]]) -> None:
    session, number = FetchSession(), 0
    known: dict[Place, PartitionFetch] = {}
    for wanted, what in rounds:
        entries = {(ID, index): PartitionFetch(ID, index, offset, 10) for index, offset in wanted.items()}
        said = session.say(entries)
        if said.session_epoch == 0:
            known = {}
            number += 1
        for entry in said.partitions:
            known[entry.topic_id, entry.index] = entry
        for gone in said.forget:
            del known[gone.topic_id, gone.index]
        assert known == entries
        if what == "lost":
            session.begin_anew()
        else:
            session.answered(number if what == "kept" else 0)


# ── batches ───────────────────────────────────────────────────────────────────────────────────────────


def taken(unpack: Decode = decode) -> RecordBatch:
    """Five records at once."""
    desk = Desk(start=10, unpack=unpack)
    desk.answer(desk.asked(), batch(10, 5))
    found = desk.fetching.take(desk.first)
    assert found is not None
    return found


@pytest.mark.parametrize("unpack", [decode, decode_packed])
def test_a_batch_is_columns_and_records_alike(unpack: Decode) -> None:
    found = taken(unpack)
    assert [record.offset for record in found] == list(found.offsets) == [10, 11, 12, 13, 14]
    assert [record.value for record in found.records()] == found.values
    assert [record.key for record in found] == found.keys
    assert [record.timestamp_ms for record in found] == found.timestamps_ms == [1000] * 5
    assert [record.headers for record in found] == found.headers == [()] * 5
    assert (found.offset, found.next_offset, len(found)) == (10, 15, 5)
    assert {(record.topic, record.partition) for record in found} == {("orders", 0)}


@given(st.integers(1, 6), st.sampled_from([decode, decode_packed]))
def test_the_parts_of_a_batch_are_the_batch(count: int, unpack: Decode) -> None:
    found = taken(unpack)
    part, rest = found.split(count)
    assert [*part.values, *(rest.values if rest else [])] == found.values
    assert part.next_offset == (rest.offset if rest else 15)
    after = found.after(9 + count)
    assert (after.offsets if after else []) == (rest.offsets if rest else [])


def test_a_fetch_that_is_held_back_is_outdated_when_something_else_can_be_asked_for() -> None:
    desk = Desk(leaders=(1, 2))
    asked = desk.asked()
    outdated = desk.fetching.outdated
    assert not outdated(asked, desk.now_ms)
    desk.second.seek(7)
    assert not outdated(asked, desk.now_ms), "of broker 2"
    desk.lead(1, 1)
    assert outdated(asked, desk.now_ms), "which leads now"
    desk.second.paused = True
    assert not outdated(asked, desk.now_ms)
    desk.first.seek(9)
    assert outdated(asked, desk.now_ms), "sought elsewhere"
    assert not outdated(asked._replace(request=replace(asked.request, max_wait_ms=0)), desk.now_ms), (
        "its answer comes at once"
    )
