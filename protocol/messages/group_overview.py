"""Consumer groups as operators see them: a line each, in full, and how they are forgotten (docs/GROUPS.md).

Answers that may be long come in pages: an answer says what fits, and whether there is more; whoever wants more asks
again, and says what it knows already. Each page is true when it is said: between two of them members may come and go.
"""

from typing import Annotated, ClassVar

from tidelog.protocol.messages.groups import TopicPartitions
from tidelog.protocol.messages.shapes import (
    ENTRIES,
    BrokerId,
    Entry,
    Epoch,
    ErrorCode,
    Flag,
    Index,
    MemberEpoch,
    Milliseconds,
    Name,
    Number,
    Offset,
    PartitionIndex,
    Reply,
    Request,
    Text,
    Timestamp,
    TopicId,
    TopicName,
)
from tidelog.protocol.types import NO_BROKER, NO_EPOCH, NO_OFFSET, NO_TIMESTAMP


class ListedGroup(Entry, frozen=True):
    """A group in one line."""

    group_id: Name
    """The group."""

    state: Name
    """`empty`, `assigning`, `reconciling` or `stable`."""

    members: Number = 0
    """How many members it has."""

    topics: Number = 0
    """In how many topics it has members or offsets."""

    lag: Offset = -1
    """How many committed records it has not consumed, as far as is known; -1: not asked for, or nothing is known."""

    lag_ms: Timestamp = NO_TIMESTAMP
    """For how long the oldest of them has been there; -1: not asked for, or unknown."""

    unknown: Number = 0
    """Of how many partitions the lag is not known, and not in the sum."""

    lag_at_most: Flag = False
    """Whether `lag_ms` is only a bound: the age of the last record that was consumed, since logs were not read for it."""


class ListGroupsReply(Reply, frozen=True, tag=36):
    """The groups that this broker coordinates."""

    error: ErrorCode = 0
    """0: the fields below hold. COORDINATOR_LOAD_IN_PROGRESS: some groups may be missing."""

    message: Text | None = None
    """The error's fact with its numbers."""

    groups: Annotated[tuple[ListedGroup, ...], ENTRIES] = ()
    """The groups, by name."""

    more: Flag = False
    """Whether there are more behind the last one."""

    partitions: Annotated[tuple[Index, ...], ENTRIES] = ()
    """The partitions of `__consumer_offsets` that this broker leads: it tells of their groups, and of no others."""

    partition_count: Number = 0
    """How many there are. Groups of those that no broker tells of would be missing."""


class ListGroups(Request, frozen=True, tag=36):
    """Ask a broker for the groups that it coordinates: all brokers together know all groups."""

    reply: ClassVar = ListGroupsReply

    states: Annotated[tuple[Name, ...], ENTRIES] = ()
    """Only groups in one of these states; empty: in any."""

    topic: TopicName = ""
    """Only groups that consume this topic; empty: any topic."""

    with_lag: Flag = False
    """Say how far each is behind."""

    after: Name = ""
    """Only groups whose name comes after this one, to go on where the last answer ended."""

    limit: Number = 10_000
    """At most so many."""

    timeout_ms: Milliseconds = 30_000
    """How long the broker may ask others how far their logs go."""


class DescribedMember(Entry, frozen=True):
    """A member of a group."""

    member_id: Name
    """The member."""

    instance_id: Name | None = None
    """Of a static member; nil: it is not static."""

    client_id: Name = ""
    """What its process calls itself."""

    host: Name = ""
    """Where it called from."""

    rack: Name = ""
    """Where it stands."""

    member_epoch: MemberEpoch = 0
    """How far it has followed; -2: it has left for a while."""

    state: Name = ""
    """`stable`, `revoking` (asked to give something up), `waiting` (for others to do so) or `away`."""

    topics: Annotated[tuple[TopicName, ...], ENTRIES] = ()
    """What it has subscribed to."""

    assigned: Annotated[tuple[TopicPartitions, ...], ENTRIES] = ()
    """What it may consume."""

    revoking: Annotated[tuple[TopicPartitions, ...], ENTRIES] = ()
    """What it has been asked to give up, and has not yet."""

    target: Annotated[tuple[TopicPartitions, ...], ENTRIES] = ()
    """What it is to have in the end."""

    silent_ms: Milliseconds = 0
    """How long ago it was heard."""


