"""Every message that processes exchange: one class for ever, each request beside its reply.

What it keeps true: fields are only ever appended, with defaults; a tag never changes its meaning; every field
has its sentence, from which docs/PROTOCOL.md is made. To add a message: a class in the module of its subject,
a line in `registry`, and `scripts/docs`.
"""

from tidelog.protocol.messages.attachment import split_attachment
from tidelog.protocol.messages.connection import Hello, Refused, Welcome
from tidelog.protocol.messages.fetch import (
    AbortedTransaction,
    Fetch,
    FetchReply,
    PartitionFetch,
    PartitionFetched,
)
from tidelog.protocol.messages.heads import decode_reply, decode_request, encode_head
from tidelog.protocol.messages.produce import (
    InitProducerId,
    InitProducerIdReply,
    PartitionProduce,
    PartitionProduced,
    Produce,
    ProduceReply,
)
from tidelog.protocol.messages.registry import REPLIES, REQUESTS
from tidelog.protocol.messages.shapes import EpochEnd, Leader, PartitionIndex, Reply, Request

__all__ = [
    "REPLIES",
    "REQUESTS",
    "AbortedTransaction",
    "EpochEnd",
    "Fetch",
    "FetchReply",
    "Hello",
    "InitProducerId",
    "InitProducerIdReply",
    "Leader",
    "PartitionFetch",
    "PartitionFetched",
    "PartitionIndex",
    "PartitionProduce",
    "PartitionProduced",
    "Produce",
    "ProduceReply",
    "Refused",
    "Reply",
    "Request",
    "Welcome",
    "decode_reply",
    "decode_request",
    "encode_head",
    "split_attachment",
]
