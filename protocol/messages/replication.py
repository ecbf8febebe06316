"""Between brokers, and from a leader to the controller (design 2.10, 4.7; Flushed: decision 25).

Fetch carries replication itself; these are the words beside it.
"""

from typing import Annotated, ClassVar

from tidelog.protocol.messages.shapes import (
    ENTRIES,
    BrokerEpoch,
    BrokerId,
    Entry,
    Epoch,
    ErrorCode,
    Flag,
    Index,
    Number,
    Offset,
    Reply,
    Request,
    Text,
    TopicId,
)
from tidelog.protocol.types import NO_EPOCH, NO_OFFSET


class PartitionFlushed(Entry, frozen=True):
    """How far one partition is safe."""

    topic_id: TopicId
    """The topic."""

    index: Index
    """The partition's number in the topic."""

    current_leader_epoch: Epoch
    """The leadership that the follower believes in; another one's is ignored."""

    durable_offset: Offset
    """What the follower has on stable storage, as an end."""

    last_epoch: Epoch = NO_EPOCH
    """The epoch of the last record below it: those of another history count for nothing; -1: ignored."""


class Flushed(Request, frozen=True, tag=80):
    """A follower's disk has caught up: told at once, so that nobody waits for its next fetch."""

    reply: ClassVar = None

    broker_id: BrokerId
    """The follower."""

    broker_epoch: BrokerEpoch
    """The follower's registration."""

    partitions: Annotated[tuple[PartitionFlushed, ...], ENTRIES]
    """What was flushed."""


class IsrMember(Entry, frozen=True):
    """A replica that is to be in sync."""

    broker_id: BrokerId
    """The replica."""

    broker_epoch: BrokerEpoch
    """The registration under which it fetched; -1: it has not fetched in this leader epoch."""


class PartitionAlter(Entry, frozen=True):
    """The ISR that a leader proposes for one partition."""

    topic_id: TopicId
    """The topic."""

    index: Index
    """The partition's number in the topic."""

    leader_epoch: Epoch
    """The proposer's leadership."""

    partition_epoch: Epoch
    """The state of the partition that the proposal is to follow."""

    alter_seq: Number
    """Grows with every send within a leader epoch, so that a late copy is recognised and refused."""

    new_isr: Annotated[tuple[IsrMember, ...], ENTRIES]
    """The replicas in sync from then on, the leader among them."""

    recovered: Flag = False
    """The leader is up after an unclean election: the partition need not be called recovering any more."""


class PartitionAltered(Entry, frozen=True):
    """What the controller decided about one partition."""

    topic_id: TopicId
    """The topic."""

    index: Index
    """The partition's number in the topic."""

    error: ErrorCode = 0
    """0: the change is committed; the leader applies it when it reads the metadata log."""

    message: Text | None = None
    """The error's fact with its numbers."""

    metadata_offset: Offset = NO_OFFSET
    """Where in the metadata log the change stands."""


class AlterPartitionReply(Reply, frozen=True, tag=96):
    """What the controller decided."""

    error: ErrorCode = 0
    """An error of the request as a whole: NOT_CONTROLLER, STALE_BROKER_EPOCH."""

    message: Text | None = None
    """The error's fact with its numbers."""

    partitions: Annotated[tuple[PartitionAltered, ...], ENTRIES] = ()
    """One entry per entry of the request, in its order; none when the whole was refused."""

    quorum_epoch: Epoch = NO_EPOCH
    """The quorum's epoch as the answering controller knows it."""


class AlterPartition(Request, frozen=True, tag=96):
    """A leader proposes who is in sync; the controller decides, comparing epochs."""

    reply: ClassVar = AlterPartitionReply

    broker_id: BrokerId
    """The leader that proposes."""

    broker_epoch: BrokerEpoch
    """Its registration."""

    quorum_epoch: Epoch
    """The controller's epoch that is addressed: any other answers NOT_CONTROLLER."""

    partitions: Annotated[tuple[PartitionAlter, ...], ENTRIES]
    """One entry per partition, a partition at most once."""
