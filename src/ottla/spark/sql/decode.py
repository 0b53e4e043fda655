"""Parses records to rows with the declared columns. A record that cannot be parsed gets a reason and becomes a dead
letter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.spark.json_text import is_more_than_an_object
from ottla.spark.sql.definitions import RECORD_COLUMNS, Definition
from ottla.spark.sql.inference import quoted, schema_text
from ottla.spark.sql.statements import Column as DeclaredColumn

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import Column, DataFrame

PARSED, REASON, CORRUPT = "__parsed", "__reason", "__corrupt"
COLUMNS_NAMED_MAX = 40
"""With more columns than this, the reason does not name the mismatched one, because each needs a parser of its own."""
_TIMES = ("TIMESTAMP", "TIMESTAMP_LTZ")


def parse_records(records: DataFrame, definition: Definition) -> DataFrame:
    """Adds the parsed value to each record, or the reason why it cannot be parsed."""
    from pyspark.sql import functions as sf

    if definition.format == "json":
        return _parse_json(records, definition)
    if definition.format == "avro":
        from ottla.spark.sql.avro_values import decoder

        decoded = records.withColumn(PARSED, decoder(definition)("value"))
        return decoded.withColumn(REASON, sf.col(PARSED)["reason"]).withColumn(PARSED, sf.col(PARSED)["row"])
    (column,) = definition.columns
    value = sf.col("value").cast("string") if definition.format == "string" else sf.col("value")
    reason = sf.when(~sf.is_valid_utf8(sf.col("value").cast("string")), sf.lit("the value is not UTF-8"))
    named = records.withColumn(PARSED, sf.struct(value.alias(column.name)))
    return named.withColumn(REASON, reason if definition.format == "string" else sf.lit(None).cast("string"))


def good_rows(parsed: DataFrame, definition: Definition, names: Collection[str] = ()) -> DataFrame:
    """Returns the declared columns, and those columns of the record itself that are in `names`."""
    from pyspark.sql import functions as sf

    chosen = [_value(definition, column).alias(column.name) for column in definition.columns]
    for name in RECORD_COLUMNS:
        if name in names:
            own = sf.col(name[1:])
            chosen.append((own.cast("string") if name == "_key" else own).alias(name))
    return parsed.where(sf.col(REASON).isNull()).select(*chosen)


def bad_records(parsed: DataFrame) -> DataFrame:
    """Returns the unchanged records, with the reason and the origin added to their headers."""
    from pyspark.sql import functions as sf

    def header(name: str, value: Column) -> Column:
        return sf.struct(sf.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))

    told = [header("reason", sf.col(REASON))]
    told += [header(name, sf.col(name)) for name in ("topic", "partition", "offset")]
    own = sf.coalesce(sf.col("headers"), sf.array().cast(RECORD_COLUMNS["_headers"]))
    headers = sf.concat(own, sf.array(*told).cast(RECORD_COLUMNS["_headers"]))
    return parsed.where(sf.col(REASON).isNotNull()).select("key", "value", headers.alias("headers"))


def count_bad() -> Column:
    """Counts the records that cannot be parsed."""
    from pyspark.sql import functions as sf

    return sf.count_if(sf.col(REASON).isNotNull())


def row_type(definition: Definition, column: DeclaredColumn) -> str:
    """Returns the type of a column in a row. The event time is a TIMESTAMP, whatever its type in the value."""
    return "TIMESTAMP" if column.name == definition.event_time else column.type


def _value(definition: Definition, column: DeclaredColumn) -> Column:
    from pyspark.sql import functions as sf

    value = sf.col(PARSED)[column.name]
    if row_type(definition, column).upper() in _TIMES:
        value = _time(value, "STRING" if definition.format == "json" else column.type)
    is_key = column.name.lower() in {each.lower() for each in definition.key}
    if is_key and not definition.is_table and "<" not in column.type:
        value = sf.coalesce(value, sf.col("key").cast("string").try_cast(row_type(definition, column)))
    return value


def _time(value: Column, kind: str) -> Column:
    """Converts ISO 8601 text, or milliseconds since 1970, to a timestamp."""
    from pyspark.sql import functions as sf

    if kind.upper() in ("BIGINT", "LONG"):
        return sf.timestamp_millis(value)
    if kind.upper() == "STRING":
        return sf.coalesce(sf.timestamp_millis(value.try_cast("bigint")), sf.try_to_timestamp(value))
    return value


def _parse_json(records: DataFrame, definition: Definition) -> DataFrame:
    from pyspark.sql import functions as sf

    text = sf.col("value").cast("string")
    read = [_as_read(definition, column) for column in definition.columns]
    parsed = records.withColumn(PARSED, _from_json(text, read))
    times = [
        sf.when(
            sf.col(PARSED)[column.name].isNotNull() & _time(sf.col(PARSED)[column.name], "STRING").isNull(),
            sf.lit(f"{column.name} is not a TIMESTAMP"),
        )
        for column in definition.columns
        if row_type(definition, column).upper() in _TIMES
    ]
    not_json = sf.try_parse_json(text).isNull()
    bad_time = sf.concat_ws(", ", *times) if times else sf.lit("")
    reason = (
        sf.when(sf.col("value").isNull(), sf.lit(None).cast("string"))
        .when(~sf.is_valid_utf8(text), sf.lit("the value is not UTF-8"))
        .when(
            ~text.rlike(r"^\s*\{"),
            sf.when(not_json, sf.lit("the value is not JSON")).otherwise(sf.lit("the value is not a JSON object")),
        )
        .when(is_more_than_an_object(text), sf.lit("the value is not JSON"))
        .when(
            sf.col(PARSED)[CORRUPT].isNotNull(),
            sf.when(not_json, sf.lit("the value is not JSON")).otherwise(_misfit(text, read)),
        )
        .when(bad_time != "", bad_time)
    )
    return parsed.withColumn(REASON, reason)


def _as_read(definition: Definition, column: DeclaredColumn) -> DeclaredColumn:
    """Reads times as text, because Spark would interpret numbers as seconds."""
    is_time = row_type(definition, column).upper() in _TIMES
    return DeclaredColumn(column.name, "STRING") if is_time else column


def _from_json(text: Column, columns: list[DeclaredColumn]) -> Column:
    from pyspark.sql import functions as sf

    schema = f"{schema_text(columns)}, {quoted(CORRUPT)} STRING"
    return sf.from_json(text, schema, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT})


def _misfit(text: Column, columns: list[DeclaredColumn]) -> Column:
    """Names the columns that valid JSON does not fit."""
    from pyspark.sql import functions as sf

    if len(columns) > COLUMNS_NAMED_MAX:
        return sf.lit("a field does not match the type of its column")
    told = [
        sf.when(_from_json(text, [column])[CORRUPT].isNotNull(), sf.lit(f"{column.name} is not of type {column.type}"))
        for column in columns
    ]
    found = sf.concat_ws(", ", *told)
    return sf.when(found != "", found).otherwise(sf.lit("the value does not match the columns"))
