"""Where Spark finds the format "tidelog" by itself: it looks for `DefaultSource` in top-level packages named `pyspark_*`."""

from tidelog.spark.source import TidelogDataSource as DefaultSource

__all__ = ["DefaultSource"]
