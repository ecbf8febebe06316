"""The batch's header: what brokers and disks look at, without ever decoding a record.

A batch is the unit of append, replication, checksum and offset assignment. Its first 65 bytes:

    at  type  field                      covered by
     0  i64   base_offset                head_crc
     8  i32   length after this field    head_crc
    12  i32   leader_epoch               head_crc
    16  u8    magic (3)                  head_crc
    17  u32   head_crc                   itself
    21  u32   body_crc                   itself
    25  u16   attributes                 body_crc
    27  i32   last_offset_delta          body_crc
    31  i64   base_timestamp             body_crc
    39  i64   max_timestamp              body_crc
    47  i64   producer_id                body_crc
    55  i16   producer_epoch             body_crc
    57  i32   base_sequence              body_crc
    61  i32   record_count               body_crc
    65  ...   payload (`records`)        body_crc

What it keeps true (replication/01-disk, P1 to P6): offset, epoch and length can be trusted before the body
is read; a leader stamps offset and epoch without touching the body; zero bytes are never a header; the
last offset is base_offset + last_offset_delta even when compaction has removed records.
"""

from collections.abc import Iterator
from struct import Struct, pack_into
from typing import Final, NamedTuple

from tidelog.protocol.checksums import crc32c
from tidelog.protocol.errors import CorruptMessage, UnsupportedFormat
from tidelog.protocol.types import NO_OFFSET, SEQUENCES, Buffer, Epoch, Offset

MAGIC: Final = 3
"""Our columnar payload. 2 is reserved for Kafka's rows."""

HEADER: Final = Struct(">qiiBIIHiqqqhii")
HEADER_SIZE: Final = HEADER.size
_HEAD: Final = Struct(">qiiB")
_STAMP: Final = Struct(">qiiBI")
_LENGTH: Final = Struct(">i")
_HEAD_CRC_AT: Final = 17
_BODY_AT: Final = 25
_MAX_TIMESTAMP_AT: Final = 39
_LENGTH_ENDS_AT: Final = 12
_LENGTH_MIN: Final = HEADER_SIZE - _LENGTH_ENDS_AT
_MEASURED: Final = Struct(">qi4xBII2xi30xi")
"""Of the header: base offset, length, magic, both checksums, last offset delta, record count."""
assert _MEASURED.size == HEADER_SIZE

CODEC_BITS: Final = 0b111
LOG_APPEND_TIME: Final = 1 << 3
TRANSACTIONAL: Final = 1 << 4
CONTROL: Final = 1 << 5
DELETE_HORIZON: Final = 1 << 6
"""base_timestamp holds the time from which tombstones in this batch may be dropped."""


class BatchHeader(NamedTuple):
    """The 65 bytes in front of a batch, field by field."""

    base_offset: Offset
    length: int
    leader_epoch: Epoch
    magic: int
    head_crc: int
    body_crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.length + _LENGTH_ENDS_AT

    @property
    def last_offset(self) -> Offset:
        """The offset of the batch's last record, still there or compacted away."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> Offset:
        """The offset behind the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record; they wrap from 2^31 - 1 to 0."""
        return (self.base_sequence + self.last_offset_delta) % SEQUENCES if self.base_sequence >= 0 else -1

    @property
    def codec(self) -> int:
        """How the payload is compressed (`compression`)."""
        return self.attributes & CODEC_BITS

    @property
    def is_control(self) -> bool:
        """Whether this is a marker for machines rather than records for users."""
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        """Whether the records belong to a transaction."""
        return bool(self.attributes & TRANSACTIONAL)


_new: Final = tuple.__new__


def read_header(buffer: Buffer, at: int = 0) -> BatchHeader:
    """The header at that place, its own checksum verified; the body need not be there yet."""
    if len(buffer) - at < HEADER_SIZE:
        raise CorruptMessage(f"a batch header has {HEADER_SIZE} bytes, {max(len(buffer) - at, 0)} are there")
    # Brokers look at a header several times a batch, however small: `_make` would cost a third of all this.
    header = _new(BatchHeader, HEADER.unpack_from(buffer, at))
    if crc32c(buffer[at : at + _HEAD_CRC_AT]) != header.head_crc:  # 17 bytes: a view costs more than a copy
        raise CorruptMessage(f"the head of the batch at byte {at} does not match its checksum")
    if header.magic != MAGIC:
        raise UnsupportedFormat(
            f"the batch at offset {header.base_offset} has magic {header.magic}, this tidelog reads {MAGIC}"
        )
    if header.length + _LENGTH_ENDS_AT < HEADER_SIZE:
        raise CorruptMessage(f"the batch at offset {header.base_offset} claims a size of {header.size} bytes")
    return header


def check_body(buffer: Buffer, header: BatchHeader, at: int = 0) -> None:
    """Verify that the whole batch is there, is what was written, and counts what it holds."""
    end = at + header.length + _LENGTH_ENDS_AT
    if len(buffer) < end:
        raise CorruptMessage(
            f"the batch at offset {header.base_offset} has {header.size} bytes, {len(buffer) - at} are there"
        )
    if crc32c(memoryview(buffer)[at + _BODY_AT : end]) != header.body_crc:
        raise CorruptMessage(f"the batch at offset {header.base_offset} does not match its checksum")
    if header.last_offset_delta < 0 or not 0 <= header.record_count <= header.last_offset_delta + 1:
        raise CorruptMessage(
            f"the batch at offset {header.base_offset} counts {header.record_count} records "
            f"in {header.last_offset_delta + 1} offsets"
        )


def measure(buffer: bytes, below: Offset) -> tuple[int, Offset]:
    """How many bytes of whole batches the buffer begins with, each verified and below that offset, and where they end.

    What stops it is told by `read_header` and `check_body`: a batch that is not whole, not below, or not what was
    written. It is what every byte that is served goes through, so no header is made of it.
    """
    view, size, at, next_offset = memoryview(buffer), len(buffer), 0, NO_OFFSET
    while size - at >= HEADER_SIZE:
        base, length, magic, head_crc, body_crc, delta, count = _MEASURED.unpack_from(buffer, at)
        end = at + length + _LENGTH_ENDS_AT
        if (
            crc32c(buffer[at : at + _HEAD_CRC_AT]) != head_crc
            or magic != MAGIC
            or length < _LENGTH_MIN
            or end > size
            or base + delta >= below
            or crc32c(view[at + _BODY_AT : end]) != body_crc
            or not 0 <= count <= delta + 1
            or delta < 0
        ):
            break
        at, next_offset = end, base + delta + 1
    return at, next_offset


def walk(buffer: Buffer, at: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Each whole batch and where it begins, bodies unchecked; a batch cut off at the end is left out."""
    size = len(buffer)
    while size - at >= HEADER_SIZE:
        header = read_header(buffer, at)
        if at + header.size > size:
            return
        yield at, header
        at += header.size


