"""The data source that Spark knows as "tidelog": which options it takes, and who reads and writes.

Spark makes it anew in several processes of the driver, asks it for a schema and for readers and writers, and pickles
those: they hold options and nothing that is open. Each process loads only what it runs.
"""

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from tidelog.spark.batch import TopicReader
    from tidelog.spark.sink import BatchSink, StreamSink
    from tidelog.spark.stream import TopicStream


class TidelogDataSource(DataSource):
    """`format("tidelog")`."""

    @classmethod
    def name(cls) -> str:
        """What follows `format`."""
        return "tidelog"

    def schema(self) -> StructType:
        """Kafka's columns. Spark asks at `load()` already, unless it is given a schema: mistakes are told here if they can be."""
        from tidelog.spark.columns import schema_of  # noqa: PLC0415
        from tidelog.spark.options import check_early, includes_headers  # noqa: PLC0415
        from tidelog.spark.tables import for_table, options_of_table  # noqa: PLC0415

        schema = schema_of(headers=includes_headers(self.options))
        of_table = options_of_table(self.options)
        if of_table is None:
            check_early(self.options)
            return schema
        check_early(of_table, table=True)
        return for_table(schema, of_table)

    def reader(self, schema: StructType) -> "TopicReader":
        """For `spark.read`."""
        from tidelog.spark.batch import TopicReader  # noqa: PLC0415
        from tidelog.spark.columns import check_schema  # noqa: PLC0415
        from tidelog.spark.options import read_options  # noqa: PLC0415
        from tidelog.spark.tables import is_table, with_table  # noqa: PLC0415

        check_schema(schema)
        given = with_table(self.options, schema)
        return TopicReader(read_options(given, "batch", table=is_table(schema)), schema)

    def streamReader(self, schema: StructType) -> "TopicStream":  # noqa: N802 -- Spark's
        """For `spark.readStream`."""
        from tidelog.spark.columns import check_schema  # noqa: PLC0415
        from tidelog.spark.options import read_options  # noqa: PLC0415
        from tidelog.spark.stream import TopicStream  # noqa: PLC0415
        from tidelog.spark.tables import is_table, with_table  # noqa: PLC0415

        check_schema(schema)
        given = with_table(self.options, schema)
        return TopicStream(read_options(given, "stream", table=is_table(schema)), schema)

    def writer(self, schema: StructType, overwrite: Any) -> "BatchSink":
        """For `df.write`."""
        from tidelog.spark.columns import check_writable  # noqa: PLC0415
        from tidelog.spark.options import write_options  # noqa: PLC0415
        from tidelog.spark.sink import BatchSink  # noqa: PLC0415
        from tidelog.spark.tables import is_table, with_table  # noqa: PLC0415

        options = write_options(with_table(self.options, schema), table=is_table(schema), overwrite=overwrite)
        check_writable(schema, topic=options.topic)
        return BatchSink(options)

    def streamWriter(self, schema: StructType, overwrite: Any) -> "StreamSink":  # noqa: N802 -- Spark's
        """For `df.writeStream`; with output mode "complete" each micro-batch appends the whole result."""
        from tidelog.spark.columns import check_writable  # noqa: PLC0415
        from tidelog.spark.options import write_options  # noqa: PLC0415
        from tidelog.spark.sink import StreamSink  # noqa: PLC0415
        from tidelog.spark.tables import is_table, with_table  # noqa: PLC0415

        options = write_options(with_table(self.options, schema), table=is_table(schema))
        check_writable(schema, topic=options.topic)
        return StreamSink(options)
