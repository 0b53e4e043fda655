"""LeaveGroup (key 13), v0-5.

Behaviour: removes members from a group, which continues without them at once. An administrator can name a static member
by its instance id alone.
Versions: up to v2 one member, whose error is the reply's; v3 several, each with an error; v4 flexible; v5 a reason.
Not implemented: the reason is not kept.
"""

from __future__ import annotations

from typing import Any

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, part, reply
from ottla.broker.api.authorization import refusal
from ottla.broker.api.coordinator_calls import ask
from ottla.machines.groups.replies import LeaveReply
from ottla.machines.groups.requests import LeaveGroup, LeavingMember
from ottla.protocol.model.errors import ErrorCode, Refused

API = Api(13, "LeaveGroup", (0, 5))


async def handle(ctx: Context, request: Any) -> object:
    """Removes one member (up to v2) or several (from v3 on) from a group."""
    if ctx.version < 3:
        leaving: tuple[LeavingMember, ...] = (LeavingMember(member_id=request.member_id),)
    else:
        leaving = tuple(
            LeavingMember(member_id=member.member_id, instance_id=member.group_instance_id)
            for member in request.members
        )
    leave = LeaveGroup(group=request.group_id, members=leaving)
    refused = refusal(ctx, rules.LEAVE_GROUP, request.group_id)
    outcome = await ask(ctx, leave, request.group_id, LeaveReply) if refused is None else refused
    if isinstance(outcome, Refused):
        outcome = LeaveReply(outcome.error)
    error = outcome.error
    if ctx.version < 3 and error is ErrorCode.none:
        error = outcome.members[0].error
    members = tuple(
        part(
            ctx,
            "MemberResponse",
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            error_code=member.error,
        )
        for member in (outcome.members if ctx.version >= 3 else ())
    )
    return reply(ctx, error_code=error, members=members)
