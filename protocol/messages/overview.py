"""The cluster at a glance, and what would be moved where (design 4.9): tools ask before they act.

Any broker tells what it knows of the cluster. Plans are made by the active controller and change nothing: whoever has
asked orders the moves, all or some of them, by AlterReassignments.
"""

from typing import Annotated, ClassVar

from tidelog.protocol.messages.admin import PartitionMove
from tidelog.protocol.messages.shapes import (
    ENTRIES,
    BrokerEpoch,
    BrokerId,
    Entry,
    Epoch,
    ErrorCode,
    Flag,
    Index,
    Milliseconds,
    Name,
    Number,
    Offset,
    Port,
    Reply,
    Request,
    Text,
    TopicName,
    Uuid,
)
from tidelog.protocol.types import NO_BROKER, NO_EPOCH, NO_OFFSET


class BrokerDescribed(Entry, frozen=True):
    """A registered broker, alive or not."""

    id: BrokerId
    """The broker."""

    host: Name
    """The host that it advertises."""

    port: Port
    """The port that it advertises."""

    rack: Name = ""
    """Where it stands; empty: it does not say."""

    broker_epoch: BrokerEpoch = NO_EPOCH
    """Its registration."""

    fenced: Flag = False
    """Whether it is not alive: it leads nothing and is in no ISR."""

    shutting_down: Flag = False
    """Whether it is about to stop."""

    leads: Number = 0
    """How many partitions it leads."""

    replicas: Number = 0
    """How many it keeps."""

    offline: Number = 0
    """How many of those it cannot serve: their disk or their log has failed."""

    low_space: Flag = False
    """Whether it refuses records for want of room on a disk."""

    damaged: Number = 0
    """How many are damaged, and nobody else is in sync: what is damaged there can be read nowhere."""


class PossibleLoss(Entry, frozen=True):
    """A partition whose leader was elected although it may lack committed records."""

    topic: TopicName
    """The topic."""

    index: Index
    """The partition's number in the topic."""

    leader_epoch: Epoch
    """The leadership that began so, and goes on."""

    leader: BrokerId = NO_BROKER
    """Who was elected; -1: nobody leads at this moment."""


class DescribeClusterReply(Reply, frozen=True, tag=73):
    """The cluster as one broker knows it."""

    error: ErrorCode = 0
    """Why nothing can be said."""

    message: Text | None = None
    """The error's fact with its numbers."""

    cluster_id: Name = ""
    """The cluster, as 32 hexadecimal digits."""

    metadata_offset: Offset = NO_OFFSET
    """How much of the metadata log this answer reflects."""

    quorum_epoch: Epoch = NO_EPOCH
    """The quorum's epoch as the broker knows it."""

    brokers: Annotated[tuple[BrokerDescribed, ...], ENTRIES] = ()
    """Every broker that is registered, by id."""

    topics: Number = 0
    """How many topics there are."""

    partitions: Number = 0
    """How many partitions they have."""

    without_leader: Number = 0
    """How many of them nobody leads: they can be neither written nor read."""

    under_min_isr: Number = 0
    """How many have too few replicas in sync for a write with `acks=all`."""

    under_replicated: Number = 0
    """How many have a replica that is not in sync."""

    moving: Number = 0
    """How many are being moved to other brokers."""

    unclean: Number = 0
    """How many are led by whoever may have lacked committed records when it was elected."""

    possible_losses: Annotated[tuple[PossibleLoss, ...], ENTRIES] = ()
    """Those, a thousand of them at most."""


class DescribeCluster(Request, frozen=True, tag=73):
    """Ask a broker for all brokers that it knows of, and how the partitions are."""

    reply: ClassVar = DescribeClusterReply

    brokers_only: Flag = False
    """Leave out whatever is counted over all partitions."""


class PlanMovesReply(Reply, frozen=True, tag=74):
    """Moves that would do it; none: it is so already."""

    error: ErrorCode = 0
    """Why there is no such plan."""

    message: Text | None = None
    """The error's fact with its numbers."""

    moves: Annotated[tuple[PartitionMove, ...], ENTRIES] = ()
    """Where each partition would be."""

    metadata_offset: Offset = NO_OFFSET
    """How much of the metadata log the plan rests upon."""

    quorum_epoch: Epoch = NO_EPOCH
    """The quorum's epoch as the answering controller knows it."""


class PlanMoves(Request, frozen=True, tag=74):
    """Ask where partitions would go so that a broker keeps none, or all keep as many."""

    reply: ClassVar = PlanMovesReply

    drain: BrokerId = NO_BROKER
    """The broker that is to keep nothing; -1: all that are alive are to keep as many as any other."""

    spare: Annotated[tuple[BrokerId, ...], ENTRIES] = ()
    """Brokers that are to be given nothing."""

    timeout_ms: Milliseconds = 30_000
    """How long the answer may take."""

    quorum_epoch: Epoch = NO_EPOCH
    """The controller's epoch that is addressed; -1 from clients, whose broker fills it in."""


class ReplicaOnDisk(Entry, frozen=True):
    """A log that lies in a directory."""

    topic: TopicName
    """The topic."""

    index: Index
    """The partition's number in the topic."""

    error: ErrorCode = 0
    """Why it cannot be used; then the fields below say nothing."""

    message: Text | None = None
    """The error's fact with its numbers."""

    size: Number = 0
    """How many bytes of batches it holds."""

    end_offset: Offset = NO_OFFSET
    """The offset behind its last record."""

    lag: Number = 0
    """How many committed offsets it lacks, as far as this broker knows."""


class LogDirectory(Entry, frozen=True):
    """A data directory of a broker."""

    path: Text
    """Where it is, on the broker's machine."""

    directory_id: Uuid
    """The directory, wherever it is."""

    error: ErrorCode = 0
    """Why nothing in it is believed any more; then nothing that lies there is told."""

    message: Text | None = None
    """The error's fact with its numbers."""

    free: Number = 0
    """How many bytes may still be written there, by the last look, a second ago or so."""

    low_space: Flag = False
    """Whether records are refused for want of room there."""

    replicas: Annotated[tuple[ReplicaOnDisk, ...], ENTRIES] = ()
    """What lies there, by topic and number."""


class DescribeLogDirsReply(Reply, frozen=True, tag=75):
    """The directories, the one with the metadata log first."""

    error: ErrorCode = 0
    """Why nothing can be said."""

    message: Text | None = None
    """The error's fact with its numbers."""

    directories: Annotated[tuple[LogDirectory, ...], ENTRIES] = ()
    """All of them, also those that have failed."""


class DescribeLogDirs(Request, frozen=True, tag=75):
    """Ask a broker for its data directories, and what lies in them: each broker knows its own only."""

    reply: ClassVar = DescribeLogDirsReply

    topics: Annotated[tuple[TopicName, ...], ENTRIES] = ()
    """Leave out other topics; empty: all."""
