"""FindCoordinator (key 10), v0-6.

Behaviour: answers COORDINATOR_NOT_AVAILABLE for every group and transactional id. It is here because librdkafka takes a
broker without this API for one from before LZ4, and sends such batches uncompressed without a word.
Versions: v1 key type and message; v3 flexible; v4 several keys at once.
Not implemented: coordinators. There are no consumer groups and no transactions yet.
"""

from __future__ import annotations

from typing import Any

from ottla.handlers.api import Api, Context, part, reply
from ottla.model.errors import ErrorCode

API = Api(10, "FindCoordinator", (0, 6))

_NOBODY = {
    "node_id": -1,
    "host": "",
    "port": -1,
    "error_code": ErrorCode.coordinator_not_available,
    "error_message": "this broker has no consumer groups and no transactions yet: assign partitions instead",
}


async def handle(ctx: Context, request: Any) -> object:
    keys = getattr(request, "coordinator_keys", ())
    return reply(ctx, coordinators=tuple(part(ctx, "Coordinator", key=key, **_NOBODY) for key in keys), **_NOBODY)
