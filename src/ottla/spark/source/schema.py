"""The columns of the source, which are those of Spark's Kafka connector. A job may select fewer with a schema."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from ottla.client import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

HEADERS_TYPE = "array<struct<key:string,value:binary>>"
COLUMNS = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
}


class ColumnError(ValueError):
    """The job's columns are not those of the source or the sink."""


def schema_text(*, headers: bool) -> str:
    """Returns the schema as DDL."""
    columns = COLUMNS | ({"headers": HEADERS_TYPE} if headers else {})
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def check_schema(schema: StructType) -> None:
    """Raises ColumnError if the schema has an unknown column or a wrong type."""
    known = COLUMNS | {"headers": HEADERS_TYPE}
    for column in schema.fields:
        if column.name not in known:
            raise ColumnError(f"there is no column {column.name}; the columns are {', '.join(known)}")
        kind = column.dataType.simpleString()
        if kind != known[column.name]:
            raise ColumnError(f"column {column.name} is of type {known[column.name]}, not {kind}")
    if not schema.fields:
        raise ColumnError("a schema without columns; the columns are " + ", ".join(known))


class RowBatches:
    """Converts the record batches of one partition to exactly the schema that Spark expects."""

    def __init__(self, schema: StructType, at: TopicPartition) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self._at = at
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._makers: list[Callable[[pa.RecordBatch, bool], pa.Array]] = [
            self._maker(column.name, column.type) for column in self._schema
        ]

    def convert(self, rows: pa.RecordBatch, by_broker: bool) -> pa.RecordBatch:
        """Converts a batch. `by_broker` means that the broker set the timestamps (LogAppendTime)."""
        return pa.RecordBatch.from_arrays([make(rows, by_broker) for make in self._makers], schema=self._schema)

    def _maker(self, name: str, kind: pa.DataType) -> Callable[[pa.RecordBatch, bool], pa.Array]:
        if name == "topic":
            return lambda rows, by_broker: pa.repeat(pa.scalar(self._at.topic, kind), rows.num_rows)
        if name == "partition":
            return lambda rows, by_broker: pa.repeat(pa.scalar(self._at.partition, kind), rows.num_rows)
        if name == "timestampType":
            return lambda rows, by_broker: pa.repeat(pa.scalar(int(by_broker), kind), rows.num_rows)
        if name == "headers":
            return lambda rows, by_broker: _null_if_empty(rows.column("headers")).cast(kind)
        return lambda rows, by_broker: rows.column(name).cast(kind)


def _null_if_empty(headers: pa.Array) -> pa.Array:
    """Replaces empty headers with null, as Spark's connector does."""
    import pyarrow.compute as pc

    return pc.if_else(pc.equal(pc.list_value_length(headers), 0), pa.scalar(None, headers.type), headers)
