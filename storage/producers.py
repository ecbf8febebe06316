"""Producer state of one partition: what makes a retried batch appear once, and in order.

Per producer id: its epoch, its last five batches, and its open transaction. It is a fold over batch headers
(`apply`), in the log's order, on leaders and followers alike; `check` asks, before anything is written,
what a batch from a client would be. What it keeps true (docs/STORAGE.md, 6; I-9, I-55):

* `check` changes nothing, `apply` refuses nothing: the log is the truth, and a follower copies it.
* State is replayed, never guessed: a snapshot at offset X and the batches from X to Y give what all batches
  to Y give. Only expiry, which goes by time, is not in the log.
* All five batches are in a snapshot (Kafka keeps one), so that a restart changes no answer about a duplicate.

Which answer a batch (epoch, first_sequence, last_sequence) gets, the first line that fits; numbers modulo 2^31:

    unknown producer     first == 0                              append
                         first != 0                              UnknownProducerId
    epoch <  stored                                              InvalidProducerEpoch
    epoch >  stored      first == 0                              append (and forget the older epoch's batches)
                         first != 0                              OutOfOrderSequenceNumber
    epoch == stored      equal to one of the five                Duplicate
                         ends within 2^30 below the oldest       DuplicateSequenceNumber
                         first == last stored + 1                append
                         anything else, a part of an overlap too OutOfOrderSequenceNumber

and what would be appended is InvalidTxnState while a transaction is open that the batch is not part of.

A transaction's marker (control batch) needs only its header here: committed or aborted, it ends the
transaction, raises the epoch and lets sequences begin at 0 again. The coordinator epoch in
its payload is kept and saved but not read yet: nothing asks for it before markers are accepted from
coordinators, and that is where an old coordinator has to be refused.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from struct import Struct
from typing import Final, NamedTuple

import msgspec

from tidelog.protocol.batch import CONTROL, TRANSACTIONAL, BatchHeader
from tidelog.protocol.checksums import crc32c
from tidelog.protocol.errors import (
    CorruptSnapshot,
    DuplicateSequenceNumber,
    InvalidProducerEpoch,
    InvalidRequest,
    InvalidTxnState,
    OutOfOrderSequenceNumber,
    UnknownProducerId,
    UnsupportedFormat,
)
from tidelog.protocol.types import (
    NO_EPOCH,
    NO_OFFSET,
    NO_PRODUCER_ID,
    SEQUENCES,
    Buffer,
    Epoch,
    Offset,
)

BATCHES_KEPT: Final = 5
"""As many as a client may have in flight: any of them may be sent again."""

DUPLICATE_REACH: Final = 2**30
"""How far below the oldest stored batch a sequence is still taken for an old one: half of all numbers."""

_FAR: Final = SEQUENCES - DUPLICATE_REACH - 1
"""Among fewer sequences than these, in their order, none is another's duplicate, or old."""

SNAPSHOT_VERSION: Final = 0
_PREFIX: Final = Struct(">HI")


class StoredBatch(NamedTuple):
    """One of a producer's last batches: enough to know it again and to answer as the first time."""

    first_sequence: int
    last_sequence: int
    first_offset: Offset
    last_offset: Offset
    timestamp: int


class Append(NamedTuple):
    """The batch continues its producer's sequence: write it."""


class Duplicate(NamedTuple):
    """The batch is in the log already: answer with where it is, once that is committed (I-22)."""

    first_offset: Offset
    last_offset: Offset
    timestamp: int


APPEND: Final = Append()
_new: Final = tuple.__new__


@dataclass(slots=True)
class ProducerEntry:
    """What is known of one producer. `last_append_ms` is the broker's time, not the producer's."""

    epoch: Epoch
    last_append_ms: int
    coordinator_epoch: Epoch = NO_EPOCH
    transaction_start: Offset = NO_OFFSET
    batches: list[StoredBatch] = field(default_factory=list)


