"""Walk the batches in a file, in bounded slices, up to the first that is not whole.

A scan never raises for what it finds: it stops, and `position` and `problem` say where and why. A valid
head with an unknown magic is no damage but a newer format, and that is raised (`UnsupportedFormat`).
"""

from collections.abc import Iterator
from typing import Protocol

from tidelog.protocol.batch import HEADER_SIZE, BatchHeader, check_body, read_header
from tidelog.protocol.errors import CorruptMessage
from tidelog.storage.config import MAX_BATCH_BYTES

SLICE = 256 << 10
"""Bytes read at once: large enough for speed, small enough not to hold up an event loop."""

BATCHES_PER_STEP = 256
"""Batches looked at before an event loop gets its turn: a slice may hold thousands of small ones."""


class Readable(Protocol):
    """Bytes at positions: a file, or a segment that opens its file whenever it must."""

    def read_at(self, position: int, length: int) -> bytes:
        """The bytes from `position` on: `length` of them, or fewer where there are no more."""
        ...


class Scan:
    """Iterates over (position, header, batch); `batch` is empty unless bodies are asked for and verified."""

    __slots__ = ("_bodies", "_end", "_file", "_slice", "position", "problem")

    def __init__(
        self, file: Readable, position: int, end: int, *, bodies: bool, slice_bytes: int = SLICE
    ) -> None:
        self._file = file
        self._end = end
        self._bodies = bodies
        self._slice = slice_bytes
        self.position = position
        self.problem: CorruptMessage | None = None

    def __iter__(self) -> Iterator[tuple[int, BatchHeader, memoryview]]:
        # A start may walk millions of batches: what is done per batch is counted in microseconds.
        piece, piece_at, small, bodies, end = _EMPTY, self.position, True, self._bodies, self._end
        while (at := self.position) < end:
            index = at - piece_at
            if index + HEADER_SIZE > len(piece):
                piece = self._read(at, self._slice if bodies or small else HEADER_SIZE)
                piece_at, index = at, 0
            try:
                header = read_header(piece, index)
                size = header.length + 12
                if size > MAX_BATCH_BYTES or at + size > end:
                    raise self._too_large(size)
                if bodies:
                    if index + size > len(piece):
                        piece = self._read(at, max(self._slice, size))
                        piece_at, index = at, 0
                    check_body(piece, header, index)
            except CorruptMessage as problem:
                self.problem = problem
                return
            self.position = at + size
            small = size < _SMALL
            yield at, header, piece[index : index + size] if bodies else _EMPTY

    def _read(self, at: int, length: int) -> memoryview:
        return memoryview(self._file.read_at(at, min(length, self._end - at)))

    def _too_large(self, size: int) -> CorruptMessage:
        at = self.position
        if size > MAX_BATCH_BYTES:
            return CorruptMessage(f"the batch at byte {at} claims {size} bytes, at most {MAX_BATCH_BYTES}")
        return CorruptMessage(f"the batch at byte {at} has {size} bytes, {self._end - at} are there")


_EMPTY = memoryview(b"")
_SMALL = 2048  # where batches are larger, reading their heads alone is cheaper than reading past their bodies