def stamp(buffer: bytearray | memoryview, base_offset: Offset, leader_epoch: Epoch, at: int = 0) -> None:
    """Give a batch its place in the log: offset and epoch, and the head's checksum anew. The body stays."""
    (length,) = _LENGTH.unpack_from(buffer, at + 8)
    head = _HEAD.pack(base_offset, length, leader_epoch, buffer[at + 16])
    buffer[at : at + _HEAD_CRC_AT + 4] = head + crc32c(head).to_bytes(4, "big")


def place(
    buffer: bytearray | memoryview, header: BatchHeader, base_offset: Offset, leader_epoch: Epoch
) -> BatchHeader:
    """`stamp` for a batch whose header is known: the answer is the header in that place, its own checksum as it was."""
    length = header.length
    head = _HEAD.pack(base_offset, length, leader_epoch, MAGIC)
    _STAMP.pack_into(buffer, 0, base_offset, length, leader_epoch, MAGIC, crc32c(head))
    # Joined tuples: to unpack the one into the other costs twice as much.
    return _new(BatchHeader, (base_offset, length, leader_epoch) + header[3:])  # noqa: RUF005


def stamp_time(buffer: bytearray | memoryview, header: BatchHeader, now_ms: int) -> BatchHeader:
    """Give every record of a batch the leader's time, and the body its checksum anew; before it is in any log.

    What the producer wrote of times stays in the payload, and nobody reads it any more.
    """
    attributes = header.attributes | LOG_APPEND_TIME
    pack_into(">H", buffer, _BODY_AT, attributes)
    pack_into(">q", buffer, _MAX_TIMESTAMP_AT, now_ms)
    body_crc = crc32c(memoryview(buffer)[_BODY_AT : header.size])
    pack_into(">I", buffer, _HEAD_CRC_AT + 4, body_crc)
    return header._replace(attributes=attributes, max_timestamp=now_ms, body_crc=body_crc)


def build(  # noqa: PLR0913 -- the fields of the header, each by its name
    payload: Buffer,
    *,
    last_offset_delta: int,
    record_count: int,
    base_timestamp: int,
    max_timestamp: int,
    attributes: int = 0,
    base_offset: Offset = 0,
    leader_epoch: Epoch = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytearray:
    """A batch around an encoded payload, checksums and all."""
    batch = bytearray(HEADER_SIZE)
    length = HEADER_SIZE - _LENGTH_ENDS_AT + len(payload)
    fields = (
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    HEADER.pack_into(batch, 0, base_offset, length, leader_epoch, MAGIC, 0, 0, *fields)
    body_crc = crc32c(payload, crc32c(batch[_BODY_AT:]))
    pack_into(">I", batch, _HEAD_CRC_AT, crc32c(batch[:_HEAD_CRC_AT]))
    pack_into(">I", batch, _HEAD_CRC_AT + 4, body_crc)
    batch += payload
    return batch
