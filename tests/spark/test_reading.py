"""Batch reads on a real Spark from real brokers."""

import asyncio
import json
import time
from contextlib import closing
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.conftest import World
from tests.spark.test_losses import planned
from tidelog.client.admin import NewTopic
from tidelog.client.io.producer import Producer
from tidelog.protocol.compression import CODECS
from tidelog.spark import read_topic, write_topic

pytestmark = pytest.mark.slow


def numbers(count: int, first: int = 0) -> list[bytes | None]:
    return [b"%d" % number for number in range(first, first + count)]


def texts(frame: DataFrame) -> list[str]:
    return sorted((row[0] for row in frame.selectExpr("cast(value as string)").collect()), key=int)


def read(spark: SparkSession, world: World, topic: str, **options: Any) -> list[str]:
    return texts(read_topic(spark, topic, world.bootstrap, **options))


def test_the_schema_is_kafkas(spark: SparkSession, world: World) -> None:
    frame = read_topic(spark, world.topic(), world.bootstrap)
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    with_headers = read_topic(spark, world.topic(), world.bootstrap, includeHeaders=True)
    assert with_headers.schema["headers"].dataType.simpleString() == "array<struct<key:string,value:binary>>"


def test_records_come_as_they_were_written(spark: SparkSession, world: World) -> None:
    topic = world.topic()

    async def write() -> None:
        async with world.client.producer() as producer:
            await producer.send(
                topic, b"v", key=b"k", headers=[("h", b"1"), ("h", None)], timestamp_ms=1_700_000_000_123
            )
            await producer.send(topic, None, key=b"gone", timestamp_ms=1_700_000_000_124)
            await producer.send(topic, b"", timestamp_ms=1_700_000_000_125)

    world.run(write())
    frame = read_topic(spark, topic, world.bootstrap, includeHeaders=True).orderBy("offset")
    first, second, third = frame.selectExpr("*", "unix_millis(timestamp) as ms").collect()
    assert (bytes(first.key), bytes(first.value), first.topic, first.partition, first.offset) == (
        b"k",
        b"v",
        topic,
        0,
        0,
    )
    assert [(each.key, each.value and bytes(each.value)) for each in first.headers] == [
        ("h", b"1"),
        ("h", None),
    ]
    assert (first.ms, first.timestampType) == (1_700_000_000_123, 0)
    assert (bytes(second.key), second.value, second.headers) == (b"gone", None, None)
    assert (third.key, bytes(third.value)) == (None, b"")


def test_a_schema_of_the_users_reads_only_its_columns(spark: SparkSession, world: World) -> None:
    topic = world.topic()
    world.produce(topic, numbers(3))
    rows = read_topic(spark, topic, world.bootstrap, schema="offset bigint, value string").collect()
    assert [(row.offset, row.value) for row in rows] == [(0, "0"), (1, "1"), (2, "2")]
    with pytest.raises(AnalysisException, match=r"there is no column offsets"):
        read_topic(spark, topic, world.bootstrap, schema="offsets bigint").collect()
    with pytest.raises(AnalysisException, match=r"column offset is bigint, not int"):
        read_topic(spark, topic, world.bootstrap, schema="offset int").collect()


def test_a_dataframe_filtered_in_two_ways_gives_right_answers(spark: SparkSession, world: World) -> None:
    """Spark's own pushing down of filters does not: docs/SPARK.md."""
    topic = world.topic(2)
    world.produce(topic, numbers(40), 0)
    world.produce(topic, numbers(30), 1)
    frame = read_topic(spark, topic, world.bootstrap)
    assert frame.filter("offset < 3").count() == 6
    assert frame.count() == 70
    assert frame.filter("partition = 0").union(frame.filter("partition = 1")).count() == 70


def test_ends_are_frozen_when_a_dataframe_is_first_used(spark: SparkSession, world: World) -> None:
    topic = world.topic()
    world.produce(topic, numbers(5))
    frame = read_topic(spark, topic, world.bootstrap)
    assert frame.count() == 5
    world.produce(topic, numbers(5))
    assert frame.count() == 5
    assert read_topic(spark, topic, world.bootstrap).count() == 10


