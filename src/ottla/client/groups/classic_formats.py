"""The data that members of a classic group exchange inside JoinGroup and SyncGroup, in Kafka's formats. Pure.

Subscriptions are written in version 3 and read in all versions: each version begins like the one before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ottla.client.consumer.types import TopicPartition
from ottla.protocol.wire.primitives import MalformedRequest, Reader, Writer, decoding

SUBSCRIPTION_VERSION = 3
ASSIGNMENT_VERSION = 1
NO_GENERATION = -1


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """The subscription of a member."""

    topics: frozenset[str]
    owned: frozenset[TopicPartition] = field(default_factory=frozenset)
    """The partitions that the member owns while it joins: cooperative members keep their partitions."""
    generation: int = NO_GENERATION
    """The generation in which it was assigned them."""
    instance_id: str | None = None


def encode_subscription(subscription: MemberSubscription, rack: str | None = None) -> bytes:
    """Encodes the metadata of a JoinGroup request."""
    writer = Writer()
    writer.i16(SUBSCRIPTION_VERSION)
    topics = sorted(subscription.topics)
    writer.array_length(len(topics))
    for topic in topics:
        writer.string(topic)
    # The generation is repeated here, because assignors that know only version 1 look for it here.
    writer.data(subscription.generation.to_bytes(4, "big", signed=True))
    _write_partitions(writer, subscription.owned)
    writer.i32(subscription.generation)
    writer.nullable_string(rack or None)
    return bytes(writer.out)


def decode_subscription(data: bytes, instance_id: str | None = None) -> MemberSubscription:
    """Decodes a subscription and ignores fields that newer versions append. Raises MalformedRequest."""
    return decoding(_read_subscription, Reader(memoryview(data)), instance_id)


def _read_subscription(reader: Reader, instance_id: str | None) -> MemberSubscription:
    version = reader.i16()
    topics = frozenset(reader.string() for _ in range(reader.array_length(2)))
    user_data = reader.nullable_view()
    owned: frozenset[TopicPartition] = frozenset()
    generation = NO_GENERATION
    if version >= 1:
        owned = _read_partitions(reader)
    if version >= 2:
        generation = reader.i32()
    elif user_data is not None and len(user_data) == 4:
        generation = int.from_bytes(user_data, "big", signed=True)
    return MemberSubscription(topics, owned, generation, instance_id)


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Encodes the assignment of one member in a SyncGroup request."""
    writer = Writer()
    writer.i16(ASSIGNMENT_VERSION)
    _write_partitions(writer, partitions)
    writer.nullable_data(None)
    return bytes(writer.out)


def decode_assignment(data: bytes) -> frozenset[TopicPartition]:
    """Decodes an assignment. Empty data means no partitions. Raises MalformedRequest."""
    if not data:
        return frozenset()
    return decoding(_read_assignment, Reader(memoryview(data)))


def _read_assignment(reader: Reader) -> frozenset[TopicPartition]:
    if reader.i16() < 0:
        raise MalformedRequest("an assignment has a negative version")
    return _read_partitions(reader)


def _write_partitions(writer: Writer, partitions: Iterable[TopicPartition]) -> None:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    writer.array_length(len(by_topic))
    for topic, indexes in by_topic.items():
        writer.string(topic)
        writer.array_length(len(indexes))
        for index in indexes:
            writer.i32(index)


def _read_partitions(reader: Reader) -> frozenset[TopicPartition]:
    found: set[TopicPartition] = set()
    for _ in range(reader.array_length(6)):
        topic = reader.string()
        found.update(TopicPartition(topic, reader.i32()) for _ in range(reader.array_length(4)))
    return frozenset(found)
