"""Which batch goes when and where; every batch ends."""

from random import Random

import pytest

from tests.client.producing import Desk, numbers
from tidelog.client.batching import Batch
from tidelog.client.sending import Shipment, Told
from tidelog.protocol.errors import (
    ClientClosed,
    ConnectionFailed,
    InvalidProducerEpoch,
    InvalidRecord,
    MessageTooLarge,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OutOfOrderSequenceNumber,
    RequestTimedOut,
    TidelogError,
    UnknownProducerId,
)
from tidelog.protocol.records import decode
from tidelog.protocol.types import SEQUENCES, BrokerId

ONE, TWO = BrokerId(1), BrokerId(2)


def test_an_idle_broker_is_sent_to_at_once() -> None:
    desk = Desk()
    batch = desk.put()
    shipment = desk.one()
    assert (shipment.broker, shipment.batches) == (ONE, [batch])


def test_while_a_request_is_under_way_records_wait_for_company() -> None:
    desk = Desk(linger_ms=5)
    desk.put()
    desk.one()
    second = desk.put()
    assert desk.turn(4) == []
    assert desk.sending.wake_ms == second.opened_ms + 5
    assert desk.one(1).batches == [second]


def test_a_full_batch_waits_for_nobody() -> None:
    desk = Desk()
    desk.put()
    desk.one()
    full = desk.full()
    assert desk.one().batches == [full]


def test_what_waited_is_sent_as_soon_as_the_broker_has_answered() -> None:
    desk = Desk()
    desk.put()
    first = desk.one()
    second = desk.put()
    assert desk.turn() == []
    desk.written(first)
    assert desk.one().batches == [second]


def test_who_flushes_waits_for_no_company() -> None:
    desk = Desk()
    desk.put()
    desk.one()
    second = desk.put()
    desk.sending.flushing = 1
    assert desk.one().batches == [second]


def test_a_request_holds_one_batch_of_each_partition_of_its_broker() -> None:
    desk = Desk(leaders=(1, 2, 1))
    batches = [desk.put(partition=index) for index in (0, 1, 2)]
    found = {shipment.broker: shipment.batches for shipment in desk.turn()}
    assert found == {ONE: [batches[0], batches[2]], TWO: [batches[1]]}


def test_a_request_is_not_larger_than_it_may_be() -> None:
    desk = Desk(leaders=(1, 1, 1), max_request_size=2200)
    for index in range(3):
        desk.full(index)
    assert [len(shipment.batches) for shipment in desk.turn()] == [2, 1]


def test_a_broker_has_five_requests_under_way_and_no_more() -> None:
    desk = Desk()
    for _ in range(7):
        desk.full()
    assert len(desk.turn()) == 5
    assert desk.turn(100) == []


def test_a_broker_without_a_connection_is_asked_for() -> None:
    desk = Desk()
    desk.sending.closed(ONE)
    desk.put()
    assert desk.turn() == []
    assert desk.sending.wanted == {ONE}
    desk.sending.not_opened(ONE, ConnectionFailed("refused"), desk.now_ms)
    assert desk.turn() == []
    assert desk.sending.wanted == set(), "not before the pause is over"
    assert "orders" in desk.sending.troubled
    desk.turn(20)
    assert desk.sending.wanted == {ONE}
    desk.sending.opened(ONE)
    assert len(desk.turn()) == 1


def test_without_a_leader_the_metadata_is_wanted() -> None:
    desk = Desk(leaders=(-1, 2))
    desk.put(partition=0)
    assert desk.turn() == []
    assert desk.sending.troubled == ["orders"]
    desk.lead(2, 2, epoch=2)
    assert desk.one().broker == TWO


def test_a_failed_attempt_is_repeated_after_a_pause_and_the_metadata_is_looked_at() -> None:
    desk = Desk()
    batch = desk.put()
    desk.refused(desk.one(), NotLeaderOrFollower("2 leads"))
    assert desk.turn() == []
    assert desk.sending.astray == {"orders": None}
    assert desk.one(10).batches == [batch]


def test_a_new_leader_is_sent_to_without_a_pause() -> None:
    desk = Desk()
    batch = desk.put()
    desk.refused(desk.one(), NotLeaderOrFollower("2 leads"))
    desk.lead(2, 2, epoch=2)
    shipment = desk.one()
    assert (shipment.broker, shipment.batches) == (TWO, [batch])


