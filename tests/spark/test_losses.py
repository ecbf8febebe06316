"""Data that is not there any more, named for what has happened to it."""

import asyncio
import time
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import SparkSession

from tests.spark.conftest import World
from tidelog.client.admin import NewTopic
from tidelog.protocol.errors import LogTruncated, OffsetOutOfRange, UnknownTopicId, UnknownTopicOrPartition
from tidelog.protocol.types import TopicPartition
from tidelog.spark import read_topic
from tidelog.spark.losses import by_offsets, by_topic

NAME = TopicPartition("orders", 0)


def test_what_was_deleted_is_told_from_what_was_cut_off() -> None:
    assert by_offsets(NAME, 5, 20, 5, 20) is None
    deleted = by_offsets(NAME, 5, 20, 8, 30)
    assert deleted is not None
    assert (deleted.what, deleted.resume) == ("deleted", 8)
    with pytest.raises(OffsetOutOfRange, match=r"offsets 5 to 7 were deleted.*failOnDataLoss=false"):
        raise deleted.error()
    cut = by_offsets(NAME, 5, 20, 0, 12)
    assert cut is not None
    assert (cut.what, cut.resume) == ("truncated", 12)
    with pytest.raises(
        LogTruncated, match=r"offsets 12 to 19 were committed and are cut off, by an unclean election"
    ):
        raise cut.error()


def test_a_topic_that_was_made_anew_is_told_from_one_that_is_gone() -> None:
    assert by_topic(NAME, 5, b"a", b"a") is None
    anew = by_topic(NAME, 5, b"a", b"b")
    gone = by_topic(NAME, 5, b"a", None)
    assert anew is not None
    assert gone is not None
    assert isinstance(anew.error(), UnknownTopicId)
    assert isinstance(gone.error(), UnknownTopicOrPartition)


def numbers(count: int) -> list[bytes | None]:
    return [b"%d" % number for number in range(count)]


@pytest.mark.slow
def test_an_offset_that_was_deleted_is_refused_when_it_is_planned(spark: SparkSession, world: World) -> None:
    topic = world.topic()
    world.produce(topic, numbers(10))
    world.trim(topic, 4)
    at = f'{{"{topic}": {{"0": 1}}}}'
    with pytest.raises(AnalysisException, match=r"offsets 1 to 3 were deleted"):
        read_topic(spark, topic, world.bootstrap, startingOffsets=at).count()
    left = read_topic(spark, topic, world.bootstrap, startingOffsets=at, failOnDataLoss=False)
    assert left.count() == 6


def planned(world: World, topic: str, **options: Any) -> Any:
    """A load whose tasks are planned, and not yet read: the reader as Spark has it."""
    from tidelog.spark.batch import TopicReader  # noqa: PLC0415 -- needs Spark
    from tidelog.spark.columns import schema_of  # noqa: PLC0415
    from tidelog.spark.options import read_options  # noqa: PLC0415

    given = {"bootstrap.servers": world.bootstrap, "subscribe": topic, **options}
    reader = TopicReader(read_options(given, "batch"), schema_of(headers=False))
    return reader, reader.partitions()


def rows(reader: Any, tasks: Any) -> int:
    return sum(batch.num_rows for task in tasks for batch in reader.read(task))


@pytest.mark.slow
def test_the_logs_start_overtakes_the_reader(world: World) -> None:
    topic = world.topic()
    world.produce(topic, numbers(10))
    strict, careless = planned(world, topic), planned(world, topic, failOnDataLoss="false")
    world.trim(topic, 6)
    with pytest.raises(OffsetOutOfRange, match=r"offsets 0 to 5 were deleted.*the log begins at 6"):
        rows(*strict)
    assert rows(*careless) == 4


@pytest.mark.slow
def test_all_that_was_planned_is_deleted(world: World) -> None:
    topic = world.topic()
    world.produce(topic, numbers(10))
    careless = planned(world, topic, failOnDataLoss="false")
    world.produce(topic, numbers(10))
    world.trim(topic, 15)
    assert rows(*careless) == 0


@pytest.mark.slow
def test_a_topic_made_anew_is_another_one(world: World) -> None:
    topic = world.topic()
    world.produce(topic, numbers(10))
    strict, careless = planned(world, topic), planned(world, topic, failOnDataLoss="false")

    async def anew() -> None:
        await world.client.admin.delete_topics(topic)
        await world.client.admin.create_topics(NewTopic(topic, 1, 3))

    world.run(anew())
    world.produce(topic, numbers(20))
    with pytest.raises(UnknownTopicId, match=r"deleted and made anew"):
        rows(*strict)
    assert rows(*careless) == 0


def rows_until_refused(plan: tuple[Any, Any]) -> None:
    """Again and again for a while: a leader may have yet to hear of what was decided."""
    end_s = time.monotonic() + 10
    while time.monotonic() < end_s:
        rows(*plan)


@pytest.mark.slow
def test_a_topic_that_is_gone_is_said_to_be(world: World) -> None:
    topic, other = world.topic(), world.topic()
    world.produce(topic, numbers(10))
    world.produce(other, numbers(10))
    strict = planned(world, f"{topic},{other}")
    careless = planned(world, f"{topic},{other}", failOnDataLoss="false")
    world.run(world.client.admin.delete_topics(topic))
    with pytest.raises(UnknownTopicOrPartition, match="the topic was deleted before offset 0 was read"):
        rows_until_refused(strict)
    assert rows(*careless) == 10


@pytest.mark.slow
def test_an_unclean_election_is_told(world: World) -> None:
    topic = "cut-off"

    async def lose() -> tuple[Any, Any]:
        admin, cluster = world.client.admin, world.cluster
        await admin.create_topics(NewTopic(topic, assignment=[[1, 2]], configs={"min.insync.replicas": 1}))
        async with world.client.producer() as producer:
            await producer.send_many(topic, numbers(5))
            await cluster.kill(2)
            await producer.send_many(topic, numbers(5))
        tasks = await asyncio.to_thread(planned, world, topic)
        careless = await asyncio.to_thread(planned, world, topic, failOnDataLoss="false")
        await cluster.kill(1)
        await cluster.start(2)
        await admin.elect_leaders([TopicPartition(topic, 0)], unclean=True)
        return tasks, careless

    strict, careless = world.run(lose())
    try:
        with pytest.raises(
            LogTruncated, match=r"offsets 5 to 9 were committed and are cut off, by an unclean"
        ):
            rows(*strict)
        assert rows(*careless) == 5
    finally:
        world.run(world.cluster.start(1))
        world.run(world.cluster.wait_ready())


@pytest.mark.slow
def test_a_loss_in_a_task_reaches_the_user_as_one_sentence(spark: SparkSession, world: World) -> None:
    topic = world.topic()
    world.produce(topic, numbers(10))
    frame = read_topic(spark, topic, world.bootstrap)
    assert frame.count() == 10
    world.trim(topic, 6)
    with pytest.raises(PythonException, match=r"OffsetOutOfRange: .*offsets 0 to 5 were deleted"):
        frame.count()
