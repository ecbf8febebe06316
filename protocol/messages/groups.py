"""Consumer groups (design 5.6, 5.7): who consumes what, how far it has come, and what operators ask about it.

A group is coordinated by one broker, the leader of one partition of `__consumer_offsets`; any broker says which
(`FindCoordinator`). Topics are named by their ids: offsets of a topic that was deleted are not those of the next one
of its name. Where an entry has an error of its own, the others were served.
"""

from typing import Annotated, ClassVar, Final

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
    Port,
    Reply,
    Request,
    Sequence,
    Text,
    Timestamp,
    TopicId,
    TopicName,
)
from tidelog.protocol.types import NO_BROKER, NO_EPOCH, NO_OFFSET, NO_TIMESTAMP

JOIN: Final = 0
"""`member_epoch`: this member joins, or joins again and has nothing any more."""

LEAVE: Final = -1
"""`member_epoch`: this member leaves, for good if it is not a static one of which another process will come."""

LEAVE_FOR_A_WHILE: Final = -2
"""`member_epoch`: this static member stops and its partitions are kept for the next process of its instance id."""

NO_MEMBER: Final = -1
"""`member_epoch` of a commit: whoever commits is no member, and the group must have none."""


class TopicPartitions(Entry, frozen=True):
    """Some partitions of one topic."""

    topic_id: TopicId
    """The topic."""

    indexes: Annotated[tuple[Index, ...], ENTRIES]
    """The partitions' numbers in the topic, ascending."""

    topic: TopicName = ""
    """The topic's name, where a broker says it; empty: it does not say."""


class Subscription(Entry, frozen=True):
    """What a member tells of itself, always as a whole."""

    topics: Annotated[tuple[TopicName, ...], ENTRIES]
    """The topics that it wants to consume, by name; they need not exist yet."""

    assignor: Name = ""
    """Who shares out partitions: `uniform` or `range`; empty: whichever the group uses."""

    rack: Name = ""
    """Where it stands, to be given partitions that have a replica there; empty: it does not say."""

    rebalance_timeout_ms: Milliseconds = 300_000
    """How long it may take to give up partitions that it is asked for, before it is put out of the group."""

    session_timeout_ms: Milliseconds = 0
    """How long it may be silent before it is put out of the group; 0: as the broker has it."""


class GroupHeartbeatReply(Reply, frozen=True, tag=33):
    """Where the member stands, and what it is to consume if that has changed."""

    error: ErrorCode = 0
    """0: the fields below hold."""

    message: Text | None = None
    """The error's fact with its numbers."""

    member_epoch: MemberEpoch = 0
    """What the member says in its next heartbeat and in its commits."""

    heartbeat_interval_ms: Milliseconds = 0
    """When to heartbeat again at the latest, from this answer on."""

    assignment: Annotated[tuple[TopicPartitions, ...], ENTRIES] | None = None
    """All that it may consume now, and nothing else; nil: what it was told last."""


class GroupHeartbeat(Request, frozen=True, tag=33):
    """Say that a member lives, what it wants and what it has; it joins and leaves by this as well."""

    reply: ClassVar = GroupHeartbeatReply

    group_id: Name
    """The group."""

    member_id: Name
    """The member: drawn at random by its process, one for each consumer."""

    member_epoch: MemberEpoch
    """What the coordinator told it last; 0: it joins; -1: it leaves; -2: it leaves for a while."""

    sequence: Sequence
    """Grows with every heartbeat of this member: an older one that arrives late has no effect."""

    instance_id: Name | None = None
    """Of a static member: the same for each process that takes the place of the one before; nil: it is not static."""

    subscription: Subscription | None = None
    """What it tells of itself; nil: what it told last. Whoever joins says it."""

    owned: Annotated[tuple[TopicPartitions, ...], ENTRIES] | None = None
    """All that it consumes or has not finished giving up; nil: as much as it was given last."""

    max_wait_ms: Milliseconds = 0
    """How long the answer may wait for news; without news it says then that there are none."""


class OffsetToCommit(Entry, frozen=True):
    """How far one partition was consumed."""

    topic_id: TopicId
    """The topic."""

    index: Index
    """The partition's number in the topic."""

    offset: Offset
    """The next record to be consumed."""

    leader_epoch: Epoch = NO_EPOCH
    """The epoch of the last record that was consumed; -1: unknown."""

    metadata: Text = ""
    """Whatever the consumer wants to find again with it."""

    timestamp: Timestamp = NO_TIMESTAMP
    """The time of the last record that was consumed; -1: unknown."""


