"""Protocol Buffers messages declared as dataclasses, with integers, bytes, messages, and lists of messages.

Each field carries its number. Unknown fields are skipped and fields with their default value are omitted, as the format
requires. This takes a page of code. The protobuf package would be a dependency whose generated code and runtime must
have matching versions in every environment that Ottla is installed into.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from typing import Any, ClassVar, NamedTuple, Self

from ottla.protocol.wire.protobuf import fields, put_bytes, put_int, signed


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
        """Returns the fields by number."""
        if "_layout" not in cls.__dict__:
            cls._layout = {
                one.metadata["number"]: Field(
                    one.name, one.metadata["number"], one.metadata.get("message"), one.metadata.get("repeated", False)
                )
                for one in dataclass_fields(cls)
            }
        return cls._layout

    def encode(self) -> bytes:
        """Returns the encoded message."""
        out = bytearray()
        for number, layout in self.layout().items():
            value = getattr(self, layout.name)
            for item in value if layout.is_repeated else [value]:
                if isinstance(item, Message):
                    put_bytes(out, number, item.encode(), always=True)
                elif isinstance(item, bytes):
                    put_bytes(out, number, item)
                elif item is not None:
                    put_int(out, number, item)
        return bytes(out)

    @classmethod
    def decode(cls, encoded: bytes) -> Self:
        """Decodes a message. Raises MalformedMessageError."""
        found = cls()
        layout = cls.layout()
        for number, value in fields(encoded):
            known = layout.get(number)
            if known is None:
                continue
            if isinstance(value, int):
                setattr(found, known.name, signed(value))
            elif known.message is None:
                setattr(found, known.name, value)
            else:
                part = known.message.decode(bytes(value))
                if known.is_repeated:
                    getattr(found, known.name).append(part)
                else:
                    setattr(found, known.name, part)
        return found
