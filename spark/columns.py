"""Records as Arrow columns: from the client's columns to Spark's, without a row per record.

What it keeps true: a batch has exactly the schema that was asked for; only the columns are made that are in it; what a
batch takes is bounded by `ROWS` and `BYTES`, whatever the producers' batches are.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain, groupby
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidelog.client.records import RecordBatch, place_of
from tidelog.protocol.errors import CorruptMessage, InvalidConfig, InvalidRecord
from tidelog.protocol.packed import length_of, uniform_of
from tidelog.protocol.records import PackedColumns
from tidelog.protocol.types import NO_TIMESTAMP

ROWS: Final = 32_768
"""Records in an Arrow batch: from 5,000 to 100,000 Spark is as fast as it gets."""
BYTES: Final = 8 << 20

HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
COLUMNS: Final[Mapping[str, tuple[DataType, ...]]] = {
    "key": (BinaryType(), StringType()),
    "value": (BinaryType(), StringType()),
    "topic": (StringType(),),
    "partition": (IntegerType(),),
    "offset": (LongType(),),
    "timestamp": (TimestampType(),),
    "timestampType": (IntegerType(),),
    "headers": (HEADERS,),
}
"""Kafka's columns, each with the types that it can be read as."""

_ARROW_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def schema_of(*, headers: bool) -> StructType:
    """Kafka's schema."""
    names = [name for name in COLUMNS if headers or name != "headers"]
    return StructType([StructField(name, COLUMNS[name][0]) for name in names])


def check_schema(schema: StructType) -> None:
    """Refuse what cannot be read: a column that is none of ours, one of another type, or one twice."""
    for name, times in Counter(schema.names).items():
        if times > 1:
            raise InvalidConfig(f"schema: column {name} is there {times} times; name each once")
    for wanted in schema.fields:
        types = COLUMNS.get(wanted.name)
        if types is None:
            raise InvalidConfig(f"schema: there is no column {wanted.name}; there are {', '.join(COLUMNS)}")
        if _plain(wanted.dataType) not in [_plain(each) for each in types]:
            names = " or ".join(each.simpleString() for each in types)
            raise InvalidConfig(
                f"schema: column {wanted.name} is {names}, not {wanted.dataType.simpleString()}"
            )


def _plain(kind: DataType) -> str:
    return kind.simpleString()


def bytes_of(batch: RecordBatch) -> int:
    """About so much is in it: of a part of a packed batch its share."""
    columns, begin, end = place_of(batch)
    if isinstance(columns, PackedColumns):
        return columns.packed_size * (end - begin) // len(columns)
    return sum([len(each or b"") for each in chain(batch.keys, batch.values)])


class Shaper:
    """Makes Arrow batches of one schema out of what the client has fetched, many of its batches for one."""

    def __init__(self, schema: StructType, key_equals: str | None = None) -> None:
        self.schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._makers = [_MAKERS[each.name] for each in schema.fields]
        self._key = None if key_equals is None else pa.scalar(key_equals.encode(), pa.binary())
        self._pending: list[RecordBatch] = []
        self._rows = 0
        self._bytes = 0

    def add(self, batch: RecordBatch) -> None:
        """Take these records."""
        self._pending.append(batch)
        self._rows += len(batch)
        self._bytes += bytes_of(batch)

    @property
    def full(self) -> bool:
        """Whether that is enough for a batch."""
        return self._rows >= ROWS or self._bytes >= BYTES

    def take(self) -> list[pa.RecordBatch]:
        """What was taken, as batches of those that are meant; nothing is left here."""
        pending, rows = self._pending, self._rows
        self._pending, self._rows, self._bytes = [], 0, 0
        if not rows:
            return []
        arrays = [
            self._typed(make(pending), kind, pending)
            for make, kind in zip(self._makers, self.schema, strict=True)
        ]
        if arrays:
            whole = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        else:
            whole = pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
        if self._key is not None:
            whole = whole.filter(pc.equal(_keys(pending), self._key))  # null, where there is no key, is none
        if whole.num_rows <= 2 * ROWS:
            return [whole] if whole.num_rows else []
        return [whole.slice(at, ROWS) for at in range(0, whole.num_rows, ROWS)]

    def _typed(self, array: pa.Array, kind: pa.Field, pending: list[RecordBatch]) -> pa.Array:
        try:
            return array if array.type == kind.type else array.cast(kind.type)
        except pa.ArrowInvalid as error:
            first = pending[0]
            raise InvalidRecord(
                f"{first.topic}-{first.partition} from offset {first.offset}: a {kind.name} is no UTF-8 text; "
                f"read {kind.name} as binary"
            ) from error


