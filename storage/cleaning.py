"""What compaction is asked to do, and which log is next: values and decisions, without a byte of a log.

    plan      a log, as it stands, becomes a Plan: whole segments below every bound (C1), in groups
    Plan      is all that a `compaction.Compactor` needs beside the directory: it may run in another process
    Cleaned   says of one group of segments which file replaces it, written and not yet in its place
    Outcome   says how far the log is clean then

What it keeps true (docs/STORAGE.md, 10.9): nothing at or above the high watermark, the last stable offset, the
recovery point or the newest segment is ever planned, nor a segment younger than `min.compaction.lag.ms`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec import Struct

from tidelog.protocol.types import NO_OFFSET, Offset
from tidelog.storage.log import Log
from tidelog.storage.retention import age_ms, oldest_age_ms
from tidelog.storage.segment import MAX_RELATIVE_OFFSET, Segment

PROCESS_MEMORY_BYTES: Final = 112 << 20
"""For the keys, in a process of its own: with all else it takes less than 150 MB more than it began with."""
LOOP_MEMORY_BYTES: Final = 4 << 20
"""For the keys, where others have their turns on the same event loop: their table grows in less than 2 ms."""


class Source(Struct, frozen=True, array_like=True):
    """A segment that is to be read."""

    base_offset: Offset
    next_offset: Offset
    size: int


class Plan(Struct, frozen=True, array_like=True):
    """One compaction of one log."""

    groups: tuple[tuple[Source, ...], ...]
    """From the first segment on; each group becomes one segment."""
    first_dirty: Offset
    """Below it every key stands once."""
    remembered: frozenset[Offset]
    """The last offsets of the batches by which producers' retries are known again (C6)."""
    now_ms: int
    delete_retention_ms: int
    purge_below: Offset
    """Tombstones from there on stay, also those that are due: a replica that copies this log has yet to see them."""
    index_interval_bytes: int
    memory_bytes: int
    """For the map of the keys; what is read and written takes a few megabytes beside it."""

    @property
    def end(self) -> Offset:
        """Where the last segment ends."""
        return self.groups[-1][-1].next_offset


class Cleaned(Struct, frozen=True, array_like=True):
    """One group is written, as `<base>.log.cleaned`."""

    bases: tuple[Offset, ...]
    """Of the segments that it replaces; the first is its own."""
    known: tuple[int, ...]
    """What a segment knows of itself (`Segment.known`)."""
    purge_floor: Offset
    """Below it tombstones are missing in this group and those before it, or -1."""

    @property
    def base_offset(self) -> Offset:
        """Of the new segment."""
        return self.bases[0]


class Outcome(Struct, frozen=True, array_like=True):
    """All groups that change are written."""

    clean_below: Offset
    """Below it every key stands once, when all of it is in place."""
    read_bytes: int
    written_bytes: int
    dropped_records: int
    unreadable_batches: int = 0
    """Which are what was sent, and no records: they stay, whatever their keys may be."""
    first_unreadable: Offset = NO_OFFSET


class Refused(Struct, frozen=True, array_like=True):
    """It could not be done, in another process: the error there, to be raised here."""

    message: str
    errno: int = 0
    """Of an OSError."""
    code: int = 0
    """Of one of ours."""
    base_offset: Offset = NO_OFFSET
    """Of the segment that is damaged."""


Said = Cleaned | Outcome | None
"""What one step of a compaction says: mostly nothing."""

_ENCODE: Final = msgspec.msgpack.Encoder().encode
_PLAN: Final = msgspec.msgpack.Decoder(Plan).decode
_SAID: Final = msgspec.msgpack.Decoder(tuple[Cleaned | None, Outcome | None, Refused | None]).decode


def encode_plan(plan: Plan) -> bytes:
    """The plan for another process."""
    return _ENCODE(plan)


def decode_plan(content: bytes) -> Plan:
    """The plan that this process was given."""
    return _PLAN(content)


def encode_said(said: Cleaned | Outcome | Refused) -> bytes:
    """What a step in another process said."""
    return _ENCODE(tuple(said if isinstance(said, kind) else None for kind in (Cleaned, Outcome, Refused)))


def decode_said(content: bytes) -> Cleaned | Outcome | Refused:
    """The same, here."""
    cleaned, outcome, refused = _SAID(content)
    said = cleaned or outcome or refused
    assert said is not None, "a step that said nothing was encoded"
    return said


# ── how far ───────────────────────────────────────────────────────────────────────────────────────────


def first_dirty(log: Log) -> Offset:
    """Where what compaction has not seen begins: at the log's start if what is on record cannot be (C11)."""
    return log.first_dirty if log.log_start <= log.first_dirty <= log.end_offset else log.log_start


def cleanable(log: Log, committed: Offset, now_ms: int) -> list[Segment]:
    """The segments that may be compacted, from the first on (C1). `committed`: high watermark and last stable offset."""
    bound = min(committed, log.recovery_point, log.durable_offset)
    found = []
    for segment in log.segments[:-1]:
        if segment.next_offset > bound:
            break
        if (
            segment.next_offset > first_dirty(log)
            and age_ms(segment, now_ms, log.looked_ms) < log.config.min_compaction_lag_ms
        ):
            break
        found.append(segment)
    return found


