"""Fetch v18 in the form that brokers exchange for every record: one partition, none forgotten, a follower's fields.

The bytes are the same as those of `wire.fetch` and `wire.fetch_client`, but packed in one step instead of field by
field. For a message in any other form the functions here return None, and those modules handle it.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from ottla.protocol.wire.primitives import uuid_of, uvarint_at, uvarint_bytes

if TYPE_CHECKING:
    from ottla.protocol.wire.produce import Buffer, TopicKey

VERSION = 18
_ONE = 2
"""The length of an array with one item, in compact encoding."""
_REQUEST = Struct(">iiibiiB16sBiiqiqi3sq3sq6siqB")
"""Max wait, min bytes, max bytes, isolation, session id and epoch; topics: one, its id, partitions: one; the
partition's index, leader epoch, offset, last fetched epoch, log start, max bytes; two tagged fields: the high
watermark, and Ottla's own acknowledged end (10000 is 0x90 0x4e); the replica's id and epoch in a tagged field; its
tags."""
_BEFORE_WATERMARK, _BEFORE_END = b"\x02\x01\x08", b"\x90\x4e\x08"
_BEFORE_REPLICA = b"\x00\x01\x01\x01\x01\x0d"
"""The topic's tags: none; forgotten topics: none; rack: empty; one tag, the replica's id and epoch."""
REQUEST_BYTES = _REQUEST.size
Wanted = tuple[int, int, int, int, int, int, int, int]
"""A partition's index, leader epoch, offset, last fetched epoch, log start, max bytes, high watermark, acknowledged
end."""
Head = tuple[int, int, int, int, int, int]

_ANSWER = Struct(">ihiB16sBihqqqBi")
"""Throttle time, error, session id; topics: one, its id, partitions: one: index, error, high watermark, last stable
offset, log start; aborted transactions: not requested; preferred read replica: none."""
_NO_OTHER_REPLICA = -1
_ANSWER_TAIL = b"\x00\x00\x00"
"""Tags of the partition, the topic and the response: none."""


class ReplicaFetchRequest(NamedTuple):
    """A follower's request for one partition, in wire order, without the constant fields."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topic_id: bytes
    partition: int
    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    log_start_offset: int
    partition_max_bytes: int
    high_watermark: int
    acknowledged_end: int
    replica_id: int
    replica_epoch: int


def pack_request(head: Head, topic: UUID, wanted: Wanted, replica: tuple[int, int]) -> bytes:
    """Encodes a request for one partition."""
    *fixed, watermark, end = wanted
    return _REQUEST.pack(
        *head,
        _ONE,
        topic.bytes,
        _ONE,
        *fixed,
        _BEFORE_WATERMARK,
        watermark,
        _BEFORE_END,
        end,
        _BEFORE_REPLICA,
        *replica,
        0,
    )


def unpack_request(body: memoryview) -> ReplicaFetchRequest | None:
    """Decodes a request for one partition; None if it has any other form."""
    if len(body) != REQUEST_BYTES:
        return None
    fields = _REQUEST.unpack_from(body)
    before_watermark, watermark, before_end, end, before_replica, replica_id, replica_epoch, tags = fields[15:]
    if (
        fields[6] != _ONE
        or fields[8] != _ONE
        or before_watermark != _BEFORE_WATERMARK
        or before_end != _BEFORE_END
        or before_replica != _BEFORE_REPLICA
        or tags
    ):
        return None
    return ReplicaFetchRequest._make((*fields[:6], fields[7], *fields[9:15], watermark, end, replica_id, replica_epoch))


def pack_answer(
    session_id: int,
    topic: TopicKey,
    marks: tuple[int, int, int, int, int],
    records: Sequence[Buffer],
    size: int,
) -> list[Buffer] | None:
    """Encodes a response for one partition; None if it needs the general form. `marks` are the partition's index,
    error, high watermark, last stable offset and log start."""
    if not isinstance(topic, UUID) or not size:
        return None
    head = _ANSWER.pack(0, 0, session_id, _ONE, topic.bytes, _ONE, *marks, 0, _NO_OTHER_REPLICA)
    return [head + uvarint_bytes(size + 1), *records, _ANSWER_TAIL]


def unpack_answer(body: memoryview) -> tuple[int, UUID, tuple[int, int, int, int, int], memoryview] | None:
    """Decodes a response for one partition into session id, topic id, marks and records; None if it has any other
    form."""
    if len(body) < _ANSWER.size + 4 or body[-3:] != _ANSWER_TAIL:
        return None
    throttle_ms, error, session_id, topic_count, topic_id, partition_count, *rest = _ANSWER.unpack_from(body)
    index, partition_error, watermark, last_stable_offset, start, aborted, other_replica = rest
    if throttle_ms or error or aborted or topic_count != _ONE or partition_count != _ONE:
        return None
    size, at = uvarint_at(body, _ANSWER.size)
    if other_replica != _NO_OTHER_REPLICA or at + size - 1 != len(body) - len(_ANSWER_TAIL):
        return None
    marks = index, partition_error, watermark, last_stable_offset, start
    return session_id, uuid_of(topic_id), marks, body[at : at + size - 1]
