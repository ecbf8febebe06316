"""The real disk behind `storage.files`, by positions and file descriptors.

What it keeps true:

* One call of the port is one system call where the kernel allows it: no buffer, no cache and no file offset of our own.
* A descriptor is never used after it was given back, not even by a flush that runs in a worker thread.
* All descriptors are closed on exec; a directory is a path, so it costs no descriptor.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import sys
import threading
from collections.abc import Sequence

from crc32c import crc32c

from tidelog.protocol.types import Buffer
from tidelog.storage import files

# POSIX promises 16 only; 1024 is what Linux and macOS have.
_BUFFERS_PER_CALL = os.sysconf("SC_IOV_MAX") if "SC_IOV_MAX" in os.sysconf_names else 16
if _BUFFERS_PER_CALL <= 0:  # "no limit" is -1
    _BUFFERS_PER_CALL = 1024

_GET_GENERATION = 0x80087601
"""Linux' FS_IOC_GETVERSION, where a long has 8 bytes: ext4, XFS and Btrfs answer it."""

_FILE_MODE = 0o640
_DIRECTORY_MODE = 0o750


def open_directory(path: str, *, create: bool = False) -> files.Directory:
    """The directory at `path`. Missing: `FileNotFoundError`, or made durably with its parents when `create`."""
    path = os.path.abspath(path)
    if create and not os.path.isdir(path):
        parent, name = os.path.split(path)
        above = open_directory(parent, create=True)
        below = above.directory(name, create=True)
        above.flush()
        return below
    _require_directory(path)
    return _Directory(path)


class _File:
    """An open file. Only `flush` may run in another thread than the rest."""

    __slots__ = ("_close_after_flush", "_fd", "_flushes", "_guard")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._guard = threading.Lock()
        self._flushes = 0
        self._close_after_flush = False

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read_at(self, position: int, length: int) -> bytes:
        found = os.pread(self._fd, length, position)
        if len(found) == length or not found:
            return found
        # Linux caps one read near 2 GiB and other systems may stop earlier: only an empty answer is the end.
        parts = [found]
        missing = length - len(found)
        position += len(found)
        while missing and (found := os.pread(self._fd, missing, position)):
            parts.append(found)
            missing -= len(found)
            position += len(found)
        return b"".join(parts)

    def write_at(self, position: int, *buffers: Buffer) -> None:
        if len(buffers) == 1:
            written = os.pwrite(self._fd, buffers[0], position)
            if written != len(buffers[0]):
                _write_rest(self._fd, position, buffers, written)
            return
        for first in range(0, len(buffers), _BUFFERS_PER_CALL):
            some = buffers[first : first + _BUFFERS_PER_CALL]
            written = os.pwritev(self._fd, some, position)
            size = sum(map(len, some))
            if written != size:
                size = _write_rest(self._fd, position, some, written)
            position += size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def allocate(self, size: int) -> None:
        before = self.size()
        if size <= before:
            return
        try:
            _allocate(self._fd, before, size - before)
        except OSError:
            os.ftruncate(self._fd, before)
            raise

    def flush(self) -> None:
        with self._guard:
            fd = self._fd
            if fd < 0:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            self._flushes += 1
        try:
            _flush_data(fd)
        finally:
            with self._guard:
                self._flushes -= 1
                last = self._close_after_flush and not self._flushes
            if last:
                os.close(fd)

    def close(self) -> None:
        with self._guard:
            fd, self._fd = self._fd, -1
            if self._flushes:
                # The number would go to the next file that is opened, and the flush would flush that one.
                self._close_after_flush = True
                return
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        """Whoever is cut off in the middle closes nothing; where its process goes on, as in tests, files must not stay open."""
        if self._fd >= 0:
            os.close(self._fd)


