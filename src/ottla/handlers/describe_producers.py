"""DescribeProducers (key 61), v0.

Behaviour: what a partition that is led here knows of its producers: epoch, last sequence, when the last batch or marker
came, the epoch of the coordinator that ended its last transaction here, and where its open transaction begins.
Versions: v0 only.
Not implemented: nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.handlers.api import Api, Context, part, reply
from ottla.handlers.partitions import find_partition
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.describe_producers.v0 import DescribeProducersRequest

    from ottla.broker.partition import AnyLog

API = Api(61, "DescribeProducers", (0, 0))

_UNKNOWN = -1


async def handle(ctx: Context, request: DescribeProducersRequest) -> object:
    topics = []
    for topic in request.topics:
        partitions = tuple(_describe(ctx, topic.name, index) for index in topic.partition_indexes)
        topics.append(part(ctx, "TopicResponse", name=topic.name, partitions=partitions))
    return reply(ctx, topics=tuple(topics))


def _describe(ctx: Context, topic_name: str, index: int) -> Any:
    partition = find_partition(ctx.broker, topic_name, index)
    is_here = not isinstance(partition, ErrorCode)
    return part(
        ctx,
        "PartitionResponse",
        partition_index=index,
        error_code=partition if isinstance(partition, ErrorCode) else ErrorCode.none,
        error_message=None if is_here else f"{topic_name}-{index} is not led by this broker",
        active_producers=() if isinstance(partition, ErrorCode) else _producers(ctx, partition.log),
    )


def _producers(ctx: Context, log: AnyLog) -> tuple[Any, ...]:
    """Those with sequences, and those of which only transactions are known."""
    transactional = dict(log.transactions)
    found = []
    for producer_id in sorted({entry.producer_id for entry in log.producers} | transactional.keys()):
        entry, known = log.producers.get(producer_id), transactional.get(producer_id)
        found.append(
            part(
                ctx,
                "ProducerState",
                producer_id=producer_id,
                producer_epoch=max(entry.epoch if entry else _UNKNOWN, known.epoch if known else _UNKNOWN),
                last_sequence=entry.batches[-1].last_sequence if entry and entry.batches else _UNKNOWN,
                last_timestamp=max(
                    entry.last_timestamp_ms if entry else _UNKNOWN, known.changed_ms if known else _UNKNOWN
                ),
                coordinator_epoch=known.coordinator_epoch if known else _UNKNOWN,
                current_txn_start_offset=known.first_offset if known else _UNKNOWN,
            )
        )
    return tuple(found)
