"""Open a log: after a clean stop by believing it, after any other by checking what was not yet durable.

    below the recovery point      was flushed: heads are walked where an index does not reach, bodies are not read
    at and above it               every batch is verified, written again and flushed; the first that is not
                                  whole ends the log (a torn tail), and what lies behind it is removed

What it keeps true (docs/STORAGE.md, 7 and 9; I-30, I-31, I-34 to I-36):

* What comes out is a prefix of what was written, with everything in it that was ever reported as durable.
* Bytes are not trusted because they can be read: a flush that failed in an earlier life leaves pages that
  look right and are not on the disk, so what is kept is written once more and flushed (fsyncgate).
* Damage below the recovery point is reported (`Findings.damage`), never cut off in silence: the bytes are set
  aside beside the log (`.corrupt`), and the prefix in front of them is kept.
* A file from a newer tidelog stops the opening (`UnsupportedFormat`) before anything is changed.

Opening goes in steps (`works`), so that an event loop can breathe between two of them, and while the disk writes
what was checked.
"""

from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from tidelog.protocol.errors import CorruptCheckpoint, DamagedLog, UnsupportedFormat
from tidelog.protocol.types import NO_EPOCH, Epoch, Offset
from tidelog.storage import producer_snapshots
from tidelog.storage.checkpoints import read_leader_epochs, write_leader_epochs
from tidelog.storage.config import LogConfig
from tidelog.storage.epochs import LeaderEpochs
from tidelog.storage.files import TEMPORARY, Directory, File, NoRoom
from tidelog.storage.keeping import Contents, Keeper
from tidelog.storage.log import Log
from tidelog.storage.producer_replay import ProducerReplay
from tidelog.storage.scan import BATCHES_PER_STEP, SLICE, Scan
from tidelog.storage.segment import INDEX, LOG, MAX_RELATIVE_OFFSET, RETIRED, TIME_INDEX, Segment
from tidelog.storage.swap import finish_swaps
from tidelog.storage.works import Work, take_here

SET_ASIDE: Final = ".corrupt"
"""The ending of bytes that recovery took out of a log and kept for the operator."""
_LEFTOVERS: Final = (TEMPORARY, ".part", RETIRED)


@dataclass(slots=True)
class Findings:
    """What opening a log brought to light."""

    verified_bytes: int = 0
    """Bytes at and above the recovery point that were checked and written again."""
    torn_bytes: int = 0
    """Bytes behind the last whole batch, never reported as durable, removed."""
    damage: list[str] = field(default_factory=list)
    """What was reported as durable and is not what it was: this replica has lost committed records."""
    problems: list[str] = field(default_factory=list)
    """Caches and checkpoints that could not be read and were made anew: nothing is lost."""


def _bases(directory: Directory) -> list[Offset]:
    """The base offsets of the segments that there are, lowest first."""
    stems = (name.removesuffix(LOG) for name in directory.names() if name.endswith(LOG))
    return sorted(int(stem) for stem in stems if len(stem) == 20 and stem.isascii() and stem.isdecimal())


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """What the data directory's checkpoints say of one log."""

    recovery_point: Offset = 0
    log_start: Offset | None = None
    clean: bool = False
    """The last stop was clean: everything is durable and in order."""


def set_aside_in(directory: Directory) -> list[str]:
    """The files with what this life or an earlier one took out of that log for damage."""
    return [name for name in directory.names() if LOG + SET_ASIDE in name]


