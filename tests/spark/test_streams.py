"""Streams on a real Spark, stopped and begun again."""

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

from tests.spark.conftest import World
from tidelog.client.admin import NewTopic
from tidelog.spark import read_stream

pytestmark = pytest.mark.slow


def numbers(count: int, first: int = 0) -> list[bytes | None]:
    return [b"%d" % number for number in range(first, first + count)]


def to_files(frame: DataFrame, place: Path, **trigger: Any) -> list[int]:
    """Run it into files until it ends by itself; how many rows each micro-batch had."""
    query = (
        frame.selectExpr("cast(value as string) as value")
        .writeStream.format("parquet")
        .option("path", str(place / "out"))
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(**(trigger or {"availableNow": True}))
        .start()
    )
    assert query.awaitTermination(120)
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def files(spark: SparkSession, place: Path) -> list[int]:
    return sorted(int(row.value) for row in spark.read.parquet(str(place / "out")).collect())


def test_a_stream_goes_on_from_its_checkpoint(spark: SparkSession, world: World, tmp_path: Path) -> None:
    topic = world.topic(2)

    def stream() -> DataFrame:
        return read_stream(spark, topic, world.bootstrap, startingOffsets="earliest")

    for first in range(0, 300, 100):
        world.produce(topic, numbers(50, first), 0)
        world.produce(topic, numbers(50, first + 50), 1)
        assert sum(to_files(stream(), tmp_path)) == 100
    assert to_files(stream(), tmp_path) == []
    assert files(spark, tmp_path) == list(range(300))


