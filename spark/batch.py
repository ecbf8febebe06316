"""Reading as a batch: what is there is planned once, on the driver, and then read.

What it keeps true: a loaded DataFrame is a snapshot: its ends were committed when it was first used, and stay; whatever
was asked for and is not there is an error before any task begins.
"""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tidelog.protocol.errors import OffsetOutOfRange
from tidelog.protocol.types import Offset, TopicPartition
from tidelog.spark.lookup import Found, Offsets, behind_the_end, find, place
from tidelog.spark.losses import by_offsets
from tidelog.spark.options import ReadOptions
from tidelog.spark.planning import Span, rows_per_task, tasks
from tidelog.spark.portal import connected, portal

if TYPE_CHECKING:
    import pyarrow as pa


class Task(InputPartition):
    """What one task reads."""

    def __init__(self, spans: tuple[Span, ...]) -> None:
        super().__init__(spans)


class TopicReader(DataSourceReader):
    """`spark.read.format("tidelog")`."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema

    def partitions(self) -> list[InputPartition]:
        """The tasks; runs on the driver."""
        spans = portal().run(self._spans())
        options = self.options
        rows = rows_per_task(
            sum(span.size for span in spans),
            os.cpu_count() or 1,
            options.min_partitions,
            options.max_records_per_partition,
        )
        planned = tasks(spans, rows, merge=options.min_partitions is None)
        return [Task(spans) for spans in planned] or [Task(())]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """What one task reads; runs where Spark wants."""
        from tidelog.spark.scan import read  # noqa: PLC0415 -- a planner never reads

        return read(self.options, partition.value or (), self.schema)

    async def _spans(self) -> list[Span]:
        options = self.options
        client = await connected(options.address)
        found = await find(client, options)
        ends = await place(client, options.end, options, found)
        if options.last_records is not None:
            starts = {
                name: max(found.earliest[name], end - options.last_records) for name, end in ends.items()
            }
        else:
            starts = await place(client, options.start, options, found)
        return [
            Span(name.topic, found.ids[name.topic], name.partition, *self._bounds(name, starts, ends, found))
            for name in sorted(found.latest)
        ]

    def _bounds(
        self, name: TopicPartition, starts: Offsets, ends: Offsets, found: Found
    ) -> tuple[Offset, Offset]:
        """From where to where, checked against what there is."""
        start, end = starts[name], ends[name]
        if self.options.fail_on_data_loss:
            wrong = behind_the_end(self.options.start, name, start, found)
            wrong = wrong or behind_the_end(self.options.end, name, end, found)
            if wrong is not None:
                raise wrong
            loss = by_offsets(name, start, end, found.earliest[name], found.latest[name])
            if loss is not None:
                raise loss.error()
        start, end = max(start, found.earliest[name]), min(end, found.latest[name])
        if start > end and self.options.fail_on_data_loss:
            raise OffsetOutOfRange(
                f"{name}: it would begin at offset {start}, behind its end, which is {end}"
            )
        return min(start, end), end
