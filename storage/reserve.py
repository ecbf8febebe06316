"""Room that is kept for what a node cannot live without: the metadata log, markers, promises, checkpoints.

    whole ──the disk is full, and something that it is kept for must be written──► out ──there is space──► whole

A file of its size lies in the data directory (`.reserve`). Where one of these writes does not fit, the file is made
shorter and the write is tried again. What it keeps true (DECISIONS 9, ADR 103; I-33):

* What is given is not taken by others: while any of the reserve is out, nothing is written to the logs of
  partitions, and `free_space` does not count what the reserve has to get back.
* Whoever replaces a file of a directory looks whether what is out can come back: that is every few seconds.
* It is given in parts: others who fill the disk get what is given and not used, and no more of it.
* It is never more than a part of the space that there is: a small disk is for records, too.

`Reserved` is the data directory with a reserve behind it, as everything in a node sees it.
"""

import errno
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final, TypeVar

from tidelog.protocol.types import Buffer
from tidelog.storage.checkpoints import LEADER_EPOCHS
from tidelog.storage.files import FULL, TEMPORARY, Directory, File, Lock
from tidelog.storage.names import parse_partition

T = TypeVar("T")

RESERVE: Final = ".reserve"
RESERVE_BYTES: Final = 16 << 20
"""A day of the metadata log of a cluster at rest, and every checkpoint many times."""
METADATA_LOG: Final = "__metadata-0"
"""The directory of the log by which nodes know their cluster."""
_PARTS: Final = 16
"""So many times some of it can be given."""
_LITTLE: Final = 256
"""Such a part of it is free when it has come back."""
_SHARE: Final = 8
"""It takes an eighth of the free space at most."""


class Reserve:
    """The file, how much of it is there, and how much was given."""

    def __init__(self, directory: Directory, size: int, guard: AbstractContextManager[object]) -> None:
        self._directory = directory
        self._size = size
        self._guard = guard
        self.held = directory.size_of(RESERVE) if directory.exists(RESERVE) else 0
        """Bytes that are kept now."""
        self._whole = min(self.held, size)
        """How much it was when none of it was out."""

    @property
    def owed(self) -> int:
        """How much of it is out."""
        return max(0, self._whole - self.held)

    @property
    def is_out(self) -> bool:
        """Whether some of it was given, and is not back."""
        return self.held < self._whole

    def give(self, needed: int) -> bool:
        """Make room for so many bytes on a disk that has none; False: nothing is left to give."""
        with self._guard:
            if not self.held:
                return False
            left = max(0, self.held - max(needed, self._whole // _PARTS))
            self._set(lambda file: file.truncate(left))
            self.held = left
            return True

    def take_back(self) -> bool:
        """Take what may be taken of the free space; whether none of it is out."""
        with self._guard:
            free = self._directory.free_space()
            wanted = min(self._size, max(self._whole, (free + self.held) // _SHARE))
            more = wanted - self.held
            # A little is left, so that it does not come and go with every write.
            if more < 0 or (more and free >= more + wanted // _LITTLE):
                try:
                    self._set(lambda file: (file.truncate if more < 0 else file.allocate)(wanted))
                except OSError as error:
                    if error.errno not in FULL:
                        raise
                else:
                    self.held = self._whole = wanted
        return not self.is_out

    def _set(self, change: Callable[[File], None]) -> None:
        file = self._directory.open(RESERVE, create=True)
        try:
            change(file)
        finally:
            file.close()

    def make_room(self, write: Callable[[], T], needed: int = 0) -> T:
        """Do this, and as long as it does not fit, again with some of the reserve."""
        while True:
            try:
                return write()
            except OSError as error:
                if error.errno not in FULL or not self.give(needed):
                    raise


class _KeptFor:
    """An open file that the reserve is kept for."""

    __slots__ = ("_file", "_reserve")

    def __init__(self, file: File, reserve: Reserve) -> None:
        self._file = file
        self._reserve = reserve

    def size(self) -> int:
        return self._file.size()

    def read_at(self, position: int, length: int) -> bytes:
        return self._file.read_at(position, length)

    def write_at(self, position: int, *buffers: Buffer) -> None:
        try:
            self._file.write_at(position, *buffers)
        except OSError as error:
            needed = sum(map(len, buffers))
            if error.errno not in FULL or not self._reserve.give(needed):
                raise
            self._reserve.make_room(lambda: self._file.write_at(position, *buffers), needed)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def allocate(self, size: int) -> None:
        self._file.allocate(size)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class _Other(_KeptFor):
    """An open file that gets nothing of it, also where there is room because some of it is out."""

    __slots__ = ()

    def write_at(self, position: int, *buffers: Buffer) -> None:
        if self._reserve.is_out and position + sum(map(len, buffers)) > self._file.size():
            raise OSError(errno.ENOSPC, "the disk is full, and some of the reserve is out")
        self._file.write_at(position, *buffers)


class Reserved:
    """A directory whose files the reserve is kept for; or, if it is a partition's, some of them."""

    __slots__ = ("_directory", "_partition", "reserve")

    def __init__(self, directory: Directory, reserve: Reserve, *, partition: bool = False) -> None:
        self._directory = directory
        self.reserve = reserve
        self._partition = partition

    @property
    def path(self) -> str:
        """Where it is."""
        return self._directory.path

    def names(self) -> Sequence[str]:
        """Every name in it."""
        return self._directory.names()

    def exists(self, name: str) -> bool:
        """Whether there is such a name."""
        return self._directory.exists(name)

    def is_directory(self, name: str) -> bool:
        """Whether that is a directory."""
        return self._directory.is_directory(name)

    def size_of(self, name: str) -> int:
        """The size of that file."""
        return self._directory.size_of(name)

    def open(self, name: str, *, create: bool = False) -> File:
        """Open a file; its name has room like what is in it."""
        if self._partition and name.removesuffix(TEMPORARY) != LEADER_EPOCHS:
            return _Other(self._directory.open(name, create=create), self.reserve)
        file = self.reserve.make_room(lambda: self._directory.open(name, create=create))
        return _KeptFor(file, self.reserve)

    def rename(self, old: str, new: str) -> None:
        """Give it another name."""
        self.reserve.make_room(lambda: self._directory.rename(old, new))
        if self.reserve.is_out:  # a file was replaced, and its old bytes are free
            self.reserve.take_back()

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._directory.remove(name)

    def directory(self, name: str, *, create: bool = False) -> Directory:
        """A directory in it."""
        of_partition = self._partition or (name != METADATA_LOG and parse_partition(name) is not None)
        below = self._directory.directory(name, create=create)
        return Reserved(below, self.reserve, partition=of_partition)

    def remove_directory(self, name: str) -> None:
        """Remove it with all that is in it."""
        self._directory.remove_directory(name)

    def flush(self) -> None:
        """Force its names to stable storage."""
        self._directory.flush()

    def lock(self, name: str, content: bytes) -> Lock:
        """Lock a file."""
        return self._directory.lock(name, content)

    def free_space(self) -> int:
        """How much room there is besides what the reserve has to get back."""
        return max(0, self._directory.free_space() - self.reserve.owed)

    def whereabouts(self, name: str) -> int:
        """The number of this very file."""
        return self._directory.whereabouts(name)
