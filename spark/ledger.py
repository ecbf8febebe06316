"""What sinks have written: a compacted topic, `__spark_sinks`, from which a repeated task learns what it did before.

Two kinds of entries, both of one task of one query, and so in one partition:

    query/task/batch/topic/generation/nonce    an intent: under which producer id, from which offsets on, the task
                                               begins to write this micro-batch to this topic
    query/task                                 done: the last micro-batch of the task that is in its topics as a whole

What it keeps true: of several intents for the same thing the first one in the log counts, for everybody who reads it;
no entry's key is used twice but that of the last micro-batch, so compaction takes away nothing that counts; a task
removes its intents with the entry that says that it is done.
"""

import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final, TypeVar
from uuid import uuid4

import msgspec
from msgspec import Struct

from tidelog.client.admin import NewTopic
from tidelog.client.cluster import Topic
from tidelog.client.io.client import Client
from tidelog.client.io.producer import Producer
from tidelog.protocol.errors import TopicAlreadyExists, UnknownTopicOrPartition
from tidelog.protocol.messages import READ_COMMITTED
from tidelog.protocol.types import Offset, TopicPartition
from tidelog.spark.leaders import batches
from tidelog.spark.lookup import offsets_at
from tidelog.spark.options import EARLIEST, LATEST

TOPIC: Final = "__spark_sinks"
PARTITIONS: Final = 8

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
    """What of a task is in its topics as a whole."""

    batch: int
    intents: dict[str, Intent]
    digests: dict[str, int]
    """By `topic/partition`: what was written, so that something else is noticed."""
    rows: int


class Place(Struct, frozen=True):
    """One task of one query."""

    query: str
    task: int
    batch: int

    @property
    def key(self) -> str:
        """Of the entry that says what is done."""
        return f"{self.query}/{self.task}"

    @property
    def partition(self) -> int:
        """Where its entries are."""
        return zlib.crc32(self.key.encode()) % PARTITIONS

    def prefix(self, topic: str) -> str:
        """Of intents for this micro-batch and that topic."""
        return f"{self.key}/{self.batch}/{topic}/"


class Ledger:
    """The topic as far as this process has read it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._producer: Producer | None = None
        self._topic: Topic | None = None
        self._read_to: dict[int, Offset] = {}
        self._entries: dict[int, dict[str, bytes]] = {}
        """By partition and key, in the order of the log; of an intent what was written first."""

    async def refresh(self, place: Place) -> None:
        """Read on to the end of what is committed, where that task's entries are."""
        topic = await self._there()
        name = TopicPartition(TOPIC, place.partition)
        [end] = (await offsets_at(self._client, [name], LATEST, READ_COMMITTED)).values()
        start = self._read_to.get(place.partition)
        if start is None:
            [start] = (await offsets_at(self._client, [name], EARLIEST, READ_COMMITTED)).values()
        entries = self._entries.setdefault(place.partition, {})
        async for header, columns in batches(self._client, name, topic.id, start, end):
            for key, value in zip(columns.keys, columns.values, strict=True):
                text = (key or b"").decode()
                if value is None:
                    entries.pop(text, None)
                else:
                    entries[text] = value
            self._read_to[place.partition] = header.next_offset

    def done(self, place: Place) -> Done | None:
        """The last micro-batch of the task that is written."""
        value = self._entries.get(place.partition, {}).get(place.key)
        return None if value is None else _decode(value, Done)

    def intent(self, place: Place, topic: str) -> Intent | None:
        """The intent that counts: the first of the newest generation."""
        prefix = place.prefix(topic)
        found = [
            _decode(value, Intent)
            for key, value in self._entries.get(place.partition, {}).items()
            if key.startswith(prefix)
        ]
        newest = max((each.generation for each in found), default=0)
        return next((each for each in found if each.generation == newest), None)

    async def intend(self, place: Place, intent: Intent) -> Intent:
        """Write it; the one that counts, which may be another attempt's."""
        key = f"{place.prefix(intent.topic)}{intent.generation}/{uuid4().hex}"
        await self._write(place, {key: _encode(intent)})
        await self.refresh(place)
        counts = self.intent(place, intent.topic)
        assert counts is not None, f"what was written to {TOPIC} is not there"
        return counts

    async def finish(self, place: Place, done: Done) -> None:
        """All of the micro-batch is written: say so, and remove its intents."""
        await self._write(place, {**self._intents(place), place.key: _encode(done)})

    async def forget(self, places: Iterable[Place]) -> None:
        """Nobody will ever ask for these again."""
        for place in places:
            await self.refresh(place)
            await self._write(place, {**self._intents(place), place.key: None})

    def _intents(self, place: Place) -> dict[str, bytes | None]:
        prefix = f"{place.key}/"
        return {key: None for key in self._entries.get(place.partition, {}) if key.startswith(prefix)}

    async def _write(self, place: Place, entries: Mapping[str, bytes | None]) -> None:
        await self._there()
        if self._producer is None:
            self._producer = self._client.producer()
        keys = [key.encode() for key in entries]
        await self._producer.send_many(TOPIC, list(entries.values()), keys, partition=place.partition)

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


def _encode(entry: Intent | Done) -> bytes:
    return msgspec.json.encode(entry)


def _decode(value: bytes, kind: type[_Entry]) -> _Entry:
    return msgspec.json.decode(value, type=kind)