class Producers:
    """The producers of one partition as of one offset of its log."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Producers) and self._entries == other._entries

    __hash__ = None  # type: ignore[assignment]  # it changes

    def entry(self, producer_id: int) -> ProducerEntry | None:
        """What is known of that producer."""
        return self._entries.get(producer_id)

    def items(self) -> Iterable[tuple[int, ProducerEntry]]:
        """Every producer's id and what is known of it, by id."""
        return sorted(self._entries.items())

    def check(self, header: BatchHeader) -> Append | Duplicate:
        """What a batch from a client is: to be appended, a duplicate, or refused (the table above)."""
        producer_id = header.producer_id
        if producer_id == NO_PRODUCER_ID:
            return APPEND
        epoch, first = header.producer_epoch, header.base_sequence
        if first < 0 or epoch < 0 or header.last_offset_delta < 0 or header.attributes & CONTROL:
            raise _malformed(header)
        entry = self._entries.get(producer_id)
        if entry is None:
            if first:
                raise UnknownProducerId(f"producer {producer_id} is not known and begins at sequence {first}")
            return APPEND
        expected = 0
        if epoch == entry.epoch:
            if entry.batches:
                oldest, newest = entry.batches[0], entry.batches[-1]
                expected = (newest.last_sequence + 1) % SEQUENCES
                # The next in order is a repetition only where the numbers have come round to the remembered
                # ones. Those cannot have taken more of them than they have offsets from first to last.
                reach = newest.last_offset - oldest.first_offset + header.last_offset_delta
                if first != expected or reach >= _FAR:
                    stored = _stored(header, entry.batches)
                    if stored is not None:
                        return Duplicate(stored.first_offset, stored.last_offset, stored.timestamp)
        elif epoch < entry.epoch:
            raise InvalidProducerEpoch(f"producer {producer_id} is at epoch {entry.epoch}, not {epoch}")
        if first != expected:
            raise OutOfOrderSequenceNumber(
                f"producer {producer_id} epoch {epoch} sends sequence {first}, {expected} is next"
            )
        if entry.transaction_start != NO_OFFSET and not header.attributes & TRANSACTIONAL:
            raise InvalidTxnState(
                f"producer {producer_id} has a transaction open since offset {entry.transaction_start}, "
                "the batch is not part of it"
            )
        return APPEND

    def apply(self, header: BatchHeader, now_ms: int) -> None:
        """The batch is in the log: remember it. `now_ms` counts for expiry only."""
        producer_id = header.producer_id
        if producer_id == NO_PRODUCER_ID:
            return
        epoch = header.producer_epoch
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._entries[producer_id] = ProducerEntry(epoch, now_ms)
        elif epoch != entry.epoch:
            entry.epoch = epoch
            entry.batches.clear()
        entry.last_append_ms = now_ms
        if header.attributes & CONTROL:
            entry.transaction_start = NO_OFFSET
            entry.batches.clear()
            return
        first, base, delta = header.base_sequence, header.base_offset, header.last_offset_delta
        batches = entry.batches
        # A jump in what a leader accepted: it had forgotten the producer, or compaction has removed what
        # lay between. What came before the jump would answer wrongly about what lies in it.
        if batches and first != (batches[-1][1] + 1) % SEQUENCES:
            batches.clear()
        elif len(batches) == BATCHES_KEPT:
            del batches[0]
        last = (first + delta) % SEQUENCES
        batches.append(_new(StoredBatch, (first, last, base, base + delta, header.max_timestamp)))
        # An open transaction stays open until its marker, whatever epoch follows: readers wait for it.
        if header.attributes & TRANSACTIONAL and entry.transaction_start == NO_OFFSET:
            entry.transaction_start = base

    def expire(self, now_ms: int, expiration_ms: int) -> list[int]:
        """Forget who has not appended for that long, markers included (KAFKA-9144); who that was.

        `now_ms` is the wall clock's time at the start plus what a monotonic clock counted since, so that a
        jump of the wall clock loses nobody; a time before the last append, after a restart, is no age.
        Independent of how long the log keeps records (KAFKA-7190). An open transaction is never forgotten.
        """
        expired = [
            producer_id
            for producer_id, entry in self._entries.items()
            if entry.transaction_start == NO_OFFSET and now_ms - entry.last_append_ms >= expiration_ms
        ]
        for producer_id in expired:
            del self._entries[producer_id]
        return expired

    def snapshot(self) -> bytes:
        """Everything as bytes: version, crc32c of all but itself, one msgpack array; equal state, equal bytes."""
        payload = msgspec.msgpack.encode(
            [
                (
                    producer_id,
                    entry.epoch,
                    entry.coordinator_epoch,
                    entry.last_append_ms,
                    entry.transaction_start,
                    entry.batches,
                )
                for producer_id, entry in self.items()
            ]
        )
        return _PREFIX.pack(SNAPSHOT_VERSION, _crc(SNAPSHOT_VERSION, payload)) + payload

    @classmethod
    def load(cls, content: Buffer) -> "Producers":
        """The state that `snapshot` made these bytes of."""
        if len(content) < _PREFIX.size:
            raise CorruptSnapshot(f"{len(content)} bytes are no producer snapshot")
        version, crc = _PREFIX.unpack_from(content)
        payload = memoryview(content)[_PREFIX.size :]
        # The checksum covers the version and keeps its place in every version to come: a version that
        # rotted on the disk is not taken for a newer tidelog's.
        if _crc(version, payload) != crc:
            raise CorruptSnapshot(f"{len(content)} bytes of producer state do not match their checksum")
        if version > SNAPSHOT_VERSION:
            raise UnsupportedFormat(
                f"a producer snapshot of version {version}, this tidelog reads {SNAPSHOT_VERSION}"
            )
        producers = cls()
        try:
            rows = _ROWS.decode(payload)
        except msgspec.MsgspecError as error:
            raise CorruptSnapshot(
                f"producer state that matches its checksum is malformed: {error}"
            ) from error
        for producer_id, epoch, coordinator_epoch, last_append_ms, transaction_start, batches in rows:
            producers._entries[producer_id] = ProducerEntry(
                epoch, last_append_ms, coordinator_epoch, transaction_start, batches
            )
        return producers


