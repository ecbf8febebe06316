"""Two pipelines that users run: a topic into partitioned Parquet, and counts by event time back into a topic.

    to_parquet(spark, "orders", "/lake/orders", bootstrap="h:9092")
    compact(spark, "/lake/orders")
    count_by_window(spark, "orders", "orders-per-minute", "/checkpoints/counts", bootstrap="h:9092")

What they keep true: every record of the topic is in the files once, and every window's count in the topic once, however
often they are killed and started again. Small files are replaced in a way that a reader sees either the many or the one:
a rename is the last thing that happens.
"""

import json
import shutil
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tidelog.spark.reading import DEFAULT_BOOTSTRAP, read_stream

DAY: Final = "day"
_DATA: Final = "data"
_CHECKPOINT: Final = "_checkpoint"
_CURRENT: Final = "_current"


def to_parquet(
    spark: SparkSession,
    topic: str,
    place: str | Path,
    bootstrap: str = DEFAULT_BOOTSTRAP,
    *,
    forever: bool = False,
    **options: Any,
) -> None:
    """Append what is in the topic and not yet in the files, in a folder per day of the records' time.

    `forever`: and what comes; otherwise it ends. Spark's file sink notes which files belong to which micro-batch, so that a
    repeated one replaces its own.
    """
    stream = read_stream(spark, topic, bootstrap, **{"startingOffsets": "earliest", **options})
    query = (
        stream.withColumn(DAY, f.to_date("timestamp"))
        .writeStream.format("parquet")
        .partitionBy(DAY)
        .option("path", str(Path(place) / _DATA))
        .option("checkpointLocation", str(Path(place) / _CHECKPOINT))
        .trigger(**({"processingTime": "10 seconds"} if forever else {"availableNow": True}))
        .start()
    )
    query.awaitTermination()


def read_parquet(spark: SparkSession, place: str | Path) -> DataFrame:
    """All that `to_parquet` has written: what was compacted, and the files since."""
    place = Path(place)
    live = spark.read.parquet(str(place / _DATA))
    state = _state(place)
    if state is None:
        return live
    compacted = spark.read.parquet(str(place / state["folder"]))
    return compacted.unionByName(_newer(live, state))


def compact(spark: SparkSession, place: str | Path, rows_per_file: int = 1_000_000) -> int:
    """Write everything that is there into few files per day; how many rows those hold.

    What belongs to it is known by offsets: per partition up to where the compacted files reach. The streaming sink's files
    stay as they are, for its log names them; `read_parquet` reads them behind those offsets only.
    """
    place = Path(place)
    before = _state(place)
    everything = read_parquet(spark, place)
    reach = {
        f"{row.topic}/{row.partition}": row.reach
        for row in everything.groupBy("topic", "partition").agg(f.max("offset").alias("reach")).collect()
    }
    number = 1 if before is None else before["number"] + 1
    folder = f"compacted-{number}"
    state = {"number": number, "folder": folder, "reach": reach}
    (
        _up_to(everything, state)
        .repartition(DAY)
        .sortWithinPartitions(DAY, "topic", "partition", "offset")
        .write.mode("overwrite")
        .option("maxRecordsPerFile", rows_per_file)
        .partitionBy(DAY)
        .parquet(str(place / folder))
    )
    new = place / f"{_CURRENT}.new"
    new.write_text(json.dumps(state, sort_keys=True), "utf-8")
    new.replace(place / _CURRENT)
    if before is not None:
        shutil.rmtree(place / before["folder"])
    return spark.read.parquet(str(place / folder)).count()


def count_by_window(
    spark: SparkSession,
    topic: str,
    to: str,
    checkpoint: str | Path,
    bootstrap: str = DEFAULT_BOOTSTRAP,
    *,
    window: str = "1 minute",
    late: str = "10 seconds",
    forever: bool = False,
    **options: Any,
) -> None:
    """How many records of each key there are in each window of their time; a window is told once, when it is over.

    The counts are JSON in the values of `to`, under the records' keys. It is over when a record is `late` behind its end.
    """
    stream = read_stream(spark, topic, bootstrap, **{"startingOffsets": "earliest", **options})
    counts = (
        stream.withWatermark("timestamp", late)
        .groupBy(f.window("timestamp", window), "key")
        .count()
        .select(
            "key",
            f.to_json(f.struct(f.col("window.start"), f.col("window.end"), f.col("count"))).alias("value"),
        )
    )
    query = (
        counts.writeStream.format("tidelog")
        .options(**{"bootstrap.servers": bootstrap, "topic": to})
        .option("checkpointLocation", str(checkpoint))
        .trigger(**({"processingTime": "10 seconds"} if forever else {"availableNow": True}))
        .start()
    )
    query.awaitTermination()


def _state(place: Path) -> dict[str, Any] | None:
    current = place / _CURRENT
    if not current.exists():
        return None
    found: dict[str, Any] = json.loads(current.read_text("utf-8"))
    return found


def _reach(state: dict[str, Any]) -> Any:
    """The last offset of a row's partition that the compacted files hold, as a column."""
    pairs = [item for name, reach in sorted(state["reach"].items()) for item in (f.lit(name), f.lit(reach))]
    reaches = f.create_map(*pairs) if pairs else f.create_map(f.lit(""), f.lit(-1))
    return f.coalesce(reaches[f.concat_ws("/", "topic", "partition")], f.lit(-1))


def _newer(live: DataFrame, state: dict[str, Any]) -> DataFrame:
    return live.filter(f.col("offset") > _reach(state))


def _up_to(frame: DataFrame, state: dict[str, Any]) -> DataFrame:
    return frame.filter(f.col("offset") <= _reach(state))
