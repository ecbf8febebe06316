"""Put a compacted segment in the place of those that it was made of, so that a crash leaves one or the other.

    write    X.log.cleaned, X.index.tmp, X.timeindex.tmp      (`compaction`; undone at a start)
    commit   flush X.log.cleaned; rename it to X.log.swap; flush the directory    from here on a start finishes it
    adopt    in memory the log has the new segment; its file is open, whatever its name
    finish   remove the old indexes; rename the old logs to .deleted; flush the directory;
             rename X.log.swap to X.log and the new indexes to theirs; flush the directory
    settle   the new segment is one like all others; the old files wait to be removed

`commit` and `finish` may run in a worker thread, the others belong to the event loop. What it keeps true
(docs/STORAGE.md, 10.9; I-41):

* There is one new file for a group of old ones, so its renaming to `.swap` is the whole decision. Groups are put in
  place in the order of the log: a tombstone never goes before the records that it deleted.
* An old index never stands beside a new log, and no old segment beside a new one that covers it: each is gone
  durably before the new log gets its name.
"""

from collections.abc import Iterator
from enum import Enum, auto
from typing import Final

from tidelog.protocol.errors import DamagedLog
from tidelog.protocol.types import Offset
from tidelog.storage.cleaned_segment import CLEANED
from tidelog.storage.cleaning import Cleaned
from tidelog.storage.files import TEMPORARY, Directory, File
from tidelog.storage.log import Log
from tidelog.storage.open_segments import OpenSegments
from tidelog.storage.segment import INDEX, LOG, RETIRED, TIME_INDEX, Segment, segment_name

SWAP: Final = ".swap"
"""The ending of a compacted segment that is whole, and will be one of the log's."""


class State(Enum):
    """How far a swap has come."""

    WRITTEN = auto()
    COMMITTED = auto()
    ADOPTED = auto()
    FINISHED = auto()
    SETTLED = auto()


class Swap:
    """One group's. The methods are called in their order, each once."""

    def __init__(self, log: Log, cleaned: Cleaned) -> None:
        self.state = State.WRITTEN
        self._log = log
        self._directory = log.directory
        self._cleaned = cleaned
        self._new = Segment(
            log.directory, cleaned.base_offset, log.open_segments, log.config.index_interval_bytes, SWAP
        )
        self._new.know(list(cleaned.known))
        self._file: File | None = None

    def commit(self) -> None:
        """Make the new segment durable under a name that a start believes."""
        written = segment_name(self._cleaned.base_offset, LOG + CLEANED)
        file = self._directory.open(written)
        try:
            file.flush()
        finally:
            file.close()
        self._directory.rename(written, self._new.name)
        self._directory.flush()
        self.state = State.COMMITTED

    def adopt(self) -> None:
        """Let the log read the new segment from now on. Its file stays open until it has its name."""
        new = self._new
        new.indexes()
        self._file = new.pin()
        old = self._log.replace(new, self._cleaned.bases)
        new.begun_ms = min(segment.begun_ms for segment in old)  # `NOT_SEEN` is later than any look
        new.appended_ms = max(segment.appended_ms for segment in old)
        for segment in old:
            segment.close()
        self.state = State.ADOPTED

    def finish(self) -> None:
        """Let the files say what the log says."""
        directory = self._directory
        for base in reversed(self._cleaned.bases):
            remove_indexes(directory, base)
            directory.rename(segment_name(base), segment_name(base, LOG + RETIRED))
        directory.flush()
        _name(directory, self._cleaned.base_offset)
        self.state = State.FINISHED

    def settle(self) -> list[str]:
        """All is done; the names of the old files."""
        self._new.stage = ""
        assert self._file is not None, "it was never adopted"
        self._new.unpin(self._file)
        self.state = State.SETTLED
        return [segment_name(base, LOG + RETIRED) for base in self._cleaned.bases]

    def give_up(self) -> None:
        """Remove what was written; only before `commit`."""
        remove_written(self._directory, self._cleaned.base_offset)


def remove_written(directory: Directory, base: Offset) -> None:
    """Remove what was written for the group with that base, as far as it was; only before `commit`."""
    for name in (segment_name(base, LOG + CLEANED), *_new_indexes(base)):
        if directory.exists(name):
            directory.remove(name)


def remove_indexes(directory: Directory, base: Offset) -> None:
    """Remove the index files of the segment with that base."""
    for ending in (INDEX, TIME_INDEX):
        if directory.exists(segment_name(base, ending)):
            directory.remove(segment_name(base, ending))


def _new_indexes(base: Offset) -> tuple[str, str]:
    return segment_name(base, INDEX + TEMPORARY), segment_name(base, TIME_INDEX + TEMPORARY)


def _name(directory: Directory, base: Offset) -> None:
    """Give the new segment and its indexes their names, durably."""
    directory.rename(segment_name(base, LOG + SWAP), segment_name(base))
    for name in _new_indexes(base):
        if directory.exists(name):
            directory.rename(name, name.removesuffix(TEMPORARY))
    directory.flush()


def finish_swaps(directory: Directory) -> Iterator[None]:
    """At a start: undo what was not committed, finish what was. Yields now and then."""
    names = directory.names()
    for name in names:
        if name.endswith(LOG + CLEANED):
            directory.remove(name)
    for name in names:
        if name.endswith(LOG + SWAP):
            base = int(name.removesuffix(LOG + SWAP))
            yield from _finish(directory, base)


def _finish(directory: Directory, base: Offset) -> Iterator[None]:
    new = Segment(directory, base, OpenSegments(), 1 << 62, SWAP)
    try:
        for _ in new.walk(directory.size_of(new.name)):
            yield
        new.check_last()
    except DamagedLog as damage:
        raise DamagedLog(f"a compacted segment that was durable: {damage}") from damage
    finally:
        new.close()
    stems = (name.removesuffix(LOG) for name in directory.names() if name.endswith(LOG))
    remove_indexes(directory, base)
    for old in sorted((int(stem) for stem in stems if base <= int(stem) < new.next_offset), reverse=True):
        remove_indexes(directory, old)
        if old != base:
            directory.remove(segment_name(old))
    directory.flush()
    _name(directory, base)