class _Lock:
    """A flock: the kernel lets go of it when the process dies, however it dies."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class _Directory:
    """A directory by its path: renamed by another name, it is gone for this object."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    @property
    def path(self) -> str:
        return self._path

    def _at(self, name: str) -> str:
        assert files.is_name(name), f"{name!r} is no name in {self._path}"
        return f"{self._path}/{name}"

    def names(self) -> Sequence[str]:
        return sorted(os.listdir(self._path))

    def exists(self, name: str) -> bool:
        return os.path.lexists(self._at(name))

    def is_directory(self, name: str) -> bool:
        return os.path.isdir(self._at(name))

    def size_of(self, name: str) -> int:
        status = os.stat(self._at(name))
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self._at(name))
        return status.st_size

    def open(self, name: str, *, create: bool = False) -> files.File:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return _File(os.open(self._at(name), flags, _FILE_MODE))

    def rename(self, old: str, new: str) -> None:
        os.rename(self._at(old), self._at(new))

    def remove(self, name: str) -> None:
        os.unlink(self._at(name))

    def directory(self, name: str, *, create: bool = False) -> files.Directory:
        path = self._at(name)
        if create:
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, _DIRECTORY_MODE)
        _require_directory(path)
        return _Directory(path)

    def remove_directory(self, name: str) -> None:
        shutil.rmtree(self._at(name))

    def flush(self) -> None:
        fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _flush_names(fd)
        finally:
            os.close(fd)

    def lock(self, name: str, content: bytes) -> files.Lock:
        fd = os.open(self._at(name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Only now: until it is ours, the content is the holder's.
            os.ftruncate(fd, 0)
            try:
                _write_rest(fd, 0, (content,), 0)
            except OSError as error:  # a full disk keeps nobody from starting
                if error.errno not in files.FULL:
                    raise
                os.ftruncate(fd, 0)
        except BaseException:
            os.close(fd)
            raise
        return _Lock(fd)

    def free_space(self) -> int:
        status = os.statvfs(self._path)
        return status.f_bavail * status.f_frsize

    def whereabouts(self, name: str) -> int:
        return whereabouts(self._at(name))


def whereabouts(path: str) -> int:
    """See `Directory.whereabouts`."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        which = status.st_dev, status.st_ino, _generation(fd, status), status.st_mtime_ns
        return crc32c(b"%d %d %d %d" % which)
    finally:
        os.close(fd)


def _generation(fd: int, status: os.stat_result) -> int:
    """What tells a file from one that had its inode's number before; 0 where the file system does not say."""
    if sys.platform == "darwin":
        return int(status.st_birthtime * 1_000_000)
    answer = bytearray(8)
    try:
        fcntl.ioctl(fd, _GET_GENERATION, answer)
    except OSError:
        return 0
    return int.from_bytes(answer[:4], sys.byteorder)


def _write_rest(fd: int, position: int, buffers: Sequence[Buffer], written: int) -> int:
    """Continue a short write; returns the size of the whole. A full disk answers the second call with its error."""
    end = position
    start = position + written
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        begin, end = end, end + view.nbytes
        while start < end:
            more = os.pwrite(fd, view[start - begin :], start)
            if not more:
                raise OSError(errno.EIO, f"wrote {start - position} bytes and then none")
            start += more
    return end - position


def _write_zeros(fd: int, position: int, length: int) -> None:
    """For file systems that give no room but by writing. One that compresses gives less than is asked for."""
    zeros = bytes(1 << 20)
    for at in range(position, position + length, len(zeros)):
        _write_rest(fd, at, (zeros[: position + length - at],), 0)


def _require_directory(path: str) -> None:
    if not stat.S_ISDIR(os.stat(path).st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)


if sys.platform == "darwin":

    def _flush_data(fd: int) -> None:
        # fsync(2) of macOS: "the drive may not write the data to the platters"; F_FULLFSYNC asks it to.
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in {errno.ENOTSUP, errno.EINVAL, errno.ENOTTY}:
                raise
            os.fsync(fd)  # a file system without it, such as a network's

    _flush_names = _flush_data
    _allocate = _write_zeros
else:

    def _allocate(fd: int, position: int, length: int) -> None:
        try:
            os.posix_fallocate(fd, position, length)
        except OSError as error:
            if error.errno not in {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}:
                raise
            _write_zeros(fd, position, length)

    # fdatasync also writes the size when it grew; what it leaves out is the times.
    def _flush_data(fd: int) -> None:
        os.fdatasync(fd)

    def _flush_names(fd: int) -> None:
        os.fsync(fd)
