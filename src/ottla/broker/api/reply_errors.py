"""Counts the error codes in a typed reply: at the top level, and for each item of the reply."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple, get_args, get_origin

if TYPE_CHECKING:
    from ottla.broker.request_meters import RequestMeters

ERROR_FIELDS = frozenset(("error_code", "partition_error_code"))
"""The names of error codes in replies. AddPartitionsToTxn has the second. `topic_config_error_code` of CreateTopics is
not an error of the request: it says why the reply has no settings."""


class ErrorPlaces(NamedTuple):
    """The fields of a type that hold error codes."""

    codes: tuple[str, ...]
    """Names of the error codes of the type itself."""
    parts: tuple[tuple[str, ErrorPlaces], ...]
    """Fields with lists of items that have error codes, directly or in nested fields."""


def count_errors(response: object, api_key: int, meters: RequestMeters) -> None:
    """Adds the error codes of a reply to the meters."""
    kind: Any = type(response)
    _count(response, error_places(kind), api_key, meters)


def _count(thing: Any, places: ErrorPlaces, api_key: int, meters: RequestMeters) -> None:
    for name in places.codes:
        meters.note_error(api_key, getattr(thing, name))
    for name, inner in places.parts:
        for each in getattr(thing, name) or ():
            _count(each, inner, api_key, meters)


@cache
def error_places(type_: Any) -> ErrorPlaces:
    """Returns the error fields of a response type."""
    found = [(field.name, _item_places(field.type)) for field in fields(type_)]
    codes = tuple(field.name for field in fields(type_) if field.name in ERROR_FIELDS)
    return ErrorPlaces(codes, tuple((name, places) for name, places in found if places is not None))


def _item_places(type_: Any) -> ErrorPlaces | None:
    """Returns the error fields of the items in a list type, or None if there are none."""
    for each in (type_, *(inner for inner in get_args(type_) if inner is not NoneType)):
        if get_origin(each) is tuple and is_dataclass(get_args(each)[0]):
            item: Any = get_args(each)[0]
            places = error_places(item)
            return places if places.codes or places.parts else None
    return None
