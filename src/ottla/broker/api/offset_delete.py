"""OffsetDelete (key 47), v0.

Behaviour: deletes a group's offsets for partitions that no member subscribes to (otherwise GROUP_SUBSCRIBED_TO_TOPIC).
Versions: v0 only.
Not implemented: nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, part, reply
from ottla.broker.api.authorization import permits, refusal
from ottla.broker.api.coordinator_calls import ask
from ottla.machines.groups.replies import DeleteOffsetsReply
from ottla.machines.groups.requests import DeleteOffsets
from ottla.protocol.model.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.offset_delete.v0 import OffsetDeleteRequest
    from kio.schema.offset_delete.v0.request import OffsetDeleteRequestTopic

API = Api(47, "OffsetDelete", (0, 0))


async def handle(ctx: Context, request: OffsetDeleteRequest) -> object:
    """Deletes committed offsets of topics to which the group does not subscribe."""
    refused = refusal(ctx, rules.OFFSET_DELETE, request.group_id)
    if refused is not None:
        return reply(ctx, error_code=refused.error, topics=())
    asked = [(topic, _existing(ctx, topic)) for topic in request.topics]
    delete = DeleteOffsets(
        group=request.group_id, topics=tuple((str(topic.name), partitions) for topic, partitions in asked)
    )
    outcome = await ask(ctx, delete, request.group_id, DeleteOffsetsReply)
    if not isinstance(outcome, DeleteOffsetsReply) or outcome.error is not ErrorCode.none:
        return reply(ctx, error_code=outcome.error, topics=())
    errors = {(topic, partition): error for topic, partition, error in outcome.partitions}
    topics = tuple(_deleted(ctx, topic, errors) for topic in request.topics)
    return reply(ctx, error_code=ErrorCode.none, topics=topics)


def _existing(ctx: Context, asked: OffsetDeleteRequestTopic) -> tuple[int, ...]:
    if not permits(ctx, rules.OFFSET_DELETE_TOPIC, asked.name):
        return ()
    topic = ctx.broker.topics.get(asked.name)
    indexes = (partition.partition_index for partition in asked.partitions)
    return () if topic is None else tuple(index for index in indexes if topic.has(index))


def _deleted(ctx: Context, asked: OffsetDeleteRequestTopic, errors: dict[tuple[str, int], ErrorCode]) -> Any:
    refused = refusal(ctx, rules.OFFSET_DELETE_TOPIC, asked.name)
    otherwise = ErrorCode.unknown_topic_or_partition if refused is None else refused.error
    partitions = tuple(
        part(
            ctx,
            "OffsetDeleteResponsePartition",
            partition_index=partition.partition_index,
            error_code=errors.get((asked.name, partition.partition_index), otherwise),
        )
        for partition in asked.partitions
    )
    return part(ctx, "OffsetDeleteResponseTopic", name=asked.name, partitions=partitions)
