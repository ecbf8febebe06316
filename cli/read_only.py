"""The disk for those who only look: `storage.files`, with every change refused.

What it keeps true: files are opened for reading only, so a directory without write permission is as good as
any; nothing is created, locked, cut or flushed, because no method here can (`EROFS`). A broker may be using
the directory meanwhile.
"""

import errno
import os
import stat
from collections.abc import Sequence
from typing import NoReturn, Self

from tidelog.protocol.types import Buffer
from tidelog.storage import files
from tidelog.storage.io.disk import whereabouts


class ReadOnlyFile:
    """An open file, as `storage.files.File`."""

    def __init__(self, path: str) -> None:
        self.path = path
        # Not blocking: a pipe that has a segment's name must not make us wait for its writer.
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            self.close()
            raise OSError(errno.EINVAL, "not a regular file", path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def size(self) -> int:
        """How many bytes the file has now."""
        return os.fstat(self._fd).st_size

    def read_at(self, position: int, length: int) -> bytes:
        """The bytes from `position` on: `length` of them, or fewer where the file ends."""
        parts = []
        while length and (found := os.pread(self._fd, length, position)):
            parts.append(found)
            position += len(found)
            length -= len(found)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Give the handle back."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def write_at(self, position: int, *buffers: Buffer) -> None:
        """Refused."""
        _refuse(self.path)

    def truncate(self, size: int) -> None:
        """Refused."""
        _refuse(self.path)

    def allocate(self, size: int) -> None:
        """Refused."""
        _refuse(self.path)

    def flush(self) -> None:
        """Refused."""
        _refuse(self.path)


class ReadOnlyDirectory:
    """A directory, as `storage.files.Directory`."""

    def __init__(self, path: str) -> None:
        self.path = path.rstrip("/") or "/"

    def _at(self, name: str) -> str:
        assert files.is_name(name), f"{name!r} is no name in {self.path}"
        return os.path.join(self.path, name)

    def names(self) -> Sequence[str]:
        """Every name in it, sorted."""
        return sorted(os.listdir(self.path))

    def exists(self, name: str) -> bool:
        """Whether there is a file or directory of that name."""
        return os.path.lexists(self._at(name))

    def is_directory(self, name: str) -> bool:
        """Whether that name is a directory."""
        return os.path.isdir(self._at(name))

    def size_of(self, name: str) -> int:
        """The size in bytes of that file."""
        return os.stat(self._at(name)).st_size

    def open(self, name: str, *, create: bool = False) -> ReadOnlyFile:
        """Open a file for reading."""
        if create:
            _refuse(self._at(name))
        return ReadOnlyFile(self._at(name))

    def directory(self, name: str, *, create: bool = False) -> "ReadOnlyDirectory":
        """The directory of that name."""
        if create:
            _refuse(self._at(name))
        return ReadOnlyDirectory(self._at(name))

    def free_space(self) -> int:
        """How many bytes may still be written to this disk."""
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize

    def whereabouts(self, name: str) -> int:
        """The number of this very file."""
        return whereabouts(self._at(name))

    def rename(self, old: str, new: str) -> None:
        """Refused."""
        _refuse(self._at(old))

    def remove(self, name: str) -> None:
        """Refused."""
        _refuse(self._at(name))

    def remove_directory(self, name: str) -> None:
        """Refused."""
        _refuse(self._at(name))

    def flush(self) -> None:
        """Refused."""
        _refuse(self.path)

    def lock(self, name: str, content: bytes) -> files.Lock:
        """Refused."""
        _refuse(self._at(name))


def _refuse(path: str) -> NoReturn:
    raise OSError(errno.EROFS, "opened to be looked at, not to be changed", path)