def grouped(segments: Iterable[Segment], segment_bytes: int) -> tuple[tuple[Source, ...], ...]:
    """Neighbours that are small become one segment, as far as its size and its index allow."""
    groups: list[list[Source]] = []
    size = 0
    for segment in segments:
        source = Source(segment.base_offset, segment.next_offset, segment.size)
        size += source.size
        reach = source.next_offset - groups[-1][0].base_offset if groups else 0
        if groups and size <= segment_bytes and reach <= MAX_RELATIVE_OFFSET:
            groups[-1].append(source)
        else:
            groups.append([source])
            size = source.size
    return tuple(map(tuple, groups))


def largest_group(log: Log, committed: Offset, now_ms: int) -> int:
    """The bytes of the largest group that a compaction would read: what it writes beside the log before any is freed."""
    groups = grouped(cleanable(log, committed, now_ms), log.config.segment_bytes)
    return max((sum(source.size for source in group) for group in groups), default=0)


def plan(
    log: Log,
    committed: Offset,
    now_ms: int,
    remembered: Iterable[Offset],
    memory_bytes: int,
    purge_below: Offset | None = None,
) -> Plan | None:
    """What is to be done for this log; None when there is nothing that may be. All tombstones may go that are due,
    or those in batches that end at `purge_below` or before.
    """
    segments = cleanable(log, committed, now_ms)
    dirty = first_dirty(log)
    if not segments or segments[-1].next_offset <= dirty:
        return None
    return Plan(
        groups=grouped(segments, log.config.segment_bytes),
        first_dirty=dirty,
        remembered=frozenset(remembered),
        now_ms=now_ms,
        delete_retention_ms=log.config.delete_retention_ms,
        purge_below=committed if purge_below is None else purge_below,
        index_interval_bytes=log.config.index_interval_bytes,
        memory_bytes=memory_bytes,
    )


# ── which log ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Dirt:
    """How much of a log waits for compaction."""

    clean_bytes: int
    dirty_bytes: int
    waiting_ms: int
    """How long the oldest record of the dirty part has been there."""
    min_ratio: float
    max_lag_ms: int

    @property
    def ratio(self) -> float:
        """The dirty part of what would be read."""
        return self.dirty_bytes / max(self.clean_bytes + self.dirty_bytes, 1)

    @property
    def overdue(self) -> bool:
        """Whether a record has waited too long, however little there is."""
        return bool(self.dirty_bytes) and self.waiting_ms > self.max_lag_ms

    @property
    def is_due(self) -> bool:
        """Whether it is worth its while."""
        return self.overdue or (bool(self.dirty_bytes) and self.ratio >= self.min_ratio)


def dirt(log: Log, committed: Offset, now_ms: int) -> Dirt:
    """How much of this log waits, by whole segments: the one that is partly clean counts as dirty."""
    dirty = first_dirty(log)
    segments = cleanable(log, committed, now_ms)
    waiting = [segment for segment in segments if segment.next_offset > dirty and segment.size]
    dirty_bytes = sum(segment.size for segment in waiting)
    return Dirt(
        clean_bytes=sum(segment.size for segment in segments) - dirty_bytes,
        dirty_bytes=dirty_bytes,
        waiting_ms=max((oldest_age_ms(segment, now_ms, log.looked_ms) for segment in waiting), default=0),
        min_ratio=log.config.min_cleanable_dirty_ratio,
        max_lag_ms=log.config.max_compaction_lag_ms,
    )


def next_to_compact(logs: Sequence[tuple[Log, Dirt]]) -> Log | None:
    """The log whose turn it is: those that are overdue before all others, then the dirtiest; None when none is due."""
    due = [(dirt.overdue, dirt.ratio, -place, log) for place, (log, dirt) in enumerate(logs) if dirt.is_due]
    return max(due, key=lambda entry: entry[:3])[3] if due else None


@dataclass(slots=True)
class Pace:
    """So many bytes a second, read and written: how long to wait after a step."""

    bytes_per_second: float
    _done: float = 0.0
    _since_s: float | None = None

    def pause_s(self, total_bytes: int, now_s: float) -> float:
        """`total_bytes` since the beginning: what to wait before the next step. Idle time is not saved up."""
        if self._since_s is None:
            self._since_s, self._done = now_s, float(total_bytes)
            return 0.0
        ahead = (total_bytes - self._done) / self.bytes_per_second - (now_s - self._since_s)
        if ahead < 0:
            self._since_s, self._done = now_s, float(total_bytes)
        return max(ahead, 0.0)


WORK_S: Final = 0.001
"""How long is worked at a stretch where others want the core as well."""
ASKED_S: Final = 0.1
"""For how long it is believed that they still do."""


@dataclass(slots=True)
class Courtesy:
    """Whoever was asked for the core rests as long as it works, until nobody has asked for a while (ADR 104).

    To stand back in the kernel's queue is not enough: who wakes up waits for a slice of a millisecond to end, or for
    the other half of the core, and an acknowledgement wakes four processes one after the other.
    """

    _worked_s: float
    _asked: int
    _until_s: float = 0.0

    def rest_s(self, worked_s: float, asked: int, now_s: float) -> float:
        """What to wait now: after so much work in all, and having had to give up the core so often."""
        work_s = worked_s - self._worked_s
        if work_s < WORK_S:
            return 0.0
        if asked > self._asked:
            self._until_s = now_s + ASKED_S
        self._worked_s, self._asked = worked_s, asked
        return work_s if now_s < self._until_s else 0.0
