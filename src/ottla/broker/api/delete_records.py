"""DeleteRecords (key 21), v0-2.

Behaviour: advances a partition's log start offset; -1 means to the high watermark. Replies with the new log start when
every in-sync replica has it. Internal topics, and topics that are only compacted, keep their records.
Versions: v2 flexible.
Not implemented: nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, part, reply
from ottla.broker.api.authorization import refusal
from ottla.broker.api.partitions import find_partition
from ottla.broker.partition.record_deletion import delete_records
from ottla.protocol.model.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from kio.schema.delete_records.v2 import DeleteRecordsRequest

API = Api(21, "DeleteRecords", (0, 2))

_NO_WATERMARK = -1


async def handle(ctx: Context, request: DeleteRecordsRequest) -> object:
    """Raises the log start offset of each partition and waits, up to the timeout, for its replicas."""
    topics = []
    timeout_ms = request.timeout.total_seconds() * 1000
    for topic in request.topics:
        partitions = []
        for asked in topic.partitions:
            outcome = await _delete(ctx, topic.name, asked.partition_index, asked.offset, timeout_ms)
            partitions.append(_result(ctx, asked.partition_index, outcome))
        topics.append(part(ctx, "DeleteRecordsTopicResult", name=topic.name, partitions=tuple(partitions)))
    return reply(ctx, topics=tuple(topics))


def _result(ctx: Context, index: int, outcome: int | Refused) -> Any:
    is_refused = isinstance(outcome, Refused)
    return part(
        ctx,
        "DeleteRecordsPartitionResult",
        partition_index=index,
        low_watermark=_NO_WATERMARK if is_refused else outcome,
        error_code=outcome.error if isinstance(outcome, Refused) else ErrorCode.none,
    )


async def _delete(ctx: Context, topic_name: str, index: int, offset: int, timeout_ms: float) -> int | Refused:
    refused = refusal(ctx, rules.DELETE_RECORDS, topic_name)
    if refused is not None:
        return refused
    partition = find_partition(ctx.broker, topic_name, index)
    if isinstance(partition, ErrorCode):
        return Refused(partition)
    if partition.topic.internal:
        return Refused(ErrorCode.invalid_topic_exception)
    if "delete" not in partition.topic.config.cleanup_policy:
        return Refused(ErrorCode.policy_violation)
    return await delete_records(partition, offset, ctx.broker.clock, timeout_ms)
