"""Heartbeat (key 12), v0-4.

Behaviour: a member of the classic protocol shows that it is alive, and hears whether it has to join again. While the
coordinator still reads the log, everybody is taken for alive.
Versions: v3 static members; v4 flexible.
Not implemented: nothing.
"""

from __future__ import annotations

from typing import Any

from ottla.handlers.api import Api, Context, reply
from ottla.handlers.coordinator_calls import ask
from ottla.machines.groups.replies import HeartbeatReply
from ottla.machines.groups.requests import Heartbeat
from ottla.model.errors import ErrorCode

API = Api(12, "Heartbeat", (0, 4))


async def handle(ctx: Context, request: Any) -> object:
    heartbeat = Heartbeat(
        group=request.group_id,
        generation=request.generation_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id if ctx.version >= 3 else None,
    )
    error = (await ask(ctx, heartbeat, request.group_id, HeartbeatReply)).error
    if error is ErrorCode.coordinator_load_in_progress:
        error = ErrorCode.none
    return reply(ctx, error_code=error)
