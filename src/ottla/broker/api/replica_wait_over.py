"""ReplicaWaitOver (key 20001), v0: between brokers.

Behaviour: a follower asks for an immediate reply to the fetch that is parked on this connection. There is no reply to
this request itself.
Versions: v0.
Not implemented: nothing.
"""

from __future__ import annotations

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Buffers, Context
from ottla.broker.api.authorization import permits
from ottla.protocol.wire.replica_wait import API_KEY

API = Api(key=API_KEY, name="ReplicaWaitOver", versions=(0, 0))


def handle_raw(ctx: Context, body: memoryview) -> Buffers | None:
    """Ends the wait of the connection's pending fetch. Sends no reply of its own."""
    if not permits(ctx, rules.REPLICA_WAIT_OVER):
        return None
    waiting, ctx.connection.waiting_fetch = ctx.connection.waiting_fetch, None
    if waiting is not None:
        waiting.expire()
    return None
