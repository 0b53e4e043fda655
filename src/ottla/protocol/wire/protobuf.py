"""Encodes and decodes the fields of Protocol Buffers messages, as far as Ottla needs.

Unknown fields are skipped, and fields with their default value are omitted. The codecs of the append stream call these
functions directly, because a broker reads and writes its messages for every record: they take bytes out of a message
without intermediate objects. Tests compare every message with the encoding of protoc's code for
`broker/wal_service/wal.proto`. Messages that are not on a hot path are declared with `protobuf_messages`.
"""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
_MASK = (1 << 64) - 1
_SIGN = 1 << 63

Value = int | bytes | memoryview


class MalformedMessageError(ValueError):
    """The bytes are not a valid message. The text describes the error."""


def put_varint(out: bytearray, value: int) -> None:
    """Appends a varint. A negative number takes ten bytes, as in two's complement with 64 bits."""
    value &= _MASK
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def put_int(out: bytearray, number: int, value: int, *, always: bool = False) -> None:
    """Appends an integer field. With `always`, a zero is written too, for fields with explicit presence."""
    if value or always:
        put_varint(out, number << 3)
        put_varint(out, value)


def put_bytes(out: bytearray, number: int, content: bytes | bytearray | memoryview, *, always: bool = False) -> None:
    """Appends a length-delimited field. Empty content is left out unless `always` is set."""
    if content or always:
        put_varint(out, number << 3 | DELIMITED)
        put_varint(out, len(content))
        out += content


def put_text(out: bytearray, number: int, text: str, *, always: bool = False) -> None:
    """Appends a string field. An empty text is left out unless `always` is set."""
    put_bytes(out, number, text.encode(), always=always)


def get_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Returns the varint at a position, as an unsigned 64-bit integer, and the position after it."""
    value = shift = 0
    try:
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & _MASK, at
            shift += 7
            if shift > 63:
                raise MalformedMessageError("an integer has more than 64 bits")
    except IndexError:
        raise MalformedMessageError("an integer does not end") from None


def signed(value: Value) -> int:
    """Returns the value of an int32 or int64 field."""
    if not isinstance(value, int):
        raise MalformedMessageError("a number was expected")
    return value - (_SIGN << 1) if value & _SIGN else value


def unsigned(value: Value) -> int:
    """Returns the value of an unsigned integer, boolean or enumeration field."""
    if not isinstance(value, int):
        raise MalformedMessageError("a number was expected")
    return value


def content(value: Value) -> bytes:
    """Returns a copy of the value of a bytes field or a nested message."""
    return bytes(view(value))


def view(value: Value) -> bytes | memoryview:
    """Returns the value of a bytes field, without a copy if the message was a memoryview."""
    if isinstance(value, int):
        raise MalformedMessageError("bytes were expected")
    return value


def text(value: Value) -> str:
    """Returns a field's content as text. Raises MalformedMessageError if it is not UTF-8 or not length-delimited."""
    try:
        return content(value).decode()
    except UnicodeDecodeError:
        raise MalformedMessageError("a string is not UTF-8") from None


def fields(data: bytes | memoryview, at: int = 0) -> Iterator[tuple[int, Value]]:
    """Yields the number and value of each field.

    Varints are unsigned 64-bit integers. All other values are bytes, or views if `data` is a memoryview.
    """
    end = len(data)
    while at < end:
        key, at = get_varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = get_varint(data, at)
            yield number, value
            continue
        if kind == DELIMITED:
            length, at = get_varint(data, at)
        elif kind in (FIXED64, FIXED32):
            length = 8 if kind == FIXED64 else 4
        else:
            raise MalformedMessageError(f"field {number} has the unknown wire type {kind}")
        if length > end - at:
            raise MalformedMessageError(f"field {number} extends past its message")
        yield number, data[at : at + length]
        at += length
