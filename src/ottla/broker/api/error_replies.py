"""Builds a reply that carries only an error code, for any API and version that the schema knows.

It is used where no handler can give a better answer: for an unknown API, an unsupported version, or a bug.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from types import NoneType
from typing import Any, get_args, get_origin

from kio.schema.index import api_key_map, schema_name_map

from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.wire.schema import response_type

_EMPTY: dict[str, object] = {
    "bool": False,
    "string": "",
    "bytes": b"",
    "records": b"",
    "uuid": None,
    "float64": 0.0,
    "error_code": ErrorCode.none,
    "timedelta_i32": timedelta(0),
    "timedelta_i64": timedelta(0),
    "datetime_i64": datetime(1970, 1, 1, tzinfo=UTC),
}


def error_reply(api_key: int, version: int, error: ErrorCode) -> object | None:
    """Returns the reply, or None if the schema does not know the version or its response has no field for an error."""
    name = api_key_map.get(api_key)
    if name is None or version not in schema_name_map[name]:
        return None
    type_ = response_type(api_key, version)
    if not _carries_error(type_):
        return None
    return _filled(type_, error)


def _filled(type_: Any, error: ErrorCode) -> object:
    """Puts the code into the error field; if this level has none, into one element of the first array that has one."""
    values: dict[str, object] = {}
    is_placed = any(_is_error(field) for field in fields(type_))
    for field in fields(type_):
        element = _array_element(field.type)
        if _is_error(field):
            values[field.name] = error
        elif not is_placed and element is not None and _carries_error(element):
            values[field.name] = (_filled(element, error),)
            is_placed = True
        else:
            values[field.name] = _empty(field)
    return type_(**values)


def _empty(field: Field[Any]) -> object:
    if field.default is not MISSING:
        return field.default
    if NoneType in get_args(field.type):
        return None
    if get_origin(field.type) is tuple:
        return ()
    if is_dataclass(field.type):
        return _filled(field.type, ErrorCode.none)
    return _EMPTY.get(field.metadata["kafka_type"], 0)


def _is_error(field: Field[Any]) -> bool:
    return field.metadata.get("kafka_type") == "error_code"


def _array_element(type_: Any) -> Any:
    """Returns the entity type of an array's elements, or None for any other type."""
    for candidate in (type_, *get_args(type_)):
        if get_origin(candidate) is tuple:
            element = get_args(candidate)[0]
            return element if is_dataclass(element) else None
    return None


def _carries_error(type_: Any) -> bool:
    if any(_is_error(field) for field in fields(type_)):
        return True
    elements = (_array_element(field.type) for field in fields(type_))
    return any(element is not None and _carries_error(element) for element in elements)
