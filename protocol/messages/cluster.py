"""To the active controller: brokers come, stay and go, topics are made and removed (design 4.4, 4.5, 4.9, 5.3).

Every request names the quorum's epoch that it addresses: any other controller refuses it as NOT_CONTROLLER, so
that what was meant for an earlier one never reaches a later one (decision 7). Clients do not know that epoch;
the broker that they ask fills it in. All of them may be repeated: by the incarnation, the broker epoch or the
topic's name the controller knows what it has done already.
"""

from typing import Annotated, ClassVar

from tidelog.protocol.messages.shapes import (
    ENTRIES,
    LISTENERS,
    BrokerEpoch,
    BrokerId,
    CrashCode,
    Entry,
    Epoch,
    ErrorCode,
    Flag,
    Index,
    ListenerEndpoint,
    Milliseconds,
    Name,
    Number,
    Offset,
    PartitionIndex,
    Port,
    ProducerId,
    Reply,
    Request,
    Text,
    TopicId,
    TopicName,
    Uuid,
)
from tidelog.protocol.types import NO_EPOCH, NO_OFFSET, NO_PRODUCER_ID


class RegisterBrokerReply(Reply, frozen=True, tag=97):
    """The broker's registration."""

    error: ErrorCode = 0
    """0: registered, or it was already, by this process."""

    message: Text | None = None
    """The error's fact with its numbers."""

    broker_epoch: BrokerEpoch = NO_EPOCH
    """The registration: where it stands in the metadata log. Take no role before you have read that far."""

    cluster_id: Name = ""
    """The cluster, as 32 hexadecimal digits."""

    quorum_epoch: Epoch = NO_EPOCH
    """The quorum's epoch as the answering controller knows it."""

    start: Number = 0
    """With INVALID_REGISTRATION: which start of the same disk is registered. A disk that lost its count goes on there."""


class GoneReplica(Entry, frozen=True):
    """A replica whose directory was there and is not any more. Its topic's id is gone with it."""

    topic: TopicName
    """The topic."""

    index: Index
    """The partition's number in the topic."""


class DirectoryStanding(Entry, frozen=True):
    """One of a broker's disks, as its process found it when it started."""

    directory_id: Uuid
    """The disk."""

    crash_kind: CrashCode = 0
    """The worst end of a process on this disk since the last registration that it has on record."""

    incarnation_ids: Annotated[tuple[Uuid, ...], ENTRIES] = ()
    """The processes on this disk from that registration's on: if none of them is registered, something may be lost."""

    replicas: Annotated[tuple[PartitionIndex, ...], ENTRIES] = ()
    """What lies on it, be it readable or not."""

    gone: Annotated[tuple[GoneReplica, ...], ENTRIES] = ()
    """What lay on it and lies on no disk any more: it has lost everything, and was not merely never made."""


class RegisterBroker(Request, frozen=True, tag=97):
    """A broker's process has started: from now on its id means this process."""

    reply: ClassVar = RegisterBrokerReply

    broker_id: BrokerId
    """The broker."""

    quorum_epoch: Epoch
    """The controller's epoch that is addressed: any other answers NOT_CONTROLLER."""

    incarnation_id: Uuid
    """Drawn by the process when it started; the same in every repetition."""

    directory_id: Uuid
    """Its disk. Whoever has it has its lock too, so any older process on it is dead."""

    host: Name
    """The host that it advertises to brokers, and to clients that come in where brokers do."""

    port: Port
    """The port that it advertises to them."""

    rack: Name = ""
    """Where it stands; empty: it does not say."""

    cluster_id: Name = ""
    """The cluster that its disk belongs to; empty: none yet."""

    crash_kind: CrashCode = 0
    """The worst end of a process on this disk since the registration below."""

    prev_broker_epoch: BrokerEpoch = NO_EPOCH
    """The last registration on record on this disk; -1: none. It is told, and decides nothing."""

    incarnation_ids: Annotated[tuple[Uuid, ...], ENTRIES] = ()
    """The processes on this disk from that registration's on: if none of them is registered, something may be lost."""

    start: Number = 0
    """Which start of a process on this disk it is, counted from 1: an earlier one than is registered is refused."""

    listeners: Annotated[tuple[ListenerEndpoint, ...], LISTENERS] = ()
    """Where those are told to find it who come in by its other listeners; each name once."""

    directories: Annotated[tuple[DirectoryStanding, ...], ENTRIES] = ()
    """All its disks, the one above too, and what lies on each. A replica that lies on none has lost everything if one of
    those that were registered before is missing. Empty: there is the one above, and what is above is said of it."""


