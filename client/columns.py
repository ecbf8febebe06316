"""Many records at once: columns into batches, each as full as it gets, and where each record has landed.

What it keeps true: records with the same key keep their order, and so do those without one; what is too large or no record is refused before anything
of the columns is taken; nothing is done per record that a call into C can do for all.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import add
from types import NoneType
from typing import Any, Final, NamedTuple, TypeAlias

from tidelog.client.batching import Accumulator, Batch, TopicLanes
from tidelog.client.records import Landed, Run
from tidelog.client.sizes import RECORD_OVERHEAD, plain
from tidelog.protocol.errors import InvalidRecord, TidelogError

Column: TypeAlias = list[bytes | None]

_PLAIN: Final = {bytes, NoneType}


class Part(NamedTuple):
    """Records that went into one batch."""

    batch: Batch
    place: int
    """The first one's place in it."""
    size: int


class Columns:
    """Records for one topic that are to be put into batches."""

    __slots__ = ("_keys", "_values", "parts", "places")

    def __init__(self, values: Iterable[bytes | None], keys: Iterable[bytes | None] | None) -> None:
        self._values = _checked(values, "value")
        self._keys = None if keys is None else _checked(keys, "key")
        self.parts: list[Part] = []
        """What was put where, in order."""
        self.places: list[int] | None = None
        """Each record's number in the order of the parts; None: it is the same."""
        if self._keys is not None and len(self._keys) != len(self._values):
            raise InvalidRecord(
                f"{len(self._keys)} keys for {len(self._values)} values: one for each, or None"
            )

    def columns(
        self, accumulator: Accumulator[Any], topic: TopicLanes, partition: int | None
    ) -> list["Portion"]:
        """What goes into each partition; one portion, wherever batches are open, where nothing says where."""
        if partition is not None:
            topic.lane(partition)
        if self._keys is None or partition is not None:
            portions = [Portion(accumulator, topic, partition, self._values, self._keys)]
        else:
            portions = self._by_key(accumulator, topic, self._keys)
        for portion in portions:
            portion.check()
        return portions

    def _by_key(self, accumulator: Accumulator[Any], topic: TopicLanes, keys: Column) -> list["Portion"]:
        indexes: dict[int | None, list[int]] = {}
        for at, partition in enumerate(accumulator.spread(topic, keys)):
            indexes.setdefault(partition, []).append(at)
        self.places = places = [0] * len(keys)
        values, first, portions = self._values, 0, []
        for partition, ats in indexes.items():
            for number, at in enumerate(ats, first):
                places[at] = number
            first += len(ats)
            portion = Portion(
                accumulator, topic, partition, [values[at] for at in ats], [keys[at] for at in ats]
            )
            portions.append(portion)
        return portions

    def landed(self) -> Landed:
        """Where they are, when all parts have ended. Raises the first error, and all senders count as told."""
        runs: list[Run] = []
        failed: TidelogError | None = None
        first = lost = 0
        for batch, place, count in self.parts:
            lane = batch.lane
            where = lane.topic.name, lane.index
            runs.append(Run(first, count, *where, batch.offset(place), batch.timestamp_ms(place)))
            first += count
            if batch.error is not None:
                failed = failed or batch.error
                lost += count
                batch.told = batch.told or set()
                batch.told.update(range(place, place + count))
        if failed is not None:
            error = failed.anew()
            error.add_note(f"{lost} of {first} records were not acknowledged")
            raise error from failed.__cause__
        return Landed(runs, self.places)


class Portion:
    """Records for one partition, or for whichever is filled now."""

    __slots__ = ("_accumulator", "_begin", "_ends", "_keys", "_largest", "_partition", "_topic", "_values")

    def __init__(
        self,
        accumulator: Accumulator[Any],
        topic: TopicLanes,
        partition: int | None,
        values: Column,
        keys: Column | None,
    ) -> None:
        self._accumulator = accumulator
        self._topic = topic
        self._partition = partition
        self._values = values
        self._keys = keys
        sizes = _sizes(values, keys)
        self._largest = max(sizes, default=0) + RECORD_OVERHEAD
        self._ends = list(accumulate(sizes, initial=0))
        """Where each ends, what records take besides not counted."""
        self._begin = 0

    @property
    def done(self) -> bool:
        """Whether all are in batches."""
        return self._begin == len(self._values)

    def check(self) -> None:
        """Refuse all when one is too large."""
        self._accumulator.check_size(self._largest, self._topic.name)

    def take(self) -> Part | None:
        """Put the next ones into a batch, as many as fit; None: there is no room now."""
        accumulator, ends, begin = self._accumulator, self._ends, self._begin
        lane = self._lane
        end = self._fitting(accumulator.room_in(lane))
        if end <= begin and lane.open is not None:
            accumulator.filled(lane)
            lane = self._lane
            end = self._fitting(accumulator.room_in(lane))
        end = max(end, begin + 1)
        keys = None if self._keys is None else self._keys[begin:end]
        size = ends[end] - ends[begin] + RECORD_OVERHEAD * (end - begin)
        taken = accumulator.extend(lane, self._values[begin:end], keys, size)
        if taken is None:
            return None
        self._begin = end
        return Part(*taken, end - begin)

    @property
    def _lane(self) -> Any:
        return self._topic.sticky if self._partition is None else self._topic.lane(self._partition)

    def _fitting(self, room: int) -> int:
        """Where the first one begins that does not fit into so much."""
        ends, begin = self._ends, self._begin
        room += ends[begin] + RECORD_OVERHEAD * begin
        return bisect_right(range(len(ends)), room, begin, key=lambda at: ends[at] + RECORD_OVERHEAD * at) - 1


def _checked(given: Iterable[bytes | None], what: str) -> Column:
    whatever: object = given  # the types say
    if isinstance(whatever, str | bytes | bytearray) or not isinstance(whatever, Iterable):
        raise InvalidRecord(f"{what}s are a list of bytes, not {type(whatever).__name__}")
    column = list(given)
    if set(map(type, column)) <= _PLAIN:
        return column
    return [plain(each, what)[0] for each in column]


def _sizes(values: Column, keys: Column | None) -> list[int]:
    """How long each record's value and key are."""
    sizes = _lengths(values)
    return sizes if keys is None else list(map(add, sizes, _lengths(keys)))


def _lengths(column: Sequence[Any]) -> list[int]:
    try:
        return list(map(len, column))
    except TypeError:  # there is none in some
        return [len(each or b"") for each in column]
