"""The client's side of Fetch: writes the request and reads the response. `protocol.wire.fetch` has the layout."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from ottla.protocol.wire import replica_fetch
from ottla.protocol.wire.fetch import (
    ABORTED,
    ACKNOWLEDGED_END_TAG,
    EPOCH_END,
    FLEXIBLE_FROM,
    MAX_HIGH_WATERMARK,
    PARTITION_LAYOUTS,
    PARTITION_V12,
    REPLICA_STATE,
    REPLICA_STATE_FROM,
    RESPONSE_HEAD_V7,
    RESULT_V4,
    RESULT_V5,
    TOPIC_IDS_FROM,
    UNKNOWN_END,
    FetchPartition,
    FetchRequest,
)
from ottla.protocol.wire.primitives import DECODE_ERRORS, I32, I64, MalformedRequest, Reader, Writer, uvarint_bytes
from ottla.protocol.wire.produce import TopicKey, read_topic_key, topic_key_bytes


class FetchedPartition(NamedTuple):
    """The response for one partition."""

    partition: int
    error: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...] | None
    """(producer id, first offset) of aborted transactions."""
    preferred_read_replica: int
    records: memoryview
    """A slice of the response; empty if there are none."""
    diverging: tuple[int, int] | None = None
    """(epoch, end offset) of the leader's log where the follower's log diverges."""


class FetchResponse(NamedTuple):
    """A parsed response."""

    throttle_ms: int
    error: int
    session_id: int
    topics: list[tuple[TopicKey, list[FetchedPartition]]]


def encode_fetch_request(version: int, request: FetchRequest) -> bytes:
    """Encodes the body of a request."""
    if version == replica_fetch.VERSION and len(request.topics) == 1 and (one := _encode_one(request)) is not None:
        return one
    flexible = version >= FLEXIBLE_FROM
    no_tags = b"\0" if flexible else b""
    count_bytes = _compact_count_bytes if flexible else I32.pack
    out = bytearray()
    if version < REPLICA_STATE_FROM:
        out += I32.pack(request.replica_id)
    out += Struct(">iiib").pack(request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level)
    if version >= 7:
        out += Struct(">ii").pack(request.session_id, request.session_epoch)
    out += count_bytes(len(request.topics))
    for key, partitions in request.topics:
        out += topic_key_bytes(key, flexible) + count_bytes(len(partitions))
        for partition in partitions:
            out += _encode_partition(version, partition)
        out += no_tags
    if version >= 7:
        out += count_bytes(len(request.forgotten))
        for key, indexes in request.forgotten:
            out += topic_key_bytes(key, flexible) + count_bytes(len(indexes))
            out += Struct(f">{len(indexes)}i").pack(*indexes) + no_tags
    if version >= 11:
        out += topic_key_bytes(request.rack_id, flexible)
    if flexible:
        out += _request_tags(version, request)
    return bytes(out)


def _encode_one(request: FetchRequest) -> bytes | None:
    """Encodes a follower's request for one partition; None if it has any other form."""
    ((topic, partitions),) = request.topics
    if len(partitions) != 1 or request.forgotten or request.rack_id or request.cluster_id is not None:
        return None
    *wanted, directory_id, watermark, acknowledged_end = partitions[0]
    is_told = watermark != MAX_HIGH_WATERMARK and acknowledged_end != UNKNOWN_END
    if directory_id is not None or not is_told or request.replica_id < 0 or not isinstance(topic, UUID):
        return None
    index, epoch, offset, last_epoch, start, bytes_max = wanted
    return replica_fetch.pack_request(
        request[1:7],
        topic,
        (index, epoch, offset, last_epoch, start, bytes_max, watermark, acknowledged_end),
        (request.replica_id, request.replica_epoch),
    )


def _compact_count_bytes(count: int) -> bytes:
    return uvarint_bytes(count + 1)


def _encode_partition(version: int, partition: FetchPartition) -> bytes:
    index, epoch, offset, last_epoch, log_start_offset, max_bytes, _, _, _ = partition
    if version >= FLEXIBLE_FROM:
        fixed = PARTITION_V12.pack(index, epoch, offset, last_epoch, log_start_offset, max_bytes)
        return fixed + _partition_tags(version, partition)
    layout = PARTITION_LAYOUTS[version]
    if version >= 9:
        return layout.pack(index, epoch, offset, log_start_offset, max_bytes)
    if version >= 5:
        return layout.pack(index, offset, log_start_offset, max_bytes)
    return layout.pack(index, offset, max_bytes)


