"""AlterPartitionReassignments (key 45), v0-1.

Behaviour: reassigns the replicas of partitions, or cancels a reassignment (null replicas). The new replicas are first
added to the old ones; the old ones are removed when all new ones are in sync. Must be sent to the controller.
Versions: v1 says whether the replication factor may change.
Not implemented: the timeout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, part, reply
from ottla.broker.api.authorization import refusal
from ottla.protocol.model.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from kio.schema.alter_partition_reassignments.v0 import AlterPartitionReassignmentsRequest

API = Api(45, "AlterPartitionReassignments", (0, 1))


async def handle(ctx: Context, request: AlterPartitionReassignmentsRequest) -> object:
    """Starts or cancels (null replicas) reassignments. A broker without a cluster refuses them all."""
    targets = {
        (str(topic.name), int(each.partition_index)): None if each.replicas is None else tuple(map(int, each.replicas))
        for topic in request.topics
        for each in topic.partitions
    }
    refused = refusal(ctx, rules.REASSIGN)
    answers = refused or await ctx.broker.metadata.partition_admin.reassign(targets)
    if isinstance(answers, Refused):
        return reply(ctx, error_code=answers.error, error_message=answers.message, responses=())
    responses = tuple(
        part(
            ctx,
            "ReassignableTopicResponse",
            name=topic.name,
            partitions=tuple(
                _result(ctx, each.partition_index, answers.get((topic.name, each.partition_index)))
                for each in topic.partitions
            ),
        )
        for topic in request.topics
    )
    return reply(ctx, error_code=ErrorCode.none, error_message=None, responses=responses)


def _result(ctx: Context, index: int, refused: Refused | None) -> Any:
    return part(
        ctx,
        "ReassignablePartitionResponse",
        partition_index=index,
        error_code=ErrorCode.none if refused is None else refused.error,
        error_message=None if refused is None else refused.message,
    )