class BrokerHeartbeatReply(Reply, frozen=True, tag=98):
    """How the broker stands."""

    error: ErrorCode = 0
    """0: the broker is who it says, and the fields below hold."""

    message: Text | None = None
    """The error's fact with its numbers."""

    fenced: Flag = True
    """Whether it may lead nothing. If not, and if `renews`: it may serve for `session_timeout_ms` from when it sent this."""

    should_shutdown: Flag = False
    """It asked to shut down and is relieved of everything: it may stop."""

    caught_up: Flag = False
    """Whether it has read the metadata log as far as it needs to be unfenced."""

    session_timeout_ms: Milliseconds = 0
    """How long it may be silent before it is fenced."""

    quorum_epoch: Epoch = NO_EPOCH
    """The quorum's epoch as the answering controller knows it."""

    renews: Flag = True
    """Whether it may serve for longer than before: not until it has read which leadership was taken from it."""


class DamagedReplica(Entry, frozen=True):
    """A replica whose log is not what was written."""

    topic_id: TopicId
    """The topic."""

    index: Index
    """The partition."""

    leader_epoch: Epoch
    """The newest that the replica knows: said of an older one, it is no news."""


class BrokerHeartbeat(Request, frozen=True, tag=98):
    """A broker is alive, and says what it wants."""

    reply: ClassVar = BrokerHeartbeatReply

    broker_id: BrokerId
    """The broker."""

    broker_epoch: BrokerEpoch
    """Its registration."""

    quorum_epoch: Epoch
    """The controller's epoch that is addressed: any other answers NOT_CONTROLLER."""

    metadata_offset: Offset
    """How much of the metadata log it has read and acted upon, as an end."""

    want_fence: Flag = False
    """Relieve me at once of all leadership and every ISR."""

    want_shutdown: Flag = False
    """Relieve me in order, so that I can stop."""

    offline: Annotated[tuple[PartitionIndex, ...], ENTRIES] = ()
    """Replicas here that cannot be served: all of them, every time."""

    low_space: Flag = False
    """Whether a data directory has less free space than records are taken with. Prefer others for what is new."""

    unwritable: Annotated[tuple[PartitionIndex, ...], ENTRIES] = ()
    """Partitions led here that records are refused for, for want of room, and that others are in sync with: let one lead."""

    damaged: Annotated[tuple[DamagedReplica, ...], ENTRIES] = ()
    """Replicas here whose logs are damaged: all of them, every time, until the cluster counts on others."""


class AllocateProducerIdsReply(Reply, frozen=True, tag=99):
    """A block of producer ids."""

    error: ErrorCode = 0
    """0: the block below is the broker's own."""

    message: Text | None = None
    """The error's fact with its numbers."""

    first: ProducerId = NO_PRODUCER_ID
    """The first id."""

    count: Number = 0
    """How many ids there are from it on, for this process of the broker only."""

    quorum_epoch: Epoch = NO_EPOCH
    """The quorum's epoch as the answering controller knows it."""


class AllocateProducerIds(Request, frozen=True, tag=99):
    """A broker needs producer ids to give out; a lost answer wastes a block and nothing else."""

    reply: ClassVar = AllocateProducerIdsReply

    broker_id: BrokerId
    """The broker."""

    broker_epoch: BrokerEpoch
    """Its registration."""

    quorum_epoch: Epoch
    """The controller's epoch that is addressed: any other answers NOT_CONTROLLER."""


class ReplicaPlaces(Entry, frozen=True):
    """Where one partition is to be kept."""

    replicas: Annotated[tuple[BrokerId, ...], ENTRIES]
    """The brokers, the preferred leader first."""


