"""Bugs of the product's client for storms to find: each undoes one rule from outside."""

from typing import Any

import pytest

from tests.simulation.planted import Plant
from tidelog.client.fetching import Asked, Fetching
from tidelog.client.io.sender import Sender
from tidelog.client.options import ProducerConfig
from tidelog.client.reader import Reader
from tidelog.client.sending import Sending, Shipment, Told
from tidelog.protocol.batch import read_header
from tidelog.protocol.errors import TidelogError
from tidelog.protocol.types import NO_EPOCH, NO_OFFSET, Offset


def acknowledged_on_sending(plant: pytest.MonkeyPatch) -> None:
    """A record that was handed to the network counts as written, whatever is answered."""
    ship = Sender._ship

    def planted(self: Sender[Any], shipment: Shipment) -> None:
        ship(self, shipment)
        self.sending.answered(shipment, [Told(None)] * len(shipment.batches), 0.0)
        self.wake()

    def deaf(self: Sender[Any], *_: object) -> None:
        self._on_room()
        self.wake()

    plant.setattr(Sender, "_ship", planted)
    plant.setattr(Sender, "_replied", deaf)


def a_lost_answer_is_a_good_one(plant: pytest.MonkeyPatch) -> None:
    """Whose connection ended, or who was refused, counts as written."""

    def planted(self: Sending, shipment: Shipment, _error: TidelogError, now_ms: float) -> None:
        self.answered(shipment, [Told(None)] * len(shipment.batches), now_ms)

    plant.setattr(Sending, "lost", planted)


def nobody_numbers_what_is_repeated(plant: pytest.MonkeyPatch) -> None:
    """A batch whose answer was lost is written once more."""
    plant.setattr(ProducerConfig, "idempotent", property(lambda _: False))


def a_batch_is_skipped(plant: pytest.MonkeyPatch) -> None:
    """Of an answer that continues another one the first batch is forgotten, and the position moves on."""
    buffer = Fetching._buffer

    def planted(self: Fetching, reader: Reader, piece: memoryview) -> None:
        continues, before = reader.offset_epoch != NO_EPOCH, len(reader.buffered)
        buffer(self, reader, piece)
        if continues and len(reader.buffered) > before:
            data, _ = reader.buffered[-1]
            first = read_header(data).size
            if first < len(data):
                reader.buffered[-1] = data, first

    plant.setattr(Fetching, "_buffer", planted)


def what_was_asked_before_a_seek_counts(plant: pytest.MonkeyPatch) -> None:
    """An answer to a fetch of another place is taken for one to this."""
    seek, answered = Reader.seek, Fetching.answered

    def seek_quietly(self: Reader, offset: Offset, question: int | None = None) -> None:
        version = self.version
        seek(self, offset, question)
        if offset != NO_OFFSET:
            self.version = version

    def planted(self: Fetching, asked: Asked, *rest: object) -> bool:
        for place, (reader, version, _, epoch) in asked.readers.items():
            asked.readers[place] = reader, version, reader.offset, epoch
        return answered(self, asked, *rest)  # type: ignore[arg-type]

    plant.setattr(Reader, "seek", seek_quietly)
    plant.setattr(Fetching, "answered", planted)


CAUGHT: dict[Plant, tuple[int, ...]] = {
    acknowledged_on_sending: (1, 2, 5),
    a_lost_answer_is_a_good_one: (2, 3, 4),
    nobody_numbers_what_is_repeated: (1, 2, 3),
    a_batch_is_skipped: (0, 1, 3),
    what_was_asked_before_a_seek_counts: (4, 11, 22),
}
"""Which seeds caught each when it was looked up last; a change of the product changes what each seed brings."""
