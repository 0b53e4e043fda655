"""ListOffsets (key 2), v1-11.

Behaviour: returns the offset for a timestamp. -2 is the log start. -1 is the log end as the reader may see it: the high
watermark, the last stable offset for read_committed, or the log end for a replica. -3 is the record with the largest
timestamp. -4 is the start of the local log (without tiered storage: the log start). -5 and -6 are the end of the tiered
records and the first record that waits to be tiered (without tiered storage: none). Any other timestamp gives the first
record at or after it. A leader that does not know its high watermark yet returns OFFSET_NOT_AVAILABLE instead of a
result that may be wrong.
Versions: v2 isolation level; v4 leader epochs; v6 flexible; v7 allows -3, v8 -4, v9 -5, v11 -6; v10 timeout.
Not implemented: the timeout, which is for tiered storage.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, part, reply
from ottla.broker.api.authorization import denied, permits
from ottla.broker.api.partitions import check_leader_epoch, find_partition
from ottla.broker.partition.offset_lookups import max_timestamp_offset, offset_for_time
from ottla.protocol.model.errors import ErrorCode
from ottla.reach import branch

if TYPE_CHECKING:
    from kio.schema.list_offsets.v11 import ListOffsetsRequest
    from kio.schema.list_offsets.v11.request import ListOffsetsPartition

    from ottla.broker.partition.partition import Partition

_NOT_KNOWN = branch("the latest offset is not available after an election", __name__)

API = Api(2, "ListOffsets", (1, 11))

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6
_FIRST_VERSION = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING: 11}
_READ_COMMITTED = 1


class _Found(NamedTuple):
    error: ErrorCode
    timestamp: int = -1
    offset: int = -1
    leader_epoch: int = -1


_NOT_FOUND = _Found(ErrorCode.none)


async def handle(ctx: Context, request: ListOffsetsRequest) -> object:
    """Returns the offset for a timestamp, or a special one such as the earliest or latest, for each partition."""
    asked = Counter((topic.name, each.partition_index) for topic in request.topics for each in topic.partitions)
    committed_only = ctx.version >= 2 and request.isolation_level == _READ_COMMITTED
    topics = []
    for topic in request.topics:
        partitions = []
        for each in topic.partitions:
            if asked[topic.name, each.partition_index] > 1:
                found = _Found(ErrorCode.invalid_request)
            else:
                found = await _look_up(ctx, topic.name, each, request.replica_id, committed_only)
            partitions.append(_partition_response(ctx, each.partition_index, found))
        topics.append(part(ctx, "ListOffsetsTopicResponse", name=topic.name, partitions=tuple(partitions)))
    return reply(ctx, topics=tuple(topics))


def _partition_response(ctx: Context, index: int, found: _Found) -> Any:
    return part(
        ctx,
        "ListOffsetsPartitionResponse",
        partition_index=index,
        error_code=found.error,
        timestamp=found.timestamp,
        offset=found.offset,
        leader_epoch=found.leader_epoch,
    )


async def _look_up(
    ctx: Context, name: str, asked: ListOffsetsPartition, replica_id: int, committed_only: bool
) -> _Found:
    if not permits(ctx, rules.LIST_OFFSETS, name):
        return _Found(denied(rules.LIST_OFFSETS).error)
    partition = find_partition(ctx.broker, name, asked.partition_index)
    if isinstance(partition, ErrorCode):
        return _Found(partition)
    if ctx.version >= 4:
        error = check_leader_epoch(partition, asked.current_leader_epoch)
        if error is not ErrorCode.none:
            return _Found(error)
    if asked.timestamp < 0 and ctx.version < _FIRST_VERSION.get(asked.timestamp, ctx.version + 1):
        return _Found(ErrorCode.unsupported_version)
    is_lagging = replica_id == -1 and not partition.is_watermark_known
    visible_end = _visible_end(partition, replica_id, committed_only)
    epoch = partition.leader_epoch
    match asked.timestamp:
        case -1 if is_lagging:
            _NOT_KNOWN()
            return _Found(ErrorCode.offset_not_available)
        case -1:
            return _Found(ErrorCode.none, -1, visible_end, epoch)
        case -2 | -4:
            return _Found(ErrorCode.none, -1, partition.log.start_offset, epoch)
        case -5 | -6:
            return _NOT_FOUND
        case -3:
            found = await max_timestamp_offset(partition.log)
        case timestamp_ms:
            found = await offset_for_time(partition, timestamp_ms)
    if found is None or found[1] >= visible_end:
        # A new leader that does not know yet must not report that there is nothing: consumers would skip committed
        # records.
        return _Found(ErrorCode.offset_not_available) if is_lagging else _NOT_FOUND
    return _Found(ErrorCode.none, found[0], found[1], epoch)


def _visible_end(partition: Partition, replica_id: int, committed_only: bool) -> int:
    if replica_id != -1:
        return partition.log.end_offset
    return partition.last_stable_offset if committed_only else partition.high_watermark
