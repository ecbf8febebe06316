r"""Checkpoint files: small texts that spare a node from reading its logs from their start.

    1                     version                          1
    2                     number of entries                3
    orders 0 1204         topic, partition, offset         0 0           epoch, start offset
    orders 1 88           sorted, each once                3 812
    crc 4afdd2d2          of all before (`seal`)           4 1100
                                                           crc 0edcaadb

ASCII, one space between fields, each line ended by LF, numbers in decimal without sign or leading zero. What
this keeps true (docs/STORAGE.md, 5; I-34, I-35; docs/adr/0050):

* A file is the old state or the new one after any crash, and a cut or changed byte anywhere is noticed.
* A file that is missing or unreadable stops nobody: it is reported, and its fallback is taken (the table
  below). One from a newer tidelog is refused, because what it says is right and not understood.
* A later state is never overtaken by an earlier one, whichever threads write them (KAFKA-16541).

What the log takes for a partition, once the file was read, and what when it could not be read:

    file                           no entry in it              unreadable or missing file
    replication-offset-checkpoint  log start                   log start
    recovery-point-offset-...      0: scan everything          0: scan everything
    log-start-offset-checkpoint    base of the first segment   base of the first segment
    cleaner-offset-checkpoint      log start: clean again      log start: clean again
    cleaner-purge-checkpoint       nothing was purged          log end: lagging followers copy afresh
    leader-epoch-checkpoint                                    rebuild from the headers of all segments

The purge file is why a data directory begins with empty files (`create`) and not with none.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeVar

from tidelog.protocol.errors import CorruptCheckpoint, UnsupportedFormat
from tidelog.protocol.types import Offset, TopicPartition
from tidelog.storage.epochs import EpochEntry
from tidelog.storage.files import Directory, read_whole, write_whole
from tidelog.storage.seal import CHECKPOINT

HIGH_WATERMARKS: Final = "replication-offset-checkpoint"
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"
CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"
PURGE_FLOORS: Final = "cleaner-purge-checkpoint"
OFFSET_CHECKPOINTS: Final = (HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS, CLEANER_OFFSETS, PURGE_FLOORS)
"""One of each per data directory; a log's start is written before its recovery point."""

LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
"""One per partition directory."""

VERSION: Final = 1
"""Version 0 is the same without the last line, as Kafka writes it; no tidelog ever wrote it."""

Offsets = Mapping[TopicPartition, Offset]
State = TypeVar("State")

_NUMBER: Final = "0|[1-9][0-9]{0,18}"
_OFFSET_LINE: Final = re.compile(rf"^([A-Za-z0-9._-]{{1,249}}) ({_NUMBER}) ({_NUMBER})$", re.MULTILINE)
_EPOCH_LINE: Final = re.compile(rf"^({_NUMBER}) ({_NUMBER})$", re.MULTILINE)
_COUNT: Final = re.compile(_NUMBER)
_CHECKSUM_LINE: Final = re.compile("crc [0-9a-f]{8}")
_MAX_INT: Final = 2**31 - 1
_MAX_LONG: Final = 2**63 - 1


# ── offsets of partitions ─────────────────────────────────────────────────────────────────────────────


def encode_offsets(offsets: Offsets) -> bytes:
    """The file that says this."""
    # The keys by themselves: pairs of tuples would be compared twice as slowly.
    return _encode([f"{key.topic} {key.partition} {offsets[key]}" for key in sorted(offsets)])


def decode_offsets(content: bytes, where: str) -> dict[TopicPartition, Offset]:
    """What the file says; `where` is its path, for the message."""
    rows = _decode(content, where, _OFFSET_LINE, "'<topic> <partition> <offset>'")
    offsets = {TopicPartition(topic, int(partition)): int(offset) for topic, partition, offset in rows}
    if len(offsets) < len(rows) or list(offsets) != sorted(offsets):
        raise _disorder([(topic, int(partition)) for topic, partition, _ in rows], where)
    if any(partition > _MAX_INT for _, partition in offsets) or max(offsets.values(), default=0) > _MAX_LONG:
        raise CorruptCheckpoint(f"{where}: expected partitions below 2^31 and offsets below 2^63")
    return offsets


# ── leader epochs ─────────────────────────────────────────────────────────────────────────────────────


