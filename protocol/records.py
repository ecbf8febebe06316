"""Records to batches and back, a column at a time.

A batch's payload is the msgpack array `[timestamps, keys, values, headers, offsets]`, compressed as a whole:

    timestamps  each record's difference from the header's base_timestamp; nil: all are zero
    keys        bin or nil for each record; nil: no record has a key
    values      bin or nil for each record
    headers     nil or [name, value, name, value, ...] for each record; nil: no record has headers
    offsets     each record's difference from base_offset, where compaction left gaps; nil: 0, 1, 2, ...

What it keeps true: what decodes has been verified (checksum, types, equal lengths, offsets that grow and stay
within the batch) or is refused with CorruptMessage; nothing is packed that would be refused; decoded records
own their bytes, the buffer that they came from may be used again. A thousand records cost a few calls into C,
and no call per record: docs/adr/0030-columns.md has the figures.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import chain, islice, repeat
from operator import lt
from types import NoneType
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from tidelog.protocol.batch import (
    CODEC_BITS,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    BatchHeader,
    build,
    check_body,
    read_header,
)
from tidelog.protocol.compression import NONE, UNCOMPRESSED_MAX, compress, decompress
from tidelog.protocol.errors import CorruptMessage, InvalidRecord, MessageTooLarge
from tidelog.protocol.packed import NIL, entries_in
from tidelog.protocol.types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    Buffer,
    Offset,
)

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]
"""A record's headers: names and values in their order, a name as often as you like."""


class _Writable(Struct, array_like=True, gc=False):
    """What everybody can read again. Text would be packed too, and refused by every reader for ever."""

    values: list[bytes | None]
    keys: list[bytes | None] | None
    timestamps: list[Annotated[int, msgspec.Meta(ge=NO_TIMESTAMP, le=2**63 - 1)]] | None


_pack: Final = msgspec.msgpack.Encoder().encode
_unpack: Final = msgspec.msgpack.Decoder(
    tuple[list[int] | None, list[bytes | None] | None, list[bytes | None], msgspec.Raw, list[int] | None]
).decode
# Names and values alternate, which no type says: `_are_headers` looks.
_unpack_others: Final = msgspec.msgpack.Decoder(
    tuple[list[int] | None, msgspec.Raw, msgspec.Raw, msgspec.Raw, list[int] | None]
).decode
_unpack_values: Final = msgspec.msgpack.Decoder(list[bytes | None]).decode
_unpack_headers: Final = msgspec.msgpack.Decoder(list[list[Any] | None]).decode
_BAD: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_PLAIN: Final = {bytes, NoneType}


# gc=False: a record holds nothing that could hold the record.
class Record(Struct, frozen=True, gc=False):
    """What users write and read."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Columns:
    """A batch's records as columns of equal length; `records` makes rows of them."""

    __slots__ = ("_deltas", "_headers", "_packed_headers", "header", "keys", "offsets", "values")

    def __init__(
        self,
        header: BatchHeader,
        values: list[bytes | None],
        keys: list[bytes | None] | None,
        offsets: Sequence[Offset],
        deltas: list[int] | None,
        packed_headers: bytes | None,
    ) -> None:
        self.header = header
        self.values = values
        self.keys = [None] * len(values) if keys is None else keys
        self.offsets = offsets
        self._deltas = deltas
        self._packed_headers = packed_headers
        self._headers: list[Headers] | None = None

    def __len__(self) -> int:
        return self.header.record_count

    @property
    def time(self) -> int | None:
        """The time of all records; None: each has its own."""
        if self.header.attributes & LOG_APPEND_TIME:
            return self.header.max_timestamp
        return self.header.base_timestamp if self._deltas is None else None

    @property
    def timestamps(self) -> list[int]:
        """Each record's time in milliseconds, by the producer's clock or the leader's, as the topic says."""
        if self._deltas is None or self.header.attributes & LOG_APPEND_TIME:
            return [self.time_at(0)] * len(self)
        base = self.header.base_timestamp
        return [base + delta for delta in self._deltas]

    def time_at(self, place: int) -> int:
        """One record's time: the others need not be looked at."""
        if self.header.attributes & LOG_APPEND_TIME:
            return self.header.max_timestamp
        return self.header.base_timestamp + (self._deltas[place] if self._deltas is not None else 0)

    @property
    def headers(self) -> list[Headers]:
        """Each record's headers; unpacked, and verified, when they are first asked for."""
        if self._headers is None:
            packed = self._packed_headers
            self._headers = [()] * len(self) if packed is None else _unpacked(packed, self.header)
        return self._headers

    @property
    def has_headers(self) -> bool:
        """Whether any record has headers, told without unpacking them."""
        return self._packed_headers is not None

    def select(self, places: Sequence[int]) -> list[object]:
        """The payload's columns with only the records at these places, in the shortest form."""
        first = self.header.base_offset
        deltas = [self._deltas[place] for place in places] if self._deltas else []
        keys = [self.keys[place] for place in places]
        values = [self.values[place] for place in places]
        gaps = [self.offsets[place] - first for place in places]
        return [
            deltas if any(deltas) else None,
            None if keys.count(None) == len(keys) else keys,
            values,
            self._selected_headers(places),
            None if gaps == list(range(len(gaps))) else gaps,
        ]

    def _selected_headers(self, places: Sequence[int]) -> list[list[Any] | None] | None:
        try:
            return _flat([self.headers[place] for place in places])
        except CorruptMessage:
            return []  # for no record: who asks for them is refused as before, and of the rest may go what is due


