"""Every message by its tag.

A reply has its request's tag; 0 is Refused, which may answer any request. A tag is never used again for
anything else. They come in ranges, so that messages of one subject lie together and each has room to grow;
all are below 128, one byte on the wire.
"""

from collections.abc import Iterable
from typing import Final, TypeVar

from tidelog.protocol.messages.admin import (
    AlterConfigs,
    AlterReassignments,
    CreatePartitions,
    DescribeConfigs,
    ElectLeaders,
    GetReplicaLogInfo,
    ListReassignments,
    UnregisterBroker,
)
from tidelog.protocol.messages.cluster import (
    AllocateProducerIds,
    BrokerHeartbeat,
    CreateTopics,
    DeleteTopics,
    RegisterBroker,
)
from tidelog.protocol.messages.connection import Hello, Refused
from tidelog.protocol.messages.fetch import EndWait, Fetch
from tidelog.protocol.messages.group_overview import (
    DeleteGroupOffsets,
    DeleteGroups,
    DescribeGroups,
    ListGroups,
)
from tidelog.protocol.messages.groups import FindCoordinator, GroupHeartbeat, OffsetCommit, OffsetFetch
from tidelog.protocol.messages.metadata import Metadata
from tidelog.protocol.messages.offsets import DeleteRecords, EpochEnds, ListOffsets
from tidelog.protocol.messages.overview import DescribeCluster, DescribeLogDirs, PlanMoves
from tidelog.protocol.messages.produce import InitProducerId, Produce
from tidelog.protocol.messages.quorum import BeginEpoch, DescribeQuorum, EndEpoch, FetchSnapshot, Vote
from tidelog.protocol.messages.replication import AlterPartition, Flushed
from tidelog.protocol.messages.shapes import Reply, Request

SUBJECTS: Final[dict[range, str]] = {
    range(1, 16): "Connections: whoever connected says it to whoever listens",
    range(16, 32): "Reading and writing: clients, and followers that fetch, to a broker",
    range(32, 48): "Groups: clients to the broker that coordinates the group",
    range(48, 64): "Transactions: clients to the broker that coordinates the transaction",
    range(64, 80): "Administration: clients to any broker",
    range(80, 96): "Replication: brokers to the leader of a partition",
    range(96, 112): "Brokers to the active controller",
    range(112, 128): "Controllers to each other",
}
"""What the tags of requests are about, and who says it to whom."""

_M = TypeVar("_M", Request, Reply)


def tag_of(message: type[Request] | type[Reply]) -> int:
    """The tag that stands before the message's fields."""
    tag = message.__struct_config__.tag
    assert isinstance(tag, int), f"{message.__name__} needs a number as its tag"
    return tag


def _by_tag(messages: Iterable[type[_M]]) -> dict[int, type[_M]]:
    """The messages by tag, each tag taken once."""
    table: dict[int, type[_M]] = {}
    for message in messages:
        tag = tag_of(message)
        assert tag not in table, f"{message.__name__} and {table[tag].__name__} share the tag {tag}"
        table[tag] = message
    return table


REQUESTS: Final[dict[int, type[Request]]] = _by_tag(
    (
        Hello,
        Metadata,
        Produce,
        Fetch,
        EndWait,
        ListOffsets,
        EpochEnds,
        DeleteRecords,
        InitProducerId,
        CreateTopics,
        DeleteTopics,
        Flushed,
        AlterPartition,
        RegisterBroker,
        BrokerHeartbeat,
        AllocateProducerIds,
        DescribeQuorum,
        Vote,
        BeginEpoch,
        EndEpoch,
        FetchSnapshot,
        CreatePartitions,
        AlterConfigs,
        DescribeConfigs,
        ElectLeaders,
        AlterReassignments,
        ListReassignments,
        UnregisterBroker,
        DescribeCluster,
        PlanMoves,
        DescribeLogDirs,
        GetReplicaLogInfo,
        FindCoordinator,
        GroupHeartbeat,
        OffsetCommit,
        OffsetFetch,
        ListGroups,
        DescribeGroups,
        DeleteGroups,
        DeleteGroupOffsets,
    )
)
"""Every request by its tag."""

REPLIES: Final[dict[int, type[Reply]]] = _by_tag(
    (Refused, *(request.reply for request in REQUESTS.values() if request.reply is not None))
)
"""Every reply by its tag."""
