"""The PySpark data source and sink: topics as DataFrames, DataFrames into topics, without a jar.

    spark.read.format("tidelog").option("bootstrap.servers", "h:9092").option("subscribe", "orders").load()

    from tidelog.spark import read_topic
    read_topic(spark, "orders", "h:9092").groupBy("partition").count()

Importing this costs next to nothing and never fails: Spark imports it, by way of `pyspark_tidelog`, in every session
that looks for data sources. PySpark and pyarrow are loaded when they are used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidelog.spark.reading import read_stream as read_stream
    from tidelog.spark.reading import read_topic as read_topic
    from tidelog.spark.reading import write_topic as write_topic
    from tidelog.spark.session import local_session as local_session
    from tidelog.spark.source import TidelogDataSource as TidelogDataSource

_HOMES = {
    "TidelogDataSource": "source",
    "read_stream": "reading",
    "read_topic": "reading",
    "local_session": "session",
    "write_topic": "reading",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
