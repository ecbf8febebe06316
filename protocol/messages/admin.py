"""Operators to the cluster: settings, elections, moves, more partitions, brokers that go (design 4.8 to 4.11).

Clients ask any broker, which hands on to the active controller (decision 21). Every entry of a request is decided
by itself, and answered with its own error; an error of the whole means that nothing was decided. All of them may
be repeated: where the first copy has done it already, the second says that there is nothing to do.

`validate_only` says what would become of it and does nothing: tools ask so before they ask for consent.
"""

from typing import Annotated, ClassVar

from tidelog.protocol.messages.cluster import ReplicaPlaces
from tidelog.protocol.messages.shapes import (
    ENTRIES,
    BrokerEpoch,
    BrokerId,
    CrashCode,
    Entry,
    Epoch,
    ErrorCode,
    Flag,
    Index,
    Milliseconds,
    Name,
    Number,
    Offset,
    PartitionIndex,
    Reply,
    Request,
    Text,
    TopicId,
    TopicName,
)
from tidelog.protocol.types import NO_BROKER, NO_EPOCH, NO_OFFSET

# ── more partitions ───────────────────────────────────────────────────────────────────────────────────


class NewPartitions(Entry, frozen=True):
    """A topic that is to have more partitions."""

    name: TopicName
    """The topic."""

    count: Index
    """How many partitions it is to have, those that it has included."""

    assignment: Annotated[tuple[ReplicaPlaces, ...], ENTRIES] = ()
    """Who keeps each of the new ones; empty: the controller decides."""


class CreatedPartitions(Entry, frozen=True):
    """What became of one topic."""

    name: TopicName
    """The topic."""

    error: ErrorCode = 0
    """0: it has that many; INVALID_PARTITIONS after a lost answer may mean the same."""

    message: Text | None = None
    """The error's fact with its numbers."""

    partitions: Index = 0
    """How many it has from now on."""

    warning: Text | None = None
    """What to know about it: keys lie in other partitions than before."""


class CreatePartitionsReply(Reply, frozen=True, tag=66):
    """What became of each topic."""

    topics: Annotated[tuple[CreatedPartitions, ...], ENTRIES] = ()
    """One entry per entry of the request, in its order."""

    error: ErrorCode = 0
    """An error of the request as a whole."""

    message: Text | None = None
    """The error's fact with its numbers."""

    metadata_offset: Offset = NO_OFFSET
    """Whoever has read the metadata log so far knows the partitions."""

    quorum_epoch: Epoch = NO_EPOCH
    """The quorum's epoch as the answering controller knows it."""


class CreatePartitions(Request, frozen=True, tag=66):
    """Give topics more partitions: each by itself, all that were asked for or none."""

    reply: ClassVar = CreatePartitionsReply

    topics: Annotated[tuple[NewPartitions, ...], ENTRIES]
    """The topics, a name at most once."""

    validate_only: Flag = False
    """Say what would become of them, and do nothing."""

    timeout_ms: Milliseconds = 30_000
    """How long the answer may take."""

    quorum_epoch: Epoch = NO_EPOCH
    """The controller's epoch that is addressed; -1 from clients, whose broker fills it in."""


# ── settings ──────────────────────────────────────────────────────────────────────────────────────────


class ConfigAlter(Entry, frozen=True):
    """A setting that is to be another."""

    key: Name
    """Its name, with dots, as Kafka has it; underscores are taken for dots."""

    value: Text | None = None
    """Its value; nil: it is not to be set here, what is set above or the default holds."""


class ResourceAlter(Entry, frozen=True):
    """What is to be set for one topic, one broker or the cluster."""

    resource_type: Name
    """`topic`, `broker` or `cluster`."""

    resource_name: Name
    """The topic's name or the broker's id; empty for the cluster."""

    configs: Annotated[tuple[ConfigAlter, ...], ENTRIES]
    """The settings, a key at most once: all of them are taken, or none."""


class ResourceAltered(Entry, frozen=True):
    """What became of the settings of one resource."""

    resource_type: Name
    """Its type."""

    resource_name: Name
    """Its name."""

    error: ErrorCode = 0
    """0: they hold from now on."""

    message: Text | None = None
    """The error's fact with its numbers: which key, which value, and what would be accepted."""

    warning: Text | None = None
    """What to know about it: a value that is clamped, or holds only for what is made later."""


