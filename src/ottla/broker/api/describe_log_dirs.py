"""DescribeLogDirs (key 35), v1-5.

Behaviour: returns the data directory with the size of each partition; null topics mean all. A directory with a failed
log is reported with KAFKA_STORAGE_ERROR. Logs of the memory class are listed with the memory that they use.
Versions: v2 flexible; v3 top-level error; v4 total and free space of the disk; v5 cordoned (never).
Not implemented: more than one directory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, part, reply
from ottla.broker.api.authorization import refusal
from ottla.broker.blocking_jobs import run_blocking
from ottla.protocol.model.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.describe_log_dirs.v5 import DescribeLogDirsRequest

    from ottla.broker.partition.partition import Partition

API = Api(35, "DescribeLogDirs", (1, 5))


async def handle(ctx: Context, request: DescribeLogDirsRequest) -> object:
    """Returns the data directory with its size and free space, and the sizes of the requested partitions."""
    broker = ctx.broker
    refused = refusal(ctx, rules.DESCRIBE_LOG_DIRS)
    if refused is not None:
        return reply(ctx, error_code=refused.error, results=())
    topics = tuple(
        part(
            ctx,
            "DescribeLogDirsTopic",
            name=name,
            partitions=tuple(_partition(ctx, partition) for partition in partitions),
        )
        for name, partitions in _asked(ctx, request)
        if partitions
    )
    has_failed = any(partition.error is not ErrorCode.none for topic in broker.topics for partition in topic.partitions)
    directory = part(
        ctx,
        "DescribeLogDirsResult",
        error_code=ErrorCode.kafka_storage_error if has_failed else ErrorCode.none,
        log_dir=broker.context.log_dir,
        topics=topics,
        total_bytes=await run_blocking(broker.context.shared.disk.read_queue, broker.context.log_dir_total_bytes),
        usable_bytes=await run_blocking(broker.context.shared.disk.read_queue, broker.context.log_dir_free_bytes),
    )
    return reply(ctx, error_code=ErrorCode.none, results=(directory,))


def _asked(ctx: Context, request: DescribeLogDirsRequest) -> Iterator[tuple[str, list[Partition]]]:
    """Iterates over the requested partitions that are here. The others are left out, as in Kafka."""
    if request.topics is None:
        for topic in ctx.broker.topics:
            yield topic.name, topic.partitions
        return
    for asked in request.topics:
        known = ctx.broker.topics.get(asked.topic)
        if known is not None:
            found = (known.partition(index) for index in asked.partitions)
            yield asked.topic, [partition for partition in found if partition is not None]


def _partition(ctx: Context, partition: Partition) -> Any:
    return part(
        ctx,
        "DescribeLogDirsPartition",
        partition_index=partition.index,
        partition_size=partition.log.size_bytes,
        offset_lag=0,
        is_future_key=False,
    )
