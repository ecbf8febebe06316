"""How much of a long answer is said at once.

What it keeps true: a page holds at most so many entries and about so many bytes, however large a group is, so that it
fits a frame; and at least one entry if there is any, so that whoever asks on and on comes to the end.
"""

from collections.abc import Iterable
from typing import Final

from tidelog.broker.groups.records import Spread

ENTRIES: Final = 10_000
"""No page has more entries, whatever was asked for."""
BYTES: Final = 2 * 1024 * 1024
"""What the entries of a page take at most, if it has more than one: half of a frame's head."""
PARTITION_BYTES: Final = 128
"""An upper bound of what is told of a partition, besides its texts."""
LINE_BYTES: Final = 64
"""The same of a group in a line."""
MEMBER_BYTES: Final = 128
"""The same of a member, besides its texts and partitions."""
TOPIC_BYTES: Final = 32
"""The same of a topic in a list of partitions; each of its numbers takes at most 5."""


class Page:
    """What one answer has room for."""

    __slots__ = ("_bytes", "_entries", "is_full")

    def __init__(self, limit: int) -> None:
        self._entries = min(max(limit, 1), ENTRIES)
        self._bytes = BYTES
        self.is_full = False
        """Whether something did not fit: nothing that comes after it is taken."""

    def takes(self, size: int) -> bool:
        """Whether an entry of at most so many bytes fits as well; the first one always does."""
        fits = self._entries > 0 and (self._bytes >= size or self._bytes == BYTES)
        if self.is_full or not fits:
            self.is_full = True
            return False
        self._entries -= 1
        self._bytes -= size
        return True


def bytes_of(*texts: str | None) -> int:
    """What these texts take."""
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts if text)


def bytes_of_spread(spread: Spread, names: Iterable[str] = ()) -> int:
    """What these partitions take, and the names of their topics."""
    return sum(TOPIC_BYTES + 5 * len(indexes) for _, indexes in spread) + bytes_of(*names)