class ConfigEntry(Entry, frozen=True):
    """A setting."""

    key: Name
    """Its name, with dots, as Kafka has it."""

    value: Text
    """Its value."""


class NewTopic(Entry, frozen=True):
    """A topic that is to be."""

    name: TopicName
    """Its name."""

    partitions: Index = 0
    """How many partitions; 0: as many as the cluster's default."""

    replication_factor: Index = 0
    """How many brokers keep each of them; 0: as many as the cluster's default."""

    assignment: Annotated[tuple[ReplicaPlaces, ...], ENTRIES] = ()
    """Instead of both: who keeps which partition, one entry per partition."""

    configs: Annotated[tuple[ConfigEntry, ...], ENTRIES] = ()
    """Its settings that differ from the cluster's."""


class CreatedTopic(Entry, frozen=True):
    """What became of one topic that was to be."""

    name: TopicName
    """Its name."""

    error: ErrorCode = 0
    """0: it exists; TOPIC_ALREADY_EXISTS after a lost answer means the same."""

    message: Text | None = None
    """The error's fact with its numbers."""

    topic_id: TopicId | None = None
    """Its id; nil with an error, or where it was only validated."""

    partitions: Index = 0
    """How many partitions it has."""

    replication_factor: Index = 0
    """How many brokers keep each of them."""


class CreateTopicsReply(Reply, frozen=True, tag=64):
    """What became of each topic."""

    topics: Annotated[tuple[CreatedTopic, ...], ENTRIES] = ()
    """One entry per entry of the request, in its order."""

    error: ErrorCode = 0
    """An error of the request as a whole."""

    message: Text | None = None
    """The error's fact with its numbers."""

    metadata_offset: Offset = NO_OFFSET
    """Whoever has read the metadata log so far knows the topics."""

    quorum_epoch: Epoch = NO_EPOCH
    """The quorum's epoch as the answering controller knows it."""


class CreateTopics(Request, frozen=True, tag=64):
    """Make topics: each by itself, all of its partitions or none."""

    reply: ClassVar = CreateTopicsReply

    topics: Annotated[tuple[NewTopic, ...], ENTRIES]
    """The topics, a name at most once."""

    validate_only: Flag = False
    """Say what would become of them, and do nothing."""

    timeout_ms: Milliseconds = 30_000
    """How long the answer may take."""

    quorum_epoch: Epoch = NO_EPOCH
    """The controller's epoch that is addressed; -1 from clients, whose broker fills it in."""


class RemovedTopic(Entry, frozen=True):
    """What became of one topic that was to go."""

    name: TopicName = ""
    """Its name; empty where an unknown id was given."""

    topic_id: TopicId | None = None
    """Its id; nil where an unknown name was given."""

    error: ErrorCode = 0
    """0: it is gone."""

    message: Text | None = None
    """The error's fact with its numbers."""


class DeleteTopicsReply(Reply, frozen=True, tag=65):
    """What became of each topic."""

    topics: Annotated[tuple[RemovedTopic, ...], ENTRIES] = ()
    """One entry per name, then one per id, in the request's order."""

    error: ErrorCode = 0
    """An error of the request as a whole."""

    message: Text | None = None
    """The error's fact with its numbers."""

    metadata_offset: Offset = NO_OFFSET
    """Whoever has read the metadata log so far knows that they are gone."""

    quorum_epoch: Epoch = NO_EPOCH
    """The quorum's epoch as the answering controller knows it."""


class DeleteTopics(Request, frozen=True, tag=65):
    """Remove topics with all their records, for ever."""

    reply: ClassVar = DeleteTopicsReply

    names: Annotated[tuple[TopicName, ...], ENTRIES] = ()
    """Topics by name."""

    ids: Annotated[tuple[TopicId, ...], ENTRIES] = ()
    """Topics by id: a topic created anew under the name is safe from this."""

    timeout_ms: Milliseconds = 30_000
    """How long the answer may take."""

    quorum_epoch: Epoch = NO_EPOCH
    """The controller's epoch that is addressed; -1 from clients, whose broker fills it in."""
