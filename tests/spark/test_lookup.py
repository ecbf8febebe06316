"""What is asked for and does not exist is refused with what there is instead; asked of a cluster that is only told."""

import asyncio
from typing import Any

import pytest

from tidelog.client.cluster import Partition, Topic
from tidelog.protocol.errors import InvalidConfig, TidelogError, UnknownTopicOrPartition
from tidelog.protocol.types import NO_BROKER, TopicPartition
from tidelog.spark import lookup
from tidelog.spark.options import read_options


def found(
    monkeypatch: pytest.MonkeyPatch,
    there: dict[str, int],
    options: dict[str, str],
    may_lack: set[str] | None = None,
) -> list[TopicPartition]:
    """What is read of topics with so many partitions."""

    async def topics(*_: object) -> list[Topic]:
        one = Partition(0, NO_BROKER, 0, (), (), (), 0)
        return [Topic(name, b"", (one,) * count, internal=False, shown_at=0) for name, count in there.items()]

    async def offsets_at(_: object, names: list[TopicPartition], *__: object) -> dict[TopicPartition, int]:
        return dict.fromkeys(names, 0)

    monkeypatch.setattr(lookup, "_topics", topics)
    monkeypatch.setattr(lookup, "offsets_at", offsets_at)
    named = {} if "assign" in options else {"subscribe": ",".join(there)}
    said = read_options({"bootstrap.servers": "b:1", **named, **options}, "batch")
    client: Any = None
    return list(asyncio.run(lookup.find(client, said, may_lack)).latest)


@pytest.mark.parametrize(
    ("there", "options", "error", "words"),
    [
        (
            {"orders": 3},
            {"partitions": "0,9"},
            UnknownTopicOrPartition,
            "partitions: there is no 9; orders has 3 partitions (0 to 2): leave it out, or add partitions to the topic first",
        ),
        (
            {"orders": 1},
            {"partitions": "1,9"},
            UnknownTopicOrPartition,
            "there is no 1, 9; orders has 1 partition (0):",
        ),
        (
            {"orders": 3, "payments": 5},
            {"partitions": "0,9"},
            UnknownTopicOrPartition,
            "there is no 9; payments has 5 partitions (0 to 4), and no other topic has more:",
        ),
        (
            {"orders": 3},
            {"assign": '{"orders": [0, 1]}', "partitions": "1,2"},
            InvalidConfig,
            "partitions: there is no 2 in assign",
        ),
    ],
)
def test_a_partition_that_no_topic_has_is_refused_with_what_there_is(
    monkeypatch: pytest.MonkeyPatch,
    there: dict[str, int],
    options: dict[str, str],
    error: type[TidelogError],
    words: str,
) -> None:
    with pytest.raises(error) as refused:
        found(monkeypatch, there, options)
    assert words in str(refused.value)


def test_a_partition_that_one_of_several_topics_has_is_read_of_that_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = found(monkeypatch, {"orders": 3, "payments": 5}, {"partitions": "0,4"})
    assert names == [("orders", 0), ("payments", 0), ("payments", 4)]


def test_a_stream_that_goes_on_waits_for_a_partition_that_a_broker_has_not_heard_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert found(monkeypatch, {"orders": 3}, {"partitions": "0,3"}, {"orders"}) == [("orders", 0)]
    with pytest.raises(UnknownTopicOrPartition, match="there is no 3; orders has"):
        found(monkeypatch, {"orders": 3}, {"partitions": "3"}, {"orders"})
