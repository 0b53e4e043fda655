"""The subset of Protocol Buffers that etcd's messages need: integers, bytes, messages, and lists of messages.

A message is a dataclass whose fields carry etcd's field numbers. Unknown fields are skipped and fields with their
default value are omitted, as the format requires. This is a page of code. The protobuf package would be a dependency
whose generated code and runtime have to match in version in every environment that Ottla is installed into.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple, Self

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
_INT64_BITS = 64


class Field(NamedTuple):
    """The layout of one field of a message."""

    name: str
    number: int
    message: type[Message] | None
    is_repeated: bool


def integer(number: int) -> Any:
    """Declares an integer field, also for booleans and enumerations."""
    return field(default=0, metadata={"number": number})


def data(number: int) -> Any:
    """Declares a bytes field."""
    return field(default=b"", metadata={"number": number})


def message(number: int, kind: type[Message]) -> Any:
    """Declares a field with a nested message."""
    return field(default=None, metadata={"number": number, "message": kind})


def repeated(number: int, kind: type[Message]) -> Any:
    """Declares a field with a list of messages."""
    return field(default_factory=list, metadata={"number": number, "message": kind, "repeated": True})


@dataclass
class Message:
    """The base class of messages."""

    _layout: ClassVar[dict[int, Field]]

    @classmethod
    def layout(cls) -> dict[int, Field]:
        if "_layout" not in cls.__dict__:
            cls._layout = {
                one.metadata["number"]: Field(
                    one.name, one.metadata["number"], one.metadata.get("message"), one.metadata.get("repeated", False)
                )
                for one in fields(cls)
            }
        return cls._layout

    def encode(self) -> bytes:
        out = bytearray()
        for number, layout in self.layout().items():
            value = getattr(self, layout.name)
            for item in value if layout.is_repeated else [value]:
                if isinstance(item, Message):
                    _write_delimited(out, number, item.encode())
                elif isinstance(item, bytes):
                    if item:
                        _write_delimited(out, number, item)
                elif item:
                    _write_varint(out, number << 3 | VARINT)
                    _write_varint(out, item)
        return bytes(out)

    @classmethod
    def decode(cls, encoded: bytes) -> Self:
        found = cls()
        layout = cls.layout()
        for number, value in _read_fields(encoded):
            known = layout.get(number)
            if known is None:
                continue
            if known.message is not None and isinstance(value, bytes):
                part = known.message.decode(value)
                if known.is_repeated:
                    getattr(found, known.name).append(part)
                else:
                    setattr(found, known.name, part)
            else:
                setattr(found, known.name, value)
        return found


def _write_delimited(out: bytearray, number: int, content: bytes) -> None:
    _write_varint(out, number << 3 | DELIMITED)
    _write_varint(out, len(content))
    out += content


def _write_varint(out: bytearray, value: int) -> None:
    value &= (1 << _INT64_BITS) - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _read_fields(encoded: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields the number and value of each field; a value is a signed integer or bytes. Raises ValueError if
    malformed."""
    position = 0
    while position < len(encoded):
        key, position = _read_varint(encoded, position)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, position = _read_varint(encoded, position)
            yield number, value - (1 << _INT64_BITS) if value >> (_INT64_BITS - 1) else value
            continue
        if kind == DELIMITED:
            length, position = _read_varint(encoded, position)
        elif kind in (FIXED64, FIXED32):
            length = 8 if kind == FIXED64 else 4
        else:
            raise ValueError(f"unknown kind {kind} of field {number}")
        content = encoded[position : position + length]
        if len(content) != length:
            raise ValueError(f"field {number} ends too early")
        position += length
        yield number, content


def _read_varint(encoded: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(encoded):
            break
        byte = encoded[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("an integer does not end")