def test_every_way_to_begin_and_to_end(spark: SparkSession, world: World) -> None:
    topic = world.topic(2)

    async def write() -> None:
        async with world.client.producer() as producer:
            for number in range(10):
                for partition in (0, 1):
                    at = 1_700_000_000_000 + number * 1000
                    await producer.send(topic, b"%d" % number, partition=partition, timestamp_ms=at)

    world.run(write())

    def each(first: int, second: int) -> str:
        return json.dumps({topic: {"0": first, "1": second}})

    def counts(**options: Any) -> tuple[int, int]:
        found = read_topic(spark, topic, world.bootstrap, schema="partition int", **options).collect()
        return sum(row[0] == 0 for row in found), sum(row[0] == 1 for row in found)

    time_of = 1_700_000_000_000
    assert counts() == (10, 10)
    assert counts(startingOffsets="earliest", endingOffsets="latest") == (10, 10)
    assert counts(startingOffsets=each(4, -2), endingOffsets=each(-1, 7)) == (6, 7)
    assert counts(startingOffsets=each(10, 9)) == (0, 1)
    assert counts(startingTimestamp=time_of + 7000) == (3, 3)
    assert counts(endingTimestamp=time_of + 6500) == (7, 7)
    assert counts(startingOffsetsByTimestamp=each(time_of + 1, time_of + 9000)) == (9, 1)
    assert counts(endingOffsetsByTimestamp=each(time_of, time_of + 99_000)) == (0, 10)
    assert counts(startingTimestamp=time_of + 99_000, startingOffsetsByTimestampStrategy="latest") == (0, 0)
    assert counts(lastRecords=3) == (3, 3)
    assert counts(partitions="1") == (0, 10)
    with pytest.raises(AnalysisException, match="has no record of"):
        counts(startingTimestamp=time_of + 99_000)
    with pytest.raises(AnalysisException, match="it must name every partition"):
        counts(startingOffsets=json.dumps({topic: {"0": 1}}))
    with pytest.raises(AnalysisException, match="would begin at offset 8, behind its end, which is 3"):
        counts(startingOffsets=each(8, 0), endingOffsets=each(3, 3))


def test_topics_are_named_matched_or_assigned(spark: SparkSession, world: World) -> None:
    one, two = world.topic(), world.topic(2)
    world.produce(one, numbers(1))
    world.produce(two, numbers(2), 0)
    world.produce(two, numbers(4), 1)
    load = spark.read.format("tidelog").option("kafka.bootstrap.servers", world.bootstrap)
    assert load.option("subscribe", f"{one},{two}").load().count() == 7
    load = spark.read.format("tidelog").option("kafka.bootstrap.servers", world.bootstrap)
    assert load.option("assign", json.dumps({two: [1]})).load().count() == 4
    load = spark.read.format("tidelog").option("kafka.bootstrap.servers", world.bootstrap)
    assert load.option("subscribePattern", f"({one}|{two})").load().count() == 7


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffset": "earliest"}, "the nearest is startingOffsets"),
        ({"kafka.nonsense": "1"}, "nonsense.*: there is no such option"),
        ({"subscribe": "no-such-topic"}, "no-such-topic"),
        ({"partitions": "0,7"}, r"partitions: there is no 7; topic-\d+ has 1 partition"),
    ],
)
def test_what_cannot_be_is_one_clear_sentence(
    spark: SparkSession, world: World, options: dict[str, str], words: str
) -> None:
    frame = {"subscribe": world.topic(), **options}
    with pytest.raises(AnalysisException, match=words):
        spark.read.format("tidelog").options(
            **{"bootstrap.servers": world.bootstrap, **frame}
        ).load().collect()


def test_a_misspelt_option_is_told_by_load_itself(spark: SparkSession) -> None:
    for reader in (spark.read, spark.readStream):
        load = reader.format("tidelog").option("bootstrap.servers", "h:1").option("subscribe", "orders")
        with pytest.raises(AnalysisException, match="the nearest is startingOffsets"):
            load.option("startingOffset", "earliest").load()


def test_an_address_where_nobody_listens_is_named(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match=r"127\.0\.0\.1:1: Connection refused"):
        read_topic(spark, "orders", "127.0.0.1:1").count()


def test_a_write_where_nobody_listens_ends_with_the_sentence_of_its_task(spark: SparkSession) -> None:
    with pytest.raises(PythonException, match=r"127\.0\.0\.1:1: Connection refused$"):
        write_topic(spark.sql("select 'a' as value"), "orders", "127.0.0.1:1")


def test_a_load_is_cut_into_tasks_as_it_is_told(spark: SparkSession, world: World) -> None:
    topic = world.topic(2)
    world.produce(topic, numbers(100), 0)
    world.produce(topic, numbers(10, 100), 1)
    cut = read_topic(spark, topic, world.bootstrap, maxRecordsPerPartition=25)
    assert cut.rdd.getNumPartitions() == 5
    assert texts(cut) == [str(number) for number in range(110)]
    assert read_topic(spark, topic, world.bootstrap, minPartitions=11).rdd.getNumPartitions() >= 11
    assert read_topic(spark, topic, world.bootstrap).rdd.getNumPartitions() == 1


