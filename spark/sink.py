"""What Spark calls to write: tasks on its executors, and one word at the end on its driver.

What it keeps true: a micro-batch that Spark repeats, in whole or in part, writes nothing twice (`writing`); a batch job's
attempts count as one as well, a job that is run again is another one.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from tidelog.client.io.client import Client
from tidelog.protocol.errors import InvalidRequest, TidelogError
from tidelog.spark.ledger import CHECKSUM, Done, Ledger, Place
from tidelog.spark.options import WriteOptions
from tidelog.spark.portal import connected, portal
from tidelog.spark.writing import Writing

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

_QUERY = "sql.streaming.queryId"
_BATCH = "streaming.sql.batchId"

_ledgers: list[tuple[Client, Ledger]] = []


def ledger_of(client: Client) -> Ledger:
    """This process's, for as long as it has that client: a worker may have tasks of several queries in turn."""
    _ledgers[:] = [each for each in _ledgers if not each[0].closed]
    for known, ledger in _ledgers:
        if known is client:
            return ledger
    ledger = Ledger(client)
    _ledgers.append((client, ledger))
    return ledger


@dataclass
class Written(WriterCommitMessage):
    """What a task has done."""

    query: str
    task: int
    rows: int = 0
    digest: int = 0
    late: bool = False
    """A later micro-batch is done already: of this one nothing is to be said."""


def write(options: WriteOptions, place: Place, given: "Iterator[pa.RecordBatch]") -> Written:
    """One task."""
    here = portal()
    writing = here.run(_begun(options, place))
    if writing.skipped:
        return Written(place.query, place.task, late=True)
    try:
        for batch in given:
            here.run(writing.add(batch))
        return Written(place.query, place.task, *here.run(writing.finish()))
    except BaseException:
        here.run(writing.abort())
        raise


async def _begun(options: WriteOptions, place: Place) -> Writing:
    client = await connected(options.address)
    writing = Writing(client, ledger_of(client), place, options)
    await writing.begin(int(time.time() * 1000))
    return writing


def _task() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise InvalidRequest("a sink is written by tasks of Spark")
    return context


class BatchSink(DataSourceArrowWriter):
    """`df.write.format("tidelog")`."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options
        self.job = f"job-{uuid4().hex}"
        """Made on the driver: attempts of one job's tasks have it in common."""

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        """One task of the job."""
        return write(self.options, Place(self.job, _task().partitionId(), 0), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """All tasks are done, and none of them will ever be repeated."""
        portal().run(_finish(self.options, self.job, None))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """What was written stays: a log takes nothing back. The job will not be tried again."""
        try:
            portal().run(_finish(self.options, self.job, None))
        except TidelogError as error:
            # A task has failed, mostly for the same reason: raised here it would hide what the task says.
            logger.warning("spark.job_not_ended job=%s reason=%s", self.job, error)


async def _finish(options: WriteOptions, query: str, done: Done | None) -> None:
    await ledger_of(await connected(options.address)).finish(query, done)


class StreamSink(DataSourceStreamArrowWriter):
    """`df.writeStream.format("tidelog")`."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        """One task of a micro-batch."""
        context = _task()
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if query is None or batch is None:
            raise InvalidRequest(
                f"Spark does not say which query and micro-batch this is ({_QUERY}, {_BATCH})"
            )
        return write(self.options, Place(query, context.partitionId(), int(batch)), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 -- Spark's
        """All tasks have succeeded, says Spark: from now on the micro-batch is done."""
        written = [each for each in messages if isinstance(each, Written)]
        if not written or any(each.late for each in written):
            return
        tasks = {str(each.task): (each.rows, each.digest) for each in written if each.rows}
        done = Done(batch=batchId, tasks=tasks, checksum=CHECKSUM)
        portal().run(_finish(self.options, written[0].query, done))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """What was written stays, and the repeated micro-batch goes on behind it."""
