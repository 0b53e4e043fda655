"""Produce (key 0), v3-13, hand-written in both directions, because it is parsed and written for every batch.

    request   transactional id, acks, timeout, topics: [name (id from v13), partitions: [partition, records]]
    response  topics: [name or id, partitions: [partition, error, base offset, log append time, log start offset (v5),
              record errors and error message (v8)]], throttle time

Versions: v9 is flexible, v13 names topics by id. Records are slices of the frame, never copied. The tagged fields of
the response (current leader, node endpoints) are skipped when read and left out when written.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from ottla.protocol.wire.primitives import (
    DECODE_ERRORS,
    I32,
    MalformedRequest,
    Reader,
    Writer,
    compact_count_at,
    compact_string_at,
    compact_string_bytes,
    legacy_string_bytes,
    skip_tagged_fields_at,
    topic_id_at,
    uvarint_at,
    uvarint_bytes,
)

Buffer = bytes | bytearray | memoryview
TopicKey = str | UUID
"""A topic's name, or from v13 its id."""

FLEXIBLE_FROM = 9
TOPIC_IDS_FROM = 13

_ACKS_TIMEOUT = Struct(">hi")
_RESULT_V3 = Struct(">ihqq")
_RESULT_V5 = Struct(">ihqqq")
_RESULT_V8 = Struct(">ihqqq6s")
_RESULT_V9 = Struct(">ihqqq3s")
_NO_ERRORS_LEGACY = b"\0\0\0\0\xff\xff"
_NO_ERRORS_FLEXIBLE = b"\x01\0\0"
"""No record errors, no message, no tagged fields."""
_ONE_RESULT = Struct(">ihqqq9s")
_AFTER_ONE_RESULT = _NO_ERRORS_FLEXIBLE + bytes(6)
"""After the errors: the end of the partition and of the topic, no throttling, the end of the reply."""
_NO_TAGS_THRICE = bytes(3)


class ProduceRequest(NamedTuple):
    """A parsed request."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[TopicKey, list[tuple[int, memoryview | None]]]]


class PartitionProduced(NamedTuple):
    """The result for one partition."""

    partition: int
    error: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    """-1 unless the topic stamps records with the broker's clock."""
    log_start_offset: int = -1
    record_errors: Sequence[tuple[int, str | None]] = ()
    """(index in the batch, reason) of the rejected records."""
    error_message: str | None = None


class ProduceResponse(NamedTuple):
    """A parsed response."""

    topics: list[tuple[TopicKey, list[PartitionProduced]]]
    throttle_ms: int


def parse_produce_request(body: memoryview, version: int) -> ProduceRequest:
    """Parses the body of a request. Raises MalformedRequest."""
    try:
        if version >= FLEXIBLE_FROM:
            return _parse_flexible_request(body, version)
        return _parse_legacy_request(body)
    except DECODE_ERRORS as error:
        raise MalformedRequest(f"Produce: {error}") from None


def parse_one_batch(data: memoryview, version: int) -> ProduceRequest | None:
    """Parses the most common request: one batch for one topic, no transaction, no tagged fields, in a flexible version.
    None for any other. The result is the same as on the general path, which a property test verifies."""
    with_id = version >= TOPIC_IDS_FROM
    key_end = 24 if with_id else 8 + data[8]
    if data[0] or data[7] != 2 or not 9 < key_end < 136 or data[key_end] != 2:
        return None
    (index,) = I32.unpack_from(data, key_end + 1)
    length, at = uvarint_at(data, key_end + 5)
    end = at + length - 1
    if length == 0 or data[end:] != _NO_TAGS_THRICE:
        return None
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(data, 1)
    key: TopicKey = topic_id_at(data, 8)[0] if with_id else str(data[9:key_end], "utf-8")
    return ProduceRequest(None, acks, timeout_ms, [(key, [(index, data[at:end])])])


