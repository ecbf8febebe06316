"""What a Python worker of Spark's needs while it reads one partition of 10 GB in one task: as much as for a tenth of it.

The partition is real: 1 KB records that a producer has written and a broker has on its disk, as fast as both can, for at
most `FILL_S`; how large it has become is a row. Memory is the most that any worker ever had (VmHWM), first over the
first tenth and then over all of it.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from scripts.benches.measure import Bench, Goal, Readings, Round, Row, Settings
from scripts.benches.spark_session import Beside, spark_beside, worker_mb
from scripts.benches.spark_streams import make

LARGE_BYTES = 10 << 30
FILL_S = 300.0
TOPIC = "large"
_VALUE = b"." * 1024
_MANY = 1000


async def _fill(beside: Beside, size: int) -> int:
    """One partition of that size, if time allows; how many records it has."""
    await make(beside, TOPIC, 1)
    end_s, count = time.monotonic() + FILL_S, 0
    async with beside.cluster.client() as client, client.producer(batch_size=1 << 20) as producer:
        while count * len(_VALUE) < size and time.monotonic() < end_s:
            await producer.send_many(TOPIC, [_VALUE] * _MANY, partition=0)
            count += _MANY
    return count


def _over(beside: Beside, end: int) -> float:
    """Megabytes of the largest worker, once the records below that offset have been read in one task."""
    from tidelog.spark import read_topic  # noqa: PLC0415 -- only this bench needs Spark

    where = f'{{"{TOPIC}":{{"0":{end}}}}}'
    frame = read_topic(beside.spark, TOPIC, beside.cluster.bootstrap, endingOffsets=where, minPartitions=1)
    assert frame.count() == end
    return worker_mb()


@contextmanager
def _begin(settings: Settings) -> Iterator[Round]:
    with spark_beside(settings) as beside:

        def take(_number: int) -> Readings:
            count = beside.runner.run(_fill(beside, settings.count(LARGE_BYTES, 10 << 20)))
            tenth = _over(beside, count // 10)
            began = time.perf_counter()
            whole = _over(beside, count)
            took_s = time.perf_counter() - began
            size = count * len(_VALUE)
            return {"tenth": tenth, "whole": whole, "size": size / 2**30, "rate": size / took_s / 1e6}

        yield take


BENCH = Bench(
    "streams-memory",
    "a Python worker of Spark's over one large partition (Linux)",
    (
        Row(
            "the largest worker over all of it",
            "MB",
            "whole",
            "tenth",
            "over a tenth of it",
            Goal("ratio", False, 1.2, "issue 9"),
        ),
        Row("the partition", "GB", "size", goal=Goal("figure", True, 10, "issue 9")),
        Row("read", "MB/s", "rate"),
    ),
    _begin,
    rounds_max=1,
    also_runs=("tidelog.spark.scan", "tidelog.broker.broker"),
    part_of="streams",
)
