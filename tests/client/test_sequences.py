"""A batch that may be written keeps its number; a new epoch waits until nothing is in doubt (design 5.3)."""

import pytest

from tests.client.producing import Desk, is_named, numbers
from tidelog.client.batching import Batch
from tidelog.client.sending import Shipment
from tidelog.protocol.errors import (
    ConnectionFailed,
    DuplicateSequenceNumber,
    InvalidProducerEpoch,
    InvalidRecord,
    MessageTooLarge,
    NotEnoughReplicas,
    OutOfOrderSequenceNumber,
    RequestTimedOut,
    TidelogError,
    UnknownProducerId,
    UnknownServerError,
)
from tidelog.protocol.messages import InitProducerId
from tidelog.protocol.types import SEQUENCES


def test_nothing_is_sent_before_there_is_an_identity() -> None:
    desk = Desk(named=False)
    desk.put()
    assert desk.turn() == []
    assert desk.name() == InitProducerId()
    assert numbers(desk.one().batches[0]) == (7, 0, 0)


def test_an_identity_is_asked_for_once_and_again_when_nobody_gives_one() -> None:
    desk = Desk(named=False)
    assert desk.sequences.ask(unresolved=False) is not None
    assert desk.sequences.ask(unresolved=False) is None
    desk.sequences.not_given()
    assert desk.sequences.ask(unresolved=False) is not None


def test_batches_of_a_partition_are_numbered_by_their_records() -> None:
    desk = Desk()
    desk.put()
    desk.put()
    first = desk.one()
    desk.full()
    second = desk.one()
    assert [numbers(shipment.batches[0])[2] for shipment in (first, second)] == [0, 2]


def test_each_partition_counts_for_itself() -> None:
    desk = Desk(leaders=(1, 1))
    desk.put(partition=0)
    desk.put(partition=1)
    assert [numbers(batch)[2] for batch in desk.one().batches] == [0, 0]


def test_without_idempotence_nothing_is_numbered() -> None:
    desk = Desk(idempotent=False)
    desk.put()
    assert numbers(desk.one().batches[0]) == (-1, -1, -1)


def test_a_repeated_batch_is_the_same_byte_for_byte() -> None:
    desk = Desk()
    desk.put()
    shipment = desk.one()
    sent = bytes(shipment.batches[0].data or b"")
    desk.lost(shipment, ConnectionFailed("cut"))
    assert bytes(desk.one(100).batches[0].data or b"") == sent


def test_a_duplicate_is_a_success() -> None:
    desk = Desk()
    batch = desk.put()
    desk.refused(desk.one(), DuplicateSequenceNumber("written long ago"))
    assert batch.done
    assert batch.error is None
    assert batch.offset(0) == -1


def test_who_waits_for_an_earlier_batch_is_sent_behind_it_under_its_own_number() -> None:
    desk = Desk()
    first, second = desk.full(), desk.full()
    one, two = desk.turn()
    assert [one.batches, two.batches] == [[first], [second]]
    desk.refused(one, NotEnoughReplicas("two are missing"))
    desk.refused(two, OutOfOrderSequenceNumber("0 is next"))
    again = desk.one(100)
    assert again.batches == [first]
    assert desk.turn(100) == [], "the next one waits until that is done"
    desk.written(again)
    assert desk.one().batches == [second]
    assert numbers(second) == (7, 0, 1)
    assert is_named(desk)


@pytest.mark.parametrize("error", [OutOfOrderSequenceNumber, UnknownProducerId])
def test_a_broker_that_has_forgotten_the_producer_is_met_with_a_new_epoch(
    error: type[TidelogError],
) -> None:
    desk = Desk()
    desk.put()
    desk.written(desk.one())
    batch = desk.put()
    desk.refused(desk.one(), error("not known"))
    assert desk.turn(100) == []
    assert desk.name(7, 1) == InitProducerId(7, 0)
    assert desk.one().batches == [batch]
    assert numbers(batch) == (7, 1, 0)


def test_a_producer_that_was_overtaken_begins_with_another_id() -> None:
    desk = Desk()
    batch = desk.put()
    desk.refused(desk.one(), InvalidProducerEpoch("5 is newer"))
    assert desk.name(8, 0) == InitProducerId()
    desk.turn(100)
    assert numbers(batch) == (8, 0, 0)


