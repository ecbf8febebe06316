"""Whether a data directory has room for what clients send: a low-space mark, and the way back over it.

    enough ──free < storage.min.free.bytes, or a write did not fit──► low ──free >= half as much again──► enough

What it keeps true (DECISIONS 9, ADR 103):

* Produce is refused before the disk is full: what is left is for followers, elections, checkpoints and deletions.
* Between the mark and the way back nothing changes, so that leaders do not come and go with every segment.
* While a log or the reserve still lacks room, it is low, whatever the numbers say.

A machine: who looks at the disk tells it what there was.
"""

from typing import Final

from tidelog.protocol.errors import DiskFull

MIN_FREE_BYTES: Final = 256 << 20


class Room:
    """Of one data directory."""

    __slots__ = ("free", "low", "min_free", "path", "since_look")

    def __init__(self, path: str, min_free: int = 0) -> None:
        self.path = path
        self.min_free = min_free
        """`storage.min.free.bytes`. 0: only a write that does not fit tells."""
        self.free = 0
        """Free space when it was looked at last."""
        self.low = False
        """Whether clients' records are refused."""
        self.since_look = 0
        """Bytes that were appended since then."""

    @property
    def enough(self) -> int:
        """So much free space ends it."""
        return self.min_free + self.min_free // 2

    def for_log(self, segment_bytes: int) -> int:
        """So much free space lets a log that did not fit try again: two of its segments, or less where that is enough."""
        return min(2 * segment_bytes, self.enough or 2 * segment_bytes)

    def look(self, free: int, *, refused: bool = False) -> bool:
        """So much is free; `refused`: something did not fit, and is not tried yet. Whether that changes anything."""
        was, self.free, self.since_look = self.low, free, 0
        self.low = refused or free < (self.enough if was else self.min_free)
        return self.low != was

    def check(self) -> None:
        """Refuse a client's records while there is too little."""
        if self.low:
            raise DiskFull(
                f"{self.path} has {self.free} bytes free, records are taken again from {self.enough} on: make room "
                "there, delete records or lower retention.bytes or retention.ms"
            )
