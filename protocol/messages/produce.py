"""Appending batches, and the ids by which a broker recognises a batch that was sent twice (design 5.3).

The batches themselves are the frame's attachment, one per entry and in the order of the entries; the broker
writes these very bytes.
"""

from typing import Annotated, ClassVar

from tidelog.protocol.messages.shapes import (
    ENTRIES,
    Acks,
    Entry,
    Epoch,
    ErrorCode,
    Index,
    Leader,
    Milliseconds,
    Name,
    Offset,
    ProducerEpoch,
    ProducerId,
    Reply,
    Request,
    Size,
    Text,
    Timestamp,
    TopicId,
)
from tidelog.protocol.types import NO_EPOCH, NO_OFFSET, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP

ACKS_ALL = -1
"""`acks` on the wire when every replica in sync must have the batch."""


class PartitionProduce(Entry, frozen=True):
    """One batch for one partition."""

    topic_id: TopicId
    """The topic."""

    index: Index
    """The partition's number in the topic."""

    records_size: Size
    """How many bytes of the attachment are this entry's batch."""

    leader_epoch: Epoch = NO_EPOCH
    """The leadership that the client believes in; -1: it does not say, and it is not checked."""


class PartitionProduced(Entry, frozen=True):
    """What became of one batch."""

    topic_id: TopicId
    """The topic."""

    index: Index
    """The partition's number in the topic."""

    error: ErrorCode = 0
    """0: written, and as safe as `acks` asked."""

    message: Text | None = None
    """The error's fact with its numbers."""

    base_offset: Offset = NO_OFFSET
    """The offset of the batch's first record; -1 with an error or where it is no longer known."""

    append_time: Timestamp = NO_TIMESTAMP
    """When the broker appended it, for topics that keep that time; else -1."""

    log_start: Offset = NO_OFFSET
    """The smallest offset that can be read."""

    current_leader: Leader | None = None
    """Whom to ask instead, when this broker does not lead the partition."""


class ProduceReply(Reply, frozen=True, tag=17):
    """What became of each batch: one entry per entry of the request, in its order."""

    partitions: Annotated[tuple[PartitionProduced, ...], ENTRIES]
    """One entry per batch."""


class Produce(Request, frozen=True, tag=17):
    """Append one batch to each of these partitions. With `acks` 0 no reply follows."""

    reply: ClassVar = ProduceReply

    acks: Acks
    """0: do not answer; 1: answer when the leader has it; -1: when every replica in sync has it."""

    timeout_ms: Milliseconds
    """How long the broker may wait for the other replicas before it answers that it does not know."""

    partitions: Annotated[tuple[PartitionProduce, ...], ENTRIES]
    """One entry per batch, a partition at most once."""

    transactional_id: Name | None = None
    """The transaction's producer, when the batches belong to one."""


class InitProducerIdReply(Reply, frozen=True, tag=22):
    """The producer's identity from now on."""

    error: ErrorCode = 0
    """0: the id and the epoch below are the producer's own."""

    message: Text | None = None
    """The error's fact with its numbers."""

    producer_id: ProducerId = NO_PRODUCER_ID
    """The producer's id, never given out twice."""

    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    """Its epoch: batches of lower epochs are refused."""


class InitProducerId(Request, frozen=True, tag=22):
    """Ask for a producer id, or for the next epoch of the one at hand."""

    reply: ClassVar = InitProducerIdReply

    producer_id: ProducerId = NO_PRODUCER_ID
    """The id at hand, to have its epoch raised; -1: a new one."""

    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    """The epoch at hand; -1 with a new id."""

    transactional_id: Name | None = None
    """The name under which transactions outlive the process; nil: none, and any broker may answer."""

    transaction_timeout_ms: Milliseconds = 60_000
    """How long a transaction may stay open before the coordinator aborts it."""

    timeout_ms: Milliseconds = 30_000
    """How long the broker may wait for a block of ids from the controller."""
