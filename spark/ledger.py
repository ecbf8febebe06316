"""What sinks have written: a compacted topic, `__spark_sinks`, from which a repeated task learns what it did before.

Two kinds of entries, all of one query in one partition:

    query/task/batch/topic/generation/nonce    an intent: under which producer id, from which offsets on, the task
                                               begins to write this micro-batch to this topic
    query                                      done: the last micro-batch that Spark's driver has seen the end of;
                                               with nothing in it: the batch job is at its end

What it keeps true: of several intents for the same thing the first one in the log counts, for everybody who reads it;
no intent's key is used twice, so compaction takes away nothing that counts; only the driver says that something is done
(a task cannot know: when what it writes fails to be computed, Spark ends its input as if that were all), and removes the
intents behind it; who begins something and finds that it has ended is refused.
"""

import zlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, TypeVar
from uuid import uuid4

import msgspec
from msgspec import Struct

from tidelog.client.admin import NewTopic
from tidelog.client.cluster import Topic
from tidelog.client.io.client import Client
from tidelog.client.io.producer import Producer
from tidelog.protocol.errors import InvalidRequest, TopicAlreadyExists, UnknownTopicOrPartition
from tidelog.protocol.messages import READ_COMMITTED
from tidelog.protocol.types import Offset, TopicPartition
from tidelog.spark.leaders import batches
from tidelog.spark.lookup import offsets_at
from tidelog.spark.options import EARLIEST, LATEST

TOPIC: Final = "__spark_sinks"
PARTITIONS: Final = 8
CHECKSUM: Final = 2
"""Which kind of checksum is written: the first one took null for empty, and did not see where values end."""

_ENTRY_BYTES_MAX: Final = 16 << 20
"""What an entry takes at most before it is compressed; of `Done` each task takes about 40 bytes, and compressed 17."""

_Entry = TypeVar("_Entry", "Intent", "Done")


class Numbering(Struct, frozen=True, kw_only=True):
    """How a task's records are numbered in one partition."""

    producer_id: int
    producer_epoch: int
    begin: int
    """Where the partition ended before anything was written under this id."""
    already: int = 0
    """How many records were written under other ids before."""


class Intent(Struct, frozen=True, kw_only=True):
    """How a task writes one micro-batch to one topic: all that another attempt needs to write the same batches."""

    topic: str
    topic_id: str
    generation: int
    """Grows when brokers have forgotten a producer id before all was written."""
    now_ms: int
    """The time of records that bring none."""
    lanes: list[Numbering]
    """By partition: as many as the topic had, so keys are spread over these."""


class Done(Struct, frozen=True, kw_only=True):
    """What of a query is in its topics as a whole."""

    batch: int
    tasks: dict[str, tuple[int, int]]
    """By task: how many rows, and a checksum of them, so that others are noticed."""
    checksum: int = 1
    """Which kind: one that is not made any more is compared with nothing."""


class Place(Struct, frozen=True):
    """One task of one micro-batch of one query."""

    query: str
    task: int
    batch: int

    def prefix(self, topic: str) -> str:
        """Of intents for this micro-batch and that topic."""
        return f"{self.query}/{self.task}/{self.batch}/{topic}/"


def late(place: Place) -> InvalidRequest:
    """An attempt that would begin to write what the driver has seen the end of."""
    return InvalidRequest(
        f"task {place.task} of batch {place.batch} of query {place.query} is late: the driver has ended the batch, "
        "or given the job up. Other attempts have written what counts, and this one writes nothing"
    )