def _parse_flexible_request(data: memoryview, version: int) -> ProduceRequest:
    request = parse_one_batch(data, version)
    if request is not None:
        return request
    transactional_id: str | None = None
    if data[0] == 0:
        at = 1
    else:
        transactional_id, at = compact_string_at(data, 0)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(data, at)
    topic_count, at = compact_count_at(data, at + 6, 3)
    topic_key_at = topic_id_at if version >= TOPIC_IDS_FROM else compact_string_at
    topics: list[tuple[TopicKey, list[tuple[int, memoryview | None]]]] = []
    for _ in range(topic_count):
        key, at = topic_key_at(data, at)
        partition_count, at = compact_count_at(data, at, 6)
        partitions = []
        for _ in range(partition_count):
            (index,) = I32.unpack_from(data, at)
            records, at = _compact_records_at(data, at + 4)
            partitions.append((index, records))
            at = at + 1 if data[at] == 0 else skip_tagged_fields_at(data, at)
        topics.append((key, partitions))
        at = at + 1 if data[at] == 0 else skip_tagged_fields_at(data, at)
    if data[at]:
        skip_tagged_fields_at(data, at)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _compact_records_at(data: memoryview, at: int) -> tuple[memoryview | None, int]:
    length, at = uvarint_at(data, at)
    if length == 0:
        return None, at
    end = at + length - 1
    if end > len(data):
        raise MalformedRequest(f"records of {length - 1} bytes do not fit into the remaining {len(data) - at}")
    return data[at:end], end


def _parse_legacy_request(data: memoryview) -> ProduceRequest:
    reader = Reader(data)
    transactional_id = reader.nullable_string()
    acks = reader.i16()
    timeout_ms = reader.i32()
    topics: list[tuple[TopicKey, list[tuple[int, memoryview | None]]]] = []
    for _ in range(reader.array_length(6)):
        name = reader.string()
        partitions = [(reader.i32(), reader.nullable_view()) for _ in range(reader.array_length(8))]
        topics.append((name, partitions))
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def encode_produce_response(
    version: int, topics: Sequence[tuple[TopicKey, Sequence[PartitionProduced]]], throttle_ms: int = 0
) -> bytes:
    """Encodes the body of a response."""
    flexible = version >= FLEXIBLE_FROM
    if flexible and not throttle_ms and len(topics) == 1 and len(topics[0][1]) == 1:
        key, (only,) = topics[0]
        if only.error_message is None and not only.record_errors:
            head = b"\x02" + topic_key_bytes(key, True) + b"\x02"
            return head + _ONE_RESULT.pack(*only[:5], _AFTER_ONE_RESULT)
    out = bytearray(uvarint_bytes(len(topics) + 1) if flexible else I32.pack(len(topics)))
    for key, partitions in topics:
        out += topic_key_bytes(key, flexible)
        out += uvarint_bytes(len(partitions) + 1) if flexible else I32.pack(len(partitions))
        for partition in partitions:
            out += _encode_result(version, partition)
        if flexible:
            out.append(0)
    out += I32.pack(throttle_ms)
    if flexible:
        out.append(0)
    return bytes(out)


def topic_key_bytes(key: TopicKey, flexible: bool) -> bytes:
    """Encodes a topic's name or id."""
    if isinstance(key, UUID):
        return key.bytes
    return compact_string_bytes(key) if flexible else legacy_string_bytes(key)


def _encode_result(version: int, result: PartitionProduced) -> bytes:
    index, error, base_offset, append_time_ms, log_start_offset, record_errors, message = result
    if version >= 8 and (record_errors or message is not None):
        return _encode_refusal(version, result)
    if version >= 9:
        return _RESULT_V9.pack(index, error, base_offset, append_time_ms, log_start_offset, _NO_ERRORS_FLEXIBLE)
    if version == 8:
        return _RESULT_V8.pack(index, error, base_offset, append_time_ms, log_start_offset, _NO_ERRORS_LEGACY)
    if version >= 5:
        return _RESULT_V5.pack(index, error, base_offset, append_time_ms, log_start_offset)
    return _RESULT_V3.pack(index, error, base_offset, append_time_ms)