class AlterConfigsReply(Reply, frozen=True, tag=67):
    """What became of each resource's settings."""

    resources: Annotated[tuple[ResourceAltered, ...], ENTRIES] = ()
    """One entry per entry of the request, in its order."""

    error: ErrorCode = 0
    """An error of the request as a whole."""

    message: Text | None = None
    """The error's fact with its numbers."""

    metadata_offset: Offset = NO_OFFSET
    """Whoever has read the metadata log so far obeys the settings."""

    quorum_epoch: Epoch = NO_EPOCH
    """The quorum's epoch as the answering controller knows it."""


class AlterConfigs(Request, frozen=True, tag=67):
    """Set some settings and leave all others as they are: Kafka's IncrementalAlterConfigs."""

    reply: ClassVar = AlterConfigsReply

    resources: Annotated[tuple[ResourceAlter, ...], ENTRIES]
    """What is to be set, a resource at most once."""

    validate_only: Flag = False
    """Say whether it would be taken, and do nothing."""

    timeout_ms: Milliseconds = 30_000
    """How long the answer may take."""

    quorum_epoch: Epoch = NO_EPOCH
    """The controller's epoch that is addressed; -1 from clients, whose broker fills it in."""


class ResourceQuery(Entry, frozen=True):
    """Whose settings are asked for."""

    resource_type: Name
    """`topic`, `broker` or `cluster`."""

    resource_name: Name
    """The topic's name or the broker's id; empty for the cluster."""

    keys: Annotated[tuple[Name, ...], ENTRIES] = ()
    """Which settings; empty: all that it has."""


class ConfigDescribed(Entry, frozen=True):
    """A setting as it is."""

    key: Name
    """Its name."""

    value: Text | None = None
    """What is configured, here or above; nil: nothing is, and there is no default."""

    source: Name = ""
    """Where that stands: `topic`, `broker`, `cluster`, `controller` (what the active one was started with), `start` (what a
    broker was started with, by itself) or `default`."""

    effective: Text | None = None
    """What holds, where it differs from what is configured: `min.insync.replicas` is at most the replicas."""

    read_only: Flag = False
    """Whether it is read when a process starts, and cannot be set through the cluster."""

    documentation: Text | None = None
    """What it is for."""


class ResourceDescribed(Entry, frozen=True):
    """The settings of one resource."""

    resource_type: Name
    """Its type."""

    resource_name: Name
    """Its name."""

    error: ErrorCode = 0
    """Why they cannot be named: there is no such resource, say."""

    message: Text | None = None
    """The error's fact with its numbers."""

    configs: Annotated[tuple[ConfigDescribed, ...], ENTRIES] = ()
    """Its settings, by name."""


class DescribeConfigsReply(Reply, frozen=True, tag=68):
    """The settings that were asked for."""

    resources: Annotated[tuple[ResourceDescribed, ...], ENTRIES] = ()
    """One entry per entry of the request, in its order."""

    error: ErrorCode = 0
    """An error of the request as a whole."""

    message: Text | None = None
    """The error's fact with its numbers."""

    metadata_offset: Offset = NO_OFFSET
    """How much of the metadata log this answer reflects."""

    quorum_epoch: Epoch = NO_EPOCH
    """The quorum's epoch as the answering controller knows it."""


class DescribeConfigs(Request, frozen=True, tag=68):
    """Ask for settings, where they stand, and what holds."""

    reply: ClassVar = DescribeConfigsReply

    resources: Annotated[tuple[ResourceQuery, ...], ENTRIES]
    """Whose."""

    quorum_epoch: Epoch = NO_EPOCH
    """The controller's epoch that is addressed; -1 from clients, whose broker fills it in."""

    timeout_ms: Milliseconds = 30_000
    """How long the answer may take."""


# ── elections ─────────────────────────────────────────────────────────────────────────────────────────


class PartitionElected(Entry, frozen=True):
    """What became of one partition's leadership."""

    topic_id: TopicId
    """The topic."""

    index: Index
    """The partition's number in the topic."""

    error: ErrorCode = 0
    """ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE, ELIGIBLE_LEADERS_NOT_AVAILABLE; 0: it was elected."""

    message: Text | None = None
    """The error's fact with its numbers."""

    leader: BrokerId = NO_BROKER
    """Who leads from now on."""

    leader_epoch: Epoch = NO_EPOCH
    """Since which epoch."""

    unclean: Flag = False
    """Whether committed records may be lost by it."""


