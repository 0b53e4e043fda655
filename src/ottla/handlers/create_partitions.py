"""CreatePartitions (key 37), v0-3.

Behaviour: raises a topic's partition count to the given total. A manual assignment must name this broker for each new
partition.
Versions: v2 flexible.
Not implemented: the timeout.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ottla.handlers.api import Api, Context, part, reply
from ottla.handlers.assignments import check_assignment
from ottla.model.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from kio.schema.create_partitions.v3 import CreatePartitionsRequest
    from kio.schema.create_partitions.v3.request import CreatePartitionsTopic

API = Api(37, "CreatePartitions", (0, 3))


async def handle(ctx: Context, request: CreatePartitionsRequest) -> object:
    times_named = Counter(topic.name for topic in request.topics)
    results = []
    for topic in {topic.name: topic for topic in request.topics}.values():
        if times_named[topic.name] > 1:
            refused: Refused | None = Refused(ErrorCode.invalid_request, "Duplicate topic name.")
        else:
            refused = await _create(ctx, topic, request.validate_only)
        results.append(
            part(
                ctx,
                "CreatePartitionsTopicResult",
                name=topic.name,
                error_code=refused.error if refused else ErrorCode.none,
                error_message=refused.message if refused else None,
            )
        )
    return reply(ctx, results=tuple(results))


async def _create(ctx: Context, asked: CreatePartitionsTopic, validate_only: bool) -> Refused | None:
    topic = ctx.broker.topics.get(asked.name)
    if topic is None:
        return Refused(ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition.")
    existing = topic.partition_count
    if asked.count <= existing:
        return Refused(ErrorCode.invalid_partitions, f"Topic already has {existing} partition(s), not fewer.")
    if asked.assignments is not None:
        added = asked.count - existing
        if len(asked.assignments) != added:
            return Refused(
                ErrorCode.invalid_replica_assignment,
                f"{len(asked.assignments)} assignment(s) for {added} new partition(s).",
            )
        for assignment in asked.assignments:
            refused = check_assignment(ctx.broker, assignment.broker_ids)
            if refused is not None:
                return refused
    return await ctx.broker.create_partitions(topic, asked.count, validate_only=validate_only)
