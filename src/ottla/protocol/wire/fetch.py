"""Fetch (key 1), v4-18: the messages and the broker's side of the codec. The client's side is in `fetch_client`.

    request   replica id (to v14), max wait, min bytes, max bytes, isolation, session id and epoch (v7),
              topics: [name (id from v13), partitions: [partition, leader epoch (v9), offset, last fetched epoch (v12),
              log start offset (v5), max bytes]], forgotten topics (v7), rack (v11)
    response  throttle time, error and session id (v7), topics: [name or id, partitions: [partition, error,
              high watermark, last stable offset, log start offset (v5), aborted transactions,
              preferred read replica (v11), records]]

Versions: v12 is flexible and adds the tagged fields cluster id, diverging epoch and current leader; v13 names topics by
id; v15 moves the replica's id and epoch into a tagged field; v17 and v18 add its directory and high watermark.

The response is a list of buffers: encoded headers between the log's own record buffers, which are never joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from ottla.protocol.wire import replica_fetch
from ottla.protocol.wire.primitives import (
    DECODE_ERRORS,
    I32,
    MalformedRequest,
    Reader,
    compact_count_at,
    compact_string_at,
    skip_tagged_fields_at,
    topic_id_at,
    uuid_of,
    uvarint_bytes,
)
from ottla.protocol.wire.produce import Buffer, TopicKey, topic_key_bytes
from ottla.protocol.wire.replica_fetch import ReplicaFetchRequest

FLEXIBLE_FROM = 12
TOPIC_IDS_FROM = 13
REPLICA_STATE_FROM = 15
MAX_HIGH_WATERMARK = 2**63 - 1
"""Means that a follower does not report its high watermark."""

_HEAD_V4 = Struct(">iiiib")
_HEAD_V7 = Struct(">iiiibii")
_HEAD_V15 = Struct(">iiibii")
_PARTITION_V4 = Struct(">iqi")
_PARTITION_V5 = Struct(">iqqi")
_PARTITION_V9 = Struct(">iiqqi")
PARTITION_V12 = Struct(">iiqiqi")
PARTITION_LAYOUTS = {**dict.fromkeys(range(5, 9), _PARTITION_V5), **dict.fromkeys(range(9, 12), _PARTITION_V9)}
PARTITION_LAYOUTS[4] = _PARTITION_V4

RESULT_V4 = Struct(">ihqq")
RESULT_V5 = Struct(">ihqqq")
ABORTED = Struct(">qq")
EPOCH_END = Struct(">iq")
REPLICA_STATE = Struct(">iq")
RESPONSE_HEAD_V7 = Struct(">ihi")
_LEADER = Struct(">ii")
_RESULT_V12_TAIL = Struct(">bi")
_RESULT_V11_TAIL = Struct(">ii")
UNKNOWN_END = -1
ACKNOWLEDGED_END_TAG = 10_000
"""Far above Kafka's tags. Brokers of other kinds skip unknown tags."""


class FetchPartition(NamedTuple):
    """A partition in a request."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    max_bytes: int
    directory_id: UUID | None = None
    high_watermark: int = MAX_HIGH_WATERMARK
    acknowledged_end: int = UNKNOWN_END
    """For a follower: the end up to which its log is as durable as its class promises (synced, written). Ottla's own
    field, between brokers."""


class FetchRequest(NamedTuple):
    """A parsed request."""

    replica_id: int
    """-1 for a consumer."""
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[tuple[TopicKey, list[FetchPartition]]]
    forgotten: list[tuple[TopicKey, list[int]]]
    rack_id: str = ""
    cluster_id: str | None = None
    replica_epoch: int = -1


class PartitionData(NamedTuple):
    """A partition in a response."""

    partition: int
    error: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None
    """(producer id, first offset) of aborted transactions; None unless the reader requested committed records."""
    preferred_read_replica: int = -1
    records: Sequence[Buffer] = ()
    records_size: int = 0
    diverging: tuple[int, int] | None = None
    """(epoch, end offset) where the follower's log diverges from ours."""
    current_leader: tuple[int, int] | None = None
    """(leader id, leader epoch), together with an error that redirects the reader."""
    next_offset: int = -1
    """The offset after the records. It is not sent: a reader finds it in them."""


def parse_fetch_request(body: memoryview, version: int) -> FetchRequest:
    """Parses the body of a request. Raises MalformedRequest."""
    try:
        if version == replica_fetch.VERSION and (one := replica_fetch.unpack_request(body)) is not None:
            return request_of_one(one)
        if version >= FLEXIBLE_FROM:
            return _parse_flexible_request(body, version)
        return _parse_legacy_request(Reader(body), version)
    except DECODE_ERRORS as error:
        raise MalformedRequest(f"Fetch: {error}") from None


