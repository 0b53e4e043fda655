"""Codecs for every Kafka message and version, compiled from kio's schema dataclasses.

kio defines the fields of each message. This module turns them into its own readers and writers, once for each entity
type. Unlike kio's, they skip unknown tagged fields (a newer client may send them), bound each array by the remaining
bytes, raise only MalformedRequest, and write about ten times as fast.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from types import NoneType
from typing import Any, NamedTuple, TypeVar, cast, get_args, get_origin

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode

from ottla.protocol.wire.primitives import MalformedRequest, Reader, Writer, decoding

Read = Callable[[Reader], Any]
Write = Callable[[Writer, Any], None]
E = TypeVar("E")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_ERROR_CODES = {int(code): code for code in ErrorCode}
_ZEROS = memoryview(bytes(16))
_NULL_ENTITY, _PRESENT_ENTITY = -1, 1


class Codec(NamedTuple):
    """Reads and writes values of one type."""

    read: Read
    write: Write
    bytes_min: int
    """The minimum size of a value, which bounds the length of arrays."""


def decode(entity_type: type[E], data: memoryview, at: int = 0) -> tuple[E, int]:
    """Decodes the entity at a position, and returns it with its end. Raises MalformedRequest."""
    reader = Reader(data, at)
    entity = decoding(codec(entity_type).read, reader)
    return cast(E, entity), reader.at


def encode(entity: object) -> bytes:
    """Encodes an entity."""
    writer = Writer()
    codec(type(entity)).write(writer, entity)
    return bytes(writer.out)


@cache
def request_type(api_key: int, version: int) -> type[Any]:
    """Returns kio's class for a request."""
    return load_request_schema(api_key, version)


@cache
def response_type(api_key: int, version: int) -> type[Any]:
    """Returns kio's class for a response."""
    return load_response_schema(api_key, version)


_CODECS: dict[Any, Codec] = {}


def codec(entity_type: Any) -> Codec:
    """Returns the codec of an entity type, compiled on first use."""
    compiled = _CODECS.get(entity_type)
    if compiled is None:
        compiled = _CODECS[entity_type] = _compile(entity_type)
    return compiled


def _compile(entity_type: Any) -> Codec:
    """Compiles the codec of an entity: its fields in order, then, in flexible versions, the tagged ones."""
    flexible = bool(entity_type.__flexible__)
    plain: list[tuple[str, Codec]] = []
    tagged: dict[int, tuple[str, Codec, object]] = {}
    for field in fields(entity_type):
        tag = field.metadata.get("tag")
        if tag is None:
            plain.append((field.name, _field_codec(field, flexible)))
        else:
            tagged[tag] = (field.name, _field_codec(field, flexible), _tagged_default(field))
    bytes_min = sum(each.bytes_min for _, each in plain) + flexible
    return Codec(
        _entity_reader(entity_type, plain, tagged, flexible),
        _entity_writer(plain, dict(sorted(tagged.items())), flexible),
        bytes_min,
    )


def _entity_reader(
    entity_type: type[Any],
    plain: list[tuple[str, Codec]],
    tagged: dict[int, tuple[str, Codec, object]],
    flexible: bool,
) -> Read:
    steps = [(name, each.read) for name, each in plain]
    tagged_reads = {tag: (name, each.read) for tag, (name, each, _) in tagged.items()}
    defaults = {name: default for name, _, default in tagged.values()}

    def read_entity(reader: Reader) -> object:
        values = defaults.copy()
        for name, read in steps:
            values[name] = read(reader)
        if flexible:
            if tagged_reads:
                _read_tagged(reader, tagged_reads, values)
            else:
                reader.skip_tagged_fields()
        return entity_type(**values)

    return read_entity


def _read_tagged(reader: Reader, known: dict[int, tuple[str, Read]], values: dict[str, object]) -> None:
    for _ in range(reader.uvarint()):
        tag = reader.uvarint()
        content = Reader(reader.take(reader.uvarint()))
        entry = known.get(tag)
        if entry is not None:
            name, read = entry
            values[name] = read(content)


