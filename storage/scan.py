"""Walk the batches in a file, in bounded slices, up to the first that is not whole.

A scan never raises for what it finds: it stops, and `position` and `problem` say where and why. A valid
head with an unknown magic is no damage but a newer format, and that is raised (`UnsupportedFormat`).
"""

from collections.abc import Iterator

from tidelog.protocol.batch import HEADER_SIZE, BatchHeader, check_body, read_header
from tidelog.protocol.errors import CorruptMessage
from tidelog.storage.config import MAX_BATCH_BYTES
from tidelog.storage.files import File

SLICE = 256 << 10
"""Bytes read at once: large enough for speed, small enough not to hold up an event loop."""


class Scan:
    """Iterates over (position, header, batch); `batch` is empty unless bodies are asked for and verified."""

    __slots__ = ("_bodies", "_end", "_file", "_slice", "position", "problem")

    def __init__(
        self, file: File, position: int, end: int, *, bodies: bool, slice_bytes: int = SLICE
    ) -> None:
        self._file = file
        self._end = end
        self._bodies = bodies
        self._slice = slice_bytes
        self.position = position
        self.problem: CorruptMessage | None = None

    def __iter__(self) -> Iterator[tuple[int, BatchHeader, memoryview]]:
        piece, piece_at, small = _EMPTY, self.position, True
        while self.position < self._end:
            at = self.position
            if at + HEADER_SIZE > piece_at + len(piece):
                piece, piece_at = self._read(at, self._slice if self._bodies or small else HEADER_SIZE), at
            try:
                header = self._header(piece, at - piece_at, at)
                if self._bodies:
                    if at + header.size > piece_at + len(piece):
                        piece, piece_at = self._read(at, max(self._slice, header.size)), at
                    check_body(piece, header, at - piece_at)
            except CorruptMessage as problem:
                self.problem = problem
                return
            whole = piece[at - piece_at : at - piece_at + header.size] if self._bodies else _EMPTY
            self.position = at + header.size
            small = header.size < _SMALL
            yield at, header, whole

    def _read(self, at: int, length: int) -> memoryview:
        return memoryview(self._file.read_at(at, min(length, self._end - at)))

    def _header(self, piece: memoryview, index: int, at: int) -> BatchHeader:
        header = read_header(piece, index)
        if header.size > MAX_BATCH_BYTES:
            raise CorruptMessage(
                f"the batch at byte {at} claims {header.size} bytes, at most {MAX_BATCH_BYTES}"
            )
        if at + header.size > self._end:
            raise CorruptMessage(
                f"the batch at byte {at} has {header.size} bytes, {self._end - at} are there"
            )
        return header


_EMPTY = memoryview(b"")
_SMALL = 2048  # where batches are larger, reading their heads alone is cheaper than reading past their bodies