def test_a_new_epoch_waits_for_what_is_not_answered() -> None:
    desk = Desk()
    desk.put(partition=0)
    desk.put(partition=1)
    here, there = desk.turn()
    desk.refused(here, InvalidRecord("not in a compacted topic"))
    assert not is_named(desk)
    desk.put(partition=0)
    assert desk.name() is None
    assert desk.turn(100) == []
    desk.written(there)
    assert desk.name(7, 1) is not None
    assert numbers(desk.one().batches[0]) == (7, 1, 0)


def test_a_batch_that_may_be_written_is_asked_about_before_the_new_epoch() -> None:
    desk = Desk()
    desk.put(partition=0)
    doubtful = desk.put(partition=1)
    here, there = desk.turn()
    desk.refused(here, InvalidRecord("not in a compacted topic"))
    desk.lost(there, RequestTimedOut("silence"))
    fresh = desk.put(partition=0)
    assert desk.name() is None, "a new number could write it twice"
    again = desk.one(100)
    assert again.batches == [doubtful]
    assert numbers(doubtful) == (7, 0, 0)
    desk.written(again)
    assert desk.name(7, 1) is not None
    assert desk.one(100).batches == [fresh]


def test_what_is_behind_a_batch_that_is_certainly_not_written_is_in_no_doubt() -> None:
    desk = Desk()
    desk.put()
    desk.written(desk.one())
    certain, behind = desk.full(), desk.full()
    first, second = desk.turn()
    desk.refused(first, UnknownProducerId("forgotten"))
    desk.lost(second, ConnectionFailed("cut"))
    assert desk.turn(100) == []
    assert desk.name(7, 1) == InitProducerId(7, 0)
    again = desk.one()
    assert again.batches == [certain]
    desk.written(again)
    assert desk.one().batches == [behind]
    assert numbers(behind) == (7, 1, 1)


def test_where_numbers_have_gone_round_the_doubt_stays() -> None:
    desk = Desk()
    lane = desk.put().lane
    desk.written(desk.one())
    lane.next_sequence = SEQUENCES - 1
    desk.full()
    desk.full()
    first, second = desk.turn()
    desk.refused(first, UnknownProducerId("forgotten"))
    desk.lost(second, ConnectionFailed("cut"))
    assert desk.turn(100) == []
    assert desk.name() is None, "of a producer that is not known the 0 may have been taken"


def test_what_is_behind_a_batch_that_was_refused_for_good_is_in_no_doubt() -> None:
    desk = Desk()
    failed, behind = desk.full(), desk.full()
    first, second = desk.turn()
    desk.refused(first, MessageTooLarge("1061 bytes, at most 1000 are taken"))
    assert isinstance(failed.error, MessageTooLarge), "it is told at once"
    desk.lost(second, ConnectionFailed("cut"))
    assert desk.turn(100) == []
    assert desk.name(7, 1) == InitProducerId(7, 0)
    assert desk.one().batches == [behind]
    assert numbers(behind) == (7, 1, 0)


def test_what_is_behind_a_batch_whose_time_was_up_while_it_was_refused_is_in_no_doubt() -> None:
    desk = Desk()
    failed = desk.full()
    first = desk.one()
    desk.now_ms += 500
    behind = desk.full()
    second = desk.one()
    desk.refused(first, NotEnoughReplicas("one is missing"))
    desk.lost(second, ConnectionFailed("cut"))
    failed.lane.retry_at_ms = desk.now_ms + 600  # nobody takes anything meanwhile
    assert desk.turn(550) == []
    assert isinstance(failed.error, RequestTimedOut)
    assert desk.name(7, 1) is not None
    assert desk.one(100).batches == [behind]
    assert numbers(behind) == (7, 1, 0)


def test_what_is_behind_a_batch_that_failed_and_may_be_written_stays_in_doubt() -> None:
    desk = Desk()
    failed, behind = desk.full(), desk.full()
    first, second = desk.turn()
    desk.refused(first, UnknownServerError("after it was appended"))
    assert failed.done
    desk.lost(second, ConnectionFailed("cut"))
    assert desk.name() is None
    assert desk.one(100).batches == [behind]
    assert numbers(behind) == (7, 0, 1)


