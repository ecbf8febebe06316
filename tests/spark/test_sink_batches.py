"""What a sink's tasks make of rows of all sizes: batches that their topic takes, the same ones in each attempt."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from tests.spark.conftest import World
from tests.spark.test_sink import Attempt, once, place, rows, write
from tidelog.protocol.errors import InvalidRecord, InvalidRequest
from tidelog.spark import writing
from tidelog.spark.columns import _ARROW_HEADERS
from tidelog.spark.ledger import Place

pytestmark = pytest.mark.slow


def padded(sizes: Sequence[int], **columns: Any) -> pa.RecordBatch:
    values = [(b"%d." % number).ljust(size, b"x") for number, size in enumerate(sizes)]
    return pa.record_batch({"value": values, **columns})


def mostly_overhead(count: int) -> pa.RecordBatch:
    times = pa.array([number << 42 for number in range(count)], pa.timestamp("us", tz="UTC"))
    return padded([0] * count, key=[b""] * count, timestamp=times)


def with_headers(count: int) -> pa.RecordBatch:
    given = [{"key": "ключ" * 15, "value": b"u" * 10}] * 2
    return padded([4] * count, headers=pa.array([given] * count, _ARROW_HEADERS))


@pytest.mark.parametrize(
    ("given", "bytes_max"),
    [
        (padded([200_000, 900_000, 10]), 1 << 20),
        (padded([100] * 3000), 100_000),
        (padded([2000] * 60), 4300),
        (with_headers(9000), 100_000),
        (mostly_overhead(8000), 20_000),
    ],
    ids=["a large one", "a small topic", "two fit", "headers", "overhead"],
)
def test_batches_are_no_larger_than_their_topic_takes(
    world: World, given: pa.RecordBatch, bytes_max: int
) -> None:
    topic, task = world.topic(max_message_bytes=str(bytes_max), retention_ms="-1"), place()
    half = given.num_rows // 2
    world.run(write(Attempt(world, task, topic), given.slice(0, half), finish=False))
    for _ in range(2):
        world.run(write(Attempt(world, task, topic), given))
    assert world.values(topic) == given["value"].to_pylist()


@pytest.mark.parametrize("sizes", [(1 << 18, 2000), (2000, 1 << 18)])
def test_an_attempt_follows_batches_of_other_sizes_than_its_own(
    world: World, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int]
) -> None:
    topic, task = world.topic(), place()
    for size, count in zip(sizes, [5000, 6000], strict=True):
        monkeypatch.setattr(writing, "BATCH_BYTES", size)
        world.run(write(Attempt(world, task, topic), rows(count)))
    with pytest.raises(InvalidRequest, match=r"records \d+ to \d+ of .* differ"):
        world.run(write(Attempt(world, task, topic), rows(4999), rows(1), rows(1000, 5000)))
    once(world, topic, 6000)


def test_who_names_a_partition_that_was_not_there_names_another_one_and_goes_on(world: World) -> None:
    topic, task = world.topic(2), place()

    def naming(partition: int | None) -> list[pa.RecordBatch]:
        named = pa.array([0, 1, partition, 1] * 25, pa.int32())
        return [rows(100), rows(100, 100).append_column("partition", named)]

    with pytest.raises(InvalidRecord, match=r"names partition 3; .* has 2 for all of this micro-batch"):
        world.run(write(Attempt(world, task, topic), *naming(3)))
    world.run(world.client.admin.add_partitions(topic, 4))
    world.run(world.client.refresh([topic], newer=True))
    with pytest.raises(InvalidRecord, match="names partition 3"):
        world.run(write(Attempt(world, task, topic), *naming(3)))
    world.run(write(Attempt(world, task, topic), *naming(None), commit=True))
    once(world, topic, 200)
    later = Place(task.query, task.task, 1)
    world.run(write(Attempt(world, later, topic), pa.record_batch({"value": [b"200"], "partition": [3]})))
    once(world, topic, 201)
