"""Spark's JVM connector for Kafka as a reference, where somebody has brought it: nothing here comes with it.

    TIDELOG_BENCH_KAFKA_JARS   its jars, with commas between them: spark-sql-kafka-0-10, spark-token-provider-kafka-0-10,
                               kafka-clients, commons-pool2, all for the Spark that is installed
    TIDELOG_BENCH_KAFKA        the address of a Kafka broker on this machine, HOST:PORT

Both are needed; the bench writes its rows to a topic there through the connector, which is to make topics by itself. Without
them its rows say so, and have no reference.
"""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JARS = "TIDELOG_BENCH_KAFKA_JARS"
ADDRESS = "TIDELOG_BENCH_KAFKA"
ABSENT = f"not at hand: {JARS} names them"


def at_hand() -> bool:
    """Whether there is one."""
    return bool(os.environ.get(JARS) and os.environ.get(ADDRESS))


def session() -> dict[str, str]:
    """What a session needs for it."""
    return {"spark.jars": os.environ[JARS]} if at_hand() else {}


class Kafka:
    """The rows of a frame in a topic of Kafka, to be read by the connector."""

    def __init__(self, spark: "SparkSession", rows: "DataFrame") -> None:
        self._spark = spark
        self._address = os.environ[ADDRESS]
        self._topic = f"tidelog-bench-{os.getpid()}"
        written = rows.select("key", "value").write.format("kafka").option("topic", self._topic)
        written.option("kafka.bootstrap.servers", self._address).save()

    def read(self) -> "DataFrame":
        """All of it."""
        reader = self._spark.read.format("kafka").option("subscribe", self._topic)
        return reader.option("kafka.bootstrap.servers", self._address).load()
