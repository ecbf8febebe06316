"""A partition's log: segments one behind the other, and what is known of the whole.

    log_start ............ durable_offset ............ end_offset
        ^ readers begin here     ^ below: on stable storage   ^ the next record's offset

What it keeps true (docs/STORAGE.md, 10):

* recovery_point <= durable_offset <= end_offset, and log_start <= end_offset, at every step.
* A batch is refused before anything is changed, or it is whole: bytes, end offset, epochs, producers, indexes.
* Offsets and epochs never go back from one batch to the next; `epochs` and `producers` are what the batches
  below end_offset say, at every step, truncations included.
* `durable_offset` moves only to where the log ended *before* a flush began that has succeeded, with every
  segment below it, its producer snapshot and the leader-epoch-checkpoint.
* A flush that failed ends the process (`halt`): what the disk then holds is for recovery to find out.

Who is allowed to append, and how far readers may see, is not known here: that is the partition's business.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple, NoReturn

from tidelog.protocol.batch import BatchHeader, check_body, place, read_header
from tidelog.protocol.errors import (
    DiskFull,
    InvalidAppend,
    InvalidRecord,
    MessageTooLarge,
    StorageError,
    TidelogError,
)
from tidelog.protocol.types import NO_EPOCH, NO_OFFSET, NO_PRODUCER_ID, NO_TIMESTAMP, Buffer, Epoch, Offset
from tidelog.storage import producer_snapshots
from tidelog.storage.config import MAX_BATCH_BYTES, LogConfig
from tidelog.storage.dressing import as_configured
from tidelog.storage.files import Directory, NoRoom, refusal
from tidelog.storage.flushing import SEGMENTS_AT_ONCE, Flush
from tidelog.storage.keeping import Compacting, Contents, Keeper
from tidelog.storage.open_segments import OpenSegments
from tidelog.storage.producer_replay import ProducerReplay
from tidelog.storage.producers import Duplicate, Producers
from tidelog.storage.readable import Readable
from tidelog.storage.room import Room
from tidelog.storage.segment import MAX_RELATIVE_OFFSET, NOT_SEEN, Segment

SPARED_BYTES: Final = 16 << 20
"""A flush saves indexes and producers once so many bytes were appended: a start after a crash looks at the heads
of no more than these before it comes to what was not durable, instead of a whole segment's, twice."""

_new: Final = tuple.__new__


class Appended(NamedTuple):
    """Where a batch stands in the log."""

    base_offset: Offset
    next_offset: Offset
    duplicate: bool
    """It was there already: this is where, and nothing was written."""
    append_time: int = NO_TIMESTAMP
    """The leader's time, where records have that."""


