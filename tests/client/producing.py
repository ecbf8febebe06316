"""A producer without a network: its machines, a clock by hand, and brokers that say what the test wants.

desk = Desk()                    topic `orders` with two partitions, led by broker 1 and 2
desk.put(b"a", partition=0)      accept a record
[shipment] = desk.turn()         what is sent now
desk.written(shipment)           the broker answers; `refused`, `lost` likewise
"""

from random import Random
from typing import Any

from tidelog.client.batching import Accumulator, Batch
from tidelog.client.sending import Sending, Shipment, Told
from tidelog.client.sequences import Naming, Sequences
from tidelog.protocol.batch import BatchHeader, read_header
from tidelog.protocol.errors import TidelogError
from tidelog.protocol.types import BrokerId, Epoch

ID = b"orders---orders-"
Handle = tuple[Batch, int]


class Desk:
    """See the module."""

    def __init__(
        self,
        *,
        leaders: tuple[int, ...] = (1, 2),
        idempotent: bool = True,
        named: bool = True,
        batch_size: int = 1000,
        buffer_memory: int = 10_000,
        linger_ms: float = 5,
        max_in_flight: int = 5,
        max_request_size: int = 5_000,
    ) -> None:
        self.now_ms = 1000.0
        self.wall_ms = 50_000
        self.woken = 0
        self.ended: list[Batch] = []
        self.accumulator: Accumulator[Handle] = Accumulator(
            batch_size=batch_size,
            buffer_memory=buffer_memory,
            record_size_max=max_request_size,
            delivery_timeout_ms=1000,
            rng=Random(1),
            handle=lambda batch, place: (batch, place),
            now_ms=lambda: self.now_ms,
            wall_ms=lambda: self.wall_ms,
            wake=self._wake,
            clock_read=lambda: None,
        )
        self.sequences = Sequences(enabled=idempotent)
        self.sending = Sending(
            self.accumulator,
            self.sequences,
            codec=0,
            linger_ms=linger_ms,
            max_in_flight=max_in_flight,
            max_request_size=max_request_size,
            backoff_ms=lambda failures: 10.0 * failures,
            on_end=self.ended.append,
        )
        self.offset = 100
        self.lead(*leaders)
        for broker in {*leaders} - {-1}:
            self.sending.opened(BrokerId(broker))
        if idempotent and named:
            self.name()

    def _wake(self) -> None:
        self.woken += 1

    def lead(self, *leaders: int, epoch: int = 1) -> None:
        """These brokers lead the partitions."""
        leading: list[tuple[BrokerId, Epoch]] = [(BrokerId(leader), epoch) for leader in leaders]
        self.sending.learn("orders", ID, leading, self.now_ms)

    def name(self, producer_id: int = 7, epoch: int = 0) -> Any:
        """Ask for an identity, and be given one; what was asked, None if nothing was."""
        request = self.sequences.ask(unresolved=self.sending.unresolved)
        if request is not None:
            self.sequences.given(producer_id, epoch)
        return request

    def put(self, value: bytes = b"v", *, key: bytes | None = None, partition: int | None = 0) -> Batch:
        """Accept a record; the batch that it went into."""
        handle = self.accumulator.append("orders", value, key, partition, first=True)
        assert handle is not None, "there was no room"
        return handle[0]

    def turn(self, after_ms: float = 0) -> list[Shipment]:
        """What is sent, so much later."""
        self.now_ms += after_ms
        return self.sending.turn(self.now_ms)

    def one(self, after_ms: float = 0) -> Shipment:
        """The only shipment of that turn."""
        [shipment] = self.turn(after_ms)
        return shipment

    def full(self, partition: int = 0) -> Batch:
        """A batch that is full, and closed."""
        batch = self.put(b"x" * 980, partition=partition)
        self.accumulator.close(batch.lane)
        return batch

    def written(self, shipment: Shipment) -> None:
        """The broker has all of it."""
        told = []
        for batch in shipment.batches:
            told.append(Told(None, self.offset))
            self.offset += len(batch)
        self.sending.answered(shipment, told, self.now_ms)

    def refused(self, shipment: Shipment, error: TidelogError) -> None:
        """The broker refuses each batch with that."""
        self.sending.answered(shipment, [Told(error)] * len(shipment.batches), self.now_ms)

    def lost(self, shipment: Shipment, error: TidelogError) -> None:
        """No answer comes."""
        self.sending.lost(shipment, error, self.now_ms)


def header(batch: Batch) -> BatchHeader:
    """What the broker sees of a batch that is under way."""
    assert batch.data is not None
    return read_header(batch.data)


def numbers(batch: Batch) -> tuple[int, int, int]:
    """Producer id, epoch and sequence of a batch that is under way."""
    found = header(batch)
    return found.producer_id, found.producer_epoch, found.base_sequence


def is_named(desk: Desk) -> bool:
    """Whether its producer has an identity that holds."""
    return desk.sequences.naming is Naming.NAMED