_Row = tuple[int, Epoch, Epoch, int, Offset, list[StoredBatch]]
_ROWS: Final = msgspec.msgpack.Decoder(list[_Row])


def _crc(version: int, payload: Buffer) -> int:
    return crc32c(payload, crc32c(version.to_bytes(2, "big")))


def _stored(header: BatchHeader, batches: list[StoredBatch]) -> StoredBatch | None:
    """The very same batch among those that are remembered; raised when it is older than all of them."""
    first = header.base_sequence
    last = (first + header.last_offset_delta) % SEQUENCES
    for stored in batches:
        if stored[0] == first and stored[1] == last:
            return stored
    oldest = batches[0][0]
    below = (oldest - last) % SEQUENCES
    if 1 <= below <= DUPLICATE_REACH:
        raise DuplicateSequenceNumber(
            f"producer {header.producer_id} sends {first} to {last} again, "
            f"{below} below {oldest}, the oldest that is remembered"
        )
    return None


def _malformed(header: BatchHeader) -> InvalidRequest:
    """A sequence or epoch of -1 would slip through the table's arithmetic as a duplicate, and be lost."""
    if header.attributes & CONTROL:
        return InvalidRequest(f"producer {header.producer_id} sends a marker, which only coordinators do")
    return InvalidRequest(
        f"producer {header.producer_id} sends epoch {header.producer_epoch}, sequence "
        f"{header.base_sequence} and {header.last_offset_delta + 1} offsets: none may be negative"
    )
