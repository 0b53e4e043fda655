"""The messages that classic consumers exchange inside JoinGroup and SyncGroup: subscriptions and assignments.

The coordinator of a classic group reads only the subscribed topics. A consumer group with classic members (KIP-848's
migration) also reads the partitions they own, and writes their assignments. Every version begins like version 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ottla.machines.fields import FieldReader, FieldWriter, MalformedError

NamedPartition = tuple[str, int]

VERSION_MAX = 3


@dataclass(frozen=True, slots=True)
class Subscription:
    """The subscription of a classic consumer."""

    version: int
    topics: tuple[str, ...]
    owned: frozenset[NamedPartition] = frozenset()
    generation: int = -1
    rack_id: str | None = None


def subscribed_topics(metadata: bytes) -> tuple[str, ...] | None:
    """Returns the subscribed topics; None if the bytes are not a subscription."""
    reader = FieldReader(metadata)
    try:
        if reader.int16() < 0:
            return None
        return reader.array(reader.string)
    except MalformedError:
        return None


def read_subscription(metadata: bytes) -> Subscription | None:
    """Decodes a subscription; returns None if it is not one. Additions of later versions are ignored."""
    reader = FieldReader(metadata)
    try:
        version = reader.int16()
        if version < 0:
            return None
        topics = reader.array(reader.string)
        _skip_user_data(reader)
        owned = _read_partitions(reader) if version >= 1 else frozenset()
        generation = reader.int32() if version >= 2 else -1
        rack_id = reader.nullable_string() if version >= 3 else None
    except MalformedError:
        return None
    return Subscription(min(version, VERSION_MAX), topics, owned, generation, rack_id)


def write_subscription(subscription: Subscription) -> bytes:
    """Encodes the metadata of a JoinGroup in the subscription's version, without user data."""
    writer = FieldWriter()
    version = subscription.version
    writer.int16(version)
    writer.array(subscription.topics, writer.string)
    writer.int32(-1)
    if version >= 1:
        _write_partitions(writer, subscription.owned)
    if version >= 2:
        writer.int32(subscription.generation)
    if version >= 3:
        writer.string(subscription.rack_id)
    return writer.done()


def read_assignment(data: bytes) -> frozenset[NamedPartition] | None:
    """Decodes an assignment. Empty bytes mean no partitions; returns None if the bytes are not an assignment."""
    if not data:
        return frozenset()
    reader = FieldReader(data)
    try:
        return _read_partitions(reader) if reader.int16() >= 0 else None
    except MalformedError:
        return None


def write_assignment(partitions: Iterable[NamedPartition], version: int) -> bytes:
    """Encodes the assignment of a SyncGroup, without user data."""
    writer = FieldWriter()
    writer.int16(version)
    _write_partitions(writer, partitions)
    writer.int32(-1)
    return writer.done()


def _skip_user_data(reader: FieldReader) -> None:
    length = reader.int32()
    if length > 0:
        reader.take(length)


def _read_partitions(reader: FieldReader) -> frozenset[NamedPartition]:
    def topic() -> list[NamedPartition]:
        name = reader.string()
        return [(name, partition) for partition in reader.array(reader.int32)]

    return frozenset(each for found in reader.array(topic) for each in found)


def _write_partitions(writer: FieldWriter, partitions: Iterable[NamedPartition]) -> None:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)

    def write(topic: tuple[str, list[int]]) -> None:
        writer.string(topic[0])
        writer.array(topic[1], writer.int32)

    writer.array(by_topic.items(), write)
