"""ReplicaWaitOver (key 20001), v0: between brokers.

Behaviour: the follower's fetch that waits on this connection is answered with what there is. There is no reply.
Versions: v0.
Not implemented: nothing.
"""

from __future__ import annotations

from ottla.handlers.api import Api, Buffers, Context
from ottla.wire.replica_wait import API_KEY

API = Api(key=API_KEY, name="ReplicaWaitOver", versions=(0, 0))


def handle_raw(ctx: Context, body: memoryview) -> Buffers | None:
    waiting, ctx.connection.waiting_fetch = ctx.connection.waiting_fetch, None
    if waiting is not None:
        waiting.expire()
    return None