def partition_of_one(one: ReplicaFetchRequest) -> FetchPartition:
    """Returns the partition of a fetch of one partition between brokers, in the general form."""
    return FetchPartition(*one[7:13], None, one.high_watermark, one.acknowledged_end)


def request_of_one(one: ReplicaFetchRequest) -> FetchRequest:
    """Returns a fetch of one partition between brokers as a general fetch request."""
    topics: list[tuple[TopicKey, list[FetchPartition]]] = [(uuid_of(one.topic_id), [partition_of_one(one)])]
    return FetchRequest(one.replica_id, *one[:6], topics, [], replica_epoch=one.replica_epoch)


def _parse_flexible_request(data: memoryview, version: int) -> FetchRequest:
    if version >= REPLICA_STATE_FROM:
        replica_id = -1
        max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch = _HEAD_V15.unpack_from(data)
        at = _HEAD_V15.size
    else:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch = _HEAD_V7.unpack_from(data)
        at = _HEAD_V7.size
    topic_key_at = topic_id_at if version >= TOPIC_IDS_FROM else compact_string_at
    topics: list[tuple[TopicKey, list[FetchPartition]]] = []
    topic_count, at = compact_count_at(data, at, 3)
    for _ in range(topic_count):
        key, at = topic_key_at(data, at)
        partitions, at = _partitions_at(data, at)
        topics.append((key, partitions))
        at = at + 1 if data[at] == 0 else skip_tagged_fields_at(data, at)
    forgotten: list[tuple[TopicKey, list[int]]] = []
    forgotten_count, at = compact_count_at(data, at, 3)
    for _ in range(forgotten_count):
        key, at = topic_key_at(data, at)
        indexes_count, at = compact_count_at(data, at, 4)
        forgotten.append((key, list(Struct(f">{indexes_count}i").unpack_from(data, at))))
        at = skip_tagged_fields_at(data, at + 4 * indexes_count)
    rack_id, at = compact_string_at(data, at)
    request = FetchRequest(
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch, topics, forgotten, rack_id
    )
    return request if data[at] == 0 else _with_tagged_fields(request, Reader(data, at), version)


def _partitions_at(data: memoryview, at: int) -> tuple[list[FetchPartition], int]:
    size = PARTITION_V12.size
    unpack_from = PARTITION_V12.unpack_from
    count, at = compact_count_at(data, at, size + 1)
    partitions = []
    for _ in range(count):
        partition = FetchPartition(*unpack_from(data, at))
        at += size
        if data[at] == 0:
            at += 1
        else:
            partition, at = _with_follower_fields(partition, Reader(data, at))
        partitions.append(partition)
    return partitions, at


def _with_follower_fields(partition: FetchPartition, reader: Reader) -> tuple[FetchPartition, int]:
    """Reads the follower's tagged fields: tag 0 is the directory of its log, tag 1 the high watermark that it knows."""
    _, _, _, _, _, _, directory_id, high_watermark, acknowledged_end = partition
    for _ in range(reader.uvarint()):
        tag = reader.uvarint()
        content = Reader(reader.take(reader.uvarint()))
        if tag == 0:
            directory_id = content.uuid()
        elif tag == 1:
            high_watermark = content.i64()
        elif tag == ACKNOWLEDGED_END_TAG:
            acknowledged_end = content.i64()
    return FetchPartition(*partition[:6], directory_id, high_watermark, acknowledged_end), reader.at


def _with_tagged_fields(request: FetchRequest, reader: Reader, version: int) -> FetchRequest:
    """Reads the request's tagged fields: tag 0 is the cluster's id, tag 1 the replica's id and epoch."""
    for _ in range(reader.uvarint()):
        tag = reader.uvarint()
        content = Reader(reader.take(reader.uvarint()))
        if tag == 0:
            request = request._replace(cluster_id=content.nullable_compact_string())
        elif tag == 1 and version >= REPLICA_STATE_FROM:
            replica_id, replica_epoch = REPLICA_STATE.unpack_from(content.data)
            request = request._replace(replica_id=replica_id, replica_epoch=replica_epoch)
    return request


def _parse_legacy_request(reader: Reader, version: int) -> FetchRequest:
    session_id, session_epoch = 0, -1
    if version >= 7:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch = _HEAD_V7.unpack_from(
            reader.data
        )
        reader.at = _HEAD_V7.size
    else:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation = _HEAD_V4.unpack_from(reader.data)
        reader.at = _HEAD_V4.size
    topics: list[tuple[TopicKey, list[FetchPartition]]] = []
    for _ in range(reader.array_length(6)):
        name = reader.string()
        topics.append((name, [_legacy_partition(reader, version) for _ in range(reader.array_length(16))]))
    forgotten: list[tuple[TopicKey, list[int]]] = []
    for _ in range(reader.array_length(6) if version >= 7 else 0):
        name = reader.string()
        forgotten.append((name, [reader.i32() for _ in range(reader.array_length(4))]))
    rack_id = reader.string() if version >= 11 else ""
    return FetchRequest(
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch, topics, forgotten, rack_id
    )


