"""A local Spark that is ready for tidelog, for tests, examples and measurements.

Programs that have a session of their own need nothing of this: Spark finds the format by itself.
"""

from collections.abc import Mapping

from pyspark.sql import SparkSession

from tidelog.spark.java import prepare


def local_session(
    cores: int = 2, name: str = "tidelog", *, settings: Mapping[str, str] | None = None, quick: bool = False
) -> SparkSession:
    """A session with so many cores of this machine; `quick`: starts sooner and computes slower, for tests."""
    prepare()
    chosen = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        **({"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"} if quick else {}),
        **(settings or {}),
    }
    builder = SparkSession.builder.master(f"local[{cores}]").appName(name)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
