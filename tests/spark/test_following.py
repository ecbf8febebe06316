"""What a stream's planner says to Spark, asked without Spark: where it begins, how far it goes, when it waits."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from tests.spark.conftest import World
from tests.spark.test_losses import planned
from tidelog.protocol.errors import InvalidConfig, OffsetOutOfRange, UnknownTopicOrPartition
from tidelog.spark import scan, stream
from tidelog.spark.columns import schema_of
from tidelog.spark.options import read_options
from tidelog.spark.scan import EARLY_BYTES
from tidelog.spark.stream import POLL_S, TopicStream

pytestmark = pytest.mark.slow

ALL = ReadAllAvailable()


def numbers(count: int, first: int = 0) -> list[bytes | None]:
    return [b"%d" % number for number in range(first, first + count)]


def following(world: World, topic: str = "", **options: str) -> TopicStream:
    """A stream as Spark makes it."""
    named = {"subscribe": topic} if topic else {}
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


def delete(world: World, topic: str) -> None:
    world.run(world.client.admin.delete_topics(topic))


@pytest.mark.parametrize("by", ["subscribe", "subscribePattern"])
def test_a_topic_that_is_deleted_stops_the_stream_unless_it_may_go_on(
    world: World, by: str, caplog: pytest.LogCaptureFixture
) -> None:
    doomed, other = world.topic(), world.topic()
    world.produce(doomed, numbers(10))
    world.produce(other, numbers(10))
    named = {by: f"{doomed},{other}" if by == "subscribe" else f"{doomed}|{other}"}
    first = following(world, startingOffsets="earliest", **named)
    at = first.latestOffset(first.initialOffset(), ALL)
    delete(world, doomed)
    world.produce(other, numbers(5))
    strict = following(world, **named)
    strict.prepareForTriggerAvailableNow()
    with pytest.raises(UnknownTopicOrPartition, match="the topic was deleted before offset 10 was read"):
        strict.latestOffset(at, ALL)
    careless = following(world, failOnDataLoss="false", **named)
    end = careless.latestOffset(at, ALL)
    assert ends(end) == {other: {"0": 15}}
    assert careless.latestOffset(end, ALL) == end
    assert caplog.text.count(f"partition={doomed}-0 what=gone") == 1
    with pytest.raises(UnknownTopicOrPartition):
        following(world, doomed, failOnDataLoss="false").initialOffset()


def test_what_the_options_have_ceased_to_mean_is_left_out_only_on_demand(world: World) -> None:
    topic, other = world.topic(2), world.topic()
    first = following(world, f"{topic},{other}", startingOffsets="earliest")
    world.produce(topic, numbers(3), 1)
    with pytest.raises(InvalidConfig, match=f"{topic}-0: it is not asked for any more"):
        following(world, topic, partitions="1").latestOffset(first.initialOffset(), ALL)
    narrowed = following(world, topic, partitions="1", failOnDataLoss="false")
    end = narrowed.latestOffset(first.initialOffset(), ALL)
    assert ends(end) == {topic: {"1": 3}}
    assert following(world, topic, partitions="1").latestOffset(end, ALL) == end


def timed(planner: TopicStream, at: dict[str, Any], limit: ReadLimit = ALL) -> tuple[float, dict[str, Any]]:
    """How long it takes to say how far the next micro-batch goes, and how far that is."""
    begun_s = time.monotonic()
    end = planner.latestOffset(at, limit)
    return time.monotonic() - begun_s, end


def at_the_end(planner: TopicStream) -> dict[str, Any]:
    """Where Spark is after the empty micro-batch with which a stream begins; everything is connected."""
    at = planner.initialOffset()
    planner.latestOffset(at, ALL)
    return at


def test_a_stream_with_no_news_waits_at_its_leaders(world: World) -> None:
    planner = following(world, world.topic(2))
    at = at_the_end(planner)
    took_s, end = timed(planner, at)
    assert took_s > 0.8 * POLL_S
    assert end == at


def test_a_stream_with_no_news_hears_at_once_of_what_comes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "POLL_S", 60)
    topic = world.topic(2)
    planner = following(world, topic)
    at = planner.initialOffset()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(timed, planner, at)
        while planner._watcher is None or planner._watcher._at == {}:
            assert not waiting.done()
        world.produce(topic, numbers(3), 1)
        took_s, end = waiting.result(60)
    assert took_s < 30
    assert ends(end) == {topic: {"0": 0, "1": 3}}


def test_a_stream_that_matches_no_topic_yet_waits_as_well(world: World) -> None:
    planner = following(world, subscribePattern="there-is-none-yet-.*")
    at = at_the_end(planner)
    took_s, end = timed(planner, at)
    assert took_s > 0.8 * POLL_S
    assert end == at


def test_a_stream_waits_for_enough_and_not_for_ever(world: World) -> None:
    topic = world.topic()
    patient = following(world, topic, minOffsetsPerTrigger="10", maxTriggerDelay="1h")
    hasty = following(world, topic, minOffsetsPerTrigger="10", maxTriggerDelay="2s")
    limit = patient.getDefaultReadLimit()
    begun_s = time.monotonic()
    hasty._planned_s = begun_s
    at = patient.initialOffset()
    assert hasty.initialOffset() == at
    world.produce(topic, numbers(4))
    took_s, end = timed(patient, at, limit)
    assert took_s > 0.8 * POLL_S
    assert end == at
    asked = 0
    while (end := hasty.latestOffset(at, limit)) == at:
        asked += 1
    assert time.monotonic() - begun_s > 2
    assert asked <= 6, "it is to wait, not to ask again and again"
    assert ends(end) == {topic: {"0": 4}}
    world.produce(topic, numbers(6, 4))
    assert ends(patient.latestOffset(at, limit)) == {topic: {"0": 10}}


def test_an_offset_that_was_never_there_is_no_unclean_election(world: World) -> None:
    topic = world.topic()
    world.produce(topic, numbers(10))
    at = {"startingOffsets": json.dumps({topic: {"0": 20}})}
    words = f"startingOffsets: offset 20 is behind the end of {topic}-0, which is 10"
    with pytest.raises(OffsetOutOfRange, match=words):
        following(world, topic, **at).initialOffset()
    with pytest.raises(OffsetOutOfRange, match=words):
        planned(world, topic, **at)
    with pytest.raises(OffsetOutOfRange, match=words.replace("starting", "ending")):
        planned(world, topic, endingOffsets=at["startingOffsets"])
    careless = following(world, topic, failOnDataLoss="false", **at)
    assert ends(careless.initialOffset()) == {topic: {"0": 10}}


def test_a_stream_that_is_to_begin_at_what_was_deleted_is_refused_as_a_batch_is(world: World) -> None:
    topic = world.topic()
    world.produce(topic, numbers(10))
    world.trim(topic, 4)
    at = {"startingOffsets": json.dumps({topic: {"0": 1}})}
    with pytest.raises(OffsetOutOfRange, match="offsets 1 to 3 were deleted"):
        following(world, topic, **at).initialOffset()
    careless = following(world, topic, failOnDataLoss="false", **at)
    assert ends(careless.initialOffset()) == {topic: {"0": 4}}


def test_a_stream_begins_in_every_way_in_which_a_batch_does(world: World) -> None:
    topic, time_of = world.topic(2), 1_700_000_000_000

    async def write() -> None:
        async with world.client.producer() as producer:
            for number in range(10):
                for partition in (0, 1):
                    at = time_of + number * 1000
                    await producer.send(topic, b"%d" % number, partition=partition, timestamp_ms=at)

    world.run(write())

    def each(first: int, second: int) -> str:
        return json.dumps({topic: {"0": first, "1": second}})

    def begins(**options: Any) -> tuple[int, int]:
        texts = {name: str(value) for name, value in options.items()}
        by = ends(following(world, topic, **texts).initialOffset())[topic]
        return by["0"], by["1"]

    assert begins() == begins(startingOffsets="latest") == (10, 10)
    assert begins(startingOffsets="earliest") == (0, 0)
    assert begins(startingOffsets=each(-2, -1)) == (0, 10)
    assert begins(startingOffsets=each(4, 10)) == (4, 10)
    assert begins(startingTimestamp=time_of + 6500) == (7, 7)
    assert begins(startingOffsetsByTimestamp=each(time_of + 1, time_of + 9000)) == (1, 9)
    late = time_of + 99_000
    assert begins(startingTimestamp=late, startingOffsetsByTimestampStrategy="latest") == (10, 10)
    assert begins(lastRecords=3) == (7, 7)
    with pytest.raises(OffsetOutOfRange, match=f"has no record of {late} ms or later"):
        begins(startingTimestamp=late)


@pytest.mark.parametrize("ahead", [EARLY_BYTES, 0])
def test_a_task_yields_its_partitions_in_their_order_whoever_answers_first(
    world: World, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """A sink compares what a repeated task yields with what is written, row by row."""
    monkeypatch.setattr(scan, "EARLY_BYTES", ahead)
    topic, counts = world.topic(6), [3000, 0, 7, 2000, 1, 4000]
    for partition, count in enumerate(counts):
        for first in range(0, count, 500):
            world.produce(topic, numbers(min(500, count - first), first), partition)
    reader, [task] = planned(world, topic)
    seen = [
        (partition, offset)
        for batch in reader.read(task)
        for partition, offset in zip(
            batch.column("partition").to_pylist(), batch.column("offset").to_pylist(), strict=True
        )
    ]
    assert seen == [(partition, offset) for partition, count in enumerate(counts) for offset in range(count)]
