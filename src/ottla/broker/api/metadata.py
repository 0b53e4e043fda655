"""Metadata (key 3), v0-13.

Behaviour: returns the live brokers, with their addresses at the listener of the request, and the topics that are
requested by name or id; null topics (v0: an empty list) mean all of them. LISTENER_NOT_FOUND for a partition whose
leader does not have that listener. A topic that does not exist is created if the client and `auto.create.topics.enable`
allow it.
Versions: v1 rack, controller, internal topics, an empty list means none; v2 cluster id; v3 throttle time; v4 the flag
for auto-creation; v5 offline replicas; v7 leader epochs; v8 authorized operations; v9 flexible; v10 topic ids; v12
topics by id alone; v13 top-level error.
Not implemented: nothing.

The reply is encoded by hand: clients of a large broker request all topics, and each repeats that every few minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Buffers, Context, Reply
from ottla.broker.api.authorization import permits, refusal
from ottla.broker.api.authorized_operations import NOT_REQUESTED, authorized_operations, cluster_operations
from ottla.protocol.model.acl import ResourceType
from ottla.protocol.model.errors import ErrorCode, Refused
from ottla.protocol.model.ids import NO_TOPIC_ID, TopicId
from ottla.protocol.model.topic_names import check_name
from ottla.protocol.wire.primitives import I32, Writer, compact_string_bytes, legacy_string_bytes, uvarint_bytes
from ottla.protocol.wire.schema import decode, request_type

if TYPE_CHECKING:
    from ottla.broker.endpoints import Node
    from ottla.broker.partition.layout import Layout
    from ottla.broker.topics.topics import Topic

API = Api(3, "Metadata", (0, 13))

_FLEXIBLE_FROM = 9
_LISTENER_NOT_FOUND_FROM = 6
NO_LEADER = -1


class _Included(NamedTuple):
    """The authorized operations that the client asks for."""

    of_topics: bool
    of_cluster: bool

    @classmethod
    def by(cls, request: Any, version: int) -> _Included:
        return cls(
            version >= 8 and request.include_topic_authorized_operations,
            8 <= version <= 10 and request.include_cluster_authorized_operations,
        )


class _Missing(NamedTuple):
    """A requested topic that does not exist."""

    error: ErrorCode
    name: str | None
    topic_id: TopicId = NO_TOPIC_ID


def handle_raw(ctx: Context, body: memoryview) -> Reply:
    """Returns brokers and topics, and creates missing topics if client and broker allow it."""
    request: Any = decode(request_type(API.key, ctx.version), body)[0]
    asked = request.topics
    included = _Included.by(request, ctx.version)
    if asked is None or (ctx.version == 0 and not asked):
        shown = [topic for topic in ctx.broker.topics if permits(ctx, rules.METADATA_OF_ALL, topic.name)]
        return _reply(ctx, shown, included)
    may_create = ctx.version < 4 or request.allow_auto_topic_creation
    found = [_find(ctx, each) for each in asked]
    if may_create and any(_is_creatable(topic) for topic in found):
        return _create_and_reply(ctx, found, included)
    return _reply(ctx, found, included)


def _find(ctx: Context, asked: Any) -> Topic | _Missing:
    topics = ctx.broker.topics
    topic_id = asked.topic_id if ctx.version >= 10 else None
    if topic_id is not None:
        topic = topics.by_id(topic_id)
        if topic is not None and not permits(ctx, rules.METADATA, topic.name):
            return _Missing(ErrorCode.topic_authorization_failed, None, topic_id)
        return topic or _Missing(ErrorCode.unknown_topic_id, None, topic_id)
    if asked.name is None:
        return _Missing(ErrorCode.invalid_request, None)
    if not permits(ctx, rules.METADATA, asked.name):  # whether or not the topic exists
        return _Missing(ErrorCode.topic_authorization_failed, asked.name)
    topic = topics.get(asked.name)
    if topic is not None:
        return topic
    refused = check_name(asked.name)
    return _Missing(refused.error if refused else ErrorCode.unknown_topic_or_partition, asked.name)


def _is_creatable(topic: Topic | _Missing) -> bool:
    return isinstance(topic, _Missing) and topic.error is ErrorCode.unknown_topic_or_partition


async def _create_and_reply(ctx: Context, found: list[Topic | _Missing], included: _Included) -> Buffers:
    """Creates missing topics before it replies. The connection's next request waits, since it is likely to use them."""
    for at, topic in enumerate(found):
        if isinstance(topic, _Missing) and topic.name is not None and _is_creatable(topic):
            created = _refused_creation(ctx, topic.name) or await ctx.broker.ensure_topic(topic.name)
            if isinstance(created, Refused):
                found[at] = topic._replace(error=created.error)
            else:
                found[at] = created
    return _reply(ctx, found, included)


def _refused_creation(ctx: Context, name: str) -> Refused | None:
    if not ctx.broker.config.auto_create_topics_enable or permits(ctx, rules.METADATA_CREATE_ANY):
        return None
    return refusal(ctx, rules.METADATA_CREATE, name)


