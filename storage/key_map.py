"""Which keys have been seen in the new part of a log, and where: exact, and within a given number of bytes.

    KeySet   from the newest record back: what it has seen before is not the newest. One look-up for each record,
             and nothing is known but that. All keys must fit
    KeyMap   from the oldest record on: the last block of each key, as far as keys fit; blocks are read again then.
             A block is a quarter of a megabyte of log, so all keys of one share one small number

A key costs its own bytes and a slot in a table, which only calls into C touch. What both keep true:

* It never takes more memory than it was given; what does not fit is refused, never forgotten.
* Two keys are never taken for one: they stand there themselves. Only keys of 32 bytes or more are represented, by
  their SHA-256, so that long ones cost no more than 32 bytes.
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import islice, repeat
from typing import Final

LONGEST: Final = 31
"""Of the keys that stand there themselves: no digest is as short."""

_OBJECT: Final = 64
"""Bytes that a key of up to 32 bytes takes as an object."""
_ENTRY: Final = 24
_SET_ITSELF: Final = 256
_COUNTED_AT_ONCE: Final = 20_000


def _table_bytes(log2: int) -> int:
    """What the table of a dict of 2^log2 slots takes."""
    slot = 1 if log2 < 8 else 2 if log2 < 16 else 4
    return (1 << log2) * slot + (_usable(log2)) * _ENTRY


def _usable(log2: int) -> int:
    return (1 << log2) * 2 // 3


def keys_within(memory_bytes: int) -> int:
    """How many keys surely fit: with their table, and with the one before it while that is copied."""
    fitting = 0
    for log2 in range(3, 40):
        before = _usable(log2 - 1)
        if _table_bytes(log2) + _table_bytes(log2 - 1) + before * _OBJECT > memory_bytes:
            break
        fitting = max(fitting, min(_usable(log2), (memory_bytes - _table_bytes(log2)) // _OBJECT))
    return fitting


def _set_usable(log2: int) -> int:
    return (((1 << log2) - 1) * 3 - 1) // 5


def keys_seen_within(memory_bytes: int) -> int:
    """How many keys surely fit into a set: it grows fourfold, and twofold when it is large."""
    log2, fitting = 3, 0
    memory_bytes -= _SET_ITSELF
    while log2 < 40:
        fitting = max(fitting, min(_set_usable(log2), (memory_bytes - (16 << log2)) // _OBJECT))
        full = _set_usable(log2) + 1
        larger = (full * (2 if full > 50_000 else 4)).bit_length()
        if (16 << log2) + (16 << larger) + full * _OBJECT > memory_bytes:
            break
        log2 = larger
    return max(fitting, 0)


class KeySet:
    """The keys that have been seen. None is no key: whoever has none is always new."""

    __slots__ = ("_seen", "most")

    def __init__(self, memory_bytes: int) -> None:
        self._seen: set[bytes | None] = set()
        self.most = keys_seen_within(memory_bytes)
        """How many keys there may be."""

    def __len__(self) -> int:
        return len(self._seen)

    def has_room(self, keys: int) -> bool:
        """Whether so many fit, even if none of them has been seen."""
        return len(self._seen) + keys <= self.most

    def newest(self, keys: Sequence[bytes | None], first: int) -> list[int]:
        """The places, counted from `first`, of the keys (`represented`) that are seen now, the last one before all others."""
        seen = self._seen
        if seen.issuperset(keys):
            return []
        places = []
        for place in range(len(keys) - 1, -1, -1):
            key = keys[place]
            if key not in seen:
                places.append(first + place)
                if key is not None:
                    seen.add(key)
        places.reverse()
        return places

    def missing(self, keys: Sequence[bytes | None], first: int) -> list[int]:
        """The places, counted from `first`, of the keys (`represented`) that have not been seen."""
        seen = self._seen
        if seen.issuperset(keys):
            return []
        return [place for place, key in enumerate(keys, first) if key not in seen]


class KeyMap:
    """The last block of each key. None is no key: it has no place."""

    __slots__ = ("_last", "most")

    def __init__(self, memory_bytes: int) -> None:
        self._last: dict[bytes | None, int] = {}
        self.most = keys_within(memory_bytes)
        """How many keys there may be."""

    def __len__(self) -> int:
        return len(self._last)

    def has_room(self, keys: int) -> bool:
        """Whether so many fit, even if none of them is there yet. Some always fit: else nothing would ever be done."""
        return not self._last or len(self._last) + keys <= self.most

    def add(self, keys: Iterable[bytes | None], block: int) -> bool:
        """These (`represented`) stand in that block; blocks come in the order of the log. Whether one is None."""
        self._last.update(zip(keys, repeat(block)))
        return self._last.pop(None, None) is not None

    def find(self, keys: Iterable[bytes | None]) -> list[int | None]:
        """The last block of each (`represented`), or None."""
        return list(map(self._last.get, keys))

    def blocks(self) -> Iterator[set[int]]:
        """All blocks that have the last record of any key, in pieces that do not take long."""
        places = iter(self._last.values())
        while piece := set(islice(places, _COUNTED_AT_ONCE)):
            yield piece


def represented(keys: Sequence[bytes | None]) -> Sequence[bytes | None]:
    """The keys as the map knows them: long ones by their digests."""
    try:
        if max(map(len, keys), default=0) <= LONGEST:  # type: ignore[arg-type]  # where there is a None, the next line
            return keys
    except TypeError:
        pass
    return [key if key is None or len(key) <= LONGEST else sha256(key).digest() for key in keys]
