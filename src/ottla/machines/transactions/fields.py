"""The few primitive fields of which records of `__transaction_state` are made, read strictly.

Version 0 of a value has lengths of fixed size; in the flexible version 1 they are varints, one more than the length,
and structures end with tagged fields.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")

VARINT_SHIFT_MAX = 28


class MalformedError(Exception):
    """Bytes that are not what they should be. Caught where a record is decoded."""


class FieldReader:
    def __init__(self, data: bytes, *, flexible: bool = False) -> None:
        self._data = data
        self._at = 0
        self.flexible = flexible

    def number(self, layout: str) -> int:
        """By a letter of `struct`: b, h, i or q."""
        value: int = struct.unpack(">" + layout, self._take(struct.calcsize(">" + layout)))[0]
        return value

    def string(self) -> str:
        length = self._varint() - 1 if self.flexible else self.number("h")
        if length < 0:
            raise MalformedError(f"a string that must not be null is null before {self._at}")
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as error:
            raise MalformedError(f"a string before {self._at} is not UTF-8: {error.reason}") from None

    def array(self, read: Callable[[], T]) -> tuple[T, ...] | None:
        length = self._varint() - 1 if self.flexible else self.number("i")
        if length == -1:
            return None
        if not 0 <= length <= len(self._data) - self._at:
            raise MalformedError(f"an array of {length} entries in {len(self._data) - self._at} bytes")
        return tuple(read() for _ in range(length))

    def tags(self) -> dict[int, bytes]:
        """Nothing where the version has none."""
        if not self.flexible:
            return {}
        found = {}
        for _ in range(self._varint()):
            tag = self._varint()
            found[tag] = self._take(self._varint())
        return found

    def end(self) -> None:
        if self._at != len(self._data):
            raise MalformedError(f"{len(self._data) - self._at} bytes too many")

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if not byte & 0x80:
                return value
            shift += 7
            if shift > VARINT_SHIFT_MAX:
                raise MalformedError(f"a varint of more than five bytes ends at {self._at}")

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise MalformedError(f"{size} bytes wanted at {self._at}, {len(self._data) - self._at} are there")
        taken = self._data[self._at : end]
        self._at = end
        return taken


class FieldWriter:
    """Always of the flexible version, but for keys, which have none."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def number(self, layout: str, value: int) -> None:
        self._parts.append(struct.pack(">" + layout, value))

    def fixed_string(self, text: str) -> None:
        """With a length of fixed size, as in a key."""
        data = text.encode()
        self.number("h", len(data))
        self._parts.append(data)

    def string(self, text: str) -> None:
        data = text.encode()
        self._varint(len(data) + 1)
        self._parts.append(data)

    def array(self, values: Iterable[T] | None, write: Callable[[T], None]) -> None:
        listed = None if values is None else list(values)
        self._varint(0 if listed is None else len(listed) + 1)
        for value in listed or ():
            write(value)

    def tags(self, values: Mapping[int, bytes]) -> None:
        self._varint(len(values))
        for tag, data in sorted(values.items()):
            self._varint(tag)
            self._varint(len(data))
            self._parts.append(data)

    def done(self) -> bytes:
        return b"".join(self._parts)

    def _varint(self, value: int) -> None:
        out = bytearray()
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)
        self._parts.append(bytes(out))
