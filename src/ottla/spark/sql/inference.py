"""Infers columns from samples of JSON values. Pure.

A field has the type that fits all samples: BOOLEAN, BIGINT, DOUBLE, TIMESTAMP (if all texts are ISO 8601 times), STRUCT
or ARRAY. If the samples disagree, it is STRING, which has the JSON text of values that are not text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ottla.spark.sql.statements import Column

_ISO_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?")
_INT64 = range(-(2**63), 2**63)


@dataclass(slots=True)
class _Seen:
    """The kinds of values that a field had."""

    kinds: set[str] = field(default_factory=set)
    fields: dict[str, _Seen] = field(default_factory=dict)
    items: _Seen | None = None

    def add(self, value: Any) -> None:
        if value is None:
            return
        kind = _kind(value)
        self.kinds.add(kind)
        if kind == "STRUCT":
            for name, each in value.items():
                self.fields.setdefault(name, _Seen()).add(each)
        elif kind == "ARRAY":
            self.items = self.items or _Seen()
            for each in value:
                self.items.add(each)

    def type(self) -> str:
        if self.kinds == {"BIGINT", "DOUBLE"}:
            return "DOUBLE"
        if len(self.kinds) != 1:
            return "STRING"
        (kind,) = self.kinds
        if kind == "STRUCT":
            if not self.fields or _clash(self.fields) is not None:
                return "STRING"
            inside = ", ".join(f"{quoted(name)}: {each.type()}" for name, each in self.fields.items())
            return f"STRUCT<{inside}>"
        if kind == "ARRAY":
            return f"ARRAY<{self.items.type() if self.items is not None else 'STRING'}>"
        return kind


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int):
        return "BIGINT" if value in _INT64 else "DOUBLE"
    if isinstance(value, float):
        return "DOUBLE"
    if isinstance(value, dict):
        return "STRUCT"
    if isinstance(value, list):
        return "ARRAY"
    return "TIMESTAMP" if _ISO_TIME.fullmatch(value) else "STRING"


@dataclass(frozen=True, slots=True)
class InferredSchema:
    """The inferred columns."""

    columns: tuple[Column, ...]
    """Empty if no sample is a JSON object."""
    fitting: int
    """The number of samples that are JSON objects."""
    clash: tuple[str, str] | None = None
    """Two fields whose names differ only in case, which Spark cannot distinguish."""


def infer_columns(values: Iterable[bytes | None]) -> InferredSchema:
    """Infers columns from the values that are JSON objects; the others are ignored."""
    seen, fitting = _Seen(), 0
    for value in values:
        found = json_object(value)
        if found is not None:
            seen.add(found)
            fitting += 1
    columns = tuple(Column(name, each.type()) for name, each in seen.fields.items() if name)
    return InferredSchema(columns, fitting, _clash(seen.fields))


def json_object(value: bytes | None) -> dict[str, Any] | None:
    """Parses a JSON object; None if the value is not one."""
    if value is None:
        return None
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):  # not UTF-8, or not JSON
        return None
    return found if isinstance(found, dict) else None


def _clash(names: Iterable[str]) -> tuple[str, str] | None:
    first: dict[str, str] = {}
    for name in names:
        other = first.setdefault(name.lower(), name)
        if other != name:
            return other, name
    return None


def quoted(name: str) -> str:
    """Returns the name in backticks, as Spark's SQL quotes it."""
    return "`" + name.replace("`", "``") + "`"


def schema_text(columns: Iterable[Column]) -> str:
    """Returns the columns as Spark's DDL."""
    return ", ".join(f"{quoted(column.name)} {column.type}" for column in columns)