def test_what_the_old_leader_has_not_answered_goes_to_the_new_one_first_and_in_order() -> None:
    desk = Desk()
    batches = [desk.full() for _ in range(3)]
    old = desk.turn()
    desk.lead(2, 2, epoch=2)
    new = desk.full()
    order: list[Batch] = []
    while shipments := desk.turn():
        for shipment in shipments:
            assert shipment.broker == TWO
            order += shipment.batches
            desk.written(shipment)
    assert order == [*batches, new]
    for shipment in old:
        desk.written(shipment)  # too late: it is nothing
    assert [batch.offset(0) for batch in order] == [100, 101, 102, 103]


def test_without_numbers_an_old_leader_is_waited_for() -> None:
    desk = Desk(idempotent=False)
    batch = desk.put()
    old = desk.one()
    desk.lead(2, 2, epoch=2)
    assert desk.turn(100) == []
    desk.written(old)
    assert batch.error is None
    assert batch.done


def test_a_partition_that_cannot_be_written_to_does_not_hold_up_others() -> None:
    desk = Desk(leaders=(1, 1))
    stuck, free = desk.put(partition=0), desk.put(partition=1)
    shipment = desk.one()
    refusal = Told(NotEnoughReplicas("one is missing"))
    told = [refusal if batch is stuck else Told(None, 5) for batch in shipment.batches]
    desk.sending.answered(shipment, told, desk.now_ms)
    assert free.done
    assert not stuck.done
    later = desk.put(partition=1)
    assert desk.one().batches == [later]


def test_a_batch_that_is_too_large_for_the_broker_fails_with_what_the_broker_says() -> None:
    desk = Desk()
    batch = desk.put()
    desk.refused(desk.one(), MessageTooLarge("900 bytes, at most 100"))
    assert isinstance(batch.error, MessageTooLarge)


def test_a_batch_ends_at_its_deadline_with_the_last_cause() -> None:
    desk = Desk()
    batch = desk.put()
    desk.refused(desk.one(), NotEnoughReplicas("one is missing"))
    desk.turn(1000)
    assert isinstance(batch.error, RequestTimedOut)
    assert isinstance(batch.error.__cause__, NotEnoughReplicas)
    assert "1 records for orders-0 were not acknowledged in 1000 ms, 1 attempts" in batch.error.message
    assert desk.accumulator.room == desk.accumulator.buffer_memory


def test_what_was_never_sent_says_so() -> None:
    desk = Desk(leaders=(-1, -1))
    batch = desk.put()
    desk.turn(1000)
    assert batch.error is not None
    assert "never sent; the partition has no leader" in batch.error.message
    assert "may be written" not in batch.error.message


def test_who_gives_up_leaves_nothing() -> None:
    desk = Desk()
    under_way, waiting = desk.full(), desk.full()
    desk.turn()
    desk.put()
    desk.sending.give_up(ClientClosed("the end"))
    assert [type(batch.error) for batch in desk.ended] == [ClientClosed] * 3
    assert {under_way, waiting} <= set(desk.ended)
    assert desk.accumulator.room == desk.accumulator.buffer_memory
    assert desk.turn(10_000) == []


# ── a whole history ───────────────────────────────────────────────────────────────────────────────────


class Log:
    """What brokers keep of one partition: the rules of storage/producers.py, in short."""

    def __init__(self) -> None:
        self.records: list[int] = []
        self.producers: dict[int, tuple[int, int]] = {}
        """Each id's epoch and next number."""
        self.batches: dict[tuple[int, int, int], int] = {}

    def append(self, identity: tuple[int, int, int], values: list[int]) -> Told:
        """What a broker answers."""
        producer, epoch, sequence = identity
        known_epoch, known_next = self.producers.get(producer, (-1, 0))
        if epoch < known_epoch:
            return Told(InvalidProducerEpoch(f"{known_epoch} is newer"))
        if identity in self.batches:
            return Told(None, self.batches[identity])
        if known_epoch == -1 and sequence:
            return Told(UnknownProducerId("never heard of"))
        if sequence != (known_next if epoch == known_epoch else 0):
            return Told(OutOfOrderSequenceNumber("there is a gap"))
        self.producers[producer] = epoch, (sequence + len(values)) % SEQUENCES
        self.batches[identity] = len(self.records)
        self.records += values
        return Told(None, self.batches[identity])


