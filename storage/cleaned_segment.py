"""The segment that a compaction writes beside the log, until `swap` puts it in place of those that it was made of.

What it keeps true: nothing of it has a name of the log; batches come in their order, and its indexes are those of
any segment.
"""

from typing import Final

from tidelog.protocol.batch import BatchHeader
from tidelog.protocol.types import Buffer, Offset
from tidelog.storage.files import Directory
from tidelog.storage.open_segments import OpenSegments
from tidelog.storage.segment import Segment

CLEANED: Final = ".cleaned"
"""The ending of a segment that is being written and is not of the log yet."""


class Writer:
    """A new segment, written beside the log."""

    def __init__(self, directory: Directory, base_offset: Offset, interval: int, at_once: int) -> None:
        self.segment = Segment(directory, base_offset, OpenSegments(), interval, CLEANED)
        self.segment.create()
        self._waiting: list[Buffer] = []
        self._heads: list[BatchHeader] = []
        self._bytes = 0
        self._at_once = at_once
        """Bytes that are written together."""

    def add(self, header: BatchHeader, batch: Buffer) -> None:
        """This batch is the next."""
        self._waiting.append(batch)
        self._heads.append(header)
        self._bytes += header.size
        if self._bytes >= self._at_once:
            self.write()

    def write(self) -> None:
        """Write what waits."""
        if self._waiting:
            self.segment.write(b"".join(self._waiting))
        for header in self._heads:
            self.segment.enter(self.segment.size, header)
        self._waiting, self._heads, self._bytes = [], [], 0

    def finish(self) -> tuple[int, ...]:
        """All is written; what the segment knows of itself."""
        self.write()
        self.segment.seal()
        self.segment.close()
        return tuple(self.segment.known())

    def give_up(self) -> None:
        """Remove what was written."""
        self.segment.remove()
