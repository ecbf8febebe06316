"""All the logs of one data directory: opened together, checkpointed together, closed together.

What it keeps true (docs/STORAGE.md, 2, 5, 7 and 8):

* A log begins with nothing of another that had its name: its entries leave every checkpoint before the
  first append (KAFKA-1647), and whose it is stands durably in it before its first segment.
* recovery-point-offset-checkpoint never says more than is durable: it is written from what logs say after
  their flushes, and lowered before a log is cut.
* What the checkpoints say of a log that could not be opened they go on saying, until it can be.
* A directory that is not one of a partition's, or whose topic is not known, is kept and never served (stray).
* What a checkpoint speaks of was there: a log that was removed leaves them before the last of it goes, so one that
  they know and that is not here is gone, and not merely never made (ADR 120).
* `.clean_shutdown` is written only if every log was opened, served and closed without an error.

Which partitions belong here, and how far each is committed, is not known here: that is the broker's business.
"""

import errno
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Final, NoReturn

from tidelog.protocol.errors import (
    DamagedLog,
    DiskFull,
    InvalidTopic,
    NotADataDirectory,
    StorageError,
    TidelogError,
    UnsupportedFormat,
)
from tidelog.protocol.types import NO_OFFSET, Offset, TopicId, TopicPartition
from tidelog.storage.checkpoints import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    OFFSET_CHECKPOINTS,
    PURGE_FLOORS,
    RECOVERY_POINTS,
    OffsetCheckpoint,
    PendingWrite,
)
from tidelog.storage.config import LogConfig
from tidelog.storage.crashes import CrashKind, Life
from tidelog.storage.files import FULL, Directory, NoRoom
from tidelog.storage.identity import read_topic_id, write_topic_id
from tidelog.storage.keeping import Kept
from tidelog.storage.log import Log
from tidelog.storage.making import Making
from tidelog.storage.names import DELETED, STRAY, parse_partition, parted_name, parted_stem, partition_name
from tidelog.storage.open_segments import OpenSegments
from tidelog.storage.recovery import Checkpointed, Findings, Opening, set_aside_in
from tidelog.storage.reserve import Reserve
from tidelog.storage.room import Room
from tidelog.storage.segment import LOG
from tidelog.storage.works import Work, take_here

_MAY_PASS: Final = (*FULL, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM)
"""Errors that say nothing about the bytes on the disk."""

Halt = Callable[[str, OSError], NoReturn]
"""End the process at once, leaving no marker of a clean stop: `os._exit(70)` in the product."""


@dataclass(slots=True)
class Report:
    """What opening a data directory brought to light: to be logged, and told to the controller."""

    found: dict[TopicPartition, Findings] = field(default_factory=dict)
    offline: dict[TopicPartition, TidelogError] = field(default_factory=dict)
    """Logs that could not be opened: not served, and no stop is clean while there is one. `DiskFull` may pass."""
    stray: list[str] = field(default_factory=list)
    """Directories put aside because nobody can say whose they are."""
    problems: list[str] = field(default_factory=list)
    """All that an operator should hear of, in words: what was damaged, is gone, or was made anew."""


