"""Turns the input of `ottla produce` into records, from delimited text or JSON lines. Pure."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from typing import Any, NamedTuple

Headers = tuple[tuple[str, bytes | None], ...]

JSON_FIELDS = frozenset({"key", "value", "headers", "timestamp_ms"})
JSON_IGNORED = frozenset({"topic", "partition", "offset"})
"""Fields that `ottla consume --json` prints but that the destination determines."""


class ParsedRecord(NamedTuple):
    """A record to send."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int | None = None


Parse = Callable[[bytes], ParsedRecord]
"""Parses one record. Raises ValueError for input that is not a record."""


def unescape(text: str) -> bytes:
    """Decodes backslash escapes, which make a tab or a NUL typable. Raises ValueError for an invalid escape."""
    if "\\" not in text:
        return text.encode()
    try:
        return text.encode().decode("unicode_escape").encode("latin-1")
    except UnicodeError:
        raise ValueError(f'"{text}" contains an unknown backslash escape; use \\n, \\t, \\0, \\x1f or \\\\') from None


def parse_headers(entries: list[str]) -> Headers:
    """Parses `name=value` entries. A name may repeat, as in Kafka."""
    found = []
    for entry in entries:
        name, separator, value = entry.partition("=")
        if not separator or not name:
            raise ValueError(f"a header must be NAME=VALUE, not {entry!r}")
        found.append((name, value.encode()))
    return tuple(found)


def text_parser(
    *, key_separator: bytes | None, key: bytes | None, headers: Headers, empty_is_null: bool = False
) -> Parse:
    """Returns a parser of text records: the key is before the first separator, the value after it.

    A record without a separator gets the fixed `key`, which may be None.
    """

    def parse(data: bytes) -> ParsedRecord:
        found: bytes | None = key
        value: bytes | None = data
        if key_separator is not None:
            before, separator, after = data.partition(key_separator)
            if separator:
                found, value = before, after
        if empty_is_null:
            found, value = found or None, value or None
        return ParsedRecord(found, value, headers)

    return parse


def json_parser(headers: Headers) -> Parse:
    """Returns a parser of JSON lines as `ottla consume --json` prints them. `headers` are added to each record."""

    def parse(data: bytes) -> ParsedRecord:
        try:
            entry = json.loads(data)
        except ValueError as mistake:
            raise ValueError(f"it is not JSON: {mistake}") from None
        if not isinstance(entry, dict):
            raise ValueError('it is not a JSON object such as {"key": "k", "value": "v"}')
        if unknown := sorted(set(entry) - JSON_FIELDS - JSON_IGNORED):
            raise ValueError(f'the field "{unknown[0]}" is not one of {", ".join(sorted(JSON_FIELDS))}')
        if "value" not in entry:
            raise ValueError('the field "value" is missing; use null for a record without a value')
        own = _json_headers(entry.get("headers"))
        return ParsedRecord(
            _json_data(entry.get("key")),
            _json_data(entry["value"]),
            headers + own,
            _json_time(entry.get("timestamp_ms")),
        )

    return parse


def _json_data(value: Any) -> bytes | None:
    """Returns a string as UTF-8, `{"base64": ...}` as the bytes it encodes, and any other JSON value as JSON."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and list(value) == ["base64"]:
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise ValueError(f"{json.dumps(value)} is not base64") from None
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _json_headers(value: Any) -> Headers:
    pairs = list(value.items()) if isinstance(value, dict) else value
    if pairs is None:
        return ()
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs
    ):
        raise ValueError('"headers" is neither an object nor a list of [name, value]')
    return tuple((name, _json_data(each)) for name, each in pairs)


def _json_time(value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(f'"timestamp_ms" is a number of milliseconds since 1970, not {json.dumps(value)}')
    return value
