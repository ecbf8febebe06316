"""The `.snapshot` files of one partition's directory: producer state as of the offset in the name.

    00000000000000012345.snapshot     all batches below offset 12345 are in it (exclusive: KAFKA-14618)

They only save time: state is what the log says, and a snapshot spares reading the log from its start. What
this keeps true (docs/STORAGE.md, 6; I-9, I-34, I-35):

* A file is whole or absent after any crash (KAFKA-9892: written beside, flushed, renamed, names flushed).
* No snapshot above the log's end is ever loaded: it holds batches that the log has lost.
* One that cannot be read, be it that its sectors cannot, is reported and removed, and an older one is used: it can
  never become good again, and left in place it would be reported at every start and hide the next one that rots.
* One from a newer tidelog is neither used nor removed: the start is refused.
"""

import errno
from collections.abc import Iterable
from typing import Final, NamedTuple

from tidelog.protocol.errors import CorruptSnapshot, UnsupportedFormat
from tidelog.protocol.types import Offset
from tidelog.storage.files import Directory, read_whole, write_whole
from tidelog.storage.producers import Producers

SUFFIX: Final = ".snapshot"
_DIGITS: Final = 20


class Loaded(NamedTuple):
    """Producer state to begin with: replay the log's headers from `offset` on into it."""

    producers: Producers
    offset: Offset
    problems: tuple[CorruptSnapshot, ...]
    """What was found unreadable and removed, newest first: to be reported."""


def snapshot_name(offset: Offset) -> str:
    """The name of the snapshot that holds everything below that offset."""
    return f"{offset:0{_DIGITS}d}{SUFFIX}"


def snapshot_offsets(directory: Directory) -> list[Offset]:
    """The offsets of all snapshots there are, oldest first."""
    stems = [name.removesuffix(SUFFIX) for name in directory.names() if name.endswith(SUFFIX)]
    return sorted(int(stem) for stem in stems if len(stem) == _DIGITS and stem.isdecimal() and stem.isascii())


def save(directory: Directory, producers: Producers, offset: Offset) -> None:
    """Write the state as of that offset, durably."""
    write_whole(directory, snapshot_name(offset), producers.snapshot())


def load_at(directory: Directory, offset: Offset, log_start: Offset) -> Loaded:
    """The newest readable state at or below `offset`, else an empty one at the log's start.

    A snapshot below the log's start is not used: the batches that would lead on from it are gone.
    """
    problems: list[CorruptSnapshot] = []
    for at in reversed(snapshot_offsets(directory)):
        if not log_start <= at <= offset:
            continue
        name = snapshot_name(at)
        try:
            return Loaded(Producers.load(_read(directory, name)), at, tuple(problems))
        except CorruptSnapshot as problem:
            problems.append(CorruptSnapshot(f"{directory.path}/{name}: {problem}; removed"))
            directory.remove(name)
        except UnsupportedFormat as error:
            raise UnsupportedFormat(f"{directory.path}/{name}: {error}") from error
    return Loaded(Producers(), log_start, tuple(problems))


def _read(directory: Directory, name: str) -> bytes:
    try:
        return read_whole(directory, name)
    except OSError as error:
        if error.errno != errno.EIO:
            raise  # of files there are too many, say: it may be as good as ever
        raise CorruptSnapshot(f"{error.strerror}") from error


def remove_above(directory: Directory, log_end: Offset) -> list[Offset]:
    """Remove every snapshot of a state that the log does not reach; before anything is loaded."""
    return _remove(directory, [at for at in snapshot_offsets(directory) if at > log_end])


def remove_unneeded(directory: Directory, segment_bases: Iterable[Offset]) -> list[Offset]:
    """Keep one per segment, named by its base, and the newest; remove the others."""
    needed = frozenset(segment_bases)
    return _remove(directory, [at for at in snapshot_offsets(directory)[:-1] if at not in needed])


def _remove(directory: Directory, offsets: list[Offset]) -> list[Offset]:
    for at in reversed(offsets):  # highest first: a crash leaves a prefix
        directory.remove(snapshot_name(at))
    # A name that came back after a loss of power, when the log has been truncated and has grown past it
    # again, would bring back batches that are not in the log: a retry of one of them would be lost.
    if offsets:
        directory.flush()
    return offsets
