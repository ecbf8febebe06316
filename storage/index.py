"""Sparse indexes: where in a segment an offset or a time is to be found.

An index is a cache of the segment's batch headers, never a source of truth. It lives in memory as two
growing columns and is saved in blocks, each with its own checksum:

    u16 version, u16 width of the keys, u32 entries, u64 covered, u32 crc   then the keys, then the values

`covered` is the position in the segment up to which its batches are described. A load takes the valid
blocks from the front and forgets the rest, so that a cut, torn or scribbled file is only a shorter one, one
whose sectors cannot be read an empty one, and whatever lies behind `covered` is scanned anew (docs/adr/0010).

Keys never decrease, values strictly increase.
"""

import errno
import sys
from array import array
from bisect import bisect_right
from struct import Struct
from typing import Final, Literal, NamedTuple

from tidelog.protocol.checksums import crc32c
from tidelog.protocol.errors import CorruptMessage
from tidelog.storage.files import Directory, read_whole

_HEAD: Final = Struct(">HHIQI")
_UNSUMMED: Final = Struct(">HHIQ")
_VERSION: Final = 1

OFFSETS: Final = "I"
"""Keys of an offset index: the last offset of a batch, less the segment's base; values: its position."""
TIMES: Final = "q"
"""Keys of a time index: the largest timestamp so far; values: the last offset of its batch, less the base."""


class SparseIndex:
    """Two columns, the first sorted: the greatest key at or below the one sought leads to a value."""

    __slots__ = ("_kind", "_saved_bytes", "_saved_entries", "covered", "keys", "problem", "values")

    def __init__(self, kind: Literal["I", "q"]) -> None:
        self._kind = kind
        self.keys = array(kind)
        self.values = array("I")
        self.covered = 0
        """The log bytes that the saved blocks describe."""
        self.problem: str | None = None
        """Why the disk did not give the saved blocks."""
        self._saved_entries = 0
        self._saved_bytes = 0

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def memory(self) -> int:
        """Bytes that the columns take."""
        return len(self.keys) * (self.keys.itemsize + 4)

    def add(self, key: int, value: int) -> None:
        """One entry more at the end."""
        assert not self.values or (value > self.values[-1] and key >= self.keys[-1]), (key, value)
        self.keys.append(key)
        self.values.append(value)

    def floor(self, key: int) -> int:
        """The place of the last entry whose key is at or below `key`; -1 when there is none."""
        return bisect_right(self.keys, key) - 1

    def keep(self, entries: int) -> None:
        """Drop all but the first `entries`. The saved file says more than that now: the caller removes it."""
        del self.keys[entries:]
        del self.values[entries:]
        self.covered = self._saved_entries = self._saved_bytes = 0

    def save(self, directory: Directory, name: str, covered: int) -> None:
        """Append what is new as one block. No flush: a block that is not whole is not believed."""
        if covered == self.covered and self._saved_bytes:
            return
        keys, values = self.keys[self._saved_entries :], self.values[self._saved_entries :]
        body = _big_endian(keys) + _big_endian(values)
        head = _UNSUMMED.pack(_VERSION, keys.itemsize, len(keys), covered)
        block = head + crc32c(body, crc32c(head)).to_bytes(4, "big") + body
        file = directory.open(name, create=True)
        try:
            file.truncate(self._saved_bytes)
            file.write_at(self._saved_bytes, block)
        finally:
            file.close()
        self._saved_entries = len(self.keys)
        self._saved_bytes += len(block)
        self.covered = covered

    @classmethod
    def load(cls, kind: Literal["I", "q"], directory: Directory, name: str, log_size: int) -> "SparseIndex":
        """What the file's valid blocks say of the first `log_size` bytes; empty when nothing is to be believed."""
        index = cls(kind)
        content = index._read(directory, name) if directory.exists(name) else b""
        at = 0
        while (block_end := index._take_block(content, at, log_size)) is not None:
            at = block_end
        index._saved_entries, index._saved_bytes = len(index.keys), at
        return index

    def _read(self, directory: Directory, name: str) -> bytes:
        try:
            return read_whole(directory, name)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            self.problem = (
                f"{directory.path}/{name}: {error.strerror}"  # the batches can be read, or will tell
            )
            return b""

    def _take_block(self, content: bytes, at: int, log_size: int) -> int | None:
        """Add the block at that byte and say where it ends; None when it is not whole or contradicts the log."""
        if at == len(content):
            return None
        try:
            block = read_block(self._kind, content, at)
        except CorruptMessage:
            return None
        if not self.covered <= block.covered <= log_size:
            return None
        self.keys += block.keys
        self.values += block.values
        self.covered = block.covered
        return block.end


class Block(NamedTuple):
    """What one save has appended to an index file."""

    keys: "array[int]"
    values: "array[int]"
    covered: int
    """The log bytes that are described by the blocks up to this one."""
    end: int
    """Where the next block begins."""


def read_block(kind: Literal["I", "q"], content: bytes, at: int) -> Block:
    """The block at that byte of an index file; raises `CorruptMessage` when it is not what was written."""
    left = len(content) - at
    if left < _HEAD.size:
        raise CorruptMessage(f"a block begins with {_HEAD.size} bytes, {left} are there")
    version, width, entries, covered, crc = _HEAD.unpack_from(content, at)
    keys, values = array(kind), array("I")
    body_at = at + _HEAD.size
    end = body_at + entries * (keys.itemsize + 4)
    if version != _VERSION or width != keys.itemsize:
        raise CorruptMessage(
            f"a block of version {version} with keys of {width} bytes, expected {_VERSION} and {keys.itemsize}"
        )
    if end > len(content):
        raise CorruptMessage(f"a block of {entries} entries has {end - at} bytes, {left} are there")
    if crc32c(content[body_at:end], crc32c(content[at : at + _UNSUMMED.size])) != crc:
        raise CorruptMessage("a block does not match its checksum")
    split = body_at + entries * keys.itemsize
    keys.frombytes(content[body_at:split])
    values.frombytes(content[split:end])
    if sys.byteorder == "little":
        keys.byteswap()
        values.byteswap()
    return Block(keys, values, covered, end)


def _big_endian(column: "array[int]") -> bytes:
    if sys.byteorder == "big":
        return column.tobytes()
    swapped = column[:]
    swapped.byteswap()
    return swapped.tobytes()
