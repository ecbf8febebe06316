"""Questions about offsets (design 5.5), and dropping the beginning of a log (2.15).

Every reply has one entry per entry of the request, in its order; a partition may be asked about more than
once (its start and its end, say).
"""

from typing import Annotated, ClassVar

from tidelog.protocol.messages.shapes import (
    ENTRIES,
    Entry,
    Epoch,
    ErrorCode,
    Flag,
    Index,
    Isolation,
    Leader,
    Milliseconds,
    Offset,
    Reply,
    Request,
    Text,
    Timestamp,
    TopicId,
    WhichOffset,
)
from tidelog.protocol.types import NO_EPOCH, NO_OFFSET, NO_TIMESTAMP

LATEST = -1
"""`timestamp`: the end of what the asker may read."""

EARLIEST = -2
"""`timestamp`: the log's start."""

MAX_TIMESTAMP = -3
"""`timestamp`: the first of the records with the largest timestamp."""


class OffsetQuery(Entry, frozen=True):
    """Which offset of which partition."""

    topic_id: TopicId
    """The topic."""

    index: Index
    """The partition's number in the topic."""

    timestamp: WhichOffset
    """The first record at or after this time in ms; -1: the end; -2: the start; -3: the largest timestamp."""

    current_leader_epoch: Epoch = NO_EPOCH
    """The leadership that the asker believes in; -1: it does not say."""


class OffsetFound(Entry, frozen=True):
    """The offset that answers one query."""

    topic_id: TopicId
    """The topic."""

    index: Index
    """The partition's number in the topic."""

    error: ErrorCode = 0
    """0: the fields below hold."""

    message: Text | None = None
    """The error's fact with its numbers."""

    offset: Offset = NO_OFFSET
    """The offset; -1: no record is that late."""

    timestamp: Timestamp = NO_TIMESTAMP
    """The found record's own timestamp; -1 for the start and the end."""

    leader_epoch: Epoch = NO_EPOCH
    """The epoch of the record at the offset; -1: there is none."""

    current_leader: Leader | None = None
    """Whom to ask instead, when this broker does not lead the partition."""


class ListOffsetsReply(Reply, frozen=True, tag=19):
    """The offsets that were asked for."""

    partitions: Annotated[tuple[OffsetFound, ...], ENTRIES] = ()
    """One entry per query."""


class ListOffsets(Request, frozen=True, tag=19):
    """Ask where logs begin and end, and which offset a time has."""

    reply: ClassVar = ListOffsetsReply

    partitions: Annotated[tuple[OffsetQuery, ...], ENTRIES]
    """One entry per query."""

    isolation: Isolation = 0
    """0: the end is the high watermark; 1: it is the last stable offset."""

    replica: Flag = False
    """A replica asks: the end is the end of the log."""


class EpochQuery(Entry, frozen=True):
    """Which epoch of which partition."""

    topic_id: TopicId
    """The topic."""

    index: Index
    """The partition's number in the topic."""

    epoch: Epoch
    """The epoch whose end is asked for."""

    current_leader_epoch: Epoch = NO_EPOCH
    """The leadership that the asker believes in; -1: it does not say."""


class EpochEndFound(Entry, frozen=True):
    """Where one epoch ends."""

    topic_id: TopicId
    """The topic."""

    index: Index
    """The partition's number in the topic."""

    error: ErrorCode = 0
    """0: the fields below hold."""

    message: Text | None = None
    """The error's fact with its numbers."""

    epoch: Epoch = NO_EPOCH
    """The largest epoch in the leader's log that is not above the one asked for; -1: none."""

    end_offset: Offset = NO_OFFSET
    """The offset behind its last record, committed or not."""

    current_leader: Leader | None = None
    """Whom to ask instead, when this broker does not lead the partition."""


class EpochEndsReply(Reply, frozen=True, tag=20):
    """Where the epochs end."""

    partitions: Annotated[tuple[EpochEndFound, ...], ENTRIES] = ()
    """One entry per query."""


class EpochEnds(Request, frozen=True, tag=20):
    """Ask where epochs end in the leader's log, to learn whether a position was cut off.

    Kafka calls it OffsetForLeaderEpoch.
    """

    reply: ClassVar = EpochEndsReply

    partitions: Annotated[tuple[EpochQuery, ...], ENTRIES]
    """One entry per query."""


class DeleteBefore(Entry, frozen=True):
    """Up to where to forget a partition."""

    topic_id: TopicId
    """The topic."""

    index: Index
    """The partition's number in the topic."""

    offset: Offset
    """Everything below goes; -1: everything committed."""


class Deleted(Entry, frozen=True):
    """What became of one deletion."""

    topic_id: TopicId
    """The topic."""

    index: Index
    """The partition's number in the topic."""

    error: ErrorCode = 0
    """0: no live replica has anything below the low watermark any more."""

    message: Text | None = None
    """The error's fact with its numbers."""

    low_watermark: Offset = NO_OFFSET
    """The smallest log start of the live replicas."""

    current_leader: Leader | None = None
    """Whom to ask instead, when this broker does not lead the partition."""


class DeleteRecordsReply(Reply, frozen=True, tag=21):
    """What became of the deletions."""

    partitions: Annotated[tuple[Deleted, ...], ENTRIES] = ()
    """One entry per entry of the request."""


class DeleteRecords(Request, frozen=True, tag=21):
    """Drop the beginning of these partitions, on every live replica."""

    reply: ClassVar = DeleteRecordsReply

    partitions: Annotated[tuple[DeleteBefore, ...], ENTRIES]
    """One entry per partition, a partition at most once."""

    timeout_ms: Milliseconds = 30_000
    """How long the broker may wait for the other replicas."""
