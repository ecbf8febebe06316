"""Spark over a topic, beside what Spark can do at best: a count over all columns, an aggregation, a stream.

    arrow      a Python data source that yields ready-made Arrow batches from memory: the limit of the API
    tuples     one that yields the same rows as tuples
    parquet    Spark's own reader, in the JVM, over files with the same rows
    kafka      Spark's JVM connector, where it is at hand (`spark_kafka`)

All of them have Kafka's columns with keys of 8 and values of 100 bytes, and as many tasks. Values of one length are
quicker than others (docs/SPARK.md), so beside them there are as many of 60 to 140 bytes. A topic is read from one
broker, a process of its own, over loopback; what is measured is the wall time of a query on a session that is warm.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.benches import spark_kafka
from scripts.benches.measure import Bench, Goal, Readings, Round, Row, Settings, interleave
from scripts.benches.spark_session import spark_beside, worker_mb

from tidelog.client.admin import NewTopic
from tidelog.testing.cluster import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS = 5_000_000
TASKS = 4
TOPIC = "measured"
VARIED = "varied"
_LENGTHS: Mapping[str, list[int]] = {TOPIC: [100], VARIED: [60 + n * 37 % 81 for n in range(81)]}
"""Of values, in turn."""
_KEYS = 1000
_CHUNK = 32_768


def _sources() -> tuple[type[Any], type[Any]]:
    """The two references, as Spark takes them; here, because only this bench needs Spark."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition  # noqa: PLC0415

    from tidelog.spark.columns import schema_of  # noqa: PLC0415

    def rows_of(first: int, count: int, topic: str = TOPIC) -> Iterator[tuple[Any, ...]]:
        import datetime as dt  # noqa: PLC0415

        now, lengths = dt.datetime.fromtimestamp(1_700_000_000, dt.UTC), _LENGTHS[topic]
        for number in range(first, first + count):
            value = b"%0*d" % (lengths[number % len(lengths)], number)
            yield b"%08d" % (number % _KEYS), value, topic, 0, number, now, 0

    class Reader(DataSourceReader):
        def __init__(self, records: int, topic: str, schema: Any, *, arrow: bool) -> None:
            self.records, self.topic, self.schema, self.arrow = records, topic, schema, arrow

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(number) for number in range(4)]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            count = self.records // 4
            if not self.arrow:
                yield from rows_of(partition.value * count, count)
                return
            import pyarrow as pa  # noqa: PLC0415
            from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415

            schema = to_arrow_schema(self.schema, timezone="UTC")
            columns = zip(*rows_of(0, _CHUNK, self.topic), strict=True)
            made = [pa.array(list(column), kind.type) for column, kind in zip(columns, schema, strict=True)]
            batch = pa.RecordBatch.from_arrays(made, schema=schema)
            while count > 0:
                yield batch.slice(0, count)
                count -= batch.num_rows

    class Source(DataSource):
        arrow = True

        def schema(self) -> Any:
            return schema_of(headers=False)

        def reader(self, schema: Any) -> Reader:
            topic = self.options.get("topic", TOPIC)
            return Reader(int(self.options["records"]), topic, schema, arrow=self.arrow)

    class Arrow(Source):
        @classmethod
        def name(cls) -> str:
            return "arrow_in_memory"

    class Tuples(Source):
        arrow = False

        @classmethod
        def name(cls) -> str:
            return "tuples_in_memory"

    return Arrow, Tuples


class _Frames:
    """The same rows from everywhere."""

    def __init__(self, spark: "SparkSession", bootstrap: str, records: int, directory: Path) -> None:
        self._spark = spark
        self._records = records
        self._bootstrap = bootstrap
        self._files = str(directory / "parquet")
        for source in _sources():
            spark.dataSource.register(source)
        self.topic().write.parquet(self._files)
        self._kafka = spark_kafka.Kafka(spark, self.topic()) if spark_kafka.at_hand() else None

    def topic(self, schema: str | None = None, name: str = TOPIC) -> "DataFrame":
        from tidelog.spark import read_topic  # noqa: PLC0415

        most = self._records // TASKS
        return read_topic(self._spark, name, self._bootstrap, maxRecordsPerPartition=most, schema=schema)

    def memory(self, source: str, topic: str = TOPIC) -> "DataFrame":
        return self._spark.read.format(source).options(records=self._records, topic=topic).load()

    def all(self) -> Mapping[str, Callable[[], "DataFrame"]]:
        kafka = {"kafka": self._kafka.read} if self._kafka is not None else {}
        return kafka | {
            "topic": self.topic,
            "arrow": lambda: self.memory("arrow_in_memory"),
            "tuples": lambda: self.memory("tuples_in_memory"),
            "parquet": lambda: self._spark.read.parquet(self._files),
        }


def _count(frame: "DataFrame") -> None:
    """Of a Python source Spark takes all columns of all rows, whatever is done with them."""
    frame.count()


def _read(frame: "DataFrame") -> None:
    """Of what the JVM reads only what is used, so all columns are."""
    frame.write.format("noop").mode("overwrite").save()