class ElectLeadersReply(Reply, frozen=True, tag=69):
    """What became of each partition's leadership."""

    partitions: Annotated[tuple[PartitionElected, ...], ENTRIES] = ()
    """One entry per entry of the request, in its order; of all partitions those where something was to be done."""

    error: ErrorCode = 0
    """An error of the request as a whole."""

    message: Text | None = None
    """The error's fact with its numbers."""

    metadata_offset: Offset = NO_OFFSET
    """Whoever has read the metadata log so far knows the leaders."""

    quorum_epoch: Epoch = NO_EPOCH
    """The quorum's epoch as the answering controller knows it."""


class ElectLeaders(Request, frozen=True, tag=69):
    """Let the first replica of partitions lead; or somebody at all, even if committed records are lost by it."""

    reply: ClassVar = ElectLeadersReply

    partitions: Annotated[tuple[PartitionIndex, ...], ENTRIES] | None = None
    """The partitions, each at most once; nil: all."""

    unclean: Flag = False
    """False: the preferred leader. True: of partitions without a leader, whoever is alive and has most."""

    validate_only: Flag = False
    """Say what would become of them, and do nothing."""

    timeout_ms: Milliseconds = 30_000
    """How long the answer may take."""

    quorum_epoch: Epoch = NO_EPOCH
    """The controller's epoch that is addressed; -1 from clients, whose broker fills it in."""


# ── moves ─────────────────────────────────────────────────────────────────────────────────────────────


class PartitionMove(Entry, frozen=True):
    """Where a partition is to be."""

    topic_id: TopicId
    """The topic."""

    index: Index
    """The partition's number in the topic."""

    target: Annotated[tuple[BrokerId, ...], ENTRIES] | None = None
    """Who is to keep it, the preferred leader first; nil: the move that goes on is cancelled."""


class PartitionMoved(Entry, frozen=True):
    """What became of one partition's move."""

    topic_id: TopicId
    """The topic."""

    index: Index
    """The partition's number in the topic."""

    error: ErrorCode = 0
    """0: it goes on, or it is complete at once, or cancelled."""

    message: Text | None = None
    """The error's fact with its numbers."""

    replicas: Annotated[tuple[BrokerId, ...], ENTRIES] = ()
    """Who has it from now on: the target first, then who is to leave."""

    adding: Annotated[tuple[BrokerId, ...], ENTRIES] = ()
    """Who has to copy it."""

    removing: Annotated[tuple[BrokerId, ...], ENTRIES] = ()
    """Who leaves when those have."""


class AlterReassignmentsReply(Reply, frozen=True, tag=70):
    """What became of each move."""

    partitions: Annotated[tuple[PartitionMoved, ...], ENTRIES] = ()
    """One entry per entry of the request, in its order."""

    error: ErrorCode = 0
    """An error of the request as a whole."""

    message: Text | None = None
    """The error's fact with its numbers."""

    metadata_offset: Offset = NO_OFFSET
    """Whoever has read the metadata log so far knows the moves."""

    quorum_epoch: Epoch = NO_EPOCH
    """The quorum's epoch as the answering controller knows it."""


class AlterReassignments(Request, frozen=True, tag=70):
    """Move partitions to other brokers, or cancel moves; each by itself."""

    reply: ClassVar = AlterReassignmentsReply

    partitions: Annotated[tuple[PartitionMove, ...], ENTRIES]
    """The moves, a partition at most once. A new target replaces an old one."""

    throttle_bytes_s: Number | None = None
    """What one broker hands out in a second to replicas that are copied for moves, until all moves have ended; 0: as
    much as it can; nil: as it was."""

    validate_only: Flag = False
    """Say what would become of them, and do nothing."""

    timeout_ms: Milliseconds = 30_000
    """How long the answer may take: the answer says that the moves have begun."""

    quorum_epoch: Epoch = NO_EPOCH
    """The controller's epoch that is addressed; -1 from clients, whose broker fills it in."""


class PartitionMoving(Entry, frozen=True):
    """A move that goes on."""

    topic_id: TopicId
    """The topic."""

    index: Index
    """The partition's number in the topic."""

    replicas: Annotated[tuple[BrokerId, ...], ENTRIES] = ()
    """Who has it: the target first, then who is to leave."""

    adding: Annotated[tuple[BrokerId, ...], ENTRIES] = ()
    """Who has to copy it."""

    removing: Annotated[tuple[BrokerId, ...], ENTRIES] = ()
    """Who leaves when those have."""

    isr: Annotated[tuple[BrokerId, ...], ENTRIES] = ()
    """Who has everything: the move is complete when all of the target are among them."""

    waiting_for: Annotated[tuple[BrokerId, ...], ENTRIES] = ()
    """Those of the target that are not, and are not alive either: the move cannot end without them."""