class DescribedOffset(Entry, frozen=True):
    """How far a group has come in one partition."""

    topic_id: TopicId
    """The topic."""

    topic: TopicName
    """Its name; empty: it was deleted."""

    index: Index
    """The partition's number in the topic."""

    member_id: Name = ""
    """Who consumes it; empty: nobody."""

    offset: Offset = NO_OFFSET
    """The next record to be consumed; -1: nothing is committed."""

    leader_epoch: Epoch = NO_EPOCH
    """The epoch of the record before; -1: unknown."""

    metadata: Text = ""
    """What was committed with it."""

    commit_ms: Timestamp = NO_TIMESTAMP
    """When it was committed; -1: nothing is."""

    log_start: Offset = NO_OFFSET
    """The smallest offset that can be read; -1: not asked for, or its leader has not answered."""

    high_watermark: Offset = NO_OFFSET
    """The end of what can be read; -1: not asked for, or its leader has not answered."""

    lag: Offset = -1
    """How many records are to be consumed; -1: unknown."""

    lag_ms: Timestamp = NO_TIMESTAMP
    """For how long the first of them has been there; 0: there is none; -1: unknown."""

    lost: Number = 0
    """How many records were deleted before the group had consumed them."""

    lag_at_most: Flag = False
    """Whether `lag_ms` is only a bound: the age of the last record that was consumed, since the log was not read for it."""


class DescribedGroup(Entry, frozen=True):
    """A group in full."""

    group_id: Name
    """The group."""

    error: ErrorCode = 0
    """0: the fields below hold."""

    message: Text | None = None
    """The error's fact with its numbers."""

    state: Name = ""
    """`empty`, `assigning`, `reconciling` or `stable`."""

    epoch: Epoch = NO_EPOCH
    """Counts changes of the group's members and of what they want."""

    assignment_epoch: Epoch = NO_EPOCH
    """The group's epoch for which partitions were shared out last."""

    assignor: Name = ""
    """Who shares out partitions."""

    members: Annotated[tuple[DescribedMember, ...], ENTRIES] = ()
    """The members, by id."""

    offsets: Annotated[tuple[DescribedOffset, ...], ENTRIES] = ()
    """Every partition of which something is committed or assigned, by topic id and number."""

    coordinator: BrokerId = NO_BROKER
    """The broker that coordinates it."""

    more: Flag = False
    """Whether it has more members, or more partitions, than are told here."""


class DescribeGroupsReply(Reply, frozen=True, tag=37):
    """The groups in full."""

    groups: Annotated[tuple[DescribedGroup, ...], ENTRIES] = ()
    """One entry per group that was asked for, in that order, as many as fit: at least one."""


class DescribeGroups(Request, frozen=True, tag=37):
    """Ask for all about some groups."""

    reply: ClassVar = DescribeGroupsReply

    groups: Annotated[tuple[Name, ...], ENTRIES]
    """The groups."""

    with_lag: Flag = False
    """Say how far each partition is behind."""

    timeout_ms: Milliseconds = 30_000
    """How long the broker may ask others how far their logs go."""

    after_member: Name = ""
    """Of the first group: only members behind this one; empty: from the first one."""

    after: PartitionIndex | None = None
    """Of the first group: no members, and only partitions behind this one; nil: from the first one."""

    limit: Number = 10_000
    """At most so many members and partitions, of all groups together."""


class DeletedGroup(Entry, frozen=True):
    """What became of one group."""

    group_id: Name
    """The group."""

    error: ErrorCode = 0
    """0: it is gone, with its offsets."""

    message: Text | None = None
    """The error's fact with its numbers."""


class DeleteGroupsReply(Reply, frozen=True, tag=38):
    """What became of the groups."""

    groups: Annotated[tuple[DeletedGroup, ...], ENTRIES] = ()
    """One entry per group."""


class DeleteGroups(Request, frozen=True, tag=38):
    """Forget groups that have no members, and their offsets."""

    reply: ClassVar = DeleteGroupsReply

    groups: Annotated[tuple[Name, ...], ENTRIES]
    """The groups, each at most once."""

    timeout_ms: Milliseconds = 30_000
    """How long the broker may wait until it is safe."""


class DeletedOffset(Entry, frozen=True):
    """What became of one partition's offset."""

    topic_id: TopicId
    """The topic."""

    index: Index
    """The partition's number in the topic."""

    error: ErrorCode = 0
    """0: nothing is committed of it any more."""

    message: Text | None = None
    """The error's fact with its numbers."""


class DeleteGroupOffsetsReply(Reply, frozen=True, tag=39):
    """What became of the offsets."""

    error: ErrorCode = 0
    """0: each entry says for itself."""

    message: Text | None = None
    """The error's fact with its numbers."""

    partitions: Annotated[tuple[DeletedOffset, ...], ENTRIES] = ()
    """One entry per entry of the request."""


class DeleteGroupOffsets(Request, frozen=True, tag=39):
    """Forget what a group has committed of partitions whose topics no member of it wants."""

    reply: ClassVar = DeleteGroupOffsetsReply

    group_id: Name
    """The group."""

    partitions: Annotated[tuple[PartitionIndex, ...], ENTRIES]
    """The partitions."""

    timeout_ms: Milliseconds = 30_000
    """How long the broker may wait until it is safe."""
