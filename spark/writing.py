"""One task of a sink: its rows into batches, and those into topics, each once whatever happens in between.

    NEW ──intent──► WRITING ──all acknowledged──► WRITTEN ──the driver says so──► done
    a repeated task finds the intent: it numbers its records as the one before did, compares and passes over those that are
    there, and goes on behind them; or it finds that all is done, and only compares

What it keeps true:

* A record's partition and number depend on the rows, their order and the intent alone, and it travels under the intent's
  producer id. So of two attempts at the same task, one after the other or at once, only one appends the record with
  a given number: the brokers' sequence numbers are the compare-and-set that this rests on.
* What was written is compared with what the attempt yields now. Other rows than before (an input that is not
  deterministic, another number of partitions) are refused, never mixed.
* A partition has one batch on its way; a task holds one open batch of each partition.
"""

import asyncio
import struct
import zlib
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Final

import pyarrow as pa
from msgspec import structs

from tidelog.client.cluster import Topic
from tidelog.client.io.client import Client
from tidelog.client.partitioning import Hashes
from tidelog.client.sizes import RECORD_OVERHEAD
from tidelog.protocol.batch import HEADER_SIZE
from tidelog.protocol.errors import (
    InvalidRecord,
    InvalidRequest,
    InvalidTopic,
    OffsetOutOfRange,
    OutOfOrderSequenceNumber,
    UnknownProducerId,
)
from tidelog.protocol.messages import READ_COMMITTED
from tidelog.protocol.records import encode
from tidelog.protocol.types import TopicId, TopicPartition
from tidelog.spark.columns import Rows
from tidelog.spark.leaders import append, batches, new_producer_id
from tidelog.spark.ledger import CHECKSUM, Intent, Ledger, Numbering, Place, late
from tidelog.spark.lookup import offsets_at, topics_named
from tidelog.spark.options import EARLIEST, LATEST, WriteOptions

BATCH_BYTES: Final = 256 << 10
BATCH_ROWS: Final = 8192
_TIME_BYTES: Final = 8
"""What a time of its own takes in a batch, at most."""
_UNSEEN_MS: Final = 30_000
STICKY_ROWS: Final = 4096
"""So many rows without a key go to one partition before the next one's turn."""


class Batch:
    """Records of one partition that travel together."""

    __slots__ = ("bytes", "first", "headers", "keys", "times", "values")

    def __init__(self, first: int) -> None:
        self.first = first
        """The number of the first of them among all records of this task for this partition."""
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.times: list[int] = []
        self.headers: list[Sequence[tuple[str, bytes | None]]] = []
        self.bytes = 0

    @property
    def end(self) -> int:
        """The number behind the last one."""
        return self.first + len(self.values)

    def digest(self, first: int, end: int) -> int:
        """What stands for the records with these numbers."""
        begin, behind = first - self.first, end - self.first
        return Digest().add(self.keys[begin:behind], self.values[begin:behind]).value

    def behind(self, first: int) -> "Batch":
        """The records from that number on."""
        rest, at = Batch(first), first - self.first
        rest.values, rest.keys, rest.times = self.values[at:], self.keys[at:], self.times[at:]
        rest.headers = self.headers[at:]
        return rest


class Digest:
    """A checksum over what two attempts must agree on, keys and values, whatever the pieces are in which they come."""

    __slots__ = ("_states",)

    def __init__(self) -> None:
        self._states = [0, 0, 0, 0]

    def add(self, keys: Iterable[bytes | None], values: Iterable[bytes | None]) -> "Digest":
        """Go on with these records."""
        for at, column in ((0, list(keys)), (2, list(values))):
            # Sizes beside the bytes: what is null is not empty, and where one ends the next one begins.
            try:
                sizes: Iterable[int] = map(len, column)  # type: ignore[arg-type]  # mostly there is something in each
                packed, data = struct.pack(f"<{len(column)}i", *sizes), b"".join(column)  # type: ignore[arg-type]
            except TypeError:
                sizes = [-1 if each is None else len(each) for each in column]
                packed, data = struct.pack(f"<{len(column)}i", *sizes), b"".join(filter(None, column))
            self._states[at] = zlib.crc32(data, self._states[at])
            self._states[at + 1] = zlib.crc32(packed, self._states[at + 1])
        return self

    @property
    def value(self) -> int:
        """In 64 bits."""
        of_keys, of_values = (zlib.crc32(repr(self._states[at : at + 2]).encode()) for at in (0, 2))
        return of_keys << 32 | of_values


