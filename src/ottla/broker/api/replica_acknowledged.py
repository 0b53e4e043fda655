"""ReplicaAcknowledged (key 20000), v0: between brokers.

Behaviour: a follower reports the synced ends of its logs, beside the fetch that is parked at its leader. There is no
reply.
Versions: v0.
Not implemented: nothing.
"""

from __future__ import annotations

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Buffers, Context
from ottla.broker.api.authorization import permits
from ottla.protocol.model.ids import TopicId
from ottla.protocol.wire.synced_ends import API_KEY, parse_acknowledged

API = Api(key=API_KEY, name="ReplicaAcknowledged", versions=(0, 0))


def handle_raw(ctx: Context, body: memoryview) -> Buffers | None:
    """Records how far a follower has synced the partitions that this broker leads. Sends no reply."""
    report = parse_acknowledged(body)
    metadata, replica = ctx.broker.metadata, (report.broker_id, report.broker_epoch)
    if metadata.knows_replica(*replica) and permits(ctx, rules.REPLICA_ACKNOWLEDGED):
        ctx.connection.is_of_broker = True
        for entry in report.entries:
            metadata.on_synced_end(
                TopicId(entry.topic_id), entry.partition, entry.leader_epoch, *replica, entry.end_offset
            )
    return None
