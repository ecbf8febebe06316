"""What a leader checks before it answers a fetch: epochs first, then the place (docs/REPLICATION.md).

The order is part of the rule: an old epoch is told before anything that depends on it (KAFKA-14078), and a
place below the log's start before a divergence (KAFKA-12996). None of this changes any state (KAFKA-13141).
"""

from tidelog.protocol.errors import FencedLeaderEpoch, OffsetOutOfRange, UnknownLeaderEpoch
from tidelog.protocol.types import NO_EPOCH, Epoch, Offset
from tidelog.storage.epochs import EpochEnd
from tidelog.storage.log import Log


def check_leader_epoch(believed: Epoch, mine: Epoch, *, must_say: bool = False) -> None:
    """Refuse who believes in another leadership than mine; clients may leave it open by -1, replicas must say."""
    if believed == mine or (believed == NO_EPOCH and not must_say):
        return
    if believed < mine:
        raise FencedLeaderEpoch(f"the leader epoch is {mine}, the request was made in {believed}")
    raise UnknownLeaderEpoch(f"the request was made in leader epoch {believed}, this broker knows of {mine}")


def is_prefix(log: Log, end: Offset, last_epoch: Epoch) -> bool:
    """Whether a log that ends there, with a record of that epoch, is one that this log continues (ADR 0073)."""
    found = log.epochs.end_offset_for(last_epoch, log.end_offset)
    return last_epoch != NO_EPOCH and found.epoch == last_epoch and end <= found.end


def check_place(log: Log, fetch_offset: Offset, last_fetched_epoch: Epoch) -> EpochEnd | None:
    """Where the reader's log parts from this one; None: nowhere, and `fetch_offset` is a place in it."""
    if fetch_offset < log.log_start:
        raise OffsetOutOfRange(f"offset {fetch_offset} lies below {log.log_start}, where the log starts")
    if last_fetched_epoch != NO_EPOCH:
        found = log.epochs.end_offset_for(last_fetched_epoch, log.end_offset)
        if found.epoch < last_fetched_epoch or found.end < fetch_offset:
            return found
    if fetch_offset > log.end_offset:
        raise OffsetOutOfRange(f"offset {fetch_offset} lies above {log.end_offset}, where the log ends")
    return None


def cannot_compare(log: Log, fetch_offset: Offset, last_fetched_epoch: Epoch) -> bool:
    """Whether nothing here says that what the reader has, or lacks, is of this log (ADR 0071, 0116).

    An empty log that begins above mine lacks what is between; one that ends where mine starts, in an epoch of which I
    have deleted everything, may hold below it what was never committed.
    """
    if last_fetched_epoch == NO_EPOCH:
        return fetch_offset > log.log_start
    return fetch_offset == log.log_start and not log.epochs.reaches_back_to(last_fetched_epoch)
