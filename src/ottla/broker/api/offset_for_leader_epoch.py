"""OffsetForLeaderEpoch (key 23), v2-4.

Behaviour: returns the end offset of the largest epoch at or below the requested one, so that a reader can tell whether
the log was truncated since it read it. (-1, -1) if the log knows no such epoch.
Versions: v3 replica id; v4 flexible.
Not implemented: nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, part, reply
from ottla.broker.api.authorization import permits, refusal
from ottla.broker.api.partitions import check_leader_epoch, find_partition
from ottla.protocol.model.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.offset_for_leader_epoch.v4 import OffsetForLeaderEpochRequest
    from kio.schema.offset_for_leader_epoch.v4.request import OffsetForLeaderPartition

    from ottla.broker.partition.partition import Partition

API = Api(23, "OffsetForLeaderEpoch", (2, 4))


async def handle(ctx: Context, request: OffsetForLeaderEpochRequest) -> object:
    """Returns the end offset of a leader epoch for each partition, by which a reader finds where to truncate."""
    topics = tuple(
        part(
            ctx,
            "OffsetForLeaderTopicResult",
            topic=topic.topic,
            partitions=tuple(_epoch_end(ctx, topic.topic, asked) for asked in topic.partitions),
        )
        for topic in request.topics
    )
    return reply(ctx, topics=topics)


def _end_of(partition: Partition, epoch: int) -> tuple[int, int]:
    """Returns the epoch and its end. The current epoch ends at the log end, even before its first batch."""
    if epoch == partition.leader_epoch:
        return epoch, partition.log.end_offset
    return partition.log.epochs.end_of(epoch, partition.log.end_offset)


def _epoch_end(ctx: Context, topic_name: str, asked: OffsetForLeaderPartition) -> Any:
    epoch = end_offset = -1
    refused = None if permits(ctx, rules.LEADER_EPOCH_OF_ANY) else refusal(ctx, rules.LEADER_EPOCH, topic_name)
    partition = refused.error if refused else find_partition(ctx.broker, topic_name, asked.partition)
    if isinstance(partition, ErrorCode):
        error = partition
    else:
        error = check_leader_epoch(partition, asked.current_leader_epoch)
        if error is ErrorCode.none:
            epoch, end_offset = _end_of(partition, asked.leader_epoch)
    return part(
        ctx,
        "EpochEndOffset",
        error_code=error,
        partition=asked.partition,
        leader_epoch=epoch,
        end_offset=end_offset,
    )