def encode_epochs(entries: Iterable[EpochEntry]) -> bytes:
    """The file that says this."""
    return _encode([f"{epoch} {start}" for epoch, start in entries])


def decode_epochs(content: bytes, where: str) -> tuple[EpochEntry, ...]:
    """What the file says: epochs and starts both increasing."""
    rows = _decode(content, where, _EPOCH_LINE, "'<epoch> <start offset>'")
    entries = tuple(EpochEntry(int(epoch), int(start)) for epoch, start in rows)
    for numbers in ([entry.epoch for entry in entries], [entry.start for entry in entries]):
        if any(number <= before for before, number in pairwise(numbers)):
            raise _disorder(numbers, where)
    if entries and (entries[-1].epoch > _MAX_INT or entries[-1].start > _MAX_LONG):
        raise CorruptCheckpoint(f"{where}: expected epochs below 2^31 and offsets below 2^63")
    return entries


def write_leader_epochs(directory: Directory, entries: Sequence[EpochEntry]) -> None:
    """Write `leader-epoch-checkpoint` durably; one call at a time per partition."""
    write_whole(directory, LEADER_EPOCHS, encode_epochs(entries))


def read_leader_epochs(
    directory: Directory,
) -> tuple[tuple[EpochEntry, ...] | None, CorruptCheckpoint | None]:
    """The entries; or None (rebuild them from the log) and why."""
    return _read_or(None, directory, LEADER_EPOCHS, decode_epochs)


# ── the files of a data directory ─────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, eq=False)
class PendingWrite:
    """A state as it was when this was made, to be written by `run`, in whichever thread."""

    file: "OffsetCheckpoint"
    sequence: int
    offsets: Offsets
    after: "PendingWrite | None" = None
    """What is durable before this is."""

    def run(self) -> bool:
        """Write it durably; False when a later state, or the same, is there already. Raises `OSError`."""
        if self.after is not None:
            self.after.run()
        return self.file.carry_out(self)


class OffsetCheckpoint:
    """One of the five files: the latest state and the latest written one, so that none overtakes another.

    `prepare` copies the state where it is consistent (on the event loop); the copy is written elsewhere.
    `guard` lets one writer at a time at the file: a lock wherever several threads write.
    """

    __slots__ = ("_directory", "_guard", "_latest", "_name", "_sequence", "_written", "_written_sequence")

    def __init__(self, directory: Directory, name: str, guard: AbstractContextManager[object]) -> None:
        assert name in OFFSET_CHECKPOINTS, name
        self._directory = directory
        self._name = name
        self._guard = guard
        self._latest: Offsets | None = None
        self._sequence = 0
        self._written: Offsets | None = None
        """What the file is known to hold, the very state that was prepared; None where nobody knows it."""
        self._written_sequence = 0

    @property
    def name(self) -> str:
        """The file's name."""
        return self._name

    def create(self) -> None:
        """Begin a new data directory with an empty file, unless there is one."""
        if not self._directory.exists(self._name):
            self.write({})

    def read_or_fallback(self) -> tuple[dict[TopicPartition, Offset], CorruptCheckpoint | None]:
        """What the file says; or nothing, and why: report it, and take the table's second column."""
        offsets, problem = _read_or({}, self._directory, self._name, decode_offsets)
        self._latest = dict(offsets)
        if problem is None and self._directory.exists(self._name):
            self._written = self._latest
        return offsets, problem

    def prepare(self, offsets: Offsets, after: PendingWrite | None = None) -> PendingWrite:
        """Take the state as it is now; a `run` of anything prepared before will not overtake it."""
        self._latest = dict(offsets)
        self._sequence += 1
        return PendingWrite(self, self._sequence, self._latest, after)

    def write(self, offsets: Offsets) -> bool:
        """Write the state as it is now, before this returns."""
        return self.prepare(offsets).run()

    def forget(self, *partitions: TopicPartition) -> bool:
        """New partitions of those names inherit nothing: remove their old entries durably, before the first append.

        KAFKA-1647 and KIP-516: a re-created topic began with the high watermark of the old one. So it did also where a
        state without the old one had been prepared and was not written yet: what the file holds counts.
        """
        latest = self._latest
        assert latest is not None, f"{self._name} has not been read"
        old = latest.keys() & set(partitions)
        if not old and self._written is latest:
            return False
        return self.write({key: offset for key, offset in latest.items() if key not in old})

    def carry_out(self, pending: PendingWrite) -> bool:
        """Write that state, unless a later one has been written (`PendingWrite.run`)."""
        with self._guard:
            if pending.sequence < self._written_sequence:
                return False
            is_news = pending.offsets != self._written
            if is_news:
                write_whole(self._directory, self._name, encode_offsets(pending.offsets))
            # Only now: one that finds no room must not make an earlier one pass for written.
            self._written, self._written_sequence = pending.offsets, pending.sequence
            return is_news


