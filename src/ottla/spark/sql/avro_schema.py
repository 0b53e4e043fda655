"""Derives columns from an Avro schema. Pure."""

from __future__ import annotations

import json
from typing import Any

from ottla.spark.sql.failures import SqlError
from ottla.spark.sql.inference import quoted
from ottla.spark.sql.statements import Column

_PLAIN = {
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "bytes": "BINARY",
    "string": "STRING",
    "enum": "STRING",
    "fixed": "BINARY",
}
_LOGICAL = {
    "date": "DATE",
    "timestamp-millis": "TIMESTAMP",
    "timestamp-micros": "TIMESTAMP",
    "local-timestamp-millis": "TIMESTAMP_NTZ",
    "local-timestamp-micros": "TIMESTAMP_NTZ",
    "uuid": "STRING",
}


def avro_columns(text: str) -> tuple[Column, ...]:
    """Returns the columns of a record schema. Raises SqlError, without a position, if the text is not one."""
    try:
        schema = json.loads(text)
    except ValueError as mistake:
        raise SqlError(f"the Avro schema is not JSON: {mistake}") from None
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise SqlError('the Avro schema must be a record: {"type": "record", "name": ..., "fields": [...]}')
    return tuple(Column(name, kind) for name, kind in _fields(schema, {}))


def _fields(record: dict[str, Any], named: dict[str, Any]) -> list[tuple[str, str]]:
    fields = record.get("fields")
    if not isinstance(fields, list) or not fields:
        raise SqlError(f"the Avro record {record.get('name', '')} has no fields")
    # None marks a record that is still being resolved, to detect recursion. The names of a schema are shared by all its
    # records: a type may be defined in a nested record and used after it.
    named[_short_name(record)] = None
    found = []
    for field in fields:
        if not isinstance(field, dict) or "name" not in field or "type" not in field:
            raise SqlError(f"a field of an Avro schema needs a name and a type, not {json.dumps(field)}")
        found.append((field["name"], _type(field["type"], named)))
    return found


def _type(schema: Any, named: dict[str, Any]) -> str:
    if isinstance(schema, list):
        return _union(schema, named)
    if isinstance(schema, str):
        return _named(schema, named)
    if not isinstance(schema, dict):
        raise SqlError(f"{json.dumps(schema)} is not an Avro type")
    found = _logical_type(schema) or _complex_type(schema, named)
    if "name" in schema:
        named[_short_name(schema)] = found
    return found


def _logical_type(schema: dict[str, Any]) -> str | None:
    logical = schema.get("logicalType")
    if logical == "decimal":
        return f"DECIMAL({schema.get('precision', 10)}, {schema.get('scale', 0)})"
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    if logical is not None and str(logical).startswith("time-"):
        raise SqlError(f"the Avro type {logical} is not supported by Spark; remove its logicalType to get the number")
    return None


def _complex_type(schema: dict[str, Any], named: dict[str, Any]) -> str:
    kind = schema.get("type")
    if kind == "record":
        inside = ", ".join(f"{quoted(name)}: {each}" for name, each in _fields(schema, named))
        return f"STRUCT<{inside}>"
    if kind == "array":
        return f"ARRAY<{_type(schema.get('items'), named)}>"
    if kind == "map":
        return f"MAP<STRING, {_type(schema.get('values'), named)}>"
    return _type(kind, named)


def _short_name(schema: dict[str, Any]) -> str:
    return str(schema.get("name", "")).rpartition(".")[2]


def _named(name: str, named: dict[str, Any]) -> str:
    if name in _PLAIN:
        return _PLAIN[name]
    short = name.rpartition(".")[2]
    if named.get(short) is not None:
        return str(named[short])
    if short in named:
        raise SqlError(f"the Avro record {name} is recursive, which Spark does not support")
    raise SqlError(f"{name} is not an Avro type")


def _union(branches: list[Any], named: dict[str, Any]) -> str:
    others = [each for each in branches if each != "null"]
    if len(others) != 1:
        raise SqlError(f"an Avro union of null and one other type is expected, not {json.dumps(branches)}")
    return _type(others[0], named)
