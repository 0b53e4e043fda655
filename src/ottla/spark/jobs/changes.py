"""Change logs as DataFrames: converts records to changes, and changes to the rows of a table.

A change has the row's key, its value as JSON text, and the operation `u` (upsert) or `d` (delete). There are two
envelopes:

- plain: the record's key is the primary key and its value a JSON object; a record without a value is a delete.
- debezium: the JSON of a Debezium connector, with or without its schema; a tombstone after a delete is a delete too. A
  truncate empties the table. It is supported only for topics with one partition, where the order is certain.

A record that is neither has a `reason`; nothing is guessed about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from ottla.archive.failures import PipelineError
from ottla.spark.json_text import closes_its_brackets, in_brackets

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

UPSERT, DELETE, TRUNCATE = "u", "d", "t"
STATE_COLUMNS = ["_key", "_partition", "_offset", "_timestamp", "_value"]
"""Columns that precede the fields of the values: where a row comes from, and its unchanged value."""
_BIGINT_DIGITS = 18


class Envelope(StrEnum):
    """The formats of change logs."""

    PLAIN = "plain"
    DEBEZIUM = "debezium"


def parse_changes(records: DataFrame, envelope: Envelope, *, one_partition: bool = False) -> DataFrame:
    """Returns key, value, op, topic, partition, offset, timestamp, and the reason why a record is not a change."""
    from pyspark.sql import functions as sf

    text = sf.col("value").cast("string")
    # In brackets, so that text after the object is detected: the parser stops at the end of the first value.
    parsed = sf.try_parse_json(in_brackets(text))
    rows = records.select(
        sf.col("key").cast("string").alias("_k"),
        text.alias("_t"),
        parsed.alias("_p"),
        *["topic", "partition", "offset", "timestamp"],
    )
    key, value, op, reason = _debezium(one_partition) if envelope is Envelope.DEBEZIUM else _plain()
    broken = (
        sf.when(sf.col("_k").isNull() & (op != TRUNCATE), sf.lit("no key"))
        .when(~sf.is_valid_utf8("_k"), sf.lit("the key is not UTF-8"))
        .when(sf.col("_t").isNull(), sf.lit(None).cast("string"))
        .when(~sf.is_valid_utf8("_t"), sf.lit("the value is not UTF-8"))
        .when(_is_not_json(), sf.lit("the value is not JSON"))
        .when(~sf.ltrim("_t").startswith("{"), sf.lit("the value is JSON, but not an object"))
        .otherwise(reason)
    )
    return rows.select(
        sf.when(op != TRUNCATE, key).alias("key"),
        sf.when(op == UPSERT, value).alias("value"),
        op.alias("op"),
        *["topic", "partition", "offset", "timestamp"],
        broken.alias("reason"),
    )


def _is_not_json() -> Column:
    """Returns whether the text is empty, has more than one value, or continues after the value.

    An object with a duplicate field is not valid either.
    """
    from pyspark.sql import functions as sf

    return (
        sf.col("_p").isNull()
        | sf.expr("try_variant_get(_p, '$[0]', 'variant') IS NULL OR _t RLIKE '^\\\\s*$'")
        | (sf.expr("try_variant_get(_p, '$[1]', 'variant') IS NOT NULL"))
        | closes_its_brackets(sf.col("_t"))
    )


def _plain() -> tuple[Column, Column, Column, Column]:
    from pyspark.sql import functions as sf

    op = sf.when(sf.col("_t").isNull(), DELETE).otherwise(UPSERT)
    return sf.col("_k"), sf.col("_t"), op, sf.lit(None).cast("string")


def _debezium(one_partition: bool) -> tuple[Column, Column, Column, Column]:
    from pyspark.sql import functions as sf

    def field(name: str, kind: str) -> Column:
        inside, bare = (f"try_variant_get(_p, '$[0].{path}{name}', '{kind}')" for path in ("payload.", ""))
        return sf.expr(f"CASE WHEN {_IS_WRAPPED} THEN {inside} ELSE {bare} END")

    wrapped_key = sf.expr("try_variant_get(try_parse_json(_k), '$.payload', 'variant')")
    key = sf.coalesce(sf.to_json(wrapped_key), sf.col("_k"))
    named = field("op", "string")
    after = sf.to_json(field("after", "variant"))
    is_upsert = named.isin("c", "u", "r")
    op = (
        sf.when(sf.col("_t").isNull() | (named == "d"), DELETE)
        .when((named == "t") & sf.lit(one_partition), TRUNCATE)
        .otherwise(UPSERT)
    )
    reason = (
        sf.when(named.isNull(), sf.lit('no "op": not a Debezium envelope'))
        .when((named == "t") & sf.lit(not one_partition), sf.lit(_WHAT_TRUNCATE))
        .when(~is_upsert & ~named.isin("d", "t"), sf.concat(sf.lit('unknown "op": '), named))
        .when(is_upsert & (after.isNull() | ~after.startswith("{")), sf.lit('no row in "after"'))
        .when(is_upsert & (field("source.unchanged", "variant").isNotNull() | _has_gap(after)), sf.lit(_GAP))
    )
    return key, after, op, reason


def _has_gap(after: Column) -> Column:
    return after.contains(':"__debezium_unavailable_value"')


_WHAT_TRUNCATE = "a truncate in a topic of several partitions: it is unknown which rows preceded it"
_GAP = "an unchanged large value is missing: with ALTER TABLE ... REPLICA IDENTITY FULL; PostgreSQL sends it"
_IS_WRAPPED = "try_variant_get(_p, '$[0].payload', 'variant') IS NOT NULL"


def latest(changes: DataFrame, base: DataFrame | None = None) -> DataFrame:
    """Returns the last change of each key and the last truncate, starting from nothing or from a snapshot: the columns
    of a row, and `_op`.

    The order is (partition, offset). A key is always in the same partition as long as the number of partitions is
    constant.
    """
    from pyspark.sql import functions as sf

    rows = changes.select("key", "partition", "offset", "op", "timestamp", "value")
    if base is not None:
        known = [
            sf.col("_key").alias("key"),
            sf.col("_partition").alias("partition"),
            sf.col("_offset").alias("offset"),
        ]
        before = base.select(
            *known, sf.lit(UPSERT).alias("op"), sf.col("_timestamp").alias("timestamp"), sf.col("_value").alias("value")
        )
        rows = before.unionByName(rows)
    last = sf.max(sf.struct("partition", "offset", "op", "timestamp", "value")).alias("last")
    folded = rows.groupBy("key").agg(last).where(sf.col("last.op") != DELETE)
    return folded.select(
        sf.col("key").alias("_key"),
        *(sf.col(f"last.{name[1:]}").alias(name) for name in STATE_COLUMNS[1:]),
        sf.col("last.op").alias("_op"),
    )


@dataclass(frozen=True, slots=True)
class FoldResult:
    """The result of a fold."""

    state: DataFrame
    persisted: DataFrame
    """The persisted DataFrame that `state` is derived from; the caller must unpersist it."""
    rows: int
    changes: int
    bad_records: int


def fold(changes: DataFrame, base: DataFrame | None = None) -> FoldResult:
    """Applies `latest` to the valid changes and counts everything in one pass over the records."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as sf

    seen = Observation()
    is_bad = sf.col("reason").isNotNull()
    watched = changes.observe(seen, sf.count(sf.lit(1)).alias("changes"), sf.count_if(is_bad).alias("bad"))
    persisted = latest(watched.where(~is_bad), base).persist()
    is_row = sf.col("_op") == UPSERT
    emptied = sf.max(sf.when(~is_row, sf.col("_offset")))
    found = persisted.agg(emptied.alias("emptied"), sf.count_if(is_row).alias("rows")).collect()[0]
    state, rows = persisted.where(is_row).select(*STATE_COLUMNS), found["rows"]
    if found["emptied"] is not None:
        state = state.where(sf.col("_offset") > found["emptied"])
        rows = state.count()
    return FoldResult(state, persisted, rows, seen.get["changes"], seen.get["bad"])


