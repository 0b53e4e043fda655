"""The primitive types of the Kafka protocol, read from a memoryview and written to a bytearray.

They exist in two encodings: legacy (16- and 32-bit lengths) and the compact one of flexible versions (lengths as
unsigned varints, plus one so that zero means null). A length is compared with the remaining bytes before anything is
allocated for it, so a hostile frame costs no more memory than it has bytes.

The methods of `Reader` and `Writer` double as field codecs: `ottla.protocol.wire.schema` uses `Reader.i32` itself as a
function.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from struct import error as StructError  # noqa: N812 - the class has a lower-case name
from typing import Any, TypeVar
from uuid import UUID

T = TypeVar("T")

I8 = Struct(">b")
I16 = Struct(">h")
U16 = Struct(">H")
I32 = Struct(">i")
U32 = Struct(">I")
I64 = Struct(">q")
F64 = Struct(">d")

NO_UUID = UUID(int=0)
_NO_UUID_BYTES = NO_UUID.bytes


class MalformedRequest(Exception):  # noqa: N818 - a name that others rely on
    """The bytes are not what they claim to be. The connection they came from can no longer be trusted."""


DECODE_ERRORS = (StructError, IndexError, UnicodeDecodeError)
"""The errors that the primitives raise at the end of the data. Each entry point converts them to MalformedRequest, so
that single fields need no checks of their own."""


class Reader:
    """A position in a message. Reading past the end raises one of DECODE_ERRORS or MalformedRequest."""

    __slots__ = ("at", "data")

    def __init__(self, data: memoryview, at: int = 0) -> None:
        self.data = data
        self.at = at

    @property
    def remaining(self) -> int:
        """The number of bytes that are not read yet."""
        return len(self.data) - self.at

    def boolean(self) -> bool:
        """Reads one byte; any value but 0 is true."""
        value = self.data[self.at]
        self.at += 1
        return value != 0

    def i8(self) -> int:
        """Reads a signed 8-bit integer."""
        value: int = I8.unpack_from(self.data, self.at)[0]
        self.at += 1
        return value

    def i16(self) -> int:
        """Reads a signed 16-bit integer."""
        value: int = I16.unpack_from(self.data, self.at)[0]
        self.at += 2
        return value

    def u16(self) -> int:
        """Reads an unsigned 16-bit integer."""
        value: int = U16.unpack_from(self.data, self.at)[0]
        self.at += 2
        return value

    def i32(self) -> int:
        """Reads a signed 32-bit integer."""
        value: int = I32.unpack_from(self.data, self.at)[0]
        self.at += 4
        return value

    def i64(self) -> int:
        """Reads a signed 64-bit integer."""
        value: int = I64.unpack_from(self.data, self.at)[0]
        self.at += 8
        return value

    def f64(self) -> float:
        """Reads a 64-bit floating-point number."""
        value: float = F64.unpack_from(self.data, self.at)[0]
        self.at += 8
        return value

    def uvarint(self) -> int:
        """Reads an unsigned varint of at most 32 bits."""
        return self._varint(28)

    def uvarlong(self) -> int:
        """Reads an unsigned varint of up to 64 bits."""
        return self._varint(63)

    def varint(self) -> int:
        """Reads a signed (zigzag) varint."""
        value = self._varint(28)
        return (value >> 1) ^ -(value & 1)

    def varlong(self) -> int:
        """Reads a zigzag varint of up to 64 bits."""
        value = self._varint(63)
        return (value >> 1) ^ -(value & 1)

    def _varint(self, shift_max: int) -> int:
        data, at = self.data, self.at
        value = byte = data[at]
        if byte >= 0x80:
            value &= 0x7F
            shift = 7
            while byte >= 0x80:
                if shift > shift_max:
                    raise MalformedRequest("a varint is too long")
                at += 1
                byte = data[at]
                value |= (byte & 0x7F) << shift
                shift += 7
            if shift > shift_max and value.bit_length() > (32 if shift_max == 28 else 64):
                raise MalformedRequest("a varint is too large")
        self.at = at + 1
        return value

    def uuid(self) -> UUID | None:
        """Reads a UUID; the zero id means None."""
        raw = bytes(self.take(16))
        return None if raw == _NO_UUID_BYTES else UUID(bytes=raw)

    def take(self, length: int) -> memoryview:
        """Returns the next `length` bytes without copying."""
        start = self.at
        end = start + length
        if length < 0 or end > len(self.data):
            raise MalformedRequest(f"{length} bytes expected, {len(self.data) - start} are left")
        self.at = end
        return self.data[start:end]

    def string(self) -> str:
        """Reads a STRING: a 16-bit length, then UTF-8."""
        return str(self.take(self.i16()), "utf-8")

    def nullable_string(self) -> str | None:
        """Reads a NULLABLE_STRING; length -1 means None."""
        length = self.i16()
        return None if length == -1 else str(self.take(length), "utf-8")

    def compact_string(self) -> str:
        """Reads a COMPACT_STRING: the length plus one as a varint, then UTF-8."""
        return str(self.take(self.uvarint() - 1), "utf-8")

    def nullable_compact_string(self) -> str | None:
        """Reads a COMPACT_NULLABLE_STRING; 0 in place of the length plus one means None."""
        length = self.uvarint()
        return None if length == 0 else str(self.take(length - 1), "utf-8")

    def view(self) -> memoryview:
        """Reads bytes with a 32-bit length, as a slice of the message."""
        return self.take(self.i32())

    def nullable_view(self) -> memoryview | None:
        """Reads NULLABLE_BYTES as a view of the message, without a copy; length -1 means None."""
        length = self.i32()
        return None if length == -1 else self.take(length)

    def compact_view(self) -> memoryview:
        """Reads COMPACT_BYTES as a view of the message, without a copy."""
        return self.take(self.uvarint() - 1)

    def nullable_compact_view(self) -> memoryview | None:
        """Reads COMPACT_NULLABLE_BYTES as a view of the message; None if null."""
        length = self.uvarint()
        return None if length == 0 else self.take(length - 1)

    def array_length(self, item_bytes_min: int = 1) -> int:
        """Reads the length of an array; -1 for a null array. A length that cannot fit is rejected."""
        return self._checked_count(self.i32(), item_bytes_min)

    def compact_array_length(self, item_bytes_min: int = 1) -> int:
        """Reads the length of a COMPACT_ARRAY; -1 for null. An array larger than the message is malformed."""
        return self._checked_count(self.uvarint() - 1, item_bytes_min)

    def _checked_count(self, count: int, item_bytes_min: int) -> int:
        if count < -1 or count * item_bytes_min > len(self.data) - self.at:
            raise MalformedRequest(f"an array of {count} items does not fit into {self.remaining} bytes")
        return count

    def skip_tagged_fields(self) -> None:
        """Skips tagged fields that the reader does not know or need."""
        if self.data[self.at] == 0:
            self.at += 1
            return
        for _ in range(self.uvarint()):
            self.uvarint()
            self.take(self.uvarint())


class Writer:
    """Appends values to the bytearray `out`."""

    __slots__ = ("out",)

    def __init__(self) -> None:
        self.out = bytearray()

    def boolean(self, value: bool) -> None:
        """Writes one byte, 1 or 0."""
        self.out.append(1 if value else 0)

    def i8(self, value: int) -> None:
        """Writes a signed 8-bit integer."""
        self.out += I8.pack(value)

    def i16(self, value: int) -> None:
        """Writes a signed 16-bit integer."""
        self.out += I16.pack(value)

    def u16(self, value: int) -> None:
        """Writes an unsigned 16-bit integer."""
        self.out += U16.pack(value)

    def i32(self, value: int) -> None:
        """Writes a signed 32-bit integer."""
        self.out += I32.pack(value)

    def i64(self, value: int) -> None:
        """Writes a signed 64-bit integer."""
        self.out += I64.pack(value)

    def f64(self, value: float) -> None:
        """Writes a 64-bit floating-point number."""
        self.out += F64.pack(value)

    def uvarint(self, value: int) -> None:
        """Writes an unsigned varint. The value must not be negative."""
        out = self.out
        while value >= 0x80:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)

    uvarlong = uvarint

    def varint(self, value: int) -> None:
        """Writes a zigzag varint of up to 32 bits."""
        self.uvarint((value << 1) ^ (value >> 31))

    def varlong(self, value: int) -> None:
        """Writes a zigzag varint of up to 64 bits."""
        self.uvarint((value << 1) ^ (value >> 63))

    def uuid(self, value: UUID | None) -> None:
        """Writes 16 bytes; zeros for None."""
        self.out += _NO_UUID_BYTES if value is None else value.bytes

    def string(self, value: str) -> None:
        """Writes a STRING. Raises struct.error if it has more than 32,767 bytes."""
        raw = value.encode()
        self.out += I16.pack(len(raw))
        self.out += raw

    def nullable_string(self, value: str | None) -> None:
        """Writes a NULLABLE_STRING; length -1 for None."""
        if value is None:
            self.out += b"\xff\xff"
        else:
            self.string(value)

    def compact_string(self, value: str) -> None:
        """Writes a COMPACT_STRING: the length plus one as a varint, then UTF-8."""
        raw = value.encode()
        self.uvarint(len(raw) + 1)
        self.out += raw

    def nullable_compact_string(self, value: str | None) -> None:
        """Writes a COMPACT_NULLABLE_STRING; 0 for None."""
        if value is None:
            self.out.append(0)
        else:
            self.compact_string(value)

    def data(self, value: bytes | memoryview) -> None:
        """Writes bytes with a 32-bit length."""
        self.out += I32.pack(len(value))
        self.out += value

    def nullable_data(self, value: bytes | memoryview | None) -> None:
        """Writes NULLABLE_BYTES; length -1 for None."""
        if value is None:
            self.out += b"\xff\xff\xff\xff"
        else:
            self.data(value)

    def compact_data(self, value: bytes | memoryview) -> None:
        """Writes COMPACT_BYTES: the length plus one as a varint, then the bytes."""
        self.uvarint(len(value) + 1)
        self.out += value

    def nullable_compact_data(self, value: bytes | memoryview | None) -> None:
        """Writes COMPACT_NULLABLE_BYTES; 0 for None."""
        if value is None:
            self.out.append(0)
        else:
            self.compact_data(value)

    def array_length(self, count: int) -> None:
        """Writes the length of an array; -1 for a null array."""
        self.out += I32.pack(count)

    def compact_array_length(self, count: int) -> None:
        """Writes the length of a COMPACT_ARRAY: the count plus one as a varint."""
        self.uvarint(count + 1)

    def no_tagged_fields(self) -> None:
        """Writes an empty set of tagged fields, which ends a flexible structure."""
        self.out.append(0)


def decoding(parse: Callable[..., T], *args: Any) -> T:
    """Calls a parser and converts a read past the end to MalformedRequest."""
    try:
        return parse(*args)
    except DECODE_ERRORS as error:
        raise MalformedRequest(f"{type(error).__name__}: {error}") from None


# Functions on (data, at) for hand-written parsers: no object, and no method call per field.


def uvarint_at(data: memoryview, at: int) -> tuple[int, int]:
    """Reads an unsigned varint; returns the value and its end."""
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    second = data[at + 1]
    if second < 0x80:
        return byte & 0x7F | second << 7, at + 2
    third = data[at + 2]
    if third < 0x80:
        return byte & 0x7F | (second & 0x7F) << 7 | third << 14, at + 3
    reader = Reader(data, at)
    value = reader.uvarint()
    return value, reader.at


def compact_count_at(data: memoryview, at: int, item_bytes_min: int) -> tuple[int, int]:
    """Reads the length of an array that must not be null, bounded by the remaining bytes."""
    count, at = uvarint_at(data, at)
    count -= 1
    if count < 0 or count * item_bytes_min > len(data) - at:
        raise MalformedRequest(f"an array of {count} items does not fit into {len(data) - at} bytes")
    return count, at


def compact_string_at(data: memoryview, at: int) -> tuple[str, int]:
    """Returns the COMPACT_STRING at this position and the position after it. Raises MalformedRequest."""
    length, at = uvarint_at(data, at)
    end = at + length - 1
    if length == 0 or end > len(data):
        raise MalformedRequest(f"a string of {length - 1} bytes does not fit into the remaining {len(data) - at}")
    return str(data[at:end], "utf-8"), end


def topic_id_at(data: memoryview, at: int) -> tuple[UUID, int]:
    """Returns the topic id at this position and the position after it. Raises MalformedRequest."""
    end = at + 16
    if end > len(data):
        raise MalformedRequest("a topic id is truncated")
    return uuid_of(bytes(data[at:end])), end


def skip_tagged_fields_at(data: memoryview, at: int) -> int:
    """Returns the position after the tagged fields at this one."""
    reader = Reader(data, at)
    reader.skip_tagged_fields()
    return reader.at


_ONE_BYTE = tuple(bytes((value,)) for value in range(0x80))


def uvarint_bytes(value: int) -> bytes:
    """Returns an unsigned varint as bytes."""
    if value < 0x80:
        return _ONE_BYTE[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@lru_cache(4096)
def uuid_of(raw: bytes) -> UUID:
    """Returns a UUID, cached. Creating one costs as much as parsing the rest of a small request, and the same few
    recur."""
    return UUID(bytes=raw)


@lru_cache(4096)
def legacy_string_bytes(value: str) -> bytes:
    """Returns a STRING as bytes: a 16-bit length, then UTF-8. Cached."""
    raw = value.encode()
    return I16.pack(len(raw)) + raw


@lru_cache(4096)
def compact_string_bytes(value: str) -> bytes:
    """Returns a COMPACT_STRING as bytes: the length plus one as a varint, then UTF-8. Cached."""
    raw = value.encode()
    return uvarint_bytes(len(raw) + 1) + raw
