"""One task of a sink: its rows into batches, and those into topics, each once whatever happens in between.

    NEW ──intent──► WRITING ──all acknowledged──► DONE
    a repeated task finds the intent: it makes the same batches under the same producer id and numbers, passes over those
    that are there, and goes on behind them; or it finds that all is done, and only compares

What it keeps true:

* A record's partition, batch and number depend on the rows, their order and the intent alone. So two attempts at the same
  task, one after the other or at once, send the same bytes, and brokers append each batch once: their sequence numbers
  are the compare-and-set that this rests on.
* What was written is compared with what the attempt yields now. Other rows than before (an input that is not
  deterministic, another number of partitions) are refused, never mixed.
* A partition has one batch on its way; a task holds one open batch of each partition.
"""

import asyncio
import zlib
from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa
from msgspec import structs

from tidelog.client.io.client import Client
from tidelog.client.partitioning import Hashes
from tidelog.protocol.errors import (
    InvalidRecord,
    InvalidRequest,
    OffsetOutOfRange,
    OutOfOrderSequenceNumber,
    UnknownProducerId,
)
from tidelog.protocol.messages import READ_COMMITTED
from tidelog.protocol.records import encode
from tidelog.protocol.types import TopicId, TopicPartition
from tidelog.spark.columns import Rows
from tidelog.spark.leaders import append, batches, new_producer_id
from tidelog.spark.ledger import Done, Intent, Ledger, Numbering, Place
from tidelog.spark.lookup import offsets_at
from tidelog.spark.options import EARLIEST, LATEST, WriteOptions

BATCH_BYTES: Final = 256 << 10
"""A batch is closed when it holds that much: a part of the numbering, so a change is a change of what is written."""
BATCH_ROWS: Final = 8192
STICKY_ROWS: Final = 4096
"""So many rows without a key go to one partition before the next one's turn."""


class Batch:
    """Records of one partition that are numbered together."""

    __slots__ = ("bytes", "headers", "keys", "times", "values")

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.times: list[int] = []
        self.headers: list[Sequence[tuple[str, bytes | None]]] = []
        self.bytes = 0

    @property
    def digest(self) -> int:
        """What stands for its records."""
        return digest(self.keys, self.values)


def digest(keys: Iterable[bytes | None], values: Iterable[bytes | None]) -> int:
    """A checksum over what two attempts must agree on."""
    first = zlib.crc32(b"\0".join([key or b"" for key in keys]))
    return zlib.crc32(b"\0".join([value or b"" for value in values]), first)


