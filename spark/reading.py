"""One-liners for programs: a topic as a DataFrame or a stream, a DataFrame into a topic.

    df = read_topic(spark, "orders", "h:9092", startingOffsets="earliest")

Options are those of the data source, as keywords; what is wrong with them is raised at once (InvalidConfig), and not by Spark when it plans.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tidelog.spark.options import Kind, read_options

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"


def _text(value: object) -> str:
    """As Spark takes options: what is a mapping or a list in Python as JSON, or with commas."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return json.dumps(value)
    if isinstance(value, list | tuple | range | set | frozenset):
        return ",".join(map(str, value))
    return str(value)


def _given(
    topics: str | Iterable[str], bootstrap: str, options: dict[str, Any], kind: Kind
) -> dict[str, str]:
    named = topics if isinstance(topics, str) else ",".join(topics)
    texts = {name: _text(value) for name, value in options.items()}
    given = {"bootstrap.servers": bootstrap, "subscribe": named, **texts}
    read_options(given, kind)
    return given


def read_topic(
    spark: SparkSession, topics: str | Iterable[str], bootstrap: str = DEFAULT_BOOTSTRAP, **options: Any
) -> DataFrame:
    """Topics as they are now. `schema="offset bigint, value binary"` reads those columns only."""
    schema = options.pop("schema", None)
    given = _given(topics, bootstrap, options, "batch")
    reader = spark.read.format("tidelog").options(**given)
    return (reader if schema is None else reader.schema(schema)).load()


def read_stream(
    spark: SparkSession, topics: str | Iterable[str], bootstrap: str = DEFAULT_BOOTSTRAP, **options: Any
) -> DataFrame:
    """Topics as they grow."""
    schema = options.pop("schema", None)
    given = _given(topics, bootstrap, options, "stream")
    reader = spark.readStream.format("tidelog").options(**given)
    return (reader if schema is None else reader.schema(schema)).load()


def write_topic(
    frame: DataFrame, topic: str | None, bootstrap: str = DEFAULT_BOOTSTRAP, *, compression: str = "none"
) -> None:
    """Append these rows: a column `value`, and if they are there `key`, `headers`, `partition` and `timestamp`.

    Without a topic each row says where it goes, in a column `topic`.
    """
    options = {"bootstrap.servers": bootstrap, "compression": compression}
    if topic is not None:
        options["topic"] = topic
    frame.write.format("tidelog").options(**options).mode("append").save()
