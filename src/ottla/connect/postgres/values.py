"""Converts PostgreSQL's text form of values to JSON, by type. Pure. docs/guides/postgres-cdc.md has the table.

The output is what Debezium writes with `decimal.handling.mode=string`, `time.precision.mode=isostring` and
`interval.handling.mode=string`: nothing is rounded, and every value can be restored.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import NamedTuple

import orjson

Encoder = Callable[[bytes], bytes]
SESSION_SETTINGS = {
    "datestyle": "ISO",
    "intervalstyle": "iso_8601",
    "timezone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "3",
    "client_encoding": "UTF8",
}
"""Settings of the sessions whose text output is parsed here."""


class TypeInfo(NamedTuple):
    """A row of pg_type."""

    oid: int
    name: str
    kind: str
    """b: base, e: enum, d: domain, c: composite, r: range."""
    element_oid: int
    """The element type of an array, otherwise 0."""
    base_oid: int
    """The base type of a domain, otherwise 0."""
    delimiter: str


def encoder_of(oid: int, types: dict[int, TypeInfo]) -> Encoder:
    """Returns the encoder of a type. Unknown types are encoded as text."""
    info = types.get(oid)
    while info is not None and info.kind == "d":
        info = types.get(info.base_oid)
    if info is None:
        return encode_text
    if info.element_oid:
        return _array_encoder(encoder_of(info.element_oid, types), info.delimiter.encode())
    return _BY_NAME.get(info.name, encode_text)


def encode_text(value: bytes) -> bytes:
    """Returns the text as a JSON string."""
    return orjson.dumps(value.decode())


def _number(value: bytes) -> bytes:
    return value


def _plain(value: bytes) -> bytes:
    """Encodes text that needs no escapes: digits, signs, letters."""
    return b'"%b"' % value


def _float(value: bytes) -> bytes:
    return b'"%b"' % value if value[-1] in b"yN" else value  # Infinity, NaN


def _bool(value: bytes) -> bytes:
    return b"true" if value == b"t" else b"false"


def _bytea(value: bytes) -> bytes:
    return b'"%b"' % base64.b64encode(bytes.fromhex(value[2:].decode()))


def _timestamp(value: bytes) -> bytes:
    if value[-1] in b"yC":  # infinity, and years before Christ
        return b'"%b"' % value
    return b'"%b"' % value.replace(b" ", b"T", 1)


def _timestamptz(value: bytes) -> bytes:
    if value[-3:] != b"+00":
        return b'"%b"' % value
    return b'"%bZ"' % value[:-3].replace(b" ", b"T", 1)


_BY_NAME: dict[str, Encoder] = {
    "int2": _number,
    "int4": _number,
    "int8": _number,
    "oid": _number,
    "float4": _float,
    "float8": _float,
    "bool": _bool,
    "numeric": _plain,
    "bytea": _bytea,
    "date": _plain,
    "time": _plain,
    "timetz": _plain,
    "timestamp": _timestamp,
    "timestamptz": _timestamptz,
    "interval": _plain,
    "uuid": _plain,
}


def _array_encoder(element: Encoder, delimiter: bytes) -> Encoder:
    tokens = re.compile(rb'"((?:[^"\\]|\\.)*)"|([^{}"%b]+)|([{}])' % re.escape(delimiter), re.DOTALL)

    def encode(value: bytes) -> bytes:
        if value[:1] != b"{":
            return encode_text(value)  # it has explicit bounds, which JSON cannot express
        if b'"' in value or b"{" in value[1:]:
            return _nested_array(value, element, tokens)
        inside = value[1:-1]
        if not inside:
            return b"[]"
        items = inside.split(delimiter)
        return b"[" + b",".join([b"null" if item == b"NULL" else element(item) for item in items]) + b"]"

    return encode


def _nested_array(value: bytes, element: Encoder, tokens: re.Pattern[bytes]) -> bytes:
    parts: list[bytes] = []
    for quoted, plain, brace in tokens.findall(value):
        if brace == b"{":
            parts.append(b"[")
            continue
        if brace:
            if parts[-1] == b",":
                parts.pop()
            parts.append(b"]")
        elif plain:
            parts.append(b"null" if plain == b"NULL" else element(plain))
        else:
            parts.append(element(_ESCAPED.sub(rb"\1", quoted) if b"\\" in quoted else quoted))
        parts.append(b",")
    parts.pop()
    return b"".join(parts)


_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)
