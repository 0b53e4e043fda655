"""Encodes the records of the consumer protocol (KIP-848): keys 3 to 8 and, for regular expressions, 16. All are
flexible."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ottla.machines.fields import FieldReader, FieldWriter, MalformedError
from ottla.machines.groups.records import (
    Assignment,
    ClassicProtocols,
    ConsumerMember,
    ConsumerRecord,
    CurrentAssignment,
    CurrentRecord,
    GroupEpochRecord,
    MemberRecord,
    MemberState,
    RegexRecord,
    ResolvedRegex,
    SubscribedTopicsRecord,
    TargetEpochRecord,
    TargetRecord,
    TopicFacts,
)
from ottla.protocol.model.ids import TopicId

T = TypeVar("T")

GROUP_EPOCH_KEY = 3
SUBSCRIBED_TOPICS_KEY = 4
MEMBER_KEY = 5
TARGET_EPOCH_KEY = 6
TARGET_KEY = 7
CURRENT_KEY = 8
REGEX_KEY = 16
KEYS = frozenset((*range(GROUP_EPOCH_KEY, CURRENT_KEY + 1), REGEX_KEY))

VERSION = 0
CLASSIC_TAG = 0


def encode(record: ConsumerRecord) -> tuple[bytes, bytes | None]:
    """Returns the key and the value of a record."""
    kind, part, write = _PARTS[type(record)]
    key = FieldWriter()
    key.int16(kind)
    key.string(record.group)
    if part is not None:
        key.string(getattr(record, part))
    if record.value is None:
        return key.done(), None
    writer = FieldWriter(flexible=True)
    writer.int16(VERSION)
    write(writer, record.value)
    writer.tags(_tags(record))
    return key.done(), writer.done()


def decode(kind: int, key: FieldReader, value: bytes | None) -> ConsumerRecord:
    """Decodes a record of this kind. Raises MalformedError."""
    group = key.string()
    part = key.string() if kind in (MEMBER_KEY, TARGET_KEY, CURRENT_KEY, REGEX_KEY) else ""
    key.end()
    match kind:
        case 3:
            return GroupEpochRecord(group, _value(value, FieldReader.int32))
        case 4:
            return SubscribedTopicsRecord(group, _value(value, _read_topics))
        case 5:
            return MemberRecord(group, part, _read_member(value))
        case 6:
            return TargetEpochRecord(group, _value(value, FieldReader.int32))
        case 7:
            return TargetRecord(group, part, _value(value, _read_assignment))
        case 8:
            return CurrentRecord(group, part, _value(value, _read_current))
        case _:
            return RegexRecord(group, part, _value(value, _read_regex))


def _value(value: bytes | None, read: Callable[[FieldReader], T]) -> T | None:
    found = _value_and_tags(value, read)
    return None if found is None else found[0]


def _value_and_tags(value: bytes | None, read: Callable[[FieldReader], T]) -> tuple[T, dict[int, bytes]] | None:
    if value is None:
        return None
    reader = FieldReader(value, flexible=True)
    version = reader.int16()
    if version != VERSION:
        raise MalformedError(f"value version {version} is not supported, only {VERSION}")
    found = read(reader)
    tags = reader.tags()
    reader.end()
    return found, tags


def _write_topics(writer: FieldWriter, topics: tuple[tuple[str, TopicFacts], ...]) -> None:
    def write(topic: tuple[str, TopicFacts]) -> None:
        name, facts = topic
        writer.uuid(facts.id)
        writer.string(name)
        writer.int32(facts.partition_count)
        writer.array((), writer.int32)
        writer.tags()

    writer.array(topics, write)


def _read_topics(reader: FieldReader) -> tuple[tuple[str, TopicFacts], ...]:
    def racks() -> None:
        reader.int32()
        reader.array(reader.string)
        reader.tags()

    def read() -> tuple[str, TopicFacts]:
        topic_id, name, count = TopicId(reader.uuid()), reader.string(), reader.int32()
        reader.array(racks)
        reader.tags()
        return name, TopicFacts(topic_id, count)

    return tuple(sorted(reader.array(read)))


def _write_member(writer: FieldWriter, member: ConsumerMember) -> None:
    writer.string(member.instance_id)
    writer.string(member.rack_id)
    writer.string(member.client_id)
    writer.string(member.client_host)
    writer.array(member.subscribed_names, writer.string)
    writer.string(member.subscribed_regex)
    writer.int32(member.rebalance_timeout_ms)
    writer.string(member.assignor)


def _tags(record: ConsumerRecord) -> dict[int, bytes]:
    if not isinstance(record, MemberRecord) or record.value is None or record.value.classic is None:
        return {}
    classic = record.value.classic
    writer = FieldWriter(flexible=True)
    # A nullable structure begins with a number that says whether it is present.
    writer.varint(1)
    writer.int32(classic.session_timeout_ms)

    def write(protocol: tuple[str, bytes]) -> None:
        writer.string(protocol[0])
        writer.bytes_(protocol[1])
        writer.tags()

    writer.array(classic.protocols, write)
    writer.tags()
    return {CLASSIC_TAG: writer.done()}


def _read_member(value: bytes | None) -> ConsumerMember | None:
    found = _value_and_tags(value, _read_member_fields)
    if found is None:
        return None
    member, tags = found
    return member(_read_classic(tags[CLASSIC_TAG]) if CLASSIC_TAG in tags else None)


def _read_member_fields(reader: FieldReader) -> Callable[[ClassicProtocols | None], ConsumerMember]:
    instance_id, rack_id = reader.nullable_string(), reader.nullable_string()
    client_id, client_host = reader.string(), reader.string()
    names, regex = reader.array(reader.string), reader.nullable_string()
    rebalance_timeout_ms, assignor = reader.int32(), reader.nullable_string()
    return lambda classic: ConsumerMember(
        instance_id, rack_id, client_id, client_host, names, regex, rebalance_timeout_ms, assignor, classic
    )


def _read_classic(data: bytes) -> ClassicProtocols | None:
    reader = FieldReader(data, flexible=True)
    if reader.varint() == 0:
        reader.end()
        return None
    session_timeout_ms = reader.int32()

    def read() -> tuple[str, bytes]:
        protocol = reader.string(), reader.bytes_()
        reader.tags()
        return protocol

    protocols = reader.array(read)
    reader.tags()
    reader.end()
    return ClassicProtocols(session_timeout_ms, protocols)


def _write_assignment(writer: FieldWriter, assignment: Assignment) -> None:
    by_topic: dict[TopicId, list[int]] = {}
    for topic_id, partition in sorted(assignment):
        by_topic.setdefault(topic_id, []).append(partition)

    def write(topic: tuple[TopicId, list[int]]) -> None:
        writer.uuid(topic[0])
        writer.array(topic[1], writer.int32)
        writer.tags()

    writer.array(by_topic.items(), write)


def _read_assignment(reader: FieldReader) -> Assignment:
    def read() -> list[tuple[TopicId, int]]:
        topic_id = TopicId(reader.uuid())
        found = [(topic_id, partition) for partition in reader.array(reader.int32)]
        reader.tags()
        return found

    return frozenset(each for topic in reader.array(read) for each in topic)


def _write_current(writer: FieldWriter, current: CurrentAssignment) -> None:
    writer.int32(current.epoch)
    writer.int32(current.previous_epoch)
    writer.int8(current.state)
    _write_assignment(writer, current.assigned)
    _write_assignment(writer, current.revoking)


def _read_current(reader: FieldReader) -> CurrentAssignment:
    epoch, previous_epoch, number = reader.int32(), reader.int32(), reader.int8()
    # As in Kafka: a state of a later version counts as unknown, and the next heartbeat resolves it.
    state = MemberState(number) if number in set(MemberState) else MemberState.UNKNOWN
    return CurrentAssignment(epoch, previous_epoch, state, _read_assignment(reader), _read_assignment(reader))


def _write_regex(writer: FieldWriter, resolved: ResolvedRegex) -> None:
    writer.array(resolved.topics, writer.string)
    writer.int64(resolved.version)
    writer.int64(resolved.resolved_ms)


def _read_regex(reader: FieldReader) -> ResolvedRegex:
    return ResolvedRegex(reader.array(reader.string), reader.int64(), reader.int64())


_PARTS: dict[type[ConsumerRecord], tuple[int, str | None, Callable[..., None]]] = {
    GroupEpochRecord: (GROUP_EPOCH_KEY, None, FieldWriter.int32),
    SubscribedTopicsRecord: (SUBSCRIBED_TOPICS_KEY, None, _write_topics),
    MemberRecord: (MEMBER_KEY, "member_id", _write_member),
    TargetEpochRecord: (TARGET_EPOCH_KEY, None, FieldWriter.int32),
    TargetRecord: (TARGET_KEY, "member_id", _write_assignment),
    CurrentRecord: (CURRENT_KEY, "member_id", _write_current),
    RegexRecord: (REGEX_KEY, "regex", _write_regex),
}
