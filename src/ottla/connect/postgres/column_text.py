"""Formats columns of JSON values as PostgreSQL array literals: one parameter per column, for any number of rows.
Pure."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any

ColumnText = Callable[[Sequence[Any]], str]
_WHOLE = frozenset({"smallint", "integer", "bigint", "oid"})
_OWN_DELIMITER = "box"
"""The only type whose arrays are not separated by commas."""


def parameter_type(kind: str) -> str:
    """Returns the type of a column's parameter. Array columns are sent as text and cast row by row."""
    return "text[]" if needs_cast(kind) else f"{kind}[]"


def needs_cast(kind: str) -> bool:
    """Returns whether values of this type are sent as text and cast in the statement."""
    return kind.endswith("[]") or kind == _OWN_DELIMITER


def column_text(kind: str) -> ColumnText:
    """Returns the function that formats a column of this type."""
    if kind in _WHOLE:
        return _whole_numbers
    if kind == "bytea":
        return _bytes
    if kind.endswith("[]"):
        element = kind.removesuffix("[]")
        return lambda values: _quoted([value_text(element, value, in_array=True) for value in values])
    return lambda values: _quoted([value if isinstance(value, str) else value_text(kind, value) for value in values])


def value_text(kind: str, value: Any, *, in_array: bool = False) -> str | None:
    """Formats one value as PostgreSQL reads it."""
    if value is None or isinstance(value, str):
        if value is not None and kind.removesuffix("[]") == "bytea" and not (in_array and value.startswith("[")):
            return "\\x" + base64.b64decode(value).hex()
        return value
    if isinstance(value, list):
        return _array_text(kind.removesuffix("[]"), value)
    if isinstance(value, bool):
        return "t" if value else "f"
    return repr(value) if isinstance(value, float) else str(value)


def _array_text(kind: str, values: list[Any]) -> str:
    parts = []
    for value in values:
        if isinstance(value, list):
            parts.append(_array_text(kind, value))
        elif isinstance(value, int) and not isinstance(value, bool):
            parts.append(str(value))
        else:
            text = value_text(kind, value)
            parts.append("NULL" if text is None else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"')
    return "{" + ",".join(parts) + "}"


def _whole_numbers(values: Sequence[Any]) -> str:
    return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"


def _bytes(values: Sequence[Any]) -> str:
    return _quoted([None if value is None else "\\x" + base64.b64decode(value).hex() for value in values])


def _quoted(values: Sequence[str | None]) -> str:
    parts = [
        "NULL"
        if value is None
        else f'"{value}"'
        if "\\" not in value and '"' not in value
        else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        for value in values
    ]
    return "{" + ",".join(parts) + "}"