class Lane:
    """One partition: how much of it is written, and the batch that is open."""

    def __init__(self, name: TopicPartition, bytes_max: int = BATCH_BYTES) -> None:
        self.name = name
        self.open = Batch(0)
        self._bytes_max = bytes_max
        self.cut = 0
        """Where the open batch ends at the latest, because an earlier attempt's did; 0: nowhere."""
        self.written = 0
        """So many records are in the log by an earlier attempt."""
        self.found: dict[int, tuple[int, int]] = {}
        """Its batches by their first record's number: where they end, and their checksums."""
        self.flying: asyncio.Task[None] | None = None

    def begin(self, first: int) -> None:
        """A new batch."""
        self.open, self.cut = Batch(first), 0
        if first < self.written:
            known = self.found.get(first)
            later = [each for each in self.found if each > first]
            self.cut = known[0] if known is not None else min(later, default=self.written)

    def has_room(self, size: int) -> bool:
        """Whether a row that takes so much goes into the open batch: one row does, for that it is too large leaders say."""
        batch = self.open
        return bool(self.cut) or not batch.values or batch.bytes + size <= self._bytes_max

    @property
    def full(self) -> bool:
        """Whether the open batch is to be sent."""
        batch = self.open
        if self.cut:
            return batch.end >= self.cut
        return batch.bytes >= self._bytes_max or len(batch.values) >= BATCH_ROWS


