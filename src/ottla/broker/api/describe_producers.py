"""DescribeProducers (key 61), v0.

Behaviour: returns the producers of a partition, as the replica on this broker knows them: epoch, last sequence, time of
the last appended batch or marker, epoch of the coordinator that ended the last transaction, and first offset of the
open transaction. Any replica answers; a follower may be behind its leader.
Versions: v0 only.
Not implemented: nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, part, reply
from ottla.broker.api.authorization import refusal
from ottla.broker.api.partitions import find_replica
from ottla.protocol.model.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.describe_producers.v0 import DescribeProducersRequest

    from ottla.broker.storage.any_log import AnyLog

API = Api(61, "DescribeProducers", (0, 0))

_UNKNOWN = -1


async def handle(ctx: Context, request: DescribeProducersRequest) -> object:
    """Returns the producers whose state each partition keeps."""
    topics = []
    for topic in request.topics:
        partitions = tuple(_describe(ctx, topic.name, index) for index in topic.partition_indexes)
        topics.append(part(ctx, "TopicResponse", name=topic.name, partitions=partitions))
    return reply(ctx, topics=tuple(topics))


def _describe(ctx: Context, topic_name: str, index: int) -> Any:
    refused = refusal(ctx, rules.DESCRIBE_PRODUCERS, topic_name)
    replica = refused.error if refused else find_replica(ctx.broker, topic_name, index)
    error, message, producers = ErrorCode.none, None, ()
    if refused is not None:
        error, message = refused.error, refused.message
    elif isinstance(replica, ErrorCode):
        error, message = replica, f"this broker has no replica of {topic_name}-{index}"
    elif replica.error is not ErrorCode.none:
        error, message = replica.error, f"the log of {topic_name}-{index} has failed on this broker"
    else:
        producers = _producers(ctx, replica.log)
    return part(
        ctx,
        "PartitionResponse",
        partition_index=index,
        error_code=error,
        error_message=message,
        active_producers=producers,
    )


def _producers(ctx: Context, log: AnyLog) -> tuple[Any, ...]:
    """Returns the producers with sequences, and those that are known only by their transactions."""
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
