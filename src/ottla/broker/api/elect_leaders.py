"""ElectLeaders (key 43), v0-2.

Behaviour: makes the first replica of each partition its leader if it is in sync. An unclean election makes any
available replica the leader of a partition without one. Null partitions mean all of them. Must be sent to the
controller.
Versions: v1 unclean elections and a top-level error; v2 flexible.
Not implemented: the timeout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, part, reply
from ottla.broker.api.authorization import refusal
from ottla.protocol.model.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from kio.schema.elect_leaders.v2 import ElectLeadersRequest

API = Api(43, "ElectLeaders", (0, 2))

PREFERRED, UNCLEAN = 0, 1
"""The types of elections, with the protocol's numbers."""


async def handle(ctx: Context, request: ElectLeadersRequest) -> object:
    """Elects preferred leaders, or unclean ones, for the given partitions or for all."""
    asked = (
        None
        if request.topic_partitions is None
        else [(str(topic.topic), int(index)) for topic in request.topic_partitions for index in topic.partitions]
    )
    refused = refusal(ctx, rules.ELECT_LEADERS)
    if refused is not None:
        return reply(ctx, error_code=refused.error, replica_election_results=())
    kind = request.election_type if ctx.version >= 1 else PREFERRED
    if kind not in (PREFERRED, UNCLEAN):
        return reply(ctx, error_code=ErrorCode.invalid_request, replica_election_results=())
    answers = await ctx.broker.metadata.partition_admin.elect(asked, unclean=kind == UNCLEAN)
    if isinstance(answers, Refused):
        return reply(ctx, error_code=answers.error, replica_election_results=())
    names = dict.fromkeys(name for name, _ in answers)
    results = tuple(
        part(
            ctx,
            "ReplicaElectionResult",
            topic=name,
            partition_result=tuple(
                _result(ctx, index, said) for (topic, index), said in answers.items() if topic == name
            ),
        )
        for name in names
    )
    return reply(ctx, error_code=ErrorCode.none, replica_election_results=results)


def _result(ctx: Context, index: int, refused: Refused | None) -> Any:
    return part(
        ctx,
        "PartitionResult",
        partition_id=index,
        error_code=ErrorCode.none if refused is None else refused.error,
        error_message=None if refused is None else refused.message,
    )
