"""A disk that loses, tears, rots and fills up, behind the port of `storage.files`.

What it keeps true:

* Without faults it answers as the real disk does (tests/storage/test_files_contract.py compares them).
* `kill` ends the process: what is visible stays. `power_cut` ends the machine: what was flushed stays, and of the
  rest what `medium` lets survive. Either way all handles and locks are void, and the directories may be opened again.
* Every operation that changes something is numbered, and a crash may strike before, within or after any of them.
* All chance comes from the one generator handed in: the same calls on the same seed are the same disk.
"""

import errno
import random
from collections.abc import Callable, Sequence

from tidelog.protocol.types import Buffer
from tidelog.storage import files
from tidelog.testing.simulation.faults import Crash, Faults, Killed, Operation, PowerCut, When
from tidelog.testing.simulation.medium import Medium, Node, StoredDirectory, StoredFile, error


class SimulatedDisk:
    """The disk of one host. The tests call this; the product sees only what `open_directory` returns."""

    def __init__(self, rng: random.Random, *, capacity: int = 1 << 40, by_page: bool = False) -> None:
        self.medium = Medium(capacity)
        self.by_page = by_page
        """Whether a power cut keeps any subset of pages, and not only a prefix of the writes."""
        self.whereabouts = 1
        """The number of every file; another one makes all of them copies."""
        self.broken = False
        """Whether it answers every request with an error, until it is repaired."""
        self.on_crash: Callable[[type[Crash]], None] | None = None
        """Told of each crash before anybody else, so that nothing else is heard of the dead."""
        self._rng = rng
        self._faults = Faults(self._crash)
        self._life = _Life(self, self.medium, self._faults, rng)

    def open_directory(self, path: str = "/data") -> files.Directory:
        """Mount that directory, which always exists; after a crash, this begins the next life."""
        if self._life.crash is not None:
            self._life.forgotten = True
            self._life = _Life(self, self.medium, self._faults, self._rng)
        self.medium.mount(path)
        return _Directory(self._life, path)

    # ── crashes ────────────────────────────────────────────────────────────────────────────────────

    def kill(self) -> None:
        """The process dies: everything visible stays."""
        self._crash(Killed)
        self._life.forgotten = True

    def power_cut(self) -> None:
        """The machine loses power: everything flushed stays, and some of the rest."""
        self._crash(PowerCut)
        self._life.forgotten = True

    def crash_at(self, nth: int, *, when: When = "before", crash: type[Crash] = PowerCut) -> None:
        """Let the n-th operation from now on raise `crash`, and all after it until the disk is opened again."""
        self._faults.crash_at(nth, when, crash)

    @property
    def operations(self) -> int:
        """How many operations have changed something so far."""
        return self._faults.operations

    def _crash(self, crash: type[Crash]) -> None:
        self._life.crash = crash
        self._faults.forget_crash()
        if issubclass(crash, PowerCut):
            self.medium.lose_power(self._rng, by_page=self.by_page)
        else:
            self.medium.kill()
        if self.on_crash is not None:
            self.on_crash(crash)

    # ── faults ─────────────────────────────────────────────────────────────────────────────────────

    def fail_flush(self, nth: int = 1, *, suffix: str = "") -> None:
        """Let the n-th flush from now on fail once, of a file or directory whose path ends in `suffix`.

        What it should have flushed looks clean then: it is read, the next flush succeeds, and a power cut takes it.
        """
        self._faults.fail_flush(nth, suffix)

    def forget_flush_failures(self) -> None:
        """The flushes that were told to fail and have not been tried will succeed."""
        self._faults.forget_flush_failures()

    def fail_reads(self, path: str, position: int = 0, length: int = 1) -> None:
        """Let every read of these bytes fail."""
        self.medium.file_at(path).unreadable.append(range(position, position + length))

    def rot(self, path: str, position: int, bit: int = 0) -> None:
        """Flip one bit of a file, silently and for good."""
        self.medium.file_at(path).rot(position, bit)

    @property
    def capacity(self) -> int:
        """Bytes that fit; may be changed at any time, also to less than what is used."""
        return self.medium.capacity

    @capacity.setter
    def capacity(self, capacity: int) -> None:
        self.medium.capacity = capacity

    # ── looking ────────────────────────────────────────────────────────────────────────────────────

    def stored(self, path: str) -> bytes:
        """What of a file surely survives: its bytes on the medium, if its names are there too."""
        return bytes(self.medium.file_at(path, stored=True).medium)

    def record(self) -> list[Operation]:
        """Note every operation from now on in the list that this returns."""
        trace: list[Operation] = []
        self._faults.trace = trace
        return trace


