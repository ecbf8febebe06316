"""What a task reads: its spans, record by record from leaders, as Arrow batches.

What it keeps true:

* Every committed record of the spans is read once and in order, whatever leaders do meanwhile; nothing else is.
* What cannot be read any more is named (`losses`) and raised, or left out with a warning: `failOnDataLoss`.
* The spans come one after the other, in the order in which they were planned, whichever leader is the quickest: a task that
  is repeated yields the same rows in the same order, which sinks rest on.
* A task holds at most what it prefetches, what has come before its turn (`EARLY_BYTES`), and two Arrow batches, however
  long its spans are.
* It ends: without any progress for `STALLED_S` it says which partition does not answer.
"""

import asyncio
import gc
import logging
import sys
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.types import StructType

from tidelog.client.io.client import Client
from tidelog.client.io.packed import PackedConsumer
from tidelog.client.options import ConsumerConfig
from tidelog.client.records import RecordBatch
from tidelog.protocol.errors import (
    LogTruncated,
    OffsetOutOfRange,
    RequestTimedOut,
    TidelogError,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tidelog.protocol.types import Offset, TopicPartition
from tidelog.spark.columns import Shaper, bytes_of
from tidelog.spark.lookup import isolation_of
from tidelog.spark.losses import Loss, find_losses
from tidelog.spark.options import ReadOptions
from tidelog.spark.planning import Span
from tidelog.spark.portal import connected, portal

logger = logging.getLogger(__name__)

PREFETCH_BYTES: Final = 16 << 20
EARLY_BYTES: Final = 16 << 20
"""When more than that has come before its turn, only the span whose turn it is is read on."""
STALLED_S: Final = 120.0
_LOOK_S: Final = 0.2
"""How long nothing comes before positions are looked at: compaction may have left nothing at a span's end."""
_ASK_S: Final = 2.0
"""How long nothing comes before leaders are asked whether there is anything."""

_LOSSES: Final = (OffsetOutOfRange, LogTruncated, UnknownTopicId, UnknownTopicOrPartition)


class Scan:
    """Reads some spans, on the portal's loop."""

    def __init__(self, options: ReadOptions, spans: Sequence[Span], shaper: Shaper) -> None:
        self._options = options
        self._shaper = shaper
        self._ids = {span.topic: span.topic_id for span in spans}
        self._left: dict[TopicPartition, list[Offset]] = {
            span.name: [span.start, span.end] for span in spans if span.size
        }
        """How far each is read, and where it ends."""
        self._order = list(self._left)
        """The spans whose turn has not passed."""
        self._early: dict[TopicPartition, list[RecordBatch]] = {}
        """What has come before its turn."""
        self._early_bytes = 0
        self._client: Client
        self._consumer: PackedConsumer | None = None
        self._batches: AsyncIterator[RecordBatch] | None = None
        self._moved_s = time.monotonic()
        self._asked_s = self._moved_s

    async def begin(self) -> None:
        """Connect, and be sure that the topics are those that were planned with."""
        self._client = await connected(self._options.address)
        for topic in {name.topic for name in self._left}:
            known = self._client.cluster.topics.get(topic)
            if known is None or known.id != self._ids[topic]:
                await self._look_for_losses(None)
                break
        config = ConsumerConfig(
            auto_offset_reset="none",
            isolation_level="read_committed" if self._options.read_committed else "read_uncommitted",
            prefetch_bytes=PREFETCH_BYTES,
            max_partition_fetch_bytes=4 << 20,
            fetch_max_bytes=8 << 20,
        )
        self._consumer = await PackedConsumer(self._client, config).__aenter__()
        self._assign()

    def _assign(self) -> None:
        """Read what is left, and forget what was fetched of anything else."""
        assert self._consumer is not None
        known = self._consumer.assignment()
        # Who is ahead by too much waits until it is its turn.
        wanted = self._order[:1] if self._early_bytes > EARLY_BYTES else list(self._left)
        self._consumer.assign(wanted)
        for name in wanted:
            if name not in known:
                self._consumer.seek(name, self._left[name][0])

    async def end(self) -> None:
        """Read nothing more, and give everything back but the client."""
        self._left = {}
        await self.close()

    async def close(self) -> None:
        """Close the consumer; there is a new one when more is read."""
        consumer, self._consumer, self._batches = self._consumer, None, None
        if consumer is not None:
            await consumer.close()

    async def next(self) -> list[pa.RecordBatch]:
        """The next Arrow batches; none: all is read."""
        while self._left:
            await self._fill()
            self._check_ids()
            made = self._shaper.take()
            if made:  # else none of these had the key that is looked for
                return made
        return []

    async def _fill(self) -> None:
        """Take what makes a batch, or all that is left."""
        while self._left and not self._shaper.full:
            try:
                if self._consumer is None:
                    await self.begin()
                batch = await self._one()
            except _LOSSES as error:
                await self._look_for_losses(error)
                continue
            if batch is not None:
                self._take(batch)
            elif self._left:
                await self._quiet()

    async def _one(self) -> RecordBatch | None:
        if self._consumer is None or not self._left:
            return None
        if self._batches is None:
            self._batches = self._consumer.batches(timeout=_LOOK_S)
        try:
            return await anext(self._batches)
        except StopAsyncIteration:
            self._batches = None
            return None
        except BaseException:
            self._batches = None
            raise

    def _take(self, batch: RecordBatch) -> None:
        name = TopicPartition(batch.topic, batch.partition)
        bounds = self._left.get(name)
        if bounds is None:
            return  # was on its way when its span ended
        end = bounds[1]
        bounds[0] = batch.next_offset
        self._moved_s = time.monotonic()
        if batch.next_offset > end:
            within = bisect_left(batch.offsets, end)
            if not within:
                self._done(name)
                return
            batch, _ = batch.split(within)
        if name == self._order[0]:
            self._shaper.add(batch)
        else:
            self._early.setdefault(name, []).append(batch)
            before, self._early_bytes = self._early_bytes, self._early_bytes + bytes_of(batch)
            if before <= EARLY_BYTES < self._early_bytes and self._consumer is not None:
                self._batches = None
                self._assign()
        if bounds[0] >= end:
            self._done(name)

    def _done(self, name: TopicPartition) -> None:
        del self._left[name]
        self._batches = None
        while self._order and self._order[0] not in self._left:
            self._order.pop(0)
            for batch in self._early.pop(self._order[0], []) if self._order else ():
                self._early_bytes -= bytes_of(batch)
                self._shaper.add(batch)
        if self._left and self._consumer is not None:
            self._assign()

    async def _quiet(self) -> None:
        """Nothing has come: find out whether there is nothing to come, or nobody is there."""
        if self._consumer is None:
            return
        for name in self._consumer.assignment() & self._left.keys():
            bounds = self._left[name]
            position = await self._consumer.position(name)
            if position > bounds[0]:
                bounds[0] = position
                self._moved_s = time.monotonic()
            if position >= bounds[1]:
                self._done(name)
        now_s = time.monotonic()
        if self._left and now_s - self._asked_s > _ASK_S:
            self._asked_s = now_s
            await self._look_for_losses(None)
        if self._left and now_s - self._moved_s > STALLED_S:
            name, (position, end) = next(iter(self._left.items()))
            raise RequestTimedOut(
                f"{name}: nothing has come at offset {position} of {end} for {STALLED_S:.0f} s; "
                "`tidelog topic describe` shows who leads it"
            )

    async def _look_for_losses(self, error: TidelogError | None) -> None:
        """Raise what is lost, or leave it out; an error that none of it explains is raised as it is."""
        wanted = {name: (position, end) for name, (position, end) in self._left.items()}
        losses = await find_losses(self._client, wanted, self._ids, isolation_of(self._options))
        if self._options.fail_on_data_loss and losses:
            raise losses[0].error() from error
        if not losses and error is not None:
            raise error
        for loss in losses:
            logger.warning("spark.data_loss partition=%s what=%s fact=%s", loss.name, loss.what, loss.fact)
            self._leave_out(loss)
        if isinstance(error, UnknownTopicOrPartition):  # of that a consumer does not recover
            await self.close()

    def _leave_out(self, loss: Loss) -> None:
        bounds = self._left[loss.name]
        self._moved_s = time.monotonic()
        if loss.what == "deleted" and loss.resume < bounds[1]:
            bounds[0] = loss.resume
            if self._consumer is not None and loss.name in self._consumer.assignment():
                self._batches = None
                self._consumer.seek(loss.name, loss.resume)
        elif loss.what == "truncated" and loss.resume > bounds[0]:
            bounds[1] = loss.resume
        else:
            self._done(loss.name)

    def _check_ids(self) -> None:
        """What was read came from the topics that were planned with: the consumer follows names."""
        for topic, planned in self._ids.items():
            known = self._client.cluster.topics.get(topic)
            if known is not None and known.id != planned and self._options.fail_on_data_loss:
                raise UnknownTopicId(f"{topic}: the topic was deleted and made anew while it was read")


_frozen: list[bool] = []


def read(options: ReadOptions, spans: Sequence[Span], schema: StructType) -> Iterator[pa.RecordBatch]:
    """All records of these spans as Arrow batches; the next one is fetched while Spark takes this one."""
    if not _frozen:
        _frozen.append(True)
        gc.freeze()  # PySpark collects after every task: what was imported need not be looked at again
    if not spans:
        return
    here = portal()
    scan = Scan(options, spans, Shaper(schema, options.key_equals))
    ahead = here.submit(scan.next())
    try:
        while chunks := ahead.result():
            ahead = here.submit(scan.next())
            yield from chunks
    finally:
        if not sys.is_finalizing():  # by then the portal has ended, and with it what was under way
            ahead.cancel()
            here.run(_ended(scan))


async def _ended(scan: Scan) -> None:
    await asyncio.shield(scan.end())