# ── columns ───────────────────────────────────────────────────────────────────────────────────────────

_Batches: TypeAlias = list[RecordBatch]


def _keys(batches: _Batches) -> pa.Array:
    return _binary(batches, "keys")


def _values(batches: _Batches) -> pa.Array:
    return _binary(batches, "values")


class _Piece(NamedTuple):
    """A batch's keys or values: as bytes in a row, each behind this head, or none at all, or still to be unpacked."""

    batch: RecordBatch
    head: bytes | None = None
    body: memoryview | None = None


_ABSENT: Final = b""
"""In place of a head: no record has any."""


def _binary(batches: _Batches, which: str) -> pa.Array:
    """Batches whose entries are all of one length become a column without an object for each."""
    pieces = [_piece(batch, which) for batch in batches]
    arrays = []
    for head, run in groupby(pieces, lambda piece: piece.head):
        if head is None:
            entries = chain.from_iterable([_unpacked(piece.batch, which) for piece in run])
            arrays.append(pa.array(list(entries), pa.binary()))
        elif head == _ABSENT:
            arrays.append(pa.nulls(sum([len(piece.batch) for piece in run]), pa.binary()))
        else:
            arrays.append(_without_heads(b"".join([piece.body or b"" for piece in run]), head))
    return _joined(arrays)


def _piece(batch: RecordBatch, which: str) -> _Piece:
    columns, begin, end = place_of(batch)
    if not isinstance(columns, PackedColumns):
        return _Piece(batch)
    packed = columns.packed_keys if which == "keys" else columns.packed_values
    if packed is None:
        return _Piece(batch, _ABSENT)
    uniform = uniform_of(packed, len(columns))
    if uniform is None:
        return _Piece(batch)
    stride = uniform.stride
    return _Piece(batch, uniform.head, uniform.body[begin * stride : end * stride])


def _without_heads(body: bytes, head: bytes) -> pa.Array:
    """Entries of one length, each behind this head."""
    length = length_of(head)
    stride = len(head) + length
    count = len(body) // stride
    whole = pa.Array.from_buffers(pa.binary(stride), count, [None, pa.py_buffer(body)])
    _, entries = pc.binary_slice(whole, len(head)).buffers()
    return pa.Array.from_buffers(pa.binary(), count, [None, _ends(length, _rounded(count)), entries])


@lru_cache(maxsize=4)
def _ends(length: int, count: int) -> pa.Buffer:
    """Where entries of that length begin and end, of as many or more; kept, as `_many` is."""
    ends = pc.multiply(_counted(count + 1).cast(pa.int32()), pa.scalar(length, pa.int32()))
    return ends.buffers()[1]


def _unpacked(batch: RecordBatch, which: str) -> list[bytes | None]:
    try:
        return batch.keys if which == "keys" else batch.values
    except CorruptMessage as error:
        raise CorruptMessage(
            f"{batch.topic}-{batch.partition} cannot be read at offset {batch.offset}: {error}"
        ) from error


def _constant(batches: _Batches, value: Callable[[RecordBatch], Any], kind: pa.DataType) -> pa.Array:
    """A column that is the same throughout a batch, and mostly throughout all of them."""
    return _joined(
        [_repeated(each, kind, sum(map(len, run))) for each, run in groupby(batches, value)],
    )