class OffsetCommitted(Entry, frozen=True):
    """What became of one commit."""

    topic_id: TopicId
    """The topic."""

    index: Index
    """The partition's number in the topic."""

    error: ErrorCode = 0
    """0: this offset, or a later commit of the same member, is what the group finds again."""

    message: Text | None = None
    """The error's fact with its numbers."""


class OffsetCommitReply(Reply, frozen=True, tag=34):
    """What became of the commits."""

    error: ErrorCode = 0
    """0: each entry says for itself."""

    message: Text | None = None
    """The error's fact with its numbers."""

    partitions: Annotated[tuple[OffsetCommitted, ...], ENTRIES] = ()
    """One entry per entry of the request."""


class OffsetCommit(Request, frozen=True, tag=34):
    """Remember how far a group has come."""

    reply: ClassVar = OffsetCommitReply

    group_id: Name
    """The group."""

    partitions: Annotated[tuple[OffsetToCommit, ...], ENTRIES]
    """One entry per partition, a partition at most once."""

    member_id: Name = ""
    """The member that has consumed them; who is none may say an id that it has drawn, or, as with a reset by an operator,
    nothing."""

    member_epoch: MemberEpoch = NO_MEMBER
    """The member's epoch; -1: it is no member, and the group must have none."""

    instance_id: Name | None = None
    """Of a static member; nil: it is not static."""

    commit_sequence: Sequence = 0
    """Grows with every commit of this member: an older one that arrives late changes nothing."""

    timeout_ms: Milliseconds = 30_000
    """How long the broker may wait until the commit is safe."""

    validate_only: Flag = False
    """Say what would become of it, and change nothing."""


class CommittedPartition(Entry, frozen=True):
    """What a group has committed of one partition."""

    topic_id: TopicId
    """The topic."""

    index: Index
    """The partition's number in the topic."""

    error: ErrorCode = 0
    """0: the fields below hold."""

    message: Text | None = None
    """The error's fact with its numbers."""

    offset: Offset = NO_OFFSET
    """The next record to be consumed; -1: nothing is committed."""

    leader_epoch: Epoch = NO_EPOCH
    """The epoch of the record before; -1: unknown."""

    metadata: Text = ""
    """What was committed with it."""

    from_beginning: Flag = False
    """Nothing is committed, and the partition appeared after the group began: it is read from its start."""

    commit_ms: Timestamp = NO_TIMESTAMP
    """When it was committed."""


class OffsetFetchReply(Reply, frozen=True, tag=35):
    """How far the group has come."""

    error: ErrorCode = 0
    """0: each entry says for itself."""

    message: Text | None = None
    """The error's fact with its numbers."""

    partitions: Annotated[tuple[CommittedPartition, ...], ENTRIES] = ()
    """One entry per partition that was asked for, in that order, or per partition of which something is committed."""

    more: Flag = False
    """Whether there are more behind the last one: ask for those that were asked for and are not here, or `after` it."""


class OffsetFetch(Request, frozen=True, tag=35):
    """Ask how far a group has come; only what is committed by the replicas is told."""

    reply: ClassVar = OffsetFetchReply

    group_id: Name
    """The group."""

    partitions: Annotated[tuple[PartitionIndex, ...], ENTRIES] | None = None
    """Which partitions; nil: all of which something is committed."""

    member_id: Name = ""
    """The member that asks; empty: it is none."""

    member_epoch: MemberEpoch = NO_MEMBER
    """The member's epoch; -1: it is no member."""

    after: PartitionIndex | None = None
    """Where all are asked for: only those behind this one, by topic id and number; nil: from the first one."""

    limit: Number = 10_000
    """At most so many."""


class Coordinator(Entry, frozen=True):
    """Who coordinates one group."""

    key: Name
    """The group."""

    error: ErrorCode = 0
    """0: the fields below hold."""

    message: Text | None = None
    """The error's fact with its numbers."""

    broker_id: BrokerId = NO_BROKER
    """The coordinator."""

    host: Name = ""
    """The host that it advertises."""

    port: Port = 0
    """The port that it advertises."""


class FindCoordinatorReply(Reply, frozen=True, tag=32):
    """Who coordinates what."""

    coordinators: Annotated[tuple[Coordinator, ...], ENTRIES] = ()
    """One entry per key."""


class FindCoordinator(Request, frozen=True, tag=32):
    """Ask who coordinates groups; the topic that holds them is created when nobody has asked before."""

    reply: ClassVar = FindCoordinatorReply

    keys: Annotated[tuple[Name, ...], ENTRIES]
    """The groups."""

    timeout_ms: Milliseconds = 30_000
    """How long the broker may wait for the topic to be created."""
