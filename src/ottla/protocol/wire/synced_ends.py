"""Between brokers: a follower reports how far its logs are synced. No client sends it, and it has no reply.

    broker id 4, broker epoch 8, count 4, then for each partition: topic id 16, partition 4, leader epoch 4, end 8

The API key is Ottla's own, far above Kafka's. Kafka has no such message, because its followers acknowledge by fetching.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from ottla.protocol.wire.primitives import MalformedRequest

API_KEY = 20_000

_HEAD = Struct(">iqI")
_ENTRY = Struct(">16siiq")


class SyncedEnd(NamedTuple):
    """The synced end of one partition."""

    topic_id: UUID
    partition: int
    leader_epoch: int
    end_offset: int


class SyncedEndReport(NamedTuple):
    """The synced ends that one broker reports."""

    broker_id: int
    broker_epoch: int
    entries: list[SyncedEnd]


def encode_acknowledged(broker_id: int, broker_epoch: int, entries: Sequence[SyncedEnd]) -> bytes:
    """Encodes the report of one broker incarnation: a head, then one entry of fixed size for each log."""
    parts = [_HEAD.pack(broker_id, broker_epoch, len(entries))]
    parts += [_ENTRY.pack(entry.topic_id.bytes, *entry[1:]) for entry in entries]
    return b"".join(parts)


def parse_acknowledged(body: memoryview) -> SyncedEndReport:
    """Parses a report. Raises MalformedRequest."""
    if len(body) < _HEAD.size:
        raise MalformedRequest("a report of synced ends is too short")
    broker_id, broker_epoch, count = _HEAD.unpack_from(body)
    if len(body) != _HEAD.size + count * _ENTRY.size:
        raise MalformedRequest(f"a report of {count} synced ends does not match its size of {len(body)} bytes")
    entries = [SyncedEnd(UUID(bytes=t), *rest) for t, *rest in _ENTRY.iter_unpack(body[_HEAD.size :])]
    return SyncedEndReport(broker_id, broker_epoch, entries)
