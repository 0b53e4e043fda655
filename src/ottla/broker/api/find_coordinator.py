"""FindCoordinator (key 10), v0-6.

Behaviour: returns the broker that leads a group's partition of `__consumer_offsets`, or a transactional id's partition
of `__transaction_state`, with its address at the listener of the request. The first request creates the topic.
COORDINATOR_NOT_AVAILABLE while the partition has no leader.
Versions: v1 key type and message; v3 flexible; v4 several keys at once.
Not implemented: share groups (v6).
"""

from __future__ import annotations

from typing import Any

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, part, reply
from ottla.broker.api.authorization import refusal
from ottla.broker.endpoints import Node
from ottla.protocol.model.errors import ErrorCode, Refused

API = Api(10, "FindCoordinator", (0, 6))

_GROUP, _TRANSACTION = 0, 1
"""The types of keys."""


async def handle(ctx: Context, request: Any) -> object:
    """Returns the coordinator of each group or transactional id."""
    kind = request.key_type if ctx.version >= 1 else _GROUP
    if ctx.version < 4:
        return reply(ctx, **_answer(await _find(ctx, kind, request.key)))
    # Look up each key once, however often it is named.
    found = {key: await _find(ctx, kind, key) for key in dict.fromkeys(request.coordinator_keys)}
    coordinators = tuple(part(ctx, "Coordinator", key=key, **_answer(found[key])) for key in request.coordinator_keys)
    return reply(ctx, coordinators=coordinators)


async def _find(ctx: Context, kind: int, key: str) -> Node | Refused:
    if kind == _GROUP:
        refused = refusal(ctx, rules.FIND_GROUP_COORDINATOR, key)
        return refused or await ctx.broker.groups.coordinator_of(key, ctx.connection.listener)
    if kind == _TRANSACTION:
        refused = refusal(ctx, rules.FIND_TRANSACTION_COORDINATOR, key)
        return refused or await ctx.broker.transactions.coordinator_of(key, ctx.connection.listener)
    return Refused(ErrorCode.invalid_request, f"Unsupported coordinator key type: {kind}.")


def _answer(found: Node | Refused) -> dict[str, Any]:
    if isinstance(found, Refused):
        return {
            "error_code": found.error,
            "error_message": found.message,
            "node_id": -1,
            "host": "",
            "port": -1,
        }
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "node_id": found.id,
        "host": found.host,
        "port": found.port,
    }
