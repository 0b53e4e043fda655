"""DescribeTransactions (key 65), v0.

Behaviour: returns the state of each transactional id, its producer, and the partitions of its transaction. Must be sent
to the coordinator; another broker answers NOT_COORDINATOR.
Versions: v0 flexible.
Not implemented: nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from ottla.broker.api import authorization_table as rules
from ottla.broker.api.api import NO_TIME, Api, Context, part, reply
from ottla.broker.api.authorization import permits, refusal
from ottla.broker.api.transaction_calls import ask
from ottla.broker.transactions.marker_sender import by_topic
from ottla.machines.transactions.records import Transaction
from ottla.machines.transactions.replies import DescribeTransactionReply
from ottla.machines.transactions.requests import DescribeTransaction

if TYPE_CHECKING:
    from kio.schema.describe_transactions.v0 import DescribeTransactionsRequest

    from ottla.protocol.model.errors import ErrorCode

API = Api(65, "DescribeTransactions", (0, 0))

_NEVER = datetime.fromtimestamp(-0.001, UTC)
"""-1 on the wire."""


async def handle(ctx: Context, request: DescribeTransactionsRequest) -> object:
    """Returns the state of each transactional id, which this broker must coordinate."""
    states = [await _describe(ctx, name) for name in request.transactional_ids]
    return reply(ctx, transaction_states=tuple(states))


async def _describe(ctx: Context, name: str) -> Any:
    refused = refusal(ctx, rules.DESCRIBE_TRANSACTIONS, name)
    asked = DescribeTransaction(transactional_id=name)
    outcome = await ask(ctx, asked, name, DescribeTransactionReply) if refused is None else refused
    found = outcome.transaction if isinstance(outcome, DescribeTransactionReply) else None
    return _state(ctx, name, outcome.error, found)


def _state(ctx: Context, name: str, error: ErrorCode, found: Transaction | None) -> Any:
    topics = [
        (topic, indexes)
        for topic, indexes in by_topic(found.partitions if found is not None else ()).items()
        if permits(ctx, rules.DESCRIBE_TRANSACTIONS_TOPIC, topic)
    ]
    is_begun = found is not None and found.started_ms >= 0
    return part(
        ctx,
        "TransactionState",
        error_code=error,
        transactional_id=name,
        transaction_state="" if found is None else found.state.label,
        transaction_timeout=NO_TIME if found is None else timedelta(milliseconds=found.timeout_ms),
        transaction_start_time=datetime.fromtimestamp(found.started_ms / 1000, UTC) if found and is_begun else _NEVER,
        producer_id=-1 if found is None else found.producer_id,
        producer_epoch=-1 if found is None else found.producer_epoch,
        topics=tuple(part(ctx, "TopicData", topic=topic, partitions=tuple(indexes)) for topic, indexes in topics),
    )
