"""Encodes the records of `__consumer_offsets` in Kafka's binary format, so that Kafka's tools can read our logs and we
can read Kafka's.

A key begins with the number of its kind, a value with its version. Offsets and generations are written in version 3
(1 for an offset with its own retention), as Kafka does, and read in all versions. Unknown tagged fields are skipped:
they are how Kafka extends these formats.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ottla.machines.fields import FieldReader, FieldWriter, MalformedError
from ottla.machines.groups import consumer_encoding
from ottla.machines.groups.records import (
    NO_TIME,
    ClassicGeneration,
    ClassicMember,
    ClassicRecord,
    CommittedOffset,
    OffsetRecord,
    Record,
    Unknown,
    Unreadable,
)

OFFSET_KEYS = (0, 1)
OFFSET_KEY = 1
CLASSIC_KEY = 2

VERSION = 3
VERSION_WITH_EXPIRY = 1
VERSION_MAX = 4
FIRST_FLEXIBLE = 4


def encode(record: Record) -> tuple[bytes, bytes | None]:
    """Returns the key and the value of a record."""
    match record:
        case OffsetRecord():
            return _offset_key(record), None if record.value is None else _offset_value(record.value)
        case ClassicRecord():
            return _classic_key(record), None if record.value is None else _classic_value(record.value)
        case _:
            return consumer_encoding.encode(record)


def decode(key: bytes, value: bytes | None) -> Record | Unknown | Unreadable:
    """Decodes a record. Never raises: a record that cannot be used is Unknown or Unreadable."""
    reader = FieldReader(key)
    kind = None
    try:
        kind = reader.int16()
        if kind in OFFSET_KEYS:
            return _read_offset(reader, value)
        if kind == CLASSIC_KEY:
            return _read_classic(reader, value)
        if kind in consumer_encoding.KEYS:
            return consumer_encoding.decode(kind, reader, value)
        return Unknown(kind)
    except MalformedError as error:
        what = "a key" if kind is None else f"a record with a key of kind {kind}"
        return Unreadable(f"{what}: {error}")


def _offset_key(record: OffsetRecord) -> bytes:
    writer = FieldWriter()
    writer.int16(OFFSET_KEY)
    writer.string(record.group)
    writer.string(record.topic)
    writer.int32(record.partition)
    return writer.done()


def _offset_value(value: CommittedOffset) -> bytes:
    writer = FieldWriter()
    if value.expires_ms == NO_TIME:
        writer.int16(VERSION)
        writer.int64(value.offset)
        writer.int32(value.leader_epoch)
        writer.string(value.metadata)
        writer.int64(value.committed_ms)
    else:
        writer.int16(VERSION_WITH_EXPIRY)
        writer.int64(value.offset)
        writer.string(value.metadata)
        writer.int64(value.committed_ms)
        writer.int64(value.expires_ms)
    return writer.done()


def _read_offset(reader: FieldReader, value: bytes | None) -> OffsetRecord:
    group, topic, partition = reader.string(), reader.string(), reader.int32()
    reader.end()
    return OffsetRecord(group, topic, partition, _read_value(value, _read_offset_fields))


def _read_offset_fields(reader: FieldReader, version: int) -> CommittedOffset:
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else -1
    metadata = reader.string()
    committed_ms = reader.int64()
    expires_ms = reader.int64() if version == 1 else NO_TIME
    return CommittedOffset(offset, leader_epoch, metadata, committed_ms, expires_ms)


def _classic_key(record: ClassicRecord) -> bytes:
    writer = FieldWriter()
    writer.int16(CLASSIC_KEY)
    writer.string(record.group)
    return writer.done()


def _classic_value(value: ClassicGeneration) -> bytes:
    writer = FieldWriter()
    writer.int16(VERSION)
    writer.string(value.protocol_type)
    writer.int32(value.generation)
    writer.string(value.protocol)
    writer.string(value.leader)
    writer.int64(value.since_ms)
    writer.array(value.members, lambda member: _write_member(writer, member))
    return writer.done()


def _write_member(writer: FieldWriter, member: ClassicMember) -> None:
    writer.string(member.member_id)
    writer.string(member.instance_id)
    writer.string(member.client_id)
    writer.string(member.client_host)
    writer.int32(member.rebalance_timeout_ms)
    writer.int32(member.session_timeout_ms)
    writer.bytes_(member.subscription)
    writer.bytes_(member.assignment)


def _read_classic(reader: FieldReader, value: bytes | None) -> ClassicRecord:
    group = reader.string()
    reader.end()
    return ClassicRecord(group, _read_value(value, _read_classic_fields))


def _read_classic_fields(reader: FieldReader, version: int) -> ClassicGeneration:
    protocol_type, generation = reader.string(), reader.int32()
    protocol, leader = reader.nullable_string(), reader.nullable_string()
    since_ms = reader.int64() if version >= 2 else NO_TIME
    members = reader.array(lambda: _read_member(reader, version))
    return ClassicGeneration(protocol_type, generation, protocol, leader, since_ms, members)


def _read_member(reader: FieldReader, version: int) -> ClassicMember:
    member_id = reader.string()
    instance_id = reader.nullable_string() if version >= 3 else None
    client_id, client_host = reader.string(), reader.string()
    rebalance_timeout_ms = reader.int32() if version >= 1 else -1
    session_timeout_ms = reader.int32()
    if rebalance_timeout_ms == -1:
        rebalance_timeout_ms = session_timeout_ms
    subscription, assignment = reader.bytes_(), reader.bytes_()
    reader.tags()
    return ClassicMember(
        member_id,
        instance_id,
        client_id,
        client_host,
        rebalance_timeout_ms,
        session_timeout_ms,
        subscription,
        assignment,
    )


T = TypeVar("T")


def _read_value(value: bytes | None, read: Callable[[FieldReader, int], T]) -> T | None:
    if value is None:
        return None
    reader = FieldReader(value)
    version = reader.int16()
    if not 0 <= version <= VERSION_MAX:
        raise MalformedError(f"value version {version} is not supported, only 0 to {VERSION_MAX}")
    reader.flexible = version >= FIRST_FLEXIBLE
    found = read(reader, version)
    reader.tags()
    reader.end()
    return found
