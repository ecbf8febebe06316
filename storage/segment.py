"""One file of batches, and the two indexes that lead into it.

A segment is named by its base offset. It knows how far it is written (`size`, `next_offset`) and the
largest timestamp in it; batches in it follow one another without a byte between them, though offsets
may be missing where compaction removed them. What it keeps true:

* Every batch that is handed out was read from the disk and matches its checksum: damage is reported
  (`DamagedLog`), never served.
* Indexes lag behind the batches, and are rebuilt from them wherever they do not reach (`index`).
* The file may be closed between any two calls, and the indexes forgotten: `OpenSegments` bounds both.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tidelog.protocol.batch import HEADER_SIZE, BatchHeader, check_body, measure, read_header
from tidelog.protocol.errors import CorruptMessage, DamagedLog
from tidelog.protocol.types import NO_EPOCH, NO_TIMESTAMP, Buffer, Offset
from tidelog.storage.files import TEMPORARY, Directory, File
from tidelog.storage.index import OFFSETS, TIMES, SparseIndex
from tidelog.storage.open_segments import OpenSegments
from tidelog.storage.scan import BATCHES_PER_STEP, Scan

LOG: Final = ".log"
INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
RETIRED: Final = ".deleted"
"""The ending of a file that has left the log and waits to be removed."""
MAX_RELATIVE_OFFSET: Final = 2**31 - 1
NOT_SEEN: Final = 1 << 62
"""No look has found it here yet (`retention.look`): later than any that has."""
_CURSORS: Final = 16
_LOOKUP_BYTES: Final = 16 << 10
_LEARNT: Final = (
    "_last_at",
    "_since_entry",
    "first_timestamp",
    "last_epoch",
    "max_timestamp",
    "max_timestamp_offset",
    "next_offset",
    "size",
)
"""What a segment knows from its batches, whether or not its indexes are in memory."""


def segment_name(offset: Offset, ending: str = LOG) -> str:
    """`00000000000000000042.log`."""
    return f"{offset:020d}{ending}"


class Slice(NamedTuple):
    """Whole, verified batches, one behind the other, and the offset behind the last of them."""

    data: memoryview
    next_offset: Offset


class Segment:
    """The batches from `base_offset` up to `next_offset`, in the first `size` bytes of the file."""

    size: int
    next_offset: Offset
    __slots__ = (
        "_cursors",
        "_directory",
        "_file",
        "_indexes",
        "_interval",
        "_last_at",
        "_open",
        "_since_entry",
        "appended_ms",
        "base_offset",
        "begun_ms",
        "first_timestamp",
        "last_epoch",
        "max_timestamp",
        "max_timestamp_offset",
        "next_offset",
        "pins",
        "problems",
        "size",
        "stage",
    )

    def __init__(
        self,
        directory: Directory,
        base_offset: Offset,
        open_segments: OpenSegments,
        interval: int,
        stage: str = "",
    ) -> None:
        self._directory = directory
        self._open = open_segments
        self._interval = interval
        self._file: File | None = None
        self._indexes: tuple[SparseIndex, SparseIndex] | None = None
        self.base_offset = base_offset
        self.stage = stage
        """What its file's name ends with for as long as it is not, or was not, a segment of the log (`swap`)."""
        self.begun_ms = self.appended_ms = NOT_SEEN
        """Which look has first found its first and its last batch here (`retention.look`): they came before, at the
        latest. By the boot clock, which never steps, and not by producers'."""
        self.pins = 0
        self.problems: list[str] = []
        """Which of its index files the disk did not give when it was asked last: they are made anew."""
        self._rewind_to_start()

    @property
    def name(self) -> str:
        """The name of the file with the batches."""
        return segment_name(self.base_offset, LOG + self.stage)

    def _index_name(self, ending: str) -> str:
        return segment_name(self.base_offset, ending + (TEMPORARY if self.stage else ""))

    def __repr__(self) -> str:
        return f"<segment {self._directory.path}/{self.name} to {self.next_offset}>"

    # ── what may be taken away between two calls ──────────────────────────────────────────────────

    def create(self) -> None:
        """Make the file of a new, empty segment; what an earlier life left under its names goes."""
        self._remove_index_files()
        self._file = self._directory.open(self.name, create=True)
        self._file.truncate(0)
        self._indexes = SparseIndex(OFFSETS), SparseIndex(TIMES)
        self._open.use(self)

    def file(self) -> File:
        """The open file."""
        self._open.use(self)
        if self._file is None:
            self._file = self._directory.open(self.name)
        return self._file

    def read_at(self, position: int, length: int) -> bytes:
        """Bytes of the file, which may have been closed since the last call."""
        return self.file().read_at(position, length)

    def indexes(self) -> tuple[SparseIndex, SparseIndex]:
        """The offset and the time index, reaching to the end of the segment."""
        self._open.use(self)
        if self._indexes is None:
            self._bring_indexes_back(self.size)
        assert self._indexes is not None
        return self._indexes

    def _bring_indexes_back(self, upto: int) -> None:
        """Learn the indexes of the first `upto` bytes again. What else is known stays, above all where the
        segment ends: a disk that does not answer for once must not make an offset free to be used again.
        """
        known = self.known()
        try:
            for _ in self.resume(upto, upto):
                pass
        except BaseException:
            self._indexes = None
            raise
        finally:
            self.know(known)

    def known(self) -> list[int]:
        """What it knows from its batches, to be handed to another that has the same file (`know`)."""
        return [getattr(self, name) for name in _LEARNT]

    def know(self, known: list[int]) -> None:
        """Take what another has learnt from the same bytes."""
        for name, value in zip(_LEARNT, known, strict=True):
            setattr(self, name, value)

    @property
    def index_memory(self) -> int:
        """Bytes that the loaded indexes take."""
        return self._indexes[0].memory + self._indexes[1].memory if self._indexes else 0

    def let_go(self) -> None:
        """Close the file and forget the indexes; the next use brings them back."""
        self.save_indexes()
        self._indexes = None
        file, self._file = self._file, None
        if file is not None and not self.pins:
            file.close()

    def pin(self) -> File:
        """The open file, which stays open until `unpin`, whatever becomes of the segment meanwhile."""
        file = self.file()
        self.pins += 1
        return file

    def unpin(self, file: File) -> None:
        """The worker thread is done with it; what was compacted, and closed, meanwhile had waited for that."""
        self.pins -= 1
        if file is not self._file and not self.pins:
            file.close()

    def close(self, *, save: bool = True) -> None:
        """Let go for good; `save`: with its indexes on the disk, for whoever opens it again."""
        self._open.forget(self)
        if not save:
            self._indexes = None
        self.let_go()

    def remove(self) -> None:
        """Remove the files, the indexes first: a log without an index is whole, an index without a log is not."""
        self.forget_indexes()
        self.close()
        self._directory.remove(self.name)

    def save_indexes(self) -> None:
        """Write what is new in the indexes to their files."""
        if self._indexes is None:
            return
        for index, ending in zip(self._indexes, (INDEX, TIME_INDEX), strict=True):
            try:
                index.save(self._directory, self._index_name(ending), self.size)
            except OSError:
                return  # a cache that cannot be saved (the disk may be full) is rebuilt when it is missed

    def save_grown_indexes(self, grown: int) -> None:
        """Save them if the log has grown by that many bytes since the last time."""
        if self._indexes is not None and self.size - self._indexes[0].covered >= grown:
            self.save_indexes()

    def forget_indexes(self) -> None:
        """Remove the index files; the next use makes them anew from the batches."""
        self._indexes = None
        self._remove_index_files()

    def _remove_index_files(self) -> None:
        for name in (self._index_name(INDEX), self._index_name(TIME_INDEX)):
            if self._directory.exists(name):
                self._directory.remove(name)

    def retire(self) -> str:
        """Take the file out of the log; the name to remove it by when it is convenient."""
        self.forget_indexes()
        self.close()
        retired = self.name + RETIRED
        self._directory.rename(self.name, retired)
        return retired

    # ── coming back to what the file holds ────────────────────────────────────────────────────────

    def resume(self, trusted: int, end: int, below: Offset | None = None) -> Iterator[int]:
        """Learn the file's first `end` bytes again, believing the index files for the first `trusted`.

        Walks the batches behind the last index entry, without their bodies; yields now and then, so that
        an event loop can breathe. Raises `DamagedLog` where a batch's head is not what was written.
        """
        offsets, times = self._load_indexes(trusted)
        if below is not None and len(offsets) and offsets.keys[-1] >= below - self.base_offset:
            self._keep_entries(offsets, times, bisect_left(offsets.keys, below - self.base_offset))
        else:
            self._rewind_to_last_entry()
        yield from self.walk(end, below)

    def resume_below(self, offset: Offset, end: int) -> Iterator[int]:
        """Learn the batches below `offset`, the first that was not durable, among the file's first `end` bytes.

        The index files go: what they say of later batches may be of batches that a loss of power undid.
        """
        offsets, times = self._load_indexes(end)
        self._remove_index_files()
        self._keep_entries(offsets, times, bisect_left(offsets.keys, offset - self.base_offset))
        yield from self.walk(end, offset)

    def _load_indexes(self, trusted: int) -> tuple[SparseIndex, SparseIndex]:
        names = self._index_name(INDEX), self._index_name(TIME_INDEX)
        offsets = SparseIndex.load(OFFSETS, self._directory, names[0], trusted)
        times = SparseIndex.load(TIMES, self._directory, names[1], trusted)
        self.problems = [index.problem for index in (offsets, times) if index.problem is not None]
        if offsets.covered != times.covered or not self._borne_out(offsets):
            offsets, times = SparseIndex(OFFSETS), SparseIndex(TIMES)
        self._indexes = offsets, times
        return offsets, times

    def _keep_entries(self, offsets: SparseIndex, times: SparseIndex, entries: int) -> None:
        """Keep the first entries, and be as when the last of them had just been made."""
        offsets.keep(entries)
        times.keep(bisect_right(times.values, offsets.keys[-1]) if entries else 0)
        self._rewind_to_last_entry()

    def walk(self, end: int, below: Offset | None = None) -> Iterator[int]:
        """Enter the batches from `size` up to the byte `end`, or up to the first at or behind `below`."""
        if below is not None and self.next_offset >= below:
            return
        scan = Scan(self, self.size, end, bodies=False)
        for count, (position, header, _) in enumerate(scan, 1):
            # Compaction leaves gaps between offsets: then the batch before is whole, and ends where it says.
            if header.base_offset != self.next_offset:
                self.check_last()
                if header.base_offset < self.next_offset:
                    raise self._damaged(position, _out_of_place(header, self.next_offset))
            if below is not None and header.base_offset >= below:
                return
            self.enter(position, header)
            if below is not None and self.next_offset >= below:
                return
            if count % BATCHES_PER_STEP == 0:
                yield position
        if scan.problem is not None:
            raise self._damaged(scan.position, scan.problem)

    def check_last(self) -> None:
        """Verify the last batch: where the log ends rests on it, and its head does not say how far it goes.

        Raises `DamagedLog`; the segment then ends before it.
        """
        if self.size:
            try:
                self._batch_at(self._last_at, self._header(self._last_at))
            except DamagedLog:
                self.size, self.next_offset = self._last_at, self._header(self._last_at).base_offset
                raise

    def _borne_out(self, offsets: SparseIndex) -> bool:
        """Whether the batch at the last entry's position has exactly that last offset."""
        if not len(offsets):
            return True
        try:
            header = read_header(self.file().read_at(offsets.values[-1], HEADER_SIZE))
        except CorruptMessage:
            return False
        return header.last_offset == self.base_offset + offsets.keys[-1]

    def _rewind_to_start(self) -> None:
        self._cursors: dict[Offset, int] = {}
        self._since_entry = 0
        self._last_at = 0
        self.size = 0
        self.next_offset = self.max_timestamp_offset = self.base_offset
        self.first_timestamp = self.max_timestamp = NO_TIMESTAMP
        self.last_epoch = NO_EPOCH

    def _rewind_to_last_entry(self) -> None:
        """Be as when the last index entry had just been made."""
        assert self._indexes is not None
        offsets, times = self._indexes
        self._rewind_to_start()
        if not len(offsets):
            return
        self.first_timestamp = self._header(0).max_timestamp
        header = self._header(offsets.values[-1])
        self._last_at = offsets.values[-1]
        self.size = self._last_at + header.size
        self.next_offset = header.next_offset
        self.last_epoch = header.leader_epoch
        if len(times):
            self.max_timestamp, self.max_timestamp_offset = (
                times.keys[-1],
                self.base_offset + times.values[-1],
            )

    def _damaged(self, position: int, problem: CorruptMessage) -> DamagedLog:
        return DamagedLog(
            f"{self._directory.path}/{self.name} at byte {position} of {self.size}: {problem}",
            self.base_offset,
        )

    # ── writing ───────────────────────────────────────────────────────────────────────────────────

    def make_ready(self, length: int) -> None:
        """See to it that `length` bytes can be entered once they are written: then it is too late to fail."""
        if self._indexes is None and self._since_entry + length > self._interval:
            self.indexes()

    def write(self, batches: Buffer) -> None:
        """Write bytes behind the last batch. Nothing here changes until they are entered."""
        self.file().write_at(self.size, batches)

    def cut_back(self) -> None:
        """Remove what a failed write may have left behind the last batch."""
        self.file().truncate(self.size)

    def enter_all(self, before: int, group: Sequence[tuple[int, BatchHeader]]) -> None:
        """Take note of batches that were written together; their positions count from the byte `before`."""
        for at, header in group:
            size = header.length + 12
            if self._since_entry + size > self._interval or self.first_timestamp == NO_TIMESTAMP:
                self.enter(before + at, header)
                continue
            # Most batches of many small ones get no index entry: this is `enter` without the rest of it.
            last = header.base_offset + header.last_offset_delta
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp, self.max_timestamp_offset = header.max_timestamp, last
            self._last_at = before + at
            self.size = before + at + size
            self.next_offset = last + 1
            self.last_epoch = header.leader_epoch
            self._since_entry += size

    def enter(self, position: int, header: BatchHeader) -> None:
        """Take note of a batch that stands in the file at that position."""
        last = header.base_offset + header.last_offset_delta
        size = header.length + 12
        if self.first_timestamp == NO_TIMESTAMP:
            self.first_timestamp = header.max_timestamp
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp, self.max_timestamp_offset = header.max_timestamp, last
        self._last_at = position
        self.size = position + size
        self.next_offset = last + 1
        self.last_epoch = header.leader_epoch
        self._since_entry += size
        if self._since_entry > self._interval:
            if self._indexes is None:
                self._bring_indexes_back(position)
            assert self._indexes is not None
            self._indexes[0].add(last - self.base_offset, position)
            self._enter_time(self._indexes[1])
            self._since_entry = 0

    def _enter_time(self, times: SparseIndex) -> None:
        relative = self.max_timestamp_offset - self.base_offset
        if self.max_timestamp != NO_TIMESTAMP and (not len(times) or relative > times.values[-1]):
            times.add(self.max_timestamp, relative)

    def seal(self) -> None:
        """No batch will follow: the largest timestamp gets its entry, the indexes their files."""
        self._enter_time(self.indexes()[1])
        self.save_indexes()

    def rewind_to(self, offset: Offset) -> None:
        """Be as before the batch with that offset was entered; `cut` then makes the files so. All or nothing."""
        if offset <= self.base_offset:  # nothing of it stays, so nothing of it need be right
            self._indexes = SparseIndex(OFFSETS), SparseIndex(TIMES)
            self._rewind_to_start()
            return
        position, known = self.position_of(offset), self.known()
        offsets, times = self.indexes()
        try:
            self._keep_entries(offsets, times, bisect_left(offsets.values, position))
            for _ in self.walk(position):
                pass
        except BaseException:
            self._indexes = None
            self.know(known)
            raise

    def cut(self) -> None:
        """Cut off what stands behind the last batch, durably.

        The index files go first, and durably: one from before the cut must never be believed of a log
        that has since grown in another way. And were the cut undone by a loss of power, what was cut off
        could end just where a later segment begins: both together would be a log that never was.
        """
        self._remove_index_files()
        self._directory.flush()
        self.file().truncate(self.size)
        self.file().flush()

    # ── reading ───────────────────────────────────────────────────────────────────────────────────

    def position_of(self, offset: Offset) -> int:
        """Where the batch with that offset begins, or the first behind it; `size` when there is none."""
        if offset >= self.next_offset:
            return self.size
        if offset <= self.base_offset:
            return 0
        known = self._cursors.get(offset)
        if known is not None:
            return known
        offsets, _ = self.indexes()
        entry = offsets.floor(offset - self.base_offset)
        start = offsets.values[entry] if entry >= 0 else 0
        scan = Scan(self, start, self.size, bodies=False, slice_bytes=_LOOKUP_BYTES)
        before: tuple[int, BatchHeader] | None = None
        for position, header, _ in scan:
            if header.last_offset >= offset:
                if header.base_offset > offset and before is not None:
                    self._batch_at(*before)  # nobody has the offset: the batch before must not be lying
                return position
            before = position, header
        raise self._damaged(scan.position, scan.problem or CorruptMessage(f"offset {offset} is missing"))

    def header_at(self, offset: Offset) -> BatchHeader:
        """The header of the batch that has that offset, which must be here."""
        return self._header(self.position_of(offset))

    def end_below(self, offset: Offset) -> Offset:
        """Where the segment ends once all from that offset on is gone."""
        if offset <= self.base_offset:
            return self.base_offset
        offsets, _ = self.indexes()
        entry = offsets.floor(offset - self.base_offset - 1)
        end = self.base_offset
        for _, header in self.headers_from(offsets.values[entry] if entry >= 0 else 0):
            if header.last_offset >= offset:
                break
            end = header.next_offset
        return end

    def _header(self, position: int) -> BatchHeader:
        try:
            return read_header(self.file().read_at(position, HEADER_SIZE))
        except CorruptMessage as problem:
            raise self._damaged(position, problem) from None

    def read(self, offset: Offset, max_bytes: int, below: Offset) -> Slice:
        """Whole batches from the one with `offset` on, all below `below`: one at least, `max_bytes` at most.

        What stands in front of damage is handed out; who comes for the damaged batch itself is told.
        """
        position = self.position_of(offset)
        data = self.file().read_at(position, min(max(max_bytes, HEADER_SIZE), self.size - position))
        end, next_offset = measure(data, below)
        if not end:
            data, end = self._first(position, data, below)
            if not end:
                return Slice(memoryview(b""), offset)
            next_offset = read_header(data).next_offset
        if len(self._cursors) >= _CURSORS:
            self._cursors.clear()
        self._cursors[next_offset] = position + end
        return Slice(memoryview(data)[:end], next_offset)

    def _first(self, position: int, data: bytes, below: Offset) -> tuple[bytes, int]:
        """The first batch alone, which is larger than what was asked for, and its size; 0: it is not below `below`.

        Whoever comes for a damaged batch is told what is wrong with it.
        """
        try:
            header = read_header(data)
            if header.size > len(data):
                data = self.file().read_at(position, min(header.size, self.size - position))
            check_body(data, header)
        except CorruptMessage as problem:
            raise self._damaged(position, problem) from None
        return data, header.size if header.last_offset < below else 0

    def batches_from_time(self, timestamp: int) -> Iterator[memoryview]:
        """The batches, in order, that may hold records of that time or later: those whose largest is."""
        _, times = self.indexes()
        before = bisect_left(times.keys, timestamp) - 1
        start = self.position_of(self.base_offset + times.values[before] + 1) if before >= 0 else 0
        scan = Scan(self, start, self.size, bodies=False)
        for position, header, _ in scan:
            if header.max_timestamp >= timestamp:
                yield self._batch_at(position, header)
        if scan.problem is not None:
            raise self._damaged(scan.position, scan.problem)

    def _batch_at(self, position: int, header: BatchHeader) -> memoryview:
        batch = memoryview(self.file().read_at(position, header.size))
        try:
            check_body(batch, header)
        except CorruptMessage as problem:
            raise self._damaged(position, problem) from None
        return batch

    def headers_from(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """The position and header of each batch from that byte on."""
        scan = Scan(self, position, self.size, bodies=False)
        for at, header, _ in scan:
            yield at, header
        if scan.problem is not None:
            raise self._damaged(scan.position, scan.problem)


def _out_of_place(header: BatchHeader, expected: Offset) -> CorruptMessage:
    return CorruptMessage(f"a batch at offset {header.base_offset} stands where offset {expected} belongs")
