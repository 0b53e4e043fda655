"""DescribeGroups (key 15), v0-6.

Behaviour: returns state, protocol and members of groups of the classic protocol, with metadata and assignments while a
group is Stable. A group that does not exist is Dead.
Versions: v3 authorized operations; v4 static members; v5 flexible; v6 a group that does not exist is an error,
GROUP_ID_NOT_FOUND, with a message.
Not implemented: nothing.
"""

from __future__ import annotations

from typing import Any

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, part, reply
from ottla.broker.api.authorized_operations import NOT_REQUESTED, authorized_operations
from ottla.broker.api.coordinator_calls import ask_permitted
from ottla.machines.groups.replies import DescribeReply
from ottla.machines.groups.requests import DescribeGroup
from ottla.protocol.model.acl import ResourceType
from ottla.protocol.model.errors import ErrorCode, Refused

API = Api(15, "DescribeGroups", (0, 6))


async def handle(ctx: Context, request: Any) -> object:
    """Describes groups of the classic protocol, each with its own error."""
    asked = [(DescribeGroup(group=name), name) for name in request.groups]
    outcomes = await ask_permitted(ctx, rules.DESCRIBE_GROUPS, asked, DescribeReply)
    include_operations = ctx.version >= 3 and request.include_authorized_operations
    described = [
        _described(ctx, name, outcome, include_operations) for (_, name), outcome in zip(asked, outcomes, strict=True)
    ]
    return reply(ctx, groups=tuple(described))


def _described(ctx: Context, name: str, outcome: DescribeReply | Refused, include_operations: bool) -> Any:
    message = None
    if isinstance(outcome, Refused):
        message = outcome.message
        outcome = DescribeReply(error=outcome.error, state="")
    error = outcome.error
    if error is ErrorCode.group_id_not_found:
        message = f"Group {name} does not exist or does not use the classic protocol."
        error = error if ctx.version >= 6 else ErrorCode.none
    members = tuple(
        part(
            ctx,
            "DescribedGroupMember",
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata,
            member_assignment=member.assignment,
        )
        for member in outcome.members
    )
    has_operations = include_operations and error is ErrorCode.none
    return part(
        ctx,
        "DescribedGroup",
        error_code=error,
        error_message=message,
        group_id=name,
        group_state=outcome.state,
        protocol_type=outcome.protocol_type,
        protocol_data=outcome.protocol,
        members=members,
        authorized_operations=authorized_operations(ctx, ResourceType.GROUP, name) if has_operations else NOT_REQUESTED,
    )
