"""The leader-epoch cache: which leadership wrote which part of a log.

One entry (epoch, start offset) per epoch that has at least one record in the log, and no other: becoming
leader adds none. What it keeps true (docs/STORAGE.md, 5; I-12):

* It is a pure function of the log's batches and its start, so that it can be rebuilt from them and compared.
* Epochs and starts both increase strictly; epoch 0 is an epoch like any other (KAFKA-10432 skipped it).
* No entry begins at or behind the log's end, none lies wholly below the log's start.

The log's end is an argument wherever a range's end matters: the last epoch ends where the log ends, and
keeping a second copy of that number would be a second truth.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from tidelog.protocol.errors import InvalidAppend
from tidelog.protocol.types import NO_EPOCH, NO_OFFSET, Epoch, Offset


class EpochEntry(NamedTuple):
    """From `start` on, up to the next entry's start, the log's records were written in `epoch`."""

    epoch: Epoch
    start: Offset


class EpochEnd(NamedTuple):
    """Where an epoch ends: the offset behind its last record."""

    epoch: Epoch
    end: Offset


class LeaderEpochs:
    """The entries of one log, oldest first; `changes` counts how often they changed."""

    __slots__ = ("_entries", "changes", "latest")

    def __init__(self, entries: Iterable[tuple[Epoch, Offset]] = ()) -> None:
        self._entries: list[EpochEntry] = []
        self.latest: Epoch = NO_EPOCH
        """The epoch of the log's last batch, or -1 when there is none."""
        self.changes = 0
        for epoch, start in entries:
            self.assign(epoch, start)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LeaderEpochs) and self._entries == other._entries

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"LeaderEpochs({[tuple(entry) for entry in self._entries]})"

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        """Every entry, oldest first, as a value that later changes do not touch."""
        return tuple(self._entries)

    def assign(self, epoch: Epoch, offset: Offset) -> bool:
        """A batch of that epoch was appended at that offset; whether this began an entry (save the file).

        Called for every appended batch, on leaders and followers alike, in the log's order.
        """
        if epoch == self.latest and epoch >= 0:
            return False
        last_start = self._entries[-1].start if self._entries else NO_OFFSET
        if epoch <= self.latest or offset <= last_start:
            raise InvalidAppend(
                f"epoch {epoch} from offset {offset} on does not follow "
                f"epoch {self.latest} from offset {last_start} on"
            )
        self._entries.append(EpochEntry(epoch, offset))
        self.latest = epoch
        self.changes += 1
        return True

    def truncate_from_end(self, log_end: Offset) -> None:
        """The log was cut to end at `log_end`: what begins there or behind it is forgotten."""
        keep = bisect_left(self._entries, log_end, key=_start)
        if keep < len(self._entries):
            del self._entries[keep:]
            self.latest = self._entries[-1].epoch if self._entries else NO_EPOCH
            self.changes += 1

    def truncate_from_start(self, log_start: Offset, log_end: Offset) -> None:
        """The log now starts at `log_start`: what ended before is forgotten, the entry across it begins there."""
        if log_start >= log_end:
            self.truncate_from_end(NO_OFFSET)  # nothing is left of the log
            return
        covering = bisect_right(self._entries, log_start, key=_start) - 1
        if covering >= 0 and self._entries[0].start < log_start:
            self._entries[: covering + 1] = [EpochEntry(self._entries[covering].epoch, log_start)]
            self.changes += 1

    def epoch_of(self, offset: Offset) -> Epoch:
        """The epoch of the record at that offset, which the log must reach; -1 below the first entry."""
        covering = bisect_right(self._entries, offset, key=_start) - 1
        return self._entries[covering].epoch if covering >= 0 else NO_EPOCH

    def reaches_back_to(self, epoch: Epoch) -> bool:
        """Whether the log has records of that epoch, or of an older one."""
        return bool(self._entries) and self._entries[0].epoch <= epoch

    def end_offset_for(self, epoch: Epoch, log_end: Offset) -> EpochEnd:
        """The largest epoch here that is not above `epoch`, and where it ends.

        None is that small: `epoch` itself, ending where the log's first record begins, for this log has
        none of its records. The answer is right for epochs that this log has not seen as well, which is
        why becoming leader needs no entry (KAFKA-7415 and KAFKA-10706 are the price of needing one).
        """
        if epoch == self.latest and epoch >= 0:
            return EpochEnd(epoch, log_end)  # what nearly every fetch asks
        behind = bisect_right(self._entries, epoch, key=_epoch)
        end = self._entries[behind].start if behind < len(self._entries) else log_end
        return EpochEnd(self._entries[behind - 1].epoch if behind else epoch, end)


def divergence(mine: LeaderEpochs, log_end: Offset, leader: EpochEnd) -> Offset:
    """Where a follower truncates, given the leader's answer about an epoch it asked for (docs/REPLICATION.md).

    At most one round per epoch above the common prefix leads to it, and none cuts into it. KIP-101: compare
    epochs, not high watermarks, to truncate. KIP-279: the leader names the epoch that its answer is about.
    """
    epoch, end = mine.end_offset_for(leader.epoch, log_end)
    # An older epoch than the leader's: all that I have above it is not the leader's; ask again from there.
    cut = min(leader.end, end) if epoch == leader.epoch else end
    return min(cut, log_end)


def _start(entry: EpochEntry) -> Offset:
    return entry.start


def _epoch(entry: EpochEntry) -> Epoch:
    return entry.epoch
