"""ListPartitionReassignments (key 46), v0.

Behaviour: lists the ongoing reassignments of all partitions or of the requested ones.
Versions: v0.
Not implemented: the timeout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, part, reply
from ottla.broker.api.authorization import refusal
from ottla.protocol.model.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.list_partition_reassignments.v0 import ListPartitionReassignmentsRequest

    from ottla.machines.controller.partition_requests import Reassignment

API = Api(46, "ListPartitionReassignments", (0, 0))


async def handle(ctx: Context, request: ListPartitionReassignmentsRequest) -> object:
    """Returns the reassignments in progress, of the given partitions or of all."""
    refused = refusal(ctx, rules.LIST_REASSIGNMENTS)
    if refused is not None:
        return reply(ctx, error_code=refused.error, error_message=refused.message, topics=())
    asked = (
        None
        if request.topics is None
        else [(str(topic.name), int(index)) for topic in request.topics for index in topic.partition_indexes]
    )
    found = ctx.broker.metadata.partition_admin.reassignments(asked)
    names = dict.fromkeys(name for name, _ in found)
    topics = tuple(
        part(
            ctx,
            "OngoingTopicReassignment",
            name=name,
            partitions=tuple(_ongoing(ctx, index, each) for (topic, index), each in found.items() if topic == name),
        )
        for name in names
    )
    return reply(ctx, error_code=ErrorCode.none, error_message=None, topics=topics)


def _ongoing(ctx: Context, index: int, reassignment: Reassignment) -> Any:
    return part(
        ctx,
        "OngoingPartitionReassignment",
        partition_index=index,
        replicas=reassignment.replicas,
        adding_replicas=reassignment.adding,
        removing_replicas=reassignment.removing,
    )
