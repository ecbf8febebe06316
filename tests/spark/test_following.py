"""What a stream's planner says to Spark, asked without Spark: where it begins, how far it goes, when it waits."""

import json
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from tests.spark.conftest import World
from tidelog.spark.columns import schema_of
from tidelog.spark.options import read_options
from tidelog.spark.stream import TopicStream

pytestmark = pytest.mark.slow

ALL = ReadAllAvailable()


def numbers(count: int, first: int = 0) -> list[bytes | None]:
    return [b"%d" % number for number in range(first, first + count)]


def following(world: World, topic: str, **options: str) -> TopicStream:
    """A stream as Spark makes it, of a topic if none is named otherwise."""
    named = {} if {"subscribePattern", "assign"} & options.keys() else {"subscribe": topic}
    given = {"bootstrap.servers": world.bootstrap, **named, **options}
    return TopicStream(read_options(given, "stream"), schema_of(headers=False))


def ends(offset: dict[str, Any]) -> dict[str, Any]:
    """Without what is ours."""
    return {topic: by for topic, by in offset.items() if ":" not in topic}


@pytest.mark.parametrize("before", [{}, {"minPartitions": "4"}])
def test_a_repeated_micro_batch_is_cut_as_it_was_whatever_the_options_say_now(
    world: World, before: dict[str, str]
) -> None:
    topic = world.topic(4)
    for partition in range(4):
        world.produce(topic, numbers(10), partition)
    planner = following(world, topic, startingOffsets="earliest", **before)
    start = planner.initialOffset()
    end = planner.latestOffset(start, ALL)
    cut = [task.value for task in planner.partitions(start, end)]
    assert len(cut) == (4 if before else 1)
    after = {} if before else {"minPartitions": "4"}
    end = json.loads(json.dumps(end))  # by way of a checkpoint
    assert [task.value for task in following(world, topic, **after).partitions(start, end)] == cut