def _entity_writer(
    plain: list[tuple[str, Codec]], tagged: dict[int, tuple[str, Codec, object]], flexible: bool
) -> Write:
    steps = [(name, each.write) for name, each in plain]
    tagged_writes = [(tag, name, each.write, default) for tag, (name, each, default) in tagged.items()]

    def write_entity(writer: Writer, entity: object) -> None:
        for name, write in steps:
            write(writer, getattr(entity, name))
        if tagged_writes:
            _write_tagged(writer, tagged_writes, entity)
        elif flexible:
            writer.out.append(0)

    return write_entity


def _write_tagged(writer: Writer, tagged: list[tuple[int, str, Write, object]], entity: object) -> None:
    """Writes the tagged fields that differ from their default."""
    count = 0
    section = Writer()
    for tag, name, write, default in tagged:
        value = getattr(entity, name)
        if value == default:
            continue
        count += 1
        content = Writer()
        write(content, value)
        section.uvarint(tag)
        section.uvarint(len(content.out))
        section.out += content.out
    writer.uvarint(count)
    writer.out += section.out


def _tagged_default(field: Field[Any]) -> object:
    """Returns the default in the schema; without one, Kafka's default is zero in each part."""
    if field.default is not MISSING:
        return field.default
    if is_dataclass(field.type):
        parts = {part.name: _tagged_default(part) for part in fields(field.type)}
        return cast(Any, field.type)(**parts)
    return _field_codec(field, flexible=False).read(Reader(_ZEROS))


def _field_codec(field: Field[Any], flexible: bool) -> Codec:
    """Returns the codec of a field, from its Python type and the Kafka type in its metadata."""
    type_, nullable = _without_none(field.type)
    kafka_type = field.metadata.get("kafka_type")
    if get_origin(type_) is tuple:
        item_type, _ = _without_none(get_args(type_)[0])
        item = codec(item_type) if is_dataclass(item_type) else _primitive(kafka_type, flexible, nullable=False)
        return _array(item, flexible, nullable)
    if is_dataclass(type_):
        entity = codec(type_)
        return _nullable_entity(entity) if nullable else entity
    return _primitive(kafka_type, flexible, nullable)


def _without_none(type_: Any) -> tuple[Any, bool]:
    args = get_args(type_)
    if NoneType not in args:
        return type_, False
    (inner,) = (arg for arg in args if arg is not NoneType)
    return inner, True


def _array(item: Codec, flexible: bool, nullable: bool) -> Codec:
    read_item, write_item, item_bytes_min = item.read, item.write, max(1, item.bytes_min)
    read_length = Reader.compact_array_length if flexible else Reader.array_length
    write_length = Writer.compact_array_length if flexible else Writer.array_length

    def read_array(reader: Reader) -> tuple[Any, ...] | None:
        count = read_length(reader, item_bytes_min)
        if count < 0:
            if nullable:
                return None
            raise MalformedRequest("a non-nullable array is null")
        return tuple([read_item(reader) for _ in range(count)])

    def write_array(writer: Writer, items: tuple[Any, ...] | None) -> None:
        if items is None:
            write_length(writer, -1)
            return
        write_length(writer, len(items))
        for value in items:
            write_item(writer, value)

    return Codec(read_array, write_array, 1 if flexible else 4)


def _nullable_entity(entity: Codec) -> Codec:
    def read_nullable(reader: Reader) -> object:
        return None if reader.i8() < 0 else entity.read(reader)

    def write_nullable(writer: Writer, value: object) -> None:
        if value is None:
            writer.i8(_NULL_ENTITY)
        else:
            writer.i8(_PRESENT_ENTITY)
            entity.write(writer, value)

    return Codec(read_nullable, write_nullable, 1)


def _read_bytes(reader: Reader) -> bytes:
    return bytes(reader.view())