def test_what_is_before_a_batch_that_was_refused_for_good_stays_in_doubt_where_numbers_have_gone_round() -> (
    None
):
    desk = Desk()
    lane = desk.put().lane
    desk.written(desk.one())
    lane.next_sequence = SEQUENCES - 1
    before, _ = desk.full(), desk.full()
    first, second = desk.turn()
    desk.lost(first, ConnectionFailed("cut"))
    desk.refused(second, MessageTooLarge("1061 bytes, at most 1000 are taken"))
    assert desk.name() is None
    assert desk.one(100).batches == [before]
    assert numbers(before) == (7, 0, SEQUENCES - 1)


def refused_and_lost(desk: Desk) -> tuple[Batch, Batch, Shipment]:
    """Two batches of a partition: one was refused for now, of the other nothing is heard; and what another one is sent."""
    desk.put(partition=1)
    certain, doubtful = desk.full(0), desk.full(0)
    shipments = desk.turn()
    [other] = [each for each in shipments if each.broker == 2]
    first, second = (each for each in shipments if each.broker == 1)
    desk.refused(first, NotEnoughReplicas("one is missing"))
    desk.lost(second, ConnectionFailed("cut"))
    return certain, doubtful, other


def test_a_partition_that_takes_nothing_does_not_hold_up_a_new_epoch() -> None:
    desk = Desk()
    certain, doubtful, other = refused_and_lost(desk)
    desk.refused(other, InvalidRecord("no key"))
    assert desk.turn(100) == [], "what is certainly not written is not sent under its number again"
    assert desk.name(7, 1) is not None
    again = desk.one()
    assert again.batches == [certain]
    desk.written(again)
    assert desk.one().batches == [doubtful]
    assert numbers(doubtful) == (7, 1, 1)


def test_what_is_behind_a_batch_that_is_sent_under_its_number_again_stays_in_doubt() -> None:
    desk = Desk()
    certain, doubtful, other = refused_and_lost(desk)
    again = desk.one(100)
    assert again.batches == [certain]
    desk.written(again)
    desk.refused(other, InvalidRecord("no key"))
    assert desk.name() is None, "it may have arrived late, behind the other one"
    assert desk.one().batches == [doubtful]
    assert numbers(doubtful) == (7, 0, 1)


def test_a_doubtful_batch_that_is_out_of_order_fails_and_is_not_sent_under_another_number() -> None:
    desk = Desk()
    desk.put()
    desk.written(desk.one())
    batch = desk.put()
    desk.lost(desk.one(), RequestTimedOut("silence"))
    desk.refused(desk.one(100), OutOfOrderSequenceNumber("0 is next"))
    assert isinstance(batch.error, OutOfOrderSequenceNumber)
    assert desk.name(7, 1) is not None


def test_what_failed_leaves_a_gap_that_only_a_new_epoch_closes() -> None:
    desk = Desk()
    failed, waiting = desk.full(), desk.full()
    one, two = desk.turn()
    desk.refused(one, InvalidRecord("no key"))
    assert isinstance(failed.error, InvalidRecord)
    desk.refused(two, OutOfOrderSequenceNumber("0 is next"))
    assert not waiting.done
    assert desk.turn(100) == []
    assert desk.name(7, 1) is not None
    assert desk.one().batches == [waiting]
    assert numbers(waiting) == (7, 1, 0)


def test_a_batch_that_was_never_sent_leaves_no_gap() -> None:
    desk = Desk()
    desk.sending.closed(desk.put().lane.leader)
    desk.turn(2000)
    assert len(desk.ended) == 1
    assert is_named(desk)


def test_a_delivery_that_takes_too_long_under_way_breaks_the_numbering() -> None:
    desk = Desk()
    desk.put()
    shipment = desk.one()
    desk.turn(2000)
    [batch] = desk.ended
    assert isinstance(batch.error, RequestTimedOut)
    assert "they may be written" in batch.error.message
    assert not is_named(desk)
    desk.written(shipment)
    assert desk.ended == [batch], "an answer that comes late is nothing"
    assert desk.name(7, 1) == InitProducerId(7, 0)