class Opening:
    """Opens one log: run `steps` to the end, then take `log` and `findings`."""

    def __init__(self, directory: Directory, config: LogConfig, keeper: Keeper, said: Checkpointed) -> None:
        self.findings = Findings()
        self._directory = directory
        self._config = config
        self._keeper = keeper
        self._said = said
        self._segments: list[Segment] = []
        self._verified_from: Offset | None = None
        self._verified_epochs: list[tuple[Epoch, Offset]] = []
        self._epoch_below: Epoch = NO_EPOCH
        self._epochs_saved = True
        self._log: Log | None = None

    @property
    def log(self) -> Log:
        """The log, once the steps are done."""
        assert self._log is not None
        return self._log

    def steps(self, now_ms: int) -> Iterator[Work | None]:
        """Open the log."""
        yield from finish_swaps(self._directory)
        self._remove_leftovers()
        found = [self._segment(base) for base in _bases(self._directory)]
        try:
            yield from self._take(found)
        except UnsupportedFormat as newer:
            raise UnsupportedFormat(f"{self._directory.path}/{self._segments[-1].name}: {newer}") from newer
        if not self._segments:
            self._begin_at(self._said.log_start or 0)
        while self._log is None:
            try:
                yield from self._complete(now_ms)
            except DamagedLog as damage:
                self._give_up_from(damage)  # or raise it: each turn has fewer bytes

    def _complete(self, now_ms: int) -> Iterator[None]:
        """Learn from the segments that were taken what goes with them."""
        if self._verified_from is None:
            self._epoch_below = self._last_epoch()
        log_start = self._log_start()
        end = self._segments[-1].next_offset
        if end < self._said.recovery_point:
            self._damage(f"it ends at offset {end}, below its recovery point {self._said.recovery_point}")
        epochs = yield from self._epochs(log_start, end)
        producer_snapshots.remove_above(self._directory, end)
        replay = ProducerReplay(self._directory, self._segments, log_start, end)
        self.findings.problems.extend(str(problem) for problem in replay.problems)
        yield from replay.steps(now_ms)
        durable = end if self._epochs_saved else min(end, self._said.recovery_point)
        contents = Contents(self._segments, epochs, replay.producers, log_start, durable, self._epochs_saved)
        self._log = Log(self._directory, self._config, self._keeper, contents)

    def abandon(self) -> None:
        """The opening failed: give back what it has open."""
        for segment in self._segments:
            segment.close()

    def _last_epoch(self) -> Epoch:
        """The epoch of the last batch that was taken."""
        return next((segment.last_epoch for segment in reversed(self._segments) if segment.size), NO_EPOCH)

    def _segment(self, base: Offset) -> Segment:
        interval = self._config.index_interval_bytes
        return Segment(self._directory, base, self._keeper.open_segments, interval)

    def _begin_at(self, offset: Offset) -> None:
        segment = self._segment(offset)
        segment.create()
        self._directory.flush()
        self._segments = [segment]

    def _damage(self, what: str) -> None:
        damage = f"{self._directory.path}: {what}"
        if damage not in self.findings.damage:
            self.findings.damage.append(damage)
            self._keeper.report_damage(damage)

    def _remove_leftovers(self) -> None:
        """What a crash left half-made, and indexes whose log is gone."""
        names = set(self._directory.names())
        for name in sorted(names):
            orphan = name.endswith((INDEX, TIME_INDEX)) and name.rpartition(".")[0] + LOG not in names
            if orphan or name.endswith(_LEFTOVERS):
                self._directory.remove(name)

    # ── the segments ──────────────────────────────────────────────────────────────────────────────

    def _take(self, found: list[Segment]) -> Iterator[Work | None]:
        """Take the segments one after the other, up to the first that does not continue the log."""
        for place, segment in enumerate(found):
            if self._segments and segment.base_offset != self._segments[-1].next_offset:
                self._part_with(found[place:])
                return
            self._segments.append(segment)
            following = found[place + 1].base_offset if place + 1 < len(found) else None
            try:
                if self._said.clean or (following is not None and following <= self._said.recovery_point):
                    yield from self._resume_durable(segment, following)
                    yield None  # its indexes were read whole
                    continue
                yield from self._resume_to_recovery_point(segment)
            except DamagedLog as damage:
                self._damage(str(damage))
                self._set_aside_tail(segment)
                self._set_aside(found[place + 1 :])
                return
            yield from self._verify(segment)
            if segment.size < segment.file().size():
                self._cut(segment, found[place + 1 :])
                return
            if place + 1 < len(found):
                segment.seal()  # its batches are flushed now, and nothing else would write its indexes again

    def _part_with(self, later: list[Segment]) -> None:
        """Segments that do not continue the log: the tail before them was torn, or a durable segment is lost."""
        last = self._segments[-1]
        if last.next_offset >= self._said.recovery_point and not self._said.clean:
            self._cut(last, later)
            return
        self._damage(f"{later[0].name} follows offset {last.next_offset}: a segment is missing between them")
        self._set_aside(later)

    def _resume_durable(self, segment: Segment, following: Offset | None) -> Iterator[None]:
        """Enter a segment of which every batch was durable, up to where the next segment begins.

        What may stand behind that was cut off, and the cut was not durable: it is no part of the log. Only the
        last durable segment can have that: a flush of those behind it would have made the cut durable.
        """
        size = self._directory.size_of(segment.name)
        for _ in segment.resume(size, size, following):
            yield
        self.findings.problems.extend(segment.problems)
        segment.check_last()
        if not self._said.clean and following == self._said.recovery_point:
            self._cut(segment, [])  # and what was cut before is cut for good
        elif segment.size < size:
            raise DamagedLog(
                f"{segment.name}: {size - segment.size} bytes overlap the segment that begins at {following}"
            )

    def _resume_to_recovery_point(self, segment: Segment) -> Iterator[None]:
        """Enter what was durable: by index, then by the heads of the batches."""
        said, size = self._said.recovery_point, self._directory.size_of(segment.name)
        for _ in segment.resume_below(said, size):
            yield
        self.findings.problems.extend(segment.problems)
        segment.check_last()
        if segment.base_offset < said < segment.next_offset:
            raise DamagedLog(
                f"{segment.name}: the recovery point {said} lies within the batch that ends at {segment.next_offset}"
            )

    def _verify(self, segment: Segment) -> Iterator[Work | None]:
        """Check what was not durable, batch by batch, and write it again: reading it back proves nothing."""
        start = segment.size
        scan = Scan(segment, start, segment.file().size(), bodies=True)
        batches: list[memoryview] = []
        written = start
        epoch = self._last_epoch()
        if self._verified_from is None:
            self._verified_from, self._epoch_below = segment.next_offset, epoch
        for position, header, batch in scan:
            if header.base_offset < segment.next_offset or header.leader_epoch < max(epoch, 0):
                break
            if header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
                break
            batches.append(batch)
            segment.enter(position, header)
            if header.leader_epoch > epoch or not self._verified_epochs:
                epoch = header.leader_epoch
                self._verified_epochs.append((epoch, header.base_offset))
            if segment.size - written >= SLICE or len(batches) == BATCHES_PER_STEP:
                segment.file().write_at(written, *batches)
                batches.clear()
                written = segment.size
                yield None
        segment.file().write_at(written, *batches)
        self.findings.verified_bytes += segment.size - start
        yield from self._flush(segment)

    def _flush(self, segment: Segment) -> Iterator[Work]:
        """Make durable what was written again, or cut: the disk may not have begun with any of it."""
        file, ended = segment.pin(), list[OSError | None]()

        def flush() -> None:
            try:
                file.flush()
                self._directory.flush()
                ended.append(None)
            except OSError as error:
                ended.append(error)

        try:
            yield flush
        finally:
            segment.unpin(file)
        assert ended, f"nobody has flushed {segment!r}"
        if ended[0] is not None:
            self._keeper.halt(f"flush {segment!r} after checking it", ended[0])

    def _cut(self, segment: Segment, later: list[Segment]) -> None:
        """Remove a torn tail and whatever begins behind it, highest first."""
        for beyond in reversed(later):
            self.findings.torn_bytes += self._directory.size_of(beyond.name)
            beyond.remove()
        self.findings.torn_bytes += segment.file().size() - segment.size
        segment.file().truncate(segment.size)
        take_here(self._flush(segment))

    def _give_up_from(self, damage: DamagedLog) -> None:
        """Set aside from there on what was found damaged after its segment was taken: an index spared its head a look.

        It is believed when a second look has found it, too; what cannot be found is raised again.
        """
        bases = [segment.base_offset for segment in self._segments]
        if damage.base_offset not in bases:
            raise damage
        place = bases.index(damage.base_offset)
        segment = self._segments[place]
        size = segment.size
        self._settle(segment)
        if segment.size == size:
            raise damage
        self._damage(str(damage))
        self._set_aside_tail(segment)
        self._set_aside(self._segments[place + 1 :])
        del self._segments[place + 1 :]
        end = segment.next_offset
        self._verified_epochs = [(epoch, start) for epoch, start in self._verified_epochs if start < end]
        if self._verified_from is not None and end < self._verified_from:
            self._verified_from = None

    def _set_aside_tail(self, segment: Segment) -> None:
        """Keep a segment up to its last whole batch; the bytes behind it go into a file of their own."""
        self._settle(segment)
        file = segment.file()
        end = file.size()
        name = self._free_name(segment.name)
        try:
            self._copy(file, segment.size, end, name + TEMPORARY)
        except OSError:
            with suppress(OSError):  # a part of it would be of no use, and every start would add another
                self._directory.remove(name + TEMPORARY)
            raise
        self._directory.rename(name + TEMPORARY, name)
        self._directory.flush()
        file.truncate(segment.size)
        take_here(self._flush(segment))

    def _settle(self, segment: Segment) -> None:
        """Shorten a damaged segment until its last batch is whole: how far a batch goes is not in its head."""
        segment.forget_indexes()
        while True:
            try:
                for _ in segment.resume(segment.size, segment.size):
                    pass
                segment.check_last()
            except DamagedLog:
                continue  # it ends earlier now
            return

    def _copy(self, file: File, start: int, end: int, name: str) -> None:
        kept = self._directory.open(name, create=True)
        try:
            for at in range(start, end, SLICE):
                kept.write_at(at - start, file.read_at(at, min(SLICE, end - at)))
            kept.truncate(end - start)
            kept.flush()
        finally:
            kept.close()

    def _free_name(self, name: str) -> str:
        """A name to set `name` aside under, that nothing from an earlier life has."""
        taken, free, count = self._directory.names(), name + SET_ASIDE, 1
        while free in taken:
            count += 1
            free = f"{name}{SET_ASIDE}.{count}"
        return free

    def _set_aside(self, segments: list[Segment]) -> None:
        for segment in reversed(segments):
            segment.close()
            self._directory.rename(segment.name, self._free_name(segment.name))
        self._directory.flush()

    # ── what goes with them ───────────────────────────────────────────────────────────────────────

    def _log_start(self) -> Offset:
        said, first, end = self._said.log_start, self._segments[0].base_offset, self._segments[-1].next_offset
        if said is None:
            return first
        if said > end:
            self._damage(f"it ends at offset {end}, below its start {said}")
            self._set_aside(self._segments)
            self._begin_at(said)
            return said
        if said < first and (self._said.clean or said < self._said.recovery_point):
            self._damage(f"it begins at offset {first}, above its start {said}")
        return max(said, first)

    def _epochs(self, log_start: Offset, end: Offset) -> Generator[None, None, LeaderEpochs]:
        """The leader epochs as the file says, where the batches bear it out; else from all batches.

        The file must know every epoch that begins below the recovery point; later ones come from the
        batches that were verified.
        """
        self._epochs_saved = True
        entries, problem = read_leader_epochs(self._directory)
        where = f"{self._directory.path}/leader-epoch-checkpoint"
        durable_end = end if self._verified_from is None else self._verified_from
        epochs = LeaderEpochs(entries or ())
        epochs.truncate_from_end(durable_end)
        if self._epoch_below == NO_EPOCH or log_start >= durable_end:
            # No durable batch is readable: the file has nothing to know, and may be of a log before this one.
            epochs, problem = LeaderEpochs(), None
        elif problem is None and epochs.latest != self._epoch_below:
            problem = CorruptCheckpoint(
                f"{where} ends with epoch {epochs.latest}, the durable batches with {self._epoch_below}"
            )
        elif problem is None and epochs.entries[0].start > self._first_base(log_start):
            problem = CorruptCheckpoint(
                f"{where} begins at offset {epochs.entries[0].start}, the log at {log_start}"
            )
        if problem is not None:
            self.findings.problems.append(str(problem))
            epochs = yield from self._epochs_of_all_batches()
        else:
            for epoch, offset in self._verified_epochs:
                epochs.assign(epoch, offset)
        epochs.truncate_from_start(log_start, end)
        if epochs.entries != (entries or ()):
            try:  # before anything raises the recovery point
                write_leader_epochs(self._directory, epochs.entries)
            except NoRoom as refused:
                self._epochs_saved = False  # so nothing does, until a flush has written them
                self.findings.problems.append(str(refused))
        return epochs

    def _first_base(self, log_start: Offset) -> Offset:
        """Where what readers get begins: compaction may have removed the batch with the first offset."""
        first = next(segment for segment in self._segments if segment.next_offset > log_start)
        return max(first.header_at(log_start).base_offset, log_start)

    def _epochs_of_all_batches(self) -> Generator[None, None, LeaderEpochs]:
        epochs = LeaderEpochs()
        for segment in self._segments:
            for count, (_, header) in enumerate(segment.headers_from(0)):
                if header.leader_epoch < max(epochs.latest, 0):
                    raise DamagedLog(
                        f"{segment!r}: epoch {header.leader_epoch} at offset {header.base_offset} "
                        f"follows epoch {epochs.latest}"
                    )
                epochs.assign(header.leader_epoch, header.base_offset)
                if count % BATCHES_PER_STEP == 0:
                    yield
        return epochs
