"""How far a group is behind, from what was committed and from where the log begins and ends: pure arithmetic.

    log_start ───────── committed ───────────────── high_watermark
                  read  │  the first unread record …  │

What can be known, and what cannot:

* In records: exactly, as of the moment when the leader said how far its log goes. Where the log begins behind what was
  committed, what lies between was deleted unread: that is `lost` and no lag, for nobody can catch it up.
* In time: how long the first unread record has been there, by its own timestamp: 0 when there is none, whatever nobody
  commits. It is as true as the clock of whoever wrote the record; a time in the future counts as now.
* Without that timestamp (its leader has not been asked, or has not answered) the time of the last record that was
  consumed is a bound: the first unread one is not older, if times grow with offsets. `at_most` says that it is one.
* Nothing committed: no lag. Whether the group will begin at the start or at the end, only its consumers know.
* Compaction and control records leave offsets without records: lag counts offsets, so it is never too small.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tidelog.protocol.types import NO_OFFSET, NO_TIMESTAMP, Offset


@dataclass(frozen=True, slots=True)
class Ends:
    """Where a partition's log begins and ends, as its leader has said."""

    log_start: Offset
    high_watermark: Offset
    first_unread_ms: int = NO_TIMESTAMP
    """The time of the first record at or behind what was committed; -1: not known."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How far behind a group is in one partition."""

    records: int = -1
    """How many it has not consumed; -1: unknown."""
    ms: int = NO_TIMESTAMP
    """For how long the first of them has been there; -1: unknown."""
    lost: int = 0
    """How many were deleted before it had consumed them."""
    at_most: bool = False
    """Whether `ms` is only a bound."""


UNKNOWN = Lag()


def lag_of(offset: Offset, ends: Ends | None, wall_ms: int, consumed_ms: int = NO_TIMESTAMP) -> Lag:
    """The lag of what was committed at `offset`; `consumed_ms`: the time of the last record before it."""
    if ends is None or NO_OFFSET in {offset, ends.high_watermark}:
        return UNKNOWN
    begin = max(offset, ends.log_start)
    lost = begin - offset
    records = max(ends.high_watermark - begin, 0)
    if not records:
        return Lag(0, 0, lost)
    if ends.first_unread_ms != NO_TIMESTAMP:
        return Lag(records, max(wall_ms - ends.first_unread_ms, 0), lost)
    if consumed_ms != NO_TIMESTAMP and not lost:
        return Lag(records, max(wall_ms - consumed_ms, 0), lost, at_most=True)
    return Lag(records, NO_TIMESTAMP, lost)


def total(lags: Iterable[Lag]) -> tuple[Lag, int]:
    """All of a group's lag in one, and of how many partitions it is not known: the sum, and the longest time, if it is
    known of all that wait for how long they have.
    """
    records, longest, lost, unknown, at_most = 0, NO_TIMESTAMP, 0, 0, False
    known, timed = 0, True
    for lag in lags:
        if lag.records < 0:
            unknown += 1
            continue
        known += 1
        records += lag.records
        lost += lag.lost
        timed = timed and (lag.ms >= 0 or not lag.records)
        if lag.ms > longest:
            longest, at_most = lag.ms, lag.at_most
    if not timed:
        longest, at_most = NO_TIMESTAMP, False  # one that nobody knows may be the longest
    return (Lag(records, longest, lost, at_most) if known else UNKNOWN), unknown