def _read_nullable_bytes(reader: Reader) -> bytes | None:
    view = reader.nullable_view()
    return None if view is None else bytes(view)


def _read_compact_bytes(reader: Reader) -> bytes:
    return bytes(reader.compact_view())


def _read_nullable_compact_bytes(reader: Reader) -> bytes | None:
    view = reader.nullable_compact_view()
    return None if view is None else bytes(view)


def _read_error_code(reader: Reader) -> ErrorCode:
    code = _ERROR_CODES.get(reader.i16())
    if code is None:
        raise MalformedRequest("unknown error code")
    return code


def _duration(value_ms: int) -> timedelta:
    try:
        return timedelta(milliseconds=value_ms)
    except OverflowError:
        raise MalformedRequest(f"duration out of range: {value_ms} ms") from None


def _read_datetime(reader: Reader) -> datetime:
    value_ms = reader.i64()
    try:
        return _EPOCH + timedelta(milliseconds=value_ms)
    except OverflowError:
        raise MalformedRequest(f"time out of range: {value_ms} ms") from None


def _read_nullable_datetime(reader: Reader) -> datetime | None:
    if reader.data[reader.at : reader.at + 8] == b"\xff" * 8:
        reader.at += 8
        return None
    return _read_datetime(reader)


def _write_nullable_datetime(writer: Writer, value: datetime | None) -> None:
    writer.i64(-1 if value is None else (value - _EPOCH) // _MILLISECOND)


_FIXED: dict[str, Codec] = {
    "bool": Codec(Reader.boolean, Writer.boolean, 1),
    "int8": Codec(Reader.i8, Writer.i8, 1),
    "int16": Codec(Reader.i16, Writer.i16, 2),
    "uint16": Codec(Reader.u16, Writer.u16, 2),
    "int32": Codec(Reader.i32, Writer.i32, 4),
    "int64": Codec(Reader.i64, Writer.i64, 8),
    "float64": Codec(Reader.f64, Writer.f64, 8),
    "uuid": Codec(Reader.uuid, Writer.uuid, 16),
    "error_code": Codec(_read_error_code, Writer.i16, 2),
    "timedelta_i32": Codec(
        lambda reader: timedelta(milliseconds=reader.i32()),
        lambda writer, value: writer.i32(value // _MILLISECOND),
        4,
    ),
    "timedelta_i64": Codec(
        lambda reader: _duration(reader.i64()), lambda writer, value: writer.i64(value // _MILLISECOND), 8
    ),
}

_BYTES: dict[tuple[bool, bool], Codec] = {
    (False, False): Codec(_read_bytes, Writer.data, 4),
    (False, True): Codec(_read_nullable_bytes, Writer.nullable_data, 4),
    (True, False): Codec(_read_compact_bytes, Writer.compact_data, 1),
    (True, True): Codec(_read_nullable_compact_bytes, Writer.nullable_compact_data, 1),
}

_VARIABLE: dict[tuple[str, bool, bool], Codec] = {
    ("string", False, False): Codec(Reader.string, Writer.string, 2),
    ("string", False, True): Codec(Reader.nullable_string, Writer.nullable_string, 2),
    ("string", True, False): Codec(Reader.compact_string, Writer.compact_string, 1),
    ("string", True, True): Codec(Reader.nullable_compact_string, Writer.nullable_compact_string, 1),
    **{("bytes", *kind): each for kind, each in _BYTES.items()},
    **{("records", *kind): each for kind, each in _BYTES.items()},
}


def _primitive(kafka_type: str | None, flexible: bool, nullable: bool) -> Codec:
    assert kafka_type is not None
    if kafka_type == "datetime_i64":
        read = _read_nullable_datetime if nullable else _read_datetime
        return Codec(read, _write_nullable_datetime, 8)
    return _FIXED.get(kafka_type) or _VARIABLE[kafka_type, flexible, nullable]


__all__ = ["Codec", "codec", "decode", "encode", "request_type", "response_type"]