def _aggregate(frame: "DataFrame") -> None:
    frame.groupBy("key").agg({"offset": "max", "value": "count"}).write.format("noop").mode(
        "overwrite"
    ).save()


def _stream(spark: "SparkSession", bootstrap: str) -> float:
    """Millions of rows in a second of its only micro-batch; how soon a query starts is another question."""
    from tidelog.spark import read_stream  # noqa: PLC0415

    frame = read_stream(spark, TOPIC, bootstrap, startingOffsets="earliest")
    query = frame.writeStream.format("noop").trigger(availableNow=True).start()
    query.awaitTermination()
    [batch] = [progress for progress in query.recentProgress if progress.numInputRows]
    return float(batch.numInputRows) / batch.durationMs["addBatch"] / 1000


async def _fill(cluster: Cluster, records: int) -> None:
    """Both topics."""
    async with cluster.client() as client:
        await client.admin.create_topics(*[NewTopic(topic, TASKS, 1) for topic in _LENGTHS])
        async with client.producer(batch_size=256 << 10) as producer:
            for topic, lengths in _LENGTHS.items():
                for first in range(0, records, 100_000):
                    many = range(first, min(first + 100_000, records))
                    values = [b"%0*d" % (lengths[n % len(lengths)], n) for n in many]
                    keys = [b"%08d" % (n % _KEYS) for n in many]
                    await producer.send_many(topic, values, keys, partition=first // 100_000 % TASKS)


@contextmanager
def _begin(settings: Settings) -> Iterator[Round]:
    records = settings.count(RECORDS, 4000)
    with spark_beside(settings) as beside:
        beside.runner.run(_fill(beside.cluster, records))
        frames = _Frames(beside.spark, beside.cluster.bootstrap, records, settings.directory)
        yield lambda number: _take(number, frames, beside.spark, beside.cluster.bootstrap, records)


def _take(number: int, frames: _Frames, spark: "SparkSession", bootstrap: str, records: int) -> Readings:
    def rate(work: Callable[[], None]) -> Callable[[], float]:
        def taken() -> float:
            began = time.perf_counter()
            work()
            return records / (time.perf_counter() - began) / 1e6

        return taken

    probes: dict[str, Callable[[], float]] = {}
    for name, load in frames.all().items():
        count = _read if name in ("parquet", "kafka") else _count
        probes[f"count {name}"] = rate(lambda load=load, count=count: count(load()))  # type: ignore[misc]
        probes[f"aggregation {name}"] = rate(lambda load=load: _aggregate(load()))  # type: ignore[misc]
    probes["count varied topic"] = rate(lambda: _count(frames.topic(name=VARIED)))
    probes["count varied arrow"] = rate(lambda: _count(frames.memory("arrow_in_memory", VARIED)))
    probes["two columns"] = rate(lambda: _count(frames.topic("offset bigint, value binary")))
    probes["stream"] = lambda: _stream(spark, bootstrap)
    readings = interleave(number, probes)
    return {**readings, "worker": worker_mb()}


_OF_ARROW = Goal("ratio", True, 0.7, "GOALS S10")
_OF_TUPLES = Goal("ratio", True, 3.0, "GOALS S10")
_OF_STREAM = Goal("ratio", True, 0.6, "GOALS S11")
_UNIT = "M rows/s"


def beside_kafka(what: str, name: str) -> Row:
    """A row that says so where there is no connector."""
    if spark_kafka.at_hand():
        return Row(f"{what}, beside Kafka's connector", _UNIT, f"{name} topic", f"{name} kafka", "kafka, JVM")
    return Row(f"{what}, beside Kafka's connector ({spark_kafka.ABSENT})", _UNIT, f"{name} topic")


ROWS = (
    Row("all columns, beside Arrow", _UNIT, "count topic", "count arrow", "arrow", _OF_ARROW),
    Row("all columns, beside tuples", _UNIT, "count topic", "count tuples", "tuples", _OF_TUPLES),
    Row("all columns, beside files", _UNIT, "count topic", "count parquet", "parquet"),
    Row("aggregation, beside Arrow", _UNIT, "aggregation topic", "aggregation arrow", "arrow", _OF_ARROW),
    Row("aggregation, beside tuples", _UNIT, "aggregation topic", "aggregation tuples", "tuples", _OF_TUPLES),
    Row("aggregation, beside files", _UNIT, "aggregation topic", "aggregation parquet", "parquet"),
    Row(
        "all columns, values of 60 to 140 bytes, beside Arrow",
        _UNIT,
        "count varied topic",
        "count varied arrow",
        "arrow",
    ),
    beside_kafka("all columns", "count"),
    beside_kafka("aggregation", "aggregation"),
    Row("two columns", _UNIT, "two columns", "count topic", "all columns"),
    Row("a stream's micro-batch", _UNIT, "stream", "count arrow", "arrow", _OF_STREAM),
    Row("the largest Python worker", "MB", "worker"),
)
BENCH = Bench(
    "spark",
    "a topic in Spark, keys of 8 and values of 100 bytes (wall time)",
    ROWS,
    _begin,
    rounds_max=5,
    also_runs=("tidelog.spark.scan", "tidelog.broker.broker"),
)
