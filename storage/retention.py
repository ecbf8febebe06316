"""Which segments have been kept long enough, and how they leave: decided, then durable, then gone.

    look              notes what has come since the last look
    retain            raises the log's start over what may go
    seal              closes an old segment, and one of which all is deleted
    (the owner)       writes log-start-offset-checkpoint durably
    Leftovers.take    renames the files: readers cannot come to them any more
    Leftovers.remove  removes those that were renamed `file.delete.delay.ms` ago

What it keeps true (docs/STORAGE.md, 10.8; KAFKA-5634):

* Only whole segments go, from the oldest on, and none that reaches above the high watermark.
* The log's start is durable before a file leaves: a crash at any step leaves a log that begins where it should.
* A record from the future does not keep its segment for ever: none is younger than the time that it is known to be here.
* That time is counted by a clock that never steps: a wall clock that was behind when records came, and is put right
  then, makes none older than its timestamp says.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from tidelog.protocol.types import NO_TIMESTAMP, Offset
from tidelog.storage.config import LogConfig
from tidelog.storage.files import Directory
from tidelog.storage.log import Log
from tidelog.storage.segment import NOT_SEEN, Segment


class Aged(Protocol):
    """What retention looks at in a segment."""

    @property
    def size(self) -> int:
        """Its bytes."""
        ...

    @property
    def next_offset(self) -> Offset:
        """Where it ends."""
        ...

    @property
    def max_timestamp(self) -> int:
        """The largest that a producer wrote, or -1."""
        ...

    @property
    def appended_ms(self) -> int:
        """The look that first found its last batch here, or `NOT_SEEN`."""
        ...


def look(log: Log, boot_ms: int) -> None:
    """Note what has come since the last look: from now on it is known to be here, whatever the wall clock does."""
    log.looked_ms = boot_ms
    for segment in log.segments:
        if segment.appended_ms == NOT_SEEN:
            segment.appended_ms = boot_ms
            segment.begun_ms = min(segment.begun_ms, boot_ms)


def age_ms(segment: Aged, now_ms: int, looked_ms: int) -> int:
    """How old its newest record is: by its timestamp, or by how long it is known to be here if that is more."""
    return _age_ms(segment.max_timestamp, segment.appended_ms, now_ms, looked_ms)


def oldest_age_ms(segment: Segment, now_ms: int, looked_ms: int) -> int:
    """How old its first record is."""
    return _age_ms(segment.first_timestamp, segment.begun_ms, now_ms, looked_ms)


def _age_ms(timestamp: int, seen_ms: int, now_ms: int, looked_ms: int) -> int:
    here_ms = max(looked_ms - seen_ms, 0)
    return here_ms if timestamp == NO_TIMESTAMP else max(now_ms - timestamp, here_ms)


def wanted_log_start(
    segments: Sequence[Aged],
    config: LogConfig,
    log_start: Offset,
    high_watermark: Offset,
    now_ms: int,
    looked_ms: int,
) -> Offset:
    """Where the log should start: behind every segment, from the oldest on, that may go and has to."""
    left = sum(segment.size for segment in segments)
    for segment in segments:
        if not segment.size or segment.next_offset > high_watermark:
            break
        too_old = config.deletes and 0 <= config.retention_ms < age_ms(segment, now_ms, looked_ms)
        too_much = config.deletes and 0 <= config.retention_bytes <= left - segment.size
        if segment.next_offset > log_start and not too_old and not too_much:
            break
        left -= segment.size
        log_start = max(log_start, segment.next_offset)
    return log_start


def retain(log: Log, high_watermark: Offset, now_ms: int) -> bool:
    """Raise the log's start over what has been kept long enough. Whether it was: then it has to become durable.

    Whether a new segment can be begun is not asked: what lies below the start goes, and makes room for it.
    """
    start = wanted_log_start(log.segments, log.config, log.log_start, high_watermark, now_ms, log.looked_ms)
    if start == log.log_start:
        return False
    log.raise_log_start(start)
    return True


def seal(log: Log, now_ms: int) -> bool:
    """Close the newest segment when it is old, and when all of it is deleted: no other leaves its log, or is compacted.

    Old by its first record's time or by ours, whichever is more: a clock that jumps closes one early at worst.
    """
    most = log.config.segment_ms
    if log.config.compacts:
        most = min(most, log.config.max_compaction_lag_ms)
    old = oldest_age_ms(log.segments[-1], now_ms, log.looked_ms) > most
    return (old or log.log_start == log.end_offset) and log.roll()


class Leftover(NamedTuple):
    """A file that has left its log."""

    due_ms: int
    directory: Directory
    name: str


class Leftovers:
    """Files that have left their logs and are still there, for whoever is reading them. A start removes them all."""

    def __init__(self, on_first: Callable[[], None] = lambda: None) -> None:
        self._waiting: list[Leftover] = []
        self._on_first = on_first
        """Told when there is something to be removed, after there was nothing."""

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, log: Log, now_ms: int) -> int:
        """Take what lies below the log's start, durable by now, out of the log. How many segments that were."""
        names = log.retire_old_segments()
        self.add(log, names, now_ms)
        return len(names)

    def add(self, log: Log, names: Sequence[str], now_ms: int) -> None:
        """These have left that log."""
        if names and not self._waiting:
            self._on_first()
        due_ms = now_ms + log.config.file_delete_delay_ms
        self._waiting += [Leftover(due_ms, log.directory, name) for name in names]

    def due(self, now_ms: int, most: int = 16) -> list[Leftover]:
        """Some that nobody reads any more, to be removed now. Ask again while there are."""
        due = [leftover for leftover in self._waiting if leftover.due_ms <= now_ms][:most]
        for leftover in due:
            self._waiting.remove(leftover)
        return due


def remove(leftovers: Iterable[Leftover]) -> None:
    """Remove these files. Large ones take their time: for a worker thread."""
    for leftover in leftovers:
        with suppress(FileNotFoundError):  # the partition's directory is gone, or the file was taken twice
            leftover.directory.remove(leftover.name)