def _reply(ctx: Context, topics: Sequence[Topic | _Missing], included: _Included) -> Buffers:
    version = ctx.version
    flexible = version >= _FLEXIBLE_FROM
    nodes = ctx.broker.metadata.nodes(ctx.connection.listener)
    hidden = _hidden_brokers(ctx, nodes)
    out = _head(ctx, flexible, nodes)
    out += uvarint_bytes(len(topics) + 1) if flexible else I32.pack(len(topics))
    for topic in topics:
        operations = NOT_REQUESTED
        if included.of_topics and topic.name is not None:
            operations = authorized_operations(ctx, ResourceType.TOPIC, topic.name)
        if isinstance(topic, _Missing):
            out += _missing_bytes(version, topic, operations)
        else:
            out += _topic_bytes(version, topic, operations, hidden)
    if 8 <= version <= 10:
        operations = NOT_REQUESTED
        if included.of_cluster:
            operations = cluster_operations(ctx, rules.METADATA_CLUSTER_OPERATIONS)
        out += I32.pack(operations)
    if version >= 13:
        out += b"\0\0"
    if flexible:
        out.append(0)
    return [ctx.response_header, out]


def _hidden_brokers(ctx: Context, nodes: Sequence[Node]) -> frozenset[int]:
    """Returns the live brokers that do not have the listener of this connection, nearly always none."""
    known = {node.id for node in nodes}
    return frozenset(node.id for node in ctx.broker.metadata.nodes() if node.id not in known)


def _head(ctx: Context, flexible: bool, nodes: Sequence[Node]) -> bytearray:
    """Encodes everything before the topics."""
    broker, version = ctx.broker, ctx.version
    writer = Writer()
    if version >= 3:
        writer.i32(0)
    write_count = writer.compact_array_length if flexible else writer.array_length
    write_string = writer.compact_string if flexible else writer.string
    write_nullable = writer.nullable_compact_string if flexible else writer.nullable_string
    write_count(len(nodes))
    for node in nodes:
        writer.i32(node.id)
        write_string(node.host)
        writer.i32(node.port)
        if version >= 1:
            write_nullable(node.rack)
        if flexible:
            writer.no_tagged_fields()
    if version >= 2:
        write_nullable(broker.metadata.cluster_id)
    if version >= 1:
        writer.i32(broker.metadata.controller_id)
    return writer.out


def _topic_bytes(version: int, topic: Topic, operations: int, hidden: frozenset[int]) -> bytes:
    partitions = topic.layouts
    parts = [_topic_head(version, ErrorCode.none, topic.name, topic.id, topic.internal)]
    parts.append(uvarint_bytes(len(partitions) + 1) if version >= _FLEXIBLE_FROM else I32.pack(len(partitions)))
    parts += [_partition_bytes(version, partition, hidden) for partition in partitions]
    parts.append(_topic_tail(version, operations))
    return b"".join(parts)


def _missing_bytes(version: int, topic: _Missing, operations: int) -> bytes:
    head = _topic_head(version, topic.error, topic.name, topic.topic_id, is_internal=False)
    no_partitions = b"\x01" if version >= _FLEXIBLE_FROM else b"\0\0\0\0"
    return head + no_partitions + _topic_tail(version, operations)


def _topic_head(version: int, error: ErrorCode, name: str | None, topic_id: TopicId, is_internal: bool) -> bytes:
    code = error.to_bytes(2, "big", signed=True)
    internal = b"\x01" if is_internal else b"\0"
    if version < _FLEXIBLE_FROM:
        return code + legacy_string_bytes(name or "") + (internal if version >= 1 else b"")
    named = b"\0" if name is None and version >= 12 else compact_string_bytes(name or "")
    return code + named + (topic_id.bytes if version >= 10 else b"") + internal


def _topic_tail(version: int, operations: int) -> bytes:
    operations_bytes = I32.pack(operations) if version >= 8 else b""
    return operations_bytes + b"\0" if version >= _FLEXIBLE_FROM else operations_bytes


def _partition_bytes(version: int, partition: Layout, hidden: frozenset[int]) -> bytes:
    """Packs error, index, leader, leader epoch (v7), replicas, in-sync replicas, offline replicas (v5) as one
    struct."""
    index, leader, leader_epoch, replicas, isr, offline, _ = partition
    error = ErrorCode.none if leader >= 0 else ErrorCode.leader_not_available
    if leader in hidden:
        error = ErrorCode.listener_not_found if version >= _LISTENER_NOT_FOUND_FROM else ErrorCode.leader_not_available
        leader = NO_LEADER
    counts = len(replicas), len(isr), len(offline)
    layout = _layout(version, *counts)
    if version >= _FLEXIBLE_FROM:
        brokers = (len(replicas) + 1, *replicas, len(isr) + 1, *isr, len(offline) + 1, *offline)
        return layout.pack(error, index, leader, leader_epoch, *brokers, 0)
    epoch = (leader_epoch,) if version >= 7 else ()
    missing = (len(offline), *offline) if version >= 5 else ()
    return layout.pack(error, index, leader, *epoch, len(replicas), *replicas, len(isr), *isr, *missing)


@cache
def _layout(version: int, replica_count: int, isr_count: int, offline_count: int) -> Struct:
    """Returns the struct for these numbers of replicas. A compact count takes one byte, since a partition has far fewer
    than 127 replicas."""
    if version >= _FLEXIBLE_FROM:
        return Struct(f">hiiiB{replica_count}iB{isr_count}iB{offline_count}iB")
    epoch = "i" if version >= 7 else ""
    offline = f"i{offline_count}i" if version >= 5 else ""
    return Struct(f">hii{epoch}i{replica_count}ii{isr_count}i{offline}")