class _Life:
    """One life of the process on the disk: handles and locks belong to one, and are void with it."""

    __slots__ = ("crash", "disk", "faults", "forgotten", "locks", "medium", "rng")

    def __init__(self, disk: SimulatedDisk, medium: Medium, faults: Faults, rng: random.Random) -> None:
        self.disk = disk
        self.medium = medium
        self.faults = faults
        self.rng = rng
        self.locks: dict[StoredFile, _Lock] = {}
        self.crash: type[Crash] | None = None
        self.forgotten = False

    def require(self, path: str) -> None:
        """The dead do nothing: who was struck by a planned crash goes on being struck, until the next life."""
        if self.crash is not None:
            if self.forgotten:
                raise error(errno.EBADF, path)
            raise self.crash(f"before {path}")
        if self.disk.broken:
            raise error(errno.EIO, path)


class _File:
    """An open file."""

    __slots__ = ("_faults", "_file", "_life", "_medium", "_open", "_path")

    def __init__(self, life: _Life, file: StoredFile, path: str) -> None:
        self._life = life
        self._medium = life.medium
        self._faults = life.faults
        self._file = file
        self._path = path
        self._open = True
        file.handles += 1

    def _require(self) -> None:
        self._life.require(self._path)
        if not self._open:
            raise error(errno.EBADF, self._path)

    def size(self) -> int:
        self._require()
        return self._file.size

    def read_at(self, position: int, length: int) -> bytes:
        self._require()
        if position < 0 or length < 0:
            raise error(errno.EINVAL, self._path)
        for bad in self._file.unreadable:
            if bad.start < position + length and position < bad.stop:
                raise error(errno.EIO, self._path)
        return self._file.read(position, length)

    def write_at(self, position: int, *buffers: Buffer) -> None:
        if not buffers:
            return
        self._require()
        data = b"".join(buffers)
        if position < 0:
            raise error(errno.EINVAL, self._path)
        self._faults.begin("write", self._path, position, len(data))
        if data and self._faults.within():
            data = data[: self._life.rng.randrange(len(data))]
        if self._medium.write(self._file, position, data) < len(data):
            raise error(errno.ENOSPC, self._path)
        self._faults.end()

    def truncate(self, size: int) -> None:
        self._require()
        if size < 0:
            raise error(errno.EINVAL, self._path)
        self._faults.begin("truncate", self._path, size)
        self._medium.truncate(self._file, size)
        self._faults.end()

    def allocate(self, size: int) -> None:
        self._require()
        self._faults.begin("allocate", self._path, size)
        if not self._medium.allocate(self._file, size):
            raise error(errno.ENOSPC, self._path)
        self._faults.end()

    def flush(self) -> None:
        self._require()
        self._faults.begin("flush", self._path)
        if self._faults.flush_fails(self._path):
            self._file.flush_in_vain(self._life.rng)
            raise error(errno.EIO, self._path)
        self._file.flush()
        self._faults.end()

    def close(self) -> None:
        if self._open and self._life.crash is None:
            self._medium.close(self._file)
        self._open = False


class _Lock:
    """An exclusive lock on a file."""

    __slots__ = ("_file", "_life")

    def __init__(self, life: _Life, file: StoredFile) -> None:
        self._life = life
        self._file = file
        life.locks[file] = self

    def release(self) -> None:
        if self._life.locks.get(self._file) is self:
            del self._life.locks[self._file]


