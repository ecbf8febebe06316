"""What clients learn about the cluster: its brokers, and who leads what (design 5.2).

A broker answers from its own copy of the metadata, which may be old: `metadata_offset` says how old, and a
client keeps of two answers about a partition the one with the higher leader epoch.
"""

from typing import Annotated, ClassVar

from tidelog.protocol.messages.shapes import (
    ENTRIES,
    BrokerId,
    Entry,
    Epoch,
    ErrorCode,
    Flag,
    Index,
    Name,
    Offset,
    Port,
    Reply,
    Request,
    Size,
    Text,
    TopicId,
    TopicName,
)
from tidelog.protocol.types import NO_BROKER, NO_EPOCH, NO_OFFSET


class BrokerEndpoint(Entry, frozen=True):
    """Where a broker is reached."""

    id: BrokerId
    """The broker."""

    host: Name
    """The host that it advertises."""

    port: Port
    """The port that it advertises."""

    rack: Name = ""
    """Where it stands; empty: it does not say."""


class PartitionMetadata(Entry, frozen=True):
    """Who holds a partition."""

    index: Index
    """The partition's number in the topic."""

    error: ErrorCode = 0
    """LEADER_NOT_AVAILABLE where nobody leads."""

    message: Text | None = None
    """The error's fact with its numbers."""

    leader: BrokerId = NO_BROKER
    """The broker to ask; -1: nobody leads at this moment."""

    leader_epoch: Epoch = NO_EPOCH
    """Since which epoch it leads."""

    replicas: Annotated[tuple[BrokerId, ...], ENTRIES] = ()
    """The brokers that hold it, the preferred leader first."""

    isr: Annotated[tuple[BrokerId, ...], ENTRIES] = ()
    """Those of them that have every committed record."""

    offline: Annotated[tuple[BrokerId, ...], ENTRIES] = ()
    """Those of them that are not alive, or whose disk is not."""

    elr: Annotated[tuple[BrokerId, ...], ENTRIES] = ()
    """Those outside the ISR that have every committed record all the same: one of them may lead as well."""


class TopicMetadata(Entry, frozen=True):
    """A topic and its partitions."""

    error: ErrorCode = 0
    """Why the topic cannot be described: there is none of this name or id, say."""

    message: Text | None = None
    """The error's fact with its numbers."""

    name: TopicName = ""
    """The topic's name; empty where an unknown id was asked for."""

    topic_id: TopicId | None = None
    """The topic's id, another one when it is created anew; nil where an unknown name was asked for."""

    partitions: Annotated[tuple[PartitionMetadata, ...], ENTRIES] = ()
    """Its partitions in order."""

    internal: Flag = False
    """Whether the cluster keeps its own books in it."""

    batch_bytes_max: Size = 0
    """The largest batch that its leaders take (`max.message.bytes`); 0: this broker does not say."""


class MetadataReply(Reply, frozen=True, tag=16):
    """The cluster as one broker knows it."""

    error: ErrorCode = 0
    """Why nothing can be said."""

    message: Text | None = None
    """The error's fact with its numbers."""

    cluster_id: Name = ""
    """The cluster."""

    controller_id: BrokerId = NO_BROKER
    """The active controller, an id among controllers; -1: unknown."""

    metadata_offset: Offset = NO_OFFSET
    """How much of the metadata log this answer reflects."""

    brokers: Annotated[tuple[BrokerEndpoint, ...], ENTRIES] = ()
    """The brokers that are alive."""

    topics: Annotated[tuple[TopicMetadata, ...], ENTRIES] = ()
    """One entry per topic asked for."""


class Metadata(Request, frozen=True, tag=16):
    """Ask for the brokers, and for topics by name, by id, or all of them."""

    reply: ClassVar = MetadataReply

    names: Annotated[tuple[TopicName, ...], ENTRIES] = ()
    """Topics by name."""

    ids: Annotated[tuple[TopicId, ...], ENTRIES] = ()
    """Topics by id."""

    all_topics: Flag = False
    """Every topic, whatever `names` and `ids` say."""

    allow_create: Flag = False
    """Create topics that are named and missing, where the cluster allows it."""
