"""Segments one behind the other, as readers see them: by offset, by size and by time.

Each begins where the one before it ends; the last is the one being written, and there always is one.
"""

from bisect import bisect_right
from typing import Final

from tidelog.protocol.errors import OffsetOutOfRange, StorageError
from tidelog.protocol.types import Offset
from tidelog.storage.files import Directory
from tidelog.storage.segment import Segment, Slice
from tidelog.storage.times import OffsetAndTime, first_at_or_after, first_of_the_largest

EMPTY: Final = memoryview(b"")


class Readable:
    """The part of a log that changes nothing."""

    def __init__(self, directory: Directory, segments: list[Segment], log_start: Offset) -> None:
        self.directory = directory
        self.log_start = log_start
        self._segments = segments

    def __repr__(self) -> str:
        return f"<log {self.directory.path} {self.log_start} to {self.end_offset}>"

    @property
    def end_offset(self) -> Offset:
        """The offset that the next record will get."""
        return self._segments[-1].next_offset

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All segments, oldest first; the last is the one being written."""
        return tuple(self._segments)

    @property
    def is_empty(self) -> bool:
        """Whether there is no batch in it."""
        return not any(segment.size for segment in reversed(self._segments))

    @property
    def size(self) -> int:
        """Bytes of batches on the disk."""
        return sum(segment.size for segment in self._segments)

    def read(self, offset: Offset, max_bytes: int, below: Offset | None = None) -> Slice:
        """Whole batches from the one with `offset` on: at least one when there is one below `below`.

        The first may begin before `offset`; at `end_offset` there is nothing, and that is no error.
        """
        if not self.log_start <= offset <= self.end_offset:
            raise OffsetOutOfRange(f"{self} does not hold offset {offset}")
        limit = self.end_offset if below is None else below
        try:
            for segment in self._segments[self._segment_of(offset) :]:
                if segment.base_offset >= limit:
                    break
                if segment.next_offset > offset:
                    return segment.read(offset, max_bytes, limit)
        except OSError as error:
            raise StorageError(f"{self} could not be read at offset {offset}: {error.strerror}") from error
        return Slice(EMPTY, offset)

    def bytes_between(self, offset: Offset, end: Offset) -> int:
        """How many bytes of whole batches lie from the one with `offset` up to the one with `end`."""
        first, last = self._segment_of(offset), self._segment_of(end)
        between = sum(segment.size for segment in self._segments[first:last])
        try:
            return between + self._segments[last].position_of(end) - self._segments[first].position_of(offset)
        except OSError as error:
            raise StorageError(
                f"{self} could not be read between offsets {offset} and {end}: {error.strerror}"
            ) from error

    def _segment_of(self, offset: Offset) -> int:
        if offset >= self._segments[-1].base_offset:
            return len(self._segments) - 1
        return max(bisect_right(self._segments, offset, key=lambda segment: segment.base_offset) - 1, 0)

    def offset_for_time(self, timestamp: int) -> OffsetAndTime | None:
        """The first record, from log_start on, with that timestamp or a later one; None when there is none."""
        try:
            return first_at_or_after(self._segments, timestamp, self.log_start)
        except OSError as error:
            raise StorageError(f"{self} could not be read by time: {error.strerror}") from error

    def largest_time(self, below: Offset) -> OffsetAndTime | None:
        """The first record with the largest timestamp, of those from log_start on and below that offset."""
        try:
            return first_of_the_largest(self._segments, self.log_start, below)
        except OSError as error:
            raise StorageError(f"{self} could not be read by time: {error.strerror}") from error