class PackedColumns(Columns):
    """Columns whose keys and values are unpacked, and their types verified, when they are first asked for."""

    __slots__ = ("packed_keys", "packed_values")

    def __init__(
        self,
        header: BatchHeader,
        packed_values: bytes,
        packed_keys: bytes | None,
        offsets: Sequence[Offset],
        deltas: list[int] | None,
        packed_headers: bytes | None,
    ) -> None:
        self.header = header
        self.packed_values = packed_values
        self.packed_keys = packed_keys
        self.offsets = offsets
        self._deltas = deltas
        self._packed_headers = packed_headers
        self._headers = None

    @property
    def packed_size(self) -> int:
        """How many bytes keys and values are, with the two to five that say how long each of them is."""
        return len(self.packed_values) + len(self.packed_keys or b"")

    def __getattr__(self, name: str) -> Any:
        """Called for what is not there yet."""
        if name == "values":
            self.values = self._column(self.packed_values, 2)
        elif name == "keys":
            packed = self.packed_keys
            self.keys = [None] * len(self) if packed is None else self._column(packed, 1)
        else:
            raise AttributeError(name)
        return getattr(self, name)

    def _column(self, packed: bytes, place: int) -> list[bytes | None]:
        try:
            return _unpack_values(packed)
        except _BAD as error:
            raise _corrupt(self.header, str(error).replace("`$", f"`$[{place}]")) from error


