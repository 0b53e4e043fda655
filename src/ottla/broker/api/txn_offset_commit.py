"""TxnOffsetCommit (key 28), v0-5.

Behaviour: commits a group's offsets as part of a transaction. They are not visible before the transaction is committed;
until then a consumer that asks for stable offsets is told to wait. Fenced by the producer's epoch, and by the member
and generation if the client sends them (KIP-447). Partitions that do not exist are refused individually.
Versions: v2 leader epochs; v3 flexible, member and generation; v4 knows TRANSACTION_ABORTABLE; v5 is transaction
version 2: this request adds the group's partition to the transaction.
Not implemented: nothing.
"""

from __future__ import annotations

from typing import Any

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, part, reply
from ottla.broker.api.authorization import refusal
from ottla.machines.groups.replies import CommitReply
from ottla.machines.groups.requests import CommitOffsets, OffsetToCommit
from ottla.protocol.model.errors import ErrorCode, Refused

API = Api(28, "TxnOffsetCommit", (0, 5))

_EPOCHS_FROM, _MEMBERS_FROM, _ABORTABLE_FROM, _VERSION_2_FROM = 2, 3, 4, 5
_NO_EPOCH = -1
_UNREACHED = frozenset(
    {
        ErrorCode.network_exception,
        ErrorCode.request_timed_out,
        ErrorCode.not_enough_replicas,
    }
)
"""Errors that mean that the transaction coordinator, not the group coordinator, could not be reached."""


async def handle(ctx: Context, request: Any) -> object:
    """Stores offsets as part of a transaction; they are committed when it is."""
    offsets: list[OffsetToCommit] = []
    refused = refusal(ctx, rules.TXN_OFFSET_COMMIT, request.transactional_id) or refusal(
        ctx, rules.TXN_OFFSET_COMMIT_GROUP, request.group_id
    )
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
    refused = refusal(ctx, rules.TXN_OFFSET_COMMIT_TOPIC, asked.name)
    if refused is not None:
        return [refused.error] * len(asked.partitions)
    topic = ctx.broker.topics.get(asked.name)
    errors: list[ErrorCode | None] = []
    for partition in asked.partitions:
        if topic is None or not topic.has(partition.partition_index):
            errors.append(ErrorCode.unknown_topic_or_partition)
            continue
        errors.append(None)
        offsets.append(
            OffsetToCommit(
                topic=topic.name,
                partition=partition.partition_index,
                offset=partition.committed_offset,
                leader_epoch=partition.committed_leader_epoch if ctx.version >= _EPOCHS_FROM else _NO_EPOCH,
                metadata=partition.committed_metadata or "",
            )
        )
    return errors


async def _commit(ctx: Context, request: Any, offsets: tuple[OffsetToCommit, ...]) -> tuple[ErrorCode, ...]:
    members: dict[str, Any] = {}
    if ctx.version >= _MEMBERS_FROM:
        members = {
            "generation": request.generation_id,
            "member_id": request.member_id,
            "instance_id": request.group_instance_id,
        }
    commit = CommitOffsets(
        group=request.group_id,
        offsets=offsets,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        **members,
    )
    version = 2 if ctx.version >= _VERSION_2_FROM else 0
    outcome = await ctx.broker.groups.commit_in_transaction(commit, request.transactional_id, version)
    if isinstance(outcome, Refused):
        return (_as_told(ctx, outcome.error),) * len(offsets)
    assert isinstance(outcome, CommitReply), f"unexpected outcome of a commit: {outcome}"
    return outcome.errors


def _as_told(ctx: Context, error: ErrorCode) -> ErrorCode:
    """Translates an error into one that the client knows."""
    if error in _UNREACHED:
        return ErrorCode.coordinator_not_available
    if error is ErrorCode.concurrent_transactions and ctx.version < _VERSION_2_FROM:
        return ErrorCode.coordinator_load_in_progress  # makes the client retry
    if error is ErrorCode.transaction_abortable and ctx.version < _ABORTABLE_FROM:
        return ErrorCode.invalid_txn_state
    return error


def _committed(ctx: Context, asked: Any, errors: list[ErrorCode | None]) -> Any:
    partitions = tuple(
        part(ctx, "TxnOffsetCommitResponsePartition", partition_index=partition.partition_index, error_code=error)
        for partition, error in zip(asked.partitions, errors, strict=True)
    )
    return part(ctx, "TxnOffsetCommitResponseTopic", name=asked.name, partitions=partitions)
