"""Readers and writers of the primitive fields of Kafka's binary formats.

Reading is strict: a field that does not fit raises an error that says what is wrong. The records of
`__consumer_offsets` and `__transaction_state` consist of these fields, and so do the subscriptions that classic
consumers embed in the former.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar
from uuid import UUID

T = TypeVar("T")


class MalformedError(Exception):
    """Raised for bytes that do not have the expected format. Callers that decode a record or a subscription
    catch it."""


class FieldReader:
    """Reads one message. If `flexible` is set, lengths are varints and structures end with tagged fields."""

    def __init__(self, data: bytes, *, flexible: bool = False) -> None:
        self._data = data
        self._at = 0
        self.flexible = flexible

    def take(self, size: int) -> bytes:
        """Reads `size` bytes. Raises MalformedError if fewer are left."""
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise MalformedError(f"{size} bytes expected at {self._at}, {len(self._data) - self._at} are left")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def int8(self) -> int:
        """Reads a signed 8-bit integer. Raises MalformedError at the end."""
        return self._number(">b", 1)

    def int16(self) -> int:
        """Reads a signed 16-bit integer. Raises MalformedError at the end."""
        return self._number(">h", 2)

    def int32(self) -> int:
        """Reads a signed 32-bit integer. Raises MalformedError at the end."""
        return self._number(">i", 4)

    def int64(self) -> int:
        """Reads a signed 64-bit integer. Raises MalformedError at the end."""
        return self._number(">q", 8)

    def uuid(self) -> UUID:
        """Reads a UUID of 16 bytes."""
        return UUID(bytes=self.take(16))

    def varint(self) -> int:
        """Reads an unsigned varint."""
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                break
            shift += 7
            if shift > 28:
                raise MalformedError(f"a varint of more than five bytes ends at {self._at}")
        return value

    def string(self) -> str:
        """Reads a string that must not be null. Raises MalformedError if it is, or is not UTF-8."""
        text = self.nullable_string()
        if text is None:
            raise MalformedError(f"a string that must not be null is null before {self._at}")
        return text

    def nullable_string(self) -> str | None:
        """Reads a string or null. Raises MalformedError if it is not UTF-8."""
        length = self.varint() - 1 if self.flexible else self.int16()
        if length == -1:
            return None
        try:
            return self.take(length).decode()
        except UnicodeDecodeError as error:
            raise MalformedError(f"a string before {self._at} is not UTF-8: {error.reason}") from None

    def bytes_(self) -> bytes:
        """Reads bytes that must not be null. Raises MalformedError if they are."""
        length = self.varint() - 1 if self.flexible else self.int32()
        if length < 0:
            raise MalformedError(f"bytes that must not be null are null before {self._at}")
        return self.take(length)

    def array(self, read: Callable[[], T]) -> tuple[T, ...]:
        """Reads an array that must not be null, calling `read` for each element. Raises MalformedError if it is."""
        found = self.nullable_array(read)
        if found is None:
            raise MalformedError(f"an array that must not be null is null before {self._at}")
        return found

    def nullable_array(self, read: Callable[[], T]) -> tuple[T, ...] | None:
        """Reads an array or null. Raises MalformedError if it has more elements than bytes are left."""
        length = self.varint() - 1 if self.flexible else self.int32()
        if length == -1:
            return None
        if not 0 <= length <= len(self._data) - self._at:
            raise MalformedError(f"an array of {length} entries in {len(self._data) - self._at} bytes")
        return tuple(read() for _ in range(length))

    def tags(self) -> dict[int, bytes]:
        """Reads tagged fields; returns none if the version has no tagged fields."""
        if not self.flexible:
            return {}
        found = {}
        for _ in range(self.varint()):
            tag = self.varint()
            found[tag] = self.take(self.varint())
        return found

    def end(self) -> None:
        """Raises MalformedError if bytes are left over."""
        if self._at != len(self._data):
            raise MalformedError(f"{len(self._data) - self._at} unexpected bytes at the end")

    def _number(self, layout: str, size: int) -> int:
        number: int = struct.unpack(layout, self.take(size))[0]
        return number


class FieldWriter:
    """Writes one message; the counterpart of FieldReader."""

    def __init__(self, *, flexible: bool = False) -> None:
        self._parts: list[bytes] = []
        self.flexible = flexible

    def int8(self, value: int) -> None:
        """Writes a signed 8-bit integer."""
        self._parts.append(struct.pack(">b", value))

    def int16(self, value: int) -> None:
        """Writes a signed 16-bit integer."""
        self._parts.append(struct.pack(">h", value))

    def int32(self, value: int) -> None:
        """Writes a signed 32-bit integer."""
        self._parts.append(struct.pack(">i", value))

    def int64(self, value: int) -> None:
        """Writes a signed 64-bit integer."""
        self._parts.append(struct.pack(">q", value))

    def uuid(self, value: UUID) -> None:
        """Writes a UUID as 16 bytes."""
        self._parts.append(value.bytes)

    def varint(self, value: int) -> None:
        """Writes an unsigned varint. The value must not be negative."""
        out = bytearray()
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)
        self._parts.append(bytes(out))

    def string(self, text: str | None) -> None:
        """Writes a string or null."""
        data = None if text is None else text.encode()
        if self.flexible:
            self.varint(0 if data is None else len(data) + 1)
        else:
            self.int16(-1 if data is None else len(data))
        self._parts.append(data or b"")

    def bytes_(self, data: bytes) -> None:
        """Writes the length, then the bytes."""
        self._length(len(data))
        self._parts.append(data)

    def array(self, values: Iterable[T] | None, write: Callable[[T], None]) -> None:
        """Writes the length (that of null for None), then calls `write` for each element."""
        listed = None if values is None else list(values)
        self._length(-1 if listed is None else len(listed))
        for value in listed or ():
            write(value)

    def tags(self, values: Mapping[int, bytes] | None = None) -> None:
        """Writes tagged fields in the order of their numbers; nothing unless the message is flexible."""
        if not self.flexible:
            return
        self.varint(len(values or {}))
        for tag, data in sorted((values or {}).items()):
            self.varint(tag)
            self.varint(len(data))
            self._parts.append(data)

    def done(self) -> bytes:
        """Returns everything written so far."""
        return b"".join(self._parts)

    def _length(self, length: int) -> None:
        if self.flexible:
            self.varint(length + 1)
        else:
            self.int32(length)