def _partition_tags(version: int, partition: FetchPartition) -> bytes:
    fields: dict[int, bytes] = {}
    if version >= 17 and partition.directory_id is not None:
        fields[0] = partition.directory_id.bytes
    if version >= 18 and partition.high_watermark != MAX_HIGH_WATERMARK:
        fields[1] = I64.pack(partition.high_watermark)
    if partition.acknowledged_end != UNKNOWN_END:
        fields[ACKNOWLEDGED_END_TAG] = I64.pack(partition.acknowledged_end)
    return _tagged_fields(fields)


def _request_tags(version: int, request: FetchRequest) -> bytes:
    fields: dict[int, bytes] = {}
    if request.cluster_id is not None:
        writer = Writer()
        writer.compact_string(request.cluster_id)
        fields[0] = bytes(writer.out)
    replica = (request.replica_id, request.replica_epoch)
    if version >= REPLICA_STATE_FROM and replica != (-1, -1):
        fields[1] = REPLICA_STATE.pack(*replica) + b"\0"
    return _tagged_fields(fields)


def _tagged_fields(fields: dict[int, bytes]) -> bytes:
    parts = [uvarint_bytes(len(fields))]
    for tag, content in fields.items():
        parts += [uvarint_bytes(tag), uvarint_bytes(len(content)), content]
    return b"".join(parts)


def parse_fetch_response(body: memoryview, version: int) -> FetchResponse:
    """Parses the body of a response. Raises MalformedRequest."""
    try:
        if version == replica_fetch.VERSION and (one := replica_fetch.unpack_answer(body)) is not None:
            session_id, topic_id, marks, records = one
            return FetchResponse(0, 0, session_id, [(topic_id, [FetchedPartition(*marks, None, -1, records)])])
        return _parse_response(Reader(body), version)
    except DECODE_ERRORS as error:
        raise MalformedRequest(f"Fetch response: {error}") from None


def _parse_response(reader: Reader, version: int) -> FetchResponse:
    error = session_id = 0
    if version >= 7:
        throttle_ms, error, session_id = RESPONSE_HEAD_V7.unpack_from(reader.data)
        reader.at = RESPONSE_HEAD_V7.size
    else:
        throttle_ms = reader.i32()
    flexible = version >= FLEXIBLE_FROM
    read_count = reader.compact_array_length if flexible else reader.array_length
    topics: list[tuple[TopicKey, list[FetchedPartition]]] = []
    for _ in range(read_count(3)):
        key = read_topic_key(reader, flexible, ids=version >= TOPIC_IDS_FROM)
        topics.append((key, [_parse_partition(reader, version, flexible) for _ in range(read_count(27))]))
        if flexible:
            reader.skip_tagged_fields()
    return FetchResponse(throttle_ms, error, session_id, topics)


def _parse_partition(reader: Reader, version: int, flexible: bool) -> FetchedPartition:
    layout = RESULT_V5 if version >= 5 else RESULT_V4
    fixed: Sequence[int] = layout.unpack_from(reader.data, reader.at)
    reader.at += layout.size
    log_start_offset = fixed[4] if version >= 5 else -1
    aborted = _parse_aborted(reader, flexible)
    preferred_read_replica = reader.i32() if version >= 11 else -1
    records = reader.nullable_compact_view() if flexible else reader.nullable_view()
    if records is None:
        records = reader.take(0)
    diverging = _parse_diverging(reader) if flexible else None
    return FetchedPartition(
        fixed[0], fixed[1], fixed[2], fixed[3], log_start_offset, aborted, preferred_read_replica, records, diverging
    )


def _parse_aborted(reader: Reader, flexible: bool) -> tuple[tuple[int, int], ...] | None:
    count = reader.compact_array_length(17) if flexible else reader.array_length(16)
    if count <= 0:
        return None if count < 0 else ()
    aborted = []
    for _ in range(count):
        producer_id, first_offset = ABORTED.unpack_from(reader.data, reader.at)
        reader.at += ABORTED.size
        if flexible:
            reader.skip_tagged_fields()
        aborted.append((producer_id, first_offset))
    return tuple(aborted)


def _parse_diverging(reader: Reader) -> tuple[int, int] | None:
    if reader.data[reader.at] == 0:
        reader.at += 1
        return None
    diverging: tuple[int, int] | None = None
    for _ in range(reader.uvarint()):
        tag = reader.uvarint()
        content = reader.take(reader.uvarint())
        if tag == 0:
            epoch, end_offset = EPOCH_END.unpack_from(content)
            diverging = (epoch, end_offset)
    return diverging
