"""Records as Arrow columns: from the client's columns to Spark's, without an object per record.

What it keeps true: a batch has exactly the schema that was asked for; only the columns are made that are in it; what a
batch takes is bounded by `ROWS` and `BYTES`, whatever the producers' batches are.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

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

from tidelog.client.records import RecordBatch
from tidelog.protocol.errors import InvalidConfig, InvalidRecord

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
    """Refuse what cannot be read: a column that is none of ours, or one of another type."""
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


class Shaper:
    """Makes Arrow batches of one schema."""

    def __init__(self, schema: StructType, key_equals: str | None = None) -> None:
        self.schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._makers = [_MAKERS[each.name] for each in schema.fields]
        self._texts = [
            at
            for at, each in enumerate(schema.fields)
            if each.name in ("key", "value") and each.dataType == StringType()
        ]
        self._key = None if key_equals is None else pa.scalar(key_equals.encode(), pa.binary())
        self._pending: list[list[pa.Array]] = [[] for _ in self._makers]
        self.rows = 0
        self.bytes = 0

    def add(self, batch: RecordBatch) -> None:
        """Take these records."""
        arrays = [make(batch) for make in self._makers]
        if self._key is not None:
            mask = pc.fill_null(pc.equal(_keys(batch), self._key), fill_value=False)
            rows = pc.sum(mask).as_py()
            if not rows:
                return
            arrays = [pc.filter(array, mask) for array in arrays]
            self.rows += rows
        else:
            self.rows += len(batch)
        for at in self._texts:
            arrays[at] = _text(arrays[at], self.schema.names[at], batch)
        for pending, array in zip(self._pending, arrays, strict=True):
            pending.append(array)
            self.bytes += array.nbytes

    @property
    def full(self) -> bool:
        """Whether that is enough for a batch."""
        return self.rows >= ROWS or self.bytes >= BYTES

    def take(self) -> list[pa.RecordBatch]:
        """What was taken, as batches; nothing is left here."""
        if not self.rows:
            self._pending, self.bytes = [[] for _ in self._makers], 0
            return []
        arrays = [pa.concat_arrays(pending) for pending in self._pending]
        arrays = [
            array if array.type == kind.type else array.cast(kind.type)
            for array, kind in zip(arrays, self.schema, strict=True)
        ]
        if arrays:
            whole = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        else:
            whole = pa.RecordBatch.from_struct_array(pa.array([{}] * self.rows, pa.struct([])))
        rows = self.rows
        self._pending, self.rows, self.bytes = [[] for _ in self._makers], 0, 0
        if rows <= 2 * ROWS:
            return [whole]
        return [whole.slice(at, ROWS) for at in range(0, rows, ROWS)]


def _text(array: pa.Array, column: str, batch: RecordBatch) -> pa.Array:
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise InvalidRecord(
            f"{batch.topic}-{batch.partition} from offset {batch.offset}: a {column} is no UTF-8 text; "
            f"read {column} as binary"
        ) from error


# ── columns ───────────────────────────────────────────────────────────────────────────────────────────


def _keys(batch: RecordBatch) -> pa.Array:
    return pa.array(batch.keys, pa.binary())


def _values(batch: RecordBatch) -> pa.Array:
    return pa.array(batch.values, pa.binary())


def _topic(batch: RecordBatch) -> pa.Array:
    return pa.repeat(pa.scalar(batch.topic, pa.string()), len(batch))


def _partition(batch: RecordBatch) -> pa.Array:
    return pa.repeat(pa.scalar(batch.partition, pa.int32()), len(batch))


def _timestamp_type(batch: RecordBatch) -> pa.Array:
    return pa.repeat(pa.scalar(int(batch.log_append_time), pa.int32()), len(batch))


_counting: list[pa.Array] = [pa.array(range(4096), pa.int64())]


def _offsets(batch: RecordBatch) -> pa.Array:
    offsets = batch.offsets
    if not isinstance(offsets, range):
        return pa.array(offsets, pa.int64())
    count = len(offsets)
    if len(_counting[0]) < count:
        _counting[0] = pa.array(range(2 * count), pa.int64())
    return pc.add(_counting[0].slice(0, count), pa.scalar(offsets.start, pa.int64()))


def _timestamps(batch: RecordBatch) -> pa.Array:
    times = batch.timestamps_ms
    # Most producers stamp whole batches with the time of their first record.
    if times[0] == times[-1] and times.count(times[0]) == len(times):
        whole = pa.repeat(pa.scalar(times[0], pa.int64()), len(times))
    else:
        whole = pa.array(times, pa.int64())
    return pc.multiply(whole, pa.scalar(1000, pa.int64())).cast(pa.timestamp("us", tz="UTC"))


def _headers(batch: RecordBatch) -> pa.Array:
    """Null where a record has none, as Kafka's connector does."""
    each = batch.headers
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


_MAKERS: Final[Mapping[str, Callable[[RecordBatch], pa.Array]]] = {
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
    """The columns of an Arrow batch that is to be written."""

    def __init__(self, batch: pa.RecordBatch) -> None:
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
            whole = pc.floor_temporal(given["timestamp"], unit="millisecond")
            self.timestamps_ms = whole.cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64()).to_pylist()
        self.headers: list[Sequence[tuple[str, bytes | None]]] | None = None
        if "headers" in given:
            rows = given["headers"].to_pylist()
            self.headers = [tuple((each["key"], each["value"]) for each in row or ()) for row in rows]


def _bytes(column: pa.Array) -> list[bytes | None]:
    found: list[bytes | None] = column.cast(pa.binary()).to_pylist()
    return found
