"""AddPartitionsToTxn (key 24), v0-5.

Behaviour: adds partitions to a transaction, which begins with the first of them. If one of them does not exist, none is
added (OPERATION_NOT_ATTEMPTED for the others). Brokers use v4 and v5 to verify that partitions are part of a
transaction, and to add them for clients of transaction version 2.
Versions: v2 knows PRODUCER_FENCED; v3 flexible; v4 several transactions at once, for brokers; v5 knows
TRANSACTION_ABORTABLE.
Not implemented: nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import Api, Context, part, reply
from ottla.broker.api.authorization import refusal
from ottla.broker.api.transaction_calls import ask, fenced_in_words_of
from ottla.machines.transactions.records import TopicPartition
from ottla.machines.transactions.replies import AddPartitionsReply
from ottla.machines.transactions.requests import AddPartitions
from ottla.protocol.model.errors import ErrorCode, Refused

API = Api(24, "AddPartitionsToTxn", (0, 5))

_FENCED_FROM, _OF_BROKERS_FROM, _ABORTABLE_FROM = 2, 4, 5
Errors = Mapping[TopicPartition, ErrorCode]


async def handle(ctx: Context, request: Any) -> object:
    """Adds partitions to a transaction.

    From v4 on, brokers send it, for several transactions, to add or only verify.
    """
    if ctx.version < _OF_BROKERS_FROM:
        asked = AddPartitions(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            partitions=_partitions(request.v3_and_below_topics),
        )
        errors = _refused(ctx, asked) or _missing(ctx, asked) or await _add(ctx, asked)
        return reply(ctx, results_by_topic_v3_and_below=_results(ctx, request.v3_and_below_topics, errors))
    refused = refusal(ctx, rules.ADD_PARTITIONS_AS_BROKER)
    if refused is not None:
        return reply(ctx, error_code=refused.error, results_by_transaction=())
    asked_each = [_of_broker(transaction) for transaction in request.transactions]
    found = await asyncio.gather(*(_add(ctx, asked) for asked in asked_each))
    results = tuple(
        part(
            ctx,
            "AddPartitionsToTxnResult",
            transactional_id=transaction.transactional_id,
            topic_results=_results(ctx, transaction.topics, errors),
        )
        for transaction, errors in zip(request.transactions, found, strict=True)
    )
    return reply(ctx, error_code=ErrorCode.none, results_by_transaction=results)


def _of_broker(transaction: Any) -> AddPartitions:
    """Translates a broker's request. The sender leads the partitions, so they exist even if this broker does not know
    them."""
    return AddPartitions(
        transactional_id=transaction.transactional_id,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        partitions=_partitions(transaction.topics),
        transaction_version=2,
        verify_only=transaction.verify_only,
    )


def _partitions(topics: Sequence[Any]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic.name, index) for topic in topics for index in topic.partitions)


def _refused(ctx: Context, asked: AddPartitions) -> Errors | None:
    refused = refusal(ctx, rules.ADD_PARTITIONS, asked.transactional_id)
    return None if refused is None else dict.fromkeys(asked.partitions, refused.error)


def _missing(ctx: Context, asked: AddPartitions) -> Errors | None:
    """Returns an error for every partition if one of them does not exist or must not be written to."""
    errors = {name: error for name in asked.partitions if (error := _problem(ctx, name)) is not None}
    if not errors:
        return None
    return {name: errors.get(name, ErrorCode.operation_not_attempted) for name in asked.partitions}


def _problem(ctx: Context, name: TopicPartition) -> ErrorCode | None:
    refused = refusal(ctx, rules.ADD_PARTITIONS_TOPIC, name.topic)
    if refused is not None:
        return refused.error
    return None if _exists(ctx, name) else ErrorCode.unknown_topic_or_partition


def _exists(ctx: Context, name: TopicPartition) -> bool:
    topic = ctx.broker.topics.get(name.topic)
    return topic is not None and topic.has(name.partition)


async def _add(ctx: Context, asked: AddPartitions) -> Errors:
    outcome = await ask(ctx, asked, asked.transactional_id, AddPartitionsReply)
    if isinstance(outcome, Refused):
        return dict.fromkeys(asked.partitions, outcome.error)
    return {name: _as_told(ctx, error) for name, error in outcome.errors}


def _as_told(ctx: Context, error: ErrorCode) -> ErrorCode:
    if error is ErrorCode.transaction_abortable and ctx.version < _ABORTABLE_FROM:
        return ErrorCode.invalid_txn_state
    return fenced_in_words_of(ctx, error, _FENCED_FROM)


def _results(ctx: Context, topics: Sequence[Any], errors: Errors) -> tuple[Any, ...]:
    return tuple(
        part(
            ctx,
            "AddPartitionsToTxnTopicResult",
            name=topic.name,
            results_by_partition=tuple(
                part(
                    ctx,
                    "AddPartitionsToTxnPartitionResult",
                    partition_index=index,
                    partition_error_code=errors[TopicPartition(topic.name, index)],
                )
                for index in topic.partitions
            ),
        )
        for topic in topics
    )
