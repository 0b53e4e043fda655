"""The columns that the sink accepts, and the routing of rows to topics and partitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ottla.spark.source.schema import HEADERS_TYPE, ColumnError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

ALLOWED = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": (HEADERS_TYPE,),
    "topic": ("string",),
    "partition": ("int",),
}
_SENT = ("key", "value", "headers")


class Part(NamedTuple):
    """Rows for one topic or partition."""

    topic: str
    partition: int | None
    """None: the key determines the partition, as in Java's partitioner; without a key, any partition is used."""
    rows: pa.Table


def check_columns(schema: StructType, topic: str | None) -> None:
    """Raises ColumnError unless there are a value and a topic, of types that can be written. Other columns are
    ignored."""
    types = {column.name: column.dataType.simpleString() for column in schema.fields}
    there = ", ".join(types) or "none"
    if "value" not in types:
        raise ColumnError(f"the sink needs a column named value; the columns are {there}")
    if topic is None and "topic" not in types:
        raise ColumnError(
            f"no topic to write to: set the option topic, or add a column named topic; the columns are {there}"
        )
    for name, allowed in ALLOWED.items():
        if name in types and types[name] not in allowed:
            raise ColumnError(f"column {name} must be of type {' or '.join(allowed)}, not {types[name]}")


def parts_of(rows: pa.Table, topic: str | None) -> Iterator[Part]:
    """Yields the rows for each topic and each named partition, in order."""
    columns = [name for name in _SENT if name in rows.column_names]
    for name, of_topic in _by_topic(rows, topic):
        if "partition" not in rows.column_names:
            yield Part(name, None, of_topic.select(columns))
            continue
        chosen = of_topic.column("partition")
        for partition in pc.unique(chosen).to_pylist():
            mask = pc.is_null(chosen) if partition is None else pc.equal(chosen, partition)
            yield Part(name, partition, of_topic.filter(mask).select(columns))


def _by_topic(rows: pa.Table, topic: str | None) -> Iterator[tuple[str, pa.Table]]:
    if topic is not None:
        yield topic, rows
        return
    topics = rows.column("topic")
    if topics.null_count:
        raise ColumnError("a row has null in the column topic")
    for name in pc.unique(topics).to_pylist():
        yield name, rows.filter(pc.equal(topics, name))
