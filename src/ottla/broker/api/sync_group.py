"""SyncGroup (key 14), v0-5.

Behaviour: the leader of a generation submits the assignments of all members, and each member gets its own. The reply
waits for the leader's request.
Versions: v3 static members; v4 flexible; v5 names the protocol, which must be that of the generation.
Not implemented: nothing.
"""

from __future__ import annotations

from typing import Any

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, reply
from ottla.broker.api.authorization import refusal
from ottla.broker.api.coordinator_calls import ask
from ottla.machines.groups.replies import SyncReply
from ottla.machines.groups.requests import SyncGroup
from ottla.protocol.model.errors import ErrorCode, Refused

API = Api(14, "SyncGroup", (0, 5))


async def handle(ctx: Context, request: Any) -> object:
    """Returns the member's assignment, once the leader of the group has sent the assignments."""
    outcome = refusal(ctx, rules.SYNC_GROUP, request.group_id) or await _sync(ctx, request)
    if isinstance(outcome, Refused):
        outcome = SyncReply(error=outcome.error)
    return reply(
        ctx,
        error_code=outcome.error,
        protocol_type=outcome.protocol_type,
        protocol_name=outcome.protocol,
        assignment=outcome.assignment,
    )


async def _sync(ctx: Context, request: Any) -> SyncReply | Refused:
    names_protocol = ctx.version >= 5
    if names_protocol and (request.protocol_type is None or request.protocol_name is None):
        return Refused(ErrorCode.inconsistent_group_protocol)
    sync = SyncGroup(
        group=request.group_id,
        generation=request.generation_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id if ctx.version >= 3 else None,
        protocol_type=request.protocol_type if names_protocol else None,
        protocol=request.protocol_name if names_protocol else None,
        assignments=tuple((each.member_id, each.assignment) for each in request.assignments),
    )
    return await ask(ctx, sync, request.group_id, SyncReply)