def encode(  # noqa: PLR0913 -- the columns of a batch and the fields of its header, each by its name
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    timestamps: Sequence[int] | None = None,
    headers: Sequence[Sequence[tuple[str, bytes | None]]] | None = None,
    *,
    codec: int = NONE,
    now_ms: int = NO_TIMESTAMP,
    attributes: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
) -> bytearray:
    """A batch of these records, at offset 0 until a leader stamps it; without timestamps all are `now_ms`."""
    count = len(values)
    assert count, "a batch has a record"
    assert all(column is None or len(column) == count for column in (keys, timestamps, headers))
    columns = _checked(values, keys, timestamps)
    plain_keys = columns.keys
    if plain_keys is not None and plain_keys[0] is None and plain_keys.count(None) == count:
        plain_keys = None
    base, newest, deltas = _differences(columns.timestamps or [now_ms])
    used, payload = _packed([deltas, plain_keys, columns.values, _flat(headers), None], codec)
    return build(
        payload,
        last_offset_delta=count - 1,
        record_count=count,
        base_timestamp=base,
        max_timestamp=newest,
        attributes=attributes & ~CODEC_BITS | used,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def decode(batch: Buffer, at: int = 0, limit: int = UNCOMPRESSED_MAX) -> Columns:
    """The records of the batch that begins at that byte, verified; `limit` bounds them uncompressed."""
    header = read_header(batch, at)
    check_body(batch, header, at)
    return columns_of(batch, header, at, limit)


def columns_of(batch: Buffer, header: BatchHeader, at: int = 0, limit: int = UNCOMPRESSED_MAX) -> Columns:
    """The same, of a batch whose checksums have been verified: what they are right about may be no records."""
    payload = decompress(header.codec, memoryview(batch)[at + HEADER_SIZE : at + header.size], limit)
    try:
        deltas, keys, values, packed_headers, gaps = _unpack(payload)
    except _BAD as error:
        raise _corrupt(header, str(error)) from error
    count = header.record_count
    for column in (values, deltas, keys, gaps):
        if column is not None and len(column) != count:
            raise _corrupt(header, f"a column has {len(column)} entries for {count} records")
    first = header.base_offset
    offsets = range(first, first + count) if gaps is None else _offsets(header, gaps)
    packed = bytes(packed_headers)
    return Columns(header, values, keys, offsets, deltas, None if packed == NIL else packed)


def decode_packed(batch: Buffer, at: int = 0, limit: int = UNCOMPRESSED_MAX) -> Columns:
    """The same, with keys and values packed: for who makes other columns of them. They own their bytes, too.

    That there are as many as there are records is verified here, their types when they are unpacked.
    """
    header = read_header(batch, at)
    check_body(batch, header, at)
    payload = decompress(header.codec, memoryview(batch)[at + HEADER_SIZE : at + header.size], limit)
    try:
        deltas, raw_keys, raw_values, raw_headers, gaps = _unpack_others(payload)
    except _BAD as error:
        raise _corrupt(header, str(error)) from error
    keys, values, headers = bytes(raw_keys), bytes(raw_values), bytes(raw_headers)
    counts = {entries_in(values)}
    if keys != NIL:
        counts.add(entries_in(keys))
    counts.update(len(each) for each in (deltas, gaps) if each is not None)
    if counts != {header.record_count}:
        return decode(batch, at, limit)  # which says what is wrong
    return PackedColumns(
        header,
        values,
        None if keys == NIL else keys,
        _offsets(header, gaps),
        deltas,
        None if headers == NIL else headers,
    )


def records(columns: Columns, topic: str, partition: int, from_offset: Offset = 0) -> Iterator[Record]:
    """The records one by one, those below `from_offset` left out."""
    skip = bisect_left(columns.offsets, from_offset)
    rows: list[Sequence[object]] = [columns.offsets, columns.timestamps, columns.keys, columns.values]
    if columns.has_headers:
        rows.append(columns.headers)
    if skip:
        rows = [row[skip:] for row in rows]
    return map(Record, repeat(topic), repeat(partition), *rows)


def thinned(columns: Columns, keep: Sequence[int], delete_horizon_ms: int | None = None) -> bytearray:
    """The batch with only the records at these places (compaction): all else in its header as it was.

    With a horizon the header says from when on its tombstones may go; each record keeps its own time.
    """
    header = columns.header
    taken = columns.select(keep)
    base, horizon = header.base_timestamp, 0
    if delete_horizon_ms is not None:
        base, horizon = delete_horizon_ms, DELETE_HORIZON
        if not header.attributes & LOG_APPEND_TIME:
            times = columns.timestamps
            taken[0] = [times[place] - base for place in keep]
    return _with_payload(header, taken, len(keep), base, horizon)


def blanked(columns: Columns, keep: Sequence[int]) -> bytearray:
    """As `thinned`, with all other records as tombstones instead: it says of no record where it stands, and never grows."""
    taken = columns.select(range(len(columns.values)))
    kept = set(keep)
    taken[2] = [value if place in kept else None for place, value in enumerate(columns.values)]
    header = columns.header
    return _with_payload(header, taken, header.record_count, header.base_timestamp, 0)


def _with_payload(header: BatchHeader, taken: list[object], count: int, base: int, horizon: int) -> bytearray:
    used, payload = _packed(taken, header.codec)
    return build(
        payload,
        last_offset_delta=header.last_offset_delta,
        record_count=count,
        base_timestamp=base,
        max_timestamp=header.max_timestamp,
        attributes=header.attributes & ~CODEC_BITS | used | horizon,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )


def recompressed(batch: Buffer, header: BatchHeader, codec: int, limit: int = UNCOMPRESSED_MAX) -> bytearray:
    """A batch that has been verified, with its payload in another codec: all else in its header as it was."""
    payload = decompress(header.codec, memoryview(batch)[HEADER_SIZE : header.size], limit)
    used, packed = _smaller(bytes(payload), codec)
    return build(
        packed,
        last_offset_delta=header.last_offset_delta,
        record_count=header.record_count,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp,
        attributes=header.attributes & ~CODEC_BITS | used,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )


def _packed(columns: list[object], codec: int) -> tuple[int, bytes]:
    """The payload and its codec."""
    try:
        payload = _pack(columns)
    except UnicodeEncodeError as error:
        raise InvalidRecord(f"a header's name is not text: {error}") from error
    except OverflowError as error:
        raise InvalidRecord(f"a time is too far from the others: {error}") from error
    if len(payload) > UNCOMPRESSED_MAX:
        raise MessageTooLarge(
            f"a batch of {len(payload)} bytes, at most {UNCOMPRESSED_MAX} can be read again"
        )
    return _smaller(payload, codec)


def _smaller(payload: bytes, codec: int) -> tuple[int, bytes]:
    """The payload compressed, and by which codec: none where compression does not make it smaller."""
    if codec != NONE:
        compressed = compress(codec, payload)
        if len(compressed) < len(payload):
            return codec, compressed
    return NONE, payload


def _checked(*columns: Sequence[object] | None) -> _Writable:
    """The columns, if they can be read again: in one call, because looking at each type in Python is slow."""
    try:
        # builtin_types: otherwise msgspec takes text for base64.
        return msgspec.convert(columns, _Writable, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        fact, _, path = str(error).partition(" - at `$")
        column, place = _Writable.__struct_fields__[int(path[1])], path[3:].rstrip("`")
        raise InvalidRecord(f"{column}{place} cannot be written: {fact}") from error


def _differences(times: list[int]) -> tuple[int, int, list[int] | None]:
    """The first, the newest, and each one's difference from the first unless all are the same."""
    base = times[0]
    ordered = sorted(times)  # they mostly are already: cheaper than looking for the least and the largest
    if ordered[0] == ordered[-1]:
        return base, base, None
    return base, ordered[-1], [each - base for each in times]


def _flat(headers: Sequence[Sequence[tuple[str, bytes | None]]] | None) -> list[list[Any] | None] | None:
    """Each record's headers as one list of names and values, or nil where there are none."""
    if headers is None or not any(headers):
        return None
    pairs = list(chain.from_iterable(headers))
    if set(map(len, pairs)) != {2} or not _are_headers(list(chain.from_iterable(pairs))):
        raise InvalidRecord("a header is a pair of text, and bytes or None")
    return [list(chain.from_iterable(each)) if each else None for each in headers]


def _unpacked(packed: bytes, header: BatchHeader) -> list[Headers]:
    """Each record's headers as pairs."""
    try:
        flat = _unpack_headers(packed)
    except _BAD as error:
        raise _corrupt(header, f"headers: {error}") from error
    if len(flat) != header.record_count:
        raise _corrupt(header, f"it has headers for {len(flat)} of {header.record_count} records")
    some = [each for each in flat if each]
    joined = list(chain.from_iterable(some))
    if any([len(each) % 2 for each in some]) or not _are_headers(joined):  # noqa: C419 -- a list is faster
        raise _corrupt(header, "a header is not a pair of text, and bytes or nil")
    pairs = zip(joined[::2], joined[1::2], strict=True)
    return [tuple(islice(pairs, len(each) // 2)) if each else () for each in flat]


def _are_headers(flat: list[Any]) -> bool:
    """Whether it is name, value, name, value, ..."""
    return set(map(type, flat[::2])) <= {str} and set(map(type, flat[1::2])) <= _PLAIN


def _offsets(header: BatchHeader, gaps: list[int] | None) -> Sequence[Offset]:
    """Each record's offset."""
    first = header.base_offset
    if gaps is None:
        return range(first, first + header.record_count)
    if not _grow(gaps, header.last_offset_delta):
        raise _corrupt(header, f"its offsets do not grow from 0 to {header.last_offset_delta} at most")
    return [first + gap for gap in gaps]


def _grow(gaps: list[int], last: int) -> bool:
    """Whether each is larger than the one before, from 0 to `last`."""
    return not gaps or (gaps[0] >= 0 and gaps[-1] <= last and all(map(lt, gaps, gaps[1:])))


def _corrupt(header: BatchHeader, what: str) -> CorruptMessage:
    return CorruptMessage(f"the payload of the batch at offset {header.base_offset} cannot be read: {what}")
