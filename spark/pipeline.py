"""Two pipelines that users run: a topic into partitioned Parquet, and counts by event time back into a topic.

    to_parquet(spark, "orders", "/lake/orders", bootstrap="h:9092")
    compact(spark, "/lake/orders")
    count_by_window(spark, "orders", "orders-per-minute", "/checkpoints/counts", bootstrap="h:9092")

What they keep true: every record of the topic is in the files once, and every window's count in the topic once, however
often they are killed and started again. Small files are replaced in a way that a reader sees either the many or the few:
a rename decides it, and only then what it has replaced is removed.

    /lake/orders/data/batch=7/day=2024-10-04/     one micro-batch, complete when it has the file _SUCCESS
                 compacted-2/day=2024-10-04/      all micro-batches up to the one that _current names
                 _current, _checkpoint
"""

import json
import os
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
_BATCH: Final = "batch"
_COMPLETE: Final = "_SUCCESS"
"""What Spark writes last."""


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

    `forever`: and what comes; otherwise it ends. Each micro-batch has a folder of its own, so that a repeated one finds what it
    has written, or replaces it where it was killed.
    """
    place = Path(place)

    def write(batch: DataFrame, number: int) -> None:
        folder = place / _DATA / f"{_BATCH}={number}"
        if not (folder / _COMPLETE).exists():
            # The whole folder, whatever the session says: a killed attempt may have left some of its files.
            whole = batch.write.mode("overwrite").option("partitionOverwriteMode", "static")
            whole.partitionBy(DAY).parquet(str(folder))

    stream = read_stream(spark, topic, bootstrap, **{"startingOffsets": "earliest", **options})
    query = (
        stream.withColumn(DAY, f.to_date("timestamp"))
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(place / _CHECKPOINT))
        .trigger(**({"processingTime": "10 seconds"} if forever else {"availableNow": True}))
        .start()
    )
    query.awaitTermination()


def read_parquet(spark: SparkSession, place: str | Path) -> DataFrame:
    """All that `to_parquet` has written: what was compacted, and the micro-batches since.

    `compact` may end meanwhile, and removes files then that are being listed: the state says so, and it begins anew.
    """
    place = Path(place)
    while True:
        state = _state(place)
        try:
            frame = _read(spark, place, state, _batches(place, state))
        except Exception:
            if _state(place) == state:
                raise
        else:
            if _state(place) == state:
                return frame


def compact(spark: SparkSession, place: str | Path, rows_per_file: int = 1_000_000) -> int:
    """Write everything that is there into few files per day, and remove what it was in; how many rows those hold.

    `to_parquet` may go on meanwhile: micro-batches that Spark has not noted as ended stay as they are. A DataFrame of
    `read_parquet` that was made before has lost its files afterwards: read anew.
    """
    place = Path(place)
    before = _state(place)
    _remove_replaced(place, before)  # as far as one that was killed has not
    commits = [
        int(each.name) for each in (place / _CHECKPOINT / "commits").glob("*") if each.name.isdecimal()
    ]
    reach = max(commits, default=-1)
    number = 1 if before is None else before["number"] + 1
    folder = f"compacted-{number}"
    (
        _read(spark, place, before, [each for each in _batches(place, before) if each <= reach])
        .repartition(DAY)
        .sortWithinPartitions(DAY, "topic", "partition", "offset")
        .write.mode("overwrite")
        .option("maxRecordsPerFile", rows_per_file)
        .partitionBy(DAY)
        .parquet(str(place / folder))
    )
    state = {"number": number, "folder": folder, "batch": reach}
    new = place / f"{_CURRENT}.new"
    new.write_text(json.dumps(state, sort_keys=True), "utf-8")
    # What is removed next must not be all that a power cut leaves.
    for each in (*(place / folder).rglob("*"), place / folder, new):
        _sync(each)
    new.replace(place / _CURRENT)
    _sync(place)
    _remove_replaced(place, state)
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


def _batches(place: Path, state: dict[str, Any] | None) -> list[int]:
    """The complete micro-batches that hold anything and are not compacted, as that state says."""
    reach = -1 if state is None else state["batch"]
    return sorted(
        number
        for number, folder in _folders(place)
        if number > reach and (folder / _COMPLETE).exists() and any(folder.glob(f"{DAY}=*"))
    )


def _folders(place: Path) -> list[tuple[int, Path]]:
    return [(int(each.name.partition("=")[2]), each) for each in (place / _DATA).glob(f"{_BATCH}=*")]


def _read(spark: SparkSession, place: Path, state: dict[str, Any] | None, batches: list[int]) -> DataFrame:
    """What was compacted, and these micro-batches."""
    data = place / _DATA
    frames = [] if state is None else [spark.read.parquet(str(place / state["folder"]))]
    if batches or not frames:
        folders = [str(data / f"{_BATCH}={number}") for number in batches] or [str(data)]
        frames.append(spark.read.option("basePath", str(data)).parquet(*folders).drop(_BATCH))
    return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])


def _remove_replaced(place: Path, state: dict[str, Any] | None) -> None:
    """The files whose rows are elsewhere: of micro-batches that were compacted, of other compactions."""
    for each in place.glob("compacted-*"):
        if state is None or each.name != state["folder"]:
            shutil.rmtree(each)
    for number, folder in _folders(place):
        if state is not None and number <= state["batch"]:
            shutil.rmtree(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