class _Directory:
    """A directory by its path: renamed by another name, it is gone for this object."""

    __slots__ = ("_faults", "_life", "_medium", "_path")

    def __init__(self, life: _Life, path: str) -> None:
        self._life = life
        self._medium = life.medium
        self._faults = life.faults
        self._path = path

    @property
    def path(self) -> str:
        return self._path

    def _here(self) -> StoredDirectory:
        self._life.require(self._path)
        return self._medium.directory_at(self._path)

    def _at(self, name: str) -> str:
        assert files.is_name(name), f"{name!r} is no name in {self._path}"
        return f"{self._path}/{name}"

    def _entry(self, name: str) -> Node:
        self._life.require(self._path)
        return self._medium.at(self._at(name))

    def _change(self, what: str, name: str, *changes: tuple[str, Node | None]) -> None:
        """Change names as one numbered operation."""
        directory = self._here()
        self._faults.begin(what, self._at(name), *(other for other, _ in changes if other != name))
        self._medium.change(directory, *changes)
        self._faults.end()

    def names(self) -> Sequence[str]:
        return sorted(self._here().entries)

    def exists(self, name: str) -> bool:
        self._life.require(self._path)
        try:
            self._medium.at(self._at(name))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def is_directory(self, name: str) -> bool:
        return self.exists(name) and isinstance(self._entry(name), StoredDirectory)

    def size_of(self, name: str) -> int:
        self._life.require(self._path)
        return self._medium.file_at(self._at(name)).size

    def open(self, name: str, *, create: bool = False) -> files.File:
        if create and name not in self._here().entries:
            self._change("create", name, (name, StoredFile()))
        self._life.require(self._path)
        return _File(self._life, self._medium.file_at(self._at(name)), self._at(name))

    def rename(self, old: str, new: str) -> None:
        node = self._entry(old)
        replaced = self._here().entries.get(new)
        if replaced is not None and replaced is not node:
            if isinstance(node, StoredFile) and isinstance(replaced, StoredDirectory):
                raise error(errno.EISDIR, self._at(new))
            if isinstance(node, StoredDirectory) and isinstance(replaced, StoredFile):
                raise error(errno.ENOTDIR, self._at(new))
            if isinstance(replaced, StoredDirectory) and replaced.entries:
                raise error(errno.ENOTEMPTY, self._at(new))
        self._change("rename", old, (old, None), (new, node))

    def remove(self, name: str) -> None:
        if isinstance(self._entry(name), StoredDirectory):
            raise error(errno.EISDIR, self._at(name))
        self._change("remove", name, (name, None))

    def directory(self, name: str, *, create: bool = False) -> files.Directory:
        if create and name not in self._here().entries:
            self._change("make directory", name, (name, StoredDirectory()))
        self._life.require(self._path)
        self._medium.directory_at(self._at(name))
        return _Directory(self._life, self._at(name))

    def remove_directory(self, name: str) -> None:
        below = self.directory(name)
        # A directory has no order that one may count on: what a crash leaves may be any part.
        names = list(below.names())
        self._life.rng.shuffle(names)
        for one in names:
            if below.is_directory(one):
                below.remove_directory(one)
            else:
                below.remove(one)
        self._change("remove directory", name, (name, None))

    def flush(self) -> None:
        directory = self._here()
        self._faults.begin("flush directory", self._path)
        if self._faults.flush_fails(self._path):
            self._medium.flush_in_vain(directory)
            raise error(errno.EIO, self._path)
        self._medium.flush(directory)
        self._faults.end()

    def lock(self, name: str, content: bytes) -> files.Lock:
        file = self.open(name, create=True)
        try:
            node = self._medium.file_at(self._at(name))
            if node in self._life.locks:
                raise error(errno.EWOULDBLOCK, self._at(name))
            file.truncate(0)
            try:
                file.write_at(0, content)
            except OSError as full:
                if full.errno != errno.ENOSPC:
                    raise
                file.truncate(0)
        finally:
            file.close()
        return _Lock(self._life, node)

    def free_space(self) -> int:
        self._here()
        return max(0, self._medium.capacity - self._medium.used)

    def whereabouts(self, name: str) -> int:
        self.size_of(name)
        return self._life.disk.whereabouts
