"""Serializers of producers, deserializers of consumers, and the type checks without them.

Neither is called with None: a missing key stays missing, and a tombstone (a record without a value) stays a tombstone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla.client.consumer.types import ConsumerRecord
from ottla.client.errors import DeserializationError, SerializationError

Serializer = Callable[[Any], bytes]
Deserializer = Callable[[bytes], Any]
Convert = Callable[[ConsumerRecord], ConsumerRecord]


def to_bytes(what: str, topic: str, given: Any, serializer: Serializer | None) -> bytes | None:
    """Serializes the key or the value (`what`). Raises SerializationError, or TypeError if the result is not bytes."""
    if given is None or (serializer is None and type(given) is bytes):
        return given
    made = given
    if serializer is not None:
        try:
            made = serializer(given)
        except Exception as cause:
            raise SerializationError(topic, what, cause) from cause
    if isinstance(made, bytes | bytearray | memoryview):
        return bytes(made)  # also copies a buffer that the program may change before it is sent
    if serializer is not None:
        raise TypeError(f"the {what}_serializer returned {_kind(made)} for topic {topic!r}; it has to return bytes")
    how = f"encode it ({what}.encode())" if isinstance(made, str) else "convert it to bytes"
    raise TypeError(
        f"the {what} of a record for topic {topic!r} is {_kind(made)}; records hold bytes: "
        f"{how}, or create the producer with a {what}_serializer"
    )


def check_headers(topic: str, headers: Any) -> None:
    """Raises TypeError unless the headers are pairs of a name (str) and a value (bytes or None)."""
    if isinstance(headers, dict):
        raise TypeError(
            f"the headers of a record for topic {topic!r} are a dict; pass a list of (name, value) pairs, "
            "because a name may occur twice: list(headers.items())"
        )
    for header in headers:
        if not isinstance(header, tuple | list) or len(header) != 2:
            raise TypeError(f"a header for topic {topic!r} is {header!r}; it has to be a pair: (name, value)")
        name, value = header
        if not isinstance(name, str):
            raise TypeError(f"the name of a header for topic {topic!r} is {_kind(name)}; it has to be a str: {name!r}")
        if value is not None and not isinstance(value, bytes | bytearray | memoryview):
            raise TypeError(
                f"the header {name!r} for topic {topic!r} is {_kind(value)}; the values of headers are bytes or None: "
                "encode it"
            )


def converter(key_deserializer: Deserializer | None, value_deserializer: Deserializer | None) -> Convert | None:
    """Returns a function that deserializes a fetched record, or None if there are no deserializers."""
    if key_deserializer is None and value_deserializer is None:
        return None

    def convert(record: ConsumerRecord) -> ConsumerRecord:
        key = _from_bytes("key", record, record.key, key_deserializer)
        value = _from_bytes("value", record, record.value, value_deserializer)
        return record._replace(key=key, value=value)

    return convert


def _from_bytes(what: str, record: ConsumerRecord, data: bytes | None, deserializer: Deserializer | None) -> Any:
    if data is None or deserializer is None:
        return data
    try:
        return deserializer(data)
    except Exception as cause:
        raise DeserializationError(record.topic, record.partition, record.offset, what, data, cause) from cause


def _kind(given: Any) -> str:
    name = type(given).__name__
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"
