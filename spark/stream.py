"""Reading as a stream: how far the next micro-batch goes, and who reads it.

What it keeps true:

* A micro-batch is what its offsets say and nothing else: planned again after a restart, on another machine, it is cut
  into the same tasks with the same records.
* A stream that is up to date waits at its leaders for what comes, and asks them for nothing in between.
* Partitions and topics that appear later are read from their beginning. What is lost is named before it is skipped.
"""

import asyncio
import logging
import os
import time
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tidelog.client.io.client import Client
from tidelog.client.io.consumer import Consumer
from tidelog.protocol.errors import InvalidConfig, TidelogError
from tidelog.protocol.types import Offset, TopicPartition
from tidelog.spark.batch import Task
from tidelog.spark.lookup import Found, behind_the_end, find, means, place
from tidelog.spark.losses import Loss, by_offsets, by_options, by_topic, ids_now
from tidelog.spark.mirror import Mirror
from tidelog.spark.offsets import StreamOffset, nested, stream_offset
from tidelog.spark.options import ReadOptions
from tidelog.spark.planning import Span, limited, rows_per_task, tasks
from tidelog.spark.portal import connected, portal

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

POLL_S: Final = 0.5
"""How long a stream that is up to date waits for news before it tells Spark that there are none."""
GROW_S: Final = 0.1
"""How often, at most, a stream that waits for enough looks how much there is."""

RECORD_BYTES_MAX: Final = 1 << 20
"""What a record is taken for as long as none has come: as much as a batch may be by default, so that a limit of bytes holds."""


class TopicStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("tidelog")`."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self._initial: StreamOffset | None = None
        self._target: dict[TopicPartition, Offset] | None = None
        """For Trigger.AvailableNow: where the query ends."""
        self._named = {*options.subscribe, *options.assign}
        self._latest: dict[TopicPartition, Offset] = {}
        self._planned_s = time.monotonic()
        self._record_bytes = 0.0
        self._watcher: Watcher | None = None
        self._mirror = Mirror(options.commit_group) if options.commit_group else None

    def __getstate__(self) -> dict[str, Any]:
        """What tasks need: nothing that is open."""
        return {**self.__dict__, "_watcher": None, "_mirror": None}

    # ── offsets ───────────────────────────────────────────────────────────────────────────────────

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 -- Spark's
        """Where a new stream begins; Spark asks more than once, and gets the same answer."""
        if self._initial is None:
            self._initial = portal().run(self._begin())
        return self._initial.as_json()

    async def _begin(self) -> StreamOffset:
        options = self.options
        client = await connected(options.address)
        found = await find(client, options)
        if options.last_records is not None:
            starts = {
                name: max(found.earliest[name], end - options.last_records)
                for name, end in found.latest.items()
            }
        else:
            starts = await place(client, options.start, options, found)
        for name, start in starts.items():
            if options.fail_on_data_loss:
                wrong = behind_the_end(options.start, name, start, found)
                if wrong is not None:
                    raise wrong
                loss = by_offsets(name, start, found.latest[name], found.earliest[name], found.latest[name])
                if loss is not None:
                    raise loss.error()
            starts[name] = min(max(start, found.earliest[name]), found.latest[name])
        return StreamOffset(starts, found.ids)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """By the options; Trigger.Once ignores it."""
        if self.options.max_offsets is not None:
            return ReadMaxRows(self.options.max_offsets)
        if self.options.max_bytes is not None:
            return ReadMaxBytes(self.options.max_bytes)
        if self.options.min_offsets is not None:
            return ReadMinRows(self.options.min_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What is there now is all that this query reads."""
        # What is missing is named, or left out, by whoever asks for a micro-batch.
        found = portal().run(self._find(self._named))
        self._target = dict(found.latest)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """For progress: what there is, read or not."""
        return nested(self._latest) if self._latest else None

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next micro-batch ends; `start` itself when there is nothing new."""
        at = stream_offset(start)
        fresh = self._initial is not None and start == self._initial.as_json()
        if not fresh:
            self._tell(at)  # Spark asks for more when it has finished this
        end = portal().run(self._next(at, fresh=fresh, bounded=not isinstance(limit, ReadAllAvailable)))
        return start if end is None else end.as_json()

    async def _find(self, may_lack: Collection[str]) -> Found:
        client = await connected(self.options.address)
        found = await find(client, self.options, may_lack)
        self._latest = dict(found.latest)
        return found

    async def _next(self, at: StreamOffset, *, fresh: bool, bounded: bool) -> StreamOffset | None:
        self._check_checkpoint(at)
        may_lack = {name.topic for name in at.offsets} if self.options.fail_on_data_loss else self._named
        found = await self._find(may_lack)
        gone = await self._gone(at, found)
        begins, ends = self._bounds(at, found, gone)
        total = sum(ends[name] - begins[name] for name in ends)
        news = total or ends.keys() - at.offsets.keys()
        too_little = bounded and self._is_too_little(total)
        if self._target is None and not gone and (not news or too_little):
            await self._wait(found, total)
            found = await self._find(may_lack)
            gone = await self._gone(at, found)
            begins, ends = self._bounds(at, found, gone)
            total = sum(ends[name] - begins[name] for name in ends)
        moved = gone or any(ends[name] != at.offsets.get(name) for name in ends)
        if not moved or (bounded and not gone and self._is_too_little(total)):
            return None
        if bounded:
            ends = await self._limit(begins, ends)
        self._planned_s = time.monotonic()
        total = sum(ends[name] - begins[name] for name in ends)
        options = self.options
        rows = rows_per_task(
            total, os.cpu_count() or 1, options.min_partitions, options.max_records_per_partition
        )
        told = {name: begin for name, begin in begins.items() if fresh or begin != at.offsets.get(name)}
        topics = {name.topic for name in ends}
        ids = {topic: had for topic, had in at.ids.items() if topic in topics} | found.ids
        return StreamOffset(ends, ids, rows, told, merge=options.min_partitions is None)

    def _check_checkpoint(self, at: StreamOffset) -> None:
        """Refuse one of which nothing is asked for: another stream's, mostly, whose place this one would forget."""
        if not at.offsets or not self.options.fail_on_data_loss:
            return
        if not any(means(self.options, name) for name in at.offsets):
            topics = ", ".join(sorted({name.topic for name in at.offsets}))
            raise InvalidConfig(
                f"the checkpoint is of {topics}, and nothing in it is asked for: give this stream a checkpoint of its own, "
                "or set failOnDataLoss=false to forget it and read what is asked for from its beginning"
            )

    async def _gone(self, at: StreamOffset, found: Found) -> set[TopicPartition]:
        """What the stream has been reading and reads no more: nobody has it, or nobody asks for it."""
        missing = sorted(at.offsets.keys() - found.latest.keys())
        if not missing:
            return set()
        unfound = [name.topic for name in missing if name.topic not in found.ids]
        ids = found.ids | await ids_now(await connected(self.options.address), unfound)
        gone = set()
        for name in missing:
            position = at.offsets[name]
            loss = by_topic(name, position, at.ids.get(name.topic, b""), ids[name.topic])
            loss = loss or by_options(name, position, asked=means(self.options, name))
            if loss is not None:
                self._lose(loss, 0)
                gone.add(name)
        return gone

    def _bounds(
        self, at: StreamOffset, found: Found, gone: Collection[TopicPartition]
    ) -> tuple[dict[TopicPartition, Offset], dict[TopicPartition, Offset]]:
        """From where to where everything goes that is there, as far as this query goes.

        A topic never has fewer partitions than before: what is missing and not gone is behind the metadata of a broker
        that has not heard of it yet, and keeps its place. Forgotten, it would be taken for new, and read once more.
        """
        begins: dict[TopicPartition, Offset] = {}
        ends: dict[TopicPartition, Offset] = {}
        for name, latest in found.latest.items():
            begin, earliest = at.offsets.get(name), found.earliest[name]
            if begin is not None:
                had = at.ids.get(name.topic, b"")
                loss = by_topic(name, begin, had, found.ids[name.topic])
                loss = loss or by_offsets(name, begin, max(begin, latest), earliest, latest)
                if loss is not None:
                    begin = self._lose(loss, earliest)
            begins[name] = earliest if begin is None else begin
            target = latest if self._target is None else self._target.get(name, begins[name])
            ends[name] = max(min(target, latest), begins[name])
        for name in at.offsets.keys() - found.latest.keys() - set(gone):
            begins[name] = ends[name] = at.offsets[name]
        return begins, ends

    def _lose(self, loss: Loss, earliest: Offset) -> Offset:
        """Where to go on; raises unless the user said otherwise."""
        if self.options.fail_on_data_loss:
            raise loss.error()
        logger.warning("spark.data_loss partition=%s what=%s fact=%s", loss.name, loss.what, loss.fact)
        return earliest if loss.what == "recreated" else loss.resume

    def _is_too_little(self, total: int) -> bool:
        least = self.options.min_offsets
        if least is None or self._target is not None or total >= least:
            return False
        return self._left_s() > 0

    def _left_s(self) -> float:
        """How long what is too little is still waited for."""
        return self._planned_s + self.options.max_delay_ms / 1000 - time.monotonic()

    async def _limit(
        self, begins: dict[TopicPartition, Offset], ends: dict[TopicPartition, Offset]
    ) -> dict[TopicPartition, Offset]:
        options = self.options
        if options.max_offsets is not None:
            ends = limited(begins, ends, options.max_offsets)
        if options.max_bytes is not None:
            size = self._record_bytes or await record_bytes(await connected(options.address), begins, ends)
            if size is None:
                ends = limited(begins, ends, max(options.max_bytes // RECORD_BYTES_MAX, 1))
            elif size:
                self._record_bytes = size
                ends = limited(begins, ends, max(int(options.max_bytes / size), 1))
        return ends

    async def _wait(self, found: Found, too_little: int) -> None:
        """Until there is anything behind these ends, or for half a second; what is too little grows for a while first."""
        if self._watcher is None:
            self._watcher = Watcher()
        seconds = POLL_S
        if too_little:
            seconds = min(POLL_S, max(self._left_s(), 0))
            await asyncio.sleep(min(GROW_S, seconds))
            seconds = max(seconds - GROW_S, 0)
        await self._watcher.wait(await connected(self.options.address), found.latest, seconds)

    # ── a micro-batch ─────────────────────────────────────────────────────────────────────────────

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Its tasks."""
        first, last = stream_offset(start), stream_offset(end)
        spans = []
        for name, behind in last.offsets.items():
            begin = last.start.get(name, first.offsets.get(name, behind))
            topic_id = last.ids.get(name.topic, b"")
            spans.append(Span(name.topic, topic_id, name.partition, min(begin, behind), behind))
        planned = tasks(spans, last.rows, merge=last.merge)
        return [Task(spans) for spans in planned] or [Task(())]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """What one task reads."""
        from tidelog.spark.scan import read  # noqa: PLC0415 -- a planner never reads

        return read(self.options, partition.value or (), self.schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark keeps the offsets itself; `commitGroup` mirrors them."""
        self._tell(stream_offset(end))

    def _tell(self, finished: StreamOffset) -> None:
        if self._mirror is not None:
            portal().run(self._told(self._mirror, finished))

    async def _told(self, mirror: Mirror, finished: StreamOffset) -> None:
        await mirror.tell(await connected(self.options.address), finished)

    def stop(self) -> None:
        """Nothing of this needs to be released: connections end with the process."""


class Watcher:
    """Waits at the leaders for the first record behind some offsets."""

    def __init__(self) -> None:
        self._consumer: Consumer | None = None
        self._at: dict[TopicPartition, Offset] = {}

    async def wait(self, client: Client, ends: dict[TopicPartition, Offset], seconds: float) -> None:
        """Until something comes, or that time is over."""
        if not ends:
            await asyncio.sleep(seconds)  # there is no leader to wait at
            return
        try:
            if self._consumer is None:
                # As little as a fetch can bring: one batch of each partition.
                self._consumer = await client.consumer(
                    auto_offset_reset="none", max_partition_fetch_bytes=1, fetch_max_bytes=1, prefetch_bytes=1
                ).__aenter__()
                self._at = {}
            if ends != self._at:
                self._consumer.assign(ends)
                for name, offset in ends.items():
                    self._consumer.seek(name, offset)
            self._at = dict(ends)
            if await self._consumer.getmany(timeout=seconds, max_records=1):
                self._at = {}
        except TidelogError as error:
            # What is wrong is met, and said, by whoever asks for offsets next.
            logger.info("spark.watcher_ended reason=%s", error)
            consumer, self._consumer = self._consumer, None
            if consumer is not None:
                await consumer.close()
            await asyncio.sleep(min(GROW_S, seconds))  # or it would be met again at once


async def record_bytes(
    client: Client, begins: dict[TopicPartition, Offset], ends: dict[TopicPartition, Offset]
) -> float | None:
    """What a record takes, about: the mean of the first ones that are there; 0: there are none; None: none has come yet."""
    names = [name for name in ends if ends[name] > begins[name]]
    if not names:
        return 0.0
    async with client.consumer(auto_offset_reset="none", max_partition_fetch_bytes=1) as consumer:
        consumer.assign(names)
        for name in names:
            consumer.seek(name, begins[name])
        found = await consumer.getmany(timeout=POLL_S, max_records=500)
        if not found and any([await consumer.position(name) < ends[name] for name in names]):
            return None
    records = [record for each in found.values() for record in each]
    sizes = [len(record.key or b"") + len(record.value or b"") for record in records]
    return max(sum(sizes) / len(sizes), 1.0) if sizes else 0.0
