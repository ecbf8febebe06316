"""What a simulated medium holds, beside what its users see: the difference is what a power cut may take.

What it keeps true (docs/adr/0040):

* A file is its visible bytes, its bytes on the medium, and in order the writes and truncations in between.
* A directory is its visible names and its names on the medium; the changes in between are in one journal for the
  whole medium, in order.
* What was flushed is on the medium. Of the rest a power cut keeps a prefix: per file of its writes, the next one
  torn; for names a prefix of the journal. A write may touch a page, a sector or a byte, a truncation all or nothing.
* A flush that failed has written some pages and forgotten the others: they look clean, and are read until the power
  goes. Names are metadata, which a recovering process can only flush and not rewrite: they stay in the journal, but no
  flush in the same life brings them further.
"""

import errno
import os
import random
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

from tidelog.storage.names import NAME_MAX

SECTOR = 512
PAGE = 4096


class Write(NamedTuple):
    """Bytes that were written and not flushed."""

    position: int
    data: bytes


class Truncation(NamedTuple):
    """A size that was set and not flushed."""

    size: int


class StoredFile:
    """One file (an inode): it outlives its names while somebody has it open."""

    __slots__ = ("allocated", "handles", "medium", "names", "unflushed", "unreadable", "visible")

    def __init__(self) -> None:
        self.visible = bytearray()
        self.allocated = 0
        """The size that it has at least: zeros, which no memory is spent on."""
        self.medium = bytearray()
        self.unflushed: list[Write | Truncation] = []
        self.names = 0
        self.handles = 0
        self.unreadable: list[range] = []

    @property
    def size(self) -> int:
        """The visible size."""
        return max(len(self.visible), self.allocated)

    def read(self, position: int, length: int) -> bytes:
        """The visible bytes."""
        found = bytes(memoryview(self.visible)[position : position + length])
        return found + bytes(max(0, min(position + length, self.allocated) - position - len(found)))

    def write(self, position: int, data: bytes) -> None:
        """Make the bytes visible; they are on the medium after the next flush."""
        if data:
            _overlay(self.visible, position, data)
            self.unflushed.append(Write(position, data))

    def truncate(self, size: int) -> None:
        """Set the visible size."""
        self.allocated = min(self.allocated, size)
        if len(self.visible) <= size == self.allocated:
            return
        _resize(self.visible, size)
        self.unflushed.append(Truncation(size))

    def flush(self) -> None:
        """Bring to the medium what is missing there: its cost is that of the difference, not of the file."""
        for operation in self.unflushed:
            self._apply(operation)
        self.unflushed.clear()

    def flush_in_vain(self, rng: random.Random) -> None:
        """Some pages reach the medium, at least one does not, and all are held to be clean from now on."""
        pages = self._unflushed_pages()
        reached = {page: rng.choice((0, len(self.unflushed))) for page in pages}
        if pages:
            reached[rng.choice(pages)] = 0
        self._apply_by_page(len(self.unflushed), reached)
        self.unflushed.clear()

    def lose_power(self, rng: random.Random) -> None:
        """Keep a prefix of what was not flushed, and perhaps a piece of the write after it."""
        count = rng.randint(0, len(self.unflushed))
        for operation in self.unflushed[:count]:
            self._apply(operation)
        if count < len(self.unflushed):
            self._tear(self.unflushed[count], rng)
        self._restart()

    def lose_power_by_page(self, rng: random.Random) -> None:
        """Keep of every page what it was at some moment since the last flush, each page at its own.

        A truncation is a barrier: what was written behind one that is lost is lost as well.
        """
        truncations = [n for n, operation in enumerate(self.unflushed) if isinstance(operation, Truncation)]
        count = rng.choice([*truncations, len(self.unflushed)])
        reached = {page: rng.randint(0, count) for page in self._unflushed_pages()}
        self._apply_by_page(count, reached)
        self._restart()

    def rot(self, position: int, bit: int) -> None:
        """Flip a bit, wherever that byte is."""
        flipped = bytes([self.visible[position] ^ (1 << bit)])
        if self.unflushed:
            self.unflushed.append(Write(position, flipped))
        if position < len(self.medium):
            self.medium[position] ^= 1 << bit
        self.visible[position : position + 1] = flipped

    def _apply(self, operation: Write | Truncation) -> None:
        if isinstance(operation, Write):
            _overlay(self.medium, operation.position, operation.data)
        else:
            _resize(self.medium, operation.size)

    def _tear(self, operation: Write | Truncation, rng: random.Random) -> None:
        if isinstance(operation, Truncation):
            return
        position, data = operation
        end = rng.randint(position, position + len(data))
        if rng.random() < 0.5:
            end = max(position, end // SECTOR * SECTOR)
        if end > position:
            _overlay(self.medium, position, data[: end - position])
        # The size is journaled before the data: the rest, and later writes with it, may be there as zeros.
        size = rng.choice((0, position + len(data), len(self.visible)))
        if size > len(self.medium):
            _resize(self.medium, size)

    def _unflushed_pages(self) -> list[int]:
        pages: dict[int, None] = {}
        for operation in self.unflushed:
            if isinstance(operation, Write):
                pages.update((page, None) for page, _, _ in _pieces(operation))
        return list(pages)

    def _apply_by_page(self, count: int, reached: Mapping[int, int]) -> None:
        """Apply the first `count` operations, of each page only those before the number that reached it."""
        for number, operation in enumerate(self.unflushed[:count]):
            if isinstance(operation, Truncation):
                self._apply(operation)
                continue
            for page, position, piece in _pieces(operation):
                if number < reached[page]:
                    _overlay(self.medium, position, piece)

    def _restart(self) -> None:
        self.visible = bytearray(self.medium)
        self.unflushed.clear()


class StoredDirectory:
    """One directory (an inode): the visible names, and those on the medium."""

    __slots__ = ("entries", "medium", "names")

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        self.medium: dict[str, Node] = {}
        self.names = 0


Node: TypeAlias = StoredFile | StoredDirectory
Changes: TypeAlias = tuple[tuple[str, Node | None], ...]
"""What becomes of some names of one directory, all at once: a file, a directory, or nothing."""


class Medium:
    """The tree of all directories and files, the journal of the names that were not flushed, and the space.

    Space is the sum of visible sizes: a hole takes its size, and a removed file gives it back at once, or when
    the last handle is closed.
    """

    def __init__(self, capacity: int) -> None:
        self.root = StoredDirectory()
        self.journal: list[tuple[StoredDirectory, Changes]] = []
        self.capacity = capacity
        self.used = 0
        self._deaf: dict[StoredDirectory, None] = {}

    def at(self, path: str, *, stored: bool = False) -> Node:
        """What has that path, visibly or on the medium."""
        node: Node = self.root
        for name in parts(path):
            if not isinstance(node, StoredDirectory):
                raise error(errno.ENOTDIR, path)
            below = (node.medium if stored else node.entries).get(name)
            if below is None:
                raise error(errno.ENOENT, path)
            node = below
        return node

    def file_at(self, path: str, *, stored: bool = False) -> StoredFile:
        """The file that has that path."""
        node = self.at(path, stored=stored)
        if isinstance(node, StoredDirectory):
            raise error(errno.EISDIR, path)
        return node

    def directory_at(self, path: str) -> StoredDirectory:
        """The directory that has that path."""
        node = self.at(path)
        if isinstance(node, StoredFile):
            raise error(errno.ENOTDIR, path)
        return node

    def mount(self, path: str) -> None:
        """Make that directory exist, as one that was always there."""
        directory = self.root
        for name in parts(path):
            below = directory.entries.get(name)
            if below is None:
                below = StoredDirectory()
                below.names = 1
                directory.entries[name] = directory.medium[name] = below
            assert isinstance(below, StoredDirectory), f"{path} leads over a file"
            directory = below

    def write(self, file: StoredFile, position: int, data: bytes) -> int:
        """Write what fits, and return how much that was."""
        size = file.size
        if position + len(data) > size:
            end = min(position + len(data), size + max(0, self.capacity - self.used))
            data = data[: max(0, end - position)]
        file.write(position, data)
        self.used += file.size - size
        return len(data)

    def truncate(self, file: StoredFile, size: int) -> None:
        """Set the visible size."""
        self.used += size - file.size
        file.truncate(size)

    def allocate(self, file: StoredFile, size: int) -> bool:
        """Let the file have that size at least; whether it fits. A power cut takes nothing of it."""
        more = max(0, size - file.size)
        if more > max(0, self.capacity - self.used):
            return False
        self.used += more
        file.allocated = max(file.allocated, size)
        return True

    def close(self, file: StoredFile) -> None:
        """One handle less."""
        file.handles -= 1
        self._reclaim(file)

    def change(self, directory: StoredDirectory, *changes: tuple[str, Node | None]) -> None:
        """Change names visibly and at once; they are on the medium after that directory's next flush."""
        for name, node in changes:
            if node is not None and len(name.encode()) > NAME_MAX:
                raise error(errno.ENAMETOOLONG, name)
        removed = []
        for name, node in changes:
            before = directory.entries.pop(name, None)
            if before is not None:
                before.names -= 1
                removed.append(before)
            if node is not None:
                directory.entries[name] = node
                node.names += 1
        for node in removed:
            self._reclaim(node)
        self.journal.append((directory, changes))

    def flush(self, directory: StoredDirectory) -> None:
        """Bring the names of one directory to the medium. A new directory is a name of the one above."""
        if directory in self._deaf:
            return
        for owner, changes in self.journal:
            if owner is directory:
                _apply_names(owner, changes)
        self.journal = [entry for entry in self.journal if entry[0] is not directory]

    def flush_in_vain(self, directory: StoredDirectory) -> None:
        """No flush of this directory has an effect in this life, although the next ones succeed."""
        self._deaf[directory] = None

    def kill(self) -> None:
        """All that is visible stays; nobody has anything open any more."""
        self._deaf.clear()
        for file in self.files():
            file.handles = 0
        self._count()

    def lose_power(self, rng: random.Random, *, by_page: bool) -> None:
        """Keep what was flushed and a part of the rest; all that is visible is then on the medium."""
        for owner, changes in self.journal[: rng.randint(0, len(self.journal))]:
            _apply_names(owner, changes)
        self.journal.clear()
        self._deaf.clear()
        for directory in _walk(self.root, stored=True):
            directory.entries = dict(directory.medium)
            for node in directory.entries.values():
                node.names = 1
        for file in self.files():
            file.handles = 0
            if by_page:
                file.lose_power_by_page(rng)
            else:
                file.lose_power(rng)
        self._count()

    def files(self) -> Iterator[StoredFile]:
        """Every file that has a visible name. None has two: a rename is one change, kept or lost as one."""
        for directory in _walk(self.root):
            for node in directory.entries.values():
                if isinstance(node, StoredFile):
                    yield node

    def _reclaim(self, node: Node) -> None:
        if isinstance(node, StoredFile) and not node.names and not node.handles:
            self.used -= node.size

    def _count(self) -> None:
        self.used = sum(file.size for file in self.files())


def parts(path: str) -> list[str]:
    """The names in a path."""
    return [part for part in path.split("/") if part]


def error(code: int, path: str) -> OSError:
    """What the system would raise."""
    return OSError(code, os.strerror(code), path)


def _apply_names(directory: StoredDirectory, changes: Changes) -> None:
    for name, node in changes:
        if node is None:
            directory.medium.pop(name, None)
        else:
            directory.medium[name] = node


def _walk(directory: StoredDirectory, *, stored: bool = False) -> Iterator[StoredDirectory]:
    yield directory
    for node in (directory.medium if stored else directory.entries).values():
        if isinstance(node, StoredDirectory):
            yield from _walk(node, stored=stored)


def _pieces(write: Write) -> Iterator[tuple[int, int, bytes]]:
    """A write cut at the borders of pages: page, position, bytes."""
    start, data = write
    position = start
    end = start + len(data)
    while position < end:
        page = position // PAGE
        following = min(end, (page + 1) * PAGE)
        yield page, position, data[position - start : following - start]
        position = following


def _overlay(content: bytearray, position: int, data: bytes) -> None:
    if position > len(content):
        _resize(content, position)
    content[position : position + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))
