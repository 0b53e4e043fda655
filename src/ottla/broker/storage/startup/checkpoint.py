"""The checkpoint: how far each log is on stable storage, and from where the journal has to be replayed.

It is one file for all logs, replaced atomically. Writing it permits reuse of the journal's space (safety:
journal-space).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple
from uuid import UUID

import crc32c

from ottla.protocol.model.ids import LogKey, PartitionIndex, TopicId

CHECKPOINT_FILE = "checkpoint"
_MAGIC = b"OTLC"
_VERSION = 1
_HEAD = Struct(">4sHIQI")
"""magic, version, CRC of all that follows it, released journal sequence, entries"""
_CRC_FROM = 10
_ENTRY = Struct(">16siIqqqq")


class RecoveryPoint(NamedTuple):
    """Everything below `offset` is in the segments and synced. In the segment at `segment_base`, that is up to
    `position`."""

    offset: int
    segment_base: int
    position: int
    start_offset: int
    """The log's start offset when the checkpoint was written."""


@dataclass(slots=True)
class Checkpoint:
    """The recovery points of all logs, and the journal sequence up to which they release the journal."""

    released_sequence: int = 0
    points: dict[LogKey, RecoveryPoint] = field(default_factory=dict)


class CheckpointDamagedError(Exception):
    """The checkpoint file exists but is damaged."""


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Returns the content of the checkpoint file, with its CRC."""
    entries = bytearray()
    for key, point in checkpoint.points.items():
        entries += _ENTRY.pack(key.topic_id.bytes, key.partition, key.generation, *point)
    count = len(checkpoint.points)
    head = _HEAD.pack(_MAGIC, _VERSION, 0, checkpoint.released_sequence, count)
    crc = crc32c.crc32c(head[_CRC_FROM:] + bytes(entries))
    return _HEAD.pack(_MAGIC, _VERSION, crc, checkpoint.released_sequence, count) + bytes(entries)


def decode_checkpoint(data: bytes) -> Checkpoint:
    """Parses a checkpoint file. Raises CheckpointDamagedError."""
    if len(data) < _HEAD.size:
        raise CheckpointDamagedError("the checkpoint file is too short")
    magic, version, crc, released, count = _HEAD.unpack_from(data)
    if magic != _MAGIC or version != _VERSION:
        raise CheckpointDamagedError("the checkpoint file has an unknown format or version")
    if len(data) != _HEAD.size + count * _ENTRY.size or crc32c.crc32c(data[_CRC_FROM:]) != crc:
        raise CheckpointDamagedError("the checkpoint file does not match its CRC")
    checkpoint = Checkpoint(released)
    for topic_id, partition, generation, *point in _ENTRY.iter_unpack(data[_HEAD.size :]):
        key = LogKey(TopicId(UUID(bytes=topic_id)), PartitionIndex(partition), generation)
        checkpoint.points[key] = RecoveryPoint(*point)
    return checkpoint