class Lane:
    """One partition: how much of it is written, and the batch that is open."""

    def __init__(self, name: TopicPartition) -> None:
        self.name = name
        self.open = Batch()
        self.next = 0
        """The number of the open batch's first record among all of this task for this partition."""
        self.written = 0
        """So many records are in the log by an earlier attempt."""
        self.found: dict[int, int] = {}
        """The checksums of those batches, by their first record's number."""
        self.digest = 0
        self.flying: asyncio.Task[None] | None = None


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
        self._only_compare = False
        self._renewing = asyncio.Lock()

    async def begin(self, done: Done | None, now_ms: int) -> None:
        """Find out what is there of this micro-batch, or say that it begins."""
        topic = await self._client.topic(self.name)
        self._topic_id = topic.id
        told = None if done is None else done.intents.get(self.name)
        self._only_compare = done is not None
        if done is not None and told is None:
            raise _other_rows(self._place, f"nothing was written to {self.name}")
        found = told or self._ledger.intent(self._place, self.name)
        if found is None:
            self.intent = await self._intend(len(topic.partitions), now_ms)
        else:
            self.intent = found
        self._lanes = [Lane(TopicPartition(self.name, at)) for at in range(len(self.intent.lanes))]
        if not self._only_compare and self.intent.topic_id == topic.id.hex():
            await asyncio.gather(*map(self._find_written, self._lanes))

    async def _intend(self, partitions: int, now_ms: int) -> Intent:
        names = [TopicPartition(self.name, at) for at in range(partitions)]
        ends = await offsets_at(self._client, names, LATEST, READ_COMMITTED)
        producer_id, epoch = await new_producer_id(self._client)
        lanes = [Numbering(producer_id=producer_id, producer_epoch=epoch, begin=ends[name]) for name in names]
        wanted = Intent(
            topic=self.name, topic_id=self._topic_id.hex(), generation=0, now_ms=now_ms, lanes=lanes
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
                lane.written = max(lane.written, first + header.last_offset_delta + 1)
                if len(columns) == header.last_offset_delta + 1:  # compaction has left it whole
                    lane.found[first] = digest(columns.keys, columns.values)
        if earliest > start and lane.written == before:
            raise OffsetOutOfRange(
                f"{name}: batch {self._place.batch} of query {self._place.query} began to be written at offset {start}, "
                f"and the log begins at {earliest} now: nobody can say what was there. Begin with a new checkpoint"
            )

    # ── rows ──────────────────────────────────────────────────────────────────────────────────────

    async def add(self, rows: Rows, places: Sequence[int]) -> None:
        """Take these rows, in their order."""
        where = self._spread(rows, places)
        for at, index in zip(places, where, strict=True):
            lane = self._lanes[index]
            batch = lane.open
            value = rows.values[at]
            key = None if rows.keys is None else rows.keys[at]
            batch.values.append(value)
            batch.keys.append(key)
            stamp = None if rows.timestamps_ms is None else rows.timestamps_ms[at]
            batch.times.append(self.intent.now_ms if stamp is None else stamp)
            if rows.headers is not None:
                batch.headers.append(rows.headers[at])
            batch.bytes += len(value or b"") + len(key or b"")
            if batch.bytes >= BATCH_BYTES or len(batch.values) >= BATCH_ROWS:
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
                    raise InvalidRecord(f"a row names partition {named}; {self.name} has {count}")
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
            if lane.written > lane.next:
                fact = f"{lane.written} records were written to {lane.name}, now there are {lane.next}"
                raise _other_rows(self._place, fact)

    async def abort(self) -> None:
        """Send nothing more."""
        flying = [lane.flying for lane in self._lanes if lane.flying is not None]
        for task in flying:
            task.cancel()
        if flying:
            await asyncio.wait(flying)

    def digests(self) -> dict[str, int]:
        """What was written, by partition."""
        return {str(lane.name): lane.digest for lane in self._lanes if lane.next}

    async def _send(self, lane: Lane) -> None:
        await _landed(lane)
        batch, first = lane.open, lane.next
        lane.open = Batch()
        lane.next += len(batch.values)
        here = batch.digest
        lane.digest = zlib.crc32(here.to_bytes(4, "big"), lane.digest)
        there = lane.found.pop(first, here)
        if there != here:
            raise _other_rows(self._place, f"records {first} to {lane.next - 1} of {lane.name} differ")
        if self._only_compare or lane.next <= lane.written:
            return
        if first < lane.written:
            raise _other_rows(self._place, f"{lane.name} was written in other batches")
        lane.flying = asyncio.get_running_loop().create_task(self._append(lane, batch, first))

    async def _append(self, lane: Lane, batch: Batch, first: int) -> None:
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
                base_sequence=first - numbering.already,
            )
            try:
                await append(self._client, lane.name, self._topic_id, data)
            except UnknownProducerId:
                # Brokers forget a producer that was silent for long: between a crash and this attempt, say.
                async with self._renewing:
                    written = await self._renew(lane)
                if written >= first + len(batch.values):
                    return
                if written != first:
                    fact = f"{written} records are in {lane.name} where {first} were"
                    raise _other_rows(self._place, fact) from None
            except OutOfOrderSequenceNumber as error:
                raise _other_rows(
                    self._place, f"{lane.name} was written in other batches ({error})"
                ) from error
            else:
                return

    async def _renew(self, lane: Lane) -> int:
        """Go on in that partition under a new producer id; how many records are there already."""
        place, index = self._place, lane.name.partition
        await self._ledger.refresh(place)
        done = self._ledger.done(place)
        if done is not None and done.batch >= place.batch:
            raise _other_rows(place, "another attempt has ended it meanwhile, and this one is late")
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
        return self.intent.lanes[index].already


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
    """A task: rows in, and one entry in the ledger when all of them are written."""

    def __init__(self, client: Client, ledger: Ledger, place: Place, options: WriteOptions) -> None:
        self._client = client
        self._ledger = ledger
        self._place = place
        self._options = options
        self._targets: dict[str, Target] = {}
        self._done: Done | None = None
        self._now_ms = 0
        self.skipped = False
        """Whether a later micro-batch of this task is in its topics already."""

    async def begin(self, now_ms: int) -> None:
        """Learn what was done before."""
        self._now_ms = now_ms
        await self._ledger.refresh(self._place)
        done = self._ledger.done(self._place)
        if done is not None and done.batch >= self._place.batch:
            self._done = done if done.batch == self._place.batch else None
            self.skipped = self._done is None

    async def add(self, batch: pa.RecordBatch) -> None:
        """Write these rows."""
        rows = Rows(batch)
        if rows.topics is None:
            await (await self._target(self._options.topic)).add(rows, range(rows.count))
            return
        by_topic: dict[str, list[int]] = {}
        for at, name in enumerate(rows.topics):
            by_topic.setdefault(name or self._options.topic, []).append(at)
        for name, places in by_topic.items():
            if not name:
                raise InvalidRecord("a row names no topic, and there is no option topic")
            await (await self._target(name)).add(rows, places)

    async def _target(self, name: str) -> Target:
        target = self._targets.get(name)
        if target is None:
            target = Target(self._client, self._ledger, self._place, name, self._options.codec)
            await target.begin(self._done, self._now_ms)
            self._targets[name] = target
        return target

    async def finish(self) -> int:
        """Until all is written, and the ledger says so; how many rows there were."""
        targets = self._targets.values()
        for target in targets:
            await target.finish()
        rows = sum(target.rows for target in targets)
        digests = {name: each for target in targets for name, each in target.digests().items()}
        if self._done is not None:
            if self._done.digests != digests or self._done.rows != rows:
                raise _other_rows(self._place, f"{self._done.rows} rows were written, now there are {rows}")
        elif rows:
            intents = {target.name: target.intent for target in targets}
            done = Done(batch=self._place.batch, intents=intents, digests=digests, rows=rows)
            await self._ledger.finish(self._place, done)
        return rows

    async def abort(self) -> None:
        """Send nothing more; what is written stays, and the next attempt finds it."""
        for target in self._targets.values():
            await target.abort()