class Target:
    """One topic that a task writes to."""

    def __init__(self, client: Client, ledger: Ledger, place: Place, name: str, codec: int) -> None:
        self.name = name
        self.intent: Intent
        self.rows = 0
        self._client = client
        self._ledger = ledger
        self._place = place
        self._codec = codec
        self._topic_id: TopicId
        self._lanes: list[Lane] = []
        self._hashes = Hashes()
        self._renewing = asyncio.Lock()

    async def begin(self, now_ms: int) -> None:
        """Find out what is there of this micro-batch, or say that it begins."""
        topic = await self._client.topic(self.name)
        found = self._ledger.intent(self._place, self.name)
        if found is not None and found.topic_id != topic.id.hex():
            # A worker that Spark uses again may know the older one of two topics.
            [topic] = await topics_named(self._client, [self.name])
        # What was written to a topic of the same name that is gone is gone with it.
        while found is None or found.topic_id != topic.id.hex():
            generation = 0 if found is None else found.generation + 1
            found = await self._intend(topic, now_ms, generation)
        self.intent, self._topic_id = found, topic.id
        most = _bytes_max(topic)
        self._lanes = [Lane(TopicPartition(self.name, at), most) for at in range(len(found.lanes))]
        await asyncio.gather(*map(self._find_written, self._lanes))
        for lane in self._lanes:
            lane.begin(0)

    async def _intend(self, topic: Topic, now_ms: int, generation: int) -> Intent:
        names = [TopicPartition(self.name, at) for at in range(len(topic.partitions))]
        ends = await offsets_at(self._client, names, LATEST, READ_COMMITTED)
        # Leaders know better which topic it is than whoever has described it: an intent for the older one would count.
        if (await self._client.topic(self.name)).id != topic.id:
            raise InvalidTopic(
                f"{self.name}: the topic was deleted and made anew: try again, nothing is written"
            )
        producer_id, epoch = await new_producer_id(self._client)
        lanes = [Numbering(producer_id=producer_id, producer_epoch=epoch, begin=ends[name]) for name in names]
        wanted = Intent(
            topic=self.name, topic_id=topic.id.hex(), generation=generation, now_ms=now_ms, lanes=lanes
        )
        return await self._ledger.intend(self._place, wanted)

    async def _find_written(self, lane: Lane) -> None:
        """How much another attempt has written under this intent."""
        name, numbering = lane.name, self.intent.lanes[lane.name.partition]
        before, start = numbering.already, numbering.begin
        lane.written = before
        [earliest] = (await offsets_at(self._client, [name], EARLIEST, READ_COMMITTED)).values()
        [end] = (await offsets_at(self._client, [name], LATEST, READ_COMMITTED)).values()
        lane.found = {}
        async for header, columns in batches(self._client, name, self._topic_id, max(start, earliest), end):
            if header.producer_id == numbering.producer_id:
                first = before + header.base_sequence
                behind = first + header.last_offset_delta + 1
                lane.written = max(lane.written, behind)
                if len(columns) == behind - first:  # compaction has left it whole
                    lane.found[first] = behind, Digest().add(columns.keys, columns.values).value
        if earliest > start and lane.written == before:
            raise OffsetOutOfRange(
                f"{name}: batch {self._place.batch} of query {self._place.query} began to be written at offset {start}, "
                f"and the log begins at {earliest} now: nobody can say what was there. Begin with a new checkpoint"
            )

    # ── rows ──────────────────────────────────────────────────────────────────────────────────────

    async def add(self, rows: Rows, places: Sequence[int]) -> None:
        """Take these rows, in their order."""
        where = self._spread(rows, places)
        besides = RECORD_OVERHEAD + (0 if rows.timestamps_ms is None else _TIME_BYTES)
        for at, index in zip(places, where, strict=True):
            lane = self._lanes[index]
            value = rows.values[at]
            key = None if rows.keys is None else rows.keys[at]
            size = besides + len(value or b"") + len(key or b"")
            if rows.headers is not None:
                size += sum(_header_bytes(*header) for header in rows.headers[at])
            if not lane.has_room(size):
                await self._send(lane)
            batch = lane.open
            batch.values.append(value)
            batch.keys.append(key)
            stamp = None if rows.timestamps_ms is None else rows.timestamps_ms[at]
            batch.times.append(self.intent.now_ms if stamp is None else stamp)
            if rows.headers is not None:
                batch.headers.append(rows.headers[at])
            batch.bytes += size
            if lane.full:
                await self._send(lane)
        self.rows += len(places)

    def _spread(self, rows: Rows, places: Sequence[int]) -> list[int]:
        """The partition of each of these rows: its own, its key's, or whose turn it is."""
        count, hashes = len(self.intent.lanes), self._hashes
        found = []
        for number, at in enumerate(places, self.rows):
            named = None if rows.partitions is None else rows.partitions[at]
            key = None if rows.keys is None else rows.keys[at]
            if named is not None:
                if not 0 <= named < count:
                    raise InvalidRecord(
                        f"a row names partition {named}; {self.name} has {count} for all of this micro-batch: let it name "
                        "one of these or none; what is added meanwhile counts from the next micro-batch on"
                    )
                found.append(named)
            elif key is not None:
                found.append(hashes[key] % count)
            else:
                found.append((self._place.task + number // STICKY_ROWS) % count)
        return found

    async def finish(self) -> None:
        """Until all is acknowledged."""
        for lane in self._lanes:
            if lane.open.values:
                await self._send(lane)
        for lane in self._lanes:
            await _landed(lane)
            if lane.written > lane.open.first:
                fact = f"{lane.written} records were written to {lane.name}, now there are {lane.open.first}"
                raise _other_rows(self._place, fact)

    async def abort(self) -> None:
        """Send nothing more."""
        flying = [lane.flying for lane in self._lanes if lane.flying is not None]
        for task in flying:
            task.cancel()
        if flying:
            await asyncio.wait(flying)

    async def _send(self, lane: Lane) -> None:
        await _landed(lane)
        batch = lane.open
        lane.begin(batch.end)
        if batch.end <= lane.written:
            self._compare(lane, batch)
        elif batch.first >= lane.written:
            lane.flying = asyncio.get_running_loop().create_task(self._append(lane, batch))
        else:
            raise _other_rows(
                self._place, f"{lane.written} records were written to {lane.name}, there are fewer now"
            )

    def _compare(self, lane: Lane, batch: Batch) -> int:
        """Whether what is there is what is here; up to which record it is there."""
        at = batch.first
        while at < min(batch.end, lane.written):
            end, there = lane.found.get(at, (0, 0))
            if not end:
                return batch.end  # compaction has thinned it: nothing can be said
            if end <= batch.end and there != batch.digest(at, end):
                raise _other_rows(self._place, f"records {at} to {end - 1} of {lane.name} differ")
            at = end
        return at

    async def _append(self, lane: Lane, batch: Batch) -> None:
        """Write it. Who finds that another attempt has written some of it goes on behind that."""
        backoff = self._client.backoff(_UNSEEN_MS)
        while True:
            numbering = self.intent.lanes[lane.name.partition]
            data = encode(
                batch.values,
                batch.keys,
                batch.times,
                batch.headers or None,
                codec=self._codec,
                producer_id=numbering.producer_id,
                producer_epoch=numbering.producer_epoch,
                base_sequence=batch.first - numbering.already,
            )
            try:
                await append(self._client, lane.name, self._topic_id, data)
            except UnknownProducerId:
                # Brokers forget a producer that was silent for long: between a crash and this attempt, say.
                async with self._renewing:
                    there = await self._renew(lane)
            except OutOfOrderSequenceNumber as error:
                there = Lane(lane.name)
                await self._find_written(there)
                # What it has written counts when it is committed; until then it cannot be seen.
                if there.written <= batch.first and not await self._client.pause(backoff):
                    raise _other_rows(self._place, f"{lane.name} has another numbering: {error}") from error
            else:
                return
            if there.written < batch.first and there.written < numbering.already:
                raise _other_rows(self._place, f"{there.written} records are in {lane.name}, and were more")
            at = self._compare(there, batch)
            if at >= batch.end:
                return
            batch = batch.behind(at)

    async def _renew(self, lane: Lane) -> Lane:
        """Go on in that partition under a new producer id; what is there already."""
        place, index = self._place, lane.name.partition
        await self._ledger.refresh(place.query)
        if self._ledger.ended(place):
            raise late(place)
        newest = self._ledger.intent(place, self.name)
        if newest is not None and newest.generation > self.intent.generation:
            self.intent = newest  # another attempt was first
        there = Lane(lane.name)
        await self._find_written(there)
        producer_id, epoch = await new_producer_id(self._client)
        [end] = (await offsets_at(self._client, [lane.name], LATEST, READ_COMMITTED)).values()
        lanes = list(self.intent.lanes)
        lanes[index] = Numbering(
            producer_id=producer_id, producer_epoch=epoch, begin=end, already=there.written
        )
        wanted = structs.replace(self.intent, generation=self.intent.generation + 1, lanes=lanes)
        self.intent = await self._ledger.intend(place, wanted)
        return there


def _bytes_max(topic: Topic) -> int:
    """What a batch for this topic takes at most, by what is counted of its rows."""
    most = topic.batch_bytes_max or BATCH_BYTES
    return max(min(BATCH_BYTES, most - most // 64 - HEADER_SIZE), 1)  # a 64th: long columns' own heads


def _header_bytes(name: str, value: bytes | None) -> int:
    return RECORD_OVERHEAD + len(name.encode()) + len(value or b"")


async def _landed(lane: Lane) -> None:
    if lane.flying is not None:
        flying, lane.flying = lane.flying, None
        await flying


def _other_rows(place: Place, fact: str) -> InvalidRequest:
    return InvalidRequest(
        f"task {place.task} of batch {place.batch} of query {place.query} yields other rows than when it was written "
        f"before: {fact}. Exactly once needs the same rows in the same order and the same partitions; "
        "begin with a new checkpoint, or make the input deterministic"
    )


class Writing:
    """A task: rows in, and what the driver has to know of them when all are written."""

    def __init__(self, client: Client, ledger: Ledger, place: Place, options: WriteOptions) -> None:
        self._client = client
        self._ledger = ledger
        self._place = place
        self._options = options
        self._targets: dict[str, Target] = {}
        self._done: tuple[int, int] | None = None
        """What was written of this task, when the driver has seen the end of it."""
        self._comparable = True
        """Whether its checksum is of the kind that is made now."""
        self._now_ms = 0
        self._rows = 0
        self._digest = Digest()
        self.skipped = False
        """Whether a later micro-batch of this query is in its topics already."""

    async def begin(self, now_ms: int) -> None:
        """Learn what was done before."""
        self._now_ms = now_ms
        await self._ledger.refresh(self._place.query)
        done = self._ledger.done(self._place.query)
        if done is not None and done.batch >= self._place.batch:
            self.skipped = done.batch > self._place.batch
            self._done = done.tasks.get(str(self._place.task), (0, Digest().value))
            self._comparable = done.checksum == CHECKSUM

    async def add(self, batch: pa.RecordBatch) -> None:
        """Write these rows."""
        rows = Rows(batch, self._rows)
        self._rows += rows.count
        self._digest.add(rows.keys or repeat(None, rows.count), rows.values)
        if self._done is not None:
            return
        if self._options.topic or rows.topics is None:
            await (await self._target(self._options.topic)).add(rows, range(rows.count))
            return
        by_topic: dict[str, list[int]] = {}
        for at, name in enumerate(rows.topics):
            by_topic.setdefault(name or "", []).append(at)
        for name, places in by_topic.items():
            if not name:
                raise InvalidRecord("a row names no topic, and there is no option topic")
            await (await self._target(name)).add(rows, places)

    async def _target(self, name: str) -> Target:
        target = self._targets.get(name)
        if target is None:
            target = Target(self._client, self._ledger, self._place, name, self._options.codec)
            await target.begin(self._now_ms)
            self._targets[name] = target
        return target

    async def finish(self) -> tuple[int, int]:
        """Until all is written; how many rows there were, and their checksum: for the driver."""
        for target in self._targets.values():
            await target.finish()
        here = self._rows, self._digest.value
        if self._done is not None and (self._done[0] != here[0] or (self._comparable and self._done != here)):
            raise _other_rows(self._place, f"{self._done[0]} rows were written, now there are {here[0]}")
        return here

    async def abort(self) -> None:
        """Send nothing more; what is written stays, and the next attempt finds it."""
        for target in self._targets.values():
            await target.abort()
