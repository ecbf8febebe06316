"""The pipelines of `tidelog.spark.pipeline`, run again and again."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import World
from tidelog.spark import pipeline

pytestmark = pytest.mark.slow

DAY_MS = 86_400_000


async def _write(world: World, topic: str, count: int, at_ms: int, step_ms: int = 1) -> None:
    async with world.client.producer() as producer:
        for number in range(count):
            stamp = at_ms + number * step_ms
            _ = await producer.enqueue(topic, b"%d" % number, key=b"k%d" % (number % 2), timestamp_ms=stamp)


def test_a_topic_goes_into_files_by_day_once_and_small_ones_become_few(
    spark: SparkSession, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = world.topic(2)

    def run() -> list[tuple[int, int]]:
        pipeline.to_parquet(spark, topic, tmp_path, world.bootstrap, maxOffsetsPerTrigger=30)
        return there()

    def there() -> list[tuple[int, int]]:
        frame = pipeline.read_parquet(spark, tmp_path)
        return sorted((row.partition, row.offset) for row in frame.select("partition", "offset").collect())

    world.run(_write(world, topic, 50, 20_000 * DAY_MS))
    world.run(_write(world, topic, 50, 20_001 * DAY_MS))
    first = run()
    assert len(first) == len(set(first)) == 100
    assert {path.name for path in (tmp_path / "data").glob("batch=*/day=*")} == {
        "day=2024-10-04",
        "day=2024-10-05",
    }
    (tmp_path / "data" / "batch=99" / "day=2024-10-05").mkdir(parents=True)  # killed while it was written
    assert pipeline.compact(spark, tmp_path) == 100
    assert len(list(tmp_path.rglob("*.parquet"))) == 2
    assert there() == first
    world.run(_write(world, topic, 10, 20_001 * DAY_MS))
    second = run()
    assert len(second) == len(set(second)) == 110

    def killed(_: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            pipeline.compact(spark, tmp_path)
    assert (tmp_path / "compacted-1").exists()
    assert there() == second
    assert pipeline.compact(spark, tmp_path) == 110
    assert there() == second
    assert len(list(tmp_path.rglob("*.parquet"))) == 2
    assert run() == second


def test_windows_are_counted_by_the_records_time_and_told_once(
    spark: SparkSession, world: World, tmp_path: Path
) -> None:
    topic, to = world.topic(), world.topic()
    world.run(_write(world, topic, 180, 20_000 * DAY_MS, 1000))
    for _ in range(2):
        pipeline.count_by_window(spark, topic, to, tmp_path, world.bootstrap)
    counts = [json.loads(value or b"") for value in world.values(to)]
    assert sorted((each["start"], each["count"]) for each in counts) == [
        ("2024-10-04T00:00:00.000Z", 30),
        ("2024-10-04T00:00:00.000Z", 30),
        ("2024-10-04T00:01:00.000Z", 30),
        ("2024-10-04T00:01:00.000Z", 30),
    ]