class UnderWay:
    """A request on its way to the broker: what is in it, whether or not anybody waits for the answer."""

    def __init__(self, shipment: Shipment) -> None:
        self.shipment: Shipment | None = shipment
        [batch] = shipment.batches
        assert batch.data is not None
        self.identity = numbers(batch)
        self.values = [int(value or b"") for value in decode(batch.data).values]


class Story:
    """A producer, a log, and a network that may do anything but invent."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.desk = Desk(leaders=(1,), batch_size=60)
        self.log = Log()
        self.under_way: list[UnderWay] = []
        self.sent: dict[int, tuple[Batch, int]] = {}
        self.leader = 1
        self.identities = 0
        """How many were given."""

    def put(self) -> None:
        """Accept the next record."""
        number = len(self.sent)
        handle = self.desk.accumulator.append("orders", b"%06d" % number, None, 0, first=True)
        if handle is not None:
            self.sent[number] = handle

    def turn(self) -> None:
        """Send what is due, and see to the identity."""
        self.under_way += map(UnderWay, self.desk.turn(3))
        sequences = self.desk.sequences
        request = sequences.ask(unresolved=self.desk.sending.unresolved)
        if request is not None:
            self.identities += 1
            anew = request.producer_id == -1
            sequences.given(
                *((100 + self.identities, 0) if anew else (request.producer_id, request.producer_epoch + 1))
            )

    def wait(self) -> None:
        """Some time passes."""
        self.under_way += map(UnderWay, self.desk.turn(self.rng.choice([20, 100, 400])))

    def move(self) -> None:
        """Another broker leads; it has the same log."""
        self.leader += 1
        self.desk.sending.opened(BrokerId(self.leader % 3))
        self.desk.lead(self.leader % 3, epoch=self.leader)

    def answer(self) -> None:
        """The oldest request arrives, and its answer too."""
        if self.under_way:
            one = self.under_way.pop(0)
            told = self.log.append(one.identity, one.values)
            if one.shipment is not None:
                self.desk.sending.answered(one.shipment, [told], self.desk.now_ms)

    def refuse(self) -> None:
        """It is refused, and not written."""
        self._end(NotEnoughReplicas("one is missing"), arrives=False)

    def reject(self) -> None:
        """It is refused for good: its number is missing from now on."""
        self._end(InvalidRecord("no key"), arrives=False)

    def drop(self) -> None:
        """It never arrives."""
        self._end(ConnectionFailed("cut"), arrives=False)

    def lose(self) -> None:
        """It arrives, its answer does not."""
        self._end(RequestTimedOut("silence"), arrives=True)

    def hold_up(self) -> None:
        """Nobody waits for it any longer, and it arrives later."""
        if self.under_way:
            one = self.under_way.pop(0)
            if one.shipment is not None:
                self.desk.lost(one.shipment, RequestTimedOut("silence"))
                one.shipment = None
            self.under_way.insert(self.rng.randrange(len(self.under_way) + 1), one)

    def _end(self, error: TidelogError, *, arrives: bool) -> None:
        if self.under_way:
            one = self.under_way.pop(0)
            if arrives:
                self.log.append(one.identity, one.values)
            if one.shipment is not None:
                self.desk.lost(one.shipment, error)


ACTIONS = [*["put"] * 8, *["turn"] * 6, *["answer"] * 5]
FAULTS = ["refuse", "reject", "drop", "lose", "move", "hold_up", "wait"]


@pytest.mark.parametrize("seed", range(60))
def test_every_record_is_written_once_and_in_order_whatever_happens(seed: int) -> None:
    """I-69, I-73, I-74: acknowledged: it is there; failed: it is there once at most; in the order of sending."""
    rng = Random(seed)
    story = Story(rng)
    for _ in range(400):
        faulty = rng.random() < (0.05, 0.2, 0.5)[seed % 3]
        getattr(story, rng.choice(FAULTS if faulty else ACTIONS))()
    while story.desk.accumulator.outstanding:
        story.wait()
    while story.under_way:
        story.answer()
    log = story.log.records
    assert len(log) == len(set(log)), "a record was written twice"
    assert log == sorted(log), "records are out of order"
    acknowledged = {value: handle for value, handle in story.sent.items() if handle[0].error is None}
    assert acknowledged
    for value, (batch, place) in acknowledged.items():
        assert log[batch.offset(place)] == value