class ListReassignmentsReply(Reply, frozen=True, tag=71):
    """The moves that go on."""

    partitions: Annotated[tuple[PartitionMoving, ...], ENTRIES] = ()
    """One entry per partition that is being moved."""

    throttle_bytes_s: Number = 0
    """What one broker hands out for moves in a second; 0: as much as it can."""

    error: ErrorCode = 0
    """An error of the request as a whole."""

    message: Text | None = None
    """The error's fact with its numbers."""

    metadata_offset: Offset = NO_OFFSET
    """How much of the metadata log this answer reflects."""

    quorum_epoch: Epoch = NO_EPOCH
    """The quorum's epoch as the answering controller knows it."""


class ListReassignments(Request, frozen=True, tag=71):
    """Ask which partitions are being moved."""

    reply: ClassVar = ListReassignmentsReply

    partitions: Annotated[tuple[PartitionIndex, ...], ENTRIES] | None = None
    """Of which; nil: all."""

    quorum_epoch: Epoch = NO_EPOCH
    """The controller's epoch that is addressed; -1 from clients, whose broker fills it in."""

    timeout_ms: Milliseconds = 30_000
    """How long the answer may take."""


# ── brokers that go ───────────────────────────────────────────────────────────────────────────────────


class UnregisterBrokerReply(Reply, frozen=True, tag=72):
    """Whether the broker is gone."""

    error: ErrorCode = 0
    """0: it is not part of the cluster any more."""

    message: Text | None = None
    """The error's fact with its numbers."""

    metadata_offset: Offset = NO_OFFSET
    """Whoever has read the metadata log so far knows that it is gone."""

    quorum_epoch: Epoch = NO_EPOCH
    """The quorum's epoch as the answering controller knows it."""


class UnregisterBroker(Request, frozen=True, tag=72):
    """A broker that was stopped will not come back."""

    reply: ClassVar = UnregisterBrokerReply

    broker_id: BrokerId
    """The broker."""

    force: Flag = False
    """Even if it is a replica of something: what it has is given up."""

    timeout_ms: Milliseconds = 30_000
    """How long the answer may take."""

    quorum_epoch: Epoch = NO_EPOCH
    """The controller's epoch that is addressed; -1 from clients, whose broker fills it in."""


# ── who has most ──────────────────────────────────────────────────────────────────────────────────────


class ReplicaLogInfo(Entry, frozen=True):
    """How much a broker has of one partition."""

    topic_id: TopicId
    """The topic."""

    index: Index
    """The partition's number in the topic."""

    error: ErrorCode = 0
    """Why it cannot say: it has no such replica, or cannot read it."""

    message: Text | None = None
    """The error's fact with its numbers."""

    last_epoch: Epoch = NO_EPOCH
    """The leader epoch of its last record; -1: it has none."""

    end_offset: Offset = NO_OFFSET
    """The end of its log."""

    durable_offset: Offset = NO_OFFSET
    """What of it is on stable storage, as an end."""


class GetReplicaLogInfoReply(Reply, frozen=True, tag=93):
    """How much the broker has of each partition."""

    error: ErrorCode = 0
    """An error of the request as a whole."""

    message: Text | None = None
    """The error's fact with its numbers."""

    broker_epoch: BrokerEpoch = NO_EPOCH
    """The registration of the process that answers: of any other than the newest it counts for nothing."""

    crash_kind: CrashCode = 0
    """The worst end of a process on this disk since the registration before."""

    partitions: Annotated[tuple[ReplicaLogInfo, ...], ENTRIES] = ()
    """One entry per entry of the request, in its order."""


class GetReplicaLogInfo(Request, frozen=True, tag=93):
    """The controller asks a broker what it has of partitions that nobody leads (KIP-966)."""

    reply: ClassVar = GetReplicaLogInfoReply

    quorum_epoch: Epoch
    """The epoch of the controller that asks: an older one than the broker has heard of is refused."""

    partitions: Annotated[tuple[PartitionIndex, ...], ENTRIES]
    """The partitions."""
