"""Which segments have been kept long enough, and how they leave: decided, then durable, then gone.

    seal              closes an old segment, and one of which all is deleted
    retain            does so, and raises the log's start over what may go
    (the owner)       writes log-start-offset-checkpoint durably
    Leftovers.take    renames the files: readers cannot come to them any more
    Leftovers.remove  removes those that were renamed `file.delete.delay.ms` ago

What it keeps true (docs/STORAGE.md, 10.8; KAFKA-5634):

* Only whole segments go, from the oldest on, and none that reaches above the high watermark.
* The log's start is durable before a file leaves: a crash at any step leaves a log that begins where it should.
* A record from the future does not keep its segment for ever: no record is younger than when it was appended.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from tidelog.protocol.types import NO_TIMESTAMP, Offset
from tidelog.storage.config import LogConfig
from tidelog.storage.files import Directory
from tidelog.storage.log import Log


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
        """When its last batch was appended, at the latest."""
        ...


def newest_ms(segment: Aged) -> int:
    """When its newest record was written, as far as producers can be believed."""
    if segment.max_timestamp == NO_TIMESTAMP:
        return segment.appended_ms
    return min(segment.max_timestamp, segment.appended_ms)


def wanted_log_start(
    segments: Sequence[Aged], config: LogConfig, log_start: Offset, high_watermark: Offset, now_ms: int
) -> Offset:
    """Where the log should start: behind every segment, from the oldest on, that may go and has to."""
    left = sum(segment.size for segment in segments)
    for segment in segments:
        if not segment.size or segment.next_offset > high_watermark:
            break
        too_old = config.deletes and 0 <= config.retention_ms < now_ms - newest_ms(segment)
        too_much = config.deletes and 0 <= config.retention_bytes <= left - segment.size
        if segment.next_offset > log_start and not too_old and not too_much:
            break
        left -= segment.size
        log_start = max(log_start, segment.next_offset)
    return log_start


def seal(log: Log, now_ms: int) -> None:
    """Close the newest segment when it is old, and when all of it is deleted: no other leaves its log, or is compacted."""
    log.roll_if_old(now_ms)
    if log.log_start == log.end_offset:
        log.roll()


def retain(log: Log, high_watermark: Offset, now_ms: int) -> bool:
    """Raise the log's start over what has been kept long enough. Whether it was: then it has to become durable.

    A new segment is begun when the newest is to go itself.
    """
    seal(log, now_ms)
    start = wanted_log_start(log.segments, log.config, log.log_start, high_watermark, now_ms)
    if start == log.log_start:
        return False
    if start == log.end_offset:
        log.roll()
    log.raise_log_start(start)
    return True


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
