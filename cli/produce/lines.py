"""Lines out of pieces of a stream: numbered from 1, as bytes. Pure.

What it keeps true: whatever the stream holds, no more is kept of it than a piece and one line of at most `limit` bytes;
of a longer line only its number and length are told. A last line without a line end is a line.
"""

from collections.abc import Iterator
from typing import NamedTuple


class Line(NamedTuple):
    """A line without its end."""

    number: int
    data: bytes


class TooLong(NamedTuple):
    """A line that nobody kept."""

    number: int
    size: int


class Lines:
    """See the module."""

    def __init__(self, limit: int) -> None:
        self.count = 0
        """How many have ended."""
        self._limit = limit
        self._rest: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> Iterator[Line | TooLong]:
        """The lines that end in this piece."""
        first, *others = piece.split(b"\n")
        self._add(first)
        for data in others:
            yield self._ended()
            self._add(data)

    def end(self) -> Iterator[Line | TooLong]:
        """The stream is over: what had no line end."""
        if self._size:
            yield self._ended()

    def _add(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._limit:
            self._rest.clear()
        elif data:
            self._rest.append(data)

    def _ended(self) -> Line | TooLong:
        self.count += 1
        size, self._size = self._size, 0
        if size > self._limit:
            return TooLong(self.count, size)
        parts, self._rest = self._rest, []
        return Line(self.count, parts[0] if len(parts) == 1 else b"".join(parts))


class Failed(NamedTuple):
    """Consecutive lines that were not written, all for the same reason."""

    first: int
    last: int
    cause: str

    def __str__(self) -> str:
        where = f"line {self.first}" if self.first == self.last else f"lines {self.first} to {self.last}"
        return f"{where}: {self.cause}"


class Failures:
    """Lines that were not written, joined where they stand together: a million of them are one sentence."""

    def __init__(self) -> None:
        self.count = 0
        self._open: Failed | None = None

    def add(self, number: int, cause: str) -> Failed | None:
        """One more; what is complete by it and can be told."""
        self.count += 1
        before = self._open
        if before is not None and before.cause == cause and before.last + 1 == number:
            self._open = before._replace(last=number)
            return None
        self._open = Failed(number, number, cause)
        return before

    def end(self) -> Failed | None:
        """The last ones."""
        left, self._open = self._open, None
        return left
