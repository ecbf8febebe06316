"""The real disk of a node that may die without its process, and that may be full.

What it keeps true:

* A dead node writes nothing any more, whatever of it is still running, and its locks are free.
* A full disk answers as a real one: what would make a file longer fails with ENOSPC, after as much of it as fits;
  what overwrites, reads, renames or removes goes on; what was removed or cut off makes room again.
"""

import errno
import os
import threading
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tidelog.protocol.types import Buffer
from tidelog.storage import files, io

IsFull: TypeAlias = Callable[[], bool]


class Disk:
    """One node's disk. `mount` begins a life on it, `kill` ends that."""

    def __init__(self, path: str, is_full: IsFull | None = None) -> None:
        self.path = path
        self.full = False
        """Whether nothing fits any more."""
        self._is_full = is_full or (lambda: self.full)
        self._life = Life(self._is_full)

    def mount(self) -> files.Directory:
        """Its directory, for a process that begins now."""
        self._life = Life(self._is_full)
        return WatchedDirectory(io.open_directory(self.path, create=True), self._life)

    def kill(self) -> None:
        """The process is dead: everything it has open is closed."""
        self._life.end()


class Life:
    """What one process has open, and how much room there is for it."""

    def __init__(self, is_full: IsFull) -> None:
        self._is_full = is_full
        self._guard = threading.Lock()
        self._freed = 0
        self._was_full = False
        self._dead = False
        self._open: dict[object, Callable[[], None]] = {}

    def opened(self, handle: object, close: Callable[[], None]) -> None:
        """Close that when this life ends."""
        with self._guard:
            self._open[handle] = close

    def closed(self, handle: object) -> None:
        """That has been closed by itself."""
        with self._guard:
            self._open.pop(handle, None)

    def end(self) -> None:
        """Nothing is done any more."""
        with self._guard:
            self._dead = True
            closing, self._open = list(self._open.values()), {}
        for close in closing:
            close()

    def require(self, path: str) -> None:
        """The dead do nothing."""
        if self._dead:
            raise _error(errno.EBADF, path)

    def has_room(self) -> bool:
        """Whether everything fits: what every write of every node asks, so it takes no lock while nothing changes."""
        if self._is_full() == self._was_full:
            return not self._was_full
        with self._guard:
            return not self._sees_full()

    def room_for(self, more: int) -> int:
        """How much of so many more bytes fits; that much is taken."""
        with self._guard:
            if not self._sees_full():
                return more
            fits = min(more, self._freed)
            self._freed -= fits
            return fits

    def freed(self, fewer: int) -> None:
        """So many bytes are gone."""
        with self._guard:
            if self._sees_full():
                self._freed += fewer

    def room(self, really: int) -> int:
        """What is free, where so much really is."""
        with self._guard:
            return min(self._freed, really) if self._sees_full() else really

    def _sees_full(self) -> bool:
        full = self._is_full()
        if full != self._was_full:
            self._was_full, self._freed = full, 0
        return full


class _File:
    """An open file."""

    __slots__ = ("_file", "_life", "_path")

    def __init__(self, file: files.File, path: str, life: Life) -> None:
        self._file = file
        self._path = path
        self._life = life
        life.opened(self, file.close)

    def size(self) -> int:
        return self._file.size()

    def read_at(self, position: int, length: int) -> bytes:
        return self._file.read_at(position, length)

    def write_at(self, position: int, *buffers: Buffer) -> None:
        life = self._life
        life.require(self._path)
        if life.has_room():
            self._file.write_at(position, *buffers)
            return
        written = sum(map(len, buffers))
        more = position + written - self._file.size() if written else 0
        if more > 0 and (fits := life.room_for(more)) < more:
            whole = b"".join(buffers)
            self._file.write_at(position, whole[: max(0, len(whole) - more + fits)])
            raise _error(errno.ENOSPC, self._path)
        self._file.write_at(position, *buffers)

    def truncate(self, size: int) -> None:
        self._life.require(self._path)
        fewer = self._file.size() - size
        self._file.truncate(size)
        if fewer > 0:
            self._life.freed(fewer)

    def allocate(self, size: int) -> None:
        self._life.require(self._path)
        more = size - self._file.size()
        if more > 0 and (fits := self._life.room_for(more)) < more:
            self._life.freed(fits)
            raise _error(errno.ENOSPC, self._path)
        self._file.allocate(size)

    def flush(self) -> None:
        self._life.require(self._path)
        self._file.flush()

    def close(self) -> None:
        self._life.closed(self)
        self._file.close()


class _Lock:
    """A lock that the dead let go of."""

    __slots__ = ("_life", "_lock")

    def __init__(self, lock: files.Lock, life: Life) -> None:
        self._lock = lock
        self._life = life
        life.opened(self, lock.release)

    def release(self) -> None:
        self._life.closed(self)
        self._lock.release()


class WatchedDirectory:
    """A directory of a life."""

    __slots__ = ("_directory", "_life")

    def __init__(self, directory: files.Directory, life: Life) -> None:
        self._directory = directory
        self._life = life

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

    def open(self, name: str, *, create: bool = False) -> files.File:
        """Open a file. A disk that is full has room for names."""
        self._life.require(self.path)
        return _File(self._directory.open(name, create=create), f"{self.path}/{name}", self._life)

    def rename(self, old: str, new: str) -> None:
        """Give it another name."""
        self._life.require(self.path)
        replaced = self._size_of_file(new)
        self._directory.rename(old, new)
        self._life.freed(replaced)

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._life.require(self.path)
        size = self._size_of_file(name)
        self._directory.remove(name)
        self._life.freed(size)

    def directory(self, name: str, *, create: bool = False) -> files.Directory:
        """A directory in it."""
        self._life.require(self.path)
        return WatchedDirectory(self._directory.directory(name, create=create), self._life)

    def remove_directory(self, name: str) -> None:
        """Remove it with all that is in it."""
        self._life.require(self.path)
        size = _size_of_all(self._directory.directory(name))
        self._directory.remove_directory(name)
        self._life.freed(size)

    def flush(self) -> None:
        """Force its names to stable storage."""
        self._life.require(self.path)
        self._directory.flush()

    def lock(self, name: str, content: bytes) -> files.Lock:
        """Lock a file."""
        self._life.require(self.path)
        return _Lock(self._directory.lock(name, content), self._life)

    def free_space(self) -> int:
        """How much room there is."""
        return self._life.room(self._directory.free_space())

    def whereabouts(self, name: str) -> int:
        """The number of this very file."""
        return self._directory.whereabouts(name)

    def _size_of_file(self, name: str) -> int:
        there = self._directory.exists(name) and not self._directory.is_directory(name)
        return self._directory.size_of(name) if there else 0


def _size_of_all(directory: files.Directory) -> int:
    return sum(
        _size_of_all(directory.directory(name)) if directory.is_directory(name) else directory.size_of(name)
        for name in directory.names()
    )


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