def test_a_limit_leaves_nothing_behind(spark: SparkSession, world: World) -> None:
    topic = world.topic()
    world.produce(topic, numbers(200_000))
    assert len(read_topic(spark, topic, world.bootstrap).limit(5).collect()) == 5
    assert read_topic(spark, topic, world.bootstrap).count() == 200_000


def test_only_the_records_of_a_key_are_handed_over(spark: SparkSession, world: World) -> None:
    topic = world.topic(2)

    async def write() -> None:
        async with world.client.producer() as producer:
            await producer.send_many(topic, numbers(100), [b"k%d" % (n % 10) for n in range(100)])

    world.run(write())
    assert read(spark, world, topic, keyEquals="k7") == [str(n) for n in range(7, 100, 10)]
    assert read(spark, world, topic, keyEquals="nobody") == []


def test_uncommitted_records_never_appear(spark: SparkSession, world: World) -> None:
    """A follower is stopped: what only the leader has lies above the high watermark."""
    topic = "uncommitted"

    async def begin() -> Producer:
        await world.client.admin.create_topics(
            NewTopic(topic, assignment=[[1, 2]], configs={"min.insync.replicas": 2})
        )
        # One producer for all: a second one might ask the broker that stands still for its id.
        producer = await world.client.producer().__aenter__()
        await producer.send_many(topic, numbers(10))
        await world.cluster.pause(2)
        return producer

    async def write_uncommitted(producer: Producer) -> "asyncio.Task[Any]":
        before = _bytes_of(world, topic)
        task = asyncio.get_running_loop().create_task(producer.send_many(topic, numbers(10, 10)))
        async with asyncio.timeout(30):
            while _bytes_of(world, topic) == before:  # noqa: ASYNC110 -- a file tells nobody
                await asyncio.sleep(0.01)
        assert not task.done(), "the leader has them, and nobody else: they are not committed"
        return task

    async def end(producer: Producer) -> None:
        await world.cluster.resume(2)
        await producer.close()

    async def outcome(sent: "asyncio.Task[Any]") -> None:
        await sent

    producer = world.run(begin())
    try:
        task = world.run(write_uncommitted(producer))
        assert read(spark, world, topic, partitions="0") == [str(n) for n in range(10)]
    finally:
        world.run(end(producer))
    world.run(outcome(task))
    assert read(spark, world, topic) == [str(n) for n in range(20)]


def _bytes_of(world: World, topic: str) -> int:
    """How much the leader, broker 1, has on its disk."""
    files = (world.cluster.nodes["b1"].spec.directory / f"{topic}-0").glob("*.log")
    return sum(file.stat().st_size for file in files)


def test_a_leader_killed_during_a_read_costs_nothing(spark: SparkSession, world: World) -> None:
    topic = world.topic(1, 3)
    world.run(_fill(world, topic, 1_500_000))
    frame = read_topic(
        spark, topic, world.bootstrap, schema="offset bigint", maxRecordsPerPartition=2_000_000
    )
    leader = world.run(world.cluster.leader_of(topic))
    assert leader is not None

    tracker = spark.sparkContext.statusTracker()

    def reads() -> bool:
        stages = (tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds())
        return any(stage is not None and stage.numActiveTasks for stage in stages)

    async def kill() -> None:
        async with asyncio.timeout(60):
            while not await asyncio.to_thread(reads):  # noqa: ASYNC110 -- Spark tells nobody
                await asyncio.sleep(0.01)
        await world.cluster.kill(leader)

    killing = asyncio.run_coroutine_threadsafe(kill(), world._loop)
    try:
        row = frame.selectExpr("count(*)", "count(distinct offset)", "max(offset)").collect()[0]
    finally:
        killing.result(60)
        world.run(world.cluster.start(leader))
        world.run(world.cluster.wait_ready())
    assert tuple(row) == (1_500_000, 1_500_000, 1_499_999)


def test_a_leader_killed_in_the_middle_of_a_task_is_replaced_by_the_next_one(world: World) -> None:
    count = 600_000
    topic = world.topic(1, 3)
    world.run(_fill(world, topic, count))
    reader, [task] = planned(world, topic, minPartitions="1")
    leader = world.run(world.cluster.leader_of(topic))
    assert leader is not None
    with closing(reader.read(task)) as batches:
        read = [next(batches)]
        world.run(world.cluster.kill(leader))
        try:
            read += batches
        finally:
            world.run(world.cluster.start(leader))
            world.run(world.cluster.wait_ready())
    offsets = [offset for batch in read for offset in batch.column("offset").to_pylist()]
    assert offsets == list(range(count))


