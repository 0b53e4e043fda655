"""DescribeTopicPartitions (key 75), v0.

Behaviour: returns topics with their partitions, sorted by name, with a limited number of partitions per reply. The
cursor says where the next reply begins. No topics means all of them. Authorized operations are always included.
Versions: v0 flexible.
Not implemented: the last known eligible leader replicas.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, part, reply
from ottla.broker.api.authorization import permits
from ottla.broker.api.authorized_operations import NOT_REQUESTED, authorized_operations
from ottla.protocol.model.acl import ResourceType
from ottla.protocol.model.errors import ErrorCode
from ottla.protocol.model.topic_names import check_name

if TYPE_CHECKING:
    from kio.schema.describe_topic_partitions.v0 import DescribeTopicPartitionsRequest

    from ottla.broker.partition.layout import Layout
    from ottla.broker.topics.topics import Topic

API = Api(75, "DescribeTopicPartitions", (0, 0))


async def handle(ctx: Context, request: DescribeTopicPartitionsRequest) -> object:
    """Describes topics in order of their names, and returns a cursor if the limit of partitions cuts the list off."""
    room = max(1, min(request.response_partition_limit, ctx.broker.config.max_request_partition_size_limit))
    topics = []
    next_cursor = None
    rule = rules.DESCRIBE_TOPIC_PARTITIONS if request.topics else rules.DESCRIBE_ALL_TOPIC_PARTITIONS
    for name, topic, first in _in_order(ctx, request):
        if not permits(ctx, rule, name):
            if rule.error is not None:
                topics.append(_missing(ctx, name, rule.error))
            continue
        if topic is None:
            refused = check_name(name)
            topics.append(_missing(ctx, name, refused.error if refused else ErrorCode.unknown_topic_or_partition))
            continue
        if room == 0:
            next_cursor = part(ctx, "Cursor", topic_name=name, partition_index=first)
            break
        shown = topic.layouts[first : first + room]
        room -= len(shown)
        topics.append(_described(ctx, topic, shown))
        if first + len(shown) < topic.partition_count:
            next_cursor = part(ctx, "Cursor", topic_name=name, partition_index=first + len(shown))
            break
    return reply(ctx, topics=tuple(topics), next_cursor=next_cursor)


def _in_order(ctx: Context, request: DescribeTopicPartitionsRequest) -> Iterator[tuple[str, Topic | None, int]]:
    """Iterates over the names from the cursor on, with the topic if it exists and the first partition to show."""
    topics = ctx.broker.topics
    names: list[str] = sorted({topic.name for topic in request.topics}) or [topic.name for topic in topics]
    cursor = request.cursor
    for name in names:
        if cursor is not None and name < cursor.topic_name:
            continue
        is_cursor = cursor is not None and name == cursor.topic_name
        yield name, topics.get(name), max(0, cursor.partition_index) if cursor is not None and is_cursor else 0


def _missing(ctx: Context, name: str, error: ErrorCode) -> Any:
    is_permitted = error is not ErrorCode.topic_authorization_failed
    return part(
        ctx,
        "DescribeTopicPartitionsResponseTopic",
        error_code=error,
        name=name,
        topic_id=None,
        partitions=(),
        topic_authorized_operations=authorized_operations(ctx, ResourceType.TOPIC, name)
        if is_permitted
        else NOT_REQUESTED,
    )


def _described(ctx: Context, topic: Topic, partitions: list[Layout]) -> Any:
    return part(
        ctx,
        "DescribeTopicPartitionsResponseTopic",
        error_code=ErrorCode.none,
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.internal,
        partitions=tuple(_partition(ctx, partition) for partition in partitions),
        topic_authorized_operations=authorized_operations(ctx, ResourceType.TOPIC, topic.name),
    )


def _partition(ctx: Context, partition: Layout) -> Any:
    return part(
        ctx,
        "DescribeTopicPartitionsResponsePartition",
        error_code=ErrorCode.none if partition.leader >= 0 else ErrorCode.leader_not_available,
        partition_index=partition.partition,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.isr,
        eligible_leader_replicas=partition.eligible,
        last_known_elr=(),
        offline_replicas=partition.offline,
    )