# ── the grammar ───────────────────────────────────────────────────────────────────────────────────────


def _encode(lines: list[str]) -> bytes:
    return CHECKPOINT.seal("\n".join([str(VERSION), str(len(lines)), *lines, ""]).encode("ascii"))


def _decode(content: bytes, where: str, entry: re.Pattern[str], form: str) -> list[tuple[str, ...]]:
    """The fields of every entry, or an error that names the first line at fault."""
    body = CHECKPOINT.unseal(content)
    # Latin-1 reads each byte as one character, and what is not ASCII fits no line of the grammar.
    text = content.decode("latin-1")
    lines = text.split("\n")
    if body is not None and _COUNT.fullmatch(lines[0]) and int(lines[0]) > VERSION:
        raise UnsupportedFormat(f"{where} is of version {lines[0]}, this tidelog reads {VERSION}")
    rows = entry.findall(text)
    fault = _fault(lines, entry, len(rows), form)
    if fault is None and body is None:
        fault = f"line {len(lines) - 1}: expected the checksum of what stands before it, found '{lines[-2]}'"
    if fault is not None:
        raise CorruptCheckpoint(f"{where}, {fault}")
    return rows


def _fault(lines: list[str], entry: re.Pattern[str], matches: int, form: str) -> str | None:
    """The first line that is not as it should be, and what was expected there."""
    if lines[0] != str(VERSION):
        return f"line 1: expected version '{VERSION}', found {_shown(lines[0])}"
    if len(lines) < 2 or not _COUNT.fullmatch(lines[1]):
        return f"line 2: expected the number of entries, found {_shown(*lines[1:2])}"
    if lines[-1] or len(lines) < 4 or not _CHECKSUM_LINE.fullmatch(lines[-2]):
        return f"line {len(lines) - 1}: expected 'crc', 8 hexadecimal digits and the end, found {_shown(*lines[-2:])}"
    entries = lines[2:-2]
    if matches != len(entries):
        wrong = next(i for i, line in enumerate(entries) if not entry.fullmatch(line))
        return f"line {wrong + 3}: expected {form}, found {_shown(entries[wrong])}"
    if lines[1] != str(len(entries)):
        return f"line 2: expected {len(entries)}, the number of entries, found {_shown(lines[1])}"
    return None


def _shown(*lines: str) -> str:
    return ascii("\n".join(lines)[:80])


Key = TypeVar("Key", tuple[str, int], int)


def _disorder(keys: Sequence[Key], where: str) -> CorruptCheckpoint:
    """The first entry that is not above the one before it."""
    at = next(i for i in range(1, len(keys)) if keys[i] <= keys[i - 1])
    return CorruptCheckpoint(f"{where}, line {at + 3}: expected more than {keys[at - 1]}, found {keys[at]}")


Fallback = TypeVar("Fallback")


def _read_or(
    fallback: Fallback, directory: Directory, name: str, decode: Callable[[bytes, str], State]
) -> tuple[State | Fallback, CorruptCheckpoint | None]:
    """What the file says, or the fallback and why. `UnsupportedFormat` is raised: nothing else reads that file."""
    where = f"{directory.path}/{name}"
    try:
        return decode(read_whole(directory, name), where), None
    except CorruptCheckpoint as problem:
        return fallback, problem
    except FileNotFoundError:
        return fallback, CorruptCheckpoint(f"{where} is missing")
    except OSError as error:  # a sector that cannot be read is a file that cannot be read
        return fallback, CorruptCheckpoint(f"{where}: {error}")