async def _fill(world: World, topic: str, count: int) -> None:
    async with world.client.producer() as producer:
        for first in range(0, count, 100_000):
            await producer.send_many(topic, [b"%050d" % n for n in range(first, min(first + 100_000, count))])


def test_a_compacted_topic_is_read_as_it_is(spark: SparkSession, world: World) -> None:
    topic = world.topic(cleanup_policy="compact", segment_bytes=1024, min_cleanable_dirty_ratio=0.01)

    async def write() -> None:
        async with world.client.producer(batch_size=300) as producer:
            for number in range(300):
                await producer.send(topic, b"%d" % number, key=b"k%d" % (number % 3))

    world.run(write())
    # With the gaps of compaction or, while it has not been here yet, without.
    assert read(spark, world, topic)[-3:] == ["297", "298", "299"]


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_a_dataframe_is_written_and_read_again(spark: SparkSession, world: World, compression: str) -> None:
    topic = world.topic(3)
    frame = spark.range(1000).selectExpr(
        "cast(id % 7 as string) as key",
        "cast(id as string) as value",
        "timestamp_millis(1700000000000 + id) as timestamp",
        "array(struct('n' as key, cast(cast(id as string) as binary) as value)) as headers",
    )
    write_topic(frame, topic, world.bootstrap, compression=compression)
    assert world.codecs(topic) == {CODECS[compression]}
    back = read_topic(spark, topic, world.bootstrap, includeHeaders=True)
    assert texts(back) == [str(n) for n in range(1000)]
    row = (
        back.filter("cast(value as string) = '42'")
        .selectExpr("key", "unix_millis(timestamp)", "headers")
        .collect()[0]
    )
    assert (bytes(row[0]), row[1], bytes(row[2][0].value)) == (b"0", 1_700_000_000_042, b"42")
    by_key = back.groupBy("key").agg({"partition": "max"}).count()
    assert by_key == 7


def test_rows_say_which_topic_they_are_for(spark: SparkSession, world: World) -> None:
    one, two = world.topic(), world.topic()
    frame = spark.range(10).selectExpr(
        "cast(id as string) as value", f"if(id < 3, '{one}', '{two}') as topic"
    )
    write_topic(frame, None, world.bootstrap)
    assert (len(world.values(one)), len(world.values(two))) == (3, 7)
    write_topic(frame, one, world.bootstrap)
    assert len(world.values(one)) == 13


def test_rows_that_are_no_records_are_refused(spark: SparkSession, world: World) -> None:
    topic = world.topic()
    with pytest.raises(Exception, match="column id cannot be written"):
        write_topic(spark.range(1).selectExpr("'a' as value", "id"), topic, world.bootstrap)
    with pytest.raises(Exception, match="a record needs a column value"):
        write_topic(spark.range(1).selectExpr("'a' as key"), topic, world.bootstrap)
    with pytest.raises(Exception, match="column value is bigint, it must be binary or string"):
        write_topic(spark.range(1).selectExpr("id as value"), topic, world.bootstrap)


def test_a_table_is_read_live_and_written_to(spark: SparkSession, world: World) -> None:
    topic, table = world.topic(), f"orders_{time.monotonic_ns()}"
    world.produce(topic, numbers(3))
    options = f"OPTIONS (`bootstrap.servers` '{world.bootstrap}', subscribe '{topic}')"
    spark.sql(f"CREATE TABLE {table} USING tidelog {options}")
    try:
        assert spark.table(table).count() == 3
        spark.sql(f"INSERT INTO {table} (key, value) SELECT cast('k' as binary), cast('3' as binary)")
        assert spark.table(table).count() == 4
        last = f"SELECT * FROM {table} WITH (lastRecords '2')"  # noqa: S608 -- our own names
        assert spark.sql(last).count() == 2
    finally:
        spark.sql(f"DROP TABLE {table}")
    spark.sql(
        f"CREATE TABLE {table} USING tidelog OPTIONS (`bootstrap.servers` '{world.bootstrap}', "
        f"subscribePattern '{topic}', compression 'lz4')"
    )
    try:
        row = f"SELECT cast('4' as binary), '{topic}'"
        spark.sql(f"INSERT INTO {table} (value, topic) {row}")
        assert spark.table(table).count() == 5
    finally:
        spark.sql(f"DROP TABLE {table}")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {table}_view USING tidelog {options}")
    assert spark.table(f"{table}_view").count() == 5
