"""DeleteGroups (key 42), v0-2.

Behaviour: deletes groups without members, with their offsets. Other groups get NON_EMPTY_GROUP.
Versions: v2 flexible.
Not implemented: nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, part, reply
from ottla.broker.api.coordinator_calls import ask_permitted
from ottla.machines.groups.replies import DeleteGroupReply
from ottla.machines.groups.requests import DeleteGroup

if TYPE_CHECKING:
    from kio.schema.delete_groups.v2 import DeleteGroupsRequest

API = Api(42, "DeleteGroups", (0, 2))


async def handle(ctx: Context, request: DeleteGroupsRequest) -> object:
    """Deletes empty groups with their offsets, each with its own result."""
    asked = [(DeleteGroup(group=name), str(name)) for name in dict.fromkeys(request.groups_names)]
    outcomes = await ask_permitted(ctx, rules.DELETE_GROUPS, asked, DeleteGroupReply)
    results = tuple(
        part(ctx, "DeletableGroupResult", group_id=name, error_code=outcome.error)
        for (_, name), outcome in zip(asked, outcomes, strict=True)
    )
    return reply(ctx, results=results)
