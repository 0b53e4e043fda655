"""OffsetCommit (key 8), v2-10.

Behaviour: commits a group's offsets. The reply waits until they are replicated and durable, like every record of
`__consumer_offsets`. Partitions that do not exist are refused individually; the others are committed.
Versions: v2-4 a retention time per commit; v6 leader epochs; v7 static members; v8 flexible; v9 member epochs of the
consumer protocol; v10 topics by id.
Not implemented: nothing.
"""

from __future__ import annotations

from typing import Any

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, part, reply
from ottla.broker.api.authorization import permits, refusal
from ottla.broker.api.coordinator_calls import ask, milliseconds
from ottla.machines.groups.replies import CommitReply
from ottla.machines.groups.requests import CommitOffsets, OffsetToCommit
from ottla.protocol.model.errors import ErrorCode, Refused

API = Api(8, "OffsetCommit", (2, 10))

_BY_ID_FROM = 10
_NO_EPOCH = -1


async def handle(ctx: Context, request: Any) -> object:
    """Commits the offsets of known partitions; the others get an error each."""
    offsets: list[OffsetToCommit] = []
    refused = refusal(ctx, rules.OFFSET_COMMIT, request.group_id)
    errors: list[list[ErrorCode | None]] = [
        _sort_out(ctx, topic, offsets) if refused is None else [refused.error] * len(topic.partitions)
        for topic in request.topics
    ]
    if offsets:
        answers = iter(await _commit(ctx, request, tuple(offsets)))
        errors = [[next(answers) if error is None else error for error in of_topic] for of_topic in errors]
    topics = tuple(_committed(ctx, *each) for each in zip(request.topics, errors, strict=True))
    return reply(ctx, topics=topics)


def _sort_out(ctx: Context, asked: Any, offsets: list[OffsetToCommit]) -> list[ErrorCode | None]:
    """Adds the offsets that can be committed to `offsets`. Returns for each partition why it cannot be, or None."""
    if ctx.version >= _BY_ID_FROM:
        topic = None if asked.topic_id is None else ctx.broker.topics.by_id(asked.topic_id)
        missing = ErrorCode.unknown_topic_id
    else:
        topic = ctx.broker.topics.get(asked.name)
        missing = ErrorCode.unknown_topic_or_partition
    name = topic.name if topic is not None else asked.name if ctx.version < _BY_ID_FROM else None
    if name is not None and not permits(ctx, rules.OFFSET_COMMIT_TOPIC, name):
        return [ErrorCode.topic_authorization_failed] * len(asked.partitions)
    if topic is None:
        return [missing] * len(asked.partitions)
    has_epoch = ctx.version >= 6
    errors: list[ErrorCode | None] = []
    for partition in asked.partitions:
        if not topic.has(partition.partition_index):
            errors.append(ErrorCode.unknown_topic_or_partition)
            continue
        errors.append(None)
        offsets.append(
            OffsetToCommit(
                topic=topic.name,
                partition=partition.partition_index,
                offset=partition.committed_offset,
                leader_epoch=partition.committed_leader_epoch if has_epoch else _NO_EPOCH,
                metadata=partition.committed_metadata or "",
            )
        )
    return errors


async def _commit(ctx: Context, request: Any, offsets: tuple[OffsetToCommit, ...]) -> tuple[ErrorCode, ...]:
    commit = CommitOffsets(
        group=request.group_id,
        offsets=offsets,
        generation=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        instance_id=request.group_instance_id if ctx.version >= 7 else None,
        retention_ms=milliseconds(request.retention_time) if ctx.version <= 4 else -1,
        knows_epochs=ctx.version >= 9,
    )
    outcome = await ask(ctx, commit, request.group_id, CommitReply)
    return (outcome.error,) * len(offsets) if isinstance(outcome, Refused) else outcome.errors


def _committed(ctx: Context, asked: Any, errors: list[ErrorCode | None]) -> Any:
    by_id = ctx.version >= _BY_ID_FROM
    partitions = tuple(
        part(ctx, "OffsetCommitResponsePartition", partition_index=partition.partition_index, error_code=error)
        for partition, error in zip(asked.partitions, errors, strict=True)
    )
    return part(
        ctx,
        "OffsetCommitResponseTopic",
        name=None if by_id else asked.name,
        topic_id=asked.topic_id if by_id else None,
        partitions=partitions,
    )