def infer_columns(state: DataFrame) -> dict[str, str]:
    """Returns the names and types of the values' fields. Anything except text, numbers and booleans becomes JSON
    text."""
    from pyspark.sql import functions as sf
    from pyspark.sql.types import DataType, StructType

    found = state.agg(sf.schema_of_variant_agg(sf.try_parse_json("_value")).alias("schema")).collect()[0]["schema"]
    if not found or not found.startswith("OBJECT<"):
        return {}
    schema = DataType.fromDDL(found.replace("OBJECT<", "STRUCT<"))
    fields = schema.fields if isinstance(schema, StructType) else []
    return {each.name: column_type(each.dataType) for each in fields}


def parse_columns(ddl: str) -> dict[str, str]:
    """Parses a schema such as `id BIGINT, name STRING`. Raises PipelineError if it is invalid."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        schema = StructType.fromDDL(ddl)
    except (PySparkException, ValueError) as mistake:
        raise PipelineError(f'"{ddl}" is not a schema: {str(mistake).strip().splitlines()[0]}') from mistake
    if not isinstance(schema, StructType):
        raise PipelineError(f'"{ddl}" is a single type; a schema also needs names, as in "id BIGINT, name STRING"')
    return {each.name: each.dataType.simpleString() for each in schema.fields}


def column_type(inferred: DataType) -> str:
    """Returns a type that the next row does not change, as far as JSON allows: a number has no fixed scale."""
    from pyspark.sql.types import BooleanType, DecimalType, DoubleType, FloatType, LongType

    if isinstance(inferred, BooleanType | LongType):
        return inferred.simpleString()
    if isinstance(inferred, DecimalType):
        return "decimal(38,0)" if inferred.scale == 0 and inferred.precision > _BIGINT_DIGITS else "double"
    return "double" if isinstance(inferred, DoubleType | FloatType) else "string"


def with_columns(state: DataFrame, columns: dict[str, str]) -> DataFrame:
    """Adds a column for each field, after STATE_COLUMNS.

    If Spark considers two names equal, only the first gets a column; `_value` has all fields.
    """
    from pyspark.sql import functions as sf

    chosen = distinct_names(columns, taken=STATE_COLUMNS)
    if not chosen:
        return state.select(*STATE_COLUMNS)
    row = sf.from_json("_value", ", ".join(f"{_quoted(name)} {columns[name]}" for name in chosen))
    opened = state.select(*STATE_COLUMNS, row.alias("_row"))
    return opened.select(*STATE_COLUMNS, *(sf.col("_row")[name].alias(name) for name in chosen))


def distinct_names(names: Sequence[str] | dict[str, str], *, taken: Sequence[str] = ()) -> list[str]:
    """Returns the names without those that differ from an earlier one only in case."""
    known = {name.lower() for name in taken}
    chosen = []
    for name in names:
        if name.lower() not in known:
            known.add(name.lower())
            chosen.append(name)
    return chosen


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
