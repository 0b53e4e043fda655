"""CreatePartitions (key 37), v0-3.

Behaviour: raises a topic's partition count to the given total. A manual assignment places each new partition on the
brokers that it names, in that order: the first is the preferred leader.
Versions: v2 flexible.
Not implemented: the timeout.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, part, reply
from ottla.broker.api.authorization import refusal
from ottla.protocol.model.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from kio.schema.create_partitions.v3 import CreatePartitionsRequest
    from kio.schema.create_partitions.v3.request import CreatePartitionsTopic

API = Api(37, "CreatePartitions", (0, 3))


async def handle(ctx: Context, request: CreatePartitionsRequest) -> object:
    """Adds partitions to topics, each with its own result. A topic that is named twice is refused."""
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
    refused = refusal(ctx, rules.CREATE_PARTITIONS, asked.name)
    if refused is not None:
        return refused
    topic = ctx.broker.topics.get(asked.name)
    if topic is None:
        return Refused(ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition.")
    existing = topic.partition_count
    if asked.count <= existing:
        return Refused(
            ErrorCode.invalid_partitions, f"Topic already has {existing} partition(s); the new count must be larger."
        )
    assignment = None
    if asked.assignments is not None:
        assignment = [tuple(map(int, each.broker_ids)) for each in asked.assignments]
        added = asked.count - existing
        if len(assignment) != added:
            return Refused(
                ErrorCode.invalid_replica_assignment,
                f"Attempted to add {added} partition(s), but {len(assignment)} assignment(s) were specified.",
            )
    return await ctx.broker.metadata.admin.create_partitions(
        topic, asked.count, assignment=assignment, validate_only=validate_only
    )
