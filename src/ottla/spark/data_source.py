"""The format `ottla`, as Spark finds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from ottla.spark.options import includes_headers
from ottla.spark.source_schema import schema_text

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from ottla.spark.sink import BatchWriter, StreamWriter
    from ottla.spark.source_batch import BatchReader
    from ottla.spark.source_stream import StreamReader


class OttlaDataSource(DataSource):
    """Topics of Ottla or of Apache Kafka, with the options and columns of Spark's Kafka connector."""

    @classmethod
    def name(cls) -> str:
        return "ottla"

    def schema(self) -> str:
        return schema_text(headers=includes_headers(self.options))

    def reader(self, schema: StructType) -> BatchReader:
        from ottla.spark.source_batch import BatchReader

        return BatchReader(self.options, schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        from ottla.spark.source_stream import StreamReader

        return StreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from ottla.spark.sink import BatchWriter

        return BatchWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        from ottla.spark.sink import StreamWriter

        return StreamWriter(self.options, schema)
