"""The data source `ottla`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from ottla.spark.options_text import check_names
from ottla.spark.sink.options import KNOWN
from ottla.spark.source.options import includes_headers
from ottla.spark.source.schema import schema_text
from ottla.spark.user_errors import USER_ERRORS, in_one_sentence
from ottla.spark.worker_pickle import WorkerPickle

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from ottla.spark.sink.writers import BatchWriter, StreamWriter
    from ottla.spark.source.batch import BatchReader
    from ottla.spark.source.stream import StreamReader


class OttlaDataSource(WorkerPickle, DataSource):
    """Reads and writes topics of Ottla or Apache Kafka, with the options and columns of Spark's Kafka connector."""

    @classmethod
    def name(cls) -> str:
        """Returns the name for `spark.read.format(...)`."""
        return "ottla"

    @in_one_sentence
    def schema(self) -> str:
        """Returns the columns. `load()` calls it, so a misspelt option is reported there, where it is easiest to
        find."""
        check_names(self.options, KNOWN)
        return schema_text(headers=includes_headers(self.options))

    @in_one_sentence
    def reader(self, schema: StructType) -> BatchReader:
        """Returns the reader of a batch query. Raises OptionError for bad options."""
        from ottla.spark.source.batch import BatchReader

        return BatchReader(self.options, schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        """Returns the reader of a streaming query. Bad options are reported when the query starts."""
        from ottla.spark.source.stream import RefusedStreamReader, StreamReader

        try:
            return StreamReader(self.options, schema)
        except USER_ERRORS as error:
            return RefusedStreamReader(error)  # type: ignore[return-value] # it has the methods that Spark calls

    @in_one_sentence
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Returns the writer of a batch write."""
        from ottla.spark.sink.writers import BatchWriter

        return BatchWriter(self.options, schema, overwrite=overwrite)

    @in_one_sentence
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        """Returns the writer of a streaming query. `overwrite` has no effect: rows are always appended."""
        from ottla.spark.sink.writers import StreamWriter

        return StreamWriter(self.options, schema)
