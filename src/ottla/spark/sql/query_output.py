"""Writes rows to topics as records, exactly once, with a checkpoint named after the query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.spark.sql.decode import row_type
from ottla.spark.sql.failures import SqlError
from ottla.spark.sql.inference import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from ottla.spark.sql.definitions import Definition
    from ottla.spark.sql.statements import Column as DeclaredColumn

NULL_KEY = "null"
"""The key of rows whose key is null: a compacted topic accepts no record without a key."""


@dataclass(frozen=True, slots=True)
class QueryOutput:
    """Where and how a query writes."""

    servers: str
    topic: str
    query_name: str
    checkpoint: str
    every: str | None
    """An interval such as `1 second`; None: process what is there now and end."""


def as_records(rows: DataFrame, definition: Definition) -> DataFrame:
    """Returns the value and, if the definition has one, the key of each record."""
    from pyspark.sql import functions as sf

    columns = [_column(name) for name in rows.columns]
    if definition.format == "json":
        value = sf.to_json(sf.struct(*columns), {"ignoreNullFields": "false"})
    elif definition.format == "avro":
        from ottla.spark.sql.avro_values import encoder

        value = encoder(definition)(sf.struct(*columns))
    else:
        value = columns[0].cast("string" if definition.format == "string" else "binary")
    records = [value.alias("value")]
    if definition.key:
        records.insert(0, key_text(rows, definition.key, is_table=definition.is_table).alias("key"))
    return rows.select(*records)


def key_text(rows: DataFrame, names: Sequence[str], *, is_table: bool) -> Column:
    """Returns one column as it is, or several as a JSON object."""
    from pyspark.sql import functions as sf

    if len(names) > 1:
        return sf.to_json(sf.struct(*(_column(name) for name in names)), {"ignoreNullFields": "false"})
    kind = next(each.dataType.typeName() for each in rows.schema.fields if each.name.lower() == names[0].lower())
    nested = kind in ("struct", "array", "map")
    text = sf.to_json(_column(names[0])) if nested else _column(names[0]).cast("string")
    return sf.coalesce(text, sf.lit(NULL_KEY)) if is_table else text


def fitted(rows: DataFrame, definition: Definition) -> DataFrame:
    """Converts rows to the columns of a declared stream, by name, with its types. Raises SqlError for an unknown
    column."""
    from pyspark.sql import functions as sf

    given = {name.lower() for name in rows.columns}
    unknown = [name for name in rows.columns if definition.column(name) is None]
    if unknown:
        there = ", ".join(each.name for each in definition.columns)
        raise SqlError(
            f"{definition.name} has no column {unknown[0]}; it has {there}. Use AS to name the selected columns"
        )

    def value(column: DeclaredColumn) -> Column:
        found = _column(column.name) if column.name.lower() in given else sf.lit(None)
        seen = found.cast(row_type(definition, column))
        if definition.format == "avro" and column.type == "BIGINT" and column.name == definition.event_time:
            return sf.unix_millis(seen)  # as it is read
        return seen if definition.format == "json" else seen.cast(column.type)

    return rows.select(*(value(each).alias(each.name) for each in definition.columns))


def check_single(rows: DataFrame, format_: str) -> None:
    """Raises SqlError if the format has one column and the rows have more."""
    if format_ in ("string", "bytes") and len(rows.columns) != 1:
        raise SqlError(f"format '{format_}' needs exactly one column; this SELECT has {len(rows.columns)}")


def start_appends(records: DataFrame, writing: QueryOutput) -> StreamingQuery:
    """Starts a query whose sink writes each micro-batch exactly once, with transactions."""
    writer = records.writeStream.format("ottla").outputMode("append").queryName(writing.query_name)
    writer = writer.option("kafka.bootstrap.servers", writing.servers).option("topic", writing.topic)
    if "headers" in records.columns:
        writer = writer.option("includeHeaders", "true")
    writer = writer.option("checkpointLocation", writing.checkpoint)
    triggered = (
        writer.trigger(availableNow=True) if writing.every is None else writer.trigger(processingTime=writing.every)
    )
    return triggered.start()


def start_upserts(rows: DataFrame, definition: Definition, writing: QueryOutput, run_id: str) -> StreamingQuery:
    """Starts a query that writes each group changed by a micro-batch as a record, with the group as its key.

    Spark's Python sinks have no update mode. So each batch is a separate write, identified by the query's run and the
    batch number, and running it again does not write duplicates.
    """

    def write(batch: DataFrame, number: int) -> None:
        made = as_records(batch, definition).write.format("ottla").mode("append")
        made = made.option("kafka.bootstrap.servers", writing.servers).option("topic", writing.topic)
        made.option("ottla.txn.app.id", run_id).option("ottla.txn.version", str(number)).save()

    writer = rows.writeStream.outputMode("update").queryName(writing.query_name).foreachBatch(write)
    writer = writer.option("checkpointLocation", writing.checkpoint)
    triggered = (
        writer.trigger(availableNow=True) if writing.every is None else writer.trigger(processingTime=writing.every)
    )
    return triggered.start()


def _column(name: str) -> Column:
    from pyspark.sql import functions as sf

    return sf.col(quoted(name))