def _repeated(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    if count > _KEPT:
        return pa.repeat(pa.scalar(value, kind), count)
    return _many(value, kind, _rounded(count)).slice(0, count)


def _rounded(count: int) -> int:
    """Up to a power of two, so that what is kept serves again."""
    return 1 << (count - 1).bit_length()


_KEPT: Final = 2 * ROWS
"""Rows of a column that is kept: what a batch mostly has, at most."""


@lru_cache(maxsize=4)
def _many(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    """Kept: the next batch of a task mostly says the same."""
    return pa.repeat(pa.scalar(value, kind), count)


def _joined(arrays: list[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _topic(batches: _Batches) -> pa.Array:
    return _constant(batches, lambda batch: batch.topic, pa.string())


def _partition(batches: _Batches) -> pa.Array:
    return _constant(batches, lambda batch: batch.partition, pa.int32())


def _timestamp_type(batches: _Batches) -> pa.Array:
    return _constant(batches, lambda batch: int(batch.log_append_time), pa.int32())


def _offsets(batches: _Batches) -> pa.Array:
    runs: list[Sequence[int]] = []
    for batch in batches:
        offsets, last = batch.offsets, runs[-1] if runs else None
        if isinstance(offsets, range) and isinstance(last, range) and last.stop == offsets.start:
            runs[-1] = range(last.start, offsets.stop)
        else:
            runs.append(offsets)
    return _joined([_offsets_of(run) for run in runs])


def _offsets_of(offsets: Sequence[int]) -> pa.Array:
    if not isinstance(offsets, range):
        return pa.array(offsets, pa.int64())
    return pc.add(_counted(len(offsets)), pa.scalar(offsets.start, pa.int64()))


_counting: list[pa.Array] = [pa.array(range(4096), pa.int64())]


def _counted(count: int) -> pa.Array:
    """0, 1, 2, ..."""
    if len(_counting[0]) < count:
        _counting[0] = pa.array(range(2 * count), pa.int64())
    return _counting[0].slice(0, count)


_MS_MAX: Final = (2**63 - 1) // 1000
"""The largest time that Spark has microseconds for; beyond it there is none."""


def _timestamps(batches: _Batches) -> pa.Array:
    # Most producers stamp whole batches with the time of their first record.
    arrays = []
    for same, run in groupby(batches, lambda batch: place_of(batch)[0].time is not None):
        some = list(run)
        if same:
            ends = pa.array(accumulate(map(len, some)), pa.int32())
            times = _micros([place_of(batch)[0].time for batch in some])
            arrays.append(pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(ends, times)))
        else:
            arrays.append(_micros(list(chain.from_iterable([batch.timestamps_ms for batch in some]))))
    return _joined(arrays).cast(pa.timestamp("us", tz="UTC"))


def _micros(times_ms: Sequence[int | None]) -> pa.Array:
    try:
        return pc.multiply_checked(pa.array(times_ms, pa.int64()), pa.scalar(1000, pa.int64()))
    except (pa.ArrowInvalid, OverflowError):  # nanoseconds, mostly, that somebody took for milliseconds
        within = [each if each is not None and abs(each) <= _MS_MAX else None for each in times_ms]
        return _micros(within)


def _headers(batches: _Batches) -> pa.Array:
    """Null where a record has none, as Kafka's connector does."""
    each = list(chain.from_iterable([batch.headers for batch in batches]))
    if not any(each):
        return pa.nulls(len(each), _ARROW_HEADERS)
    pairs = list(chain.from_iterable(each))
    flat = pa.StructArray.from_arrays(
        [
            pa.array([name for name, _ in pairs], pa.string()),
            pa.array([value for _, value in pairs], pa.binary()),
        ],
        names=["key", "value"],
    )
    ends: list[int | None] = []
    at = 0
    for headers in each:
        ends.append(at if headers else None)
        at += len(headers)
    return pa.ListArray.from_arrays(pa.array([*ends, at], pa.int32()), flat)


_MAKERS: Final[Mapping[str, Callable[[_Batches], pa.Array]]] = {
    "key": _keys,
    "value": _values,
    "topic": _topic,
    "partition": _partition,
    "offset": _offsets,
    "timestamp": _timestamps,
    "timestampType": _timestamp_type,
    "headers": _headers,
}


# ── the other way ─────────────────────────────────────────────────────────────────────────────────────

WRITABLE: Final[Mapping[str, tuple[str, ...]]] = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    "headers": (HEADERS.simpleString(),),
}
"""What a row may say of the record that it becomes."""


def check_writable(schema: StructType, *, topic: str) -> None:
    """Refuse rows that are no records; columns that only readers fill (`offset`) are passed over, as Kafka's sink does."""
    names = [each.name for each in schema.fields]
    if "value" not in names:
        raise InvalidConfig(f"a record needs a column value; there are {', '.join(names) or 'none'}")
    for given in schema.fields:
        types = WRITABLE.get(given.name)
        if types is None and given.name in COLUMNS:
            continue
        if types is None:
            raise InvalidConfig(
                f"column {given.name} cannot be written; there are {', '.join(WRITABLE)}: select what is meant"
            )
        if given.dataType.simpleString() not in types:
            raise InvalidConfig(
                f"column {given.name} is {given.dataType.simpleString()}, it must be {' or '.join(types)}"
            )
    if not topic and "topic" not in names:
        raise InvalidConfig("option topic: it must say where to, for there is no column topic")


class Rows:
    """The columns of an Arrow batch that is to be written; `first`: how many rows came before."""

    def __init__(self, batch: pa.RecordBatch, first: int = 0) -> None:
        given: dict[str, Any] = dict(zip(batch.schema.names, batch.columns, strict=True))
        self.count: int = batch.num_rows
        self.values: list[bytes | None] = _bytes(given["value"])
        self.keys: list[bytes | None] | None = _bytes(given["key"]) if "key" in given else None
        self.topics: list[str | None] | None = given["topic"].to_pylist() if "topic" in given else None
        self.partitions: list[int | None] | None = (
            given["partition"].to_pylist() if "partition" in given else None
        )
        self.timestamps_ms: list[int | None] | None = None
        if "timestamp" in given:
            # In UTC: where clocks go back, an hour of local times is there twice, and Arrow rounds none of it.
            times = given["timestamp"].cast(pa.timestamp("us", tz="UTC"))
            _check_times(times.cast(pa.int64()), first)
            whole = pc.floor_temporal(times, unit="millisecond")
            self.timestamps_ms = whole.cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64()).to_pylist()
        self.headers: list[Sequence[tuple[str, bytes | None]]] | None = None
        if "headers" in given:
            rows = given["headers"].to_pylist()
            self.headers = [_pairs(row or (), number) for number, row in enumerate(rows, first)]


def _check_times(times_us: pa.Array, first: int) -> None:
    """Refuse what is before 1970; -1 ms is what a record without a time reads as, and becomes one again."""
    too_early = pc.less(times_us, 1000 * NO_TIMESTAMP)
    place = pc.index(too_early, True).as_py()
    if place >= 0:
        raise InvalidRecord(
            f"row {first + place} of the task: timestamp is {times_us[place].as_py()} microseconds from 1970, before which "
            "no record's time can be: put it into the value, and let timestamp be null, which is the time of writing"
        )


def _pairs(headers: Sequence[Mapping[str, Any] | None], number: int) -> Sequence[tuple[str, bytes | None]]:
    for at, each in enumerate(headers):
        if each is None or each["key"] is None:
            what = "null" if each is None else "a value with a key that is null"
            raise InvalidRecord(
                f"row {number} of the task: headers[{at}] is {what}; each needs a key, and may have a value: "
                "leave it out with filter(headers, h -> h.key is not null)"
            )
    return tuple((each["key"], each["value"]) for each in headers if each is not None)


def _bytes(column: pa.Array) -> list[bytes | None]:
    found: list[bytes | None] = column.cast(pa.binary()).to_pylist()
    return found
