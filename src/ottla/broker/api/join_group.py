"""JoinGroup (key 11), v0-9.

Behaviour: adds a member to the next generation of its group. The reply waits until all members of the previous
generation have rejoined or timed out. The leader's reply has the metadata of all members.
Versions: v1 rebalance timeout (before, the session timeout); v4 a new member first gets its id, with
MEMBER_ID_REQUIRED, and joins again with it; v5 static members; v6 flexible; v7 the protocol type; v8 a reason; v9 a
static leader that returns is told to skip the assignment.
Not implemented: the reason is not kept.
"""

from __future__ import annotations

from typing import Any

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, part, reply
from ottla.broker.api.authorization import refusal
from ottla.broker.api.coordinator_calls import ask, client_host, milliseconds
from ottla.machines.groups.replies import JoinReply
from ottla.machines.groups.requests import JoinGroup
from ottla.protocol.model.errors import Refused

API = Api(11, "JoinGroup", (0, 9))


async def handle(ctx: Context, request: Any) -> object:
    """Joins a classic group; replies when the join phase ends."""
    refused = refusal(ctx, rules.JOIN_GROUP, request.group_id)
    outcome = await ask(ctx, _to_join(ctx, request), request.group_id, JoinReply) if refused is None else refused
    if isinstance(outcome, Refused):
        outcome = JoinReply(error=outcome.error, member_id=request.member_id)
    # Up to version 6, a reply without a protocol has an empty one.
    protocol = outcome.protocol if ctx.version >= 7 else outcome.protocol or ""
    members = tuple(
        part(
            ctx,
            "JoinGroupResponseMember",
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            metadata=member.metadata,
        )
        for member in outcome.members
    )
    return reply(
        ctx,
        error_code=outcome.error,
        generation_id=outcome.generation,
        protocol_type=outcome.protocol_type,
        protocol_name=protocol,
        leader=outcome.leader,
        skip_assignment=outcome.skip_assignment,
        member_id=outcome.member_id,
        members=members,
    )


def _to_join(ctx: Context, request: Any) -> JoinGroup:
    session_timeout_ms = milliseconds(request.session_timeout)
    return JoinGroup(
        group=request.group_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id if ctx.version >= 5 else None,
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=milliseconds(request.rebalance_timeout) if ctx.version >= 1 else session_timeout_ms,
        client_id=ctx.client_id or "",
        client_host=client_host(ctx),
        fresh_id=ctx.broker.groups.fresh_id(),
        needs_known_id=ctx.version >= 4,
        can_skip_assignment=ctx.version >= 9,
    )
