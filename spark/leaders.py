"""Two requests that the sink makes of leaders itself: read batches with their headers, append a batch as it is.

The client's consumer hides who wrote a batch and under which number, its producer chooses both; the sink rests on them.

What it keeps true: each request follows whoever leads, until its deadline; a batch that is sent again is the same
batch, byte for byte, so that brokers know it; only committed batches are read, each of them once.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from tidelog.client.io.client import Client
from tidelog.client.retry import Advice, Backoff, advice
from tidelog.protocol.batch import BatchHeader, walk
from tidelog.protocol.errors import (
    ConnectionFailed,
    CorruptMessage,
    DuplicateSequenceNumber,
    InvalidTopic,
    LeaderNotAvailable,
    TidelogError,
    UnknownTopicOrPartition,
    error_of,
)
from tidelog.protocol.messages import (
    ACKS_ALL,
    READ_COMMITTED,
    Fetch,
    FetchReply,
    InitProducerId,
    InitProducerIdReply,
    PartitionFetch,
    PartitionFetched,
    PartitionProduce,
    PartitionProduced,
    Produce,
    ProduceReply,
)
from tidelog.protocol.records import Columns, decode
from tidelog.protocol.types import NO_BROKER, BrokerId, Buffer, Offset, TopicId, TopicPartition

DEADLINE_S: Final = 120.0
_FETCH_BYTES: Final = 4 << 20
_WAIT_MS: Final = 500


async def new_producer_id(client: Client) -> tuple[int, int]:
    """An id that nobody else has, and its epoch."""
    reply, _ = await client.call_any(InitProducerId())
    assert isinstance(reply, InitProducerIdReply), reply
    return reply.producer_id, reply.producer_epoch


async def batches(
    client: Client, name: TopicPartition, topic_id: TopicId, start: Offset, end: Offset
) -> AsyncIterator[tuple[BatchHeader, Columns]]:
    """All committed batches with records from `start` up to `end`."""
    while start < end:
        entry, data = await _fetch(client, name, topic_id, start)
        before = start
        for at, header in walk(data):
            if header.next_offset > start:
                start = header.next_offset
                if header.record_count and not header.is_control:
                    yield header, decode(data, at)
            if start >= end:
                return
        if start == before and len(data):
            raise CorruptMessage(f"{name}: the answer at offset {start} holds no whole batch")
        start = max(start, entry.log_start)


async def _fetch(
    client: Client, name: TopicPartition, topic_id: TopicId, offset: Offset
) -> tuple[PartitionFetched, Buffer]:
    wanted = PartitionFetch(topic_id, name.partition, offset, _FETCH_BYTES)
    request = Fetch(_WAIT_MS, 1, _FETCH_BYTES, (wanted,), isolation=READ_COMMITTED)
    backoff = client.backoff(DEADLINE_S * 1000)
    while True:
        try:
            leader = _leader(client, name, topic_id)
            reply, data = await client.call(leader, request, lane="fetches")
            if not isinstance(reply, FetchReply) or (not reply.error and len(reply.partitions) != 1):
                raise ConnectionFailed(f"broker {leader} answered Fetch with something else")
            if reply.error:
                raise error_of(reply.error, reply.message or "")
            [entry] = reply.partitions
            if not entry.error:
                return entry, data
            raise error_of(entry.error, entry.message or "")
        except TidelogError as error:
            await _again(client, name, error, backoff)


async def append(client: Client, name: TopicPartition, topic_id: TopicId, batch: Buffer) -> None:
    """Append a batch that bears its producer's numbers; one that is there already is not written again."""
    backoff = client.backoff(DEADLINE_S * 1000)
    while True:
        try:
            leader = _leader(client, name, topic_id)
            request = Produce(ACKS_ALL, 30_000, (PartitionProduce(topic_id, name.partition, len(batch)),))
            reply, _ = await client.call(leader, request, batch)
            if not isinstance(reply, ProduceReply) or len(reply.partitions) != 1:
                raise ConnectionFailed(f"broker {leader} answered Produce with something else")
            [entry] = reply.partitions
            _check(client, entry)
        except DuplicateSequenceNumber:
            return  # it was written so long ago that the broker does not know where
        except TidelogError as error:
            await _again(client, name, error, backoff)
        else:
            return


def _check(client: Client, entry: PartitionProduced) -> None:
    if entry.error:
        if entry.current_leader is not None:
            client.hint(entry.topic_id, entry.index, entry.current_leader)
        raise error_of(entry.error, entry.message or "")


def _leader(client: Client, name: TopicPartition, topic_id: TopicId) -> BrokerId:
    topic = client.cluster.topics.get(name.topic)
    if topic is None:
        raise UnknownTopicOrPartition(f"{name.topic}: the topic was deleted while it was written to")
    if topic.id != topic_id:
        raise InvalidTopic(f"{name.topic}: the topic was deleted and made anew while it was written to")
    leader = client.cluster.leader(*name)
    if leader == NO_BROKER:
        raise LeaderNotAvailable(f"{name}: nobody leads it")
    return leader


async def _again(client: Client, name: TopicPartition, error: TidelogError, backoff: Backoff) -> None:
    """Wait, and look at who leads now; raises the error when there is no use or no time."""
    what = advice(error)
    if what is Advice.FATAL or not await client.pause(backoff):
        raise error
    if what is Advice.REFRESH:
        try:
            await client.refresh([name.topic], newer=True)
        except TidelogError as failed:
            await asyncio.sleep(0)
            if advice(failed) is Advice.FATAL:
                raise
