"""What a consumer gives to the application, and what the application has in hand: a pure machine.

    readers in turn ──take──► a batch ──► all of it in hand, or its records one by one
                              put_back: what of it was not given, for it is read in another way, or elsewhere

What it keeps true:

* Partitions take turns: who has given all that is here goes behind the others.
* What was given is in hand until the application asks for more (`finished`): so far nothing of it counts as processed.
* What it has said itself that it is done with, by committing it, nobody says otherwise (`done`) before it goes elsewhere.
* A position is behind what was given; of a batch that is read one by one, behind its last record that was.
"""

from collections.abc import Collection, Iterator
from typing import Final

from tidelog.client.fetching import Fetching
from tidelog.client.reader import Reader
from tidelog.client.records import Record, RecordBatch
from tidelog.protocol.batch import read_header
from tidelog.protocol.types import NO_OFFSET, NO_TIMESTAMP, Offset, TopicPartition

ONE_BY_ONE: Final = 2000
"""So many records are given one by one before others of the loop may have a turn: a millisecond's worth, about."""


class Hand:
    """See the module."""

    def __init__(self, fetching: Fetching) -> None:
        self.records: Iterator[Record] = iter(())
        """Those of the batch that is read one by one."""
        self.last: Record | None = None
        """The last of them that was given."""
        self.reading: tuple[Reader, RecordBatch] | None = None
        """That batch, and whose it is; another object as soon as its partition is taken away, or sought elsewhere."""
        self._version = 0
        """Of its reader, when it was taken: of another version that one was moved meanwhile."""
        self.made_room = False
        """Whether something was taken for which more may be fetched."""
        self.taken = 0
        """How many records were taken since somebody has set this to 0."""
        self._fetching = fetching
        self._turn: list[Reader] = []
        """Whose turn it is to be read, the next one first."""
        self._given: dict[TopicPartition, Offset] = {}
        """From where on the application was given records that it may not be done with; `last` is another one."""
        self._times: dict[TopicPartition, tuple[tuple[Offset, int], ...]] = {}
        """Where batches ended that were given, and when their last record was written: as far as anybody may ask."""

    # ── which partitions ──────────────────────────────────────────────────────────────────────────

    def begin(self, names: Collection[TopicPartition]) -> None:
        """These may be read as well."""
        self._turn += [self._fetching.readers[name] for name in names]

    def only(self, names: Collection[TopicPartition]) -> None:
        """These are read and no others; positions of those that were read before stay."""
        self.put_back()
        fetching = self._fetching
        fetching.unassign([name for name in fetching.readers if name not in names])
        self._given = {name: offset for name, offset in self._given.items() if name in fetching.readers}
        self._times = {name: times for name, times in self._times.items() if name in fetching.readers}
        fetching.assign(names)
        self._turn = list(fetching.readers.values())

    def withdraw(self, names: Collection[TopicPartition]) -> None:
        """Nothing more of these is to be read; what was given is still in hand."""
        if self.reading is not None and self.reading[0].name in names:
            self.put_back()
        self._turn = [reader for reader in self._turn if reader.name not in names]

    def drop(self, names: Collection[TopicPartition]) -> None:
        """They are not this consumer's any more."""
        self.withdraw(names)
        self._fetching.unassign([name for name in names if name in self._fetching.readers])
        for name in names:
            self._given.pop(name, None)
            self._times.pop(name, None)

    def drop_all(self) -> None:
        """Nothing is this consumer's any more."""
        self._end_one_by_one()
        self._given.clear()
        self._times.clear()
        self._fetching.unassign(list(self._fetching.readers))
        self._turn = []

    # ── where ─────────────────────────────────────────────────────────────────────────────────────

    def seek(self, reader: Reader, offset: Offset, question: int | None = None) -> None:
        """Go on there; what was given of it counts no more."""
        self.put_back()
        self._given.pop(reader.name, None)
        self._times.pop(reader.name, None)
        reader.said = NO_OFFSET
        reader.seek(offset, question)

    def position(self, reader: Reader) -> Offset:
        """The offset of the next record that is given of it; -1: not known yet."""
        if self.reading is not None and self.reading[0] is reader:
            rest = self._rest()
            return reader.position if rest is None else rest.offset
        return reader.position

    def placed(self, name: TopicPartition) -> Offset:
        """The same by name; -1 also for what is not read."""
        reader = self._fetching.readers.get(name)
        return NO_OFFSET if reader is None else self.position(reader)

    def processed(self, name: TopicPartition) -> Offset:
        """How far the application is done with it: all before what it has in hand."""
        if self.reading is not None and self.reading[0].name == name and self.last is not None:
            return self.last.offset
        return self._given.get(name, self.placed(name))

    def say(self, name: TopicPartition, offset: Offset) -> None:
        """The application commits this itself: before that offset it is done."""
        if name in self._fetching.readers:
            self._fetching.readers[name].said = offset

    def done(self, name: TopicPartition) -> Offset:
        """How far the application is done with it, also by what it has said of what it has in hand."""
        reader, processed = self._fetching.readers.get(name), self.processed(name)
        said = NO_OFFSET if reader is None else reader.said
        return said if processed < said <= self.placed(name) else processed

    def time_before(self, name: TopicPartition, offset: Offset) -> int:
        """When the last record before that offset was written, or an older one that was given; -1: not known any more."""
        if self.reading is not None and self.reading[0].name == name:
            time_ms = self.reading[1].time_before(offset)
            if time_ms != NO_TIMESTAMP:
                return time_ms
        times = self._times.get(name, ())
        return next((time_ms for end, time_ms in reversed(times) if end <= offset), NO_TIMESTAMP)

    def finished(self) -> None:
        """The application asks for more, or has ended well: it is done with what it had."""
        if self.reading is not None:
            self.put_back()
        self._given.clear()

    def next_time_ms(self, reader: Reader) -> int | None:
        """When the next record was written, if what is here tells."""
        rest = None
        if self.reading is not None and self.reading[0] is reader:
            rest = self._rest()
        rest = rest or reader.rest
        if rest is not None:
            return rest.timestamps_ms[0]
        return read_header(*reader.buffered[0]).base_timestamp if reader.buffered else None

    # ── giving ────────────────────────────────────────────────────────────────────────────────────

    def one_by_one(self) -> Record | None:
        """The next record, of the batch that is being read or of another one."""
        record = next(self.records, None)
        if record is not None:
            return record
        self.reading = self.last = None
        taken = self._take(ONE_BY_ONE)
        if taken is None:
            return None
        self.reading, self._version = taken, taken[0].version
        self.records = iter(taken[1])
        return next(self.records)

    def give(
        self,
        max_records: int | None = None,
        only: Collection[TopicPartition] = (),
        *,
        quiet: bool = False,
    ) -> tuple[TopicPartition, RecordBatch] | None:
        """The next batch of the partition whose turn it is, of these or of any. An error waits while `quiet`."""
        taken = self._take(max_records, only, quiet=quiet)
        if taken is None:
            return None
        reader, batch = taken
        self._given.setdefault(reader.name, batch.offset)
        return reader.name, batch

    def put_back(self) -> None:
        """Put back what is left of the batch that is read one by one."""
        if self.reading is not None:
            rest, reader = self._rest(), self.reading[0]
            times = self._times.get(reader.name, ())[:-1]
            if self.last is not None:
                self._given.setdefault(reader.name, self.last.offset)
                times += ((self.last.offset + 1, self.last.timestamp_ms),)
            self._times[reader.name] = times
            if rest is not None and reader.version == self._version:  # else the log was cut off below it
                self._fetching.give_back(reader, rest)
        self._end_one_by_one()

    def _take(
        self,
        max_records: int | None = None,
        only: Collection[TopicPartition] = (),
        *,
        quiet: bool = False,
    ) -> tuple[Reader, RecordBatch] | None:
        self._fetching.awaited = only
        for _ in range(len(self._turn)):
            reader = self._turn[0]
            batch = None
            if not reader.paused and not (only and reader.name not in only):
                if reader.has_records or (reader.error is not None and not quiet):
                    batch = self._fetching.take(reader)
                self.made_room = self._fetching.made_room(reader) or self.made_room
            if batch is not None:
                if max_records is not None:
                    batch, rest = batch.split(max_records)
                    if rest is not None:
                        self._fetching.give_back(reader, rest)
                if not reader.has_records:
                    self._turn.append(self._turn.pop(0))
                self.taken += len(batch)
                self._note(reader.name, batch)
                return reader, batch
            self._turn.append(self._turn.pop(0))
        return None

    def _note(self, name: TopicPartition, batch: RecordBatch) -> None:
        times = self._times.get(name, ())
        if name not in self._given:
            times = times[-1:]  # nobody is before the end of the last one any more
        self._times[name] = (*times, (batch.next_offset, batch.time_before(batch.next_offset)))

    def _rest(self) -> RecordBatch | None:
        """What is left of the batch that is being read one by one."""
        assert self.reading is not None
        return self.reading[1] if self.last is None else self.reading[1].after(self.last.offset)

    def _end_one_by_one(self) -> None:
        self.reading = self.last = None
        self.records = iter(())