def _encode_refusal(version: int, result: PartitionProduced) -> bytes:
    """Encodes a result with a message, or with errors of single records."""
    flexible = version >= FLEXIBLE_FROM
    writer = Writer()
    writer.out += _RESULT_V5.pack(*result[:5])
    write_string = writer.nullable_compact_string if flexible else writer.nullable_string
    (writer.compact_array_length if flexible else writer.array_length)(len(result.record_errors))
    for index, reason in result.record_errors:
        writer.i32(index)
        write_string(reason)
        if flexible:
            writer.no_tagged_fields()
    write_string(result.error_message)
    if flexible:
        writer.no_tagged_fields()
    return bytes(writer.out)


def encode_produce_request(
    version: int,
    transactional_id: str | None,
    acks: int,
    timeout_ms: int,
    topics: Sequence[tuple[TopicKey, Sequence[tuple[int, Buffer | None]]]],
) -> list[Buffer]:
    """Returns the body as a list of buffers to send one after another. The records are among them, uncopied."""
    flexible = version >= FLEXIBLE_FROM
    no_tags = b"\0" if flexible else b""
    writer = Writer()
    (writer.nullable_compact_string if flexible else writer.nullable_string)(transactional_id)
    writer.out += _ACKS_TIMEOUT.pack(acks, timeout_ms)
    count_bytes = _compact_count_bytes if flexible else I32.pack
    head = writer.out
    buffers: list[Buffer] = []
    head += count_bytes(len(topics))
    for key, partitions in topics:
        head += topic_key_bytes(key, flexible)
        head += count_bytes(len(partitions))
        for index, records in partitions:
            head += I32.pack(index)
            head += count_bytes(-1 if records is None else len(records))
            if records is not None:
                buffers += (head, records)
                head = bytearray()
            head += no_tags
        head += no_tags
    head += no_tags
    buffers.append(head)
    return buffers


def _compact_count_bytes(count: int) -> bytes:
    return uvarint_bytes(count + 1)


def parse_produce_response(body: memoryview, version: int) -> ProduceResponse:
    """Parses the body of a response. Raises MalformedRequest."""
    try:
        return _parse_response(Reader(body), version)
    except DECODE_ERRORS as error:
        raise MalformedRequest(f"Produce response: {error}") from None


def _parse_response(reader: Reader, version: int) -> ProduceResponse:
    flexible = version >= FLEXIBLE_FROM
    read_count = reader.compact_array_length if flexible else reader.array_length
    topics: list[tuple[TopicKey, list[PartitionProduced]]] = []
    for _ in range(read_count(3)):
        key = read_topic_key(reader, flexible, ids=version >= TOPIC_IDS_FROM)
        topics.append((key, [_parse_result(reader, version, flexible) for _ in range(read_count(22))]))
        if flexible:
            reader.skip_tagged_fields()
    throttle_ms = reader.i32()
    return ProduceResponse(topics, throttle_ms)


def read_topic_key(reader: Reader, flexible: bool, ids: bool) -> TopicKey:
    """Reads a topic's name or id."""
    if ids:
        key, reader.at = topic_id_at(reader.data, reader.at)
        return key
    return reader.compact_string() if flexible else reader.string()


def _parse_result(reader: Reader, version: int, flexible: bool) -> PartitionProduced:
    layout = _RESULT_V5 if version >= 5 else _RESULT_V3
    fixed = layout.unpack_from(reader.data, reader.at)
    reader.at += layout.size
    result = PartitionProduced(*fixed)
    if version < 8:
        return result
    read_string = reader.nullable_compact_string if flexible else reader.nullable_string
    record_errors = []
    for _ in range(reader.compact_array_length(6) if flexible else reader.array_length(6)):
        record_errors.append((reader.i32(), read_string()))
        if flexible:
            reader.skip_tagged_fields()
    message = read_string()
    if flexible:
        reader.skip_tagged_fields()
    return result._replace(record_errors=tuple(record_errors), error_message=message)
