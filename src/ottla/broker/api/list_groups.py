"""ListGroups (key 16), v0-5.

Behaviour: lists the groups that this broker coordinates; a client asks all brokers. A group that has only offsets is
Empty and of the classic type.
Versions: v3 flexible; v4 states, also as a filter; v5 types, also as a filter.
Not implemented: share and streams groups.
"""

from __future__ import annotations

from typing import Any

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, part, reply
from ottla.broker.api.authorization import permits
from ottla.machines.groups.replies import ListGroupsReply
from ottla.machines.groups.requests import ListGroups
from ottla.protocol.model.errors import ErrorCode, Refused

API = Api(16, "ListGroups", (0, 5))


async def handle(ctx: Context, request: Any) -> object:
    """Lists the groups that this broker coordinates, filtered by state and type."""
    wanted = ListGroups(
        states=frozenset(request.states_filter if ctx.version >= 4 else ()),
        types=frozenset(request.types_filter if ctx.version >= 5 else ()),
    )
    outcome = await ctx.broker.groups.ask_all(wanted)
    if isinstance(outcome, Refused):
        # A partition has just moved to another broker. Clients retry after COORDINATOR_NOT_AVAILABLE, but not after
        # NOT_COORDINATOR.
        has_moved = outcome.error is ErrorCode.not_coordinator
        error = ErrorCode.coordinator_not_available if has_moved else outcome.error
        return reply(ctx, error_code=error, groups=())
    sees_all = permits(ctx, rules.LIST_ALL_GROUPS)
    groups = tuple(
        part(
            ctx,
            "ListedGroup",
            group_id=group.group,
            protocol_type=group.protocol_type,
            group_state=group.state,
            group_type=group.type.lower(),
        )
        for listed in outcome
        if isinstance(listed, ListGroupsReply)
        for group in listed.groups
        if sees_all or permits(ctx, rules.LIST_GROUPS, group.group)
    )
    return reply(ctx, error_code=ErrorCode.none, groups=groups)
