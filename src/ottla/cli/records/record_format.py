"""Formats records for `ottla consume`, by a format string with %-fields or as JSON. Pure."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Protocol

DEFAULT_FORMAT = "%v\\n"
FIELDS_HELP = "%k key, %v value, %o offset, %p partition, %t timestamp in ms, %T in ISO 8601, %n topic, %h headers, %%"


class Record(Protocol):
    """The fields of a record that can be printed."""

    @property
    def topic(self) -> str:
        """The name of the topic."""
        ...

    @property
    def partition(self) -> int:
        """The number of the partition."""
        ...

    @property
    def offset(self) -> int:
        """The offset in the partition."""
        ...

    @property
    def timestamp_ms(self) -> int:
        """Milliseconds since the Unix epoch; -1 without a timestamp."""
        ...

    @property
    def key(self) -> bytes | None:
        """The key, or None."""
        ...

    @property
    def value(self) -> bytes | None:
        """The value; None for a tombstone."""
        ...

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]:
        """Names and values in the order in which they were produced; names may repeat."""
        ...


Part = Callable[[Record], bytes]

_FIELDS: dict[str, Part] = {
    "o": lambda record: b"%d" % record.offset,
    "p": lambda record: b"%d" % record.partition,
    "t": lambda record: b"%d" % record.timestamp_ms,
    "T": lambda record: iso_time(record.timestamp_ms).encode(),
    "n": lambda record: record.topic.encode(),
    "h": lambda record: b",".join(name.encode() + b"=" + (value or b"") for name, value in record.headers),
    "%": lambda record: b"%",
}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}


def compile_format(text: str, *, null: bytes = b"") -> Part:
    """Compiles a format string into a function that formats a record. Adds a line end if the string has none.

    `null` is printed for null keys and values. Raises ValueError, naming the unknown field.
    """
    fields = {
        **_FIELDS,
        "k": lambda record: null if record.key is None else record.key,
        "v": lambda record: null if record.value is None else record.value,
    }
    plain = re.sub(r"\\(.)", lambda found: _ESCAPES.get(found.group(1), found.group(0)), text)
    parts: list[Part] = []
    for piece in re.findall(r"%.?|[^%]+", plain, re.DOTALL):
        if not piece.startswith("%"):
            parts.append(_literal(piece.encode()))
        elif piece[1:] in fields:
            parts.append(fields[piece[1:]])
        else:
            raise ValueError(f'unknown "{piece}" in the format; the fields are {FIELDS_HELP}')
    if not plain.endswith(("\n", "\0")):
        parts.append(_literal(b"\n"))
    return lambda record: b"".join([part(record) for part in parts])


def _literal(text: bytes) -> Part:
    return lambda record: text


def to_json_line(record: Record) -> bytes:
    """Formats a record as one line of JSON."""
    entry = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": json_bytes(record.key),
        "value": json_bytes(record.value),
        "headers": [[name, json_bytes(value)] for name, value in record.headers],
    }
    return json.dumps(entry, ensure_ascii=False).encode() + b"\n"


def json_bytes(data: bytes | None) -> Any:
    """Returns text as a string, and other bytes as {"base64": ...}."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def iso_time(timestamp_ms: int) -> str:
    """Formats a time in ISO 8601."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
