"""What users hold in their hands: records, batches of them as columns, and where records have landed.

What it keeps true: they are light (one small object per record, and none for who reads columns), and own their
bytes: they stay valid for as long as anybody holds them.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import cast, overload

from msgspec import Struct

from tidelog.protocol.batch import LOG_APPEND_TIME
from tidelog.protocol.records import Columns, Headers, Record
from tidelog.protocol.types import NO_OFFSET, NO_TIMESTAMP, Offset, TopicPartition

__all__ = [
    "Headers",
    "Landed",
    "PartitionPosition",
    "Record",
    "RecordBatch",
    "RecordMetadata",
    "TopicPartition",
]


class RecordMetadata(Struct, frozen=True, gc=False):
    """Where a record is."""

    topic: str
    partition: int
    offset: int
    """-1: it was written, and nobody knows where (`acks=0`, or a repetition that the broker no longer remembers)."""
    timestamp_ms: int
    """The producer's, or the broker's where the topic keeps that."""


class PartitionPosition(Struct, frozen=True, gc=False):
    """How far a consumer is in one partition."""

    position: int
    """The offset of the next record that it will get."""
    high_watermark: int
    """Everything below it is committed and can be read; -1: no broker has said so yet."""
    log_end: int
    """What Kafka's tools call so: the offset behind the last record that can be read, as its leader says."""
    lag: int
    """How many committed offsets lie ahead; -1: unknown."""
    lag_seconds: float | None
    """The age of the first record ahead; 0 where none is; None: unknown."""
    committed: int | None = None
    """What the group has committed; None: nothing, or there is no group."""


class RecordBatch:
    """Consecutive records of one partition: as columns, or one by one when it is iterated over."""

    __slots__ = ("_begin", "_columns", "_end", "partition", "topic")

    def __init__(self, topic: str, partition: int, columns: Columns, begin: int, end: int) -> None:
        self.topic = topic
        self.partition = partition
        self._columns = columns
        self._begin = begin
        self._end = end

    def __len__(self) -> int:
        return self._end - self._begin

    def __repr__(self) -> str:
        return f"<{len(self)} records of {self.topic}-{self.partition} from offset {self.offset}>"

    @property
    def offset(self) -> Offset:
        """The first record's."""
        return self._columns.offsets[self._begin]

    @property
    def next_offset(self) -> Offset:
        """Behind the last record, and behind what compaction has left of the end of its batch: nothing."""
        if self._end == len(self._columns):
            return self._columns.header.next_offset
        return self._columns.offsets[self._end - 1] + 1

    @property
    def _whole(self) -> bool:
        return self._begin == 0 and self._end == len(self._columns)

    @property
    def values(self) -> list[bytes | None]:
        """Each record's value."""
        values = self._columns.values
        return values if self._whole else values[self._begin : self._end]

    @property
    def keys(self) -> list[bytes | None]:
        """Each record's key."""
        keys = cast("list[bytes | None]", self._columns.keys)
        return keys if self._whole else keys[self._begin : self._end]

    @property
    def offsets(self) -> Sequence[Offset]:
        """Each record's offset; a range where none is missing."""
        return self._columns.offsets[self._begin : self._end]

    @property
    def timestamps_ms(self) -> list[int]:
        """Each record's time."""
        timestamps = self._columns.timestamps
        return timestamps if self._whole else timestamps[self._begin : self._end]

    def time_before(self, next_offset: Offset) -> int:
        """When the last of them before that offset was written; -1: there is none."""
        at = bisect_left(self._columns.offsets, next_offset, self._begin, self._end)
        return self._columns.time_at(at - 1) if at > self._begin else NO_TIMESTAMP

    @property
    def log_append_time(self) -> bool:
        """Whether the times are those of the broker that wrote the records, not their producers'."""
        return bool(self._columns.header.attributes & LOG_APPEND_TIME)

    @property
    def headers(self) -> list[Headers]:
        """Each record's headers; they are unpacked when they are first asked for."""
        headers = self._columns.headers
        return headers if self._whole else headers[self._begin : self._end]

    def __iter__(self) -> Iterator[Record]:
        columns: list[Sequence[object]] = [self.offsets, self.timestamps_ms, self.keys, self.values]
        if self._columns.has_headers:
            columns.append(self.headers)
        return map(Record, repeat(self.topic), repeat(self.partition), *columns)

    def records(self) -> list[Record]:
        """All of them as objects."""
        return list(self)

    def after(self, offset: Offset) -> "RecordBatch | None":
        """The records behind that offset; nothing is copied."""
        read = bisect_right(self._columns.offsets, offset) - self._begin
        return self.split(read)[1] if read > 0 else self

    def split(self, count: int) -> tuple["RecordBatch", "RecordBatch | None"]:
        """The first `count` records, and the others if there are any; nothing is copied."""
        if count >= len(self):
            return self, None
        at = self._begin + count
        return (
            RecordBatch(self.topic, self.partition, self._columns, self._begin, at),
            RecordBatch(self.topic, self.partition, self._columns, at, self._end),
        )


def batch_from(topic: str, partition: int, columns: Columns, offset: Offset) -> RecordBatch | None:
    """The records from that offset on; None: there are none (compaction has taken them, or they were read)."""
    begin, end = bisect_left(columns.offsets, offset), len(columns)
    return RecordBatch(topic, partition, columns, begin, end) if begin < end else None


def place_of(batch: RecordBatch) -> tuple[Columns, int, int]:
    """The columns that these records are in, and from where to where: for who makes other columns of them."""
    return batch._columns, batch._begin, batch._end  # noqa: SLF001 -- nothing that users should rest on


class Run(Struct, frozen=True, gc=False):
    """Records that landed one behind the other."""

    first: int
    """The place of the first of them among the records that were sent."""
    count: int
    topic: str
    partition: int
    offset: int
    timestamp_ms: int

    def at(self, place: int) -> RecordMetadata:
        """Where the record with that place is."""
        offset = self.offset + place - self.first if self.offset != NO_OFFSET else NO_OFFSET
        return RecordMetadata(self.topic, self.partition, offset, self.timestamp_ms)


class Landed(Sequence[RecordMetadata]):
    """Where each of many records is, in the order in which they were given; made when it is asked for.

    `places` holds, where keys have spread the records, each one's number among those of the runs.
    """

    __slots__ = ("_firsts", "_places", "_runs")

    def __init__(self, runs: list[Run], places: Sequence[int] | None = None) -> None:
        self._runs = runs
        self._firsts = [run.first for run in runs]
        self._places = places

    def __len__(self) -> int:
        return self._runs[-1].first + self._runs[-1].count if self._runs else 0

    def __repr__(self) -> str:
        return f"<{len(self)} records in {len(self._runs)} runs>"

    @property
    def runs(self) -> list[Run]:
        """The same in few objects: what stands together in one partition."""
        return self._runs

    @overload
    def __getitem__(self, place: int) -> RecordMetadata: ...

    @overload
    def __getitem__(self, place: slice) -> list[RecordMetadata]: ...

    def __getitem__(self, place: int | slice) -> RecordMetadata | list[RecordMetadata]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        size = len(self)
        if not -size <= place < size:
            raise IndexError(f"there are {size} records, not {place}")
        at = place % size
        if self._places is not None:
            at = self._places[at]
        return self._runs[bisect_right(self._firsts, at) - 1].at(at)