class DataDirectory:
    """The logs of one data directory, by partition."""

    def __init__(
        self,
        directory: Directory,
        life: Life,
        config: LogConfig,
        open_segments: OpenSegments,
        *,
        halt: Halt,
        new_guard: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self.directory = directory
        self.life = life
        self.room = Room(directory.path)
        """Whether clients' records are taken."""
        self.reserve: Reserve | None = None
        """Behind `directory`, if there is one."""
        self.open_segments = open_segments
        self.logs: dict[TopicPartition, Log] = {}
        self.topic_ids: dict[TopicPartition, TopicId] = {}
        self.gone: list[TopicPartition] = []
        """Logs that were here and that nobody is to count upon, by name: to be told to the controller."""
        self.failure: StorageError | None = None
        """Why nothing here is believed any more; only a new life can."""
        self.report = Report()
        self._config = config
        self._halt = halt
        self._partitions: dict[str, TopicPartition] = {}
        self._unopened_ids: dict[TopicPartition, TopicId] = {}
        self._checkpoints = {
            name: OffsetCheckpoint(directory, name, new_guard()) for name in OFFSET_CHECKPOINTS
        }
        self._high_watermarks: dict[TopicPartition, Offset] = {}
        self._unread: set[str] = set()
        self._unopened: dict[str, dict[TopicPartition, Offset]] = {name: {} for name in OFFSET_CHECKPOINTS}
        """What each checkpoint says of logs that are offline or gone: until they open, or the controller knows."""

    # ── opening ───────────────────────────────────────────────────────────────────────────────────

    def open(self, now_ms: int, elsewhere: Collection[TopicPartition] = ()) -> Iterator[Work | None]:
        """Open every log, in steps. Afterwards the recovery points are durable.

        `elsewhere`: what lies in other directories of this node.
        """
        self.report.problems += self.life.problems
        names = self.directory.names()
        if not any(parse_partition(name) for name in names):
            for checkpoint in self._checkpoints.values():
                checkpoint.create()  # a missing purge file would mean that much has been purged
        said = {name: self._read(checkpoint) for name, checkpoint in self._checkpoints.items()}
        self._high_watermarks = said[HIGH_WATERMARKS]
        self._miss(names, elsewhere, said)
        for name in names:
            if name.endswith(DELETED):
                self._remove_left(name)
            elif (partition := parse_partition(name)) is not None and self.directory.is_directory(name):
                yield from self._open(partition, name, said, now_ms)
        self._write_after_opening(said)

    def _miss(
        self,
        names: Sequence[str],
        elsewhere: Collection[TopicPartition],
        said: Mapping[str, Mapping[TopicPartition, Offset]],
    ) -> None:
        """Find out what is gone. What was removed on purpose leaves the checkpoints before the last of it goes."""
        here, left = set(names), {parted_stem(name) for name in names if name.endswith(DELETED)}
        removed = []
        for partition in sorted({*said[RECOVERY_POINTS], *said[HIGH_WATERMARKS]}.difference(elsewhere)):
            name = partition_name(partition)
            if name in here:
                continue
            if parted_stem(parted_name(name, 0, DELETED)) in left:
                removed.append(partition)
                continue
            self.gone.append(partition)
            self.report.problems.append(f"{self.directory.path}/{name} is gone, with all that it held")
            self._go_on_saying(partition, said)
        if removed:
            with suppress(NoRoom):  # as in `make_removals_durable`
                for name in (RECOVERY_POINTS, HIGH_WATERMARKS):
                    self._checkpoints[name].forget(*removed)

    def _remove_left(self, name: str) -> None:
        """What is left of a log is in nobody's way: where it cannot be removed it stays until the next start."""
        try:
            self.directory.remove_directory(name)
        except OSError as error:
            why = error.strerror or error
            self.report.problems.append(f"{self.directory.path}/{name} could not be removed: {why}")

    def registered(self) -> None:
        """The controller knows what is gone: it is not told once more."""
        for partition in self.gone:
            if partition not in self.report.offline:  # it may open once more
                self._stop_saying(partition)
        self.gone = []

    def open_again(self, partition: TopicPartition, now_ms: int) -> bool:
        """Open a log that the start had no room for, now that there is some; whether it is open."""
        missed = isinstance(self.report.offline.get(partition), DiskFull)
        if not missed or self.directory.free_space() < self.room.for_log(self._config.segment_bytes):
            return False
        said = {name: dict(offsets) for name, offsets in self._unopened.items()}
        del self.report.offline[partition]
        self._stop_saying(partition)
        take_here(self._open(partition, partition_name(partition), said, now_ms))
        self._write_after_opening(said)
        return partition in self.logs

    def _write_after_opening(self, said: Mapping[str, Mapping[TopicPartition, Offset]]) -> None:
        """What is durable now; where there is no room, what was durable before is said a little longer."""
        try:
            self.write_recovery_points().run()
            self.write_cleaner_offsets().run()
            self.write_purge_floors().run()
            self.write_high_watermarks({}).run()  # none above its log's end: what is lost is missed once
        except NoRoom as problem:
            self.report.problems.append(str(problem))
            for partition, log in list(self.logs.items()):
                if log.end_offset < max(
                    said[name].get(partition, 0) for name in (RECOVERY_POINTS, CLEANER_OFFSETS)
                ):
                    self._close(partition)  # it would grow past the old point again, with other bytes
                    self._go_on_saying(partition, said)
                    self.report.offline[partition] = DiskFull(f"{log} ends below what was checkpointed of it")

    def _read(self, checkpoint: OffsetCheckpoint) -> dict[TopicPartition, Offset]:
        offsets, problem = checkpoint.read_or_fallback()
        if problem is not None:
            self.report.problems.append(str(problem))
            self._unread.add(checkpoint.name)
        return offsets

    def _open(
        self,
        partition: TopicPartition,
        name: str,
        said: Mapping[str, Mapping[TopicPartition, Offset]],
        now_ms: int,
    ) -> Iterator[Work | None]:
        directory = self.directory.directory(name)
        topic_id, problem = read_topic_id(directory)
        if isinstance(problem, StorageError):
            self._leave_unread(partition, problem, said)
            return
        if topic_id is None:
            self._set_aside(directory, partition, f"{directory.path}: {problem}", said)
            return
        checkpointed = Checkpointed(
            said[RECOVERY_POINTS].get(partition, 0),
            said[LOG_STARTS].get(partition),
            self.life.last_end is CrashKind.CLEAN,
        )
        opening = Opening(directory, self._config, self, checkpointed)
        self._partitions[directory.path] = partition
        self.report.found[partition] = opening.findings
        try:
            yield from opening.steps(now_ms)
        except (DamagedLog, OSError) as error:
            opening.abandon()
            self._go_on_saying(partition, said)
            self._unopened_ids[partition] = topic_id
            full = isinstance(error, OSError) and error.errno in FULL
            why = f"{partition} could not be opened: {error}"
            self.report.offline[partition] = DiskFull(why) if full else StorageError(why)
            if isinstance(error, DamagedLog) or error.errno not in _MAY_PASS:
                with suppress(NoRoom):  # nothing was removed: the next start will find it as well
                    self.report_damage(f"{directory.path}: {error}")
            return
        finally:
            self.report.problems += opening.findings.problems
        committed = self._high_watermarks.get(partition, 0)
        if committed > opening.log.end_offset:
            what = f"{directory.path} ends at offset {opening.log.end_offset}, {committed} was committed"
            opening.findings.damage.append(what)
            self.report_damage(what)
        log = opening.log
        # What will stand behind the end is new, although compaction had seen what stood there.
        log.first_dirty = min(said[CLEANER_OFFSETS].get(partition, log.log_start), log.end_offset)
        # Nobody knows what was purged: whoever is behind copies afresh.
        unknown = log.end_offset if PURGE_FLOORS in self._unread else NO_OFFSET
        log.purge_floor = said[PURGE_FLOORS].get(partition, unknown)
        self._unopened_ids.pop(partition, None)
        self.logs[partition] = log
        self.topic_ids[partition] = topic_id

    def _go_on_saying(
        self, partition: TopicPartition, said: Mapping[str, Mapping[TopicPartition, Offset]]
    ) -> None:
        for checkpoint, offsets in said.items():
            if partition in offsets:
                self._unopened[checkpoint][partition] = offsets[partition]

    def _stop_saying(self, partition: TopicPartition) -> None:
        for offsets in self._unopened.values():
            offsets.pop(partition, None)

    def _leave_unread(
        self,
        partition: TopicPartition,
        why: StorageError,
        said: Mapping[str, Mapping[TopicPartition, Offset]],
    ) -> None:
        """A log that may be whole, but whose it is cannot be read: offline and as it is, like one with an unread batch."""
        self._go_on_saying(partition, said)
        self.report.offline[partition] = StorageError(f"{partition} could not be opened: {why}")
        if self.life.worst > CrashKind.PROCESS:  # by what nobody can name the controller could not tell that
            self.gone.append(partition)

    def _set_aside(
        self,
        directory: Directory,
        partition: TopicPartition,
        why: str,
        said: Mapping[str, Mapping[TopicPartition, Offset]],
    ) -> None:
        """A directory without a topic id: one just being made if it has no segment, else a stray.

        Its records are gone for whoever counts upon this replica, and that is on record before it looks like a new one:
        in the checkpoints that know it (ADR 120), or as damage to all that lies here.
        """
        name = partition_name(partition)
        has_segments = any(file.endswith(LOG) for file in directory.names())
        known = any(partition in said[each] for each in (RECOVERY_POINTS, HIGH_WATERMARKS))
        if has_segments and not known:
            try:
                self.report_damage(why)
            except NoRoom:
                self._go_on_saying(partition, said)
                self.report.offline[partition] = DiskFull(f"{why}, and that cannot be noted")
                return
        if has_segments or known:
            self._go_on_saying(partition, said)
            self._unopened[RECOVERY_POINTS].setdefault(partition, 0)
            self.gone.append(partition)
        if not has_segments:
            self.directory.remove_directory(name)
            return
        stray = self._part(name, STRAY)
        self.report.stray.append(f"{self.directory.path}/{stray}: {why}")

    def set_aside(self, name: str, why: str) -> None:
        """Keep a partition's directory, and never serve it: before `open`, where another one has what counts."""
        self.report.stray.append(f"{self.directory.path}/{self._part(name, STRAY)}: {why}")

    def lie_here(self) -> list[tuple[TopicId, int]]:
        """The replicas whose logs lie here, open or not, by topic id and number."""
        known = {**self._unopened_ids, **self.topic_ids}
        return [(topic_id, partition.partition) for partition, topic_id in known.items()]

    def damage_of(self, partition: TopicPartition) -> list[str]:
        """What this start has found in a log, or an earlier one: a log that was cut for it looks whole at the next."""
        found = self.report.found.get(partition, Findings())
        return found.damage or set_aside_in(self.logs[partition].directory)

    def high_watermark(self, partition: TopicPartition) -> Offset:
        """Where the log was known to be committed to when it was last checkpointed, within what there is of it."""
        log = self.logs[partition]
        return min(max(self._high_watermarks.get(partition, 0), log.log_start), log.end_offset)

    # ── making and removing ───────────────────────────────────────────────────────────────────────

    def begin_making(self, partition: TopicPartition, topic_id: TopicId) -> Making:
        """The first step to a new log, where many are made: the next is `making.run`, in a worker thread."""
        self._forget(partition)
        return Making(partition, topic_id)

    def create(self, partition: TopicPartition, topic_id: TopicId, now_ms: int, *, made: bool = False) -> Log:
        """A new, empty log; durable when this returns. `made`: its directory is, by `making.run`."""
        if not made:
            self._forget(partition)
        name = partition_name(partition)
        directory = self.directory.directory(name, create=True)
        if not made:
            self.directory.flush()
            write_topic_id(directory, topic_id)
        self._partitions[directory.path] = partition
        opening = Opening(directory, self._config, self, Checkpointed(clean=made))
        take_here(opening.steps(now_ms))
        self.logs[partition] = opening.log
        self.topic_ids[partition] = topic_id
        return opening.log

    def _forget(self, partition: TopicPartition) -> None:
        """A new log inherits nothing."""
        assert partition not in self.logs, partition
        if partition in self.report.offline:  # it is here
            raise self.report.offline[partition]
        name = partition_name(partition)
        if parse_partition(name) != partition:
            raise InvalidTopic(f"{partition.topic!r} cannot be the name of a topic")
        if self.directory.exists(name):
            there = self.directory.directory(name)
            if any(file.endswith(LOG) and there.size_of(file) for file in there.names()):
                raise StorageError(
                    f"{there.path} has records of another log: its name may differ in case only"
                )
        self._high_watermarks.pop(partition, None)
        for checkpoint in self._checkpoints.values():
            checkpoint.forget(partition)

    def discard(self, making: Making) -> None:
        """It is not wanted any more: remove what was made of it."""
        self.directory.remove_directory(partition_name(making.partition))

    def remove(self, partition: TopicPartition) -> str:
        """Take a log out of service: its name is free. The answer is the name to `destroy`, soon.

        A kill leaves that to the next start. It is durable by `make_removals_durable`, or when a log of that name is
        made: a loss of power before may leave the log as it was.
        """
        self._close(partition, for_good=True)
        return self._part(partition_name(partition), DELETED)

    def write_removals(self) -> list[PendingWrite]:
        """What checkpoints say without the logs that were removed."""
        points = {partition: log.recovery_point for partition, log in self.logs.items()}
        return [self._prepare_points(points), self.write_high_watermarks({})]

    def make_removals_durable(self, removals: Sequence[PendingWrite]) -> None:
        """Before `destroy`: neither is what was removed served again, nor missed (may run in a worker thread)."""
        self.directory.flush()
        with suppress(NoRoom):  # to destroy it makes some; only a topic made again could be taken for gone
            for write in removals:
                write.run()

    def destroy(self, *names: str) -> None:
        """Remove what `remove` left (may run in a worker thread)."""
        for name in names:
            self.directory.remove_directory(name)

    def stray(self, partition: TopicPartition) -> None:
        """Keep a log that this node should not have, but never serve it."""
        self._close(partition)
        self.report.stray.append(f"{self.directory.path}/{self._part(partition_name(partition), STRAY)}")

    def _close(self, partition: TopicPartition, *, for_good: bool = False) -> None:
        assert not self.logs[partition].is_in_use, f"a thread is busy with {partition}"
        log = self.logs.pop(partition)
        del self.topic_ids[partition], self._partitions[log.directory.path]
        log.abandon(for_good=for_good)

    def _part(self, name: str, ending: str) -> str:
        """Rename a partition's directory so that it is none any more."""
        names = (parted_name(name, number, ending) for number in count())
        parted = next(new for new in names if not self.directory.exists(new))
        self.directory.rename(name, parted)
        if ending != DELETED:
            self.directory.flush()
        return parted

    # ── checkpoints ───────────────────────────────────────────────────────────────────────────────

    def write_high_watermarks(self, committed: Mapping[TopicPartition, Offset]) -> PendingWrite:
        """Every hosted partition's, led, followed or leaderless (KAFKA-1647); `run` it anywhere."""
        self._high_watermarks.update(committed)
        return self._prepare(
            HIGH_WATERMARKS, {partition: self.high_watermark(partition) for partition in self.logs}
        )

    def write_recovery_points(self) -> PendingWrite:
        """What is durable now. Nothing is to be cut between this and the end of its `run`."""
        for log in self.logs.values():
            log.recovery_point = log.durable_offset
        return self._prepare_points({partition: log.durable_offset for partition, log in self.logs.items()})

    def _prepare_points(self, points: Mapping[TopicPartition, Offset]) -> PendingWrite:
        """Where a log starts is durable before a point above it is: a first segment behind it was not the first then."""
        return self._prepare(RECOVERY_POINTS, points, self.write_log_starts())

    def write_log_starts(self) -> PendingWrite:
        """Where readers begin."""
        return self._prepare(LOG_STARTS, {partition: log.log_start for partition, log in self.logs.items()})

    def write_cleaner_offsets(self) -> PendingWrite:
        """How far compaction has seen each log that it has."""
        return self._prepare(
            CLEANER_OFFSETS,
            {partition: log.first_dirty for partition, log in self.logs.items() if log.first_dirty > 0},
        )

    def write_purge_floors(self) -> PendingWrite:
        """Below which offset each log that was compacted may lack tombstones."""
        return self._prepare(
            PURGE_FLOORS,
            {partition: log.purge_floor for partition, log in self.logs.items() if log.purge_floor >= 0},
        )

    def _prepare(
        self, name: str, offsets: Mapping[TopicPartition, Offset], after: PendingWrite | None = None
    ) -> PendingWrite:
        if self.failure is not None:
            raise self.failure
        return self._checkpoints[name].prepare({**self._unopened[name], **offsets}, after)

    # ── what a log needs of its keeper ────────────────────────────────────────────────────────────

    def lower_recovery_point(self, log: Kept, offset: Offset) -> None:
        """Write durably that nothing at and behind `offset` is to be trusted, or missed when it is gone."""
        partition = self._partitions[log.directory.path]
        if offset < self._high_watermarks.get(partition, 0):
            committed = {other: self.high_watermark(other) for other in self.logs}
            self._high_watermarks[partition] = offset
            self._prepare(HIGH_WATERMARKS, {**committed, partition: offset}).run()
        if (cleaned := self.logs.get(partition)) is not None and offset < cleaned.first_dirty:
            cleaned.first_dirty = offset  # what will stand there is new
            self.write_cleaner_offsets().run()
        points = {other: one.recovery_point for other, one in self.logs.items()}
        points[partition] = min(points[partition], offset)
        self._prepare_points(points).run()
        # Only when all of it goes; and after the point: else what was deleted would be missed.
        if offset < log.log_start:
            starts = {other: one.log_start for other, one in self.logs.items()}
            self._prepare(LOG_STARTS, {**starts, partition: offset}).run()

    def report_damage(self, what: str) -> None:
        """On record before anything is done about it: a kill in between must not hide it (docs/STORAGE.md, 8)."""
        self.report.problems.append(what)
        self.life.worsen(CrashKind.DAMAGED)

    def halt(self, what: str, error: OSError) -> NoReturn:
        """End the process at once, or what is in this directory if others go on without it."""
        self._halt(f"{self.directory.path}: {what}", error)

    def fails_alone(self, halt: Halt) -> None:
        """There are other directories: from now on this is what becomes of one that cannot be believed."""
        self._halt = halt

    def give_up(self, failure: StorageError) -> None:
        """Nothing here is believed any more: no log is served, and no checkpoint written."""
        self.failure = failure
        self.report.offline.update(dict.fromkeys(self.logs, failure))

    # ── stopping ──────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def starting(self) -> Iterator[None]:
        """What is done before anything is appended: the start may be refused in it."""
        try:
            yield
        except (NotADataDirectory, UnsupportedFormat):
            self.refuse()
            raise

    def refuse(self) -> None:
        """The start ends before anything was appended: what the last life left in order is so for the next one."""
        damaged = any(findings.damage for findings in self.report.found.values())
        if self.report.offline or damaged:
            return
        with suppress(OSError, TidelogError):
            for log in self.logs.values():
                log.close()
            self.life.withdraw()

    def close(self, committed: Mapping[TopicPartition, Offset]) -> None:
        """A stop: everything durable, then every checkpoint, then the marker that says so if it is so."""
        in_order = not self.report.offline
        for partition, log in list(self.logs.items()):
            try:
                if log.is_offline:
                    raise StorageError(f"{log} is offline")
                log.close()
            except (TidelogError, OSError) as error:
                self.report.problems.append(f"{partition} could not be closed: {error}")
                log.abandon()
                in_order = False
        try:
            self.write_recovery_points().run()
            self.write_high_watermarks(committed).run()
            if in_order:
                with suppress(FileNotFoundError):  # there was no room for `.running`
                    self.life.stop_cleanly()
        except NoRoom as problem:
            self.report.problems.append(str(problem))