class Log(Readable):
    """The log of one partition. `recovery` makes it from a directory; nothing else does."""

    def __init__(self, directory: Directory, config: LogConfig, keeper: Keeper, contents: Contents) -> None:
        super().__init__(directory, contents.segments, contents.log_start)
        self.reconfigure(config)
        self.epochs = contents.epochs
        self.producers = contents.producers
        self.durable_offset = contents.durable
        self.recovery_point = contents.durable
        """As it stands in recovery-point-offset-checkpoint; the keeper writes that file and sets it here."""
        self._keeper = keeper
        self._refusal: TidelogError | None = None
        self._unflushed: list[Segment] = []
        self._snapshots: list[tuple[Offset, bytes]] = []
        self._since_snapshot = 0
        """Bytes appended since the last one; those before this opening do not count."""
        self.batches_written = 0
        """Since this opening."""
        self._names_changed = False
        self._cuts = 0 if contents.epochs_saved else 1
        """How often a file was shortened: until a flush that begins then, what was cut off may come back."""
        self._cuts_flushed = 0
        self._epochs_saved = self.epochs.changes if contents.epochs_saved else -1
        self._flushing: Flush | None = None
        self.first_dirty: Offset = NO_OFFSET
        """Compaction has seen all below (cleaner-offset-checkpoint); outside the log it means its start (C11)."""
        self.purge_floor: Offset = NO_OFFSET
        """Below it tombstones are gone (cleaner-purge-checkpoint); -1: offsets have no gaps here."""
        self.looked_ms = 0
        """When it was last looked how old its segments are (`retention.look`), by the boot clock."""
        self.compaction: Compacting | None = None
        """What is replacing segments now: whoever cuts, retires or closes the log ends it first (C10)."""
        self._check()

    @property
    def is_offline(self) -> bool:
        """Whether it failed in a way that only opening it again mends; a full disk is none."""
        return self._refusal is not None and not self.is_full

    @property
    def is_full(self) -> bool:
        """Whether something did not fit, and nothing is tried before `probe` has found room."""
        return isinstance(self._refusal, DiskFull)

    @property
    def is_in_use(self) -> bool:
        """Whether a worker thread is busy with its files: until then it is not cut, retired or closed."""
        return self.is_flushing or (self.compaction is not None and self.compaction.works)

    @property
    def is_flushing(self) -> bool:
        """Whether a flush is under way: truncations wait for its end."""
        return self._flushing is not None

    @property
    def open_segments(self) -> OpenSegments:
        """Where its segments take turns at being open."""
        return self._keeper.open_segments

    def reconfigure(self, config: LogConfig) -> None:
        """Go on with other settings: they hold from the next batch, roll or look at old segments on."""
        self.config = config
        self._dresses = config.dresses

    def halt(self, what: str, error: OSError) -> NoReturn:
        """The disk failed where nothing may be believed any more: end the process."""
        self._keeper.halt(f"{what} of {self}", error)

    # ── appending ─────────────────────────────────────────────────────────────────────────────────

    def append(
        self, batch: Buffer, leader_epoch: Epoch, now_ms: int, header: BatchHeader | None = None
    ) -> Appended:
        """As leader: give one batch from a client its offsets and this epoch, and write it.

        Where `batch` is writable it is stamped in place, so that the bytes go from the socket to the disk
        without a copy. Raises before anything is changed. `header`: the batch's, where it was read already.
        """
        header = self.check_new(batch, header)
        refused = self._refusal
        if refused is not None and not self.is_full:  # what is known of producers may be wrong
            raise refused
        # Nearly every batch is of the last one's epoch, which was looked at.
        if not (0 <= leader_epoch == self.epochs.latest) and leader_epoch < max(self._latest_epoch, 0):
            raise InvalidAppend(f"{self}: epoch {leader_epoch} follows epoch {self._latest_epoch}")
        known = self.producers.check(header)
        if isinstance(known, Duplicate):
            then = known.timestamp if self.config.appends_time else NO_TIMESTAMP
            return Appended(known.first_offset, known.last_offset + 1, True, then)
        if refused is not None:
            raise refused
        writable = memoryview(batch)
        if self._dresses or writable.readonly:
            writable, header = as_configured(batch, header, self.config, now_ms)
        segment = self._segments[-1]
        header = place(writable, header, segment.next_offset, leader_epoch)
        if self._must_roll(segment, header):
            segment = self._roll()
        self._write_to(segment, writable, [(0, header)], now_ms)
        time = now_ms if self._dresses and self.config.appends_time else NO_TIMESTAMP
        return _new(Appended, (header.base_offset, segment.next_offset, False, time))

    def check_new(self, batch: Buffer, header: BatchHeader | None = None) -> BatchHeader:
        """The header of a batch that a leader may append; its sender's standing is not looked at."""
        header = header or read_header(batch)
        if header.length + 12 > self.config.max_message_bytes:
            raise self._too_large(header, self.config.max_message_bytes)
        check_body(batch, header)
        if len(batch) != header.length + 12:
            raise InvalidRecord(
                f"one batch is appended at a time, {len(batch) - header.size} bytes follow it"
            )
        if header.record_count != header.last_offset_delta + 1:
            raise InvalidRecord(
                f"a new batch of {header.last_offset_delta + 1} offsets has {header.record_count} records"
            )
        return header

    def append_as_follower(
        self, batches: Buffer, leader_epoch: Epoch, now_ms: int, *, gaps: bool = False
    ) -> None:
        """Write a leader's batches as they are: all of them, or none when one does not continue this log.

        `gaps`: the leader's log has been compacted, and offsets may be missing between them.
        """
        self._check_writable()
        expected, epoch, at = self.end_offset, self._latest_epoch, 0
        group: list[tuple[int, BatchHeader]] = []
        while at < len(batches):
            header = read_header(batches, at)
            if header.length + 12 > MAX_BATCH_BYTES:
                raise self._too_large(header, MAX_BATCH_BYTES)
            check_body(batches, header, at)
            follows = header.base_offset == expected or (gaps and header.base_offset > expected)
            if not follows or not max(epoch, 0) <= header.leader_epoch <= leader_epoch:
                raise InvalidAppend(
                    f"{self}: a batch at offset {header.base_offset} of epoch {header.leader_epoch} does not "
                    f"continue offset {expected} of epoch {epoch} under leader epoch {leader_epoch}"
                )
            group.append((at, header))
            expected, epoch = header.next_offset, header.leader_epoch
            at += header.size
        self._write(memoryview(batches), group, now_ms)

    @property
    def _latest_epoch(self) -> Epoch:
        """Of the last batch, also where readers cannot get at it any more."""
        if self.epochs.latest != NO_EPOCH:
            return self.epochs.latest
        return next((segment.last_epoch for segment in reversed(self._segments) if segment.size), NO_EPOCH)

    def _too_large(self, header: BatchHeader, most: int) -> MessageTooLarge:
        why = " (max.message.bytes)" if most < MAX_BATCH_BYTES else ""
        told = f"a batch of {header.size} bytes, {most} is the most{why}"
        return MessageTooLarge(f"{self.directory.path}: {told}")

    def _write(self, batches: memoryview, group: list[tuple[int, BatchHeader]], now_ms: int) -> None:
        """Write batches that may stand here, rolling to new segments where they must."""
        first, whole = 0, self._end(group[-1]) if group else 0
        while first < len(group):
            start = group[first][0]
            segment = self._segments[-1]
            if self._must_roll(segment, group[first][1]):
                segment = self._roll()
            if (
                segment.size + whole - start <= self.config.segment_bytes
                and group[-1][1].last_offset - segment.base_offset <= MAX_RELATIVE_OFFSET
            ):
                self._write_to(segment, batches[start:whole], group[first:] if first else group, now_ms)
                return
            last = first + 1
            while (
                last < len(group)
                and segment.size + self._end(group[last]) - start <= self.config.segment_bytes
                and group[last][1].last_offset - segment.base_offset <= MAX_RELATIVE_OFFSET
            ):
                last += 1
            self._write_to(segment, batches[start : self._end(group[last - 1])], group[first:last], now_ms)
            first = last

    @staticmethod
    def _end(entry: tuple[int, BatchHeader]) -> int:
        return entry[0] + entry[1].length + 12

    def _write_to(
        self, segment: Segment, batches: memoryview, group: list[tuple[int, BatchHeader]], now_ms: int
    ) -> None:
        try:
            segment.make_ready(len(batches))
        except OSError as error:
            raise StorageError(f"{self} could not be read before it is written: {error.strerror}") from error
        try:
            segment.write(batches)
        except OSError as error:
            self._cut_back(segment, error, flush=len(group) > 1)
        start = group[0][0]
        position = segment.size
        segment.begun_ms = segment.begun_ms if position else NOT_SEEN
        segment.appended_ms = NOT_SEEN
        self._since_snapshot += len(batches)
        self.batches_written += len(group)
        try:
            segment.enter_all(position - start, group)
            epochs, producers = self.epochs, self.producers
            for _, header in group:
                if header.leader_epoch != epochs.latest:
                    epochs.assign(header.leader_epoch, header.base_offset)
                if header.producer_id != NO_PRODUCER_ID:
                    producers.apply(header, now_ms)
        except Exception as error:
            # The batch is written and the end has moved: an offset is never used twice (KAFKA-7866).
            self._refusal = StorageError(f"{self} went offline while noting a batch: {error!r}")
            raise self._refusal from error

    def _cut_back(self, segment: Segment, error: OSError, *, flush: bool) -> NoReturn:
        """A write failed: remove what it left, refuse further ones until `probe` finds room.

        Of several batches a loss of power may bring back a later one, just behind what is written there next,
        and the offsets between them would pass for compacted ones: that cut is made durable at once.
        """
        try:
            segment.cut_back()
            if flush:
                segment.file().flush()
        except OSError as worse:
            self._keeper.halt(f"cut back a failed append to {segment!r}", worse)
        self._cuts += 1
        self._refusal = refusal(f"{self} could not be written: {error.strerror}", error)
        raise self._refusal from error

    def _check_writable(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    def probe(self, room: Room | None = None) -> bool:
        """Whether appends are accepted (again): a disk that was full must have room for them."""
        needed = (room or Room(self.directory.path)).for_log(self.config.segment_bytes)
        if self.is_full and self.directory.free_space() >= needed:
            self._refusal = None
        return self._refusal is None

    # ── rolling ───────────────────────────────────────────────────────────────────────────────────

    def _must_roll(self, segment: Segment, header: BatchHeader) -> bool:
        if not segment.size:
            return False
        if segment.size + header.length + 12 > self.config.segment_bytes:
            return True
        if header.base_offset + header.last_offset_delta - segment.base_offset > MAX_RELATIVE_OFFSET:
            return True
        begun, now = segment.first_timestamp, header.max_timestamp
        return now - begun > self.config.segment_ms and NO_TIMESTAMP not in (begun, now)

    def roll(self) -> bool:
        """Begin a new segment now, unless the newest is empty.

        Also where a write did not fit: an empty file needs a name only, and what is closed may go and make room.
        """
        if not self._segments[-1].size:
            return False
        if self.is_offline:
            self._check_writable()
        self._roll()
        return True

    def _roll(self) -> Segment:
        old = self._segments[-1]
        if self._cuts != self._cuts_flushed:
            self._make_cuts_durable(old)
        new = Segment(
            self.directory, old.next_offset, self._keeper.open_segments, self.config.index_interval_bytes
        )
        try:
            old.seal()
            new.create()
        except OSError as error:
            self._discard(new)
            raise refusal(f"{self} could not begin a segment: {error.strerror}", error) from error
        self._segments.append(new)
        self._unflushed.append(old)
        self._take_snapshot()
        self._names_changed = True
        return new

    def _take_snapshot(self) -> None:
        """Keep the producers' state as of now; the next flush writes it."""
        self._snapshots.append((self.end_offset, self.producers.snapshot()))
        self._since_snapshot = 0

    def _discard(self, segment: Segment) -> None:
        """Remove what is there of a segment that could not be begun.

        The one before it goes on, and a file that begins within it would cut it off at the next opening.
        """
        try:
            if self.directory.exists(segment.name):
                segment.remove()
        except OSError as worse:
            self._keeper.halt(f"remove {segment!r}, which could not be begun", worse)

    def _make_cuts_durable(self, segment: Segment) -> None:
        """What a failed write left came off this segment, and a loss of power may bring it back.

        It may end just where the next segment begins: both together would be a log that never was.
        """
        try:
            segment.file().flush()
        except OSError as error:
            self._keeper.halt(f"flush {segment!r} before the next begins", error)
        self._cuts_flushed = self._cuts

    # ── flushing ──────────────────────────────────────────────────────────────────────────────────

    def begin_flush(self) -> Flush | None:
        """What must be forced to the disk for all that is here now to be durable; None when all is.

        Of very many segments only the oldest are taken: whoever wants all comes again (`flush`).
        `Flush.run` may run in a worker thread while appends go on; `end_flush` takes the result.
        """
        assert self._flushing is None, "one flush of a log at a time"
        if self.durable_offset == self.end_offset and not (
            self._names_changed or self._cuts != self._cuts_flushed or self._snapshots
        ):
            return None
        if self._since_snapshot >= SPARED_BYTES:
            self._take_snapshot()
        changes = self.epochs.changes
        newest = self._segments[-1]
        segments = (*self._unflushed[:SEGMENTS_AT_ONCE], newest)[:SEGMENTS_AT_ONCE]
        flush = Flush(
            directory=self.directory,
            upto=segments[-1].next_offset,
            cuts=self._cuts if segments[-1] is newest else self._cuts_flushed,
            segments=segments,
            newest=newest,
            names=self._names_changed,
            snapshots=tuple(self._snapshots),
            bases=tuple(segment.base_offset for segment in self._segments) if self._snapshots else (),
            epochs=self.epochs.entries if changes != self._epochs_saved else None,
            changes=changes,
        )
        try:
            flush.pin()
        except OSError as error:
            raise StorageError(f"{self} could not be opened to be flushed: {error.strerror}") from error
        self._flushing = flush
        return flush

    def end_flush(self, flush: Flush) -> None:
        """The flush is over: move the durable offset to where the log ended when it began.

        Raises `DiskFull` when something it needs did not fit: then the offset stays, and it may be tried again.
        """
        assert flush is self._flushing
        self._flushing = None
        flush.unpin()
        if flush.error is not None:
            self._keeper.halt(f"flush {self}", flush.error)
        self._snapshots = self._snapshots[flush.snapshots_written :]
        if flush.refused is not None:
            raise refusal(f"{self} could not be flushed: {flush.refused.strerror}", flush.refused)
        self.durable_offset = flush.upto
        self._epochs_saved = flush.changes
        self._cuts_flushed = flush.cuts
        # The newest was written on since, and if it was rolled, it is among them now.
        done = [segment for segment in flush.segments if segment is not flush.newest]
        self._unflushed = [segment for segment in self._unflushed if segment not in done]
        self._names_changed = self._segments[-1] is not flush.newest
        self._segments[-1].save_grown_indexes(SPARED_BYTES)
        self._check()

    def flush(self) -> None:
        """Make everything durable, here and now."""
        while (flush := self.begin_flush()) is not None:
            flush.run()
            self.end_flush(flush)
            if self.durable_offset == self.end_offset:
                return

    def close(self) -> None:
        """Make everything durable, producer state at the end included, and close the files."""
        assert not self.is_offline, f"{self} does not know what its last batches say"
        with suppress(NoRoom):  # the next start reads a little more
            producer_snapshots.save(self.directory, self.producers, self.end_offset)
        producer_snapshots.remove_unneeded(self.directory, (each.base_offset for each in self._segments))
        self.flush()
        self.abandon()

    def abandon(self, *, for_good: bool = False) -> None:
        """Close the files and nothing else. Not while a flush is under way: it would fail, and end the process.

        `for_good`: nobody opens it again, so its indexes are not worth saving.
        """
        assert self._flushing is None, f"{self} is being flushed"
        self._end_compaction()
        for segment in self._segments:
            segment.close(save=not for_good)

    # ── cutting ───────────────────────────────────────────────────────────────────────────────────

    def truncate_to(self, offset: Offset, now_ms: int) -> None:
        """Cut off everything at and behind `offset`, in an order that a crash may interrupt anywhere (docs/STORAGE.md, 10.4).

        Not while a flush is under way: what it reports would be of other bytes than those that stand there.
        """
        assert self._flushing is None, f"{self} is being flushed"
        if offset >= self.end_offset:
            return
        assert offset >= self.log_start, (offset, self.log_start)
        self._end_compaction()
        try:
            # Everything that may be refused comes before anything is cut.
            cut = self._segments[self._segment_of(offset)].end_below(offset)
            if cut < self.log_start:  # the log starts within that batch: nothing is left
                self.truncate_fully_and_start_at(offset)
                return
            replay = ProducerReplay(self.directory, self._segments, self.log_start, cut)
            for _ in replay.steps(now_ms):
                pass
            kept = self._segment_of(cut)
            self._lower_recovery_point(cut)
            self._segments[kept].rewind_to(cut)
        except OSError as error:
            raise StorageError(f"{self} could not be read to be cut: {error.strerror}") from error
        try:
            # Highest first: a crash leaves a prefix, never a gap.
            while len(self._segments) - 1 > kept:
                self._segments.pop().remove()
            self._segments[-1].cut()
            self._forget_behind(replay.producers)
        except OSError as error:
            self._keeper.halt(f"truncate {self} to {offset}", error)

    def _lower_recovery_point(self, offset: Offset) -> None:
        """Say durably that nothing at and behind `offset` is to be trusted, before it is cut (docs/STORAGE.md, 5)."""
        try:
            self._keeper.lower_recovery_point(self, offset)
        except NoRoom as refused:
            raise refusal(f"{self} could not be cut: {refused.strerror}", refused) from refused
        except OSError as error:
            self._keeper.halt(f"lower the recovery point of {self} to {offset}", error)
        self.recovery_point = min(self.recovery_point, offset)

    def _forget_behind(self, producers: Producers) -> None:
        end = self.end_offset
        self.producers = producers
        self.epochs.truncate_from_end(end)
        self.durable_offset = min(self.durable_offset, end)
        self._unflushed = [segment for segment in self._unflushed if segment in self._segments]
        self._snapshots = [(offset, content) for offset, content in self._snapshots if offset <= end]
        self._names_changed = True
        producer_snapshots.remove_above(self.directory, end)
        self._check()

    def truncate_fully_and_start_at(self, offset: Offset) -> None:
        """Forget everything and begin again, empty, at `offset`: nothing here is of use (docs/STORAGE.md, 10.5)."""
        assert self._flushing is None, f"{self} is being flushed"
        self._end_compaction()
        self._lower_recovery_point(0)
        try:
            while self._segments:
                self._segments.pop().remove()
            producer_snapshots.remove_above(self.directory, -1)
            segment = Segment(
                self.directory, offset, self._keeper.open_segments, self.config.index_interval_bytes
            )
            segment.create()
            self.directory.flush()
        except OSError as error:
            self._keeper.halt(f"empty {self}", error)
        self._segments = [segment]
        self.epochs.truncate_from_end(0)
        self.producers = Producers()
        self.log_start = self.durable_offset = offset
        self._unflushed, self._snapshots, self._names_changed = [], [], True
        self._check()

    def raise_log_start(self, offset: Offset) -> None:
        """Readers now begin at `offset`; what lies below may be deleted."""
        assert offset <= self.end_offset, (offset, self.end_offset)
        if offset > self.log_start:
            self.log_start = offset
            self.epochs.truncate_from_start(offset, self.end_offset)

    def delete_old_segments(self) -> int:
        """Delete what lies wholly below the log's start, which must be durable by now. How many segments that were."""
        retired = self.retire_old_segments()
        try:
            for name in retired:
                self.directory.remove(name)
        except OSError as error:
            self._keeper.halt(f"delete old segments of {self}", error)
        return len(retired)

    def retire_old_segments(self) -> list[str]:
        """Take what lies wholly below the log's start, which must be durable by now, out of the log.

        The answer is the names of the files, to be removed when nobody reads them any more.
        """
        assert self._flushing is None, f"{self} is being flushed"
        old = [segment for segment in self._segments[:-1] if segment.next_offset <= self.log_start]
        if not old:
            return []
        self._end_compaction()
        old = [segment for segment in self._segments[:-1] if segment.next_offset <= self.log_start]
        retired = []
        try:
            for segment in old:  # oldest first: a crash leaves a suffix, never a gap
                retired.append(segment.retire())
                del self._segments[0]
        except OSError as error:
            self._keeper.halt(f"delete old segments of {self}", error)
        self._unflushed = [segment for segment in self._unflushed if segment in self._segments]
        self._names_changed = True
        return retired

    def replace(self, new: Segment, bases: Sequence[Offset]) -> list[Segment]:
        """Let one compacted segment stand where those with these bases stood; the answer is the old ones."""
        first = self._segment_of(new.base_offset)
        old = self._segments[first : first + len(bases)]
        assert [segment.base_offset for segment in old] == list(bases), f"{self} has no segments {bases}"
        assert old[-1].next_offset == new.next_offset <= self.durable_offset, f"{new!r} does not fit {self}"
        self._segments[first : first + len(bases)] = [new]
        # They were sealed and are durable: the next flush need not look for them.
        self._unflushed = [segment for segment in self._unflushed if segment not in old]
        return old

    def _end_compaction(self) -> None:
        if self.compaction is not None:
            self.compaction.abort()
        assert self.compaction is None, f"{self} is being compacted"

    def _check(self) -> None:
        assert self.recovery_point <= self.durable_offset <= self.end_offset, self
        assert self.log_start <= self.end_offset, self
