"""Columns of a payload as they travel: how many entries one has, and whether they are all of one length.

    0xdc 0x02 0x58 | 0xc4 0x08 k k k k k k k k | 0xc4 0x08 k k k k k k k k | ...
    600 entries      each: bytes, 8 of them

What it keeps true: what is told to be of one length is exactly that, read as msgpack; whoever is not told so has to unpack.
Nothing is called for an entry: where heads would have to be is known by the first one.
"""

from typing import Final, NamedTuple

NIL: Final = b"\xc0"
_FIXARRAY: Final = range(0x90, 0xA0)
_ARRAYS: Final = {0xDC: 3, 0xDD: 5}
_BYTES: Final = {0xC4: 2, 0xC5: 3, 0xC6: 5}
"""How long heads are: the kind, then how many there are, in 1, 2 or 4 bytes."""


class Uniform(NamedTuple):
    """Entries of one length, each behind the same head."""

    head: bytes
    length: int
    body: memoryview
    """Head and entry, head and entry, ..."""

    @property
    def stride(self) -> int:
        """How far it is from an entry to the next one."""
        return len(self.head) + self.length


def entries_in(packed: bytes) -> int:
    """How many entries a packed column claims to have; -1: it is no array."""
    size = _head_size(packed)
    if size == 1:
        return packed[0] - _FIXARRAY.start
    return int.from_bytes(packed[1:size], "big") if size else -1


def uniform_of(packed: bytes, count: int) -> Uniform | None:
    """The entries of a column that has so many, if each is bytes of the same length as the others; else None.

    The first head says where the second one has to be; if that is the same, it says where the third one has to be, and so on.
    """
    begin = _head_size(packed)
    if not begin or entries_in(packed) != count or begin == len(packed):
        return None
    size = _BYTES.get(packed[begin])
    if size is None:
        return None
    head = packed[begin : begin + size]
    length = length_of(head)
    stride = size + length
    if len(packed) != begin + count * stride:
        return None
    for at in range(size):
        if packed[begin + at :: stride] != head[at : at + 1] * count:
            return None
    return Uniform(head, length, memoryview(packed)[begin:])


def length_of(head: bytes) -> int:
    """How long the entry behind this head is."""
    return int.from_bytes(head[1:], "big")


def _head_size(packed: bytes) -> int:
    """How long the head of an array is; 0: there is none."""
    first = packed[0] if packed else 0
    return 1 if first in _FIXARRAY else _ARRAYS.get(first, 0)