class Ledger:
    """The topic as far as this process has read it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._producer: Producer | None = None
        self._topic: Topic | None = None
        self._read_to: dict[int, Offset] = {}
        self._entries: dict[int, dict[str, bytes]] = {}
        """By partition and key, in the order of the log; of an intent what was written first."""
        self._ended: set[str] = set()
        """Batch jobs of which the end was seen."""

    async def refresh(self, query: str) -> None:
        """Read on to the end of what is committed, where that query's entries are."""
        topic = await self._there()
        index = _partition(query)
        name = TopicPartition(TOPIC, index)
        [end] = (await offsets_at(self._client, [name], LATEST, READ_COMMITTED)).values()
        start = self._read_to.get(index)
        if start is None:
            [start] = (await offsets_at(self._client, [name], EARLIEST, READ_COMMITTED)).values()
        entries = self._entries.setdefault(index, {})
        async for header, columns in batches(self._client, name, topic.id, start, end):
            for key, value in zip(columns.keys, columns.values, strict=True):
                text = (key or b"").decode()
                if value is None:
                    entries.pop(text, None)
                    if "/" not in text:
                        self._ended.add(text)
                else:
                    entries[text] = value
            self._read_to[index] = header.next_offset

    def done(self, query: str) -> Done | None:
        """The last micro-batch of the query that is written."""
        value = self._of(query).get(query)
        return None if value is None else _decode(value, Done)

    def ended(self, place: Place) -> bool:
        """Whether the driver has seen the end of it."""
        done = self.done(place.query)
        return place.query in self._ended or (done is not None and done.batch >= place.batch)

    def intent(self, place: Place, topic: str) -> Intent | None:
        """The intent that counts: the first of the newest generation."""
        prefix = place.prefix(topic)
        entries = self._of(place.query).items()
        found = [_decode(value, Intent) for key, value in entries if key.startswith(prefix)]
        newest = max((each.generation for each in found), default=0)
        return next((each for each in found if each.generation == newest), None)

    async def intend(self, place: Place, intent: Intent) -> Intent:
        """Write it; the one that counts, which may be another attempt's. Refused when all is written."""
        key = f"{place.prefix(intent.topic)}{intent.generation}/{uuid4().hex}"
        await self._write(place.query, {key: _encode(intent)})
        await self.refresh(place.query)
        if self.ended(place):
            # The intents that say what was written are gone: this one would be believed to be the first.
            await self._write(place.query, {key: None})
            raise late(place)
        counts = self.intent(place, intent.topic)
        assert counts is not None, f"what was written to {TOPIC} is not there"
        return counts

    async def finish(self, query: str, done: Done | None) -> None:
        """All of the micro-batch is written: say so, and remove its intents. None: the same of a batch job."""
        await self.refresh(query)
        # First: many intents take several batches, and none may be seen to be gone before it is known why.
        wanted: dict[str, bytes | None] = {query: None if done is None else _encode(done)}
        wanted.update({key: None for key in self._of(query) if key.startswith(f"{query}/")})
        await self._write(query, wanted)

    def _of(self, query: str) -> dict[str, bytes]:
        return self._entries.get(_partition(query), {})

    async def _write(self, query: str, entries: Mapping[str, bytes | None]) -> None:
        await self._there()
        if self._producer is None:
            self._producer = self._client.producer(compression="zstd", max_request_size=_ENTRY_BYTES_MAX)
        keys = [key.encode() for key in entries]
        await self._producer.send_many(TOPIC, list(entries.values()), keys, partition=_partition(query))

    async def _there(self) -> Topic:
        """The topic; made by whoever needs it first."""
        if self._topic is None:
            try:
                self._topic = await self._client.topic(TOPIC)
            except UnknownTopicOrPartition:
                wanted = NewTopic(TOPIC, partitions=PARTITIONS, configs={"cleanup.policy": "compact"})
                with suppress(TopicAlreadyExists):  # another task was first
                    await self._client.admin.create_topics(wanted)
                self._topic = await self._client.topic(TOPIC)
        return self._topic


def _partition(query: str) -> int:
    return zlib.crc32(query.encode()) % PARTITIONS


def _encode(entry: Intent | Done) -> bytes:
    return msgspec.json.encode(entry)


def _decode(value: bytes, kind: type[_Entry]) -> _Entry:
    return msgspec.json.decode(value, type=kind)