def _legacy_partition(reader: Reader, version: int) -> FetchPartition:
    layout = PARTITION_LAYOUTS[version]
    fixed = layout.unpack_from(reader.data, reader.at)
    reader.at += layout.size
    if version >= 9:
        partition, epoch, offset, log_start_offset, max_bytes = fixed
        return FetchPartition(partition, epoch, offset, -1, log_start_offset, max_bytes)
    if version >= 5:
        partition, offset, log_start_offset, max_bytes = fixed
        return FetchPartition(partition, -1, offset, -1, log_start_offset, max_bytes)
    partition, offset, max_bytes = fixed
    return FetchPartition(partition, -1, offset, -1, -1, max_bytes)


def encode_fetch_response(
    version: int,
    throttle_ms: int,
    error: int,
    session_id: int,
    topics: Sequence[tuple[TopicKey, Sequence[PartitionData]]],
) -> list[Buffer]:
    """Returns the body as a list of buffers to send one after another."""
    if version == replica_fetch.VERSION and len(topics) == 1 and not throttle_ms and not error:
        ((key, partitions),) = topics
        if len(partitions) == 1 and (one := _response_of_one(session_id, key, partitions[0])) is not None:
            return one
    flexible = version >= FLEXIBLE_FROM
    head = bytearray(RESPONSE_HEAD_V7.pack(throttle_ms, error, session_id) if version >= 7 else I32.pack(throttle_ms))
    head += uvarint_bytes(len(topics) + 1) if flexible else I32.pack(len(topics))
    buffers: list[Buffer] = []
    for key, partitions in topics:
        head += topic_key_bytes(key, flexible)
        head += uvarint_bytes(len(partitions) + 1) if flexible else I32.pack(len(partitions))
        for data in partitions:
            if flexible:
                head += _flexible_result(data)
            else:
                head += _legacy_result(version, data)
            if data.records_size:
                buffers.append(head)
                buffers += data.records
                head = bytearray()
            if flexible:
                head += _result_tags(data)
        if flexible:
            head.append(0)
    if flexible:
        head.append(0)
    if head:
        buffers.append(head)
    return buffers


def _response_of_one(session_id: int, topic: TopicKey, data: PartitionData) -> list[Buffer] | None:
    is_plain = data.aborted is None and data.diverging is None and data.current_leader is None
    if not is_plain or data.preferred_read_replica >= 0:
        return None
    return replica_fetch.pack_answer(session_id, topic, data[:5], data.records, data.records_size)


def _flexible_result(data: PartitionData) -> bytes:
    """Encodes everything of a partition that precedes its records."""
    fixed = RESULT_V5.pack(*data[:5])
    aborted = data.aborted
    if not aborted:
        tail = _RESULT_V12_TAIL.pack(0 if aborted is None else 1, data.preferred_read_replica)
        return fixed + tail + uvarint_bytes(data.records_size + 1)
    parts = [fixed, uvarint_bytes(len(aborted) + 1)]
    parts += [ABORTED.pack(producer_id, offset) + b"\0" for producer_id, offset in aborted]
    parts += [I32.pack(data.preferred_read_replica), uvarint_bytes(data.records_size + 1)]
    return b"".join(parts)


def _result_tags(data: PartitionData) -> bytes:
    """Encodes the tagged fields of a partition: tag 0 is the diverging epoch, tag 1 the current leader. Both are
    rare."""
    diverging, leader = data.diverging, data.current_leader
    if diverging is None and leader is None:
        return b"\0"
    parts = [uvarint_bytes((diverging is not None) + (leader is not None))]
    if diverging is not None:
        parts.append(b"\x00\x0d" + EPOCH_END.pack(*diverging) + b"\0")
    if leader is not None:
        parts.append(b"\x01\x09" + _LEADER.pack(*leader) + b"\0")
    return b"".join(parts)


def _legacy_result(version: int, data: PartitionData) -> bytes:
    parts = [RESULT_V5.pack(*data[:5]) if version >= 5 else RESULT_V4.pack(*data[:4])]
    aborted = data.aborted
    parts.append(I32.pack(-1 if aborted is None else len(aborted)))
    if aborted:
        parts += [ABORTED.pack(producer_id, offset) for producer_id, offset in aborted]
    if version >= 11:
        parts.append(_RESULT_V11_TAIL.pack(data.preferred_read_replica, data.records_size))
    else:
        parts.append(I32.pack(data.records_size))
    return b"".join(parts)
