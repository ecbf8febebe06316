"""The port to the disk: what a directory and a file promise, and nothing of how.

`storage.io` keeps these promises with the real disk, `testing.simulation.disk` with a disk that
loses, tears, rots and fills up. What they promise:

* A write is visible to every later read at once, and survives the death of the process.
* It survives the loss of power only after a `flush` of the file that *began* after the write.
* A created, renamed or removed name survives the loss of power only after `flush` of the directory it is in;
  a new directory is itself a name in the one above it.
* `rename` is atomic: at every moment, and after any crash, the new name is what it was or what was renamed.
* `remove_directory` is not: a crash may leave part of what was in it.
* A `flush` that failed once proves nothing when it succeeds later (fsyncgate): whoever sees
  `OSError` from a flush must stop the process and let recovery rewrite what it trusts.
* `write_at` writes all bytes or raises `OSError`; after an error any prefix of them may be there.
"""

import errno
from collections.abc import Sequence
from typing import Protocol

from tidelog.protocol.errors import DiskFull, StorageError
from tidelog.protocol.types import Buffer


class File(Protocol):
    """An open file: bytes at positions. The caller knows and keeps its own end position."""

    def size(self) -> int:
        """How many bytes the file has."""
        ...

    def read_at(self, position: int, length: int) -> bytes:
        """The bytes from `position` on: `length` of them, or fewer where the file ends."""
        ...

    def write_at(self, position: int, *buffers: Buffer) -> None:
        """Write all buffers one behind the other from `position` on."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        ...

    def allocate(self, size: int) -> None:
        """Let the file be `size` bytes at least, zeros where it grows, all of which have their room on the disk.

        Without that room: `OSError`, and the file is what it was.
        """
        ...

    def flush(self) -> None:
        """Force to stable storage all that was written before this call began (may run in a worker thread)."""
        ...

    def close(self) -> None:
        """Give the handle back. Nothing is flushed by this."""
        ...


class Lock(Protocol):
    """An exclusive lock on a file, held until `release` or the death of the process."""

    def release(self) -> None:
        """Let somebody else have it."""
        ...


class Directory(Protocol):
    """A directory: names of files and of further directories."""

    @property
    def path(self) -> str:
        """Where it is, for messages."""
        ...

    def names(self) -> Sequence[str]:
        """Every name in it, sorted."""
        ...

    def exists(self, name: str) -> bool:
        """Whether there is a file or directory of that name."""
        ...

    def is_directory(self, name: str) -> bool:
        """Whether that name is a directory."""
        ...

    def size_of(self, name: str) -> int:
        """The size in bytes of that file, without opening it."""
        ...

    def open(self, name: str, *, create: bool = False) -> File:
        """Open a file for reading and writing. Missing: `FileNotFoundError`, or made when `create`."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Give a file or directory another name, in place of what had that name."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file."""
        ...

    def directory(self, name: str, *, create: bool = False) -> "Directory":
        """The directory of that name. Missing: `FileNotFoundError`, or made when `create`."""
        ...

    def remove_directory(self, name: str) -> None:
        """Remove a directory and all that is in it."""
        ...

    def flush(self) -> None:
        """Force the names in it to stable storage (may run in a worker thread)."""
        ...

    def lock(self, name: str, content: bytes) -> Lock:
        """Lock that file exclusively and leave `content` in it, or nothing where it does not fit.

        Held by another process: `BlockingIOError`.
        """
        ...

    def free_space(self) -> int:
        """How many bytes may still be written to this disk."""
        ...

    def whereabouts(self, name: str) -> int:
        """A number for this very file as it was written last: a copy of it has another one, there or elsewhere."""
        ...


def is_name(name: str) -> bool:
    """Whether this names something in a directory, and not a path that leads out of it."""
    return name not in {"", ".", ".."} and "/" not in name and "\0" not in name


def read_whole(directory: Directory, name: str) -> bytes:
    """All bytes of a small file."""
    file = directory.open(name)
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


def write_whole(directory: Directory, name: str, content: Buffer) -> None:
    """Replace a small file so that after any crash it is whole: the old one or the new one.

    Written beside it, flushed, renamed over it, the directory flushed (docs/STORAGE.md, 1). Raises
    `NoRoom` where it does not fit: then nothing has changed. Any other `OSError` proves nothing.
    """
    temporary = name + TEMPORARY
    try:
        file = directory.open(temporary, create=True)
        try:
            file.truncate(0)
            file.write_at(0, content)
        except OSError:
            file.close()
            raise
    except OSError as error:
        if error.errno not in FULL:
            raise
        if directory.exists(temporary):
            directory.remove(temporary)
        raise NoRoom(error.errno, f"no room for {len(content)} bytes", f"{directory.path}/{name}") from error
    try:
        file.flush()
    finally:
        file.close()
    directory.rename(temporary, name)
    directory.flush()


class NoRoom(OSError):
    """A file could not be replaced for want of space: it is what it was, and nothing is lost."""


FULL = (errno.ENOSPC, errno.EDQUOT)
"""What a disk without room answers to a write; in answer to a flush it means that bytes are lost."""


def refusal(message: str, error: OSError) -> DiskFull | StorageError:
    """What becomes of an error that is no reason to end the process."""
    return DiskFull(message) if error.errno in FULL else StorageError(message)


TEMPORARY = ".tmp"
"""The ending of a file that is being written beside the one that it will replace."""
