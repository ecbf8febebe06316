"""Every message that processes exchange: one class for ever, each request beside its reply.

What it keeps true: fields are only ever appended, with defaults; a tag never changes its meaning; every field
has its sentence, from which docs/PROTOCOL.md is made. To add a message: a class in the module of its subject,
a line in `registry`, and `scripts/docs`.
"""

from tidelog.protocol.messages.attachment import (
    split_attachment,
)
from tidelog.protocol.messages.connection import (
    Hello,
    Refused,
    Welcome,
)
from tidelog.protocol.messages.fetch import (
    NO_SESSION,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    AbortedTransaction,
    Fetch,
    FetchReply,
    PartitionFetch,
    PartitionFetched,
)
from tidelog.protocol.messages.heads import (
    CORRELATION_MAX,
    decode_reply,
    decode_request,
    encode_head,
)
from tidelog.protocol.messages.metadata import (
    BrokerEndpoint,
    Metadata,
    MetadataReply,
    PartitionMetadata,
    TopicMetadata,
)
from tidelog.protocol.messages.offsets import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    DeleteBefore,
    Deleted,
    DeleteRecords,
    DeleteRecordsReply,
    EpochEndFound,
    EpochEnds,
    EpochEndsReply,
    EpochQuery,
    ListOffsets,
    ListOffsetsReply,
    OffsetFound,
    OffsetQuery,
)
from tidelog.protocol.messages.produce import (
    ACKS_ALL,
    InitProducerId,
    InitProducerIdReply,
    PartitionProduce,
    PartitionProduced,
    Produce,
    ProduceReply,
)
from tidelog.protocol.messages.registry import (
    REPLIES,
    REQUESTS,
    tag_of,
)
from tidelog.protocol.messages.replication import (
    AlterPartition,
    AlterPartitionReply,
    Flushed,
    IsrMember,
    PartitionAlter,
    PartitionAltered,
    PartitionFlushed,
)
from tidelog.protocol.messages.shapes import (
    Entry,
    EpochEnd,
    Leader,
    PartitionIndex,
    Reply,
    Request,
)

__all__ = [
    "ACKS_ALL",
    "CORRELATION_MAX",
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "NO_SESSION",
    "READ_COMMITTED",
    "READ_UNCOMMITTED",
    "REPLIES",
    "REQUESTS",
    "AbortedTransaction",
    "AlterPartition",
    "AlterPartitionReply",
    "BrokerEndpoint",
    "DeleteBefore",
    "DeleteRecords",
    "DeleteRecordsReply",
    "Deleted",
    "Entry",
    "EpochEnd",
    "EpochEndFound",
    "EpochEnds",
    "EpochEndsReply",
    "EpochQuery",
    "Fetch",
    "FetchReply",
    "Flushed",
    "Hello",
    "InitProducerId",
    "InitProducerIdReply",
    "IsrMember",
    "Leader",
    "ListOffsets",
    "ListOffsetsReply",
    "Metadata",
    "MetadataReply",
    "OffsetFound",
    "OffsetQuery",
    "PartitionAlter",
    "PartitionAltered",
    "PartitionFetch",
    "PartitionFetched",
    "PartitionFlushed",
    "PartitionIndex",
    "PartitionMetadata",
    "PartitionProduce",
    "PartitionProduced",
    "Produce",
    "ProduceReply",
    "Refused",
    "Reply",
    "Request",
    "TopicMetadata",
    "Welcome",
    "decode_reply",
    "decode_request",
    "encode_head",
    "split_attachment",
    "tag_of",
]