def test_a_stream_that_has_read_nothing_yet_remembers_where_it_began(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    topic = world.topic()
    world.produce(topic, numbers(5))

    def stream() -> DataFrame:
        return read_stream(spark, topic, world.bootstrap)

    assert to_files(stream(), tmp_path) == []
    world.produce(topic, numbers(10, 5))
    assert to_files(stream(), tmp_path) == [10]
    assert files(spark, tmp_path) == list(range(5, 15))


def test_limits_are_kept_until_all_that_was_there_is_read(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    topic = world.topic(2)
    world.produce(topic, [b"%010d" % number for number in range(100)], 0)
    world.produce(topic, [b"%010d" % number for number in range(100, 150)], 1)
    by_rows = read_stream(spark, topic, world.bootstrap, startingOffsets="earliest", maxOffsetsPerTrigger=40)
    assert to_files(by_rows, tmp_path / "rows") == [40, 40, 40, 30]
    assert files(spark, tmp_path / "rows") == list(range(150))
    by_bytes = read_stream(spark, topic, world.bootstrap, startingOffsets="earliest", maxBytesPerTrigger=150)
    assert to_files(by_bytes, tmp_path / "bytes") == [15] * 10
    assert files(spark, tmp_path / "bytes") == list(range(150))
    everything = read_stream(
        spark, topic, world.bootstrap, startingOffsets="earliest", maxOffsetsPerTrigger=40
    )
    assert to_files(everything, tmp_path / "once", once=True) == [150]


def test_partitions_that_appear_are_read_from_their_beginning(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    topic = world.topic(1)

    def stream() -> DataFrame:
        return read_stream(spark, topic, world.bootstrap, startingOffsets="earliest")

    world.produce(topic, numbers(10))
    to_files(stream(), tmp_path)
    world.run(world.client.admin.add_partitions(topic, 2))
    world.run(world.client.refresh([topic], newer=True))
    world.produce(topic, numbers(10, 10), 1)
    to_files(stream(), tmp_path)
    assert files(spark, tmp_path) == list(range(20))


def test_the_first_micro_batch_says_where_the_stream_began(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    topic = world.topic()
    world.produce(topic, numbers(10))
    stream = read_stream(spark, topic, world.bootstrap, startingOffsets="earliest")
    to_files(stream, tmp_path)
    lines = (tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()
    offset = json.loads(lines[-1])
    assert offset["tidelog:start"] == {topic: {"0": 0}}
    assert offset[topic] == {"0": 10}
    assert list(offset) == sorted(offset)


def test_a_topic_made_anew_stops_the_stream_unless_it_may_go_on(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    topic = world.topic()
    world.produce(topic, numbers(10))
    to_files(read_stream(spark, topic, world.bootstrap, startingOffsets="earliest"), tmp_path)

    async def anew() -> None:
        await world.client.admin.delete_topics(topic)
        await world.client.admin.create_topics(NewTopic(topic, 1, 3))

    world.run(anew())
    world.produce(topic, numbers(15, 10))
    strict = read_stream(spark, topic, world.bootstrap)
    with pytest.raises(StreamingQueryException, match="deleted and made anew"):
        to_files(strict, tmp_path)
    to_files(read_stream(spark, topic, world.bootstrap, failOnDataLoss=False), tmp_path)
    assert files(spark, tmp_path) == list(range(25))


def test_a_topic_that_is_asked_for_no_more_stops_the_stream_unless_it_may_go_on(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    kept, dropped = world.topic(), world.topic()
    world.produce(kept, numbers(10))
    world.produce(dropped, numbers(10, 10))
    both = f"{kept},{dropped}"
    to_files(read_stream(spark, both, world.bootstrap, startingOffsets="earliest"), tmp_path)
    with pytest.raises(StreamingQueryException, match=f"{dropped}-0: it is not asked for any more"):
        to_files(read_stream(spark, kept, world.bootstrap), tmp_path)
    world.produce(dropped, numbers(10, 20))
    to_files(read_stream(spark, both, world.bootstrap), tmp_path)
    assert files(spark, tmp_path) == list(range(30))
    to_files(read_stream(spark, kept, world.bootstrap, failOnDataLoss=False), tmp_path)
    world.produce(kept, numbers(10, 30))
    to_files(read_stream(spark, kept, world.bootstrap), tmp_path)
    assert files(spark, tmp_path) == list(range(40))


def test_what_was_deleted_before_it_was_read_stops_the_stream_unless_it_may_go_on(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    topic = world.topic()
    world.produce(topic, numbers(10))
    to_files(read_stream(spark, topic, world.bootstrap, startingOffsets="earliest"), tmp_path)
    world.produce(topic, numbers(10, 10))
    world.trim(topic, 15)
    with pytest.raises(StreamingQueryException, match="offsets 10 to 14 were deleted"):
        to_files(read_stream(spark, topic, world.bootstrap), tmp_path)
    to_files(read_stream(spark, topic, world.bootstrap, failOnDataLoss=False), tmp_path)
    assert files(spark, tmp_path) == [*range(10), *range(15, 20)]


def test_progress_is_mirrored_into_a_group(spark: SparkSession, world: World, tmp_path: Path) -> None:
    topic = world.topic(2)
    world.produce(topic, numbers(10), 0)
    world.produce(topic, numbers(5, 10), 1)
    to_files(
        read_stream(spark, topic, world.bootstrap, startingOffsets="earliest", commitGroup="lag"), tmp_path
    )
    committed = world.run(world.client.admin.committed_offsets("lag"))
    assert {tuple(name): each.offset for name, each in committed.items()} == {(topic, 0): 10, (topic, 1): 5}


def test_a_live_stream_hears_of_records_soon_and_waits_for_enough(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    topic = world.topic()
    stream = read_stream(spark, topic, world.bootstrap, minOffsetsPerTrigger=10, maxTriggerDelay="1h")
    query = (
        stream.writeStream.format("memory")
        .queryName("live")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        _until(lambda: (tmp_path / "metadata").exists() and query.status["isDataAvailable"] is False, query)
        _until(lambda: query.lastProgress is not None or query.status["message"].startswith("Waiting"), query)
        world.produce(topic, numbers(4))
        time.sleep(1.5)  # longer than any poll: nothing may come
        assert spark.table("live").count() == 0
        world.produce(topic, numbers(6, 4))
        _until(lambda: spark.table("live").count() == 10, query)
    finally:
        query.stop()


def _until(reached: Callable[[], bool], query: Any, seconds: float = 30) -> None:
    deadline_s = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline_s, (query.status, query.exception())
        time.sleep(0.05)


# ── exactly once ──────────────────────────────────────────────────────────────────────────────────────


def copy(frame: DataFrame, world: World, to: str, place: Path) -> None:
    query = (
        frame.writeStream.format("tidelog")
        .option("bootstrap.servers", world.bootstrap)
        .option("topic", to)
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)


def broken_once(flag: Path, after: int, bootstrap: str, to: str) -> Callable[[bytes], bytes]:
    """Passes values on, and the first time ends the worker that it runs in after so many, when some have arrived."""
    seen = [0]

    def go(value: bytes) -> bytes:
        import os  # noqa: PLC0415 -- travels to a worker by itself

        import tidelog.sync  # noqa: PLC0415 -- as above

        seen[0] += 1
        if seen[0] >= after and not flag.exists():
            with (
                tidelog.sync.connect(bootstrap) as client,
                client.consumer(to, auto_offset_reset="earliest") as arrived,
            ):
                arrived.getmany(timeout=60, max_records=1)
            flag.touch()
            os._exit(1)
        return value

    return go


def once(world: World, topic: str, count: int) -> None:
    seen = Counter(world.values(topic))
    assert [value for value, times in seen.items() if times > 1] == []
    assert len(seen) == count


def test_a_stream_into_a_topic_is_there_once_though_its_tasks_die(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    source, to = world.topic(2), world.topic(3)
    world.produce(source, numbers(200_000), 0)
    world.produce(source, numbers(200_000, 200_000), 1)

    def stream() -> DataFrame:
        frame = read_stream(spark, source, world.bootstrap, startingOffsets="earliest")
        broken = udf(broken_once(tmp_path / "broken", 90_000, world.bootstrap, to), "binary", useArrow=False)
        return frame.select("key", broken("value").alias("value"))

    with pytest.raises(StreamingQueryException):
        copy(stream(), world, to, tmp_path)
    assert (tmp_path / "broken").exists()
    assert 0 < len(world.values(to)) < 400_000, "it was to die in the middle"
    copy(stream(), world, to, tmp_path)
    once(world, to, 400_000)


def test_a_micro_batch_whose_commit_is_lost_is_not_written_again(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    source, to = world.topic(2), world.topic(3)
    world.produce(source, numbers(5000), 0)
    stream = read_stream(spark, source, world.bootstrap, startingOffsets="earliest")
    copy(stream, world, to, tmp_path)
    for commit in (tmp_path / "checkpoint" / "commits").iterdir():
        commit.unlink()  # Spark died before it noted what the sink had done
    copy(stream, world, to, tmp_path)
    world.produce(source, numbers(10, 5000), 1)
    copy(stream, world, to, tmp_path)
    once(world, to, 5010)


def test_another_number_of_tasks_for_a_repeated_micro_batch_is_refused(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    source, to = world.topic(), world.topic()
    world.produce(source, numbers(5000))
    stream = read_stream(spark, source, world.bootstrap, startingOffsets="earliest").select("value")
    copy(stream.repartition(2), world, to, tmp_path)
    for commit in (tmp_path / "checkpoint" / "commits").iterdir():
        commit.unlink()
    with pytest.raises(StreamingQueryException, match="yields other rows than when it was written"):
        copy(stream.coalesce(1), world, to, tmp_path)
    once(world, to, 5000)


def test_an_aggregation_goes_back_into_a_topic_as_a_whole(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    source, to = world.topic(2), world.topic()
    world.produce(source, numbers(1000))
    counts = (
        read_stream(spark, source, world.bootstrap, startingOffsets="earliest")
        .selectExpr("cast(value as string) % 3 as kind")
        .groupBy("kind")
        .count()
        .selectExpr("cast(kind as string) as key", "cast(count as string) as value")
    )
    query = (
        counts.writeStream.format("tidelog")
        .outputMode("complete")
        .option("bootstrap.servers", world.bootstrap)
        .option("topic", to)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert sorted(world.values(to), key=str) == [b"333", b"333", b"334"]
